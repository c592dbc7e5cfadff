"""Where passes over the shards of a log run, and what is kept of them.

A pass applies one function to every shard and hands out the partial results in shard order, so that a sum over them
is the same to the last bit wherever the shards ran. A partial result is a few named arrays. It is kept on disk until
its run is complete, under a name made from the step, its settings and the shard: a run that was stopped goes on where
it was, and nothing is reused for other rows or other settings.
"""

import hashlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ponn import __version__
from ponn.errors import PonnError, one_line
from ponn.processes import own_path, warning_options
from ponn.storage import make_private_folder, write_whole

ATTEMPTS = 3  # workers that may die on one shard before the run gives up
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
KEPT_MEMORY = 1 << 27  # bytes that a worker does not give back
CHECKSUM = 32  # bytes in front of a partial result

Arrays = dict[str, np.ndarray]


class Shard(Protocol):
    """Some rows of a log, told so that they can be read anywhere."""

    @property
    def name(self) -> str:
        """What an error calls it."""

    @property
    def rows(self) -> int:
        """How many rows it has."""


Results = Generator[tuple[int, bytes], None, None]  # a shard's number and its packed partial result
Work = Callable[[Any], Arrays]  # from a shard to its partial result; reaches workers by pickle


class Engine(Protocol):
    """Where shards run."""

    def run(self, work: Work, shards: Mapping[int, Shard]) -> Results:
        """The packed partial result of every shard with its number, as they are finished."""

    def close(self) -> None:
        """End what was started."""


class Tell(Protocol):
    """Who is told what is being done and how many rows are done of how many."""

    def __call__(self, message: str, done: int = 0, total: int = 0) -> None:
        """Take note."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# A pass --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """One pass over shards, as far as it has come."""

    step: str
    rows: int  # done, those of an earlier run included
    total: int
    resumed: int  # rows whose results an earlier run had left
    seconds: float

    @property
    def speed(self) -> float:
        """Rows a second in this run."""
        return (self.rows - self.resumed) / self.seconds if self.seconds else 0.0

    @property
    def remaining(self) -> float:
        """Seconds that are left at this speed."""
        return (self.total - self.rows) / self.speed if self.speed else 0.0

    def __str__(self) -> str:
        return f"{self.step}: {self.speed:,.0f} rows/s, {self.remaining:,.0f} s left"


def map_shards(
    work: Work,
    shards: Sequence[Shard],
    *,
    engine: Engine | None = None,
    kept: "Kept | None" = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Arrays]:
    """The partial result of every shard, in shard order.

    engine: default this process. kept: where results of an earlier run are found and new ones stay.
    progress: called with a shard's number of rows, and how many of them an earlier run had done.
    """
    store: Kept | Memory = kept or Memory()
    found = {place: content for place, one in enumerate(shards) if (content := store.read(one)) is not None}
    left = {place: one for place, one in enumerate(shards) if place not in found}
    for place in found:
        tell(progress, shards[place].rows, shards[place].rows)
    ready, turn = set(found), 0
    del found
    with closing((engine or Here()).run(work, left)) as results:
        for place, content in results:
            store.write(shards[place], content)
            tell(progress, shards[place].rows, 0)
            ready.add(place)
            while turn in ready:
                yield taken(store, shards[turn])
                turn += 1
    for one in shards[turn:]:
        yield taken(store, one)


def tell(progress: Callable[[int, int], None] | None, rows: int, before: int) -> None:
    """Tell whoever wants to know."""
    if progress:
        progress(rows, before)


def taken(store: "Kept | Memory", shard: Shard) -> Arrays:
    """A result that was just kept."""
    content = store.read(shard)
    if content is None:
        raise PonnError(
            f"The kept result of {shard.name} vanished or was damaged while it was needed. Is another process "
            "clearing the folder of runs? Start the same command again: what else is done is kept."
        )
    return unpack(content)


@dataclass
class Passes:
    """The passes of one run: where they run, where their results are kept, how long each took."""

    engine: Engine = field(default_factory=lambda: Local())
    folder: Path | None = None  # of kept results; None: nothing is kept
    say: Tell = lambda message, done=0, total=0: None
    done: list[Pass] = field(default_factory=list)

    def over(self, step: str, work: Work, shards: Sequence[Shard]) -> Iterator[Arrays]:
        """One pass: partial results in shard order."""
        kept = None if self.folder is None else Kept(self.folder / f"{step.replace(' ', '-')}-{digest(work)}")
        started, total = time.perf_counter(), sum(one.rows for one in shards)
        rows = resumed = 0

        def count(more: int, before: int) -> None:
            nonlocal rows, resumed
            rows, resumed = rows + more, resumed + before
            now = Pass(step, rows, total, resumed, time.perf_counter() - started)
            self.say(str(now), rows, total)

        before = 0 if kept is None else sum(one.rows for one in shards if kept.path(one).exists())
        self.say(step + (f" ({before:,} rows were done before)" if before else ""))
        yield from map_shards(work, shards, engine=self.engine, kept=kept, progress=count)
        self.done.append(Pass(step, rows, total, resumed, time.perf_counter() - started))

    def note(self, step: str, rows: int, seconds: float) -> None:
        """Take note of work that was not a pass."""
        self.done.append(Pass(step, rows, rows, 0, seconds))

    def summary(self) -> list[dict[str, Any]]:
        """Where the time went: step, passes, rows, seconds."""
        found: dict[str, dict[str, Any]] = {}
        for one in self.done:
            line = found.setdefault(one.step, {"step": one.step, "passes": 0, "rows": 0, "seconds": 0.0})
            line["passes"] += 1
            line["rows"] += one.rows
            line["seconds"] = round(line["seconds"] + one.seconds, 3)
        return list(found.values())

    def forget(self) -> None:
        """Remove what was kept: the run is complete."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def run_folder(*what: Any) -> Path:
    """The folder of a run that is told by these values; under PONN_RUNS, or else the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(os.environ.get("PONN_RUNS") or Path(cache) / "ponn" / "runs")
    return root / digest(what)


# Partial results -----------------------------------------------------------------------------------------


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Named arrays as bytes, behind their checksum."""
    from safetensors.numpy import save

    content = save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    return hashlib.blake2b(content, digest_size=CHECKSUM).digest() + content


def unpack(content: bytes) -> Arrays:
    """Named arrays from bytes that are sound."""
    from safetensors.numpy import load

    return dict(load(content[CHECKSUM:]))


def is_sound(content: bytes) -> bool:
    """Does the checksum match?"""
    return hashlib.blake2b(content[CHECKSUM:], digest_size=CHECKSUM).digest() == content[:CHECKSUM]


@dataclass(frozen=True)
class Kept:
    """Partial results of one pass in a folder; each appears complete or never."""

    folder: Path

    def path(self, shard: Shard) -> Path:
        """Where the result of a shard is."""
        return self.folder / f"{digest(shard)}.part"

    def read(self, shard: Shard) -> bytes | None:
        """A kept result; None where there is none, or a damaged one, which is then made again."""
        return read_kept(self.path(shard))

    def write(self, shard: Shard, content: bytes) -> None:
        """Keep a result."""
        write_kept(self.path(shard), content, f"The partial result of {shard.name}")


def read_kept(path: Path) -> bytes | None:
    """A file of a run; None where there is none, or a damaged one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content if is_sound(content) else None


def write_kept(path: Path, content: bytes, what: str) -> None:
    """Write a file of a run, into a folder that only its owner can look into: it may hold sums over few cases."""
    try:
        make_private_folder(path.parent)
        write_whole(path, content)
    except OSError as error:
        raise PonnError(
            f"{what} could not be kept in {path.parent}: {one_line(error)}. Make room, or name another folder in the "
            "variable PONN_RUNS, and start the same command again: it goes on there."
        ) from error


class Memory:
    """Partial results that are not kept on disk, until they are taken."""

    def __init__(self) -> None:
        self.contents: dict[int, bytes] = {}

    def read(self, shard: Shard) -> bytes | None:
        """A result, once."""
        return self.contents.pop(id(shard), None)

    def write(self, shard: Shard, content: bytes) -> None:
        """Hold a result until its turn."""
        self.contents[id(shard)] = content


def digest(value: Any) -> str:
    """A name for a value made of plain values, arrays and dataclasses: equal values, equal names, in every process."""
    found = hashlib.blake2b(__version__.encode(), digest_size=12)
    for part in told(value):
        found.update(part)
    return found.hexdigest()


def told(value: Any) -> Iterator[bytes]:
    """A value in bytes; every part says its type and length, so that different values never read alike."""
    if is_dataclass(value) and not isinstance(value, type):
        yield f"<{type(value).__qualname__}>".encode()
        for one in fields(value):
            yield one.name.encode()
            yield from told(getattr(value, one.name))
    elif isinstance(value, np.ndarray):
        yield f"<array {value.dtype.str} {value.shape}>".encode() + np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        yield from sequence("mapping", (part for pair in value.items() for part in pair), 2 * len(value))
    elif isinstance(value, frozenset):
        yield from sequence("set", sorted(value), len(value))
    elif isinstance(value, list | tuple):
        yield from sequence("sequence", value, len(value))
    else:
        text = f"{value.__module__}.{value.__qualname__}" if callable(value) else str(value)
        yield f"<{type(value).__name__} {len(text)}>{text}".encode()


def sequence(kind: str, values: Iterable[Any], length: int) -> Iterator[bytes]:
    """Several values in bytes."""
    yield f"<{kind} {length}>".encode()
    for one in values:
        yield from told(one)


# This process --------------------------------------------------------------------------------------------


class Here:
    """Shards one after the other in this process: for rows that are in memory."""

    def run(self, work: Work, shards: Mapping[int, Shard]) -> Results:
        """The results, in order."""
        for place, shard in shards.items():
            yield place, pack(work(shard))

    def close(self) -> None:
        """Nothing was started."""


# Local processes -----------------------------------------------------------------------------------------


class WorkerError(RuntimeError):
    """A mistake of ours in a worker, with the worker's traceback."""


class Worker:
    """A process that works on one shard at a time, without threads of its own in BLAS.

    Started as a program of its own, not as a copy of this process: copies of processes with threads can hang, and the
    caller's main program is not run a second time.
    """

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        code = f"from ponn.engine.passes import serve; serve({theirs.fileno()})"
        environment = allocator() | os.environ | ONE_THREAD | own_path()
        command = [sys.executable, *warning_options(), "-c", code]
        self.process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()
        self.knows: object = None  # the work it was given last
        self.place = -1

    def start(self, work: Work, packed: bytes, place: int, shard: Shard) -> None:
        """Give it a shard; the work itself only where it has another one. A dead worker shows when it is waited for."""
        with suppress(OSError):
            self.connection.send_bytes(pickle.dumps((None if self.knows is work else packed, shard)))
        self.knows, self.place = work, place

    def answer(self) -> Any:
        """What it has to say; None where it died."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def end(self) -> None:
        """Stop it, whatever it does."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


def allocator() -> dict[str, str]:
    """How a worker gets its memory: with jemalloc Arrow reads in less memory than with its usual allocator.

    GNU's keeps what is free, up to KEPT_MEMORY, instead of asking the system for the same pages again for every batch:
    a tenth of Step B's time.
    """
    found = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(KEPT_MEMORY))
    return found | ({"ARROW_DEFAULT_MEMORY_POOL": "jemalloc"} if "jemalloc" in pa.supported_memory_backends() else {})


class Local:
    """Processes on this machine. A worker that dies is replaced and its shard done again, ATTEMPTS times."""

    def __init__(self, workers: int | None = None) -> None:
        self.size = workers or cores()
        self.workers: list[Worker] = []

    def run(self, work: Work, shards: Mapping[int, Shard]) -> Results:
        """The results, as they are finished."""
        packed, waiting, deaths = pickle.dumps(work), deque(shards), dict.fromkeys(shards, 0)
        busy: list[Worker] = []
        try:
            while waiting or busy:
                for worker in self.idle(busy, len(waiting)):
                    place = waiting.popleft()
                    worker.start(work, packed, place, shards[place])
                    busy.append(worker)
                for worker in ready(busy):
                    answer = worker.answer()
                    busy.remove(worker)
                    if answer is None:
                        self.replace(worker)
                        deaths[worker.place] += 1
                        check_deaths(deaths[worker.place], shards[worker.place])
                        waiting.appendleft(worker.place)
                    else:
                        yield worker.place, content_of(answer)
        finally:
            for worker in busy:
                self.replace(worker)

    def idle(self, busy: Sequence[Worker], wanted: int) -> list[Worker]:
        """Workers for so many shards, started where there are too few."""
        free = [worker for worker in self.workers if worker not in busy]
        while len(free) < wanted and len(self.workers) < self.size:
            self.workers.append(Worker())
            free.append(self.workers[-1])
        return free[:wanted]

    def replace(self, worker: Worker) -> None:
        """Take a worker out; another one starts when it is needed."""
        worker.end()
        self.workers.remove(worker)

    def close(self) -> None:
        """End the workers."""
        for worker in list(self.workers):
            self.replace(worker)

    def __enter__(self) -> "Local":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ready(busy: Sequence[Worker]) -> list[Worker]:
    """Workers that are done, or dead."""
    found = wait([worker.connection for worker in busy])
    return [worker for worker in busy if worker.connection in found]


def check_deaths(deaths: int, shard: Shard) -> None:
    """Give up on a shard that kills its workers."""
    if deaths >= ATTEMPTS:
        raise PonnError(
            f"{deaths} workers died one after the other while they read {shard.name}. They were killed from outside, "
            "perhaps for want of memory: try fewer workers (--workers). What else is done is kept."
        )


def content_of(answer: bytes | Exception | str) -> bytes:
    """The result in a worker's answer; its errors are raised here."""
    if isinstance(answer, Exception):
        raise answer
    if isinstance(answer, str):
        raise WorkerError(answer)
    return answer


def serve(descriptor: int) -> None:
    """What a worker does: take shards from a pipe until its other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is for the process that started it
    connection = Connection(descriptor)
    work: Any = None
    with suppress(EOFError, OSError):
        while True:
            packed, shard = connection.recv()
            work = work if packed is None else pickle.loads(packed)
            connection.send(answered(work, shard))


def answered(work: Work, shard: Shard) -> bytes | PonnError | str:
    """A packed result, the user's mistake, or ours as a traceback."""
    try:
        return pack(work(shard))
    except PonnError as error:
        return error
    except Exception:
        return traceback.format_exc()
