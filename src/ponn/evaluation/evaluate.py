"""What a policy is worth on a log, wherever its rows are; and a log read as a policy's own was."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ponn.engine.choice import EngineName, passes_of
from ponn.errors import PonnError
from ponn.evaluation import valuation
from ponn.evaluation.intervals import Estimate, LowOverlap
from ponn.evaluation.shard_evaluation import compare_sharded
from ponn.evaluation.valuation import Comparison, CurrentPractice, Sampled, Valued
from ponn.evaluation.worth import Worth
from ponn.evaluation.worth import worth as worth_in_memory
from ponn.log.acquaintance import seals
from ponn.log.log import Log
from ponn.log.reading import as_directory, is_directory, is_large, read_log
from ponn.log.sharded import ShardedLog
from ponn.policy.policy import Policy
from ponn.settings import Settings

POLICY, PRACTICE, DRAWN = "policy", "current practice", "drawn"


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
    """Return the value of a policy on a log it never saw, in the log's unit, with an interval.

    Parameters
    ----------
    policy
        A learned policy, valued as it recommends; `Sampled(policy)`, valued as it draws; `SupportedOnly(policy)`;
        `FixedAction("AC")`; `CurrentPractice()`; probabilities [n, k], or a function from rows to them.
    log
        The log. On the log that `learn` had split, only the rows kept aside are used.
    estimator
        "dr" (doubly robust, default), "sndr", "ips", "snips", "truncated-ips", "switch-dr", "dros" or "dm". On disk the
        first two, "ips", "snips" and "dm", for learned policies.
    level
        Of the interval.
    engine, progress
        As in `learn`.
    allow_low_overlap
        Whether to return, marked, a number that cannot be trusted, instead of refusing it.
    options
        `interval`: "normal" (default), "bootstrap", "bernstein" or "sequence" (the last two with "ips" or
        "truncated-ips"; on disk only the first). `settings`, `seed`: of what is fitted to correct the value.
        `parameter`, `corrections`: in memory, of the estimators that have one, and what is fitted already.

    Returns
    -------
    Estimate
        `value`, `low`, `high`, `ess` (effective rows), `trusted`, `warnings`.

    Raises
    ------
    LowOverlap
        Where the log holds too little of what the policy would do; the number is in the exception.

    Examples
    --------
    >>> import ponn
    >>> train, test = ponn.simulate.world("actg175").log.split(0.7, seed=0)
    >>> policy = ponn.learn(train, "lr-l1")
    >>> found = ponn.evaluate(policy, test)
    >>> found.low < found.value < found.high, found.trusted
    (True, True)
    >>> ponn.evaluate(ponn.CurrentPractice(), test).estimator
    'mean'
    """
    if isinstance(log, Log):
        return valuation.evaluate(policy, log, estimator, level, allow_low_overlap=allow_low_overlap, **options)
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
    """What a policy is worth beside current practice; see `ponn.evaluation.worth.worth`.

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


def read_same_log(
    policy: Policy, path: Any, engine: EngineName = None, progress: Any = None, also: Sequence[str] = ()
) -> Log | ShardedLog:
    """A log read with the columns, the reward's range and its direction that the policy was learned with.

    also: columns that the policy does not look at, kept to make subgroups by.
    """
    by_hash = policy.provenance.get("source", {}).get("split") == "hash" and is_directory(path)
    if not by_hash and engine is None and not is_large(path):
        found = valuation.read_same_log(policy, path, also)
        return as_directory(found, path)
    lazy = True if by_hash else None
    return read_log(path, lazy=lazy, engine=engine, progress=progress, **valuation.same_columns(policy))


def unseen_part(policy: Valued, log: ShardedLog) -> ShardedLog:
    """The rows that the policy did not learn from, where the log is the one that learning had split."""
    source = valuation.source_of(policy)
    if not seals(source.get("whole"), log):
        return log
    if source.get("split") != "hash":
        raise PonnError(
            "The policy was learned from this directory in memory, and what was kept aside then is only found there: "
            "evaluate it without naming an engine."
        )
    return log.split(1 - source["holdout"], source["seed"])[1]


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
    parameter: float | None = None,
) -> Comparison:
    """The value of a policy on a log on disk beside current practice."""
    learned = getattr(policy, "policy", policy)
    if not isinstance(learned, Policy):
        raise PonnError("On a log on disk only policies that were learned are valued; read others with lazy=False.")
    check_interval(interval)
    if parameter is not None:
        raise PonnError(f"The parameter {parameter:g} belongs to estimators that need the log in memory (lazy=False).")
    rows = unseen_part(policy, log)
    what = ("evaluate", log.digest, rows.reader, learned.digest, estimator, level, asdict(settings or Settings()), seed)
    rivals: dict[str, Valued] = {POLICY: policy, PRACTICE: CurrentPractice(), **draws(policy, rows)}
    with passes_of(log.holder or engine, progress, *what) as passes:
        found = compare_sharded(rivals, rows, learned.encoding, passes, estimator, level, settings, seed=seed)
    doubts = known_on_disk(learned, log, rows)
    doubted = {name: found.values[name].distrusted(*doubts) for name in (POLICY, DRAWN) if name in found.values}
    return replace(found, values={**found.values, **doubted})


def known_on_disk(policy: Policy, log: ShardedLog, rows: ShardedLog) -> tuple[str, ...]:
    """Whether the policy learned from these rows, as a sample of them tells; rows: the part that is valued."""
    if seals(valuation.source_of(policy).get("digest"), log):
        return (valuation.LEARNED_FROM_THESE,)
    return valuation.known_among(policy, rows.sample.log)
