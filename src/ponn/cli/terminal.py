"""The terminal: colours and progress where there is one, plain lines where there is none."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from ponn.learning.learners import Progress


def console() -> "Console":
    """Standard output, with colours and the terminal's width only on a terminal."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 110)


def print_passes(passes: "Sequence[Mapping[str, Any]]") -> None:
    """Where the time went, where rows were read from disk."""
    for one in passes:
        often = f", {one['passes']} passes" if one["passes"] > 1 else ""
        click.echo(f"{one['step']}: {one['seconds']:.1f} s, {one['rows']:,} rows{often}", err=True)


@contextmanager
def learning_progress(as_json: bool = False) -> "Iterator[Progress]":
    """What is being done: a bar with the time that is left on a terminal, a line for each step elsewhere.

    as_json: for a program that started this one; every step is a JSON object, and work ends with that program.
    """
    if as_json:
        end_with_input()
        yield lambda message, done=0, total=0: click.echo(
            json.dumps({"message": message, "done": done, "total": total}), err=True
        )
        return
    if not sys.stderr.isatty():
        yield lambda message, done=0, total=0: None if done else click.echo(message, err=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    look = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*look, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda message, done=0, total=0: bar.update(
            task, description=message, completed=done, total=total or None
        )


def end_with_input() -> None:
    """End this process and those it started as soon as standard input closes: whoever held its other end is gone."""
    import os
    import signal
    import threading

    def wait() -> None:
        while os.read(0, 4096):  # not sys.stdin: a thread that waits in there keeps Python from ending well
            pass
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGTERM)
        os._exit(130)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def scoring_progress() -> Iterator[Callable[[int, int | None], None] | None]:
    """Rows, rows per second and, where the number of rows is known, the time that is left; only on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Rows(ProgressColumn):
        """Rows written, and how many in a second."""

        def render(self, task: Task) -> Text:
            in_all = f" of {task.total:,.0f}" if task.total else ""
            return Text(f"{task.completed:,.0f}{in_all} rows, {task.speed or 0:,.0f} rows/s")

    look = (BarColumn(20), Rows(Column(no_wrap=True)), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*look, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda rows, in_all: bar.update(task, completed=rows, total=in_all)
