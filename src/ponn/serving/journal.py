"""Files of JSON lines that a server appends to: decisions, how they turned out, and how a decision is found again.

A line is on disk before anybody is told of it; requests that come together share one write and one fsync. Where a
write fails, the file is cut back to its last good end, everybody is refused without touching the disk, and now and then
one line is tried again, so that the server goes on when there is room, whether or not anybody asks it.

Each worker appends decisions to a file of its own, <log>.<worker>.jsonl. Outcomes of all workers go into one file,
<log>.outcomes.jsonl, which they lock in turns: the order of its lines is the order of arrival, whatever clocks say, and
nothing in it is ever replaced.

The id of a decision is <worker>-<128 random bits>-<place>: where its line begins, and a secret that the line repeats.
Every part has a fixed length, so that to look up any id, true or forged, is to read the same number of bytes.
"""

import asyncio
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ponn.policy.policy import Policy
from ponn.storage import PRIVATE, sync_folder

try:
    import fcntl
except ImportError:  # on Windows workers take no turns; its appends do not tear short lines either
    fcntl = None  # type: ignore[assignment]

TAG_BYTES, SECRET_BYTES, PLACE_DIGITS = 8, 16, 12
TAG = f"[0-9a-f]{{{2 * TAG_BYTES}}}"
ID = re.compile(f"({TAG})-([0-9a-f]{{{2 * SECRET_BYTES}}})-([0-9a-f]{{{PLACE_DIGITS}}})")
OLD_TAG = "[0-9a-f]{12}"
OLD_ID = re.compile(
    f"({OLD_TAG})-([0-9a-f]{{1,12}})-([0-9a-f]{{8}})-([0-9]{{1,7}})"
)  # of version 0.1: row in a request
OLD_READ = 1 << 20  # bytes of a file of version 0.1 that are read to find a row: what a request could bring
BEGINNING = b'{"kind": "decision", "id": "%s"'  # of a line that says what was decided
OUTCOMES = "outcomes"  # stands where files of decisions have the worker's name
RETRY_SECONDS = 0.5  # between two looks whether a disk can be written to again
TAIL = 1 << 16  # bytes at the end of a file in which a line that was cut off must begin


def worker_file(path: Path, tag: str) -> Path:
    """The file of one worker: decisions.jsonl → decisions.<tag>.jsonl."""
    return path.with_name(f"{path.stem}.{tag}{path.suffix}")


def outcomes_file(path: Path) -> Path:
    """The file of all outcomes."""
    return worker_file(path, OUTCOMES)


def worker_files(path: Path) -> list[Path]:
    """The files of all workers, past and present."""
    pattern = re.compile(f"{re.escape(path.stem)}\\.({TAG}|{OLD_TAG}){re.escape(path.suffix)}")
    return sorted(one for one in path.parent.iterdir() if pattern.fullmatch(one.name)) if path.parent.is_dir() else []


def line(**values: Any) -> bytes:
    """One line of a decision log."""
    return json.dumps(values, allow_nan=False).encode() + b"\n"


def policy_line(policy: Policy, digest: str) -> bytes:
    """What must be known of a policy to make a log of its decisions."""
    columns = policy.provenance["columns"]
    return line(
        kind="policy",
        time=time.time(),
        policy=digest,
        columns={"action": columns["action"], "reward": columns["reward"]},
        minimize=policy.provenance["reward"]["minimize"],
        features={one.name: one.kind for one in policy.encoding.features},
        actions=list(policy.actions),
    )


# Appending -----------------------------------------------------------------------------------------------


class Journal:
    """A file that lines are appended to; only the event loop may use it, which never waits for the disk."""

    def __init__(self) -> None:
        self.first = b""  # a line that may stand anywhere: which policy decides; tried after a failure
        self.failure: OSError | None = None  # why nothing can be written now
        self.waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self.committing: asyncio.Task[None] | None = None
        self.recovering: asyncio.Task[None] | None = None
        self.thread = ThreadPoolExecutor(1, "journal")

    def write(self, data: bytes) -> None:
        """Have whole lines on disk, or raise OSError and leave the file as it was."""
        raise NotImplementedError

    def begin_again(self) -> None:
        """Write a line after a failure, perhaps into a new file; raises OSError where that fails too."""
        self.write(self.first or b"\n")  # an empty line says nothing, but needs room

    def forget_unwritten(self) -> None:
        """What was promised to those who wait is not kept."""

    async def append(self, lines: bytes) -> None:
        """Write lines; returns when they are on disk, or raises OSError when they may not be."""
        if self.failure:
            raise OSError(*self.failure.args[:2])
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((lines, future))
        if self.committing is None or self.committing.done():
            self.committing = asyncio.create_task(self.commit())
        await future

    async def commit(self) -> None:
        """Write what is waiting, all at once, until nothing is; after a failure nobody is waited for."""
        while self.waiting:
            batch, self.waiting = self.waiting, []
            try:
                await self.in_thread(self.write, b"".join(data for data, _ in batch))
            except OSError as error:
                batch += self.waiting  # their ids point into what was cut off
                self.waiting = []
                self.fail(error)
                settle(batch, error)
            else:
                settle(batch, None)

    def fail(self, error: OSError) -> None:
        """Refuse everybody until a line could be written again."""
        self.failure = error
        self.forget_unwritten()
        if self.recovering is None or self.recovering.done():
            self.recovering = asyncio.create_task(self.recover())

    async def recover(self) -> None:
        """Try again now and then."""
        while self.failure:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                await self.in_thread(self.begin_again)
            except OSError as error:
                self.failure = error
            else:
                self.forget_unwritten()
                self.failure = None

    def in_thread(self, work: Callable[..., None], *given: Any) -> "asyncio.Future[None]":
        """Do something in the thread that writes."""
        return asyncio.get_running_loop().run_in_executor(self.thread, work, *given)

    async def close(self) -> None:
        """Wait for what is still being written."""
        if self.recovering:
            self.recovering.cancel()
        if self.committing:
            await self.committing
        self.thread.shutdown()


def settle(batch: Sequence[tuple[bytes, "asyncio.Future[None]"]], error: OSError | None) -> None:
    """Tell those who wait."""
    for _, future in batch:
        if not future.done():  # a client may have left
            future.set_result(None) if error is None else future.set_exception(error)


class DecisionLog(Journal):
    """The decisions of one worker, in a file of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.tag, self.file = "", -1
        self.good = 0  # bytes that are on disk
        self.end = 0  # bytes when all that waits is written

    def open(self, first: bytes) -> None:
        """Begin a new file; it and its name are on disk when this returns, or OSError is raised and there is none."""
        self.close_file()
        tag, self.first = secrets.token_hex(TAG_BYTES), first
        path = worker_file(self.path, tag)
        try:
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, PRIVATE)
            write_durably(self.file, first)
            sync_folder(path.parent)
        except OSError:
            if self.file >= 0:
                self.close_file()
                path.unlink(missing_ok=True)  # nobody was told of a line in it
            raise
        self.tag, self.good, self.end = tag, len(first), len(first)

    def start(self, first: bytes) -> None:
        """Begin a new file; where that fails, everybody is refused until it succeeds."""
        try:
            self.open(first)
        except OSError as error:
            self.fail(error)
            raise

    def close_file(self) -> None:
        """Let go of the present file."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def request_id(self) -> str:
        """What the ids of a request's decisions begin with."""
        return f"{self.tag}-{secrets.token_hex(SECRET_BYTES)}"

    def decided(self, number: str, rests: Sequence[bytes]) -> tuple[list[str], bytes]:
        """The ids of a request's decisions and their lines, for `append`; before that nothing may be awaited.

        rests: what each line holds beside kind and id, as a JSON object.
        """
        ids, lines, place = [], [], self.end
        for rest in rests:
            ids.append(f"{number}-{place:0{PLACE_DIGITS}x}")
            lines.append(b"%b, %b\n" % (BEGINNING % ids[-1].encode(), rest[1:]))
            place += len(lines[-1])
        return ids, b"".join(lines)

    async def append(self, lines: bytes) -> None:
        """Write lines; returns when they are on disk, or raises OSError when they may not be."""
        self.end += 0 if self.failure else len(lines)
        await super().append(lines)

    def write(self, data: bytes) -> None:
        """Have whole lines on disk, or raise OSError and leave the file as it was."""
        try:
            if os.fstat(self.file).st_nlink == 0:
                raise FileNotFoundError(2, "The file was removed", str(worker_file(self.path, self.tag)))
            write_durably(self.file, data)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or not cut_back(self.file, self.good):
                self.close_file()
            raise
        self.good += len(data)

    def begin_again(self) -> None:
        """Go on in the same file where that is whole, else in a new one."""
        super().begin_again() if self.file >= 0 else self.open(self.first)

    def forget_unwritten(self) -> None:
        """The next line stands where the file ends."""
        self.end = self.good

    async def close(self) -> None:
        """Wait for what is still being written."""
        await super().close()
        self.close_file()


class OutcomeLog(Journal):
    """The outcomes that all workers were told, one after the other, in one file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = outcomes_file(path)
        self.file = -1

    def write(self, data: bytes) -> None:
        """Have whole lines on disk behind those of all workers, or raise OSError and leave the file as it was."""
        if self.file < 0 or os.fstat(self.file).st_nlink == 0:
            self.open()
        take_turn(self.file)
        try:
            end = whole_end(self.file)
            try:
                write_durably(self.file, data)
            except OSError:
                cut_back(self.file, end)
                raise
        finally:
            end_turn(self.file)

    def open(self) -> None:
        """Open the file, or make it; its name is on disk when this returns."""
        self.close_file()
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE)
        sync_folder(self.path.parent)

    def close_file(self) -> None:
        """Let go of the file."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    async def close(self) -> None:
        """Wait for what is still being written."""
        await super().close()
        self.close_file()


def take_turn(file: int) -> None:
    """Wait until no other worker writes to a file; where a file system has no locks, short appends stay whole."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)


def end_turn(file: int) -> None:
    """Let other workers write."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def whole_end(file: int) -> int:
    """Where the last whole line of a file ends; what a worker left behind it, when it was killed, is cut off."""
    size = os.lseek(file, 0, os.SEEK_END)
    start = max(0, size - TAIL)
    os.lseek(file, start, os.SEEK_SET)
    tail = os.read(file, size - start)
    end = start + tail.rfind(b"\n") + 1
    if end == size or (end == start and start > 0):  # the latter is nothing that we wrote
        return size
    os.ftruncate(file, end)
    return end


def cut_back(file: int, end: int) -> bool:
    """Remove what a write that failed has left at the end of a file; False where that fails too."""
    try:
        os.ftruncate(file, end)
    except OSError:
        return False
    return True


def write_durably(file: int, data: bytes) -> None:
    """Write all of it, and have it on disk."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fdatasync(file) if hasattr(os, "fdatasync") else os.fsync(file)


# Finding -------------------------------------------------------------------------------------------------


def is_decision(path: Path, id: str) -> bool:
    """Was there a decision of this id, by whichever worker? Reads as much, and as long, for ids that are made up."""
    found = ID.fullmatch(id)
    if not found:
        return is_old_decision(path, id)
    beginning = BEGINNING % id.encode()
    there = read_at(worker_file(path, found[1]), int(found[3], 16), len(beginning))
    return hmac.compare_digest(there.ljust(len(beginning)), beginning)


def is_old_decision(path: Path, id: str) -> bool:
    """The same for ids of version 0.1, which say where a request begins, and the number of the row."""
    found = OLD_ID.fullmatch(id)
    if not found:
        return False
    tag, place, _, row = found.groups()
    beginning = BEGINNING % id.encode()
    lines = read_at(worker_file(path, tag), int(place, 16), OLD_READ).split(b"\n")
    there = lines[int(row)] if int(row) < len(lines) - 1 else b""
    return hmac.compare_digest(there[: len(beginning)].ljust(len(beginning)), beginning)


def read_at(path: Path, place: int, size: int) -> bytes:
    """At most so many bytes of a file from some place on; empty where there are none."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(place)
            return file.read(size)
    except OSError:
        return b""
