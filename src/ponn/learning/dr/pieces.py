"""Columns in pieces, so that a network bends where a tree would cut: piecewise linear encoding (Gorishniy et al. 2022).

Between two neighbouring quantiles of a column a piece rises from 0 to 1; below it is 0, above it is 1. Any function of
the column that is linear between these quantiles, and constant outside, is a constant and a weighted sum of pieces.

symbol   meaning                                        shape
X        columns                                        [n, D]
m        pieces of all columns together
column   which column a piece belongs to                [m]
low      quantile at which it starts to rise            [m]
high     quantile from which on it is 1                 [m]
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

PIECES = 8  # of a column; docs/decisions/035 compares 4 to 32
# So many at most for all columns, and so many numbers for all rows: beyond, there are fewer for each column, or none.
# For time and memory, not compared.
MOST_PIECES, MOST_NUMBERS = 1_000, 50_000_000


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of some columns."""

    column: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray, rows: int) -> Self:
        """Those between quantiles of X, fewer where quantiles fall together; none in a column of one or two values.

        rows: how many are to be read, so that models of several parts of a log have the same number of pieces.
        """
        some = np.flatnonzero(((X > X.min(axis=0)) & (X < X.max(axis=0))).any(axis=0))  # three values or more
        most = max(1, len(some))
        wanted = min(PIECES, MOST_PIECES // most, MOST_NUMBERS // (rows * most))
        if wanted < 2 or not len(some):  # a single piece says what its column says
            return cls(np.empty(0, int), *np.empty((2, 0), np.float32))
        levels = np.arange(wanted + 1) / wanted
        edges = [np.unique(one) for one in np.quantile(X[:, some], levels, axis=0).T.astype(np.float32)]
        edges = [one if len(one) > 2 else one[:1] for one in edges]
        column = np.repeat(some, [len(one) - 1 for one in edges])
        low, high = (np.concatenate([one[cut] for one in edges]) for cut in (slice(-1), slice(1, None)))
        return cls(column, low, high)

    def __len__(self) -> int:
        return len(self.column)

    def beside(self, X: np.ndarray) -> np.ndarray:
        """The columns and, after them, their pieces: [n, D + m]."""
        X = np.asarray(X, np.float32)
        rising = X[:, self.column]
        rising -= self.low
        rising /= self.high - self.low
        return np.hstack([X, np.clip(rising, 0, 1, out=rising)])
