"""What Step C minimises: Loss + lambda3 * penalty (sections 4.3 and 4.4), as functions of h(A_j | x_j).

symbol     meaning                                                                          shape
log_h      log h(A_j | x_j), of the action that was taken                                   [rows]
R          reward in [0, 1]                                                                 [rows]
w          importance weight 1/p_j                                                          [rows]
u          what a row adds to the loss: Loss = (1/n) sum_j u_j                              [rows]
n          rows of the whole log
M          POEM's clip of h/p
baseline   reward that counts as neither good nor bad (snips)

    criterion       u_j                            name
    cross-entropy   -R_j w_j log h(A_j | x_j)      the PONN objective, section 4.4
    ips             -R_j min(M, w_j h(A_j | x_j))  negative IPS; with the variance penalty it is POEM
    snips           -(R_j - baseline) w_j h(A_j | x_j)   BanditNet (Joachims, Swaminathan, de Rijke 2018)

Rows with u_j = 0 whatever the policy (R = 0 for the first two) can be left out of the tensors: every function takes
the n of the whole log, so neither a loss, nor a gradient, nor a variance changes.

The cross-entropy's population minimiser is h(a | x) = r(a, x) / sum_a' r(a', x), not the best action.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CRITERIA = ("cross-entropy", "ips", "snips")


def contributes(criterion: str, R: np.ndarray) -> np.ndarray:
    """Which rows can change the criterion: the rewarded ones; all for snips, whose normaliser sums over every row."""
    return np.ones(len(R), bool) if criterion == "snips" else np.asarray(R > 0)


def row_losses(
    criterion: str, log_h: Tensor, R: Tensor, w: Tensor, *, M: float = np.inf, baseline: float = 0.0
) -> Tensor:
    """u_j of each row, see the table on top."""
    if criterion == "cross-entropy":
        return -R * w * log_h
    ratio = w * log_h.exp()  # [rows]: h/p
    return -R * ratio.clamp(max=M) if criterion == "ips" else -(R - baseline) * ratio


def mean_loss(u: Tensor, n: float) -> Tensor:
    """Loss = (1/n) sum_j u_j: n counts the rows that were left out, whose u is 0."""
    return u.sum() / n


def snips_value(log_h: Tensor, R: Tensor, w: Tensor) -> Tensor:
    """The self-normalised value sum_j R_j w_j h_j / sum_j w_j h_j; needs every row, with R = 0 as well."""
    ratio = w * log_h.exp()
    return (R * ratio).sum() / ratio.sum()


def validation_loss(
    criterion: str, log_h: Tensor, R: Tensor, w: Tensor, n: float, *, M: float = np.inf, baseline: float = 0.0
) -> Tensor:
    """What early stopping and tuning compare, without penalties: the loss; for snips the negative snips value.

    The baseline of snips is a hyper-parameter of training (which policy is found), so losses under different baselines
    are not comparable; their snips values are.
    """
    if criterion == "snips":
        return -snips_value(log_h, R, w)
    return mean_loss(row_losses(criterion, log_h, R, w, M=M, baseline=baseline), n)


# Penalties -----------------------------------------------------------------------------------------------


def l1_penalty(weights: Iterable[Tensor]) -> Tensor:
    """sum |W| over the weights given (not the intercepts)."""
    return torch.stack([W.abs().sum() for W in weights]).sum()


def l2_penalty(weights: Iterable[Tensor]) -> Tensor:
    """sum W^2 over the weights given (not the intercepts)."""
    return torch.stack([W.square().sum() for W in weights]).sum()


def variance(u: Tensor, n: float) -> Tensor:
    """Var(u) = sum_j (u_j - mean)^2 / (n - 1) over all n rows; those left out have u = 0. Deviations, not squares."""
    mean = u.sum() / n
    return ((u - mean).square().sum() + (n - len(u)) * mean.square()) / max(n - 1, 1)


def variance_penalty(u: Tensor, n: float) -> Tensor:
    """POEM's sqrt(Var(u) / n), the standard error of the loss (Swaminathan and Joachims 2015)."""
    smallest = torch.finfo(u.dtype).tiny  # the root has no slope at 0
    return (variance(u, n) / n).clamp(min=smallest).sqrt()


def poem(log_h: Tensor, R: Tensor, w: Tensor, n: float, strength: float, M: float = np.inf) -> Tensor:
    """mean(u) + lambda sqrt(Var(u) / n) with u_j = -R_j min(M, h(A_j | x_j) / p_j)."""
    u = row_losses("ips", log_h, R, w, M=M)
    return mean_loss(u, n) + strength * variance_penalty(u, n)


class Majorant(NamedTuple):
    """(1/n) sum_j (alpha u_j + beta u_j^2) + constant bounds Loss + strength sqrt(Var / n) from above.

    Both touch, with the same slope, at the u it was made from. It is a sum over rows, so it can be minimised in
    mini-batches: the procedure that POEM's authors give (2015, section 5.2). strength = 0 gives (1, 0), the loss.
    """

    alpha: float = 1.0
    beta: float = 0.0

    def rows(self, u: Tensor) -> Tensor:
        """alpha u_j + beta u_j^2."""
        return self.alpha * u + self.beta * u.square() if self.beta else self.alpha * u


def majorant(u: Tensor, n: float, strength: float) -> Majorant:
    """Linearise the root in the variance, and -mean^2 in the mean, both concave, at the u given.

    sqrt(V/n) <= sqrt(V0/n) + (V - V0) / (2 sqrt(n V0)) and V = n/(n-1) (mean(u^2) - mean(u)^2).
    """
    u = u.double()
    V0 = float(variance(u, n))
    if strength == 0 or V0 == 0:
        return Majorant()
    beta = strength * n / (max(n - 1, 1) * 2 * (n * V0) ** 0.5)
    return Majorant(1 - 2 * beta * float(u.sum()) / n, beta)


# The propensity-overfitting monitor ------------------------------------------------------------------------


class Ratio(NamedTuple):
    """Mean h/p over rows, rewarded or not: near 1 unless the policy has fitted the weights, or p is wrong.

    total: mean_j h(A_j | x_j) / p_j. by_action: mean_j 1{A_j = a} h(a | x_j) / p_j over mean_j h(a | x_j).
    """

    total: float
    by_action: tuple[float, ...]  # [k]; NaN where the policy never takes the action


def ratio(log_h: Tensor, A: Tensor, w: Tensor) -> Ratio:
    """The monitor from log h(a | x_j) of every action: log_h [rows, k]."""
    h = log_h.double().exp()
    taken = h.gather(1, A[:, None])[:, 0] * w  # [rows]
    by_action = torch.zeros(h.shape[1], dtype=h.dtype).index_add_(0, A, taken) / h.sum(dim=0)
    return Ratio(float(taken.mean()), tuple(by_action.tolist()))
