"""The studio's folder: uploaded files and what is learned from them. All of it survives a restart.

    DIR/files/NAME               logs as they were uploaded
    DIR/jobs/ID/job.json         what was asked and how far it is, always replaced as a whole
    DIR/jobs/ID/policy.ponn      and report.html, when it is done

A name that comes from outside is never joined to a path: it must be one that the folder lists.
Learning runs as a process of its own (`ponn learn`), which ends when the studio does. One at a time: two would only
slow each other down. What is asked for meanwhile waits, in the order in which it was asked for, also across a restart.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from ponn.errors import PonnError, listing, one_line
from ponn.log.log import Columns
from ponn.storage import write_whole
from ponn.tables.files import READERS
from ponn.tables.source import COMPRESSIONS

WAITING, RUNNING, DONE, FAILED, INTERRUPTED = "waiting", "running", "done", "failed", "interrupted"
LONGEST_NAME = 120  # characters of a file's name; file systems allow 255 bytes
PART = ".part-"  # begins the name of an upload that is not complete
STOPPING = 5.0  # seconds a stopped process has before it is killed
WRITE_EVERY = 0.5  # seconds between two notes of progress on disk
LAST_LINES = 20  # of what a failed process said
COMMAND = ("-c", "from ponn.cli import main; main()")


class TooLargeError(PonnError):
    """An upload beyond the limit."""

    status = 413  # of HTTP


class NotThereError(PonnError):
    """No file or job of that name in the folder."""

    status = 404  # of HTTP


class BusyError(PonnError):
    """Something is under way that does not go together with what was asked."""

    status = 409  # of HTTP


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
    """A job as it was written down."""
    told = json.loads(text)
    order = told["order"]
    lists = {name: tuple(order["columns"].get(name, ())) for name in ("features", "ignore")}
    columns = Reading(**order["columns"] | lists)
    told["order"] = Order(**order | {"columns": columns, "settings": tuple(order["settings"])})
    return Job(**told)


class Project:
    """A folder of files and jobs. One studio at a time."""

    def __init__(self, folder: Path) -> None:
        self.files_folder, self.jobs_folder = folder / "files", folder / "jobs"
        try:
            for one in (self.files_folder, self.jobs_folder):
                one.mkdir(parents=True, exist_ok=True)
            self.lock = locked(folder / ".lock")
        except OSError as error:
            raise PonnError(
                f"The folder {folder} cannot be used: {one_line(error)}. Name another with --folder."
            ) from error
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.stopped: dict[str, str] = {}  # job → why it was stopped
        self.guard = threading.Lock()  # around who is running
        self.closed = False
        self.tidy()
        with self.guard:
            self.launch_next()

    def tidy(self) -> None:
        """After a restart: half uploads go, jobs that were under way are marked as interrupted; who waits goes on."""
        for path in self.files_folder.glob(PART + "*"):
            path.unlink()
        for job in self.jobs():
            if job.state == RUNNING:
                told = "The studio was closed while this was being learned. Start it again when you like."
                self.keep(replace(job, state=INTERRUPTED, message=told, ended=time.time()))

    def close(self) -> None:
        """Stop what is under way; it is shown as interrupted from then on. What waits does so until the next start."""
        with self.guard:
            self.closed = True
        for id in list(self.running):
            self.stop(id, "The studio was closed while this was being learned. Start it again when you like.")
        self.lock.close()

    # Files

    def files(self) -> list[Path]:
        """Uploaded files, by name. Links are not files."""
        return [path for path in sorted(self.files_folder.iterdir()) if is_own_file(path)]

    def file(self, name: str) -> Path:
        """The uploaded file of this name."""
        for path in self.files():
            if path.name == name:
                return path
        raise NotThereError(f"There is no file {name[:LONGEST_NAME]!r} here. Upload it first.")

    async def add(self, name: str, chunks: AsyncIterator[bytes], largest: int) -> Path:
        """Keep an upload of at most `largest` bytes; a name that is taken gets a number."""
        target = self.files_folder / safe_name(name)
        part = self.files_folder / (PART + secrets.token_hex(8))
        try:
            with part.open("xb") as file:
                written = 0
                async for chunk in chunks:
                    written += len(chunk)
                    if written > largest:
                        raise self.too_large(name, largest)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if not written:
                raise PonnError(f"{target.name} is empty.")
            return linked(part, target)
        except OSError as error:
            raise PonnError(f"{target.name} could not be kept: {one_line(error)}.") from error
        finally:
            part.unlink(missing_ok=True)

    def too_large(self, name: str, largest: int) -> TooLargeError:
        """What to say of an upload beyond the limit."""
        return TooLargeError(
            f"{safe_name(name)} is larger than {largest / 1e6:,.0f} MB, the most this studio takes. Start it with a "
            f"larger --max-upload, or put the file into its folder yourself: {self.files_folder.resolve()}."
        )

    # Jobs

    def jobs(self) -> list[Job]:
        """All jobs, the newest first."""
        found = [self.read(path) for path in self.jobs_folder.iterdir() if (path / "job.json").is_file()]
        return sorted(found, key=lambda job: (-job.created, job.id))

    def job(self, id: str) -> Job:
        """The job of this id."""
        for path in self.jobs_folder.iterdir():
            if path.name == id and (path / "job.json").is_file():
                return self.read(path)
        raise NotThereError(f"There is no job {id[:40]!r} here.")

    def read(self, folder: Path) -> Job:
        """A job from its folder; one whose file is damaged is shown as failed."""
        try:
            return job_from((folder / "job.json").read_text())
        except (ValueError, KeyError, TypeError) as error:
            told = f"Its job.json cannot be read: {one_line(error)}."
            return Job(folder.name, Order("", Reading("", "")), FAILED, told, created=0.0, ended=0.0)

    def folder(self, job: Job) -> Path:
        """Where a job keeps its things."""
        return self.jobs_folder / job.id

    def keep(self, job: Job) -> Job:
        """Write a job down."""
        write_whole(self.folder(job) / "job.json", json.dumps(asdict(job), indent=1).encode(), private=True)
        return job

    def start(self, order: Order) -> Job:
        """Begin to learn, as soon as what was asked for before is learned."""
        log, job = self.file(order.file), Job(secrets.token_hex(6), order)
        learn_arguments(log, order, self.folder(job))  # so that what cannot be asked for is refused at once
        with self.guard:
            self.folder(job).mkdir()
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
        while not self.running and not self.closed:
            waiting = [job for job in self.jobs() if job.state == WAITING]
            if not waiting:
                return
            try:
                self.launch(waiting[-1])
            except (PonnError, OSError) as error:  # as where its file is gone
                self.keep(replace(waiting[-1], state=FAILED, message=one_line(error), ended=time.time()))

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
        job = self.keep(replace(job, state=RUNNING, message="Reading the log", started=time.time()))
        with (self.folder(job) / "result.json").open("w") as result:
            process = subprocess.Popen(
                [sys.executable, *COMMAND, *arguments],
                stdin=subprocess.PIPE,  # closes when the studio ends, however it ends; then the process ends too
                stdout=result,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # so that it can be stopped with everything it started
            )
        self.running[job.id] = process
        threading.Thread(target=self.follow, args=(job, process), daemon=True).start()
        return job

    def follow(self, job: Job, process: "subprocess.Popen[str]") -> None:
        """Note progress until the process ends, then how it ended."""
        said: deque[str] = deque(maxlen=LAST_LINES)
        written = 0.0
        assert process.stderr is not None
        for line in process.stderr:
            told = progress_in(line)
            if told is None:
                said.append(line.strip())
                continue
            new_step, job = told["message"] != job.message, replace(job, **told)
            if new_step or time.monotonic() - written > WRITE_EVERY:
                self.keep(job)
                written = time.monotonic()
        status = process.wait()
        close_pipes(process)
        with self.guard:
            self.keep(self.ended(job, status, said))
            del self.running[job.id]
            self.launch_next()

    def ended(self, job: Job, status: int, said: "deque[str]") -> Job:
        """The job after its process ended."""
        job, folder = replace(job, ended=time.time()), self.folder(job)
        if job.id in self.stopped:
            return replace(job, state=INTERRUPTED, message=self.stopped.pop(job.id))
        if status < 0:
            told = f"Learning was ended from outside ({signal.Signals(-status).name}); perhaps memory ran out."
            return replace(job, state=FAILED, message=told)
        if status:
            return replace(job, state=FAILED, message=failure_in(said))
        report = (folder / "report.html").is_file()
        result = json.loads((folder / "result.json").read_text())
        return replace(job, state=DONE, message="Done", done=0, total=0, result=result, report=report)


# Processes -----------------------------------------------------------------------------------------------


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
    except (ValueError, KeyError, TypeError):
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
