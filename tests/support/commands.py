"""The command line in tests: in a process of its own where that matters, else in this one."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from subprocess import run as start

import pytest

from ponn.cli import main

PONN = [sys.executable, "-W", "error", "-c", "from ponn.cli import main; main()"]


def run(*words: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """A command in a new process."""
    return start([*PONN, *map(str, words)], capture_output=True, text=True, cwd=cwd)


@pytest.fixture
def here(tmp_path, monkeypatch, capsys) -> Iterator[Callable[..., CompletedProcess[str]]]:
    """The same in this process, in an empty folder or a given one: a new Python takes seconds to load what it needs."""
    monkeypatch.chdir(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run_here(*words: object, cwd: Path = tmp_path) -> CompletedProcess[str]:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["ponn", *map(str, words)])
        capsys.readouterr()
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code
        return CompletedProcess(words, status or 0, *capsys.readouterr())

    yield run_here
    for number, handler in before.items():
        signal.signal(number, handler)
