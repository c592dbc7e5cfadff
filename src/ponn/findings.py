"""Everything that a report says about a policy, computed and not yet shown: `findings(policy, log)`.

Values are taken on rows that the policy did not learn from. What cannot be computed, or cannot be trusted, is said with
its reason; a log that tells too little gives findings that say so, not an error.
"""

import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from ponn import intervals
from ponn.charts import CalibrationBin, WeightBin, weight_bins
from ponn.encode import Encoding
from ponn.errors import PonnError
from ponn.estimators import ESTIMATORS, mean_one, terms
from ponn.evaluation import (
    FOLDS,
    CurrentPractice,
    FixedAction,
    Nuisances,
    SupportedOnly,
    Valued,
    against_practice,
    nuisances,
    probabilities_on,
    source_of,
    unseen_rows,
    value_on,
)
from ponn.intervals import Estimate, Verdict
from ponn.log import Log
from ponn.policy import Policy
from ponn.profile import profile
from ponn.propensity import Overlap, fold_numbers, overlap
from ponn.readiness import ActionCount, FeatureLine, action_counts, describe
from ponn.sensitivity import Confounded, confounded
from ponn.surrogate import Surrogate, imitate

GAMMAS = (1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)  # up to and just beyond the one that breaks the conclusion
SHOWN_GAMMA = 2.0  # shown at least up to here
CALIBRATION_BINS, CALIBRATION_ROWS = 10, 20  # at most so many bins, of at least so many rows
Say = Callable[[str], Any]


@dataclass(frozen=True)
class Sensitivity:
    """Bounds on the policy's value, in the user's unit, if hidden reasons changed odds by a factor of up to gamma."""

    gammas: tuple[float, ...]
    least: tuple[float, ...]  # in number, not in goodness
    largest: tuple[float, ...]
    breaking: float  # from here on "better than current practice" does not follow; 1: it never did; inf: it always does


@dataclass(frozen=True, eq=False)
class Worth:
    """What the policy is worth on rows it never saw, and how far that can be trusted."""

    policy: Estimate
    practice: Estimate
    fixed_action: Any  # the best single action, chosen on training rows
    fixed: Estimate | None
    safer: Estimate | None  # the policy restricted to supported actions
    verdict: Verdict
    estimators: Mapping[str, Estimate | str]  # by every estimator; a text says why there is none
    weights: tuple[WeightBin, ...]
    reach: intervals.Overlap  # of the weights
    sensitivity: Sensitivity


@dataclass(frozen=True, eq=False)
class Support:
    """Where the log tells how an action would do: its estimated propensity is at least 1 %."""

    share: np.ndarray  # [k]: of the rows, per action of the policy
    recommended: float  # share of the rows whose recommended action is supported


@dataclass(frozen=True, eq=False)
class RelevanceGrid:
    """What a policy keeps of Step B, action x feature."""

    actions: tuple[Any, ...]
    features: tuple[str, ...]
    G: np.ndarray  # [k, d]
    tau: np.ndarray  # [k, d]
    total: np.ndarray  # [k, d]: bound on |G - g|, NaN where there is none
    selected: np.ndarray  # [k, d] bool


@dataclass(frozen=True, eq=False)
class Findings:
    """What a report says. `rows` are those that the policy was valued on, a part of the log or all of it."""

    policy: Policy
    level: float
    seed: int
    log_rows: int
    log_digest: str
    rows: int
    kept_aside: bool  # the rows are those of the log that learning kept aside
    reward: str
    actions: tuple[ActionCount, ...]  # of the whole log
    features: tuple[FeatureLine, ...]
    notes: tuple[str, ...]
    shares: Mapping[Any, tuple[float, float]]  # action → share of the rows recommended it, and that got it
    relevance: RelevanceGrid | None  # None where the method has no Step B
    support: Support | None
    overlap: Overlap | None
    worth: Worth | None
    why_no_worth: str
    surrogate: Surrogate | None
    why_no_surrogate: str
    calibration: tuple[CalibrationBin, ...]
    versions: Mapping[str, str]  # of what made the report


def findings(
    policy: Policy,
    log: Log,
    *,
    rows: Log | None = None,
    corrections: Nuisances | None = None,
    level: float = 0.95,
    seed: int | None = None,
    progress: Say | None = None,
) -> Findings:
    """Look at a policy with the help of a log.

    rows, corrections: the rows to value it on and what they are corrected with, where they are at hand already; by
    default the rows of the log that it did not learn from, and what is fitted on them. seed: that of learning.
    """
    say = progress or (lambda message: None)
    seed = int(source_of(policy).get("seed", 0)) if seed is None else seed
    kept = with_actions_of(policy, unseen_rows(policy, log) if rows is None else rows)
    worth, seen, why = None, None, too_few_rows(kept)
    if not why:
        fitted = corrections or fitted_corrections(kept, seed, say)
        worth = worth_of(policy, kept, fitted, level, say)
        seen = None if fitted.step_a is None else overlap(kept, Encoding.fit(kept, fitted.settings), fitted.step_a)
    say("Report: what the policy does")
    surrogate, why_no_surrogate = summary_of(policy, kept, seed)
    return Findings(
        policy=policy,
        level=level,
        seed=seed,
        log_rows=len(log),
        log_digest=log.digest,
        rows=len(kept),
        kept_aside=len(kept) < len(log),
        reward=log.columns.reward,
        actions=action_counts(log.actions, log.A, log.outcome),
        features=tuple(
            describe(one, profile(one.name, log.table.column(one.name))) for one in policy.encoding.features
        ),
        notes=log.notes,
        shares=shares_of(policy, kept),
        relevance=relevance_grid(policy),
        support=support_of(policy, kept),
        overlap=seen,
        worth=worth,
        why_no_worth=why,
        surrogate=surrogate,
        why_no_surrogate=why_no_surrogate,
        calibration=tuple(calibration_of(policy, kept)),
        versions={"ponn": version("ponn"), "numpy": np.__version__, "python": platform.python_version()},
    )


def fitted_corrections(rows: Log, seed: int, say: Say) -> Nuisances:
    """What values are corrected with, fitted on these rows."""
    say("Report: propensities and a reward model")
    return nuisances(rows, seed=seed)


def with_actions_of(policy: Policy, log: Log) -> Log:
    """The log with the policy's actions first, those it never has included; then what it has beyond them."""
    actions = (*policy.actions, *(action for action in log.actions if action not in policy.actions))
    place = np.array([actions.index(action) for action in log.actions])
    return replace(log, actions=actions, A=place[log.A])


def too_few_rows(log: Log) -> str:
    """Why the rows cannot be corrected for how actions were chosen; empty where they can."""
    if len(log) < FOLDS:
        return f"there are only {len(log)} rows, and at least {FOLDS} are needed"
    fold = fold_numbers(log, FOLDS, 0)
    if min(len(np.unique(log.A[fold != number])) for number in range(FOLDS)) < 2:
        return f"in these {len(log)} rows hardly more than one action was taken"
    return ""


# Worth -----------------------------------------------------------------------------------------------------


def worth_of(policy: Policy, rows: Log, fitted: Nuisances, level: float, say: Say) -> Worth:
    """Values, verdict, weights and sensitivity on rows that the policy never saw."""

    def value(one: Valued) -> Estimate:
        return value_on(one, rows, fitted, "dr", level)

    say("Report: values by every estimator")
    h, fixed = probabilities_on(policy, rows), best_fixed(policy, rows)
    w = terms(h, rows.A, rows.R, fitted.p, None, rows.weight)
    doubt = confounded(h, rows.A, rows.R, fitted.p, weight=rows.weight)
    return Worth(
        policy=value(policy),
        practice=value(CurrentPractice()),
        fixed_action=fixed,
        fixed=None if fixed is None else value(FixedAction(fixed)),
        safer=value(SupportedOnly(policy)) if "logging" in policy.companions else None,
        verdict=against_practice(policy, rows, fitted, "dr", level),
        estimators={name: estimated_by(name, policy, rows, fitted, level) for name in ESTIMATORS},
        weights=weight_bins(w.w * w.weight),
        reach=intervals.overlap(w.w * w.weight),
        sensitivity=sensitivity_of(doubt, rows),
    )


def best_fixed(policy: Policy, rows: Log) -> Any:
    """The best single action, chosen by training rows: when it was learned, or by the reward model it carries."""
    if policy.evaluation is not None:
        return policy.evaluation["value"]["best_fixed"]["action"]
    model = policy.companions.get("reward")
    promised = None if model is None else model.rewards(policy.encoding.design(rows))  # [n, k]
    return None if promised is None else policy.actions[int(promised.mean(axis=0).argmax())]


def estimated_by(name: str, policy: Policy, rows: Log, fitted: Nuisances, level: float) -> Estimate | str:
    """The value by one estimator, or why it has none."""
    try:
        return value_on(policy, rows, fitted, name, level)
    except PonnError as error:
        return str(error)


def sensitivity_of(doubt: Confounded, rows: Log) -> Sensitivity:
    """The bounds at a few gammas, in the log's unit."""
    breaking = doubt.breaking_gamma()
    last = next((place for place, gamma in enumerate(GAMMAS) if gamma >= max(breaking, SHOWN_GAMMA)), len(GAMMAS))
    gammas = GAMMAS[: last + 1]
    ends = [sorted(float(rows.in_units(end)) for end in doubt.bounds(gamma)) for gamma in gammas]
    return Sensitivity(gammas, tuple(low for low, _ in ends), tuple(high for _, high in ends), breaking)


# What it does ------------------------------------------------------------------------------------------------


def shares_of(policy: Policy, rows: Log) -> dict[Any, tuple[float, float]]:
    """How often each action is recommended, and how often it was taken; row weights count."""
    weight = mean_one(rows.weight, len(rows)) / len(rows)
    recommended = weight @ probabilities_on(policy, rows)  # [k]
    taken = np.bincount(rows.A, weight, minlength=len(rows.actions))  # [k]
    return dict(zip(rows.actions, zip(recommended.tolist(), taken.tolist(), strict=True), strict=True))


def summary_of(policy: Policy, rows: Log, seed: int) -> tuple[Surrogate | None, str]:
    """The shallow tree that imitates the policy, or why there is none."""
    try:
        return imitate(policy, rows, seed), ""
    except PonnError as error:
        return None, str(error)


def support_of(policy: Policy, rows: Log) -> Support | None:
    """Where the log supports what; None where the policy carries no picture of current practice."""
    X = policy.encoding.design(rows)
    supported = policy.support(X)  # [n, k]
    if supported is None:
        return None
    first = policy.model.probabilities(X).argmax(axis=1)
    return Support(supported.mean(axis=0), float(supported[np.arange(len(X)), first].mean()))


def relevance_grid(policy: Policy) -> RelevanceGrid | None:
    """Step B's table as arrays."""
    if not policy.relevance:
        return None
    features = tuple(one.name for one in policy.encoding.features)
    row, column = ({name: place for place, name in enumerate(names)} for names in (policy.actions, features))
    G, tau, total = (np.full((len(row), len(column)), np.nan) for _ in range(3))
    for one in policy.relevance:
        place = row[one.action], column[one.feature]
        G[place], tau[place] = one.relevance, one.threshold
        total[place] = np.nan if one.bound is None else one.bound
    return RelevanceGrid(policy.actions, features, G, tau, total, policy.selected)


def calibration_of(policy: Policy, rows: Log) -> Iterator[CalibrationBin]:
    """What the policy expects of the actions that were taken, against what came, in bins of equally many rows."""
    known = rows.A < len(policy.actions)  # the policy's actions come first
    rows = rows.take(np.flatnonzero(known))
    promised = policy.expected_reward(policy.encoding.design(rows), rows.A)
    if not isinstance(promised, np.ndarray) or not len(rows):
        return
    bins = min(CALIBRATION_BINS, max(len(rows) // CALIBRATION_ROWS, 1))
    for part in np.array_split(np.argsort(promised, kind="stable"), bins):
        yield calibration_bin(promised[part], rows.outcome[part], rows.row_weights[part])


def calibration_bin(promised: np.ndarray, outcome: np.ndarray, weight: np.ndarray) -> CalibrationBin:
    """Weighted means of rows with alike predictions, and a 95 % interval of what came."""
    predicted, observed = (float(np.average(values, weights=weight)) for values in (promised, outcome))
    reach = 1.96 * float(np.sqrt(np.sum((weight * (outcome - observed)) ** 2)) / weight.sum())
    return CalibrationBin(predicted, observed, observed - reach, observed + reach, len(outcome))
