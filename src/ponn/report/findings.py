"""Everything that a report says about a policy, computed and not yet shown: `findings(policy, log)`.

Values are taken on rows that the policy did not learn from. What cannot be computed, or cannot be trusted, is said with
its reason; a log that tells too little gives findings that say so, not an error.
"""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ponn import __version__
from ponn.errors import PonnError
from ponn.evaluation.confounding import HiddenConfounding, doubted_at
from ponn.evaluation.estimators import ESTIMATORS, mean_one
from ponn.evaluation.intervals import Estimate
from ponn.evaluation.readiness import ActionCount, EligibleCount, FeatureLine, action_counts, count_eligible, describe
from ponn.evaluation.subgroups import levels_of_columns
from ponn.evaluation.valuation import (
    Asked,
    FixedAction,
    Nuisances,
    Scored,
    gain_over,
    nuisances,
    probabilities_on,
    scored,
    seed_of,
    unseen_rows,
    value_of,
)
from ponn.evaluation.weights import Overlap as Reach
from ponn.evaluation.worth import GAMMA, Worth, unsupported_rows, worth
from ponn.log.encoding import Encoding
from ponn.log.log import Log, check_in_memory
from ponn.log.profile import profile
from ponn.policy.disclosure import disclosed_notes
from ponn.policy.policy import Policy
from ponn.report.charts import CalibrationBin, WeightBin, weight_bins
from ponn.report.surrogate import Surrogate, imitate
from ponn.settings import Settings
from ponn.steps.propensity import Overlap, TooFewRows, overlap

GAMMAS = (1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
SHOWN_GAMMA = 2.0  # shown at least up to here
LEAF_ROWS = 5  # the smallest kind of case worth a line in the summary of a policy
CALIBRATION_BINS, CALIBRATION_ROWS = 10, 20  # at most so many bins, of at least so many rows
Say = Callable[[str], Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Reported(Worth):
    """What `ponn learn` and `ponn evaluate` say of a policy's worth, and what the report alone says beside it."""

    sensitivity: HiddenConfounding
    fixed_action: Any  # the best single action, chosen on training rows
    fixed: Estimate | None
    over_fixed: Estimate | None  # the paired gain over giving everyone that action: above 0 is good, also with minimize
    estimators: Mapping[str, Estimate | str]  # by every estimator; a text says why there is none
    weights: tuple[WeightBin, ...]
    reach: Reach  # of the weights
    doubted: tuple[HiddenConfounding, ...]  # at a few gammas, ascending


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
    min_cell: int  # rows that must share what is told of them
    log_rows: int
    rows: int
    kept_aside: bool  # the rows are those of the log that learning kept aside
    reward: str
    by: tuple[str, ...]  # columns whose subgroups were asked for
    actions: tuple[ActionCount, ...]  # of the whole log
    eligible: tuple[EligibleCount, ...]  # of the whole log; empty where every action always is
    features: tuple[FeatureLine, ...]
    notes: tuple[str, ...]
    shares: Mapping[Any, tuple[float, float]]  # action → share of the rows recommended it, and that got it
    relevance: RelevanceGrid | None  # None where the method has no Step B
    support: Support | None
    overlap: Overlap | None
    worth: Reported | None
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
    by: str | Sequence[str] = (),
    seed: int | None = None,
    min_cell: int | None = None,
    progress: Say | None = None,
) -> Findings:
    """Look at a policy with the help of a log.

    by: columns whose subgroups are valued by themselves, see `value_by_group`.
    rows, corrections: the rows to value it on and what they are corrected with, where they are at hand already; by
    default the rows of the log that it did not learn from, and what is fitted on them. seed: that of learning.
    min_cell: rows that must share whatever is told of them; default what the policy was learned with.
    """
    min_cell = min_cell_of(policy) if min_cell is None else Settings(min_cell=min_cell).min_cell
    check_in_memory(log, "A report")
    say = progress or (lambda message: None)
    seed = seed_of(policy) if seed is None else seed
    by = (by,) if isinstance(by, str) else tuple(by)
    levels_of_columns(log, by)  # before the costly part, as it may find mistakes
    kept = with_actions_of(policy, unseen_rows(policy, log) if rows is None else rows)
    value, seen, why = None, None, ""
    try:
        fitted = corrections or fitted_corrections(kept, seed, say)
        value = worth_of(policy, kept, fitted, Asked(level=level, seed=seed), by, say)
        seen = None if fitted.step_a is None else overlap(kept, Encoding.fit(kept, fitted.settings), fitted.step_a)
    except TooFewRows as error:
        why = error.why
    say("Report: what the policy does")
    surrogate, why_no_surrogate = summary_of(policy, kept, seed, min_cell)
    return Findings(
        policy=policy,
        level=level,
        seed=seed,
        min_cell=min_cell,
        log_rows=len(log),
        rows=len(kept),
        kept_aside=len(kept) < len(log),
        reward=log.columns.reward,
        by=by,
        actions=tuple(told_action(one, min_cell) for one in action_counts(log.actions, log.A, log.outcome)),
        eligible=count_eligible(log),
        features=tuple(
            describe(one, profile(one.name, log.table.column(one.name))) for one in policy.encoding.features
        ),
        notes=tuple(disclosed_notes(log.notes, min_cell)),
        shares=shares_of(policy, kept),
        relevance=relevance_grid(policy),
        support=support_of(policy, kept),
        overlap=seen,
        worth=value,
        why_no_worth=why,
        surrogate=surrogate,
        why_no_surrogate=why_no_surrogate,
        calibration=tuple(calibration_of(policy, kept)),
        versions={"ponn": __version__, "numpy": np.__version__, "python": platform.python_version()},
    )


def min_cell_of(policy: Policy) -> int:
    """How many rows must share what is told of them; policies of version 0.1 do not say."""
    return int(policy.settings.get("min_cell", Settings().min_cell))


def told_action(found: ActionCount, min_cell: int) -> ActionCount:
    """An action without the mean outcome of a few people."""
    return replace(found, mean_reward=None) if found.rows < min_cell else found


def fitted_corrections(rows: Log, seed: int, say: Say) -> Nuisances:
    """What values are corrected with, fitted on these rows."""
    say("Report: propensities and a reward model")
    return nuisances(rows, seed=seed)


def with_actions_of(policy: Policy, log: Log) -> Log:
    """The log with the actions that only the policy has behind its own: they have no rows, and can be wanted."""
    new = [action for action in policy.actions if action not in log.actions]
    can, by_policy = log.eligible, policy.eligible_in(log)
    if can is not None and by_policy is not None:
        can = np.hstack([can, by_policy[:, [policy.actions.index(action) for action in new]]])
    return replace(log, actions=(*log.actions, *new), eligible=can)


# Worth -----------------------------------------------------------------------------------------------------


def worth_of(policy: Policy, rows: Log, fitted: Nuisances, asked: Asked, by: tuple[str, ...], say: Say) -> Reported:
    """Values, verdict, weights, sensitivity and subgroups on rows that the policy never saw."""
    say("Report: values by every estimator")
    found = worth(
        policy,
        rows,
        level=asked.level,
        by=by,
        gamma=GAMMA,
        allow_low_overlap=True,
        corrections=fitted,
        seed=asked.seed,
    )
    assert found.sensitivity is not None  # gamma was given
    one, action = scored(policy, rows, fitted), best_fixed(policy, rows)
    fixed = None if action is None else scored(FixedAction(action), rows, fitted)
    beside = {
        "fixed_action": action,
        "fixed": None if fixed is None else value_of(fixed, asked),
        "over_fixed": None if fixed is None else gain_over(one, fixed, asked),
        "estimators": {name: estimated_by(name, one, asked) for name in ESTIMATORS},
        "weights": weight_bins(one.t.w * one.t.weight),
        "reach": one.overlap,
        "doubted": doubted_at(one, shown_gammas(found.sensitivity.breaking_gamma), asked),
    }
    return Reported(**vars(found), **beside)


def best_fixed(policy: Policy, rows: Log) -> Any:
    """The best single action, chosen by training rows: when it was learned, or by the reward model it carries."""
    valued = (policy.evaluation or {}).get("value", {}).get("best_fixed", {})
    if valued.get("action") in policy.actions:
        return valued["action"]
    model = policy.companions.get("reward")
    promised = None if model is None else model.rewards(policy.encoding.design(rows))  # [n, k]
    return None if promised is None else policy.actions[int(promised.mean(axis=0).argmax())]


def estimated_by(name: str, one: Scored, asked: Asked) -> Estimate | str:
    """The value by one estimator, or why it has none."""
    try:
        return value_of(one, asked._replace(estimator=name))
    except PonnError as error:
        return str(error)


def shown_gammas(breaking: float) -> tuple[float, ...]:
    """Strengths up to and just beyond the one that breaks the conclusion."""
    last = next((place for place, gamma in enumerate(GAMMAS) if gamma >= max(breaking, SHOWN_GAMMA)), len(GAMMAS))
    return GAMMAS[: last + 1]


# What it does ------------------------------------------------------------------------------------------------


def shares_of(policy: Policy, rows: Log) -> dict[Any, tuple[float, float]]:
    """How often each action is recommended, and how often it was taken; row weights count."""
    weight = mean_one(rows.weight, len(rows)) / len(rows)
    recommended = weight @ probabilities_on(policy, rows)  # [k]
    taken = np.bincount(rows.A, weight, minlength=len(rows.actions))  # [k]
    return dict(zip(rows.actions, zip(recommended.tolist(), taken.tolist(), strict=True), strict=True))


def summary_of(policy: Policy, rows: Log, seed: int, min_cell: int) -> tuple[Surrogate | None, str]:
    """The shallow tree that imitates the policy, or why there is none."""
    try:
        return imitate(policy, rows, seed, max(min_cell, LEAF_ROWS)), ""
    except PonnError as error:
        return None, str(error)


def support_of(policy: Policy, rows: Log) -> Support | None:
    """Where the log supports what; None where the policy carries no picture of current practice."""
    supported, unsupported = policy.support(*policy.design(rows)), unsupported_rows(policy, rows)
    if supported is None or unsupported is None:
        return None
    return Support(supported.mean(axis=0), 1 - unsupported / len(rows))


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
    known = [action in policy.actions for action in rows.actions]
    rows = rows.take(np.flatnonzero(np.array(known)[rows.A]))
    A = policy.numbers_of([rows.actions[a] for a in rows.A], len(rows))
    promised = policy.expected_reward(policy.encoding.design(rows), A)
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
