"""Options that several commands share, and what is made of them."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ponn.errors import PonnError

if TYPE_CHECKING:
    from ponn.engine.passes import Engine

formulas_option = click.option(
    "--keep-formulas",
    "formulas",
    is_flag=True,
    help="Leave texts in CSV that a spreadsheet would execute as they are; else they get an apostrophe.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


min_cell_option = click.option(
    "--min-cell",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tell nothing that fewer than N people share: rare levels, ends of ranges, small cells.  [default: 10]",
)


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a log is read; they are the keywords of `ponn.read_log`."""
    texts = {
        "action": "Column with the action taken.",
        "reward": "Column with the outcome, a number.",
        "propensity": "Column with the probability of the logged action; may be empty in some rows.",
        "group": "Rows with the same value stay together in every split.",
        "time": "Split by this column instead of at random.",
        "weight": "Column with row weights.",
        "eligible": "Column that names the actions available in each row, e.g. AC|CAF; empty: all.",
    }
    options = [click.argument("log", type=click.Path())]
    options += [
        click.option(f"--{role}", metavar="COL", required=role in ("action", "reward"), help=text)
        for role, text in texts.items()
    ]
    options += [
        click.option(
            "--features", multiple=True, metavar="COL", help="A feature; repeat. Default: every other column."
        ),
        click.option("--ignore", multiple=True, metavar="COL", help="A column that is not a feature; repeat."),
        click.option("--minimize", is_flag=True, help="A small outcome is good (cost, death)."),
        click.option("--reward-range", nargs=2, type=float, metavar="LO HI", help="Default: the observed range."),
        click.option("--drop-missing", is_flag=True, help="Leave out rows without action or reward, and say how many."),
        click.option(
            "--never",
            "rules",
            multiple=True,
            metavar="RULE",
            help='Where an action is not available, e.g. "CAF if age >= 70"; repeat.',
        ),
        click.option(
            "--drop-ineligible",
            is_flag=True,
            help="Leave out rows whose logged action was not available, and say how many.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


ENGINE = (
    click.option("--engine", type=click.Choice(["local", "ray", "spark"]), help="Who reads a directory."),
    click.option("--workers", type=click.IntRange(min=1), help="Processes that read it; default one per core."),
    click.option("--address", metavar="URL", help="Of a running Ray or Spark cluster; default: one on this machine."),
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where a log on disk is read."""
    for option in reversed(ENGINE):
        command = option(command)
    return command


@contextmanager
def chosen_engine(engine: str | None, workers: int | None, address: str | None) -> "Iterator[Engine | None]":
    """The engine that was asked for, as long as it is needed; None where nothing was said."""
    from ponn.engine.choice import engine_of

    if engine is None and workers is None and address is None:
        yield None
        return
    found = engine_of(engine, workers, address)
    try:
        yield found
    finally:
        found.close()


LEARNING = (
    click.option("--tune", is_flag=True, help="Choose lambda1, lambda2, lambda3 and the like on validation rows."),
    click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="A setting, e.g. lambda1=0.1; repeat."),
    click.option(
        "--holdout", type=float, default=0.3, show_default=True, help="Share of rows that learning never sees."
    ),
    click.option("--level", type=float, default=0.95, show_default=True, help="Confidence of intervals and verdict."),
    click.option("--seed", type=int, default=0, show_default=True),
    min_cell_option,
    json_option,
)


def learning_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how to learn and how to value what was learned."""
    for option in reversed(LEARNING):
        command = option(command)
    return command


VALUING = (
    click.option(
        "--estimator", default="dr", show_default=True, help="dr, sndr, ips, snips, truncated-ips, switch-dr, dros, dm."
    ),
    click.option("--interval", default="normal", show_default=True, help="normal, bootstrap, bernstein, sequence."),
)


def valuing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a value is found."""
    for option in reversed(VALUING):
        command = option(command)
    return command


def parse_settings(changes: Iterable[str], min_cell: int | None = None) -> dict[str, Any]:
    """Every --set NAME=VALUE, each name once, and what --min-cell says."""
    found: dict[str, Any] = {} if min_cell is None else {"min_cell": min_cell}
    for name, value in map(parse_setting, changes):
        if name in found:
            raise PonnError(f"--set gives {name} twice, {found[name]!r} and {value!r}; expected each name once.")
        found[name] = value
    return found


def parse_setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE as a name and a Python value; what is not one is text."""
    import ast

    name, equals, value = text.partition("=")
    if not equals:
        raise PonnError(f"--set {text} has no value; expected NAME=VALUE, e.g. lambda1=0.1.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, {"true": True, "false": False, "none": None}.get(value.lower(), value)


def check_target(option: str, target: str | None, *taken: str, folder: bool = False) -> None:
    """Raise PonnError where a result could not go, before any work; taken: files that it must not be written over."""
    if target is None:
        return
    path, folder_of_it = Path(target), Path(target).absolute().parent
    over = [one for one in taken if path.resolve() == Path(one).resolve()]
    if over:
        raise PonnError(f"{option} {target} would be written over {over[0]}, which is needed. Name another file.")
    if os.path.isdir(target) and not folder:
        raise PonnError(f"{option} {target} is a directory; expected the name of a file.")
    if not os.path.isdir(folder_of_it):
        raise PonnError(f"{option} {target}: there is no directory {folder_of_it}. Make it, or name another place.")
    if not os.access(folder_of_it, os.W_OK):
        raise PonnError(f"{option} {target}: nothing may be written in {folder_of_it}. Name another place.")


def tell_quoted(count: int) -> None:
    """How many texts got an apostrophe."""
    if count:
        click.echo(
            f"{count:,} texts that a spreadsheet would execute were written with an apostrophe before them, which ponn "
            "takes away when it reads them; --keep-formulas leaves them as they are.",
            err=True,
        )
