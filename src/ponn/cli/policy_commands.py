"""Commands about a policy: `ponn explain`, `ponn evaluate`, `ponn report`, `ponn recommend`."""

import json
import math
import sys
from typing import TYPE_CHECKING, Any

import click

from ponn.cli.options import (
    check_target,
    chosen_engine,
    engine_options,
    formulas_option,
    json_option,
    min_cell_option,
    tell_quoted,
    valuing_options,
)
from ponn.cli.terminal import console, learning_progress, scoring_progress
from ponn.cli.value_tables import print_doubts, subgroup_table, value_table
from ponn.report.glossary import VARIANTS

if TYPE_CHECKING:
    from ponn.evaluation.worth import Worth
    from ponn.policy.batches import Scored
    from ponn.policy.policy import Policy

TOLD_SHARE = 0.05  # of a reward model in the stack, from which on it is named
NOTHING_READ = "nothing: its probability is the same for all"


@click.command()
@click.argument("policy", type=click.Path())
@json_option
def explain(policy: str, as_json: bool) -> None:
    """Say what POLICY looks at for each action, how it was made and from what.

    \b
    Example:
      ponn explain clinic.ponn
    """
    from ponn.policy.policy import load

    loaded = load(policy)
    if as_json:
        click.echo(json.dumps(explained(loaded)))
    else:
        print_policy(loaded)


def explained(policy: "Policy") -> dict[str, Any]:
    """A policy for programs."""
    from dataclasses import asdict

    told: dict[str, Any] = {"actions": policy.actions, "method": policy.method, "settings": dict(policy.settings)}
    told |= {"relevance": [asdict(one) for one in policy.relevance], "provenance": dict(policy.provenance)}
    return told | {"eligibility": policy.eligibility and policy.eligibility.as_json()}


def print_policy(policy: "Policy") -> None:
    """A policy for people: the features that each action looks at, and how it came about."""
    from rich.table import Table
    from rich.text import Text

    out = console()
    own, none = ("selected for it", "nothing") if policy.reads_all_sets else ("looks at", NOTHING_READ)
    table = Table("action", f"{own}, the most relevant first", title="Relevant features", title_justify="left")
    rank = {(one.action, one.feature): one.relevance for one in policy.relevance}
    for action, names in policy.sets().items():
        ordered = sorted(names, key=lambda name: -rank.get((action, name), 0.0))
        table.add_row(Text(str(action)), Text(", ".join(ordered) or none))
    out.print(table)
    if policy.reads_all_sets:
        out.print("One network serves all actions and reads what was selected for any of them.")
    out.print(Text(f"Method {policy.method}, {how_it_learned(policy)}"))
    if policy.eligibility is not None:
        for told in policy.eligibility.sentences:
            out.print(Text(f"  {told}"))
    for note in policy.provenance.get("notes", ()):
        out.print(Text(f"  {note}"))


def how_it_learned(policy: "Policy") -> str:
    """Rows, seed and how far training went, in a line."""
    rows, trained, seed = policy.made("rows", "training", "seed")
    if "shares" in trained:
        kinds = sorted(trained["shares"].items(), key=lambda one: -one[1])
        told = ", ".join(f"{kind} {share:.0%}" for kind, share in kinds if share >= TOLD_SHARE)
        return (
            f"{rows['train'] + rows['valid']:,} rows, each in turn held out, seed {seed}. "
            f"Features by {trained['selection']}; rewards by {told}."
        )
    epochs = f", {trained['best_epoch']} epochs" if "best_epoch" in trained else ""
    return (
        f"{rows['train']:,} training, {rows['valid']:,} validation rows, seed {seed}{epochs}, "
        f"validation loss {trained.get('valid_loss', math.nan):.4g}."
    )


@click.command()
@click.argument("policy", type=click.Path())
@click.argument("log", type=click.Path())
@valuing_options
@click.option("--level", type=float, default=0.95, show_default=True, help="Confidence of the interval.")
@click.option("--by", multiple=True, metavar="COL", help="Value each subgroup of a column by itself; repeat.")
@click.option(
    "--gamma", type=float, metavar="X", help="Bounds if an unseen cause changed the odds of an action by up to X."
)
@click.option("--sample", is_flag=True, help="Value the policy as it draws, not as it recommends.")
@click.option("--allow-low-overlap", is_flag=True, help="Print the number even where it cannot be trusted, marked.")
@click.option("--require-improvement", is_flag=True, help="Exit with status 3 unless better than current practice.")
@engine_options
@json_option
def evaluate(
    policy: str,
    log: str,
    estimator: str,
    interval: str,
    level: float,
    by: tuple[str, ...],
    gamma: float | None,
    sample: bool,
    allow_low_overlap: bool,
    require_improvement: bool,
    as_json: bool,
    engine: str | None,
    workers: int | None,
    address: str | None,
) -> None:
    """Say what POLICY would have been worth on LOG, from rows it did not learn from.

    Column names are those the policy was learned with. Where LOG is the file it was learned from, only the rows
    kept aside then are used.

    \b
    Examples:
      ponn evaluate clinic.ponn visits.csv
      ponn evaluate clinic.ponn visits.csv --by age --by ward --gamma 1.5
    """
    from ponn.evaluation.evaluate import read_same_log, worth
    from ponn.evaluation.valuation import Sampled, seed_of, source_of
    from ponn.log.acquaintance import seals
    from ponn.policy.policy import load

    loaded = load(policy)
    with chosen_engine(engine, workers, address) as where, learning_progress() as tell:
        rows = read_same_log(loaded, log, where, tell, also=by)
        found = worth(
            Sampled(loaded) if sample else loaded,
            rows,
            estimator,
            level,
            engine=where,
            progress=tell,
            interval=interval,
            by=by,
            gamma=gamma,
            allow_low_overlap=allow_low_overlap,
            seed=seed_of(loaded),
        )
    if as_json:
        click.echo(json.dumps(found.as_json()))
    else:
        split = seals(source_of(loaded).get("whole"), rows)
        print_worth(found, gamma is not None, "On rows kept aside" if split else "On these rows")
    if require_improvement and found.verdict.kind != "better":
        sys.exit(3)


def print_worth(found: "Worth", asked_for_gamma: bool, title: str) -> None:
    """What a policy is worth, for people; title: on which rows."""
    out = console()
    values = {"this policy": found.policy, "current practice": found.logging}
    out.print(value_table(values | {VARIANTS[name]: one for name, one in found.variants.items()}, title))
    if found.subgroups is not None:
        out.print(subgroup_table(found.subgroups))
    out.print(str(found.verdict), markup=False)
    print_doubts(found, asked_for_gamma)
    for note in found.notes:
        click.echo(note, err=True)


@click.command("report")
@click.argument("policy", type=click.Path())
@click.argument("log", type=click.Path())
@click.option("--out", type=click.Path(), default="report.html", show_default=True, help="Where the report goes.")
@click.option("--level", type=float, default=0.95, show_default=True, help="Confidence of intervals and verdict.")
@click.option("--by", multiple=True, metavar="COL", help="Show who gains by the levels of a column; repeat.")
@min_cell_option
@json_option
def report_on(
    policy: str, log: str, out: str, level: float, by: tuple[str, ...], min_cell: int | None, as_json: bool
) -> None:
    """Write a report on POLICY, valued on rows of LOG that it did not learn from: one HTML file that opens offline.

    \b
    Examples:
      ponn report clinic.ponn visits.csv --out report.html
      ponn report clinic.ponn visits.csv --by age --by ward
    """
    from ponn.evaluation.valuation import read_same_log
    from ponn.policy.policy import load
    from ponn.report.page import write_report

    check_target("--out", out, policy, log)
    loaded = load(policy)
    with learning_progress() as tell:
        asked: dict[str, Any] = {"level": level, "by": by, "min_cell": min_cell, "progress": tell}
        found = write_report(loaded, read_same_log(loaded, log, also=by), out, **asked)
    if as_json:
        worth = None if found.worth is None else found.worth.as_json()
        click.echo(json.dumps({"report": out, "rows": found.rows, "worth": worth, "why_no_worth": found.why_no_worth}))
    else:
        click.echo(f"Written to {out}.", err=True)


@click.command()
@click.argument("policy", type=click.Path())
@click.argument("rows", type=click.Path())
@click.option("--out", type=click.Path(), help="Where the recommendations go; default: standard output as CSV.")
@click.option("--sample", is_flag=True, help="Draw actions from the policy instead of taking the most probable.")
@click.option("--seed", type=int, default=0, show_default=True, help="For --sample.")
@click.option("--probabilities", is_flag=True, help="Add a column p_<action> for each action.")
@click.option("--keep", multiple=True, metavar="COL", help="Copy a column of ROWS; repeat.")
@click.option("--columns", metavar="NAMES", help="Only these columns of the recommendation, e.g. action,probability.")
@click.option("--supported-only", is_flag=True, help="Leave out actions hardly ever taken in such cases.")
@click.option("--available", multiple=True, metavar="ACTION", help="Only these actions are available; repeat.")
@click.option("--reasons", is_flag=True, help="Add a column with the reasons for each recommendation, as JSON.")
@click.option("--threads", type=click.IntRange(min=1), help="Default: one per core. The result is the same.")
@formulas_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object about the run; wants --out.")
@engine_options
def recommend(
    policy: str,
    rows: str,
    out: str | None,
    columns: str | None,
    available: tuple[str, ...],
    as_json: bool,
    engine: str | None,
    workers: int | None,
    address: str | None,
    **asked: Any,
) -> None:
    """Recommend an action for each of ROWS by POLICY, in little memory however many they are.

    From a directory of Parquet files to a directory: one file of answers for each file of rows, by several workers.
    A run that was stopped goes on with the files that are missing.

    \b
    Examples:
      ponn recommend clinic.ponn patients.csv --out advice.csv --keep patient_id
      ponn recommend ads.ponn visitors.parquet --out banners.parquet --columns action,probability
      ponn recommend ads.ponn visitors/ --out banners/ --workers 4
    """

    from ponn.policy.policy import RECOMMENDED, load
    from ponn.policy.recommend import recommend as write_recommendations

    if as_json and not out:
        raise click.UsageError("--json wants --out FILE: both would go to standard output.")
    check_target("--out", out, policy, rows, folder=True)
    chosen = RECOMMENDED if columns is None else [name.strip() for name in columns.split(",")]
    asked["eligible"] = available or None
    with chosen_engine(engine, workers, address) as where, scoring_progress() as progress:
        target = out or sys.stdout.buffer
        asked |= {"columns": chosen, "progress": progress, "engine": where}
        done = write_recommendations(load(policy), rows, target, **asked)
    if as_json:
        about = {
            "out": out,
            "rows": done.rows,
            "seconds": done.seconds,
            "surprises": done.surprises,
            "quoted": done.quoted,
        }
        click.echo(json.dumps(about))
        return
    for name, counts in done.surprises.items():
        told = ", ".join(f"{count:,} {what}" for what, count in counts.items())
        click.echo(f"Column {name!r} holds cells unlike anything in training: {told}.", err=True)
    tell_support(done)
    tell_quoted(done.quoted)
    if out:
        speed = f"{done.rows / done.seconds:,.0f} rows per second"
        click.echo(f"{out}: {done.rows:,} rows in {done.seconds:.1f} s ({speed}).", err=True)


def tell_support(done: "Scored") -> None:
    """How often the log could not tell, and what --supported-only did about it."""
    if done.unsupported:
        click.echo(
            f"{done.unsupported:,} of {done.rows:,} recommendations are not supported: the log hardly holds such cases "
            "with that action. --supported-only leaves such actions out.",
            err=True,
        )
    if done.restricted or done.fell_back:
        click.echo(
            f"{done.restricted:,} of {done.rows:,} recommendations are the best supported action in place of one that "
            f"is not supported; in {done.fell_back:,} rows there is none, and current practice is followed.",
            err=True,
        )
