"""Reward models r(a, x) = E[R | x, a], learned from the rows in which the action was taken.

LR-L1 is a method of the paper; the penalised logistic regressions and boosting serve doubly robust values.

symbol   meaning                                               shape
X        design columns                                        [n, D]
A        actions taken                                         [n]
R        rewards in [0, 1]; between 0 and 1 counts as a share  [n]
weight   how often each row counts                             [n]
"""

from typing import Any

import numpy as np

from ponn.errors import PonnError, install_line
from ponn.policy.models import LinearRewards
from ponn.settings import Settings
from ponn.steps.propensity import fit_converges, stops_told

FEWEST_TO_BOOST = 50  # rows of an action; with fewer its mean reward is the prediction
NEWTON_COLUMNS = 300  # Newton's method solves a system of this size; beyond it L-BFGS is faster
MOST_STEPS = 1_000  # of the solver; it rarely needs 20
SURE = 12.0  # log odds of a reward seen in all rows of an action, or in none: 1 in 160,000


def fit_linear_rewards(
    X: np.ndarray, A: np.ndarray, R: np.ndarray, weight: np.ndarray, k: int, l1: float
) -> tuple[LinearRewards, tuple[str, ...]]:
    """LR-L1: per action, minimise mean logistic loss + l1 * sum |W_a| over the rows in which it was taken."""
    fits = [fit_one_action(X[A == a], R[A == a], weight[A == a], l1) for a in range(k)]
    W, c = (np.array(part) for part in zip(*((W_a, c_a) for W_a, c_a, _ in fits), strict=True))
    notes = stops_told("reward model", [converged for *_, converged in fits])
    return LinearRewards(np.ascontiguousarray(W.T), c), notes  # [D, k], [k]


def fit_one_action(X: np.ndarray, R: np.ndarray, weight: np.ndarray, l1: float) -> tuple[np.ndarray, float, bool]:
    """Coefficients, intercept, and whether the solver converged. Without rows, or with one outcome only: no slopes."""
    sure = only_outcome(R, weight)
    if sure is not None:
        return np.zeros(X.shape[1]), sure, True
    rows, outcome, w = both_outcomes(X, R, weight)
    return penalised_logistic(rows, outcome, w, l1 * float(weight.sum()))


def only_outcome(R: np.ndarray, weight: np.ndarray) -> float | None:
    """The log odds of a reward that is the same in all rows of an action, or has no rows; None where it varies."""
    share = float(np.average(R, weights=weight)) if len(R) else 0.0
    return None if 0 < share < 1 else SURE * float(np.sign(share - 0.5))


# For doubly robust values ----------------------------------------------------------------------------------


def fit_rewards(
    X: np.ndarray,
    A: np.ndarray,
    R: np.ndarray,
    weight: np.ndarray,
    k: int,
    penalty: float,
    converged: list[bool] | None = None,
) -> LinearRewards:
    """Logistic regression of the reward per action with an L2 penalty; an action without rows promises 0.

    converged, where given, gets an entry per fit: did its solver come to an end?
    """
    fits = [fit_ridge(X[A == a], R[A == a], weight[A == a], penalty, converged) for a in range(k)]
    return LinearRewards(np.column_stack([W for W, _ in fits]), np.array([c for _, c in fits]))  # [D, k], [k]


def fit_ridge(
    X: np.ndarray, R: np.ndarray, weight: np.ndarray, penalty: float, converged: list[bool] | None = None
) -> tuple[np.ndarray, float]:
    """Coefficients and intercept of one action; converged, where given, gets an entry if a solver was needed."""
    from sklearn.linear_model import LogisticRegression

    sure = only_outcome(R, weight)
    if sure is not None:
        return np.zeros(X.shape[1]), sure
    rows, outcome, w = both_outcomes(X, R, weight)
    solver = "newton-cholesky" if penalty and X.shape[1] <= NEWTON_COLUMNS else "lbfgs"
    model = LogisticRegression(C=1 / penalty if penalty else np.inf, solver=solver, max_iter=MOST_STEPS)
    ended = fit_converges(model, rows.astype(float), outcome, w)
    if converged is not None:
        converged.append(ended)
    return model.coef_[0], float(model.intercept_[0])


def boosted_rewards(
    X: np.ndarray, A: np.ndarray, R: np.ndarray, weight: np.ndarray, k: int, X_new: np.ndarray, seed: int
) -> np.ndarray:
    """Predictions of gradient boosting per action for new rows: [rows, k].

    In one thread: on a busy machine of two cores a second one made it slower (300 to 100,000 rows).
    """
    from threadpoolctl import threadpool_limits

    Q = np.zeros((len(X_new), k))
    with threadpool_limits(1, user_api="openmp"):
        for a in range(k):
            taken = np.flatnonzero(A == a)
            if len(taken) >= FEWEST_TO_BOOST:
                Q[:, a] = fit_boosting(X[taken], R[taken], weight[taken], seed).predict(X_new)
            elif len(taken):
                Q[:, a] = np.average(R[taken], weights=weight[taken])
    return np.clip(Q, 0.0, 1.0)


def fit_boosting(X: np.ndarray, R: np.ndarray, weight: np.ndarray, seed: int) -> Any:
    """Boosted trees of one action; equal weights are left out, as weighted quantiles took 10 to 20 times as long."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(max_iter=60, max_leaf_nodes=8, random_state=seed)
    return model.fit(X, R, None if (weight == weight[0]).all() else weight)


def cross_fitted_rewards(
    X: np.ndarray,
    A: np.ndarray,
    R: np.ndarray,
    weight: np.ndarray,
    k: int,
    fold: np.ndarray,
    settings: Settings,
    converged: list[bool] | None = None,
) -> np.ndarray:
    """r_hat(a, x_j) of every action from a model that never saw row j's fold: [n, k]; converged as in `fit_rewards`."""
    Q = np.empty((len(A), k))
    for number in range(int(fold.max()) + 1):
        seen, new = fold != number, fold == number
        rows = (X[seen], A[seen], R[seen], weight[seen], k)
        if settings.reward_model == "boosting":
            Q[new] = boosted_rewards(*rows, X[new], number)
        else:
            Q[new] = fit_rewards(*rows, settings.reward_penalty, converged).rewards(X[new])
    return Q


def both_outcomes(X: np.ndarray, R: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A reward R counts as a success with weight R and a failure with weight 1 - R; empty halves are left out."""
    won, lost = R > 0, R < 1
    outcome = np.concatenate([np.ones(won.sum()), np.zeros(lost.sum())])
    w = np.concatenate([(weight * R)[won], (weight * (1 - R))[lost]])
    return np.concatenate([X[won], X[lost]]), outcome, w


def penalised_logistic(X: np.ndarray, y: np.ndarray, w: np.ndarray, penalty: float) -> tuple[np.ndarray, float, bool]:
    """Minimise the weighted logistic loss + penalty * sum |W|; the intercept is hardly penalised."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise PonnError(f"Reward models need scikit-learn: {install_line('learn')}.") from error
    # liblinear penalises the intercept like any weight, unless its column is large
    model = LogisticRegression(
        C=1 / penalty if penalty else 1e10, l1_ratio=1, solver="liblinear", intercept_scaling=100, random_state=0
    )
    ended = fit_converges(model, X, y, w)
    return model.coef_[0], float(model.intercept_[0]), ended


def logistic_loss(r: np.ndarray, A: np.ndarray, R: np.ndarray, weight: np.ndarray) -> float:
    """Mean of -R log r(A, x) - (1 - R) log(1 - r(A, x)): how well rewards of taken actions are predicted."""
    taken = np.clip(r[np.arange(len(A)), A], 1e-9, 1 - 1e-9)
    return float(np.average(-R * np.log(taken) - (1 - R) * np.log(1 - taken), weights=weight))
