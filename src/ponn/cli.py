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

    from ponn.policy import Policy
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
@log_options
@click.option("--method", metavar="NAME", help="ponn-b (default), ponn, poem, poem-b, poem-l1, banditnet.")
@click.option("--tune", is_flag=True, help="Choose lambda1, lambda2 and lambda3 on validation rows.")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="A setting, e.g. lambda1=0.1; repeat.")
@click.option("--holdout", type=float, default=0.3, show_default=True, help="Share of rows that learning never sees.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--out", type=click.Path(), default="policy.ponn", show_default=True, help="Where the policy goes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def learn(
    log: str,
    method: str | None,
    tune: bool,
    changes: tuple[str, ...],
    holdout: float,
    seed: int,
    out: str,
    as_json: bool,
    **columns: Any,
) -> None:
    """Learn a policy from LOG and write it to a file.

    \b
    Examples:
      ponn learn visits.csv --action treatment --reward recovered --out clinic.ponn
      ponn learn visits.csv --action treatment --reward recovered --tune --set select=fdr
    """
    from ponn.learning import learn as learn_policy
    from ponn.log import read_log

    columns["features"] = columns["features"] or None
    settings = dict(map(parse_setting, changes))
    train, kept = read_log(log, **columns).split(1 - holdout, seed)
    policy = learn_policy(train, method, tune, seed, progress=lambda told: click.echo(told, err=True), **settings)
    policy.save(out)
    if as_json:
        told = {"policy": out, "method": policy.method, "rows": len(train) + len(kept), "actions": policy.actions}
        click.echo(json.dumps(told | {"seconds": policy.provenance["seconds"], "value": None, "verdict": None}))
    else:
        print_policy(policy)
        click.echo(
            f"Written to {out}. {len(kept):,} rows were kept aside to value it; that is not there yet.", err=True
        )


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


@ponn.command()
@click.argument("policy", type=click.Path())
@click.argument("rows", type=click.Path())
@click.option("--out", type=click.Path(), help="Where the recommendations go; default: standard output as CSV.")
@click.option("--sample", is_flag=True, help="Draw actions from the policy instead of taking the most probable.")
@click.option("--seed", type=int, default=0, show_default=True, help="For --sample.")
@click.option("--probabilities", is_flag=True, help="Add a column p_<action> for each action.")
@click.option("--keep", multiple=True, metavar="COL", help="Copy a column of ROWS; repeat.")
def recommend(
    policy: str, rows: str, out: str | None, sample: bool, seed: int, probabilities: bool, keep: tuple[str, ...]
) -> None:
    """Recommend an action for each of ROWS by POLICY.

    \b
    Example:
      ponn recommend clinic.ponn patients.csv --out advice.csv --keep patient_id
    """
    from pathlib import Path

    import pyarrow as pa

    from ponn.files import write_csv, write_table
    from ponn.policy import load
    from ponn.table import read_table

    loaded, source = load(policy), read_table(rows)
    found = loaded.recommend(source.table, sample=sample, seed=seed, probabilities=probabilities)
    missing = [name for name in keep if name not in source.table.column_names]
    if missing:
        raise PonnError(f"{rows} has no column {missing[0]!r} to keep.")
    kept = source.table.select(list(keep))
    found = pa.table([*kept.columns, *found.columns], [*kept.column_names, *found.column_names])
    for name, counts in loaded.encoding.surprises(source.table).items():
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        click.echo(f"Column {name!r} holds cells unlike anything in training: {told}.", err=True)
    if out:
        write_table(found, Path(out))
    else:
        write_csv(found, sys.stdout.buffer)


@ponn.command()
@click.argument("policy", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def explain(policy: str, as_json: bool) -> None:
    """Say what POLICY looks at for each action, how it was made and from what.

    \b
    Example:
      ponn explain clinic.ponn
    """
    from dataclasses import asdict

    from ponn.policy import load

    loaded = load(policy)
    if not as_json:
        print_policy(loaded)
        return
    told = {"actions": loaded.actions, "method": loaded.method, "settings": dict(loaded.settings)}
    told |= {"relevance": [asdict(one) for one in loaded.relevance], "provenance": dict(loaded.provenance)}
    click.echo(json.dumps(told))


def print_policy(policy: "Policy") -> None:
    """A policy for people: the features that each action looks at, and how it came about."""
    from rich.table import Table
    from rich.text import Text

    out = console()
    table = Table("action", "looks at, the most relevant first", title="Relevant features", title_justify="left")
    rank = {(one.action, one.feature): one.relevance for one in policy.relevance}
    for action, names in policy.sets().items():
        ordered = sorted(names, key=lambda name: -rank.get((action, name), 0.0))
        table.add_row(Text(str(action)), Text(", ".join(ordered) or "nothing: its probability is the same for all"))
    out.print(table)
    made = policy.provenance
    trained = made["training"]
    out.print(
        Text(
            f"Method {policy.method}, {made['rows']['train']:,} training, {made['rows']['valid']:,} validation rows, "
            f"seed {made['seed']}, {trained['best_epoch']} epochs, validation loss {trained['valid_loss']:.4g}."
        )
    )
    for note in made["notes"]:
        out.print(Text(f"  {note}"))


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
