"""Runners that have loaded their libraries and wait for jobs, each in the environment of the peer it works for."""

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import ponn
from peer_space import Contender
from record import HERE

HOMES = HERE.parent / ".venv-peers"
GRACE = 5  # seconds that a runner has to end after it closed its pipe


def python_of(one: Contender) -> Path:
    """The interpreter of a method's environment."""
    return HOMES / one.home / "bin" / "python" if one.home else Path(sys.executable)


def surroundings(one: Contender) -> dict[str, str]:
    """The environment of a runner: one thread; ponn and our worlds only where the runner is ponn's own."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = "" if one.home else os.pathsep.join([str(Path(ponn.__file__).parent.parent), str(HERE)])
    return {**os.environ, **threads, "PYTHONPATH": paths}


class Runner:
    """A process that answers jobs (`peers/trials.py`), and the file of what it says meanwhile."""

    def __init__(self, one: Contender, words: Path) -> None:
        """Start it, with a group of its own so that it can be ended together with the job it does."""
        command = [str(python_of(one)), str(HERE / "peers" / one.runner)]
        with words.open("wb") as file:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": file}
            self.process = subprocess.Popen(command, text=True, env=surroundings(one), start_new_session=True, **pipes)
        self.words, self.heard = words, 0  # bytes of earlier jobs' words

    def failure(self, job: Path, seconds: float) -> str | None:
        """Have a job done: None, or why it was not."""
        answer = self.answer(job, seconds)
        if answer == "0":
            self.heard = self.words.stat().st_size
            return None
        if answer is None:
            return f"not finished after {seconds:g} s"
        status = answer or f"{self.exit_status()} of its runner"
        said = self.words.read_bytes()[self.heard :].decode(errors="replace").strip().splitlines()
        return f"ended with status {status}: {(said or ['nothing was said'])[-1]}"[:300]

    def answer(self, job: Path, seconds: float) -> str | None:
        """The job's exit status as text, nothing if the runner itself ended, None if time was up."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(job, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return ""
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return None
        return self.process.stdout.readline().strip()

    def exit_status(self) -> int | None:
        """Of a runner that closed its pipe; None where it is still there."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        return self.process.returncode

    def kill(self) -> None:
        """Let it go no further, nor the job it does, which may be there without it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it and close its pipes; not while somebody waits for an answer."""
        self.kill()
        with suppress(BrokenPipeError):
            self.process.communicate()


class Runners:
    """Runners by who they work for; of each as many as are busy at the same time. They end with the block."""

    def __init__(self) -> None:
        self.idle: defaultdict[tuple[str, str], list[Runner]] = defaultdict(list)
        self.all: set[Runner] = set()
        self.lock = Lock()
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.numbers = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for runner in (one for idle in self.idle.values() for one in idle):
            runner.end()
        self.folder.cleanup()

    def kill(self) -> None:
        """End all, whatever they do; who waits for one is told so and closes it."""
        with self.lock:
            for runner in self.all:
                runner.kill()

    def failure(self, one: Contender, job: Path, seconds: float) -> str | None:
        """Have a job done: None, or why it was not."""
        runner = self.taken(one)
        why = runner.failure(job, seconds)
        with self.lock:
            if why is None:
                self.idle[one.home, one.runner].append(runner)
            else:
                self.all.remove(runner)
        if why is not None:
            runner.end()
        return why

    def taken(self, one: Contender) -> Runner:
        """One that waits, or a new one."""
        with self.lock:
            idle = self.idle[one.home, one.runner]
            runner = idle.pop() if idle else Runner(one, Path(self.folder.name) / f"{next(self.numbers)}.txt")
            self.all.add(runner)
        return runner
