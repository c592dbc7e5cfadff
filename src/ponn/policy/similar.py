"""Similar rows: the training rows in cells of alike cases, and what happened in each. numpy alone.

    symbol   meaning                                                       shape
    X        design columns, single precision                              [n, D]
    N        training rows of a cell that took each action                 [cells, k]
    S        the sum of their rewards, which lie in [0, 1]                 [cells, k]
    E        the sum of their residuals R - r_hat(a, x)                    [cells, k]
             of the logistic reward model, which follows its own rows little
    Q        the sum of their squared residuals                            [cells, k]
    n_a      training rows that took the action                            [k]

In cells of few rows a count would speak of single people: where fewer than `least` rows of a cell took an action,
nothing is stored of them, N, S, E and Q are 0 there.

A row is similar to the training rows of its cell: a shallow tree cuts the rows so that those of one cell were treated
alike and fared alike (`partition.py`). The tree is stored as in `trees.py`; its leaves hold N, S, E, Q side by side.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ponn.errors import PonnError
from ponn.log.roles import EXACT
from ponn.policy.inference import restricted
from ponn.policy.schema import Fields, Schema, Whole
from ponn.policy.trees import DTYPES, FOREST_SHAPES, Forests, refuse

Z = 1.96  # standard deviations: nominally 95 %; what it comes to is told in `SimilarRows.interval`
ROUNDING = 1e-6  # by which a sum over the rows of a cell may miss its bounds, per row


class Tallies(NamedTuple):
    """N, S, E and Q, of cells or of the cells that rows fall in: [., k] each."""

    rows: np.ndarray
    rewards: np.ndarray
    residuals: np.ndarray
    squares: np.ndarray


@dataclass(frozen=True, eq=False)
class SimilarRows:
    """The cells of the training rows; as a model: how similar rows were treated, and how they fared."""

    kind: ClassVar[str] = "similar-rows"
    schema: ClassVar[Schema] = Fields({"k": Whole(), "D": Whole()}, {"least": Whole(1)}, closed=True)
    forests: Forests  # one tree
    k: int
    D: int
    least: int = 1  # rows of a cell that took an action, below which nothing is known of them

    def __post_init__(self) -> None:
        if any(type(size) is not int for size in (self.k, self.D, self.least)) or self.k < 2 or self.D < 1:
            refuse(f"its cells have {self.k!r} actions and {self.D!r} columns")
        if self.forests.trees.tolist() != [1] or self.forests.value.shape[1] != len(Tallies._fields) * self.k:
            refuse(f"cells are one tree with {len(Tallies._fields)} values in a leaf for each of {self.k} actions")
        if self.forests.column.max() >= self.D:
            refuse(f"a node asks about column {self.forests.column.max()} of {self.D}")
        check_tallies(self.cells, self.least)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Everything large."""
        return self.forests.arrays

    @property
    def description(self) -> dict[str, Any]:
        """Everything small, in plain values."""
        return {"k": self.k, "D": self.D, "least": self.least}

    @classmethod
    def shapes(cls, description: Mapping[str, Any], names: Collection[str]) -> Mapping[str, tuple[int | None, ...]]:
        """As many nodes as there are."""
        return FOREST_SHAPES

    @classmethod
    def build(cls, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """The cells of a policy file; whatever does not fit is refused. Files of before tell no least number."""
        if set(arrays) != set(DTYPES) or set(description) | {"least"} != {"k", "D", "least"}:
            refuse(f"it holds {', '.join(sorted(map(str, {*arrays, *description})))}")
        return cls(Forests(**arrays), **description)

    @cached_property
    def cells(self) -> Tallies:
        """What happened in each cell."""
        return split(self.forests.value)

    @cached_property
    def taken(self) -> np.ndarray:
        """n_a."""
        return self.cells.rows.sum(axis=0)  # [k]

    def tallies(self, X: np.ndarray) -> Tallies:
        """What happened in the cell of each row."""
        if X.ndim != 2 or X.shape[1] != self.D:
            raise PonnError(f"The rows have shape {X.shape}; expected {self.D} columns, as in training.")
        return split(self.forests.means(X)[:, 0])  # [n, k] each; the mean over one tree is its leaf

    def probabilities(self, X: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
        """The share of similar rows that took each action, of the eligible ones where not all are."""
        rows = self.tallies(X).rows
        everywhere = (self.taken + 1) / (self.taken + 1).sum()  # [k]: where a cell tells of no action
        total = rows.sum(axis=1, keepdims=True)
        shares = np.where(total > 0, rows / np.maximum(total, 1), everywhere)  # [n, k]
        return shares if eligible is None else restricted(shares, eligible, eligible / eligible.sum(axis=1)[:, None])

    def rewards(self, X: np.ndarray) -> np.ndarray:
        """The mean reward of similar rows that took each action; 0 where none did."""
        found = self.tallies(X)
        return found.rewards / np.maximum(found.rows, 1)  # [n, k]

    def interval(
        self, X: np.ndarray, A: np.ndarray, expected: np.ndarray, modelled: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Around the expected reward of one action per row, from similar rows that took it; NaN where too few did.

        modelled: r_hat(A_j, x_j) of the model that the residuals are of, the same as `expected` for most policies.

        It spans Wilson's interval around the expectation and that around r_hat put right by the mean residual of the N
        similar rows, both with the spread of their residuals and with m rows, 1/m = 1/N + D/n_a: a model with D columns
        knows no case better than n_a/D rows of that very case would tell.

        Nominally 95 %. What it comes to for supported pairs of row and action, true E[R | x, a], 500 to 10,000 rows
        (`benchmarks/expected_interval_coverage.py`): 0.96 to 1.00 where a logistic model can be right (breast-cancer
        world, rewards linear in the features), 0.87 to 0.96 where rewards of 0 and 1 jump with the features or only
        matter in pairs (0.79 where all features are numbers), 0.73 to 0.82 where they jump and have little noise: no
        model of this kind sees the jumps.
        """
        N, _, E, Q = (one[np.arange(len(X)), A] for one in self.tallies(X))  # [n] each
        known = N > 0
        rows = np.where(known, N, 1)
        m = 1 / (1 / rows + self.D / np.maximum(self.taken[A], 1))
        centres = expected, np.clip(modelled + E / rows, 0, 1)
        lows, highs = zip(*(wilson(centre, m, Q / rows) for centre in centres), strict=True)
        return np.where(known, np.minimum(*lows), np.nan), np.where(known, np.maximum(*highs), np.nan)


def split(values: np.ndarray) -> Tallies:
    """N, S, E, Q as they stand side by side."""
    return Tallies(*np.split(values, len(Tallies._fields), axis=1))


def wilson(r: np.ndarray, m: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval for a mean in [0, 1] from m rows of this variance; for r (1 - r) it is the usual one.

    It holds r, and 0 and 1 are nearly in it when rows are few.
    """
    centre = (m * r + Z**2 / 2) / (m + Z**2)
    half = Z / (m + Z**2) * np.sqrt(m * variance + Z**2 / 4)
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def check_tallies(cells: Tallies, least: int) -> None:
    """Raise PonnError unless the sums can come from that many rows, none of fewer than the least number."""
    N, S, E, Q = cells
    too_few = (N.sum(axis=1) < 1).any() if least == 1 else ((N > 0) & (N < least)).any()
    if (np.floor(N) != N).any() or N.min() < 0 or N.max() * N.size > EXACT or too_few or least < 1:
        refuse("its cells hold numbers of rows that cannot be")
    most = N * (1 + ROUNDING)
    if S.min() < 0 or Q.min() < 0 or (S > most).any() or (Q > most).any() or (np.abs(E) > most).any():
        refuse("its cells hold sums of rewards that cannot be")
