"""The command line. Nothing heavy is imported before a command needs it."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ponn import __version__
from ponn.errors import PonnError
from ponn.settings import SERVED_BYTES, SERVED_ROWS, STUDIO_UPLOAD

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from ponn.engine import Engine
    from ponn.holdout import Contest, Outcome
    from ponn.intervals import Estimate
    from ponn.learners import Progress
    from ponn.log import Log
    from ponn.policy import Policy
    from ponn.readiness import Check
    from ponn.scoring import Scored
    from ponn.serve import Options
    from ponn.sharded import ShardedLog
    from ponn.subgroups import Subgroups
    from ponn.world import World
    from ponn.worth import Worth

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
WORLD_NAMES = ("kidney-stones", "breast-cancer", "pendigits", "satimage", "optdigits", "actg175", "synthetic")


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="ponn")
def ponn() -> None:
    """Turn a biased log of past decisions into a better policy that people can trust.

    Start with a table (CSV, Parquet, ...) that has one row per past case: what was known about it, which action
    was taken, how it turned out. `ponn check` says what is in it and whether a policy can be learned from it.

    No table at hand? `ponn simulate breast-cancer --out log.csv` makes one, and `ponn demo` shows the whole way.
    Rather in the browser? `ponn studio`.
    """


def main() -> None:
    """Run a command: user errors are told in one paragraph, with exit status 1."""
    try:
        ponn.main(prog_name="ponn", standalone_mode=False)
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
    from ponn.anysize import engine_of

    if engine is None and workers is None and address is None:
        yield None
        return
    found = engine_of(engine, workers, address)
    try:
        yield found
    finally:
        found.close()


def print_passes(passes: "Sequence[Mapping[str, Any]]") -> None:
    """Where the time went, where rows were read from disk."""
    for one in passes:
        often = f", {one['passes']} passes" if one["passes"] > 1 else ""
        click.echo(f"{one['step']}: {one['seconds']:.1f} s, {one['rows']:,} rows{often}", err=True)


@ponn.command()
@log_options
@engine_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def check(
    log: str, as_json: bool, engine: str | None, workers: int | None, address: str | None, **columns: Any
) -> None:
    """Say what is in LOG and whether a policy can be learned from it.

    \b
    Examples:
      ponn check visits.csv --action treatment --reward recovered
      ponn check ads.parquet --action banner --reward cost --minimize --ignore user_id
    """
    from ponn.anysize import check as look_at

    columns["features"] = columns["features"] or None
    with chosen_engine(engine, workers, address) as where, learning_progress() as tell:
        found = look_at(log, engine=where, progress=tell, **columns)
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


LEARNING = (
    click.option("--tune", is_flag=True, help="Choose lambda1, lambda2, lambda3 and the like on validation rows."),
    click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="A setting, e.g. lambda1=0.1; repeat."),
    click.option(
        "--holdout", type=float, default=0.3, show_default=True, help="Share of rows that learning never sees."
    ),
    click.option("--level", type=float, default=0.95, show_default=True, help="Confidence of intervals and verdict."),
    click.option("--seed", type=int, default=0, show_default=True),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
)


def learning_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how to learn and how to value what was learned."""
    for option in reversed(LEARNING):
        command = option(command)
    return command


@ponn.command()
@log_options
@click.option("--method", metavar="NAME", help="See `ponn compare --help` for their names; default ponn-b.")
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
    as_json: bool,
    **columns: Any,
) -> None:
    """Learn a policy from LOG, write it to a file, and say what it is worth on rows it never saw.

    \b
    Examples:
      ponn learn visits.csv --action treatment --reward recovered --out clinic.ponn
      ponn learn visits.csv --action treatment --reward recovered --tune --set select=fdr --report report.html
    """
    from ponn.anysize import learn_with_holdout, read_log

    columns["features"] = columns["features"] or None
    settings = dict(map(parse_setting, changes))
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
    if require_improvement and found.verdict.kind != "better":
        sys.exit(3)


def report_outcome(
    found: "Outcome", log: "Log | ShardedLog", path: str, level: float, by: tuple[str, ...], tell: "Progress"
) -> None:
    """The report on what was just learned, from the rows kept aside and what they were corrected with."""
    from ponn.log import Log
    from ponn.report import write_report

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


def print_outcome(found: "Outcome") -> None:
    """Values and verdict for people."""
    from rich.text import Text

    out = console()
    names = {"policy": "this policy", "logging": "current practice", "best_fixed": f"always {found.best_fixed}"}
    names["supported_only"] = SUPPORTED_ONLY
    out.print(value_table({names[name]: one for name, one in found.value.items()}))
    if found.worth.subgroups is not None:
        out.print(subgroup_table(found.worth.subgroups))
    out.print(Text(str(found.verdict), style="bold"))
    print_doubts(found.worth)


SUPPORTED_ONLY = "this policy, supported actions only"


def print_doubts(found: "Worth", asked_for_gamma: bool = False) -> None:
    """What speaks against a value: unsupported recommendations, and hidden causes of the logged decisions."""
    from ponn.confounding import what_overturns

    out = console()
    if found.unsupported:
        share = f"{found.unsupported:,} of {found.rows:,} rows ({found.unsupported / found.rows:.1%})"
        out.print(f"In {share} the recommended action was hardly ever taken in such cases.", markup=False)
    if found.sensitivity is not None and asked_for_gamma:
        out.print(str(found.sensitivity), markup=False)
    if found.sensitivity is not None and found.verdict.kind == "better":
        out.print(what_overturns(found.sensitivity.breaking_gamma), markup=False)


def value_table(values: "Mapping[str, Estimate]", title: str = "On rows kept aside") -> "Table":
    """Values with intervals, one line each; what is not to be trusted says why."""
    from rich.table import Table
    from rich.text import Text

    table = Table("policy", "value", "interval", "effective rows", "", title=title, title_justify="left")
    for name, one in values.items():
        doubt = doubt_of(one)
        ends = f"{one.low:.4g} to {one.high:.4g} ({100 * one.level:g} %)"
        table.add_row(Text(str(name)), f"{one.value:.4g}", ends, f"{one.ess:,.0f} of {one.n:,}", Text(doubt))
    return table


def doubt_of(one: "Estimate") -> str:
    """What is to be said of a number: why it is not to be trusted, and what it leaves out."""
    return ("" if one.trusted else "not trusted: ") + "; ".join(one.warnings)


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


@ponn.command()
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
    from ponn.anysize import compare_methods, read_log

    columns["features"] = columns["features"] or None
    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    if not names:
        raise PonnError("--methods names no method; expected names with commas between, e.g. ponn-b,lr-l1.")
    settings = dict(map(parse_setting, changes))
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


@ponn.command()
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
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
    from ponn.anysize import read_same_log, worth
    from ponn.evaluation import Sampled, seed_of
    from ponn.policy import load

    loaded = load(policy)
    with chosen_engine(engine, workers, address) as where, learning_progress() as tell:
        found = worth(
            Sampled(loaded) if sample else loaded,
            read_same_log(loaded, log, where, tell, also=by),
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
        print_worth(found, gamma is not None)
    if require_improvement and found.verdict.kind != "better":
        sys.exit(3)


def print_worth(found: "Worth", asked_for_gamma: bool) -> None:
    """What a policy is worth, for people."""
    out = console()
    values = {"this policy": found.policy, "current practice": found.logging}
    if found.supported_only is not None:
        values[SUPPORTED_ONLY] = found.supported_only
    out.print(value_table(values))
    if found.subgroups is not None:
        out.print(subgroup_table(found.subgroups))
    out.print(str(found.verdict), markup=False)
    print_doubts(found, asked_for_gamma)
    for note in found.notes:
        click.echo(note, err=True)


def subgroup_table(found: "Subgroups") -> "Table":
    """Values per subgroup with intervals that hold together; what is not to be trusted says why."""
    from rich.table import Table
    from rich.text import Text

    title = f"Subgroups (all {3 * len(found.groups)} intervals hold together with {100 * found.level:g} %)"
    table = Table("subgroup", "rows", "this policy", "current practice", "difference", "", title=title)
    for one in found.groups:
        joined = f" ({one.joined} levels)" if one.joined > 1 else ""
        name, doubt = Text(f"{one.column}: {one.level}{joined}"), Text(doubt_of(one.difference))
        numbers = map(value_and_ends, (one.policy, one.logging, one.difference))
        table.add_row(name, f"{one.rows:,}", *numbers, doubt)
    return table


def value_and_ends(one: "Estimate") -> str:
    """A value and its interval in one cell."""
    return f"{one.value:.3g} ({one.low:.3g} to {one.high:.3g})"


@ponn.command("report")
@click.argument("policy", type=click.Path())
@click.argument("log", type=click.Path())
@click.option("--out", type=click.Path(), default="report.html", show_default=True, help="Where the report goes.")
@click.option("--level", type=float, default=0.95, show_default=True, help="Confidence of intervals and verdict.")
@click.option("--by", multiple=True, metavar="COL", help="Show who gains by the levels of a column; repeat.")
def report_on(policy: str, log: str, out: str, level: float, by: tuple[str, ...]) -> None:
    """Write a report on POLICY, valued on rows of LOG that it did not learn from: one HTML file that opens offline.

    \b
    Examples:
      ponn report clinic.ponn visits.csv --out report.html
      ponn report clinic.ponn visits.csv --by age --by ward
    """
    from ponn.holdout import read_same_log
    from ponn.policy import load
    from ponn.report import write_report

    loaded = load(policy)
    with learning_progress() as tell:
        write_report(loaded, read_same_log(loaded, log, also=by), out, level=level, by=by, progress=tell)
    click.echo(f"Written to {out}.", err=True)


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
@click.option("--columns", metavar="NAMES", help="Only these columns of the recommendation, e.g. action,probability.")
@click.option("--supported-only", is_flag=True, help="Leave out actions hardly ever taken in such cases.")
@click.option("--available", multiple=True, metavar="ACTION", help="Only these actions are available; repeat.")
@click.option("--reasons", is_flag=True, help="Add a column with the reasons for each recommendation, as JSON.")
@click.option("--threads", type=click.IntRange(min=1), help="Default: one per core. The result is the same.")
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
    import signal

    from ponn.anysize import recommend as write_recommendations
    from ponn.policy import RECOMMENDED, load

    if as_json and not out:
        raise click.UsageError("--json wants --out FILE: both would go to standard output.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a run that is stopped clears up like an interrupted one
    chosen = RECOMMENDED if columns is None else [name.strip() for name in columns.split(",")]
    asked["eligible"] = available or None
    with chosen_engine(engine, workers, address) as where, scoring_progress() as progress:
        target = out or sys.stdout.buffer
        asked |= {"columns": chosen, "progress": progress, "engine": where}
        done = write_recommendations(load(policy), rows, target, **asked)
    if as_json:
        about = {"out": out, "rows": done.rows, "seconds": done.seconds, "surprises": done.surprises}
        click.echo(json.dumps(about))
        return
    for name, counts in done.surprises.items():
        told = ", ".join(f"{count:,} {what}" for what, count in counts.items())
        click.echo(f"Column {name!r} holds cells unlike anything in training: {told}.", err=True)
    tell_support(done)
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
    if done.changed:
        click.echo(
            f"{done.changed:,} of {done.rows:,} recommendations are others than without --supported-only; in "
            f"{done.fell_back:,} of them nothing the policy wanted was supported, and current practice is followed.",
            err=True,
        )


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
    told: dict[str, Any] = {"actions": loaded.actions, "method": loaded.method, "settings": dict(loaded.settings)}
    told |= {"relevance": [asdict(one) for one in loaded.relevance], "provenance": dict(loaded.provenance)}
    told |= {"eligibility": loaded.eligibility and loaded.eligibility.as_json()}
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
    epochs = f", {trained['best_epoch']} epochs" if "best_epoch" in trained else ""
    out.print(
        Text(
            f"Method {policy.method}, {made['rows']['train']:,} training, {made['rows']['valid']:,} validation rows, "
            f"seed {made['seed']}{epochs}, validation loss {trained['valid_loss']:.4g}."
        )
    )
    if policy.eligibility is not None:
        for told in policy.eligibility.sentences:
            out.print(Text(f"  {told}"))
    for note in made["notes"]:
        out.print(Text(f"  {note}"))


@ponn.command()
@click.argument("policy", type=click.Path())
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; by default this machine only."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that answer.")
@click.option("--token-file", type=click.Path(), metavar="FILE", help="Requests must bring the token in this file.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="A further name of this server, as behind a proxy.")
@click.option("--sample", is_flag=True, help="Serve draws from the policy instead of the most probable action.")
@click.option(
    "--explore", type=click.FloatRange(0, 1), metavar="EPS", help="Share of rows served a supported action at random."
)
@click.option(
    "--decisions", type=click.Path(), metavar="FILE", help="Keep a decision log, one file per worker: FILE.<worker>."
)
@click.option("--report", type=click.Path(), metavar="FILE", help="An HTML report to show.")
@click.option("--max-rows", "most_rows", type=click.IntRange(min=1), default=SERVED_ROWS, show_default=True)
@click.option("--max-bytes", "most_bytes", type=click.IntRange(min=1), default=SERVED_BYTES, show_default=True)
@click.option("--access-log/--no-access-log", default=True, show_default=True, help="JSON lines on standard error.")
@click.option("--log-features", is_flag=True, help="Write feature values into the access log too.")
def serve(policy: str, host: str, port: int, workers: int, allow_host: tuple[str, ...], **asked: Any) -> None:
    """Serve POLICY over HTTP: recommendations, a page to try it, a decision log to learn from.

    The file may be replaced while the server runs: it takes up the new policy without dropping a request, and
    keeps the old one where the new one is damaged. Ctrl-C or SIGTERM stop it in order.

    \b
    Examples:
      ponn serve clinic.ponn
      ponn serve clinic.ponn --explore 0.1 --decisions decisions.jsonl --workers 2
      ponn serve clinic.ponn --host 0.0.0.0 --token-file token.txt
    \b
    Then:
      curl -X POST http://127.0.0.1:8000/recommend -H "Content-Type: application/json" -d '{"row": {"age": 61}}'
    """
    server, options = served_options(policy, **asked)
    if options.token is None and host not in server.LOOPBACK:
        click.echo(f"Anyone who reaches {host} can use this server: --token-file would ask for a token.", err=True)

    def tell(url: str) -> None:
        click.echo(f"Serving {policy} on {url} (what can be asked: {url}/docs). Ctrl-C stops it.")

    server.serve(options, host, port, workers=workers, allow_hosts=allow_host, tell=tell)


def served_options(
    policy: str, *, token_file: str | None, sample: bool, explore: float | None, **rest: Any
) -> "tuple[Any, Options]":
    """The server's module, which an extra brings, and its options."""
    from pathlib import Path

    try:
        from ponn import serve as server
    except ModuleNotFoundError as error:
        told = f"The server needs {error.name}, which is not installed: pip install 'ponn[serve]'"
        raise PonnError(told) from error
    files = {name: Path(rest.pop(name)) for name in ("decisions", "report") if rest[name] is not None}
    token = server.read_token(Path(token_file)) if token_file else None
    return server, server.Options(Path(policy), server.mode_of(sample, explore), token, **(rest | files))


@ponn.command()
@click.argument("decisions", nargs=-1, required=True, type=click.Path())
@click.option(
    "--out", required=True, type=click.Path(), help="Where the log goes (.csv .tsv .parquet .feather .jsonl)."
)
@click.option("--propensity-name", default="propensity", show_default=True, help="Column for the known propensities.")
@click.option("--keep", multiple=True, type=click.Choice(["id", "time"]), help="Keep this as a column; repeat.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def decisions(decisions: tuple[str, ...], out: str, propensity_name: str, keep: tuple[str, ...], as_json: bool) -> None:
    """Make of the decision logs of `ponn serve --decisions` a log to learn from, with known propensities.

    DECISIONS is the name that the server was given, or single files of its workers. Decisions without an outcome
    are left out and counted.

    \b
    Example:
      ponn decisions decisions.jsonl --out log.csv
    """
    from dataclasses import asdict

    from ponn.decisions import convert_decisions

    found = convert_decisions(decisions, out, propensity=propensity_name, keep=keep)
    if as_json:
        click.echo(json.dumps(asdict(found) | {"out": out}))
        return
    click.echo(
        f"{out}: {found.rows:,} of {found.decisions:,} decisions; {found.without_outcome:,} have no outcome.", err=True
    )
    for count, what in (
        (found.replaced, "outcomes were replaced by later ones"),
        (found.unknown, "outcomes belong to decisions that are in none of the files"),
        (found.torn, "files end in a line that a crash cut off; nobody was told of that decision"),
    ):
        if count:
            click.echo(f"{count:,} {what}.", err=True)
    click.echo(f"Next: ponn learn {out} {found.flags}", err=True)


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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def simulate(world: str, out: str, truth: str | None, as_json: bool, **settings: Any) -> None:
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
    if as_json:
        roles = {name: getattr(made.log.columns, name) for name in ("action", "reward", "propensity")}
        click.echo(json.dumps({"out": out, "truth": truth, "rows": len(made.log), "about": made.about, **roles}))
    else:
        tell_simulated(made, out)


def tell_simulated(made: "World", out: str) -> None:
    """What was written, and what to do next."""
    columns = made.log.columns
    flags = f"--action {columns.action} --reward {columns.reward}"
    flags += f" --propensity {columns.propensity}" if columns.propensity else ""
    click.echo(f"{out}: {len(made.log):,} rows. {made.about}", err=True)
    click.echo(f"Next: ponn check {out} {flags}", err=True)


@ponn.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    default="ponn-studio",
    show_default=True,
    help="Where files and policies are kept.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8001, show_default=True, help="0 takes a free one.")
@click.option(
    "--max-upload", type=click.IntRange(min=1), default=STUDIO_UPLOAD, show_default=True, help="MB of an upload."
)
def studio(folder: str, port: int, max_upload: int) -> None:
    """Learn and try policies in the browser; everything stays on this machine.

    \b
    Examples:
      ponn studio
      ponn studio --folder clinic --port 8080
    """
    from pathlib import Path

    try:
        from ponn.studio import run_studio
    except ModuleNotFoundError as error:
        told = f"The studio needs {error.name}, which is not installed: pip install 'ponn[learn,serve]'"
        raise PonnError(told) from error

    def tell(url: str) -> None:
        click.echo(f"The studio is open on {url} (files in {folder}). Ctrl-C closes it.")

    run_studio(Path(folder), port, max_upload * 1_000_000, tell)


@ponn.command()
@click.argument("folder", type=click.Path(file_okay=False), required=False)
@click.option("--rows", type=click.IntRange(min=200), default=10_000, show_default=True, help="Patients to simulate.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def demo(folder: str | None, rows: int, as_json: bool) -> None:
    """Run the whole way once: simulate a clinic, check its log, learn a policy, value it, recommend.

    Files go to FOLDER, by default a new temporary one. The patients are simulated, the effects invented.

    \b
    Examples:
      ponn demo
      ponn demo here --rows 2000
    """
    import tempfile
    from pathlib import Path

    place = Path(folder or tempfile.mkdtemp(prefix="ponn-demo-"))
    place.mkdir(parents=True, exist_ok=True)
    told = {step[0]: demo_step(step, as_json) for step in demo_steps(place, rows)}
    if as_json:
        click.echo(json.dumps({"folder": str(place), **told}))
        return
    click.echo("\n".join((place / "recommendations.csv").read_text().splitlines()[:6]))
    click.echo(f"Next: ponn serve {place / 'policy.ponn'}, and open http://127.0.0.1:8000", err=True)


def demo_steps(place: "Path", rows: int) -> list[list[str]]:
    """The commands of the README, with their files in one folder."""
    log, policy, report = (str(place / name) for name in ("log.csv", "policy.ponn", "report.html"))
    roles = ["--action", "regimen", "--reward", "survived"]
    advice = str(place / "recommendations.csv")
    return [
        ["simulate", "breast-cancer", "--rows", str(rows), "--out", log, "--truth", str(place / "truth.csv")],
        ["check", log, *roles],
        ["learn", log, *roles, "--set", "select=fdr", "--out", policy, "--report", report],
        ["evaluate", policy, log],
        ["recommend", policy, log, "--out", advice, "--keep", "age"],
    ]


def demo_step(words: list[str], as_json: bool) -> Any:
    """Run one command as if it had been typed; a log that cannot tell is an answer, not the end of the story."""
    from contextlib import redirect_stdout
    from io import StringIO

    typed, said = click.style(f"$ ponn {' '.join(words)}", bold=True), StringIO()
    click.echo(typed, err=True)
    try:
        with redirect_stdout(said if as_json else sys.stdout):
            ponn.main([*words, "--json"] if as_json else words, prog_name="ponn", standalone_mode=False)
    except PonnError as error:
        if words[0] != "evaluate":
            raise
        click.echo(str(error), err=True)
        return {"error": str(error)}
    return json.loads(said.getvalue()) if as_json else None


@ponn.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes SHELL complete ponn's commands and options with the Tab key.

    \b
    Examples:
      ponn completion bash >> ~/.bashrc
      ponn completion zsh >> ~/.zshrc
      ponn completion fish > ~/.config/fish/completions/ponn.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ponn, {}, "ponn", "_PONN_COMPLETE").source())
