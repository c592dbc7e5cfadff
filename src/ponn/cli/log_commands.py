"""Commands about logs: `ponn check`, `ponn simulate`. Nothing heavy is imported before a command needs it."""

import json
from typing import TYPE_CHECKING, Any

import click

from ponn.cli.options import (
    chosen_engine,
    engine_options,
    formulas_option,
    json_option,
    log_options,
    tell_quoted,
)
from ponn.cli.terminal import console, learning_progress
from ponn.cli.value_tables import doubt_of, value_and_ends

if TYPE_CHECKING:
    from rich.table import Table

    from ponn.evaluation.readiness import Check
    from ponn.simulate.worlds import World

WORLD_NAMES = ("kidney-stones", "breast-cancer", "pendigits", "satimage", "optdigits", "actg175", "synthetic")


@click.command()
@log_options
@engine_options
@json_option
def check(
    log: str, as_json: bool, engine: str | None, workers: int | None, address: str | None, **columns: Any
) -> None:
    """Say what is in LOG and whether a policy can be learned from it.

    \b
    Examples:
      ponn check visits.csv --action treatment --reward recovered
      ponn check ads.parquet --action banner --reward cost --minimize --ignore user_id
    """
    from ponn.evaluation.check import check as look_at

    columns["features"] = columns["features"] or None
    with chosen_engine(engine, workers, address) as where, learning_progress() as tell:
        found = look_at(log, engine=where, progress=tell, **columns)
    if as_json:
        click.echo(json.dumps(found.as_json(), default=str))
    else:
        print_check(found, log, columns["reward"])


def print_check(found: "Check", log: str, reward: str) -> None:
    """`ponn check` for people."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    out = console()
    out.print(Text(f"{log}: {found.rows:,} rows", style="bold"))
    features = Table("feature", "kind", "levels or bins", "missing", "values", title="Features", title_justify="left")
    for line in found.features:
        levels = "" if line.levels is None else str(line.levels)
        missing = f"{line.missing:,}" if line.missing else ""
        features.add_row(Text(line.name), line.kind, levels, missing, Text(line.values))
    for table in (action_table(found, reward), features, overlap_table(found)):
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


def action_table(found: "Check", reward: str) -> "Table":
    """Each action's rows and mean outcome and, where Step A could be done, what it would be worth to everyone."""
    from rich.table import Table
    from rich.text import Text

    columns = ["action", "rows", "share", f"mean {reward}"]
    columns += ["eligible"] if found.eligible else []
    everybody = "all eligible" if found.eligible else "everyone"
    columns += [f"if {everybody} got it (95 %)", ""] if found.everyone else []
    table = Table(*columns, title="Actions", title_justify="left")
    can, everyone = {one.action: one.rows for one in found.eligible}, dict(found.everyone)
    for one in found.actions:
        mean = "" if one.mean_reward is None else f"{one.mean_reward:.4g}"
        often = [f"in {can[one.action]:,} rows ({can[one.action] / found.rows:.1%})"] if can else []
        value = everyone.get(one.action)
        more = () if value is None else (value_and_ends(value), Text(doubt_of(value)))
        table.add_row(Text(str(one.action)), f"{one.rows:,}", f"{one.rows / found.rows:.1%}", mean, *often, *more)
    return table


def overlap_table(found: "Check") -> "Table":
    """What Step A says of each action."""
    from rich.table import Table
    from rich.text import Text

    columns = ("action", "rows", "effective", "largest weight", "propensity 5 % / 50 %", "mean 1/p", "least balanced")
    known = all(one.calibration_error is None for one in found.overlap)
    title = f"Overlap (propensities {'as given' if known else 'estimated on other rows'})"
    table = Table(*columns, title=title, title_justify="left")
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


@click.command()
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
@formulas_option
@json_option
def simulate(world: str, out: str, truth: str | None, formulas: bool, as_json: bool, **settings: Any) -> None:
    """Write a log of a world whose truth is known.

    \b
    WORLD: kidney-stones, breast-cancer, pendigits, satimage, optdigits, actg175, synthetic
    \b
    Example:
      ponn simulate breast-cancer --out log.csv --truth truth.csv
    """
    from pathlib import Path

    from ponn.simulate.catalogue import world as make_world
    from ponn.tables.files import write_table

    made = make_world(world, **settings)
    quoted = write_table(made.log.table, Path(out), formulas=formulas)
    if truth:
        quoted += write_table(made.truth_table(), Path(truth), formulas=formulas)
    if as_json:
        roles = {name: getattr(made.log.columns, name) for name in ("action", "reward", "propensity")}
        click.echo(json.dumps({"out": out, "truth": truth, "rows": len(made.log), "about": made.about, **roles}))
    else:
        tell_simulated(made, out)
        tell_quoted(quoted)


def tell_simulated(made: "World", out: str) -> None:
    """What was written, and what to do next."""
    columns = made.log.columns
    flags = f"--action {columns.action} --reward {columns.reward}"
    flags += f" --propensity {columns.propensity}" if columns.propensity else ""
    click.echo(f"{out}: {len(made.log):,} rows. {made.about}", err=True)
    click.echo(f"Next: ponn check {out} {flags}", err=True)
