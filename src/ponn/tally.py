"""The sums over rows that Step B is made of. A tally has a zero and merges with `+`, so rows can be anywhere.

    symbol    meaning                                                                   shape
    n, k, D   rows, actions, design columns
    b[i]      levels of feature i; L = sum of b: all levels, feature after feature      [d]
    U_j(a)    1{A_j = a} min(1/p0_j, m) R_j, here `u[j]` for the action that was taken  [n]
    N         N(x_i): rows with this level                                              [L + 1]
    N_taken   N(a, x_i): rows with this level in which a was taken                      [k, L + 1]
    U         R_hat(a, x_i): mean of U(a) over the rows with this level                 [k, L + 1]
    M2        sum over these rows of (U_j(a) - U)^2                                     [k, L + 1]

The last column stands for the whole log, as if all rows had one level in common: U[:, -1] is R_hat(a).
With row weights every row counts as often as its weight says.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ponn.encode import Encoding
from ponn.log import Log

BLOCK_ROWS = 65_536  # rows tallied at a time: a block of one feature stays in the second-level cache
# In a cell where nearly every row has the same U the squares cancel; it is then summed again around its mean.
CANCELS = 1e-4


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
    """Means and co-moments of the design columns, for correlations."""

    n: float
    mean: np.ndarray  # [D]
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
        return cls(LevelTally.zero(k, int(encoding.b.sum()) + 1), GramTally.zero(len(encoding.owner)))

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.levels + other.levels, self.gram + other.gram)


@dataclass(frozen=True, eq=False)
class Taken:
    """What was done in some rows and what came of it: A_j, U_j(A_j) and the row's weight."""

    A: np.ndarray  # [n]
    u: np.ndarray  # [n]
    k: int
    weight: np.ndarray | None = None

    def slice(self, start: int, stop: int) -> "Taken":
        """A run of rows."""
        weight = None if self.weight is None else self.weight[start:stop]
        return Taken(self.A[start:stop], self.u[start:stop], self.k, weight)


def tally_log(encoding: Encoding, log: Log, u: np.ndarray, gram: bool = True) -> Tally:
    """Tally a log in memory; u[j] is U_j of the action taken."""
    taken = Taken(log.A, u, len(log.actions), log.weight)
    total = Tally.zero(encoding, taken.k)
    start = 0
    for batch in encoding.select(log).combine_chunks().to_batches(max_chunksize=BLOCK_ROWS):
        total += tally_batch(encoding, batch, taken.slice(start, start + batch.num_rows), gram)
        start += batch.num_rows
    return total


def tally_batch(encoding: Encoding, batch: pa.RecordBatch, taken: Taken, gram: bool = True) -> Tally:
    """Tally one batch of rows whose columns are the features, in the order of the encoding."""
    design = np.zeros((batch.num_rows, len(encoding.owner)) if gram else (0, 0))
    cells = [level_cells(levels, b, taken) for levels, b in read_columns(encoding, batch, design)]
    whole = level_cells(np.zeros(batch.num_rows, np.int16), 1, taken)
    N_taken, U, M2 = (np.concatenate(parts, axis=1) for parts in zip(*cells, whole, strict=True))
    moments = gram_tally(design, taken.weight) if gram else GramTally.zero(len(encoding.owner))
    return Tally(LevelTally(N_taken.sum(axis=0), N_taken, U, M2), moments)


def read_columns(encoding: Encoding, batch: pa.RecordBatch, design: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Each feature's levels and their number; on the way its design columns are written, if there is room."""
    end = 0
    for feature, column in zip(encoding.features, batch.columns, strict=True):
        x = feature.read(pa.chunked_array([column]))
        start, end = end, end + len(feature.design_names)
        if design.size:
            feature.fill(x, design[:, start:end])
        yield feature.codes(x), feature.b


def level_cells(levels: np.ndarray, b: int, taken: Taken) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """N(a, x_i), mean of U(a) and its squared deviations in the b levels of one feature, each [k, b]."""
    A, u, weight = taken.A, taken.u, taken.weight
    if levels.min(initial=0) < 0:  # rows whose value training never saw have no level
        known = levels >= 0
        levels, A, u = levels[known], A[known], u[known]
        weight = None if weight is None else weight[known]
    cell = A.astype(np.intp) * b + levels  # [n]
    N_taken = cell_sums(cell, weight, (taken.k, b))
    some = np.flatnonzero(u)  # rows with U = 0 add nothing to the sums
    cell, u, weight = cell[some], u[some], None if weight is None else weight[some]
    s = u if weight is None else u * weight
    N = N_taken.sum(axis=0)
    total, squares = cell_sums(cell, s, N_taken.shape), cell_sums(cell, s * u, N_taken.shape)
    U = np.divide(total, N, out=np.zeros_like(total), where=N > 0)
    M2 = squares - total * U
    again = M2 < CANCELS * squares
    if again.any():
        M2 = np.where(again, deviations(cell, u, weight, U, N), M2)
    return N_taken, U, M2


def cell_sums(cell: np.ndarray, values: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """Sums of the values, or counts, in each cell."""
    return np.bincount(cell, values, minlength=shape[0] * shape[1]).astype(float, copy=False).reshape(shape)


def deviations(cell: np.ndarray, u: np.ndarray, weight: np.ndarray | None, U: np.ndarray, N: np.ndarray) -> np.ndarray:
    """Squared deviations from the mean, summed around the mean: exact where squares cancel."""
    away = (u - U.ravel()[cell]) ** 2
    seen = cell_sums(cell, weight, U.shape)
    return cell_sums(cell, away if weight is None else away * weight, U.shape) + (N - seen) * U * U


def gram_tally(X: np.ndarray, weight: np.ndarray | None) -> GramTally:
    """Means and co-moments of the columns of X, [n, D] in double precision."""
    n = float(len(X) if weight is None else weight.sum())
    mean = X.mean(axis=0) if weight is None else weight @ X / n
    X -= mean
    return GramTally(n, mean, X.T @ X if weight is None else (X * weight[:, None]).T @ X)
