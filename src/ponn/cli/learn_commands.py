"""Commands that learn: `ponn learn`, `ponn compare`. Nothing heavy is imported before a command needs it."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ponn.cli.options import (
    check_target,
    chosen_engine,
    engine_options,
    learning_options,
    log_options,
    parse_settings,
    valuing_options,
)
from ponn.cli.policy_commands import print_policy
from ponn.cli.terminal import console, learning_progress, print_passes
from ponn.cli.value_tables import print_doubts, subgroup_table, value_table
from ponn.errors import PonnError
from ponn.report.glossary import VARIANTS

if TYPE_CHECKING:
    from ponn.learning.holdout import Contest, Outcome
    from ponn.learning.learners import Progress
    from ponn.log.log import Log
    from ponn.log.sharded import ShardedLog
    from ponn.policy.policy import Policy


@click.command()
@log_options
@click.option("--method", metavar="NAME", help="Default ponn-dr; see `ponn compare --help`.")
@click.option("--out", type=click.Path(), default="policy.ponn", show_default=True, help="Where the policy goes.")
@click.option("--report", type=click.Path(), help="Where a report goes: one HTML file that opens offline.")
@click.option("--by", multiple=True, metavar="COL", help="Value each subgroup of a column by itself; repeat.")
@click.option("--require-improvement", is_flag=True, help="Exit with status 3 unless the verdict is 'better'.")
@click.option("--progress", type=click.Choice(["lines", "json"]), default="lines", hidden=True)
@engine_options
@click.option("--trainers", type=click.IntRange(min=1), help="Processes that train the network; default this one.")
@learning_options
def learn(
    log: str,
    method: str | None,
    out: str,
    report: str | None,
    by: tuple[str, ...],
    require_improvement: bool,
    progress: str,
    engine: str | None,
    workers: int | None,
    address: str | None,
    trainers: int | None,
    tune: bool,
    changes: tuple[str, ...],
    holdout: float,
    level: float,
    seed: int,
    min_cell: int | None,
    as_json: bool,
    **columns: Any,
) -> None:
    """Learn a policy from LOG, write it to a file, and say what it is worth on rows it never saw.

    \b
    Examples:
      ponn learn visits.csv --action treatment --reward recovered --out clinic.ponn
      ponn learn visits.csv --action treatment --reward recovered --method ponn-b --tune --report report.html
    """
    from ponn.learning.learn import learn_with_holdout
    from ponn.log.acquaintance import beside
    from ponn.log.reading import read_log

    check_target("--out", out, log)
    check_target("--report", report, log, out)
    columns["features"] = columns["features"] or None
    settings = parse_settings(changes, min_cell)
    kept: list[Policy] = []

    def keep(policy: "Policy") -> None:
        policy.save(out)
        kept.append(policy)

    engine = "local" if engine is None and trainers is not None else engine
    with chosen_engine(engine, workers, address) as where, learning_progress(as_json=progress == "json") as tell:
        rows = read_log(log, engine=where, progress=tell, **columns, keep=by)
        asked: dict[str, Any] = {"holdout": holdout, "level": level, "by": by, "engine": where, "progress": tell}
        asked |= {"keep": keep, "trainers": trainers}
        try:
            found = learn_with_holdout(rows, method, tune, seed, **asked, **settings)
        except PonnError as error:
            if not kept:
                raise
            raise PonnError(f"The policy was learned and is in {out}, but it could not be valued: {error}") from error
        found.policy.save(out)
        if report:
            report_outcome(found, rows, report, level, by, tell)
    print_passes(found.policy.provenance.get("passes", ()))
    if as_json:
        made = found.policy.provenance
        told = {"policy": out, "method": found.policy.method, "rows": len(rows), "actions": found.policy.actions}
        click.echo(json.dumps(told | {"seconds": made["seconds"], "report": report} | found.as_json()))
    else:
        print_policy(found.policy)
        print_outcome(found)
        click.echo(f"Written to {out}{f', the report to {report}' if report else ''}.", err=True)
        if found.policy.acquaintance is not None:
            click.echo(f"{beside(Path(out))} knows the rows again: keep it where the log is.", err=True)
    if require_improvement and found.verdict.kind != "better":
        sys.exit(3)


def report_outcome(
    found: "Outcome", log: "Log | ShardedLog", path: str, level: float, by: tuple[str, ...], tell: "Progress"
) -> None:
    """The report on what was just learned, from the rows kept aside and what they were corrected with."""
    from ponn.log.log import Log
    from ponn.report.page import write_report

    if not isinstance(log, Log):
        raise PonnError(
            "The policy was learned and saved, but a report needs its log in memory: write it with `ponn report` from "
            "a part of the log that fits."
        )
    write_report(
        found.policy,
        log,
        path,
        rows=found.kept,
        corrections=found.corrections,
        level=level,
        by=by,
        progress=tell,
    )


def print_outcome(found: "Outcome") -> None:
    """Values and verdict for people."""
    from rich.text import Text

    out = console()
    names = {"policy": "this policy", "logging": "current practice", "best_fixed": f"always {found.best_fixed}"}
    out.print(value_table({(names | VARIANTS)[name]: one for name, one in found.value.items()}))
    if found.worth.subgroups is not None:
        out.print(subgroup_table(found.worth.subgroups))
    out.print(Text(str(found.verdict), style="bold"))
    print_doubts(found.worth)
    out.print(Text(found.told_over_best_fixed, style="bold"))


@click.command()
@log_options
@click.option("--methods", default="ponn-b,ponn,poem,lr-l1,direct-forest", show_default=True, metavar="A,B,...")
@engine_options
@valuing_options
@learning_options
def compare(
    log: str,
    methods: str,
    engine: str | None,
    workers: int | None,
    address: str | None,
    estimator: str,
    interval: str,
    tune: bool,
    changes: tuple[str, ...],
    holdout: float,
    level: float,
    seed: int,
    min_cell: int | None,
    as_json: bool,
    **columns: Any,
) -> None:
    """Learn from LOG by several methods and value them on rows that none of them saw.

    \b
    Methods: ponn-dr ponn-b ponn poem poem-b poem-l1 mlp-l1 lr-l1 logging banditnet ipw-forest direct-forest
             offset-tree
    \b
    Example:
      ponn compare visits.csv --action treatment --reward recovered --methods ponn-b,lr-l1
    """
    from ponn.learning.learn import compare_methods
    from ponn.log.reading import read_log

    columns["features"] = columns["features"] or None
    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    if not names:
        raise PonnError("--methods names no method; expected names with commas between, e.g. ponn-b,lr-l1.")
    settings = parse_settings(changes, min_cell)
    asked: dict[str, Any] = {"holdout": holdout, "level": level, "estimator": estimator, "interval": interval}
    with chosen_engine(engine, workers, address) as where, learning_progress() as tell:
        rows = read_log(log, engine=where, progress=tell, **columns)
        found = compare_methods(rows, names, tune, seed, **asked, engine=where, progress=tell, **settings)
    if as_json:
        click.echo(json.dumps(found.as_json()))
    else:
        print_contest(found)


def print_contest(found: "Contest") -> None:
    """Values of several methods, their paired differences and the verdicts, for people."""
    out = console()
    out.print(value_table(found.comparison.values))
    if found.comparison.differences:
        pairs = {f"{one} minus {other}": gain for (one, other), gain in found.comparison.differences.items()}
        out.print(value_table(pairs, title="Paired differences"))
    for name, one in found.comparison.verdicts.items():
        out.print(f"{name}: {one.kind}", markup=False)
    out.print(f"Best on the validation rows: {found.best}", markup=False)
