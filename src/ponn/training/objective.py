"""What Step C minimises: Loss + lambda3 * penalty (sections 4.3 and 4.4), with its slopes in the scores.

symbol     meaning                                                                          shape
S          scores of the network, by action                                                 [k, rows]
v          what a criterion reads of a row: log h(A_j | x_j); the score itself (logistic)   [rows]
R          reward in [0, 1]                                                                 [rows]
w          importance weight 1/p_j                                                          [rows]
q          a row's stake -R_j w_j; for snips -(R_j - baseline) w_j                          [rows]
u          what a row adds to the loss: Loss = (1/n) sum_j u_j                              [rows]
n          rows of the whole log
M          POEM's clip of h/p
barred     is action a not eligible in row j? None: none                                   [rows, k] bool
baseline   reward that counts as neither good nor bad (snips)

    criterion       u_j                            name
    cross-entropy   q_j log h(A_j | x_j)           the PONN objective, section 4.4
    ips             q_j min(h(A_j | x_j), M / w_j) negative IPS; with the variance penalty it is POEM
    snips           q_j h(A_j | x_j)               BanditNet (Joachims, Swaminathan, de Rijke 2018)
    logistic        w_j log(1 + exp(s_j)) + q_j s_j   a reward network: k = 1, s_j the log-odds of a reward

Rows with u_j = 0 whatever the policy (R = 0 for the first two) can be left out of the tensors: every function takes
the n of the whole log, so neither a loss, nor a gradient, nor a variance changes.

Where actions are barred, h(. | x_j) is the softmax over the others: a barred action has probability 0 and slope 0.

The cross-entropy's population minimiser is h(a | x) = r(a, x) / sum_a' r(a', x), not the best action.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

CRITERIA = ("cross-entropy", "ips", "snips", "logistic")
REWARDED_ONLY = ("cross-entropy", "ips")


def contributes(criterion: str, R: np.ndarray) -> np.ndarray:
    """Which rows can change the criterion: the rewarded ones; all for snips (its normaliser) and for logistic."""
    return np.asarray(R > 0) if criterion in REWARDED_ONLY else np.ones(len(R), bool)


class Outcomes(NamedTuple):
    """What the criterion knows of rows beside the scores."""

    A: Tensor
    R: Tensor
    w: Tensor
    q: Tensor
    barred: Tensor | None = None


def outcomes(
    criterion: str, A: Tensor, R: Tensor, w: Tensor, baseline: float = 0.0, barred: Tensor | None = None
) -> Outcomes:
    """Rows with their stakes q."""
    return Outcomes(A, R, w, -(R - baseline) * w if criterion == "snips" else -R * w, barred)


def open_scores(S: Tensor, rows: Outcomes) -> Tensor:
    """The scores, -inf for barred actions, which the softmax turns into 0."""
    return S if rows.barred is None else S.masked_fill(rows.barred.T, -torch.inf)


class RowLosses(NamedTuple):
    """u_j of each row, and du_j / dv_j."""

    u: Tensor
    slope: Tensor


def row_losses(criterion: str, v: Tensor, rows: Outcomes, M: float = np.inf) -> RowLosses:
    """u_j of each row and its slope in v_j, see the table on top."""
    if criterion == "cross-entropy":
        return RowLosses(rows.q * v, rows.q)
    if criterion == "logistic":
        return RowLosses(rows.w * softplus(v) + rows.q * v, rows.w * v.sigmoid() + rows.q)
    h = v.exp()
    u = rows.q * h
    if criterion == "snips" or M == np.inf:
        return RowLosses(u, u)
    most = M / rows.w  # h where h/p reaches M; above it the loss is flat
    return RowLosses(rows.q * torch.minimum(h, most), u * (h < most))


def read(criterion: str, S: Tensor, rows: Outcomes) -> Tensor:
    """v_j of each row."""
    if criterion == "logistic":
        return S.squeeze(0)
    return open_scores(S, rows).log_softmax(dim=0).gather(0, rows.A.unsqueeze(0)).squeeze(0)


def mean_loss(u: Tensor, n: float) -> Tensor:
    """Loss = (1/n) sum_j u_j: n counts the rows that were left out, whose u is 0."""
    return u.sum() / n


def snips_value(log_h: Tensor, R: Tensor, w: Tensor) -> Tensor:
    """The self-normalised value sum_j R_j w_j h_j / sum_j w_j h_j; needs every row, with R = 0 as well."""
    ratio = w * log_h.exp()
    return (R * ratio).sum() / ratio.sum()


def validation_loss(criterion: str, v: Tensor, rows: Outcomes, n: float, M: float = np.inf) -> Tensor:
    """What early stopping and tuning compare, without penalties: the loss; for snips the negative snips value.

    The baseline of snips is a hyper-parameter of training (which policy is found), so losses under different baselines
    are not comparable; their snips values are.
    """
    if criterion == "snips":
        return -snips_value(v, rows.R, rows.w)
    return mean_loss(row_losses(criterion, v, rows, M).u, n)


# Penalties -----------------------------------------------------------------------------------------------


def add_weight_penalties(W: Tensor, slope: Tensor, l1: float, l2: float) -> None:
    """Add the slope of l1 sum |W| + l2 sum W^2, which is l1 sign(W) + 2 l2 W, to that of the loss, in place."""
    if l1:
        slope.add_(W.sign(), alpha=l1)
    if l2:
        slope.add_(W, alpha=2 * l2)


def variance(u: Tensor, n: float) -> Tensor:
    """Var(u) = sum_j (u_j - mean)^2 / (n - 1) over all n rows; those left out have u = 0. Deviations, not squares.

    The mean can be a plain number, even for a gradient: at the mean, the sum of squares has no slope in it.
    """
    mean = float(u.detach().sum()) / n
    return ((u - mean).square().sum() + (n - len(u)) * mean**2) / max(n - 1, 1)


class Majorant(NamedTuple):
    """(1/n) sum_j (alpha u_j + beta u_j^2) + constant bounds Loss + strength sqrt(Var / n) from above.

    Both touch, with the same slope, at the u it was made from. It is a sum over rows, so it can be minimised in
    mini-batches and renewed every epoch: POEM's way (Swaminathan and Joachims 2015).
    The public POEM program computes the same alpha and beta; it differs in its steps (AdaGrad, here Adam) and, within
    a batch, in taking mean(u_j) mean(du_j) for mean(u_j du_j), which is not the slope of this sum.
    strength = 0 gives (1, 0), the loss.
    """

    alpha: float = 1.0
    beta: float = 0.0

    def times(self, factor: float) -> "Majorant":
        """The same sum with another weight."""
        return Majorant(self.alpha * factor, self.beta * factor)

    def slopes(self, rows: RowLosses) -> Tensor:
        """The slope of alpha u_j + beta u_j^2 in v_j."""
        if not self.beta:
            return self.alpha * rows.slope
        return rows.u.mul(2 * self.beta).add_(self.alpha).mul_(rows.slope)


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


class ScoreSlopes(NamedTuple):
    """u_j of each row, and the slopes of sum_j (alpha u_j + beta u_j^2) in the scores."""

    u: Tensor  # [rows]
    slopes: Tensor  # [k, rows]


def score_slopes(criterion: str, S: Tensor, rows: Outcomes, bound: Majorant, M: float = np.inf) -> ScoreSlopes:
    """The chain rule through the softmax: d log h(A_j | x_j) / ds_ja = 1{a = A_j} - h(a | x_j)."""
    if criterion == "logistic":
        losses = row_losses(criterion, S.squeeze(0), rows)
        return ScoreSlopes(losses.u, bound.slopes(losses).unsqueeze(0))
    log_h, A = open_scores(S, rows).log_softmax(dim=0), rows.A.unsqueeze(0)  # [k, rows], [1, rows]
    losses = row_losses(criterion, log_h.gather(0, A).squeeze(0), rows, M)
    dv = bound.slopes(losses).unsqueeze(0)  # [1, rows]
    return ScoreSlopes(losses.u, log_h.exp_().mul_(-dv).scatter_add_(0, A, dv))


# The propensity-overfitting monitor ------------------------------------------------------------------------


class Ratio(NamedTuple):
    """Mean h/p over rows, rewarded or not: near 1 unless the policy has fitted the weights, or p is wrong.

    total: mean_j h(A_j | x_j) / p_j. by_action: mean_j 1{A_j = a} h(a | x_j) / p_j over mean_j h(a | x_j).
    """

    total: float
    by_action: tuple[float, ...]  # [k]; NaN where the policy never takes the action


def ratio(S: Tensor, rows: Outcomes) -> Ratio:
    """The monitor from the scores of every action."""
    h = open_scores(S, rows).double().softmax(dim=0)  # [k, rows]
    taken = h.gather(0, rows.A.unsqueeze(0)).squeeze(0) * rows.w  # [rows]
    by_action = torch.zeros(len(h), dtype=h.dtype).index_add_(0, rows.A, taken) / h.sum(dim=1)
    return Ratio(float(taken.mean()), tuple(by_action.tolist()))
