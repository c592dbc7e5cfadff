"""Step A: with which probability was each logged action taken? Known, partly known, or estimated (section 4.5).

symbol   meaning                                                             shape
p        p0_j where known, p_hat_0j otherwise: of the action that was taken  [n]
P        p_hat_0(a | X_j) of every action                                    [n, k]
m        truncation: weights are min(1/p, m)
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ponn.errors import PonnError, install_line
from ponn.log.encoding import Encoding
from ponn.log.features import CategoryFeature, Feature
from ponn.log.log import Log
from ponn.policy.policy import SUPPORT_FLOOR
from ponn.settings import Settings

# Newton's method is exact after a few steps (10,000 x 26 with 6 actions: 0.6 s against 3.1 s of L-BFGS at the same
# accuracy) but its Hessian has this many rows squared; it needs a penalty, as 0/1 columns are collinear.
NEWTON_SIZE = 1_000


@dataclass(frozen=True, eq=False)
class Propensities:
    """The probability of each logged action, where it comes from, and how far its weight may go."""

    p: np.ndarray  # [n]
    P: np.ndarray | None  # [n, k]; None when every p was known and none had to be estimated
    known: np.ndarray  # [n] bool
    m: float
    model: str  # "known", or what estimated the unknown ones
    folds: int  # 1: estimated on the rows themselves, as in the paper; more: on other rows (cross-fitting)
    notes: tuple[str, ...]

    @property
    def weights(self) -> np.ndarray:
        """min(1/p, m), the importance weight of each row's logged action."""
        return np.minimum(1 / self.p, self.m)  # [n]

    @property
    def truncated(self) -> np.ndarray:
        """Rows whose weight was cut at m."""
        return np.asarray(1 / self.p > self.m)  # [n] bool

    def take(self, rows: np.ndarray) -> "Propensities":
        """Those of some rows."""
        return replace(self, p=self.p[rows], P=None if self.P is None else self.P[rows], known=self.known[rows])

    def U(self, log: Log) -> np.ndarray:
        """U_j(A_j) = min(1/p_j, m) R_j."""
        return np.asarray(self.weights * log.R)  # [n]


def propensities(
    log: Log,
    encoding: Encoding,
    settings: Settings | None = None,
    *,
    folds: int = 1,
    classifier: Any = None,
    seed: int = 0,
) -> Propensities:
    """Step A for the rows of a log.

    Known propensities are taken as they are and never truncated unless `m` says so. Unknown ones are estimated from
    the rows of this log by settings.propensity, or by the scikit-learn classifier given. folds > 1 estimates each row
    from the other folds (rows of one group stay together). Estimated ones are restricted to the actions that were
    eligible in the row and made to sum to 1: what could not be done had probability 0. So that the model need not
    explain by features what eligibility explains, it sees which actions are eligible (`with_eligibility`).
    """
    settings = settings or Settings()
    known = np.zeros(len(log), bool) if log.p0 is None else ~np.isnan(log.p0)
    if log.p0 is not None and known.all():
        return Propensities(log.p0, None, known, settings.m or np.inf, "known", 1, ())
    X = with_eligibility(encoding.design(log).astype(float), log)  # single precision stops the solver at 1e-5
    size = len(log.actions) * X.shape[1]
    chosen: list[str] = []
    choosing = classifier is None and settings.propensity == "logistic" and settings.propensity_penalty is None
    for count in (folds, PENALTY_FOLDS) if choosing else (folds,):
        check_folds(log, count, seed)
    if choosing:
        penalty = likeliest_penalty(X, log, settings, size, seed)
        settings = replace(settings, propensity_penalty=penalty)
        chosen = [f"The penalty {penalty:g} of the propensity model was chosen by cross-validation."]
    model = classifier if classifier is not None else make_classifier(settings, size)
    name = settings.propensity if classifier is None else type(classifier).__name__
    P, notes = predict_folds(model, X, log, folds, seed)
    notes += chosen
    p = P[np.arange(len(log)), log.A]
    if log.p0 is not None:
        p = np.where(known, log.p0, p)
        notes.append(f"{1 - known.mean():.1%} of the propensities were missing and were estimated ({name}).")
    m = settings.m or ionides_truncation(len(log))
    cut = int((1 / p > m).sum())
    if cut:
        notes.append(f"Weights above {m:.4g} were cut to it in {cut} of {len(log)} rows.")
    return Propensities(p, P, known, m, name, folds, tuple(notes))


def with_eligibility(X: np.ndarray, log: Log, limited: Sequence[int] | None = None) -> np.ndarray:
    """For each action that is not always eligible, a column that says where it is, and design columns: [n, some + D].

    limited: these actions; default those that are not eligible in all rows of this log.

    If the choice is a softmax over the eligible actions, the multinomial logistic model is right with these columns and
    wrong without: where age bars an action, its propensity would seem to fall with age below that age too.
    """
    if log.eligible is None:
        return X
    where = np.flatnonzero(~log.eligible.all(axis=0)) if limited is None else np.array(limited, np.intp)
    return np.hstack([log.eligible[:, where], X]) if len(where) else X


def ionides_truncation(n: int) -> float:
    """m = sqrt(n), Ionides (2008): bias and variance both vanish at this rate, for weights of mean 1."""
    return float(np.sqrt(n))


PENALTIES = (1.0, 10.0, 100.0)
PENALTY_FOLDS = 3
CALIBRATION_FOLDS = 3  # of `settings.calibrate`


def likeliest_penalty(X: np.ndarray, log: Log, settings: Settings, size: int, seed: int) -> float:
    """The penalty under which rows of other folds are most probable."""

    def likelihood(penalty: float) -> float:
        model = make_classifier(replace(settings, propensity_penalty=penalty), size)
        P, _ = predict_folds(model, X, log, PENALTY_FOLDS, seed)
        return float(np.mean(np.log(P[np.arange(len(log)), log.A])))

    return max(PENALTIES, key=likelihood)


def make_classifier(settings: Settings, size: int) -> Any:
    """The named model: multinomial logistic regression with intercept, or gradient boosting; size: its coefficients."""
    try:
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise PonnError(f"Estimating propensities needs scikit-learn: {install_line('learn')}.") from error
    if settings.propensity == "logistic":
        penalty = settings.propensity_penalty or 0.0
        solver = "newton-cholesky" if penalty and size <= NEWTON_SIZE else "lbfgs"
        model = LogisticRegression(C=1 / penalty if penalty else np.inf, solver=solver, tol=1e-8, max_iter=2_000)
    else:
        model = HistGradientBoostingClassifier(early_stopping=True, random_state=0)
    return CalibratedClassifierCV(model, method="sigmoid", cv=CALIBRATION_FOLDS) if settings.calibrate else model


def predict_folds(model: Any, X: np.ndarray, log: Log, folds: int, seed: int) -> tuple[np.ndarray, list[str]]:
    """p_hat(a | X_j) for every row, from all rows or from the other folds."""
    P = np.empty((len(log), len(log.actions)))
    converged: list[bool] = []
    plain = 0  # fits that could not be calibrated
    for train, rows in fold_rows(log, folds, seed):
        used = calibrated_where_possible(model, log.A[train])
        plain += used is not model
        P[rows] = fit_predict(used, X[train], log.A[train], X[rows], len(log.actions), converged)
    told = list(stops_told("propensity model", converged))
    if plain:
        told.append(
            f"The propensity model was not calibrated in {plain} of {len(converged)} fits: an action had fewer rows "
            "than calibration has folds."
        )
    absent = P == 0
    if absent.any():
        share = np.bincount(log.A, minlength=len(log.actions)) / len(log)
        P = np.where(absent, share, P)
        P /= P.sum(axis=1, keepdims=True)
        told.append(
            f"{int(absent.any(axis=1).sum())} rows got an action's overall share as propensity: the model had 0."
        )
    if log.eligible is not None:
        some = ~log.eligible.all(axis=1)
        P[some] *= log.eligible[some]
        P[some] /= P[some].sum(axis=1, keepdims=True)  # not 0: the logged action is eligible and was never given 0
    return P, told


def calibrated_where_possible(model: Any, A: np.ndarray) -> Any:
    """The classifier, or the one that it calibrates where an action has fewer rows than there are folds."""
    from sklearn.calibration import CalibratedClassifierCV

    if not isinstance(model, CalibratedClassifierCV) or not isinstance(model.cv, int):
        return model
    return model if np.bincount(A)[np.unique(A)].min() >= model.cv else model.estimator


def fit_predict(
    model: Any, X: np.ndarray, A: np.ndarray, X_new: np.ndarray, k: int, converged: list[bool]
) -> np.ndarray:
    """Fit a fresh copy of the classifier and predict; actions it never saw get 0."""
    from sklearn.base import clone

    fitted = clone(model)
    converged.append(fit_converges(fitted, X, A))
    P = np.zeros((len(X_new), k))
    P[:, fitted.classes_] = fitted.predict_proba(X_new)
    return P


def fit_converges(model: Any, *rows: np.ndarray) -> bool:
    """Fit a scikit-learn model to rows; did its solver come to an end? Other warnings stay warnings.

    Products in one thread: with two, Newton's method took 11.9 seconds instead of 4.4 on a quiet machine of two cores
    (2,676 rows, 80 columns, 10 actions, five folds).
    """
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*rows)
    stopped = [one for one in caught if issubclass(one.category, ConvergenceWarning)]
    for one in caught:
        if one not in stopped:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return not stopped


def stops_told(what: str, converged: list[bool]) -> tuple[str, ...]:
    """A note on the fits of a model that stopped before they converged; none where all did."""
    stopped = len(converged) - sum(converged)
    return (f"The {what} stopped before it converged in {stopped} of {len(converged)} fits.",) if stopped else ()


class TooFewRows(PonnError):  # noqa: N818  (what was found, not a mistake)
    """Rows that cannot be corrected for how actions were chosen; `why` is the reason as a part of a sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"These rows cannot be corrected for how their actions were chosen: {why}. Bring more rows, in which at "
            "least two actions were taken again and again."
        )
        self.why = why


def check_rows(log: Log, folds: int) -> None:
    """Raise TooFewRows where there are fewer rows than folds."""
    if len(log) < folds:
        raise TooFewRows(f"there are only {len(log)} rows, and at least {folds} are needed")


def check_folds(log: Log, folds: int, seed: int) -> None:
    """Raise TooFewRows where a fold has no rows, or the rows beside it fewer than two actions."""
    check_rows(log, folds)
    for train, rows in fold_rows(log, folds, seed):
        if not len(rows) or not len(train):
            raise TooFewRows(f"their groups, which stay together, do not make {folds} parts")
        if len(np.unique(log.A[train])) < 2:
            raise TooFewRows(f"in these {len(log)} rows hardly more than one action was taken")


def fold_rows(log: Log, folds: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training rows and rows to predict, per fold: all actions in every fold as far as possible, groups kept whole."""
    rows = np.arange(len(log))
    if folds == 1:
        yield rows, rows
        return
    fold = fold_numbers(log, folds, seed)
    for number in range(folds):
        yield rows[fold != number], rows[fold == number]


def fold_numbers(log: Log, folds: int, seed: int) -> np.ndarray:
    """The fold of each row: dealt out action by action in random order; with groups, group by group."""
    rng = np.random.default_rng(seed)
    if not 1 < folds <= len(log):
        raise PonnError(f"folds is {folds}; expected 1 to {len(log)}, the number of rows.")
    if log.columns.group is not None:
        groups = log.group_numbers()
        return np.asarray((rng.permutation(groups.max() + 1) % folds)[groups])
    order = rng.permutation(len(log))
    order = order[np.argsort(log.A[order], kind="stable")]
    fold = np.empty(len(log), np.int64)
    fold[order] = np.arange(len(log)) % folds
    return fold


# Overlap and calibration diagnostics ---------------------------------------------------------------------

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
CALIBRATION_BINS = 10
ALMOST_NEVER = 0.01  # an action taken in less than this share of a kind of case is almost never taken there
KIND_SHARE, KIND_ROWS = 0.02, 50  # a kind of case worth a sentence has this share of the rows, and this many
CHANCE = 0.01  # of one sentence or more on a log in which an action is taken equally often in every kind of case


@dataclass(frozen=True, eq=False)
class Overlap:
    """Can the log tell how each action would do everywhere? One entry per action unless the shape says otherwise.

    Where actions are not always eligible, "all rows" are those in which the action is.
    """

    actions: tuple[Any, ...]
    rows: np.ndarray  # [k]
    effective: np.ndarray  # [k]: (sum w)^2 / sum w^2 over the rows of the action
    largest_weight: np.ndarray  # [k]
    truncated: np.ndarray  # [k]: share of the action's rows whose weight was cut
    quantiles: np.ndarray  # [k, len(QUANTILES)] of p(a | X); of the taken rows only, where nothing was estimated
    mean_inverse: np.ndarray  # [k]: mean of 1{A = a} / p, which should be 1
    calibration: np.ndarray | None  # [k]: mean |predicted - observed| over bins of equal size
    balance_before: np.ndarray  # [k, d]: standardised mean difference between the action's rows and all rows
    balance_after: np.ndarray  # [k, d]: the same with weights
    unsupported: int | None  # rows in which some action's propensity is under SUPPORT_FLOOR
    sentences: tuple[str, ...]  # what is almost never done to whom


def overlap(log: Log, encoding: Encoding, found: Propensities) -> Overlap:
    """Diagnostics of Step A."""
    k, d = len(log.actions), len(encoding.features)
    w, A = found.weights, log.A
    X = encoding.design(log).astype(float)
    rows = np.bincount(A, minlength=k)
    total, squares = np.bincount(A, w, minlength=k), np.bincount(A, w * w, minlength=k)
    largest = np.zeros(k)
    np.maximum.at(largest, A, w)
    each = [A == a for a in range(k)]
    before, after = (balance(X, log, weights, encoding.owner, d) for weights in (np.ones(len(log)), w))
    can = np.ones((len(log), k), bool) if log.eligible is None else log.eligible
    return Overlap(
        actions=log.actions,
        rows=rows,
        effective=divided(total**2, squares),
        largest_weight=largest,
        truncated=divided(np.bincount(A, found.truncated, minlength=k), rows),
        quantiles=np.array([quantiles(found, a, taken, can[:, a]) for a, taken in enumerate(each)]),
        mean_inverse=divided(np.bincount(A, 1 / found.p, minlength=k), can.sum(axis=0)),
        calibration=None
        if found.P is None
        else np.array([calibration_error(found.P[can[:, a], a], each[a][can[:, a]]) for a in range(k)]),
        balance_before=before,
        balance_after=after,
        unsupported=None if found.P is None else int(((found.P < SUPPORT_FLOOR) & can).any(axis=1).sum()),
        sentences=tuple(hardly_ever(log, encoding)),
    )


def divided(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """top / bottom, 0 where bottom is 0."""
    return np.divide(top, bottom, out=np.zeros(len(top)), where=bottom > 0)


def quantiles(found: Propensities, a: int, taken: np.ndarray, can: np.ndarray) -> np.ndarray:
    """Quantiles of an action's propensity where it can be taken, or over its own rows where others are not known."""
    p = found.p[taken] if found.P is None else found.P[can, a]
    return np.quantile(p, QUANTILES) if len(p) else np.full(len(QUANTILES), np.nan)


def calibration_error(p: np.ndarray, taken: np.ndarray) -> float:
    """Expected calibration error: |mean p - frequency| over bins with equally many rows."""
    if not len(p):
        return float("nan")
    bins = np.array_split(np.argsort(p, kind="stable"), min(CALIBRATION_BINS, len(p)))
    return float(sum(abs(p[rows].mean() - taken[rows].mean()) * len(rows) for rows in bins) / len(p))


def balance(X: np.ndarray, log: Log, w: np.ndarray, owner: np.ndarray, d: int) -> np.ndarray:
    """|mean of the action's rows - mean of all rows| / standard deviation, the largest over a feature's columns."""
    scale, gaps = X.std(axis=0), np.zeros((len(log.actions), d))
    mean = X.mean(axis=0)
    for a in range(len(gaps)):
        rows = log.A == a
        if not rows.any():
            continue
        if log.eligible is not None:
            mean = X[log.eligible[:, a]].mean(axis=0)
        gap = np.abs(np.average(X[rows], axis=0, weights=w[rows]) - mean)
        np.maximum.at(gaps[a], owner, np.divide(gap, scale, out=np.zeros_like(gap), where=scale > 1e-12))
    return gaps  # [k, d]


def hardly_ever(log: Log, encoding: Encoding) -> Iterator[str]:
    """Sentences such as: Action 'CAF' is almost never taken where age is under 40."""
    levels = encoding.levels(log)
    k = len(log.actions)
    chance = CHANCE / (k * sum(one.b for one in encoding.features) or 1)
    for i, feature in enumerate(encoding.features):
        N = np.bincount(levels[:, i] + feature.b * log.A.astype(np.intp), minlength=k * feature.b).reshape(k, feature.b)
        cases = N.sum(axis=0)
        for a in range(k):
            if log.eligible is not None:
                cases = np.bincount(levels[log.eligible[:, a], i], minlength=feature.b)
            yield from runs_of_rare_levels(log, feature, N[a], cases, log.actions[a], chance)


def runs_of_rare_levels(
    log: Log, feature: Feature, taken: np.ndarray, N: np.ndarray, action: Any, chance: float
) -> Iterator[str]:
    """Neighbouring levels in which the action is almost never taken, though it is taken elsewhere.

    chance: how improbable so few must be if the action were taken as often there as in all rows.
    """
    share = taken.sum() / max(N.sum(), 1)
    rare = taken < ALMOST_NEVER * N
    rare |= N == 0
    ordered = 0 if isinstance(feature, CategoryFeature) else feature.bins  # missing stands by itself
    of_these = "rows" if log.eligible is None else "rows in which it was eligible"
    for start, stop in runs(rare, ordered):
        rows, seen = int(N[start:stop].sum()), int(taken[start:stop].sum())
        if rows < max(KIND_ROWS, KIND_SHARE * len(log)) or seen >= ALMOST_NEVER * rows:
            continue
        if share < 3 * ALMOST_NEVER:  # rare everywhere: told with the action's own count
            continue
        if chance_of_so_few(seen, rows, share) > chance:
            continue
        where = f"{feature.name} is {feature.span(start, stop)}"
        yield f"Action {action!r} is almost never taken where {where}: in {seen} of {rows} {of_these}."


def chance_of_so_few(seen: int, rows: int, share: float) -> float:
    """A bound on the probability of so few in so many rows, if each has the action with this probability (Chernoff)."""
    p = seen / rows
    if p >= share:
        return 1.0
    if share == 1:
        return 0.0
    divergence = (p * math.log(p / share) if p else 0.0) + (1 - p) * math.log((1 - p) / (1 - share))
    return math.exp(-rows * divergence)


def runs(marks: np.ndarray, ordered: int) -> Iterator[tuple[int, int]]:
    """Runs of marked places among the first `ordered` ones; behind them every marked place by itself."""
    start = None
    for place, marked in enumerate([*marks[:ordered], False]):
        if marked and start is None:
            start = place
        if not marked and start is not None:
            yield start, place
            start = None
    for place in range(ordered, len(marks)):
        if marks[place]:
            yield place, place + 1
