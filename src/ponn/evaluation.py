"""What is a policy worth on rows of a log that it never saw, against current practice, and is it better?

symbol   meaning                                                        shape
h        h(a | x_j), the policy to value, columns as log.actions        [n, k]
p        propensity of the logged action: known, or cross-fitted        [n]
Q        r_hat(a, x_j), cross-fitted predictions of a reward model      [n, k]

Everything here works with rewards in [0, 1]; what users see is in their own unit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ponn.encode import Encoding
from ponn.errors import PonnError, listing
from ponn.estimators import Terms, Valuation, logged_value, terms, valuation
from ponn.inference import restricted
from ponn.intervals import (
    Estimate,
    Interval,
    LowOverlap,
    Verdict,
    bernstein_interval,
    bootstrap,
    both_sides,
    confidence_sequence,
    estimated,
    normal_interval,
    overlap,
    percentile_interval,
    verdict,
)
from ponn.log import Log
from ponn.models import greedy
from ponn.policy import Policy
from ponn.propensity import fold_numbers, propensities
from ponn.reward import cross_fitted_rewards
from ponn.settings import Settings

FOLDS = 5
FEWEST_EFFECTIVE = 30.0  # with fewer effective rows a normal interval is not to be trusted
FEWEST_LOGGED = 10  # rows of an action the policy wants; with fewer its reward is guesswork
WANTED = 0.01  # a policy wants an action that it gives at least this share of its probability
FOR_EVERY_N = ("bernstein", "sequence")  # not only for large n
INTERVALS = ("normal", "bootstrap", *FOR_EVERY_N)
BOOTSTRAPS = 200


@dataclass(frozen=True)
class FixedAction:
    """The policy that gives everyone the same action."""

    action: Any


@dataclass(frozen=True)
class CurrentPractice:
    """Whoever made the log: its value is the mean reward."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """A policy whose actions are drawn from h, as in section 5; a Policy by itself takes the most probable one."""

    policy: Policy


@dataclass(frozen=True, eq=False)
class SupportedOnly:
    """A policy that recommends only actions which the log supports for the row, see `Policy.safer`."""

    policy: Policy


Valued = Policy | Sampled | SupportedOnly | FixedAction | CurrentPractice | Callable[[Any], np.ndarray] | np.ndarray


@dataclass(frozen=True, eq=False)
class Nuisances:
    """What values are corrected with, fitted on other rows than they are used on."""

    p: np.ndarray  # [n]
    Q: np.ndarray | None  # [n, k]
    model: str  # "known" or what estimated the propensities
    notes: tuple[str, ...]
    settings: Settings = field(default_factory=Settings)  # with which a bootstrap estimates the propensities again


def nuisances(log: Log, settings: Settings | None = None, *, folds: int = FOLDS, seed: int = 0) -> Nuisances:
    """Propensities (known ones as they are) and reward predictions, each row's from the other folds."""
    settings = settings or Settings()
    encoding = Encoding.fit(log, settings)
    found = propensities(log, encoding, settings, folds=folds, seed=seed)
    fold = fold_numbers(log, folds, seed)
    Q = cross_fitted_rewards(encoding.design(log), log.A, log.R, log.row_weights, len(log.actions), fold, settings)
    return Nuisances(found.p, Q, found.model, found.notes, settings)


# The policy on the rows of a log ---------------------------------------------------------------------------


def probabilities_on(policy: Valued, log: Log) -> np.ndarray:
    """h(a | x_j) over the eligible actions, columns in the order of log.actions.

    What a policy gives to actions that are not eligible in a row goes to its other actions there, in proportion; where
    it has none, to the eligible action that is most common in the log. A learned policy does so by itself.
    """
    h = wanted_on(policy, log)
    return h if log.eligible is None else restricted(h, log.eligible, most_common_eligible(log.eligible, log))


def most_common_eligible(eligible: np.ndarray, log: Log) -> np.ndarray:
    """Per row the eligible action that the log takes most often, for sure: [n, k]."""
    counts = np.bincount(log.A, minlength=len(log.actions)).astype(float)
    return greedy(np.broadcast_to(counts, eligible.shape), eligible)


def not_eligible(policy: Valued, log: Log) -> tuple[str, ...]:
    """A warning with the share of a policy's choices that are not eligible; learned ones make no such choice."""
    if log.eligible is None or isinstance(policy, Policy | Sampled | SupportedOnly):
        return ()
    share = float((wanted_on(policy, log) * ~log.eligible).sum(axis=1).mean())
    if not share:
        return ()
    return (f"{share:.1%} of its choices are not eligible and count as eligible ones",)


def wanted_on(policy: Valued, log: Log) -> np.ndarray:
    """h(a | x_j) as the policy gives it; only learned policies know what is eligible."""
    if isinstance(policy, Policy):
        return matched(greedy(policy.predict_proba(log)), policy.actions, log)
    if isinstance(policy, Sampled):
        return matched(policy.policy.predict_proba(log), policy.policy.actions, log)
    if isinstance(policy, SupportedOnly):
        learned = policy.policy
        return matched(greedy(learned.safer(*learned.design(log))), learned.actions, log)
    if isinstance(policy, FixedAction):
        return matched(np.ones((len(log), 1)), (policy.action,), log)
    if isinstance(policy, CurrentPractice):
        raise PonnError("Current practice is valued by its rewards; its probabilities are those of Step A.")
    h = policy if isinstance(policy, np.ndarray) else np.asarray(policy(log.X), float)
    return checked_probabilities(h, log)


def matched(h: np.ndarray, actions: tuple[Any, ...], log: Log) -> np.ndarray:
    """Columns moved to the log's order of actions; an action that the log lacks must not be wanted."""
    found = np.zeros((len(log), len(log.actions)))
    for action, column in zip(actions, h.T, strict=True):
        if action in log.actions:
            found[:, log.actions.index(action)] = column
        elif column.max(initial=0.0) > 0:
            raise PonnError(
                f"The policy takes action {action!r} in {column.mean():.1%} of the rows, but this log never contains "
                f"it (it has {listing(log.actions)}): nothing in it tells what that would bring."
            )
    return found


def checked_probabilities(h: np.ndarray, log: Log) -> np.ndarray:
    """An array of probabilities that someone else made, if it is one."""
    shape = (len(log), len(log.actions))
    if h.shape != shape:
        raise PonnError(f"The policy gave probabilities of shape {h.shape}; expected {shape}: rows x actions.")
    if not (np.isfinite(h).all() and (h >= 0).all() and np.allclose(h.sum(axis=1), 1, atol=1e-6)):
        raise PonnError("The policy gave numbers that are not probabilities: expected no negative ones and row sums 1.")
    return h


# One value --------------------------------------------------------------------------------------------------


def evaluate(
    policy: Valued,
    log: Log,
    estimator: str = "dr",
    level: float = 0.95,
    *,
    interval: str = "normal",
    parameter: float | None = None,
    allow_low_overlap: bool = False,
    settings: Settings | None = None,
    corrections: Nuisances | None = None,
    seed: int = 0,
) -> Estimate:
    """The value of a policy on a log it never saw, in the log's unit, with an interval.

    policy: a Policy, valued as it recommends (arg max, Algorithm 2); Sampled(policy), valued as it draws;
    SupportedOnly(policy), which takes only actions that the log supports; FixedAction("AC"); CurrentPractice();
    probabilities [n, k], or a function from rows to them.
    estimator: dr (default), sndr, ips, snips, truncated-ips, switch-dr, dros or dm. interval: normal; bootstrap, which
    refits the propensities; bernstein, for every number of rows; sequence, valid however often one looks.
    Raises LowOverlap, which carries the number, where it cannot be trusted; allow_low_overlap returns it marked.
    """
    check_options(estimator, level, interval)
    if interval == "sequence" and (log.weight is not None or log.columns.group is not None):
        raise PonnError("The interval 'sequence' knows neither row weights nor groups; ask for 'bernstein'.")
    log = unseen_rows(policy, log)
    fitted = corrections or nuisances(log, settings, seed=seed)
    found = value_on(policy, log, fitted, estimator, level, interval, parameter, seed)
    if not found.trusted and not allow_low_overlap:
        raise LowOverlap(found)
    return found


def check_options(estimator: str, level: float, interval: str) -> None:
    """Raise PonnError for what cannot be asked for."""
    if not 0.5 <= level < 1:
        raise PonnError(f"The level is {level}; expected a number from 0.5 to below 1, e.g. 0.95.")
    if interval not in INTERVALS:
        raise PonnError(f"There is no interval {interval!r}; expected one of {', '.join(INTERVALS)}.")
    if interval in FOR_EVERY_N and estimator not in ("ips", "truncated-ips"):
        raise PonnError(f"The interval {interval!r} belongs to ips; ask for estimator='ips', not {estimator!r}.")


def unseen_rows(policy: Valued, log: Log) -> Log:
    """The rows that the policy did not learn from, where the log is the one that learning had split."""
    source = source_of(policy)
    if source.get("whole") == log.digest:
        return log.take(log.split_rows(1 - source["holdout"], source["seed"])[1])
    return log


def source_of(policy: Valued) -> Mapping[str, Any]:
    """Where a policy was learned from; nothing for those that were not learned."""
    learned = policy.policy if isinstance(policy, Sampled | SupportedOnly) else policy
    return learned.provenance.get("source", {}) if isinstance(learned, Policy) else {}


def value_on(
    policy: Valued,
    log: Log,
    fitted: Nuisances,
    estimator: str,
    level: float,
    interval: str = "normal",
    parameter: float | None = None,
    seed: int = 0,
) -> Estimate:
    """An estimate in the log's unit; marked where it is not to be trusted."""
    group = group_of(log)
    if isinstance(policy, CurrentPractice):
        found = logged_value(log.R, log.weight)
        told = estimated(found, "mean", normal_interval(found, level, group), float(len(log)), group=group)
        return told.in_unit(log.reward_range, log.minimize)
    h = probabilities_on(policy, log)
    t = terms(h, log.A, log.R, fitted.p, fitted.Q, log.weight)
    found = valuation(estimator, t, parameter, group)
    ends = interval_of(
        interval, found, t, level, group, lambda rows: refitted_value(h, log, fitted, estimator, rows), seed
    )
    told = estimated(found, estimator, ends, overlap(t.w * t.weight).ess, group=group)
    warnings = not_eligible(policy, log)
    if interval in FOR_EVERY_N and fitted.model != "known":
        warnings += (f"the interval {interval!r} takes the estimated propensities as true",)
    told = replace(told, warnings=warnings)
    return told.in_unit(log.reward_range, log.minimize).distrusted(*reasons_to_doubt(policy, log, h, t))


def group_of(log: Log) -> np.ndarray | None:
    """Rows of one group share a number; None without groups."""
    return None if log.columns.group is None else log.group_numbers()


def interval_of(
    kind: str,
    found: Valuation,
    t: Terms,
    level: float,
    group: np.ndarray | None,
    again: Callable[[np.ndarray], float],
    seed: int,
) -> Interval:
    """The interval of this kind; `again` values the policy on a resample of rows."""
    if kind == "bootstrap":
        return percentile_interval(bootstrap(again, len(t.R), BOOTSTRAPS, seed, group), level)
    if kind == "bernstein":
        return bernstein_interval(t.w, t.R, level, weight=t.weight, group=group)
    if kind == "sequence":
        low, high = confidence_sequence(t.w, t.R, level)
        return Interval(float(low[-1]), float(high[-1]), "sequence", level)
    return normal_interval(found, level, group)


def refitted_value(h: np.ndarray, log: Log, fitted: Nuisances, estimator: str, rows: np.ndarray) -> float:
    """The value on a resample, its propensities estimated again where they were estimated."""
    part = log.take(rows)
    p = fitted.p[rows]
    if fitted.model != "known":
        p = propensities(part, Encoding.fit(part, fitted.settings), fitted.settings).p
    Q = None if fitted.Q is None else fitted.Q[rows]
    return valuation(estimator, terms(h[rows], part.A, part.R, p, Q, part.weight)).value


def reasons_to_doubt(policy: Valued, log: Log, h: np.ndarray, t: Terms) -> tuple[str, ...]:
    """Why a value should not be trusted; none when it can be."""
    reasons = [*overlap(t.w * t.weight).warnings(FEWEST_EFFECTIVE)]
    counts, wanted = np.bincount(log.A, minlength=h.shape[1]), h.mean(axis=0)
    reasons += [
        f"the policy takes action {action!r} in {share:.1%} of the rows, the log only in {count} of them"
        for action, share, count in zip(log.actions, wanted, counts, strict=True)
        if share >= WANTED and count < FEWEST_LOGGED
    ]
    if source_of(policy).get("digest") == log.digest:
        reasons.append("these are the very rows that the policy learned from")
    return tuple(reasons)


# Several policies on the same rows -------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """Values of several policies on the same rows, and the paired verdict of each against current practice."""

    values: Mapping[str, Estimate]
    verdicts: Mapping[str, Verdict]


def compare_policies(
    policies: Mapping[str, Valued],
    log: Log,
    estimator: str = "dr",
    level: float = 0.95,
    *,
    settings: Settings | None = None,
    corrections: Nuisances | None = None,
    seed: int = 0,
) -> Comparison:
    """Value policies on the same rows with the same corrections, and say of each whether it beats current practice.

    "better" holds with probability `level`: the lower end of the paired difference is a one-sided bound at that level.
    """
    fitted = corrections or nuisances(log, settings, seed=seed)
    values = {name: value_on(policy, log, fitted, estimator, level) for name, policy in policies.items()}
    verdicts = {
        name: against_practice(policy, log, fitted, estimator, level)
        for name, policy in policies.items()
        if not isinstance(policy, CurrentPractice)
    }
    return Comparison(values, verdicts)


def against_practice(policy: Valued, log: Log, fitted: Nuisances, estimator: str, level: float) -> Verdict:
    """Is the policy better than current practice? By the paired difference on these rows."""
    h, group = probabilities_on(policy, log), group_of(log)
    t = terms(h, log.A, log.R, fitted.p, fitted.Q, log.weight)
    gain = valuation(estimator, t, None, group) - logged_value(log.R, log.weight)
    ends = normal_interval(gain, both_sides(level), group)
    told = estimated(gain, estimator, ends, overlap(t.w * t.weight).ess, group=group, difference=True)
    found = verdict(told.distrusted(*reasons_to_doubt(policy, log, h, t)))
    return found.in_unit(log.reward_range, log.minimize)
