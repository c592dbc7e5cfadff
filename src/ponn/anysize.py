"""The public functions for logs of any size: in memory where they fit, shard by shard where they do not.

A directory of Parquet files with at most SMALL_BYTES of data is read into memory, unless an engine is named; a larger
one stays on disk. Everything else is read into memory.
"""

import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponn import evaluation, log, readiness
from ponn.encode import Encoding
from ponn.engine import Engine, Local, Passes, Tell, run_folder
from ponn.errors import LogError, PonnError
from ponn.evaluation import Comparison, CurrentPractice, FixedAction, Sampled, Valued
from ponn.files import WRITERS
from ponn.frames import is_frame, read_frame
from ponn.intervals import Estimate, LowOverlap, both_sides
from ponn.log import Log
from ponn.policy import Policy
from ponn.readiness import ActionCount, Check, EligibleCount, FeatureLine
from ponn.remote import is_folder, is_uri, place_of
from ponn.scoring import Asked, Scored, write_recommendations
from ponn.settings import Settings, method_named
from ponn.shard_evaluation import compare_sharded
from ponn.shard_scoring import recommend_directory
from ponn.sharded import ShardedLog, read_sharded
from ponn.shards import directory_digest, find_pieces, unpacked_bytes
from ponn.worth import Worth
from ponn.worth import worth as worth_in_memory

if TYPE_CHECKING:
    from ponn.holdout import Contest, Outcome

POLICY, LOGGING, PRACTICE, DRAWN = "policy", "logging", "current practice", "drawn"
SMALL_BYTES = 64 << 20  # learning takes about ten times the bytes of its rows
EngineName = str | Engine | None


def engine_of(engine: EngineName = None, workers: int | None = None, address: str | None = None) -> Engine:
    """An engine by its name: local (default), ray or spark."""
    if engine is not None and not isinstance(engine, str):
        return engine
    if engine in (None, "local"):
        return Local(workers)
    from ponn.clusters import OnRay, OnSpark

    clusters: dict[str | None, type[OnRay] | type[OnSpark]] = {"ray": OnRay, "spark": OnSpark}
    if engine not in clusters:
        raise PonnError(f"There is no engine {engine!r}; expected local, ray or spark.")
    return clusters[engine](workers, address)


@contextmanager
def passes_of(engine: EngineName, say: Tell | None, *what: Any) -> Iterator[Passes]:
    """Passes whose results are kept until they are complete; workers that were started here end here."""
    chosen = engine_of(engine)
    passes = Passes(chosen, run_folder(*what))
    if say is not None:
        passes.say = say
    try:
        yield passes
    finally:
        if chosen is not engine:
            chosen.close()
    passes.forget()


# Reading -------------------------------------------------------------------------------------------------


def is_directory(source: Any) -> bool:
    """Is it the path of a directory? What cannot be opened is none; the readers say what is wrong with it."""
    if is_uri(source):
        return is_folder(source)
    try:
        found = place_of(source) if isinstance(source, str | os.PathLike) else None
        return isinstance(found, Path) and found != Path() and found.is_dir()
    except (OSError, ValueError):
        return False


def is_large(source: Any) -> bool:
    """Is it a directory elsewhere, or with more data than should be in memory?"""
    return is_directory(source) and (is_uri(source) or unpacked_bytes(find_pieces(place_of(source))) > SMALL_BYTES)


def read_log(
    source: Any, *, lazy: bool | None = None, engine: EngineName = None, progress: Any = None, **columns: Any
) -> Log | ShardedLog:
    """Read a table of past decisions and validate it; keywords as in `ponn.log.read_log`.

    lazy: a directory of Parquet files stays on disk and is looked at by one pass; default, where it is large or an
    engine is named. engine: who makes that pass, default local processes. A Spark DataFrame stays where it is.
    """
    if is_frame(source):
        with passes_of(engine, progress, "read", str(source), plain_columns(columns)) as passes:
            return read_frame(source, passes, **plain_columns(columns))
    if is_uri(source) and (lazy is False or not is_directory(source)):
        raise PonnError(
            f"{source} is not a folder of Parquet files that can stay where it is: expected the URI of a folder, and "
            "not lazy=False. Copy other files to this machine."
        )
    source = place_of(source) if isinstance(source, str) and source.startswith("file://") else source
    if lazy and not is_directory(source):
        raise PonnError(f"lazy=True is for directories of Parquet files; {str(source)[:80]!r} is read into memory.")
    if not is_directory(source) or lazy is False or (lazy is None and engine is None and not is_large(source)):
        return as_directory(log.read_log(source, **columns), source)
    with passes_of(engine, progress, "read", str(source), plain_columns(columns)) as passes:
        return read_sharded(source, passes, **plain_columns(columns))


def plain_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `read_log` with every default filled in."""
    given = inspect.signature(log.read_log).bind("", **columns)
    given.apply_defaults()
    found = {name: value for name, value in given.arguments.items() if name not in ("source", "keep")}
    if given.arguments["keep"]:
        raise PonnError(
            "Subgroups (keep; --by) are known only of logs in memory: read the directory with lazy=False, without "
            "naming an engine."
        )
    return found


# Learning ------------------------------------------------------------------------------------------------


def learn(
    log: Log | ShardedLog,
    method: str | None = None,
    tune: bool = False,
    seed: int = 0,
    *,
    engine: EngineName = None,
    trainers: int | None = None,
    progress: Any = None,
    **settings: Any,
) -> Policy:
    """Learn a policy from a log by a named method; see `ponn.learning.learn`, and for logs on disk `learn_sharded`."""
    from ponn.learning import learn as learn_in_memory
    from ponn.shard_learning import learn_sharded

    if isinstance(log, Log):
        check_trainers(trainers)
        return learn_in_memory(log, method, tune, seed, progress=progress, **settings)
    settings.pop("workers", None)
    engine = log.holder or engine
    with passes_of(engine, progress, "learn", log.digest, log.reader, method, tune, seed, settings) as passes:
        return learn_sharded(log, passes, method, tune, seed, trainers=trainers, **settings)


def check_trainers(trainers: int | None) -> None:
    """Rows in memory are learned from by this process."""
    if trainers is not None:
        raise PonnError(
            "Several processes train one network (trainers, --trainers) only on a log on disk: name an engine to keep "
            "the directory there."
        )


def learn_with_holdout(
    log: Log | ShardedLog,
    method: str | None = None,
    tune: bool = False,
    seed: int = 0,
    *,
    holdout: float = 0.3,
    level: float = 0.95,
    engine: EngineName = None,
    trainers: int | None = None,
    progress: Any = None,
    keep: Callable[[Policy], None] | None = None,
    by: Sequence[str] = (),
    **settings: Any,
) -> "Outcome":
    """Learn from a part of the log and value the policy on the rest, which nothing was chosen by."""
    from ponn.holdout import BEST_FIXED, Outcome, check_plan
    from ponn.holdout import learn_with_holdout as learn_in_memory
    from ponn.shard_learning import best_fixed_action, learn_sharded

    if isinstance(log, Log):
        check_trainers(trainers)
        asked: dict[str, Any] = {"holdout": holdout, "level": level, "by": by, "progress": progress, "keep": keep}
        return learn_in_memory(log, method, tune, seed, **asked, **settings)
    check_plan(holdout, level, seed)
    what = ("learn", log.digest, log.reader, method, tune, seed, holdout, level, settings)
    with passes_of(log.holder or engine, progress, *what) as passes:
        train, kept = log.split(1 - holdout, seed)
        policy = learn_sharded(train, passes, method, tune, seed, trainers=trainers, **settings)
        if keep is not None:
            keep(policy)
        action = best_fixed_action(train, policy)
        rivals: dict[str, Valued] = {POLICY: policy, LOGGING: CurrentPractice(), BEST_FIXED: FixedAction(action)}
        rivals |= draws(policy, kept)
        paired = both_sides(level)  # the level of verdicts
        found = compare_sharded(rivals, kept, policy.encoding, passes, level=level, paired_level=paired, seed=seed)
        over_fixed = found.differences[POLICY, BEST_FIXED].as_gain(log.minimize)
        worth = worth_on_disk(found, LOGGING, len(kept))
        value = {name: found.values[name] for name in (POLICY, LOGGING, BEST_FIXED)} | worth.variants
        outcome = Outcome(policy, value, action, over_fixed, worth)
        source = {**policy.provenance["source"], "whole": log.digest, "holdout": holdout, "seed": seed}
        provenance = {**policy.provenance, "source": source, "passes": passes.summary()}
    return replace(outcome, policy=replace(policy, provenance=provenance, evaluation=outcome.as_json()))


def compare_methods(
    log: Log | ShardedLog,
    methods: Sequence[str],
    tune: bool = False,
    seed: int = 0,
    *,
    holdout: float = 0.3,
    level: float = 0.95,
    estimator: str = "dr",
    interval: str = "normal",
    engine: EngineName = None,
    progress: Any = None,
    **settings: Any,
) -> "Contest":
    """Learn by several methods from the same rows and value them on rows that none of them saw.

    See `ponn.holdout.compare_methods`; on disk, what the methods share is done once.
    """
    from ponn import holdout as in_memory
    from ponn.learning import VALID_SHARE
    from ponn.shard_learning import learn_sharded

    if isinstance(log, Log):
        how: dict[str, Any] = {"holdout": holdout, "level": level, "estimator": estimator, "interval": interval}
        return in_memory.compare_methods(log, methods, tune, seed, **how, progress=progress, **settings)
    check_interval(interval)
    in_memory.check_plan(holdout, level, seed)
    for method in methods:
        method_named(method)
    what = ("compare", log.digest, log.reader, tuple(methods), tune, seed, holdout, level, estimator, settings)
    policies, seconds = {}, {}
    with passes_of(log.holder or engine, progress, *what) as passes:
        train, kept = log.split(1 - holdout, seed)
        for method in methods:
            started = time.perf_counter()
            policies[method] = learn_sharded(train, passes, method, tune, seed, **settings)
            seconds[method] = time.perf_counter() - started
        sides: dict[str, Valued] = {**policies, PRACTICE: CurrentPractice()}
        encoding = policies[methods[0]].encoding
        found = compare_sharded(sides, kept, encoding, passes, estimator, level, seed=seed)
        valid = train.split(1 - VALID_SHARE, seed)[1]
        chosen = compare_sharded(policies, valid, encoding, passes, seed=seed).values
    sign = -1.0 if log.minimize else 1.0
    best = max(policies, key=lambda name: sign * chosen[name].value)
    return in_memory.Contest(policies, found, seconds, best)


# Evaluation ----------------------------------------------------------------------------------------------


def read_same_log(
    policy: Policy, path: Any, engine: EngineName = None, progress: Any = None, also: Sequence[str] = ()
) -> Log | ShardedLog:
    """A log read with the columns, the reward's range and its direction that the policy was learned with.

    also: columns that the policy does not look at, kept to make subgroups by.
    """
    by_hash = policy.provenance.get("source", {}).get("split") == "hash" and is_directory(path)
    if not by_hash and engine is None and not is_large(path):
        found = evaluation.read_same_log(policy, path, also)
        return as_directory(found, path)
    lazy = True if by_hash else None
    return read_log(path, lazy=lazy, engine=engine, progress=progress, **evaluation.same_columns(policy))


def as_directory(found: Log, source: Any) -> Log:
    """The log, which is known by its directory where it comes from one."""
    if is_directory(source):
        found.__dict__["digest"] = directory_digest(place_of(source))
    return found


def unseen_part(policy: Valued, log: ShardedLog) -> ShardedLog:
    """The rows that the policy did not learn from, where the log is the one that learning had split."""
    source = evaluation.source_of(policy)
    if source.get("whole") != log.digest:
        return log
    if source.get("split") != "hash":
        raise PonnError(
            "The policy was learned from this directory in memory, and what was kept aside then is only found there: "
            "evaluate it without naming an engine."
        )
    return log.split(1 - source["holdout"], source["seed"])[1]


def evaluate(
    policy: Valued,
    log: Log | ShardedLog,
    estimator: str = "dr",
    level: float = 0.95,
    *,
    engine: EngineName = None,
    progress: Any = None,
    allow_low_overlap: bool = False,
    **options: Any,
) -> Estimate:
    """The value of a policy on a log it never saw; see `ponn.evaluation.evaluate`, whose options these are.

    A log on disk knows the estimators dr, sndr, ips, snips and dm and the normal interval, for learned policies.
    """
    if isinstance(log, Log):
        return evaluation.evaluate(policy, log, estimator, level, allow_low_overlap=allow_low_overlap, **options)
    found = compare_on_disk(policy, log, estimator, level, engine, progress, **options)
    return refused(found.values[POLICY], allow_low_overlap)


def worth(
    policy: Valued,
    log: Log | ShardedLog,
    estimator: str = "dr",
    level: float = 0.95,
    *,
    engine: EngineName = None,
    progress: Any = None,
    by: Sequence[str] = (),
    gamma: float | None = None,
    allow_low_overlap: bool = False,
    **options: Any,
) -> Worth:
    """What a policy is worth beside current practice; see `ponn.worth.worth`.

    Of a log on disk, value, verdict and the value of draws: subgroups and hidden confounding need its rows in memory.
    """
    if isinstance(log, Log):
        asked: dict[str, Any] = {"by": by, "gamma": gamma, "allow_low_overlap": allow_low_overlap}
        return worth_in_memory(policy, log, estimator, level, **asked, **options)
    if by or gamma:
        raise PonnError("Subgroups (by, --by) and hidden confounding (gamma, --gamma) need the log in memory.")
    found = compare_on_disk(policy, log, estimator, level, engine, progress, **options)
    refused(found.values[POLICY], allow_low_overlap)
    return worth_on_disk(found, PRACTICE, len(log))


def check_interval(interval: str) -> None:
    """Only normal intervals follow from sums."""
    if interval != "normal":
        raise PonnError(f"The interval {interval!r} needs the log in memory (lazy=False); expected normal.")


def worth_on_disk(found: Comparison, practice: str, rows: int) -> Worth:
    """Value, verdict and what draws are worth, where that differs; the rest is not known of logs on disk."""
    value, drawn = found.values[POLICY], found.values.get(DRAWN)
    return Worth(rows, value, found.values[practice], found.verdicts[POLICY], drawn=None if drawn == value else drawn)


def draws(policy: Valued, log: ShardedLog) -> dict[str, Valued]:
    """Drawing from a learned policy's probabilities; may take any of its actions, so the log must have them all."""
    if not isinstance(policy, Policy) or not set(policy.actions) <= set(log.actions):
        return {}
    return {DRAWN: Sampled(policy)}


def refused(found: Estimate, allow_low_overlap: bool) -> Estimate:
    """The estimate, unless it cannot be trusted."""
    if not found.trusted and not allow_low_overlap:
        raise LowOverlap(found)
    return found


def compare_on_disk(
    policy: Valued,
    log: ShardedLog,
    estimator: str = "dr",
    level: float = 0.95,
    engine: EngineName = None,
    progress: Any = None,
    *,
    settings: Settings | None = None,
    seed: int = 0,
    interval: str = "normal",
) -> Comparison:
    """The value of a policy on a log on disk beside current practice."""
    learned = getattr(policy, "policy", policy)
    if not isinstance(learned, Policy):
        raise PonnError("On a log on disk only policies that were learned are valued; read others with lazy=False.")
    check_interval(interval)
    rows = unseen_part(policy, log)
    what = ("evaluate", log.digest, rows.reader, learned.digest, estimator, level, asdict(settings or Settings()), seed)
    rivals: dict[str, Valued] = {POLICY: policy, PRACTICE: CurrentPractice(), **draws(policy, rows)}
    with passes_of(log.holder or engine, progress, *what) as passes:
        found = compare_sharded(rivals, rows, learned.encoding, passes, estimator, level, settings, seed=seed)
    if evaluation.source_of(policy).get("digest") != log.digest:
        return found
    doubted = {
        name: found.values[name].distrusted(evaluation.LEARNED_FROM_THESE)
        for name in (POLICY, DRAWN)
        if name in found.values
    }
    return replace(found, values={**found.values, **doubted})


# Looking -------------------------------------------------------------------------------------------------


def check(source: Any, *, engine: EngineName = None, progress: Any = None, **columns: Any) -> Check:
    """Look at a table as `read_log` would read it, without refusing it; of a large directory, counts are of all rows
    and what needs rows in memory is looked at in a sample."""
    if engine is None and not is_large(source) and not is_frame(source):
        return readiness.check(source, **columns)
    try:
        found = read_log(source, lazy=True, engine=engine, progress=progress, **columns)
    except LogError as problem:
        rows = source.count() if is_frame(source) else sum(one.rows for one in find_pieces(place_of(source)))
        return Check(rows, (), (), (), (), (), (), None, False, str(problem))
    assert isinstance(found, ShardedLog)
    return check_sharded(found)


def check_sharded(found: ShardedLog) -> Check:
    """What is in a log on disk."""
    survey, sample = found.survey, found.sample.log
    encoding = Encoding(
        tuple(found.fit_feature(name, survey.columns[name], 100, Settings()) for name in found.features), survey.rows
    )
    actions = tuple(ActionCount(label, rows, total / rows) for label, (rows, total) in sorted(survey.actions.items()))
    profiles = {name: one.profile(name) for name, one in survey.columns.items()}
    lines: tuple[FeatureLine, ...] = tuple(readiness.describe(one, profiles[one.name]) for one in encoding.features)
    step_a, everyone, told = readiness.look_at_overlap(sample, encoding)
    note = f"What rows hold together was looked at in a random sample of {len(sample):,} of {survey.rows:,} rows."
    return Check(
        rows=survey.rows,
        actions=actions,
        features=lines,
        notes=(*found.notes, *encoding.notes, note, *told),
        suspicious=(
            *readiness.suspicious_features(sample, encoding),
            *readiness.odd_texts(sample),
            *(() if step_a is None else readiness.doubts(step_a)),
        ),
        overlap=() if step_a is None else tuple(readiness.action_overlap(step_a)),
        balance=() if step_a is None else tuple(readiness.worst_balance(step_a, encoding)),
        unsupported=None if step_a is None else step_a.unsupported,
        everyone=everyone,
        eligible=tuple(EligibleCount(label, survey.eligible[label]) for label in found.actions if survey.eligible),
        **readiness.verdict(sample, actions, survey.rows),
    )


# Recommending --------------------------------------------------------------------------------------------


def recommend(
    policy: Policy,
    rows: str | os.PathLike[str],
    out: Any,
    *,
    engine: EngineName = None,
    progress: Any = None,
    threads: int | None = None,
    **asked: Any,
) -> Scored:
    """Recommend an action for each row of a file or directory; see `ponn.scoring.write_recommendations`.

    From a directory to a name without a known ending: a directory with a file of answers for each file of rows.
    """
    if not is_directory(rows) or not isinstance(out, str | os.PathLike) or Path(out).suffix in WRITERS:
        return write_recommendations(policy, rows, out, threads=threads, progress=progress, **asked)
    chosen = engine_of(engine, threads)
    try:
        asked |= {name: tuple(asked[name]) for name in ("keep", "columns") if name in asked}
        return recommend_directory(policy, rows, out, Passes(chosen, None, told_rows(progress)), Asked(**asked))
    finally:
        if chosen is not engine:
            chosen.close()


def told_rows(progress: Any) -> Tell:
    """Progress of passes for those who want to know rows and rows in all."""

    def say(message: str, done: int = 0, total: int = 0) -> None:
        if progress and total:
            progress(done, total)

    return say
