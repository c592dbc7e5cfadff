"""Runners that have loaded their libraries and wait for jobs, each in the environment of the peer it works for."""

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import ponn
from peer_space import Contender
from record import HERE

HOMES = HERE.parent / ".venv-peers"


def python_of(one: Contender) -> Path:
    """The interpreter of a method's environment."""
    return HOMES / one.home / "bin" / "python" if one.home else Path(sys.executable)


def surroundings(one: Contender) -> dict[str, str]:
    """The environment of a runner: one thread; ponn and our worlds only where the runner is ponn's own."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = "" if one.home else os.pathsep.join([str(Path(ponn.__file__).parent.parent), str(HERE)])
    return {**os.environ, **threads, "PYTHONPATH": paths}


@dataclass(frozen=True, eq=False)
class Runner:
    """A process that answers jobs (`peers/trials.py`), and what it says meanwhile."""

    process: subprocess.Popen[str]
    words: Path

    @classmethod
    def started(cls, one: Contender, words: Path) -> Self:
        """A new process, with a group of its own so that it can be ended together with the job it does."""
        command = [str(python_of(one)), str(HERE / "peers" / one.runner)]
        with words.open("wb") as file:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": file}
            made = subprocess.Popen(command, text=True, env=surroundings(one), start_new_session=True, **pipes)
        return cls(made, words)

    def ask(self, job: Path, seconds: float) -> str:
        """Have a job done; its exit status as text, nothing if the runner itself ended, "late" if time was up."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(job, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return ""
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return "late"
        return self.process.stdout.readline().strip()

    def last_words(self) -> str:
        """The last line of what it said."""
        return (self.words.read_text(errors="replace").strip().splitlines() or ["nothing was said"])[-1]

    def end(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


class Runners:
    """Runners by who they work for; of each as many as are busy at the same time. They end with the block."""

    def __init__(self) -> None:
        self.idle: defaultdict[tuple[str, str], list[Runner]] = defaultdict(list)
        self.all: set[Runner] = set()
        self.folder = tempfile.TemporaryDirectory()
        self.numbers = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for runner in self.all:
            runner.end()
        self.folder.cleanup()

    def failure(self, one: Contender, job: Path, seconds: float) -> str | None:
        """Have a job done: None, or why it was not."""
        idle = self.idle[one.home, one.runner]
        runner = idle.pop() if idle else Runner.started(one, Path(self.folder.name) / f"{next(self.numbers)}.txt")
        self.all.add(runner)
        answer = runner.ask(job, seconds)
        if answer == "0":
            idle.append(runner)
            return None
        why = f"not finished after {seconds:g} s" if answer == "late" else ended(answer, runner)
        self.all.remove(runner)
        runner.end()
        return why


def ended(answer: str, runner: Runner) -> str:
    """How a job came to its end."""
    status = answer or f"{runner.process.wait()} of its runner"
    return f"ended with status {status}: {runner.last_words()}"[:300]
