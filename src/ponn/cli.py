"""The command line. Nothing heavy is imported before a command needs it."""

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ponn import __version__
from ponn.errors import PonnError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ponn.readiness import Check
    from ponn.world import World

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
WORLD_NAMES = ("kidney-stones", "breast-cancer", "pendigits", "satimage", "optdigits", "actg175", "synthetic")


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="ponn")
def ponn() -> None:
    """Turn a biased log of past decisions into a better policy that people can trust.

    Start with a table (CSV, Parquet, ...) that has one row per past case: what was known about it, which action
    was taken, how it turned out. `ponn check` says what is in it and whether a policy can be learned from it.

    No table at hand? `ponn simulate breast-cancer --out log.csv` makes one.
    """


def main() -> None:
    """Run a command: user errors are told in one paragraph, with exit status 1."""
    try:
        ponn.main(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except PonnError as error:
        click.echo(f"{click.style('Error:', fg='red', bold=True)} {error}", err=True)
        sys.exit(1)


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a log is read; they are the keywords of `ponn.read_log`."""
    texts = {
        "action": "Column with the action taken.",
        "reward": "Column with the outcome, a number.",
        "propensity": "Column with the probability of the logged action; may be empty in some rows.",
        "group": "Rows with the same value stay together in every split.",
        "time": "Split by this column instead of at random.",
        "weight": "Column with row weights.",
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
    ]
    for option in reversed(options):
        command = option(command)
    return command


@ponn.command()
@log_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def check(log: str, as_json: bool, **columns: Any) -> None:
    """Say what is in LOG and whether a policy can be learned from it.

    \b
    Examples:
      ponn check visits.csv --action treatment --reward recovered
      ponn check ads.parquet --action banner --reward cost --minimize --ignore user_id
    """
    from ponn.readiness import check as look_at

    columns["features"] = columns["features"] or None
    found = look_at(log, **columns)
    if as_json:
        click.echo(json.dumps(found.as_json(), default=str))
    else:
        print_check(found, log, columns["reward"])


def console() -> "Console":
    """Standard output, with colours and the terminal's width only on a terminal."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 110)


def print_check(found: "Check", log: str, reward: str) -> None:
    """`ponn check` for people."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    out = console()
    out.print(Text(f"{log}: {found.rows:,} rows", style="bold"))
    actions = Table("action", "rows", "share", f"mean {reward}", title="Actions", title_justify="left")
    for one in found.actions:
        mean = "" if one.mean_reward is None else f"{one.mean_reward:.4g}"
        actions.add_row(Text(str(one.action)), f"{one.rows:,}", f"{one.rows / found.rows:.1%}", mean)
    features = Table("feature", "kind", "levels or bins", "missing", "values", title="Features", title_justify="left")
    for line in found.features:
        levels = "" if line.levels is None else str(line.levels)
        missing = f"{line.missing:,}" if line.missing else ""
        features.add_row(Text(line.name), line.kind, levels, missing, Text(line.values))
    for table in (actions, features, overlap_table(found)):
        if table.row_count:
            out.print(table)
    for title, lines in (("Notes", found.notes), ("Worth a look", found.suspicious)):
        if lines:
            out.print(Text(title, style="bold"))
            for told in lines:
                out.print(Padding(Text(told), (0, 0, 0, 2)))
    if found.ready:
        out.print(Text("Ready: ", style="bold green") + Text(found.why))
    else:
        out.print(Text("Not ready, because: ", style="bold red") + Text(found.why))


def overlap_table(found: "Check") -> "Table":
    """What Step A says of each action."""
    from rich.table import Table
    from rich.text import Text

    columns = ("action", "rows", "effective", "largest weight", "propensity 5 % / 50 %", "mean 1/p", "least balanced")
    table = Table(*columns, title="Overlap (propensities estimated on other rows)", title_justify="left")
    for one, worst, count in zip(found.overlap, found.balance, found.actions, strict=False):  # none without Step A
        table.add_row(
            Text(str(one.action)),
            f"{count.rows:,}",
            f"{one.effective_rows:,.0f}",
            f"{one.largest_weight:.3g}",
            f"{one.propensity_5:.3f} / {one.propensity_50:.3f}",
            f"{one.mean_inverse:.2f}",
            Text(f"{worst.feature}: {worst.before:.2f} → {worst.after:.2f} sd"),
        )
    return table


@ponn.command()
@click.argument("world", type=click.Choice(WORLD_NAMES), metavar="WORLD")
@click.option(
    "--out", required=True, type=click.Path(), help="Where the log goes (.csv .tsv .parquet .feather .jsonl)."
)
@click.option("--truth", type=click.Path(), help="Where the truth goes: part, propensities, rewards of all actions.")
@click.option("--rows", type=int, help="How many rows, where the world has no fixed size.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--scaling",
    type=click.Choice(["paper", "hard"]),
    default="paper",
    show_default=True,
    help="Logging policy of the UCI worlds: as in the paper, or far more biased.",
)
@click.option("--known-propensity", is_flag=True, help="Write the true propensity of the logged action as a column.")
def simulate(world: str, out: str, truth: str | None, **settings: Any) -> None:
    """Write a log of a world whose truth is known.

    \b
    WORLD: kidney-stones, breast-cancer, pendigits, satimage, optdigits, actg175, synthetic
    \b
    Example:
      ponn simulate breast-cancer --out log.csv --truth truth.csv
    """
    from pathlib import Path

    from ponn.files import write_table
    from ponn.simulate import world as make_world

    made = make_world(world, **settings)
    write_table(made.log.table, Path(out))
    if truth:
        write_table(made.truth_table(), Path(truth))
    tell_simulated(made, out)


def tell_simulated(made: "World", out: str) -> None:
    """What was written, and what to do next."""
    columns = made.log.columns
    flags = f"--action {columns.action} --reward {columns.reward}"
    flags += f" --propensity {columns.propensity}" if columns.propensity else ""
    click.echo(f"{out}: {len(made.log):,} rows. {made.about}", err=True)
    click.echo(f"Next: ponn check {out} {flags}", err=True)
