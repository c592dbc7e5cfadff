"""Joint relevance of two features, which the paper leaves to future work: what they tell together and not alone.

    symbol     meaning                                                                       shape
    c_i        coarse level of feature i, at most 4 of them
    I(a, c_i, c_l) = R_hat(a, c_i, c_l) - R_hat(a, c_i) - R_hat(a, c_l) + R_hat(a): the main effects taken out
    G          G_hat(a, i, l) = sum over (c_i, c_l) of N(c_i, c_l)/n l(I(a, c_i, c_l))       [k, d, d]
    p_value    of the hypothesis that I is 0 everywhere                                      [k, d, d]

An XOR pair has two features of relevance 0 each and a joint relevance above 0. All cells of all pairs come from one
matrix product per action: with Z the 0/1 columns of the coarse levels, Z^T diag(U) Z holds the sums of every pair.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError
from ponn.log.encoding import Encoding
from ponn.log.log import Log
from ponn.settings import Settings
from ponn.steps.discovery import FEWEST_TAKEN, centre, q_values, welch_james
from ponn.steps.propensity import Propensities
from ponn.steps.relevance import LOSSES, Loss

COARSE = 4  # levels per feature at most
MOST_FEATURES = 200
BLOCK_ROWS = 16_384


@dataclass(frozen=True, eq=False)
class PairRelevance:
    """Joint relevance of every two features for every action, main effects removed."""

    actions: tuple[Any, ...]
    features: tuple[str, ...]
    G: np.ndarray  # [k, d, d], symmetric, 0 on the diagonal
    p_value: np.ndarray  # [k, d, d], 1 on the diagonal and where rows are too few

    def table(self, most: int = 50) -> pa.Table:
        """The pairs with the smallest p-values, with their false-discovery rate over all pairs and actions."""
        i, j = np.triu_indices(len(self.features), k=1)
        p = self.p_value[:, i, j]  # [k, pairs]
        q = q_values(p)
        a, pair = np.unravel_index(np.argsort(p, axis=None, kind="stable")[:most], p.shape)
        return pa.table(
            {
                "action": [self.actions[one] for one in a],
                "feature": [self.features[i[one]] for one in pair],
                "other": [self.features[j[one]] for one in pair],
                "relevance": self.G[a, i[pair], j[pair]],
                "p_value": p[a, pair],
                "q_value": q[a, pair],
            }
        )


def pair_relevance(
    log: Log, encoding: Encoding, found: Propensities, settings: Settings | None = None, *, loss: Loss | None = None
) -> PairRelevance:
    """G_hat for all pairs of at most 200 features."""
    if len(encoding.features) > MOST_FEATURES:
        raise PonnError(
            f"Joint relevance looks at every pair of at most {MOST_FEATURES} features; this log has "
            f"{len(encoding.features)}. Name fewer under features."
        )
    loss = loss or LOSSES[(settings or Settings()).loss]
    k, w = len(log.actions), found.weights
    codes, sizes = coarse_levels(encoding.levels(log), encoding.b)
    Z = indicator_columns(codes, sizes)  # [n, C]
    N = weighted_cells(Z, np.arange(len(log)), np.ones(len(log)))  # [C, C]: rows per cell
    shift = centre(log.R, log.A, w, k)
    G, p = np.zeros((k, len(sizes), len(sizes))), np.ones((k, len(sizes), len(sizes)))
    for a in range(k):
        rows = np.flatnonzero(log.A == a)
        if len(rows):
            G[a] = interaction_sizes(weighted_cells(Z, rows, (w * log.R)[rows]), N, sizes, loss)
            z = (w * (log.R - shift))[rows]
            p[a] = interaction_tests(Z, rows, z, N, sizes)
    return PairRelevance(log.actions, tuple(one.name for one in encoding.features), G, p)


def coarse_levels(levels: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Neighbouring levels joined into at most COARSE with about equally many rows; their number per feature."""
    codes, sizes = np.empty_like(levels, dtype=np.int8), np.empty(len(b), np.intp)
    for i, size in enumerate(b):
        N = np.bincount(levels[:, i], minlength=size)
        if size <= COARSE:
            step = np.arange(size)
        else:
            middle = (np.cumsum(N) - N / 2) / max(N.sum(), 1)
            step = np.unique(np.minimum((middle * COARSE).astype(int), COARSE - 1), return_inverse=True)[1]
        codes[:, i], sizes[i] = step[levels[:, i]], step.max() + 1
    return codes, sizes


def indicator_columns(codes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """One 0/1 column per coarse level of each feature, [n, C]."""
    Z = np.zeros((len(codes), int(sizes.sum())), np.float32)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    Z[np.arange(len(codes))[:, None], starts + codes] = 1
    return Z


def weighted_cells(Z: np.ndarray, rows: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Z^T diag(u) Z over the given rows, [C, C], block by block in double precision."""
    total = np.zeros((Z.shape[1], Z.shape[1]))
    for start in range(0, len(rows), BLOCK_ROWS):
        part = Z[rows[start : start + BLOCK_ROWS]].astype(float)
        total += part.T @ (part * u[start : start + BLOCK_ROWS, None])
    return total


def interaction_sizes(total: np.ndarray, N: np.ndarray, sizes: np.ndarray, loss: Loss) -> np.ndarray:
    """G_hat(a, i, l) of one action from its sums of U per cell."""
    main = np.diag(total) / np.maximum(np.diag(N), 1)  # [C]: R_hat(a, c_i)
    rows = np.diag(N)[: sizes[0]].sum()
    overall = np.diag(total)[: sizes[0]].sum() / rows
    cell = np.divide(total, N, out=np.zeros_like(total), where=N > 0)
    interaction = cell - main[:, None] - main[None, :] + overall
    sums = blocks(np.where(N > 0, N * loss.function(interaction), 0.0), sizes) / rows
    np.fill_diagonal(sums, 0.0)
    return sums  # [d, d]


def interaction_tests(Z: np.ndarray, rows: np.ndarray, z: np.ndarray, N: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """p-values of one action: are the cell means of the centred variable additive in the two features?"""
    total, squares, taken = (weighted_cells(Z, rows, u) for u in (z, z * z, np.ones(len(rows))))
    mean = np.divide(total, N, out=np.zeros_like(total), where=N > 0)
    variance = np.divide(squares, N, out=np.zeros_like(total), where=N > 0) - mean**2
    testable = (variance > 0) & (taken >= FEWEST_TAKEN / 2)
    precision = np.divide(N, variance, out=np.zeros_like(total), where=testable)
    i, j = np.triu_indices(len(sizes), k=1)
    place = padded_places(sizes)  # [d, COARSE], C where there is no such level
    cells = place[i][:, :, None], place[j][:, None, :]
    tables = (np.pad(values, (0, 1))[cells].reshape(len(i), -1) for values in (mean, precision, taken))  # [pairs, 16]
    p = np.ones((len(sizes), len(sizes)))
    p[i, j] = p[j, i] = welch_james(*additivity(*tables))
    return p


def padded_places(sizes: np.ndarray) -> np.ndarray:
    """The columns of Z that belong to each feature, filled up to COARSE with a column that does not exist."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    places = starts[:-1, None] + np.arange(COARSE)
    return np.where(places < starts[1:, None], places, starts[-1])


# The additive tables of COARSE x COARSE cells: one column per row and per column of the table.
ADDITIVE = np.hstack([np.kron(np.eye(COARSE), np.ones((COARSE, 1))), np.tile(np.eye(COARSE), (COARSE, 1))])


def additivity(mean: np.ndarray, precision: np.ndarray, taken: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weighted least squares of each table on rows + columns: degrees of freedom, residual chi-square, slack."""
    root = np.sqrt(precision)  # [pairs, 16], 0 for cells that are not used
    basis, scale, _ = np.linalg.svd(root[:, :, None] * ADDITIVE, full_matrices=False)
    kept = scale > 1e-9 * scale.max(axis=1, keepdims=True)
    basis = basis * kept[:, None, :]  # orthonormal columns that span the additive tables
    y = mean * root
    residual = y - np.einsum("pcr,pr->pc", basis, np.einsum("pcr,pc->pr", basis, y))
    leverage = np.sum(basis**2, axis=2)
    used = precision > 0
    slack = np.where(used, (1 - leverage) ** 2 / np.maximum(taken - 1, 1), 0).sum(axis=1)
    return used.sum(axis=1) - kept.sum(axis=1), np.sum(residual**2, axis=1), slack


def blocks(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Sum over the cells of each pair of features: [C, C] → [d, d]."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return np.add.reduceat(np.add.reduceat(values, starts, axis=0), starts, axis=1)
