"""Learn from a log wherever its rows are: one policy, a policy with its value on rows kept aside, several methods."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ponn.engine.choice import EngineName, passes_of
from ponn.errors import PonnError
from ponn.evaluation.evaluate import POLICY, check_interval, draws, worth_on_disk
from ponn.evaluation.shard_evaluation import compare_sharded
from ponn.evaluation.valuation import CurrentPractice, FixedAction, Valued
from ponn.evaluation.verdict import both_sides
from ponn.learning import algorithm
from ponn.learning import holdout as in_memory
from ponn.learning.algorithm import VALID_SHARE
from ponn.learning.holdout import BEST_FIXED, Contest, Outcome, check_plan
from ponn.learning.shard_learning import best_fixed_action, learn_sharded
from ponn.log.log import Log
from ponn.log.sharded import ShardedLog
from ponn.methods import settings_of_each
from ponn.policy.policy import Policy

LOGGING, PRACTICE = "logging", "current practice"


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
    """Learn a policy from a log by a named method.

    In memory, 30 % of the rows (by time or group where the log has such a column) are kept to stop training and to
    tune; `ponn-dr` learns from all rows given, each in turn held out.

    Parameters
    ----------
    log
        The log, in memory or on disk.
    method
        A name in `ponn.METHODS`; default "ponn-dr".
    tune
        Whether to try the method's grid and take what is best on the rows kept for validation. Settings given are not
        tuned.
    seed
        Decides every draw; the same seed gives the same policy.
    engine
        Who works on a log on disk: "local", "ray", "spark", or an engine made beforehand.
    trainers
        Processes that train one network, on a log on disk; default this one.
    progress
        A function that is called with what is being done.
    settings
        Fields of `ponn.Settings`, e.g. `select="fdr"`, `hidden=(50,)`. One that the method does not use is refused.

    Returns
    -------
    Policy
        What recommends, explains, is stored and served.

    Examples
    --------
    >>> import ponn
    >>> log = ponn.simulate.world("actg175").log
    >>> policy = ponn.learn(log, "lr-l1")
    >>> policy
    Policy(lr-l1, 4 actions, 16 features)
    >>> len(policy.predict(log)) == len(log)
    True
    """
    if isinstance(log, Log):
        check_trainers(trainers)
        return algorithm.learn(log, method, tune, seed, progress=progress, **settings)
    workers, what = settings.pop("workers", None), ("learn", log.digest, log.reader, method, tune, seed, settings)
    with passes_of(log.holder or engine, progress, *what, workers=workers) as passes:
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
) -> Outcome:
    """Learn from a part of the log and value the policy on the rest, which nothing was chosen by."""
    if isinstance(log, Log):
        check_trainers(trainers)
        asked: dict[str, Any] = {"holdout": holdout, "level": level, "by": by, "progress": progress, "keep": keep}
        return in_memory.learn_with_holdout(log, method, tune, seed, **asked, **settings)
    check_plan(holdout, level, seed)
    if by:
        raise PonnError(
            f"The value of subgroups (by={list(by)!r}, --by) needs the rows of the log in memory: read the directory "
            "with lazy=False, without naming an engine."
        )
    workers = settings.pop("workers", None)
    what = ("learn", log.digest, log.reader, method, tune, seed, holdout, level, settings)
    with passes_of(log.holder or engine, progress, *what, workers=workers) as passes:
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
) -> Contest:
    """Learn by several methods from the same rows and value them on rows that none of them saw.

    See `ponn.learning.holdout.compare_methods`; on disk, what the methods share is done once.
    """
    if isinstance(log, Log):
        how: dict[str, Any] = {"holdout": holdout, "level": level, "estimator": estimator, "interval": interval}
        return in_memory.compare_methods(log, methods, tune, seed, **how, progress=progress, **settings)
    check_interval(interval)
    check_plan(holdout, level, seed)
    given = settings_of_each(methods, settings)
    what = ("compare", log.digest, log.reader, tuple(methods), tune, seed, holdout, level, estimator, settings)
    policies, seconds = {}, {}
    with passes_of(log.holder or engine, progress, *what) as passes:
        train, kept = log.split(1 - holdout, seed)
        for method in methods:
            started = time.perf_counter()
            policies[method] = learn_sharded(train, passes, method, tune, seed, **given[method])
            seconds[method] = time.perf_counter() - started
        sides: dict[str, Valued] = {**policies, PRACTICE: CurrentPractice()}
        encoding = policies[methods[0]].encoding
        found = compare_sharded(sides, kept, encoding, passes, estimator, level, seed=seed)
        valid = train.split(1 - VALID_SHARE, seed)[1]
        chosen = compare_sharded(policies, valid, encoding, passes, seed=seed).values
    sign = -1.0 if log.minimize else 1.0
    best = max(policies, key=lambda name: sign * chosen[name].value)
    return Contest(policies, found, seconds, best)
