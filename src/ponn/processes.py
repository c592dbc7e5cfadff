"""Functions that run apart: in a process of their own with limits, whose death is an error in plain words.

What reads the files of strangers can take all memory, never end, or crash in a library. Here it does that where nobody
else is. Four processes take part:

    caller      the server: asks for a call, waits for its answer in a thread
    launcher    started once, when it is first needed; has loaded the function's module, and called its `load_ahead` if
                there is one; has one thread, and only forks: a call begins within milliseconds, and nothing of the
                caller (files, threads, secrets) is in it
    keeper      forked for one call: holds the time, knows how the worker ended, ends it when the caller is gone
    worker      forked by the keeper: sets its limits, then does the work

Arguments reach the worker by pickle. What comes back is JSON, because a worker that was taken over must not be able to
say anything that the caller would execute. A function that runs apart therefore returns plain values.
"""

import asyncio
import atexit
import errno
import gc
import importlib
import json
import logging
import math
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from ponn.errors import LimitError, PonnError

try:
    import resource
except ImportError:  # on Windows there are neither limits nor forks: functions run where they are called
    resource = None  # type: ignore[assignment]

APART = resource is not None and hasattr(os, "fork")
LOADED = sys.platform == "linux"  # may modules be loaded before a fork? Not with Apple's libraries
WATCHED = sys.platform != "linux"  # macOS takes limits of memory and does not keep them: the keeper looks
WATCH_SECONDS = 0.2  # between two looks
LONGEST_ANSWER = 1 << 26  # bytes
LARGEST_FILE = 1 << 32  # bytes that a worker may write into one file, unless told otherwise
ROOM_TO_TELL = 1 << 26  # bytes beyond the limit of memory, to say that it was reached
TOLD = 4_096  # bytes that are kept of what a worker said last
LATE = 30.0  # seconds after the time limit at which a keeper that says nothing is given up
DYING = 5.0  # seconds in which a worker that closed its answer must be gone
THREADS = 2  # of Arrow, BLAS and OpenMP in a worker: more take memory, not much less time
NICENESS = 10  # of a worker: who serves goes first
FIRST_TO_DIE = "1000"  # where the machine's memory is short, a worker ends before anything else
# Memory by the system's allocator: others reserve more than they use, and have threads, which forks do not take along.
PLAIN_MEMORY = {"ARROW_DEFAULT_MEMORY_POOL": "system", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
DEATH_SIGNAL = 1  # prctl's number for "when the parent dies"
MEMORY_WORDS = (
    *("bad_alloc", "MemoryError", "Cannot allocate memory", "out of memory", "can't start new thread"),
    "failed to map segment",  # of a library that is loaded
)
log = logging.getLogger("ponn.serve")


class CrashError(PonnError):
    """Work that ended its process."""

    status = 422  # of HTTP


class CrowdedError(PonnError):
    """Work for which there was no room in time."""

    status = 503  # of HTTP

    def __init__(self, told: str, seconds: float) -> None:
        super().__init__(told)
        self.headers = {"Retry-After": str(math.ceil(seconds))}


class StoppedError(RuntimeError):
    """Work that its caller stopped."""


class WorkerError(RuntimeError):
    """A mistake of ours in a worker: the kind of exception and where it was raised, but not what it said."""


@dataclass(frozen=True)
class Allowed:
    """What a worker may take."""

    memory: int  # bytes of data, those of the interpreter and of libraries (about 100 MB) included
    seconds: float  # by the clock
    disk: int = LARGEST_FILE  # bytes of a file that it writes


def run_apart(function: Callable[..., Any], *arguments: Any, allowed: Allowed, what: str) -> Any:
    """What a function of a module returns, called in a process of its own; plain values, as JSON has them.

    what: the work, as the beginning of a sentence ("Reading log.csv"), for errors. A PonnError of the function is
    raised here as it is; a limit that was reached is a LimitError, a process that died a CrashError.
    """
    return Call(function, arguments, allowed, what).result()


class Room:
    """Room for work apart in a server: so much at once; who would wait too long is told to come again."""

    def __init__(self, slots: int, patience: float) -> None:
        self.patience = patience
        self.threads = ThreadPoolExecutor(slots, "ponn-apart")  # a slot is a thread, which no error can take away
        self.calls: set[Call] = set()
        if not APART:
            log.warning("on this system files are read without limits of memory and time: let no stranger send some")

    async def run(self, function: Callable[..., Any], *arguments: Any, allowed: Allowed, what: str) -> Any:
        """As `run_apart`; the work ends when whoever waits for it is cancelled."""
        call = Call(function, arguments, allowed, what)
        future = self.threads.submit(call.result)
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(lambda one: one.cancelled() or one.exception())  # may be asked for by nobody
        self.calls.add(call)
        try:
            await asyncio.wait({waiting}, timeout=self.patience)
            if future.cancel():  # which those that have begun do not let happen
                raise CrowdedError(
                    f"{what} has to wait: too much is being worked on. Try again in {self.patience:g} seconds.",
                    self.patience,
                )
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            call.stop()
            if not future.cancel():
                await asyncio.wait({waiting}, timeout=DYING)  # then nobody uses its files any more
            raise
        finally:
            self.calls.discard(call)

    def close(self) -> None:
        """End what is under way and take no more work."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        for call in list(self.calls):
            call.stop()


# The caller ----------------------------------------------------------------------------------------------


class Call:
    """One call of a function that runs apart. May be stopped by another thread."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], allowed: Allowed, what: str) -> None:
        self.function, self.arguments, self.allowed, self.what = function, arguments, allowed, what
        self.guard = threading.Lock()
        self.line: socket.socket | None = None  # to the keeper
        self.stopped = False

    def stop(self) -> None:
        """End the work; `result` returns when that is done."""
        with self.guard:
            self.stopped = True
            if self.line is not None:
                with suppress(OSError):
                    self.line.shutdown(socket.SHUT_WR)

    def result(self) -> Any:
        """What the function returns."""
        if not APART:
            return json.loads(json.dumps(self.function(*self.arguments)))
        request = pickle.dumps((self.allowed, pickle.dumps((self.function, self.arguments))))
        launcher = launcher_of(self.function.__module__)
        answer = self.asked(launcher, request)
        if not answer and not self.stopped:  # that the launcher was killed shows when it is needed
            answer = self.asked(launcher_of(self.function.__module__, instead=launcher), request)
        return self.taken(answer)

    def asked(self, launcher: "Launcher", request: bytes) -> bytes:
        """The keeper's answer; empty where there is none."""
        ours, theirs = socket.socketpair()
        with ours:
            with self.guard:
                if self.stopped:
                    theirs.close()
                    return b""
                self.line = ours
            try:
                with theirs:
                    launcher.pass_on(theirs)
                ours.settimeout(self.allowed.seconds + LATE)
                send(ours, request)
                return receive(ours, LONGEST_ANSWER + TOLD)
            except OSError:  # the launcher or the keeper was killed
                return b""
            finally:
                with self.guard:
                    self.line = None

    def taken(self, answer: bytes) -> Any:
        """The value in an answer; its errors are raised."""
        if self.stopped:
            raise StoppedError("stopped on request")
        if not answer:
            raise CrowdedError(f"{self.what} was not done: no process could be started for it, or it was killed.", 5)
        how, _, content = answer.partition(b"\n")
        if how != b"answer":
            raise self.failure(*how.decode().split())
        found = json.loads(content)
        if "fault" in found:
            raise WorkerError(found["fault"])
        if "error" in found:
            raise unpacked_error(found["error"])
        return found["value"]

    def failure(self, how: str, signal_number: str = "0") -> PonnError:
        """What to say of work that gave no answer."""
        allowed, what = self.allowed, self.what
        if how == "memory":
            return LimitError(
                f"{what} takes more than {allowed.memory / 1e6:,.0f} MB of memory, the most that is allowed here, and "
                "was stopped. Use a smaller file: fewer columns, fewer rows, or less behind its compression."
            )
        if how == "time":
            return LimitError(
                f"{what} takes longer than {allowed.seconds:g} seconds, the most that is allowed here, and was "
                "stopped. Use a smaller file: fewer columns or fewer rows."
            )
        if how == "disk":
            return LimitError(
                f"{what} writes more than {allowed.disk / 1e6:,.0f} MB, the most that is allowed here, and was "
                "stopped. Use a smaller file: fewer rows."
            )
        if how == "long":
            return LimitError(f"{what} gives an answer of more than {LONGEST_ANSWER >> 20} MB, the most allowed here.")
        name = signal_name(int(signal_number))
        if name in ("SIGKILL", "SIGTERM"):
            return CrashError(f"{what} was ended from outside ({name}); perhaps this machine ran out of memory.")
        return CrashError(
            f"{what} crashed the library that does it ({name}). The file is damaged, or was made to do harm: write it "
            "again from its origin."
        )


def signal_name(number: int) -> str:
    """The name of a signal; of an exit without one, its status."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"exit {-number}"


LAUNCHERS: dict[tuple[int, str], "Launcher"] = {}  # process and module → its launcher
LAUNCHING = threading.Lock()


def launcher_of(module: str, instead: "Launcher | None" = None) -> "Launcher":
    """The launcher that has loaded a module; a new one where the last one is no more, or is the one given."""
    with LAUNCHING:
        key = (os.getpid(), module)
        found = LAUNCHERS.get(key)
        if found is None or found is instead or not found.lives():
            if found is not None:
                found.close()
            LAUNCHERS[key] = found = Launcher(module)
        return found


@atexit.register
def close_launchers() -> None:
    """End the launchers of this process."""
    with LAUNCHING:
        for key in [one for one in LAUNCHERS if one[0] == os.getpid()]:
            LAUNCHERS.pop(key).close()


class Launcher:
    """A process that forks keepers; ends when the one that started it does."""

    def __init__(self, module: str) -> None:
        self.control, theirs = socket.socketpair()
        code = f"from ponn.processes import launch; launch({theirs.fileno()}, {module!r})"
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *warning_options(), "-c", code],
                env=sparing() | os.environ | PLAIN_MEMORY | own_path(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the server, which ends its launcher in order
            )

    def lives(self) -> bool:
        """Is the process there?"""
        return self.process.poll() is None

    def pass_on(self, line: socket.socket) -> None:
        """Have a keeper forked that listens to this line."""
        socket.send_fds(self.control, [b"."], [line.fileno()])

    def close(self) -> None:
        """End the process; what it has begun goes on."""
        self.control.close()
        self.process.kill()
        self.process.wait()


def warning_options() -> list[str]:
    """How this process was told to treat warnings."""
    return [part for option in sys.warnoptions for part in ("-W", option)]


def own_path() -> dict[str, str]:
    """What lets a new Python find the modules that this one finds."""
    return {"PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}


def sparing() -> dict[str, str]:
    """Few threads, and few arenas of GNU's allocator, which are reserved for each of them."""
    few = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX"), str(THREADS))
    return few | {"OPENBLAS_NUM_THREADS": "1"}  # which starts them on import, and nothing with threads may be forked


# Messages ------------------------------------------------------------------------------------------------

LENGTH = struct.Struct("!Q")


def send(line: socket.socket, content: bytes) -> None:
    """Send some bytes behind their number."""
    line.sendall(LENGTH.pack(len(content)))
    line.sendall(content)


def receive(line: socket.socket, most: int) -> bytes:
    """What the other side sent; empty where it is gone."""
    head = receive_exactly(line, LENGTH.size)
    if len(head) < LENGTH.size:
        return b""
    (length,) = LENGTH.unpack(head)
    if length > most:
        raise OSError(errno.EMSGSIZE, "the answer is too long")
    content = receive_exactly(line, length)
    return content if len(content) == length else b""


def receive_exactly(line: socket.socket, length: int) -> bytes:
    """So many bytes, or fewer where the other side is gone."""
    found = bytearray()
    while len(found) < length:
        piece = line.recv(min(length - len(found), 1 << 20))
        if not piece:
            break
        found += piece
    return bytes(found)


# The launcher --------------------------------------------------------------------------------------------


def launch(descriptor: int, module: str) -> None:
    """Fork a keeper for every line that comes in, until the caller is gone."""
    if LOADED:
        importlib.import_module("ctypes")
        getattr(importlib.import_module(module), "load_ahead", lambda: None)()
    gc.freeze()  # what is there stays as it is, and shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers that end leave no trace
    with socket.socket(fileno=descriptor) as control:
        while True:
            try:
                _, found, _, _ = socket.recv_fds(control, 1, 1)
            except ConnectionError:
                return
            if not found:
                return
            fork_keeper(control, found[0])


def fork_keeper(control: socket.socket, descriptor: int) -> None:
    """Fork a keeper; where that cannot be done the line is closed, which tells the caller."""
    with suppress(OSError):
        if os.fork() == 0:
            try:
                control.close()
                with socket.socket(fileno=descriptor) as line:
                    keep(line)
            finally:
                os._exit(0)
    os.close(descriptor)


# The keeper ----------------------------------------------------------------------------------------------


def keep(line: socket.socket) -> None:
    """Have one call done, and tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = receive(line, 1 << 62)
    if not request:
        return
    allowed, packed = pickle.loads(request)
    answers, answering = os.pipe()
    words, saying = os.pipe()
    keeper = os.getpid()
    worker = os.fork()
    if worker == 0:
        work(allowed, packed, answering, saying, keeper)
    os.close(answering)
    os.close(saying)
    watch = Watch(line, worker, answers, words, time.monotonic() + allowed.seconds, allowed.memory)
    how = watch.until_end()
    with suppress(OSError):  # nobody may be there any more
        send(line, how)


class Watch:
    """A worker that is watched: its answer, what it says, the time, its memory, and whether the caller is there."""

    def __init__(self, line: socket.socket, worker: int, answers: int, words: int, until: float, memory: int) -> None:
        self.line, self.worker, self.answers, self.words = line, worker, answers, words
        self.until, self.memory = until, memory
        self.answer, self.said = bytearray(), b""

    def until_end(self) -> bytes:
        """The answer to the caller, when the worker is gone."""
        how = self.wait()
        status = self.reap() if how == b"died" else 0
        self.kill()
        if how != b"died":
            return b"answer\n" + self.answer if how == b"answer" else how
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            return b"time"
        if any(one.encode() in self.said for one in MEMORY_WORDS):
            return b"memory"
        return b"signal %d" % (os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status))

    def wait(self) -> bytes:
        """How it ended: with an answer, by a limit, because nobody waits for it, or without a word."""
        while True:
            left = self.until - time.monotonic()
            if left <= 0:
                return b"time"
            pause = min(left, WATCH_SECONDS) if WATCHED else left
            listening: list[Any] = [self.line, self.answers, self.words]
            ready, _, _ = select.select(listening, [], [], pause)
            if WATCHED and resident_bytes(self.worker) > self.memory:
                return b"memory"
            if self.line in ready:
                return b"stopped"
            if self.words in ready:
                self.said = (self.said + os.read(self.words, TOLD))[-TOLD:]
            if self.answers in ready:
                ended = self.take()
                if ended:
                    return ended

    def take(self) -> bytes:
        """Take a piece of the answer; how it ended, empty where there is more to come."""
        piece = os.read(self.answers, 1 << 20)
        if not piece:
            return b"died"
        self.answer += piece
        if len(self.answer) > LONGEST_ANSWER:
            return b"long"
        if len(self.answer) < LENGTH.size or len(self.answer) < LENGTH.size + LENGTH.unpack_from(self.answer)[0]:
            return b""
        del self.answer[: LENGTH.size]
        answer = bytes(self.answer[:8])
        return answer if answer in (b"memory", b"disk") else b"answer"

    def reap(self) -> int:
        """The status of a worker that is about to be gone, and what it said last."""
        until = time.monotonic() + DYING
        while time.monotonic() < until:
            pid, status = os.waitpid(self.worker, os.WNOHANG)
            if pid:
                os.set_blocking(self.words, False)
                with suppress(BlockingIOError):
                    self.said = (self.said + os.read(self.words, 1 << 16))[-TOLD:]
                return status
            time.sleep(0.002)
        return signal.SIGKILL

    def kill(self) -> None:
        """End it and all it started."""
        for end, number in ((os.killpg, self.worker), (os.kill, self.worker)):
            with suppress(OSError):
                end(number, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.worker, 0)


def resident_bytes(pid: int) -> int:
    """What a process has in memory, where the system does not limit it; 0 where that cannot be known."""
    try:
        told = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, timeout=5).stdout
        return 1024 * int(told)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0


# The worker ----------------------------------------------------------------------------------------------


def work(allowed: Allowed, packed: bytes, answering: int, saying: int, keeper: int) -> NoReturn:
    """Do the work within its limits, and answer."""
    try:
        os.setsid()
        cut_loose(answering, saying)
        confine(allowed, keeper)
        reply = worked(packed)
        write_all(answering, LENGTH.pack(len(reply)) + reply)
    finally:
        os._exit(1)


def cut_loose(answering: int, saying: int) -> None:
    """Keep nothing open but the answer and what is said, which the keeper listens to."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(saying, 2)
    os.closerange(3, answering)
    os.closerange(answering + 1, 256)


def confine(allowed: Allowed, keeper: int) -> None:
    """Set the limits; a worker whose keeper is no more ends."""
    os.umask(0o077)
    give_way()
    die_first()
    die_with_parent(keeper)
    limit("RLIMIT_FSIZE", allowed.disk)
    limit("RLIMIT_CPU", math.ceil(allowed.seconds) * THREADS + 1)  # the clock is the keeper's, if it lives
    limit_memory(allowed.memory)


def give_way() -> None:
    """Take only what processor time others leave: who serves goes first. Inherited by whatever is begun from here."""
    with suppress(OSError):
        os.nice(NICENESS - os.nice(0))
    with suppress(AttributeError, OSError):  # not everywhere
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def die_first() -> None:
    """Die before others where the machine's memory is short, and leave no picture of the memory on disk."""
    limit("RLIMIT_CORE", 0)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(FIRST_TO_DIE)


def be_job(memory: int) -> None:
    """Make of this process one that works for long beside a server: with limits, and files that others cannot read."""
    os.umask(0o077)
    die_first()
    limit_memory(memory)


def limit(name: str, most: int, beyond: int = 0) -> None:
    """Set a limit of this process, where the system has it; beyond: what it may take when it asks once more."""
    if resource is None:
        return
    which = getattr(resource, name)
    _, hardest = resource.getrlimit(which)
    wanted = most + beyond if hardest == resource.RLIM_INFINITY else min(most + beyond, hardest)
    with suppress(OSError, ValueError):
        resource.setrlimit(which, (min(most, wanted), wanted))


def limit_memory(most: int) -> None:
    """Limit the data of this process.

    RLIMIT_DATA counts what is private and can be written, which is close to what is used. RLIMIT_AS would count what
    is only reserved (stacks, arenas, mapped files) as well.
    """
    limit("RLIMIT_DATA", most, ROOM_TO_TELL)


def more_memory() -> None:
    """Take what lies beyond the limit, to say that it was reached."""
    if resource is not None:
        _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hardest, hardest))


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent is gone, where the system can do that."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(DEATH_SIGNAL, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def worked(packed: bytes) -> bytes:
    """The reply of the function: its value, an error of the user, or ours; just a word where memory was too little."""
    try:
        function, arguments = pickle.loads(packed)
        return json.dumps({"value": function(*arguments)}).encode()
    except BaseException as error:
        more_memory()
        if short := what_was_short(error):
            return short
        if isinstance(error, PonnError):
            return json.dumps({"error": packed_error(error)}).encode()
        return json.dumps({"fault": where(error)}).encode()


def what_was_short(error: BaseException | None) -> bytes:
    """The limit that is behind an error; empty where none is."""
    while error is not None:
        number = getattr(error, "errno", 0)
        if isinstance(error, MemoryError) or number == errno.ENOMEM or any(one in str(error) for one in MEMORY_WORDS):
            return b"memory"
        if number == errno.EFBIG:
            return b"disk"
        error = error.__cause__ or error.__context__
    return b""


def where(error: BaseException) -> str:
    """The kind of an exception and the places it came through; not its words, which may quote cells."""
    places = traceback.extract_tb(error.__traceback__)
    told = "".join(f"\n  {one.filename}:{one.lineno} in {one.name}" for one in places)
    return f"{type(error).__name__} in a worker{told}"


def packed_error(error: PonnError) -> dict[str, Any]:
    """An error in plain values: its class, or the nearest that this package knows, its words and what it carries."""
    kind = next(one for one in type(error).__mro__ if one.__module__.startswith("ponn."))
    more = {name: value for name, value in vars(error).items() if is_plain(value)}
    return {"module": kind.__module__, "name": kind.__qualname__, "told": str(error), "more": more}


def unpacked_error(found: dict[str, Any]) -> PonnError:
    """An error as it was raised in a worker."""
    kind = PonnError
    if str(found["module"]).startswith("ponn."):
        named = getattr(importlib.import_module(found["module"]), found["name"], PonnError)
        kind = named if isinstance(named, type) and issubclass(named, PonnError) else PonnError
    error = kind.__new__(kind)
    error.args = (found["told"],)
    vars(error).update(found["more"])
    return error


def is_plain(value: Any) -> bool:
    """Is it a value that JSON gives back as it was?"""
    if isinstance(value, dict):
        return all(isinstance(name, str) and is_plain(one) for name, one in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
