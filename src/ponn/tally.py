"""The sums over rows that Step B is made of. A tally has a zero and merges with `+`, so rows can be anywhere.

    symbol    meaning                                                                   shape
    n, k, D   rows, actions, correlation columns
    b[i]      levels of feature i; L = sum of b: all levels, feature after feature      [d]
    U_j(a)    1{A_j = a} min(1/p0_j, m) R_j, here `u[j]` for the action that was taken  [n]
    N         N(x_i): rows with this level                                              [L + 1]
    N_taken   N(a, x_i): rows with this level in which a was taken                      [k, L + 1]
    U         R_hat(a, x_i): mean of U(a) over the rows with this level                 [k, L + 1]
    M2        sum over these rows of (U_j(a) - U)^2                                     [k, L + 1]

The last column stands for the whole log, as if all rows had one level in common: U[:, -1] is R_hat(a).
With row weights every row counts as often as its weight says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from ponn.encode import CategoryFeature, Encoding
from ponn.log import Log

BLOCK_ROWS = 65_536  # rows tallied at a time: a block of one feature stays in the second-level cache
# In a cell where nearly every row has the same U the squares cancel; it is then summed again around its mean.
CANCELS = 1e-4
GRAM_ROWS = 8_192


@dataclass(frozen=True, eq=False)
class LevelTally:
    """Counts, means and squared deviations of U(a) in every level of every feature."""

    N: np.ndarray  # [L + 1]
    N_taken: np.ndarray  # [k, L + 1]
    U: np.ndarray  # [k, L + 1]
    M2: np.ndarray  # [k, L + 1]

    @classmethod
    def zero(cls, k: int, columns: int) -> "LevelTally":
        """The tally of no rows."""
        return cls(np.zeros(columns), *(np.zeros((k, columns)) for _ in range(3)))

    def __add__(self, other: "LevelTally") -> "LevelTally":
        N = self.N + other.N
        share = np.divide(other.N, N, out=np.zeros_like(N), where=N > 0)
        gap = other.U - self.U
        return LevelTally(
            N=N,
            N_taken=self.N_taken + other.N_taken,
            U=self.U + gap * share,
            M2=self.M2 + other.M2 + gap * gap * (self.N * share),  # Chan, Golub, LeVeque
        )

    @property
    def V(self) -> np.ndarray:
        """V_n(a, x_i), and V_n(a) in the last column; 0 where a level has only one row."""
        return np.divide(self.M2, self.N - 1, out=np.zeros_like(self.M2), where=self.N > 1)  # [k, L + 1]


@dataclass(frozen=True, eq=False)
class GramTally:
    """Means and co-moments of the correlation columns: a number itself (missing: the mean), 0/1 per category level."""

    n: float
    mean: np.ndarray  # [D], from the encoding's means
    C: np.ndarray  # [D, D]: sum of (x - mean) (x - mean)^T

    @classmethod
    def zero(cls, D: int) -> "GramTally":
        """The tally of no rows."""
        return cls(0.0, np.zeros(D), np.zeros((D, D)))

    def __add__(self, other: "GramTally") -> "GramTally":
        n = self.n + other.n
        share = other.n / n if n else 0.0
        gap = other.mean - self.mean
        C = self.C + other.C + np.outer(gap, gap) * (self.n * share)
        return GramTally(n, self.mean + gap * share, C)


@dataclass(frozen=True, eq=False)
class Tally:
    """All sums of Step B over some rows."""

    levels: LevelTally
    gram: GramTally

    @classmethod
    def zero(cls, encoding: Encoding, k: int) -> "Tally":
        """The tally of no rows."""
        return cls(LevelTally.zero(k, int(encoding.b.sum()) + 1), GramTally.zero(len(correlation_owner(encoding))))

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.levels + other.levels, self.gram + other.gram)


@dataclass(frozen=True, eq=False)
class Taken:
    """What was done in some rows and what came of it: A_j, U_j(A_j) and the row's weight."""

    A: np.ndarray  # [n]
    u: np.ndarray  # [n]
    k: int
    weight: np.ndarray | None = None

    def rows(self, rows: np.ndarray | slice) -> "Taken":
        """Some of the rows."""
        weight = None if self.weight is None else self.weight[rows]
        return Taken(self.A[rows], self.u[rows], self.k, weight)

    @cached_property
    def rewarded(self) -> np.ndarray:
        """The rows with U != 0: the others add nothing to the sums."""
        return np.flatnonzero(self.u)

    @cached_property
    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """U and U^2 of the rewarded rows, times their weight."""
        u = self.u[self.rewarded].astype(float)
        s = u if self.weight is None else u * self.weight[self.rewarded]
        return s, s * u

    @cached_property
    def scratch(self) -> np.ndarray:
        """Room for the cell of each row, used by one feature after the other: fresh memory is slow."""
        return np.empty(len(self.A), np.intp)

    def first_cells(self, b: int) -> np.ndarray:
        """A_j b, the first cell of each row's action in a [k, b] table; kept, as many features have the same b."""
        if b not in self._first_cells:
            self._first_cells[b] = self.A.astype(np.intp) * b
        return self._first_cells[b]

    @cached_property
    def _first_cells(self) -> dict[int, np.ndarray]:
        return {}


def tally_log(encoding: Encoding, log: Log, u: np.ndarray, gram: bool = True) -> Tally:
    """Tally a log in memory; u[j] is U_j of the action taken."""
    total, start = Tally.zero(encoding, len(log.actions)), 0
    for part in log.batches(BLOCK_ROWS):
        taken = Taken(part.A, u[start : start + len(part)], len(log.actions), part.weight)
        total += tally_batch(encoding, encoding.select(part).columns, taken, gram)
        start += len(part)
    return total


def tally_batch(encoding: Encoding, columns: Sequence[pa.ChunkedArray], taken: Taken, gram: bool = True) -> Tally:
    """Tally some rows; their columns are the features, in the order of the encoding."""
    values = [feature.read(column) for feature, column in zip(encoding.features, columns, strict=True)]
    cells = [
        level_cells(feature.codes(x), feature.b, taken) for feature, x in zip(encoding.features, values, strict=True)
    ]
    whole = level_cells(np.zeros(len(taken.A), np.int16), 1, taken)
    N_taken, U, M2 = (np.concatenate(parts, axis=1) for parts in zip(*cells, whole, strict=True))
    moments = gram_tally(encoding, values, taken.weight) if gram else GramTally.zero(len(correlation_owner(encoding)))
    return Tally(LevelTally(N_taken.sum(axis=0), N_taken, U, M2), moments)


def level_cells(levels: np.ndarray, b: int, taken: Taken) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """N(a, x_i), mean of U(a) and its squared deviations in the b levels of one feature, each [k, b]."""
    if levels.min(initial=0) < 0:  # rows whose value training never saw have no level
        known = np.flatnonzero(levels >= 0)
        levels, taken = levels[known], taken.rows(known)
    cell = np.add(taken.first_cells(b), levels, out=taken.scratch)  # [n]
    N_taken = cell_sums(cell, taken.weight, (taken.k, b))
    N = N_taken.sum(axis=0)
    cell = cell.take(taken.rewarded)
    total, squares = (cell_sums(cell, values, N_taken.shape) for values in taken.sums)
    U = np.divide(total, N, out=np.zeros_like(total), where=N > 0)
    M2 = squares - total * U
    again = M2 < CANCELS * squares
    if again.any():
        M2 = np.where(again, deviations(cell, taken, U, N), M2)
    return N_taken, U, M2


def cell_sums(cell: np.ndarray, values: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """Sums of the values, or counts, in each cell."""
    return np.bincount(cell, values, minlength=shape[0] * shape[1]).astype(float, copy=False).reshape(shape)


def deviations(cell: np.ndarray, taken: Taken, U: np.ndarray, N: np.ndarray) -> np.ndarray:
    """Squared deviations from the mean, summed around the mean: exact where squares cancel."""
    weight = None if taken.weight is None else taken.weight[taken.rewarded]
    away = (taken.u[taken.rewarded] - U.ravel()[cell]) ** 2
    seen = cell_sums(cell, weight, U.shape)
    return cell_sums(cell, away if weight is None else away * weight, U.shape) + (N - seen) * U * U


# Correlations --------------------------------------------------------------------------------------------


def correlation_owner(encoding: Encoding) -> np.ndarray:
    """The feature of each correlation column: one per number, one per level of a category."""
    columns = [feature.b if isinstance(feature, CategoryFeature) else 1 for feature in encoding.features]
    return np.repeat(np.arange(len(columns)), columns)  # [D]


def gram_tally(encoding: Encoding, columns: list[np.ndarray], weight: np.ndarray | None) -> GramTally:
    """Means and co-moments of one batch.

    Columns are taken from the encoding's means, so that products do not cancel. Where all are in single precision they
    are multiplied so, GRAM_ROWS at a time, and summed in double: correlations are then right to 1e-6, else to 1e-12.
    """
    n = len(columns[0])
    single = all(x.dtype == np.float32 for x in columns) and weight is None
    products = np.zeros((len(correlation_owner(encoding)) + 1,) * 2)
    for start in range(0, n, GRAM_ROWS):
        part = slice(start, start + GRAM_ROWS)
        X = moment_columns(encoding, [x[part] for x in columns], np.float32 if single else np.float64)
        products += X @ X.T if weight is None else (X * weight[part]) @ X.T
    total, sums = float(products[-1, -1]), products[-1, :-1]  # the last row of X is 1
    return GramTally(total, sums / total, products[:-1, :-1] - np.outer(sums, sums) / total)


def moment_columns(encoding: Encoding, columns: list[np.ndarray], dtype: type) -> np.ndarray:
    """The correlation columns of some rows: x - mean, 0 where missing; 0/1 per level of a category; and a row of 1."""
    X: np.ndarray = np.empty((len(correlation_owner(encoding)) + 1, len(columns[0])), dtype)  # [D + 1, n]
    X[-1] = 1
    place = 0
    for feature, x in zip(encoding.features, columns, strict=True):
        if isinstance(feature, CategoryFeature):
            X[place : place + feature.b] = 0
            feature.fill(x, X[place : place + feature.b].T)
            place += feature.b
        else:
            np.subtract(x, dtype(feature.mean), out=X[place])
            if feature.missing or np.isnan(X[place].min(initial=np.inf)):
                np.nan_to_num(X[place], copy=False, nan=0.0)
            place += 1
    return X
