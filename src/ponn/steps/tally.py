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

The loops over rows are compiled (cells.c) where the package was built with a C compiler, else numpy's: COMPILED says
which. The sums are the same to the last bit.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from ponn.log.encoding import Encoding
from ponn.log.features import NO_LEVEL, CategoryFeature, Feature, NumberFeature
from ponn.log.log import Log
from ponn.log.profile import without_infinite

try:
    from ponn.steps import cells as kernel

    COMPILED = True
except ImportError:
    COMPILED = False

BLOCK_ROWS = 65_536  # rows tallied at a time: a block of one feature stays in the second-level cache
# In a cell where nearly every row has the same U the squares cancel; it is then summed again around its mean.
CANCELS = 1e-4
GRAM_ROWS = 16_384  # fewer would have the tables of all features fetched more often, more would not stay in the cache
CELL = 3  # numbers of a cell in the sums: U, U^2, weight


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
        U = gap * share
        U += self.U
        gap *= gap
        gap *= self.N * share
        M2 = self.M2 + other.M2
        M2 += gap  # Chan, Golub, LeVeque
        return LevelTally(N, self.N_taken + other.N_taken, U, M2)

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
    def actions(self) -> np.ndarray:
        """The actions as C's int."""
        return np.ascontiguousarray(self.A, np.intc)  # [n]

    @cached_property
    def weights(self) -> np.ndarray | None:
        """The rows' weights as C's double, if there are any."""
        return None if self.weight is None else np.ascontiguousarray(self.weight, np.float64)  # [n]

    @cached_property
    def outcomes(self) -> np.ndarray:
        """U as C's double."""
        return np.ascontiguousarray(self.u, np.float64)  # [n]

    @cached_property
    def rewarded(self) -> np.ndarray:
        """The rows with U != 0: the others add nothing to the sums."""
        return np.flatnonzero(self.u)

    @cached_property
    def rewards(self) -> np.ndarray:
        """U and U^2 of the rewarded rows, times their weights."""
        u = self.outcomes[self.rewarded]
        s = u if self.weight is None else u * self.weight[self.rewarded]
        return np.stack([s, s * u])  # [2, rewarded]


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of U, U^2 and weight in every cell of some features, side by side."""

    cells: np.ndarray  # [k, L, 3]
    stops: np.ndarray  # [features]: where the levels of each end

    @classmethod
    def zero(cls, k: int, b: Sequence[int]) -> "Sums":
        """No rows; b: levels of each feature."""
        return cls(np.zeros((k, sum(b), CELL)), np.cumsum(b))

    def part(self, i: int) -> slice:
        """The levels of feature i."""
        return slice(int(self.stops[i - 1]) if i else 0, int(self.stops[i]))

    def of(self, i: int) -> np.ndarray:
        """The cells of feature i: [k, b, 3]."""
        return self.cells[:, self.part(i)]


def tally_log(encoding: Encoding, log: Log, u: np.ndarray, gram: bool = True) -> Tally:
    """Tally a log in memory; u[j] is U_j of the action taken."""
    total, start = None, 0
    for part in log.batches(BLOCK_ROWS):
        taken = Taken(part.A, u[start : start + len(part)], len(log.actions), part.weight)
        found = tally_batch(encoding, encoding.select(part).columns, taken, gram)
        total = found if total is None else total + found
        start += len(part)
    return Tally.zero(encoding, len(log.actions)) if total is None else total


def tally_batch(encoding: Encoding, columns: Sequence[pa.ChunkedArray], taken: Taken, gram: bool = True) -> Tally:
    """Tally some rows; their columns are the features, in the order of the encoding."""
    values = [read_values(feature, column) for feature, column in zip(encoding.features, columns, strict=True)]
    sums = Sums.zero(taken.k, (*encoding.b.tolist(), 1))  # the last: a level that all rows have in common
    moments = add_values(encoding, values, taken, sums, gram)
    return Tally(level_tally(sums, lambda i: levels_of(encoding, values, taken, i), taken), moments)


def read_values(feature: Feature, column: pa.ChunkedArray) -> np.ndarray:
    """The cells of a feature; the compiled loop looks for infinite ones itself."""
    return feature.read_raw(column) if COMPILED and has_equal_bins(feature) else feature.read(column)


def has_equal_bins(feature: Feature) -> TypeGuard[NumberFeature]:
    """Is it a number in bins of equal width?"""
    return isinstance(feature, NumberFeature) and feature.cuts is None


def levels_of(encoding: Encoding, values: Sequence[np.ndarray], taken: Taken, i: int) -> np.ndarray:
    """The level of each row in feature i; after the last feature, the one that all rows have in common."""
    if i == len(values):
        return np.zeros(len(taken.A), np.int16)
    feature, x = encoding.features[i], values[i]
    return feature.codes(without_infinite(x) if has_equal_bins(feature) else x)


def add_values(encoding: Encoding, values: Sequence[np.ndarray], taken: Taken, sums: Sums, gram: bool) -> GramTally:
    """Add the rows to the sums of every feature, and return their co-moments.

    Block by block, so that what is read for the one is still in the cache for the other.
    """
    n, D = len(taken.A), len(correlation_owner(encoding))
    single = all(x.dtype == np.float32 for x in values) and taken.weight is None
    X: np.ndarray = np.empty((D + 1, min(n, GRAM_ROWS)), np.float32 if single else np.float64)
    products = np.zeros((D + 1, D + 1))
    bins = equal_bins(encoding, values, sums, X if gram else None) if COMPILED else {}
    for i in range(len(values) + 1):
        if i not in bins:
            add_levels(sums.of(i), levels_of(encoding, values, taken, i), taken)
    for start in range(0, n, GRAM_ROWS):
        part = slice(start, min(start + GRAM_ROWS, n))
        if bins:
            kernel.add_bins(list(bins.values()), taken.actions, taken.outcomes, taken.weights, part.start, part.stop)
        if gram:
            moments = fill_moments(encoding, [x[part] for x in values], X[:, : part.stop - start], bins)
            products += block_products(moments, None if taken.weight is None else taken.weight[part])
    return gram_tally(products)


# Levels --------------------------------------------------------------------------------------------------


def equal_bins(
    encoding: Encoding, values: Sequence[np.ndarray], sums: Sums, X: np.ndarray | None
) -> dict[int, tuple[Any, ...]]:
    """Features of equal bins, as the compiled loop takes them: it finds the bins and fills the rows of X as well."""
    found = {}
    row_of = np.searchsorted(correlation_owner(encoding), np.arange(len(values)))
    for i, (feature, x) in enumerate(zip(encoding.features, values, strict=True)):
        if not has_equal_bins(feature):
            continue
        scale, missing = feature.bins / (feature.high - feature.low), feature.bins if feature.missing else NO_LEVEL
        row = None if X is None else X[row_of[i]]
        x = np.require(x, requirements=("C", "A"))
        found[i] = (x, feature.low, scale, feature.bins, missing, feature.mean, sums.of(i), row)
    return found


def add_levels(sums: np.ndarray, levels: np.ndarray, taken: Taken) -> None:
    """Add rows with these levels to the sums [k, b, 3] of one feature."""
    if COMPILED:
        kernel.add_rows(np.ascontiguousarray(levels), taken.actions, taken.outcomes, taken.weights, sums)
    else:
        sums += numpy_sums(levels, sums.shape[1], taken)


def numpy_sums(levels: np.ndarray, b: int, taken: Taken) -> np.ndarray:
    """Sums of U, U^2 and weight in each cell; rows whose value training never saw have no level."""
    if levels.min(initial=0) < 0:
        known = np.flatnonzero(levels >= 0)
        levels, taken = levels[known], taken.rows(known)
    cell = taken.A.astype(np.intp) * b + levels  # [n]
    rewarded = cell.take(taken.rewarded)
    sums = [cell_sums(rewarded, values, (taken.k, b)) for values in taken.rewards]
    return np.stack([*sums, cell_sums(cell, taken.weight, (taken.k, b))], axis=-1)  # [k, b, 3]


def cell_sums(cell: np.ndarray, values: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray:
    """Sums of the values, or counts, in each cell."""
    return np.bincount(cell, values, minlength=shape[0] * shape[1]).astype(float, copy=False).reshape(shape)


def level_tally(sums: Sums, levels: Callable[[int], np.ndarray], taken: Taken) -> LevelTally:
    """N(a, x_i), mean of U(a) and its squared deviations in the levels of all features, from their sums.

    levels: gives the levels of a feature, asked for only where its squares cancel.
    """
    total, squares, N_taken = sums.cells[..., 0], sums.cells[..., 1], sums.cells[..., 2].copy()  # [k, L + 1] each
    N = N_taken.sum(axis=0)
    U = total / np.where(N > 0, N, 1)
    M2 = squares - total * U
    again = M2 < CANCELS * squares
    if again.any():
        for i in np.unique(np.searchsorted(sums.stops, np.flatnonzero(again.any(axis=0)), side="right")):
            part = sums.part(i)
            exact = deviations(levels(i), taken, U[:, part], N[part], again[:, part])
            M2[:, part] = np.where(again[:, part], exact, M2[:, part])
    return LevelTally(N, N_taken, U, M2)


def deviations(levels: np.ndarray, taken: Taken, U: np.ndarray, N: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Squared deviations from the mean in the cells wanted, summed around the mean: exact where squares cancel."""
    rows = taken.rewarded[levels[taken.rewarded] >= 0]
    cell = taken.A[rows].astype(np.intp) * U.shape[1] + levels[rows]
    few = np.flatnonzero(wanted.ravel()[cell])  # mostly cells with hardly any rows
    rows, cell = rows[few], cell[few]
    weight = None if taken.weight is None else taken.weight[rows]
    away = (taken.u[rows] - U.ravel()[cell]) ** 2
    seen = cell_sums(cell, weight, U.shape)
    return cell_sums(cell, away if weight is None else away * weight, U.shape) + (N - seen) * U * U


# Correlations --------------------------------------------------------------------------------------------


def correlation_owner(encoding: Encoding) -> np.ndarray:
    """The feature of each correlation column: one per number, one per level of a category."""
    columns = [feature.b if isinstance(feature, CategoryFeature) else 1 for feature in encoding.features]
    return np.repeat(np.arange(len(columns)), columns)  # [D]


def gram_tally(products: np.ndarray) -> GramTally:
    """Means and co-moments from the products of columns taken from the encoding's means; the last column is 1.

    Where all columns are in single precision they are multiplied so, GRAM_ROWS at a time, and summed in double:
    correlations are then right to 1e-6, else to 1e-12.
    """
    total, sums = float(products[-1, -1]), products[-1, :-1]
    if not total:
        return GramTally.zero(len(sums))
    return GramTally(total, sums / total, products[:-1, :-1] - np.outer(sums, sums) / total)


def fill_moments(
    encoding: Encoding, columns: Sequence[np.ndarray], X: np.ndarray, filled: Container[int] = ()
) -> np.ndarray:
    """The correlation columns of some rows: x - mean, 0 where missing; 0/1 per level of a category; and a row of 1.

    filled: features whose columns are in place already.
    """
    X[-1] = 1
    place = 0
    for i, (feature, x) in enumerate(zip(encoding.features, columns, strict=True)):
        if isinstance(feature, CategoryFeature):
            X[place : place + feature.b] = 0
            feature.fill(x, X[place : place + feature.b].T)
            place += feature.b
            continue
        if i not in filled:
            np.subtract(x, X.dtype.type(feature.mean), out=X[place])
            if feature.missing:
                clear_missing(X[place])
        place += 1
    return X  # [D + 1, n]


def clear_missing(X: np.ndarray) -> None:
    """Put a missing cell at the mean."""
    X[np.isnan(X)] = 0


def block_products(X: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """X W X^T; cells missing where training had none show in the sums, so they need not be looked for before."""
    products = weighted_products(X, weight)
    if np.isnan(products[-1]).any():
        clear_missing(X)
        products = weighted_products(X, weight)
    return products  # [D + 1, D + 1]


def weighted_products(X: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """X W X^T."""
    return X @ X.T if weight is None else (X * weight) @ X.T
