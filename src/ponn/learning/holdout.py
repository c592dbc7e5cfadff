"""Learning with a holdout: rows that no step of learning sees say what the policy is worth and whether it is better."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ponn.errors import PonnError
from ponn.evaluation.estimators import snips, terms
from ponn.evaluation.intervals import Estimate, estimate_json
from ponn.evaluation.subgroups import levels_of_columns
from ponn.evaluation.valuation import (
    Asked,
    Comparison,
    CurrentPractice,
    FixedAction,
    Nuisances,
    Valued,
    check_level,
    check_options,
    compare_policies,
    gain_over,
    nuisances,
    probabilities_on,
    scored,
    value_of,
    value_on,
)
from ponn.evaluation.verdict import Verdict, told_over_fixed, verdict
from ponn.evaluation.worth import Worth, worth
from ponn.learning.algorithm import VALID_SHARE, learn
from ponn.learning.learners import Progress, silent
from ponn.log.acquaintance import seal
from ponn.log.encoding import Encoding
from ponn.log.log import Log
from ponn.methods import settings_of_each
from ponn.policy.policy import Policy
from ponn.settings import check_seed
from ponn.steps.propensity import propensities

BEST_FIXED = "best_fixed"


@dataclass(frozen=True, eq=False)
class Outcome:
    """A policy, and what it is worth on rows it never saw beside current practice and the best single action."""

    policy: Policy
    value: Mapping[str, Estimate]  # of "policy", "logging", "best_fixed" and the variants of `Worth`
    best_fixed: Any  # the action
    over_best_fixed: Estimate  # the paired gain over giving everyone that action: above 0 is good, also with minimize
    worth: Worth
    kept: Log | None = None  # the rows it was valued on; None where they stayed on disk
    corrections: Nuisances | None = None  # and with what

    @property
    def verdict(self) -> Verdict:
        """Is the policy better than current practice?"""
        return self.worth.verdict

    def over_best_fixed_json(self) -> dict[str, Any]:
        """The gain over one action for all in plain values, with its verdict and the sentence that is told."""
        gain = self.over_best_fixed
        return estimate_json(gain) | {"verdict": verdict(gain).kind, "told": self.told_over_best_fixed}

    @property
    def told_over_best_fixed(self) -> str:
        """Whether the policy is better than one action for all, in a sentence."""
        return told_over_fixed(self.over_best_fixed, str(self.best_fixed))

    def as_json(self) -> dict[str, Any]:
        """value, verdict and what speaks against them in plain values, in the shape that `ponn learn --json` prints."""
        value = {name: estimate_json(one) for name, one in self.value.items()}
        value[BEST_FIXED]["action"] = self.best_fixed
        told = {"value": value, "verdict": self.verdict.kind, "rows_needed": self.verdict.rows_needed}
        told["over_best_fixed"] = self.over_best_fixed_json()
        subgroups = self.worth.subgroups
        return told | self.worth.doubts_json() | ({} if subgroups is None else {"subgroups": subgroups.as_json()})


def learn_with_holdout(
    log: Log,
    method: str | None = None,
    tune: bool = False,
    seed: int = 0,
    *,
    holdout: float = 0.3,
    level: float = 0.95,
    by: Sequence[str] = (),
    progress: Progress | None = None,
    keep: Callable[[Policy], None] | None = None,
    **settings: Any,
) -> Outcome:
    """Learn from a part of the log and value the policy on the rest, which nothing was chosen by.

    by: columns whose subgroups are valued too, see `value_by_group`.
    keep: is given the policy as soon as it is learned, before it is valued, so that nothing can lose it.
    """
    say = progress or silent
    levels_of_columns(log, by)  # what is wrong is told now, not after hours of learning
    check_plan(holdout, level, seed)
    first, rest = log.split_rows(1 - holdout, seed)
    train, kept = log.take(first), log.take(rest)
    policy = learn(train, method, tune, seed, progress=progress, **settings)
    source = policy.provenance["source"] | {"whole": seal(log), "holdout": holdout, "seed": seed}
    policy = replace(policy, provenance=dict(policy.provenance) | {"source": source})
    if keep is not None:
        keep(policy)
    say("Valuing the policy on rows it never saw")
    outcome = valued(policy, best_fixed_action(train), kept, level, seed, by)
    return replace(outcome, policy=replace(policy, evaluation=outcome.as_json()))


def check_plan(holdout: Any, level: float, seed: Any) -> None:
    """Raise PonnError for what would only be found wrong after hours of learning."""
    check_level(level)
    check_seed(seed)
    if not isinstance(holdout, int | float | np.number) or not 0 < holdout < 1:
        raise PonnError(f"holdout is {holdout!r}; expected the share of the rows to keep aside, e.g. 0.3.")


def valued(policy: Policy, best_fixed: Any, kept: Log, level: float, seed: int, by: Sequence[str] = ()) -> Outcome:
    """The policy beside current practice and the best single action on rows that nothing was chosen by."""
    fitted = nuisances(kept, seed=seed)
    found = worth(policy, kept, level=level, by=by, allow_low_overlap=True, corrections=fitted, seed=seed)
    asked, fixed = Asked(level=level, seed=seed), scored(FixedAction(best_fixed), kept, fitted)
    value = {"policy": found.policy, "logging": found.logging, BEST_FIXED: value_of(fixed, asked)}
    over_fixed = gain_over(scored(policy, kept, fitted), fixed, asked)
    return Outcome(policy, value | found.variants, best_fixed, over_fixed, found, kept, fitted)


def best_fixed_action(log: Log) -> Any:
    """Of the actions taken in these rows, the one with the highest self-normalised IPS value."""
    p = propensities(log, Encoding.fit(log)).p
    taken = [log.actions[a] for a in np.unique(log.A)]
    return max(taken, key=lambda action: fixed_value(action, log, p))


def fixed_value(action: Any, log: Log, p: np.ndarray) -> float:
    """What giving everyone this action would have brought, by self-normalised IPS."""
    h = probabilities_on(FixedAction(action), log)
    return snips(terms(h, log.A, log.R, p, None, log.weight)).value


# Several methods -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Contest:
    """Several methods on one log: values on rows none of them saw, and the best by validation rows."""

    policies: Mapping[str, Policy]
    comparison: Comparison
    seconds: Mapping[str, float]
    best: str

    def as_json(self) -> dict[str, Any]:
        """In the shape that `ponn compare --json` prints."""
        methods = [
            {"method": name, **estimate_json(self.comparison.values[name]), "seconds": self.seconds.get(name, 0.0)}
            for name in self.comparison.values
        ]
        verdicts = {name: one.kind for name, one in self.comparison.verdicts.items()}
        told = [one | {"verdict": verdicts.get(one["method"])} for one in methods]
        pairs = self.comparison.differences.items()
        differences = [{"method": one, "minus": other, **estimate_json(gain)} for (one, other), gain in pairs]
        return {"methods": told, "best": self.best, "differences": differences}


def compare_methods(
    log: Log,
    methods: Sequence[str],
    tune: bool = False,
    seed: int = 0,
    *,
    holdout: float = 0.3,
    level: float = 0.95,
    estimator: str = "dr",
    interval: str = "normal",
    progress: Progress | None = None,
    **settings: Any,
) -> Contest:
    """Learn by several methods from the same rows and value them on rows that none of them saw.

    estimator and interval as in `evaluate`; differences between the methods are paired, each interval by itself.
    `best` is chosen by the doubly robust value on the validation rows, so that the choice does not flatter its value.
    """
    say = progress or silent
    given = settings_of_each(methods, settings)
    check_plan(holdout, level, seed)
    check_options(log, estimator, level, interval)
    first, rest = log.split_rows(1 - holdout, seed)
    train, kept = log.take(first), log.take(rest)
    policies, seconds = {}, {}
    for number, method in enumerate(methods, 1):
        say(f"{method} ({number} of {len(methods)})")
        started = time.perf_counter()
        policies[method] = learn(train, method, tune, seed, progress=progress, **given[method])
        seconds[method] = time.perf_counter() - started
    say("Valuing all of them on rows that none of them saw")
    sides: dict[str, Valued] = {**policies, "current practice": CurrentPractice()}
    found = compare_policies(sides, kept, estimator, level, interval=interval, seed=seed)
    return Contest(policies, found, seconds, best_by_validation(policies, train, seed))


def best_by_validation(policies: Mapping[str, Policy], train: Log, seed: int) -> str:
    """The method whose policy has the highest doubly robust value on the rows kept for validation."""
    valid = train.take(train.split_rows(1 - VALID_SHARE, seed)[1])
    fitted = nuisances(valid, seed=seed)
    sign = -1.0 if train.minimize else 1.0
    worth = {name: sign * validation_value(one, valid, fitted) for name, one in policies.items()}
    return max(worth, key=lambda name: np.nan_to_num(worth[name], nan=-np.inf))


def validation_value(policy: Policy, valid: Log, fitted: Nuisances) -> float:
    """The value on the validation rows; what learned from those too brings its value on rows held out in turn."""
    own = policy.provenance["training"].get("cross_fitted_value")
    return float(value_on(policy, valid, fitted, "dr", 0.95).value if own is None else policy.in_units(np.asarray(own)))
