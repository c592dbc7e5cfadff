"""The studio's folder: uploaded files and what is learned from them. All of it survives a restart.

    DIR/files/NAME               logs as they were uploaded
    DIR/jobs/ID/job.json         what was asked and how far it is, always replaced as a whole
    DIR/jobs/ID/policy.ponn      and report.html, when it is done

Only the owner can look into them. Where the disk is full, or somebody removed a folder, the state of a job is kept in
memory and says so, until it can be written: a queue that stopped there would have to be found out about.

A name that comes from outside is never joined to a path: it must be one that the folder lists.
Learning runs as a process of its own (`ponn learn`), which ends when the studio does. One at a time: two would only
slow each other down. What is asked for meanwhile waits, in the order in which it was asked for, also across a restart.
"""

import json
import logging
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
import threading
import time
import unicodedata
from asyncio import to_thread
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from ponn.errors import PonnError, listing, one_line
from ponn.log.log import Columns
from ponn.processes import MEMORY_WORDS, signal_name
from ponn.storage import PRIVATE, PRIVATE_FOLDER, make_private_folder, open_unfinished, remove_leftovers, write_whole
from ponn.tables.files import READERS
from ponn.tables.source import COMPRESSIONS

WAITING, RUNNING, DONE, FAILED, INTERRUPTED = "waiting", "running", "done", "failed", "interrupted"
LONGEST_NAME = 120  # characters of a file's name; file systems allow 255 bytes
PART = ".part-"  # begins the name of an upload that version 0.1 did not complete
STOPPING = 5.0  # seconds a stopped process has before it is killed
WRITE_EVERY = 0.5  # seconds between two notes of progress on disk
LAST_LINES, LONGEST_LINE = 20, 1_000  # of what a failed process said
STATES = (WAITING, RUNNING, DONE, FAILED, INTERRUPTED)
MEMORY_SHARE = 0.8  # of this machine's memory that learning may take: beyond it, the system would end something else
CLOSED = "The studio was closed while this was being learned. Start it again when you like."
log = logging.getLogger("ponn.serve")


class TooLargeError(PonnError):
    """An upload beyond the limit."""

    status = 413  # of HTTP


class NotThereError(PonnError):
    """No file or job of that name in the folder."""

    status = 404  # of HTTP


class BusyError(PonnError):
    """Something is under way that does not go together with what was asked."""

    status = 409  # of HTTP


class DiskError(PonnError):
    """Something that could not be written."""

    status = 507  # of HTTP


@dataclass(frozen=True)
class Reading(Columns):
    """How a file is read: which column is what, and what else `ponn.read_log` must know."""

    ignore: tuple[str, ...] = ()
    minimize: bool = False
    drop_missing: bool = False

    @property
    def keywords(self) -> dict[str, Any]:
        """Those of `ponn.read_log`."""
        return asdict(self) | {"features": self.features or None}


@dataclass(frozen=True)
class Order:
    """What is to be learned, from which file, and how."""

    file: str
    columns: Reading
    method: str | None = None
    tune: bool = False
    seed: int = 0
    settings: tuple[str, ...] = ()  # NAME=VALUE, as for `ponn learn --set`


@dataclass(frozen=True)
class Job:
    """One order and how far it is."""

    id: str
    order: Order
    state: str = WAITING
    message: str = ""
    done: int = 0
    total: int = 0
    created: float = field(default_factory=time.time)
    started: float | None = None
    ended: float | None = None
    result: dict[str, Any] | None = None  # what `ponn learn --json` printed
    report: bool = False  # is there a report?

    def as_json(self) -> dict[str, Any]:
        """Plain values, with the seconds that learning took so far."""
        now = self.ended or time.time()
        return asdict(self) | {"seconds": round(now - (self.started or now), 1)}


def job_from(text: str) -> Job:
    """A job as it was written down; a ValueError, KeyError or TypeError where it was not written by us."""
    told = json.loads(text)
    order = told["order"]
    lists = {name: tuple(order["columns"].get(name, ())) for name in ("features", "ignore")}
    columns = Reading(**order["columns"] | lists)
    told["order"] = Order(**order | {"columns": columns, "settings": tuple(order["settings"])})
    job = Job(**told)
    times = [one for one in (job.created, job.started, job.ended) if one is not None]
    if job.state not in STATES or not isinstance(job.id, str) or not isinstance(job.order.file, str):
        raise ValueError(f"the state is {job.state!r}, the id {job.id!r}, the file {job.order.file!r}")
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in times):
        raise ValueError("a time is no number")
    return job


class Project:
    """A folder of files and jobs. One studio at a time. memory: bytes that learning may take."""

    def __init__(self, folder: Path, memory: int | None = None) -> None:
        self.files_folder, self.jobs_folder = folder / "files", folder / "jobs"
        self.memory = memory or share_of_memory(MEMORY_SHARE)
        try:
            for one in (self.files_folder, self.jobs_folder):
                close_to_others(one)
            self.lock = locked(folder / ".lock")
        except OSError as error:
            raise PonnError(
                f"The folder {folder} cannot be used: {one_line(error)}. Name another with --folder."
            ) from error
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.stopped: dict[str, str] = {}  # job → why it was stopped
        self.unwritten: dict[str, tuple[Job, str]] = {}  # job → its state, and why that is only here
        self.under_way: dict[str, Job] = {}
        self.guard = threading.RLock()  # around who is running, and what is unwritten
        self.closed = False
        self.tidy()
        with self.guard:
            self.launch_next()

    def tidy(self) -> None:
        """After a restart: half uploads go, jobs that were under way are marked as interrupted; who waits goes on."""
        remove_leftovers(self.files_folder)
        for path in self.files_folder.glob(PART + "*"):
            with suppress(OSError):
                path.unlink()
        for job in self.jobs():
            if job.state == RUNNING:
                self.keep(replace(job, state=INTERRUPTED, message=CLOSED, ended=time.time()))

    def close(self) -> None:
        """Stop what is under way; it is shown as interrupted from then on. What waits does so until the next start."""
        with self.guard:
            self.closed = True
        for id in list(self.running):
            self.stop(id, CLOSED)
        self.lock.close()

    # Files

    def files(self) -> list[Path]:
        """Uploaded files, by name. Links are not files."""
        return [path for path in listed(self.files_folder) if is_own_file(path)]

    def file(self, name: str) -> Path:
        """The uploaded file of this name."""
        for path in self.files():
            if path.name == name:
                return path
        raise NotThereError(f"There is no file {name[:LONGEST_NAME]!r} here. Upload it first.")

    async def add(self, name: str, chunks: AsyncIterator[bytes], largest: int) -> Path:
        """Keep an upload of at most `largest` bytes; a name that is taken gets a number."""
        target = self.files_folder / safe_name(name)
        try:
            make_private_folder(self.files_folder)  # which somebody may have removed
            part, handle = open_unfinished(self.files_folder, private=True)
            try:
                written = 0
                with os.fdopen(os.dup(handle), "wb") as file:
                    async for chunk in chunks:
                        written += len(chunk)
                        if written > largest:
                            raise self.too_large(name, largest)
                        file.write(chunk)
                if not written:
                    raise PonnError(f"{target.name} is empty.")
                await to_thread(os.fsync, handle)  # which takes seconds for a large one
                return linked(part, target)
            finally:
                os.close(handle)
                part.unlink(missing_ok=True)
        except OSError as error:
            raise DiskError(f"{target.name} could not be kept: {one_line(error)}. Make room, and try again.") from error

    def too_large(self, name: str, largest: int) -> TooLargeError:
        """What to say of an upload beyond the limit."""
        return TooLargeError(
            f"{safe_name(name)} is larger than {largest / 1e6:,.0f} MB, the most this studio takes. Start it with a "
            f"larger --max-upload, or put the file into its folder yourself: {self.files_folder.resolve()}."
        )

    # Jobs

    def jobs(self) -> list[Job]:
        """All jobs, the newest first."""
        with self.guard:
            found = self.under_way | {id: job for id, (job, _) in self.unwritten.items()}
        for path in listed(self.jobs_folder):
            if path.name not in found and (path / "job.json").is_file():
                found[path.name] = self.read(path)
        return sorted(found.values(), key=lambda job: (-job.created, job.id))

    def job(self, id: str) -> Job:
        """The job of this id."""
        for job in self.jobs():
            if job.id == id:
                return job
        raise NotThereError(f"There is no job {id[:40]!r} here.")

    def read(self, folder: Path) -> Job:
        """A job from its folder; one whose file is damaged is shown as failed."""
        try:
            return replace(job_from((folder / "job.json").read_text()), id=folder.name)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            told = f"Its job.json cannot be read: {one_line(error)}."
            return Job(folder.name, Order("", Reading("", "")), FAILED, told, created=0.0, ended=0.0)

    def folder(self, job: Job) -> Path:
        """Where a job keeps its things."""
        return self.jobs_folder / job.id

    def write(self, job: Job) -> None:
        """Write a job down."""
        write_whole(self.folder(job) / "job.json", json.dumps(asdict(job), indent=1).encode(), private=True)

    def keep(self, job: Job) -> Job:
        """Write a job down; where that cannot be done, keep it in memory until it can."""
        with self.guard:
            self.under_way.pop(job.id, None)
            if job.state == RUNNING:
                self.under_way[job.id] = job
            try:
                self.write(job)
                self.unwritten.pop(job.id, None)
            except OSError as error:
                log.error("job %s: %s", job.id, one_line(error))
                self.unwritten[job.id] = job, one_line(error)
            return job

    def keep_unwritten(self) -> None:
        """Write down what could not be written before; for those who hold the guard."""
        for job, _ in list(self.unwritten.values()):
            self.keep(job)

    def trouble(self, job: Job) -> str:
        """Why what is shown of a job is not on disk; empty where it is."""
        with self.guard:
            _, why = self.unwritten.get(job.id, (None, ""))
        return f"This could not be written down, so it is known only until the studio is closed: {why}." if why else ""

    def start(self, order: Order) -> Job:
        """Begin to learn, as soon as what was asked for before is learned."""
        log, job = self.file(order.file), Job(secrets.token_hex(6), order)
        learn_arguments(log, order, self.folder(job))  # so that what cannot be asked for is refused at once
        with self.guard:
            try:
                make_private_folder(self.jobs_folder)  # which somebody may have removed
                self.folder(job).mkdir(mode=PRIVATE_FOLDER)
                self.write(job)
            except OSError as error:
                with suppress(OSError):
                    self.folder(job).rmdir()
                raise DiskError(f"The job could not be kept: {one_line(error)}. Make room, and try again.") from error
            return self.queue(job)

    def restart(self, id: str) -> Job:
        """Begin a job again that failed or was interrupted."""
        with self.guard:
            job = self.job(id)
            if job.state not in (FAILED, INTERRUPTED):
                raise BusyError(
                    f"This job is {job.state}; only one that failed or was interrupted can be started again."
                )
            self.file(job.order.file)
            return self.queue(Job(job.id, job.order))

    def queue(self, job: Job) -> Job:
        """Let a job wait for its turn, which may have come; for those who hold the guard."""
        self.keep(replace(job, message="Waits until what was asked for before is learned."))
        self.launch_next()
        return self.job(job.id)

    def launch_next(self) -> None:
        """Begin with whoever waits longest, if nothing is under way; who cannot begin has failed, and the next may."""
        self.keep_unwritten()
        while not self.running and not self.closed:
            waiting = [job for job in self.jobs() if job.state == WAITING]
            if not waiting:
                return
            try:
                self.launch(waiting[-1])
            except Exception as error:  # as where its file is gone, or the machine lets no process start
                self.keep(replace(waiting[-1], state=FAILED, message=one_line(error) + ".", ended=time.time()))

    def ahead(self, job: Job) -> int:
        """How many are learned before it, the one that is being learned included."""
        if job.state != WAITING:
            return 0
        return sum(one.state == RUNNING or (one.state == WAITING and one.created < job.created) for one in self.jobs())

    def cancel(self, id: str) -> Job:
        """Stop a job that is under way, or let it wait no longer."""
        with self.guard:
            job = self.job(id)
            if job.state == WAITING:
                return self.keep(replace(job, state=INTERRUPTED, message="Stopped before it began.", ended=time.time()))
        if id not in self.running:
            raise BusyError(f"This job is {job.state}, so there is nothing to stop.")
        self.stop(id, "Stopped on request.")
        return self.job(id)

    def stop(self, id: str, why: str) -> None:
        """End a job's processes and wait until that is written down."""
        process = self.running.get(id)
        if process is None:
            return
        self.stopped[id] = why
        end_group(process)
        for _ in range(int(STOPPING / 0.02)):
            if id not in self.running:
                return
            time.sleep(0.02)

    def launch(self, job: Job) -> Job:
        """Start the process and a thread that follows it."""
        self.stopped.pop(job.id, None)
        arguments = learn_arguments(self.file(job.order.file), job.order, self.folder(job))
        with private_file(self.folder(job) / "result.json") as result:
            process = subprocess.Popen(
                [sys.executable, *command(self.memory), *arguments],
                stdin=subprocess.PIPE,  # closes when the studio ends, however it ends; then the process ends too
                stdout=result,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # so that it can be stopped with everything it started
            )
        job = self.keep(replace(job, state=RUNNING, message="Reading the log", started=time.time()))
        follower = threading.Thread(target=self.follow, args=(job, process), daemon=True)
        self.running[job.id] = process
        try:
            follower.start()
        except RuntimeError:  # the machine lets no thread start
            del self.running[job.id]
            end_group(process)
            close_pipes(process)
            raise
        return job

    def follow(self, job: Job, process: "subprocess.Popen[str]") -> None:
        """Note progress until the process ends, then how it ended; whatever happens, the next one begins then."""
        said: deque[str] = deque(maxlen=LAST_LINES)
        try:
            job = self.note_progress(job, process, said)
            job = self.ended(job, process.wait(), said)
        except Exception as error:  # a mistake of ours, which must not hold up the others
            log.exception("job %s", job.id)
            end_group(process)
            told = f"The studio made a mistake ({type(error).__name__}); what it printed says more."
            job = replace(job, state=FAILED, message=told, ended=time.time())
        close_pipes(process)
        with self.guard:
            try:
                self.keep(job)
            finally:
                del self.running[job.id]
                self.launch_next()

    def note_progress(self, job: Job, process: "subprocess.Popen[str]", said: "deque[str]") -> Job:
        """The job as it stands when the process has nothing more to say; what is not progress is added to `said`."""
        written = 0.0
        assert process.stderr is not None
        for line in process.stderr:
            told = progress_in(line)
            if told is None:
                said.append(line.strip()[:LONGEST_LINE])
                continue
            new_step, job = told["message"] != job.message, replace(job, **told)
            if new_step or time.monotonic() - written > WRITE_EVERY:
                self.keep(job)
                written = time.monotonic()
        return job

    def ended(self, job: Job, status: int, said: "deque[str]") -> Job:
        """The job after its process ended."""
        job, folder = replace(job, ended=time.time()), self.folder(job)
        if job.id in self.stopped:
            return replace(job, state=INTERRUPTED, message=self.stopped.pop(job.id))
        if status:
            return replace(job, state=FAILED, message=self.failure(status, said))
        try:
            result = json.loads((folder / "result.json").read_text())
            if not isinstance(result, dict) or not (folder / "policy.ponn").is_file():
                raise ValueError("it is not what `ponn learn` writes, or there is no policy beside it")
        except (OSError, ValueError, RecursionError) as error:
            told = f"Learning ended, but its result in {folder.resolve()} cannot be read: {one_line(error)}."
            return replace(job, state=FAILED, message=told)
        report = (folder / "report.html").is_file()
        return replace(job, state=DONE, message="Done", done=0, total=0, result=result, report=report)

    def failure(self, status: int, said: "deque[str]") -> str:
        """Why a process ended with this status, in words."""
        if not any(line.startswith("Error: ") for line in said) and any(
            word in line for word in MEMORY_WORDS for line in said
        ):
            return (
                f"Learning took more memory than the {self.memory / 1e9:,.1f} GB that it may take. Use fewer rows or "
                "columns, or start the studio with a larger --learn-memory."
            )
        if status < 0 or status > 128:  # by a signal, or in order after one
            name = signal_name(-status if status < 0 else status - 128)
            return f"Learning was ended from outside ({name}); perhaps memory ran out."
        return failure_in(said)


# Processes -----------------------------------------------------------------------------------------------


def command(memory: int) -> list[str]:
    """What Python is given to be `ponn`, as a learning job is: modest, private, with so much memory at most."""
    code = f"from ponn.processes import be_job; be_job({memory}); from ponn.cli import main; main()"
    return ["-c", code]


def share_of_memory(share: float) -> int:
    """Bytes that are this share of the machine's memory."""
    try:
        return int(share * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError):
        return 1 << 62


def learn_arguments(log: Path, order: Order, folder: Path) -> list[str]:
    """The words after `ponn`. Values stand behind an equals sign, so that none can pass for an option."""
    columns = order.columns
    words = ["learn", str(log.resolve()), "--json", "--progress=json", f"--out={folder.resolve() / 'policy.ponn'}"]
    words += [f"--{role}={name}" for role, name in columns.roles().items()]
    words += [f"--features={name}" for name in columns.features] + [f"--ignore={name}" for name in columns.ignore]
    words += ["--minimize"] * columns.minimize + ["--drop-missing"] * columns.drop_missing + ["--tune"] * order.tune
    words += [f"--method={order.method}"] if order.method else []
    words += [f"--seed={order.seed}", *(f"--set={one}" for one in order.settings)]
    words.append(f"--report={folder.resolve() / 'report.html'}")
    if any("\0" in word for word in words):
        raise PonnError("A name or value holds a NUL character; no column can be named so.")
    return words


def progress_in(line: str) -> dict[str, Any] | None:
    """What a line of `ponn learn --progress json` tells; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        told = json.loads(line)
        return {"message": str(told["message"]), "done": int(told["done"]), "total": int(told["total"])}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def failure_in(said: "deque[str]") -> str:
    """The error that a process ended with: its last paragraph without the word Error."""
    for at, line in enumerate(said):
        if line.startswith("Error: "):
            return " ".join(list(said)[at:]).removeprefix("Error: ")
    return said[-1] if said else "Learning failed without a word."


def end_group(process: "subprocess.Popen[str]") -> None:
    """End a process and all it started: politely, then not."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(STOPPING)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def close_pipes(process: "subprocess.Popen[str]") -> None:
    """Give back what was open to talk to a process."""
    for pipe in (process.stdin, process.stderr):
        if pipe is not None:
            pipe.close()


# Files ---------------------------------------------------------------------------------------------------


def safe_name(name: str) -> str:
    """A file's name without folders, control characters or anything a shell or file system could misread."""
    last = unicodedata.normalize("NFC", name).replace("\\", "/").rsplit("/", 1)[-1]
    kept = re.sub(r"[^\w.()+ -]", "_", last).strip(" ").lstrip(".-")
    ending = "".join(Path(kept.lower()).suffixes[-2:])
    known = [*READERS, *(one + pressed for one in READERS for pressed in COMPRESSIONS)]
    fitting = max((one for one in known if ending.endswith(one)), key=len, default=None)
    if fitting is None or len(kept) <= len(fitting):
        raise PonnError(
            f"The file's name {name[-LONGEST_NAME:]!r} cannot be used: expected one that ends in {listing(READERS)}."
        )
    stem = kept[: -len(fitting)].encode()[:LONGEST_NAME].decode(errors="ignore")
    return stem.rstrip(" .") + fitting


def linked(part: Path, target: Path) -> Path:
    """Give a complete upload its name, or the first free one with a number; never replaces anything."""
    for path in numbered(target):
        try:
            os.link(part, path, follow_symlinks=False)
            return path
        except FileExistsError:
            continue
    raise AssertionError("numbers do not end")


def numbered(target: Path) -> Iterator[Path]:
    """log.csv, log-2.csv, log-3.csv, ..."""
    yield target
    stem, dot, endings = target.name.partition(".")
    number = 2
    while True:
        yield target.with_name(f"{stem}-{number}{dot}{endings}")
        number += 1


def listed(folder: Path) -> list[Path]:
    """What is in a folder, by name; nothing where somebody removed it."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def close_to_others(folder: Path) -> None:
    """Make a folder of which all that is in it is private, also what an earlier version left open."""
    make_private_folder(folder)
    for path in folder.rglob("*"):
        if path.is_symlink():
            continue
        mode = path.stat().st_mode
        if path.is_dir():
            make_private_folder(path)
        elif stat.S_ISREG(mode) and stat.S_IMODE(mode) & 0o077:
            path.chmod(stat.S_IMODE(mode) & 0o700)


def private_file(path: Path) -> IO[bytes]:
    """A new, empty file that only its owner reads."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb")


def is_own_file(path: Path) -> bool:
    """A complete, regular file, not a link."""
    return path.is_file() and not path.is_symlink() and not path.name.startswith(".")


def locked(path: Path) -> IO[str]:
    """Hold a lock for as long as the file stays open; refused where another studio holds it."""
    try:
        import fcntl
    except ImportError:
        raise PonnError("The studio needs Linux or macOS; elsewhere use the command line.") from None
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise PonnError(
            f"The folder {path.parent} is open in another studio. Use that one, or name another --folder."
        ) from None
    return file
