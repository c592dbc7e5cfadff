"""Learning with a holdout: rows that no step of learning sees say what the policy is worth and whether it is better."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ponn.encode import Encoding
from ponn.estimators import snips, terms
from ponn.evaluation import (
    Comparison,
    CurrentPractice,
    FixedAction,
    Nuisances,
    Valued,
    compare_policies,
    nuisances,
    probabilities_on,
    value_on,
)
from ponn.intervals import Estimate, Verdict
from ponn.learners import Progress, silent
from ponn.learning import VALID_SHARE, learn
from ponn.log import Log, read_log
from ponn.policy import Policy
from ponn.propensity import propensities
from ponn.settings import method_named

POLICY, LOGGING, BEST_FIXED = "policy", "logging", "best_fixed"


@dataclass(frozen=True, eq=False)
class Outcome:
    """A policy, and what it is worth on rows it never saw beside current practice and the best single action."""

    policy: Policy
    value: Mapping[str, Estimate]  # of "policy", "logging", "best_fixed"
    best_fixed: Any  # the action
    verdict: Verdict

    def as_json(self) -> dict[str, Any]:
        """value and verdict in plain values, in the shape that `ponn learn --json` prints."""
        value = {name: estimate_json(one) for name, one in self.value.items()}
        value[BEST_FIXED]["action"] = self.best_fixed
        return {"value": value, "verdict": self.verdict.kind}


def estimate_json(found: Estimate) -> dict[str, Any]:
    """An estimate in plain values."""
    names = ("value", "low", "high", "n", "ess", "estimator", "level", "interval", "trusted")
    return {name: getattr(found, name) for name in names} | {"warnings": list(found.warnings)}


def learn_with_holdout(
    log: Log,
    method: str | None = None,
    tune: bool = False,
    seed: int = 0,
    *,
    holdout: float = 0.3,
    level: float = 0.95,
    progress: Progress | None = None,
    **settings: Any,
) -> Outcome:
    """Learn from a part of the log and value the policy on the rest, which nothing was chosen by."""
    say = progress or silent
    first, rest = log.split_rows(1 - holdout, seed)
    train, kept = log.take(first), log.take(rest)
    policy = learn(train, method, tune, seed, progress=progress, **settings)
    say("Valuing the policy on rows it never saw")
    action = best_fixed_action(train)
    rivals: dict[str, Valued] = {POLICY: policy, LOGGING: CurrentPractice(), BEST_FIXED: FixedAction(action)}
    found = compare_policies(rivals, kept, level=level, seed=seed)
    outcome = Outcome(policy, found.values, action, found.verdicts[POLICY])
    source = policy.provenance["source"] | {"whole": log.digest, "holdout": holdout, "seed": seed}
    provenance = dict(policy.provenance) | {"source": source}
    return replace(outcome, policy=replace(policy, provenance=provenance, evaluation=outcome.as_json()))


def best_fixed_action(log: Log) -> Any:
    """Of the actions taken in these rows, the one with the highest self-normalised IPS value."""
    p = propensities(log, Encoding.fit(log)).p
    taken = [log.actions[a] for a in np.unique(log.A)]
    return max(taken, key=lambda action: fixed_value(action, log, p))


def fixed_value(action: Any, log: Log, p: np.ndarray) -> float:
    """What giving everyone this action would have brought, by self-normalised IPS."""
    h = probabilities_on(FixedAction(action), log)
    return snips(terms(h, log.A, log.R, p, None, log.weight)).value


def read_same_log(policy: Policy, path: Any) -> Log:
    """A log read with the columns, the reward's range and its direction that the policy was learned with."""
    made = policy.provenance
    columns, reward = made["columns"], made["reward"]
    return read_log(
        path,
        **{role: columns[role] for role in ("action", "reward", "propensity", "group", "time", "weight")},
        features=columns["features"],
        minimize=reward["minimize"],
        reward_range=tuple(reward["range"]),
    )


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
        return {"methods": [one | {"verdict": verdicts.get(one["method"])} for one in methods], "best": self.best}


def compare_methods(
    log: Log,
    methods: Sequence[str],
    tune: bool = False,
    seed: int = 0,
    *,
    holdout: float = 0.3,
    level: float = 0.95,
    progress: Progress | None = None,
    **settings: Any,
) -> Contest:
    """Learn by several methods from the same rows and value them on rows that none of them saw.

    `best` is chosen by the doubly robust value on the validation rows, so that the choice does not flatter its value.
    """
    say = progress or silent
    for method in methods:
        method_named(method)
    first, rest = log.split_rows(1 - holdout, seed)
    train, kept = log.take(first), log.take(rest)
    policies, seconds = {}, {}
    for number, method in enumerate(methods, 1):
        say(f"{method} ({number} of {len(methods)})")
        started = time.perf_counter()
        policies[method] = learn(train, method, tune, seed, progress=progress, **settings)
        seconds[method] = time.perf_counter() - started
    say("Valuing all of them on rows that none of them saw")
    found = compare_policies({**policies, "current practice": CurrentPractice()}, kept, level=level, seed=seed)
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
    return float(value_on(policy, valid, fitted, "dr", 0.95).value if own is None else valid.in_units(own))
