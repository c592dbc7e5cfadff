"""Doubly robust scores: what every action would have brought in every row, right on average if either model is.

symbol   meaning                                                                 shape
A, R     action taken and reward in [0, 1]                                       [n]
w        importance weight 1/p_j of the action taken (truncated, if one wants)   [n]
Q        r_hat(a, x_j), from models that never saw row j                         [n, k]
G        scores G_ja = Q_ja + 1{A_j = a} w_j (R_j - Q_ja)                        [n, k]

E[G_ja | x_j] = r(a, x_j) where Q is right, whatever w; and where w = 1/p is right, whatever Q (Dudik et al. 2014).
A policy's value is the mean over rows of sum_a h(a | x_j) G_ja, which is `estimators.doubly_robust`.
"""

from dataclasses import dataclass

import numpy as np

from ponn.evaluation.estimators import Valuation, mean_of, mean_one, standard_error

CLEAR = 2.0  # standard errors: of policies that are worth the same, one in 40 seems clearly better


def doubly_robust_scores(Q: np.ndarray, A: np.ndarray, R: np.ndarray, w: np.ndarray) -> np.ndarray:
    """G of every row and action."""
    G, n = Q.copy(), np.arange(len(A))
    G[n, A] += w * (R - Q[n, A])
    return G  # [n, k]


def policy_value(h: np.ndarray, G: np.ndarray, weight: np.ndarray | None = None) -> Valuation:
    """The doubly robust value of a policy h [n, k] by the scores of the same rows."""
    return mean_of(np.einsum("ja,ja->j", h, G), mean_one(weight, len(G)))


@dataclass(frozen=True)
class Gain:
    """By how much one policy is worth more than another on the same rows, and the standard error of that."""

    value: float
    error: float

    @property
    def clear(self) -> bool:
        """More than CLEAR standard errors above 0."""
        return self.value > CLEAR * self.error


def gain(new: np.ndarray, old: np.ndarray, G: np.ndarray, weight: np.ndarray | None, group: np.ndarray | None) -> Gain:
    """The paired gain of policy `new` over `old`, both [n, k]."""
    found = policy_value(new, G, weight) - policy_value(old, G, weight)
    return Gain(found.value, standard_error(found.psi, group))
