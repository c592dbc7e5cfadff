"""The command line. Nothing heavy is imported before a command needs it."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ponn import __version__
from ponn.errors import PonnError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ponn.engine import Engine
    from ponn.holdout import Outcome
    from ponn.intervals import Estimate
    from ponn.learners import Progress
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
@click.option("--require-improvement", is_flag=True, help="Exit with status 3 unless the verdict is 'better'.")
@engine_options
@learning_options
def learn(
    log: str,
    method: str | None,
    out: str,
    require_improvement: bool,
    engine: str | None,
    workers: int | None,
    address: str | None,
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
      ponn learn visits.csv --action treatment --reward recovered --tune --set select=fdr
    """
    from ponn.anysize import learn_with_holdout, read_log

    columns["features"] = columns["features"] or None
    settings = dict(map(parse_setting, changes))
    with chosen_engine(engine, workers, address) as where, learning_progress() as tell:
        rows = read_log(log, engine=where, progress=tell, **columns)
        chosen = {"holdout": holdout, "level": level, "engine": where, "progress": tell, **settings}
        found = learn_with_holdout(rows, method, tune, seed, **chosen)
    print_passes(found.policy.provenance.get("passes", ()))
    found.policy.save(out)
    if as_json:
        made = found.policy.provenance
        told = {"policy": out, "method": found.policy.method, "rows": len(rows), "actions": found.policy.actions}
        click.echo(json.dumps(told | {"seconds": made["seconds"]} | found.as_json()))
    else:
        print_policy(found.policy)
        print_outcome(found)
        click.echo(f"Written to {out}.", err=True)
    if require_improvement and found.verdict.kind != "better":
        sys.exit(3)


@contextmanager
def learning_progress() -> "Iterator[Progress]":
    """What is being done: a bar with the time that is left on a terminal, a line for each step elsewhere."""
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


def print_outcome(found: "Outcome") -> None:
    """Values and verdict for people."""
    from rich.text import Text

    out = console()
    names = {"policy": "this policy", "logging": "current practice", "best_fixed": f"always {found.best_fixed}"}
    out.print(value_table({names[name]: one for name, one in found.value.items()}))
    out.print(Text(str(found.verdict), style="bold"))


def value_table(values: "Mapping[str, Estimate]") -> "Table":
    """Values with intervals, one line each; what is not to be trusted says why."""
    from rich.table import Table
    from rich.text import Text

    table = Table("policy", "value", "interval", "effective rows", "", title="On rows kept aside", title_justify="left")
    for name, one in values.items():
        doubt = "" if one.trusted else "not trusted: " + "; ".join(one.warnings)
        ends = f"{one.low:.4g} to {one.high:.4g} ({100 * one.level:g} %)"
        table.add_row(Text(str(name)), f"{one.value:.4g}", ends, f"{one.ess:,.0f} of {one.n:,}", Text(doubt))
    return table


@ponn.command()
@log_options
@click.option("--methods", default="ponn-b,ponn,poem,lr-l1,direct-forest", show_default=True, metavar="A,B,...")
@learning_options
def compare(
    log: str,
    methods: str,
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
    Methods: ponn-b ponn poem poem-b poem-l1 mlp-l1 lr-l1 logging banditnet ipw-forest direct-forest offset-tree
    \b
    Example:
      ponn compare visits.csv --action treatment --reward recovered --methods ponn-b,lr-l1
    """
    from ponn.holdout import compare_methods
    from ponn.log import read_log

    columns["features"] = columns["features"] or None
    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    if not names:
        raise PonnError("--methods names no method; expected names with commas between, e.g. ponn-b,lr-l1.")
    settings, rows = dict(map(parse_setting, changes)), read_log(log, **columns)
    with learning_progress() as tell:
        found = compare_methods(rows, names, tune, seed, holdout=holdout, level=level, progress=tell, **settings)
    if as_json:
        click.echo(json.dumps(found.as_json()))
        return
    out = console()
    out.print(value_table(found.comparison.values))
    for name, one in found.comparison.verdicts.items():
        out.print(f"{name}: {one.kind}", markup=False)
    out.print(f"Best on the validation rows: {found.best}", markup=False)


@ponn.command()
@click.argument("policy", type=click.Path())
@click.argument("log", type=click.Path())
@click.option(
    "--estimator", default="dr", show_default=True, help="dr, sndr, ips, snips, truncated-ips, switch-dr, dros, dm."
)
@click.option("--interval", default="normal", show_default=True, help="normal, bootstrap, bernstein, sequence.")
@click.option("--level", type=float, default=0.95, show_default=True, help="Confidence of the interval.")
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
    Example:
      ponn evaluate clinic.ponn visits.csv
    """
    from ponn.anysize import read_same_log, value_and_verdict
    from ponn.evaluation import Sampled
    from ponn.holdout import estimate_json
    from ponn.policy import load

    loaded = load(policy)
    valued = Sampled(loaded) if sample else loaded
    with chosen_engine(engine, workers, address) as where, learning_progress() as tell:
        rows = read_same_log(loaded, log, where, tell)
        found, practice, judged = value_and_verdict(
            valued,
            rows,
            estimator,
            level,
            engine=where,
            progress=tell,
            interval=interval,
            allow_low_overlap=allow_low_overlap,
        )
    if as_json:
        click.echo(json.dumps(estimate_json(found) | {"verdict": judged.kind}))
    else:
        console().print(value_table({"this policy": found, "current practice": practice}))
        console().print(str(judged), markup=False)
    if require_improvement and judged.kind != "better":
        sys.exit(3)


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
@click.option("--threads", type=click.IntRange(min=1), help="Default: one per core. The result is the same.")
@engine_options
def recommend(
    policy: str,
    rows: str,
    out: str | None,
    columns: str | None,
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

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a run that is stopped clears up like an interrupted one
    chosen = RECOMMENDED if columns is None else [name.strip() for name in columns.split(",")]
    with chosen_engine(engine, workers, address) as where, scoring_progress() as progress:
        target = out or sys.stdout.buffer
        asked |= {"columns": chosen, "progress": progress, "engine": where}
        done = write_recommendations(load(policy), rows, target, **asked)
    for name, counts in done.surprises.items():
        told = ", ".join(f"{count:,} {what}" for what, count in counts.items())
        click.echo(f"Column {name!r} holds cells unlike anything in training: {told}.", err=True)
    if out:
        speed = f"{done.rows / done.seconds:,.0f} rows per second"
        click.echo(f"{out}: {done.rows:,} rows in {done.seconds:.1f} s ({speed}).", err=True)


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
    epochs = f", {trained['best_epoch']} epochs" if "best_epoch" in trained else ""
    out.print(
        Text(
            f"Method {policy.method}, {made['rows']['train']:,} training, {made['rows']['valid']:,} validation rows, "
            f"seed {made['seed']}{epochs}, validation loss {trained['valid_loss']:.4g}."
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
