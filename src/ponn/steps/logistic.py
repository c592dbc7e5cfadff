"""Logistic regressions by sums over rows, so that the rows can be anywhere and are read few times.

symbol   meaning                                                                        shape
X        design columns and a last column of 1                                          [n, D + 1]
theta    coefficients, the intercepts in the last row                                   [D + 1, k]
g        slope of the penalised loss in theta                                           [D + 1, k]
H        its curvature: one block for all coefficients, or one per action               [(D + 1) k, (D + 1) k]

Step A minimises sum_j -log p(A_j | x_j) + penalty/2 sum W^2, as scikit-learn does, over all k actions (for k = 2 with
the first action's coefficients at 0). It starts from the optimum of a sample, and each pass over all rows gives the
exact loss and slope; steps are those of L-BFGS, its first guess of the curvature being the sample's. That guess is
wrong by about sqrt(coefficients / sampled rows), so every pass gains a digit or more.

Reward models are k separate regressions, whose exact curvature is small enough to be summed: Newton's method, also
from the optimum of a sample.
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

FEW_COEFFICIENTS = 1_500  # up to so many the curvature of all of them together is inverted; beyond, that of each action
CURVED_ROWS = 50_000  # rows of a sample that its curvature is taken from
REMEMBERED = 8  # pairs of steps and changes of slope in L-BFGS
MOST_PASSES = 12  # over all rows
SETTLED = 1e-7  # largest change of a coefficient; what is left after it is about a tenth
SUFFICIENT = 1e-4  # share of the promised decrease that a step must bring (Armijo)
BLOCK_ROWS = 8_192
FREELY = 1e-9  # of the mean curvature, added to each: the intercepts of all actions may move together


def with_ones(X: np.ndarray) -> np.ndarray:
    """Design columns in double precision and a column of 1."""
    return np.column_stack([X.astype(float), np.ones(len(X))])  # [n, D + 1]


def log_probabilities(theta: np.ndarray, X: np.ndarray) -> np.ndarray:
    """log p(a | x)."""
    S = X @ theta
    S -= S.max(axis=1, keepdims=True)
    return np.asarray(S - np.log(np.exp(S).sum(axis=1, keepdims=True)))  # [n, k]


def multinomial_sums(theta: np.ndarray, X: np.ndarray, A: np.ndarray) -> tuple[float, np.ndarray]:
    """Loss and slope over rows, without the penalty; X has its column of 1."""
    loss, g = 0.0, np.zeros_like(theta)
    for start in range(0, len(A), BLOCK_ROWS):
        x, a = X[start : start + BLOCK_ROWS], A[start : start + BLOCK_ROWS]
        log_p, row = log_probabilities(theta, x), np.arange(len(a))
        loss -= float(log_p[row, a].sum())
        P = np.exp(log_p)
        P[row, a] -= 1
        g += x.T @ P
    return loss, g


def penalised(loss: float, g: np.ndarray, theta: np.ndarray, penalty: float) -> tuple[float, np.ndarray]:
    """Loss and slope with penalty/2 sum W^2, which leaves the intercepts alone; for two actions the first stays 0."""
    W = theta[:-1]
    g = g.copy()
    g[:-1] += penalty * W
    if theta.shape[1] == 2:
        g[:, 0] = 0
    return loss + 0.5 * penalty * float(np.sum(W * W)), g


# Curvature -----------------------------------------------------------------------------------------------

Solve = Callable[[np.ndarray], np.ndarray]  # H^-1 g


def curvature(theta: np.ndarray, X: np.ndarray, penalty: float, times: float) -> Solve:
    """The inverse curvature at theta from sampled rows, each of which stands for `times` rows."""
    size, k = theta.shape
    P = np.exp(log_probabilities(theta, X))  # [n, k]
    diagonal = np.append(np.full(size - 1, penalty), 0.0)  # [D + 1]
    if k == 2 or size * k > FEW_COEFFICIENTS:
        blocks = [X.T @ (X * (times * p * (1 - p))[:, None]) + np.diag(diagonal) for p in P.T]
        return by_action([inverse(H) for H in blocks])  # of two actions the first has no slope and stays
    H = np.empty((k, size, k, size))
    for a in range(k):
        for b in range(a + 1):
            H[a, :, b] = X.T @ (X * (times * P[:, a] * ((a == b) - P[:, b]))[:, None])
            H[b, :, a] = H[a, :, b].T
        H[a, :, a] += np.diag(diagonal)
    inverted = inverse(H.reshape(k * size, k * size))
    return lambda g: (inverted @ g.T.ravel()).reshape(k, size).T


def by_action(inverses: Sequence[np.ndarray]) -> Solve:
    """Every action's slope by its own curvature."""
    return lambda g: np.column_stack([inverted @ g[:, a] for a, inverted in enumerate(inverses)])


def inverse(H: np.ndarray) -> np.ndarray:
    """H^-1 of a curvature that may be flat in some directions."""
    return np.asarray(np.linalg.inv(H + FREELY * max(np.trace(H) / len(H), FREELY) * np.eye(len(H))))


# Steps ---------------------------------------------------------------------------------------------------


class Descent:
    """L-BFGS (Liu and Nocedal 1989) that asks for loss and slope at `point` and is told them, once per pass."""

    def __init__(self, theta: np.ndarray, solve: Solve) -> None:
        self.theta, self.solve = theta, solve
        self.point = theta
        self.pairs: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=REMEMBERED)
        self.loss, self.g, self.way = np.inf, np.zeros_like(theta), np.zeros_like(theta)
        self.length = 1.0
        self.done = False

    @property
    def left(self) -> float:
        """The largest change of a coefficient that the next step would make."""
        return float(np.abs(self.way).max())

    def tell(self, loss: float, g: np.ndarray) -> None:
        """Take the loss and slope at `point` and choose the next one."""
        if self.done:
            return
        enough = self.loss + SUFFICIENT * self.length * float(np.sum(self.g * self.way))
        if np.isfinite(self.loss) and not loss <= enough + 1e-12 * abs(self.loss):
            self.length /= 4
            self.point = self.theta + self.length * self.way
            return
        change, turn = self.point - self.theta, g - self.g
        if np.isfinite(self.loss) and np.sum(change * turn) > 0:
            self.pairs.append((change, turn))
        self.theta, self.loss, self.g, self.length = self.point, loss, g, 1.0
        self.way = -self.steered(g)
        self.point = self.theta + self.way
        if self.left < SETTLED:  # the last step is taken unseen: it is far smaller than what was allowed
            self.theta, self.done = self.point, True

    def steered(self, g: np.ndarray) -> np.ndarray:
        """The two-loop recursion."""
        q, used = g.copy(), []
        for change, turn in reversed(self.pairs):
            share = np.sum(change * q) / np.sum(change * turn)
            q -= share * turn
            used.append(share)
        way = self.solve(q)
        for (change, turn), share in zip(self.pairs, reversed(used), strict=True):
            way += (share - np.sum(turn * way) / np.sum(change * turn)) * change
        return way


def fit_sample(X: np.ndarray, A: np.ndarray, k: int, penalty: float, times: float) -> tuple[np.ndarray, Solve]:
    """The optimum of sampled rows, each standing for `times` rows, and the inverse curvature there."""
    theta = np.zeros((X.shape[1], k))
    some = X[:: max(1, len(X) // CURVED_ROWS)]
    solve = curvature(theta, some, penalty, times * len(X) / len(some))
    for _ in range(3):  # the curvature at 0 is far from that at the optimum, so it is taken again on the way
        theta = settled(X, A, theta, solve, penalty, times)
        solve = curvature(theta, some, penalty, times * len(X) / len(some))
    return theta, solve


def fold_starts(
    X: np.ndarray, A: np.ndarray, k: int, penalty: float, times: float, rows_of_folds: Sequence[np.ndarray]
) -> list["Descent"]:
    """A descent per fold from the optimum of its sampled rows; all with the curvature of the whole sample.

    The whole sample's optimum and curvature only say where to begin and how to step: what a fold arrives at is the
    optimum of its own rows.
    """
    theta, solve = fit_sample(X, A, k, penalty, times)
    if len(rows_of_folds) == 1:
        return [Descent(theta, solve)]
    return [Descent(settled(X[rows], A[rows], theta, solve, penalty, times), solve) for rows in rows_of_folds]


def settled(X: np.ndarray, A: np.ndarray, theta: np.ndarray, solve: Solve, penalty: float, times: float) -> np.ndarray:
    """Steps on rows in memory."""
    descent = Descent(theta, solve)
    for _ in range(2 * MOST_PASSES):
        loss, g = multinomial_sums(descent.point, X, A)
        descent.tell(*penalised(times * loss, times * g, descent.point, penalty))
        if descent.done:
            break
    return descent.theta


# Reward models -------------------------------------------------------------------------------------------


def reward_sums(
    theta: np.ndarray, X: np.ndarray, A: np.ndarray, R: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Slope [D + 1, k], curvature [k, D + 1, D + 1] and (weight, weight x reward) [2, k] of a regression per action."""
    size, k = theta.shape
    g, H, seen = np.zeros((size, k)), np.zeros((k, size, size)), np.zeros((2, k))
    for a in range(k):
        rows = np.flatnonzero(A == a)
        x, w = X[rows], weight[rows]
        r = 1 / (1 + np.exp(-np.clip(x @ theta[:, a], -500, 500)))
        g[:, a] = x.T @ (w * (r - R[rows]))
        H[a] = x.T @ (x * (w * r * (1 - r))[:, None])
        seen[:, a] = w.sum(), w @ R[rows]
    return g, H, seen


def newton_step(theta: np.ndarray, g: np.ndarray, H: np.ndarray, penalty: float) -> np.ndarray:
    """theta after one step of Newton's method for each action."""
    diagonal = np.append(np.full(len(theta) - 1, penalty), 0.0)
    g = g + diagonal[:, None] * theta
    return theta - np.column_stack([inverse(H[a] + np.diag(diagonal)) @ g[:, a] for a in range(theta.shape[1])])
