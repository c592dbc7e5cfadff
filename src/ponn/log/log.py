"""The validated table of past decisions.

symbol   meaning                                                          shape
A        the action taken, as a number into `actions`                     [n]
R        the reward, scaled to [0, 1], large is good                      [n]
p0       the probability with which A was taken, NaN where not known      [n] or None
eligible may action a be taken in row j? None: all, always                [n, k] bool or None
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import PonnError
from ponn.log.eligibility import (
    Eligibility,
)
from ponn.settings import check_seed

BATCH_ROWS = 65_536


@dataclass(frozen=True)
class Columns:
    """Which column plays which part."""

    action: str
    reward: str
    propensity: str | None = None
    group: str | None = None
    time: str | None = None
    weight: str | None = None
    features: tuple[str, ...] = ()
    eligible: str | None = None

    def roles(self) -> dict[str, str]:
        """Role → column, without the features and the roles nobody plays."""
        names = ("action", "reward", "propensity", "group", "time", "weight", "eligible")
        return {role: getattr(self, role) for role in names if getattr(self, role) is not None}


@dataclass(frozen=True, eq=False)
class Log:
    """A validated log of decisions: features, the action taken, the reward it brought. Columnar, never changed."""

    table: pa.Table
    columns: Columns
    actions: tuple[Any, ...]  # labels, sorted: the fixed order of every [.., k] array
    A: np.ndarray
    R: np.ndarray
    p0: np.ndarray | None
    weight: np.ndarray | None
    reward_range: tuple[float, float]
    minimize: bool
    set_aside: dict[str, str]  # column → why it is not a feature
    notes: tuple[str, ...]  # everything reading changed or found odd, counted
    eligible: np.ndarray | None = None
    eligibility: Eligibility | None = None  # where `eligible` comes from
    drop_missing: bool = False  # were rows without action or reward left out?
    directory: str | None = None  # digest of the files that these rows are all of, see `shards.directory_digest`

    def __len__(self) -> int:
        return len(self.A)

    def __repr__(self) -> str:
        return f"Log({len(self):,} rows, {len(self.actions)} actions, {len(self.features)} features)"

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the feature types, in the order of every [.., d] array."""
        return self.columns.features

    @property
    def X(self) -> pa.Table:
        """The features as given."""
        return self.table.select(self.features)

    @property
    def outcome(self) -> np.ndarray:
        """The rewards in the user's unit."""
        return np.asarray(self.in_units(self.R))

    def in_units(self, reward: Any) -> Any:
        """A reward of [0, 1], or a mean of such, in the user's unit."""
        return in_units(reward, self.reward_range, self.minimize)

    @property
    def row_weights(self) -> np.ndarray:
        """How often each row counts, 1 where nothing else was said."""
        return np.ones(len(self)) if self.weight is None else self.weight

    def take(self, rows: np.ndarray) -> "Log":
        """The log of the given rows."""
        return replace(
            self,
            table=self.table.take(pa.array(rows)),
            A=self.A[rows],
            R=self.R[rows],
            p0=None if self.p0 is None else self.p0[rows],
            weight=None if self.weight is None else self.weight[rows],
            eligible=None if self.eligible is None else self.eligible[rows],
            directory=None,
        )

    def batches(self, rows: int = BATCH_ROWS) -> Iterator["Log"]:
        """The log in pieces of at most `rows` rows, in order, without copying."""
        for start in range(0, len(self), rows):
            part = slice(start, start + rows)
            yield replace(
                self,
                table=self.table.slice(start, rows),
                A=self.A[part],
                R=self.R[part],
                p0=None if self.p0 is None else self.p0[part],
                weight=None if self.weight is None else self.weight[part],
                eligible=None if self.eligible is None else self.eligible[part],
                directory=None,
            )

    @cached_property
    def digest(self) -> str:
        """A fingerprint of the rows: features, actions and rewards, in order; of a directory that of its files."""
        if self.directory is not None:
            return self.directory
        found = hashlib.blake2b(digest_size=16)
        names = [*self.features, self.columns.action, self.columns.reward]
        for column in self.table.select(names).columns:
            found.update(str(column.type).encode())
            found.update(cell_bytes(column.combine_chunks()))
        return found.hexdigest()

    def split(self, share: float = 0.7, seed: int = 0) -> tuple["Log", "Log"]:
        """Two logs, the first with about `share` of the rows; see `split_rows`."""
        first, rest = self.split_rows(share, seed)
        return self.take(first), self.take(rest)

    def split_rows(self, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers of two parts, the first with about `share` of the rows.

        With a time column the first part has the earlier rows, otherwise rows are drawn at random. With a group
        column no group is in both; a group's time is that of its last row.
        """
        if not isinstance(share, int | float | np.number) or not 0 < share < 1:
            raise PonnError(f"The share of a split is {share!r}; expected a number between 0 and 1.")
        check_seed(seed)
        units = np.arange(len(self)) if self.columns.group is None else self.group_numbers()
        order = self.time_of(units) if self.columns.time else shuffled(units, seed)
        first = first_part(units, order, share)
        if first.all() or not first.any():
            pieces = len(np.unique(order))
            raise PonnError(
                f"A split with share {share} would leave one part empty: {len(self)} rows in {pieces} "
                f"{'pieces' if pieces > 1 else 'piece'} that must stay together. Choose another share, or a finer "
                "group or time column."
            )
        return np.flatnonzero(first), np.flatnonzero(~first)

    def group_numbers(self) -> np.ndarray:
        """Rows of one group share a number."""
        column = self.table.column(self.columns.group)
        return np.asarray(column.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False))

    def time_of(self, units: np.ndarray) -> np.ndarray:
        """The time of each unit (its last row), as a rank: equal times have equal rank."""
        column = self.table.column(self.columns.time)
        rank = pc.rank(column.combine_chunks(), tiebreaker="min").to_numpy()
        last = np.zeros(units.max() + 1, rank.dtype)
        np.maximum.at(last, units, rank)
        return last


def check_in_memory(log: Any, what: str) -> None:
    """Raise PonnError where rows are needed and the log is on disk, or is no log at all."""
    if not isinstance(log, Log):
        raise PonnError(
            f"{what} needs the rows of a log in memory and was given a {type(log).__name__}. Read the log with "
            "lazy=False and without naming an engine, or read a part of it that fits."
        )


def in_units(reward: Any, reward_range: Sequence[float], minimize: bool) -> Any:
    """A reward of [0, 1] in the unit of its range, turned round where small outcomes are good."""
    low, high = reward_range
    return high - reward * (high - low) if minimize else low + reward * (high - low)


def cell_bytes(column: pa.Array) -> bytes:
    """The cells of a column as bytes."""
    if pa.types.is_primitive(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False)).tobytes()
    return "\x1f".join("\x00" if cell is None else str(cell) for cell in column.to_pylist()).encode()


def shuffled(units: np.ndarray, seed: int) -> np.ndarray:
    """A random position for every unit."""
    return np.random.default_rng(seed).permutation(int(units.max()) + 1)


def first_part(units: np.ndarray, order: np.ndarray, share: float) -> np.ndarray:
    """Rows whose unit comes early enough that they make up the share nearest to the one asked for.

    Units of equal order (the same time) stay together.
    """
    position = order[units]  # [n]
    places, counts = np.unique(position, return_counts=True)
    reached = np.cumsum(counts) / len(units)
    last = int(np.argmin(np.abs(reached - share)))
    return np.asarray(position <= places[last])
