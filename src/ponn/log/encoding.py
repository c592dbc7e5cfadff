"""From the user's columns to levels (Step B) and design columns (Step C), and the map between the two.

    symbol   meaning                                                                   shape
    n, d     rows, feature types (the user's columns)
    b[i]     levels of feature i: defined bins, empty ones and missing included        [d]
    levels   the level of each feature in each row, -1 where training had none such    [n, d]
    design   what the network reads: standardised numbers, 0/1 per category            [n, D]
    owner    the feature that a design column belongs to                               [D]

An Encoding is fitted on training rows and never changed. Summaries of columns merge with `+`, so it can be
fitted shard by shard (quantile bins need a column at once).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError, listing
from ponn.log.features import (
    BLOCK_ROWS,
    OTHER,
    READ_ROWS,
    CategoryFeature,
    Feature,
    NumberFeature,
    bin_count,
    fit_category,
    fit_number,
    quantile_cuts,
    summarise_numbers,
    summarise_texts,
)
from ponn.log.log import Log, check_in_memory
from ponn.log.profile import (
    CATEGORY,
    kind_of,
    numbers,
)
from ponn.settings import Settings
from ponn.tables.table import read_table


@dataclass(frozen=True)
class Encoding:
    """How each feature type becomes levels and design columns; fitted on training rows only."""

    features: tuple[Feature, ...]
    rows: int  # training rows it was fitted on

    @classmethod
    def fit(cls, log: Log, settings: Settings | None = None, fewest: int = 1) -> "Encoding":
        """Fit on the rows of this log; fewest: rows that whatever has a design column of its own must have."""
        check_in_memory(log, "Encoding.fit")
        settings = settings or Settings()
        return cls(tuple(fit_feature(name, log, settings, fewest) for name in log.features), len(log))

    @cached_property
    def b(self) -> np.ndarray:
        """Levels per feature."""
        return np.array([feature.b for feature in self.features])  # [d]

    @cached_property
    def owner(self) -> np.ndarray:
        """The feature that each design column belongs to."""
        return np.repeat(np.arange(len(self.features)), [len(one.design_names) for one in self.features])  # [D]

    @property
    def design_names(self) -> tuple[str, ...]:
        """Names of the design columns."""
        return tuple(name for feature in self.features for name in feature.design_names)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was merged."""
        return tuple(merged_told(one) for one in self.features if isinstance(one, CategoryFeature) and one.other)

    def levels(self, rows: Any) -> np.ndarray:
        """The level of every feature in every row, for Step B."""
        table = self.select(rows)
        out = np.empty((len(self.features), table.num_rows), np.int16)  # one feature's levels lie together
        for start, batch in self.blocks(table):
            for i, (feature, x) in enumerate(batch):
                out[i, start : start + len(x)] = feature.codes(x)
        return out.T  # [n, d]

    def design(self, rows: Any) -> np.ndarray:
        """The network's input for every row, for Step C."""
        table = self.select(rows)
        ends = np.cumsum([len(feature.design_names) for feature in self.features])
        out = np.zeros((table.num_rows, len(self.owner)), np.float32)
        for start, batch in self.blocks(table):
            for (feature, x), end in zip(batch, ends, strict=True):
                feature.fill(x, out[start : start + len(x), end - len(feature.design_names) : end])
        return out  # [n, D]

    def surprises(self, rows: Any) -> dict[str, dict[str, int]]:
        """Per feature, how many cells are unlike anything in training; features without any are left out."""
        total: dict[str, Counter[str]] = {}
        for _, batch in self.blocks(self.select(rows)):
            for feature, x in batch:
                total.setdefault(feature.name, Counter()).update(feature.surprises(x))
        return {name: dict(+counts) for name, counts in total.items() if +counts}

    def blocks(self, table: pa.Table) -> Iterator[tuple[int, list[tuple[Feature, np.ndarray]]]]:
        """Row number of a block, and its columns as arrays; nothing is copied that Arrow can hand over."""
        for start in range(0, table.num_rows, READ_ROWS):
            part = table.slice(start, READ_ROWS)
            columns = [(one, one.read(part.column(i))) for i, one in enumerate(self.features)]
            for row in range(0, part.num_rows, BLOCK_ROWS):
                yield start + row, [(one, x[row : row + BLOCK_ROWS]) for one, x in columns]

    def select(self, rows: Any) -> pa.Table:
        """The feature columns of a log or of any table of rows to predict."""
        table = rows.X if isinstance(rows, Log) else rows if isinstance(rows, pa.Table) else read_table(rows).table
        given = set(table.column_names)
        missing = [one.name for one in self.features if one.name not in given]
        if missing:
            raise PonnError(f"The rows lack the columns {listing(missing)}, which the policy learned from.")
        return table.select([one.name for one in self.features])


def merged_told(feature: CategoryFeature) -> str:
    """A note on levels that were merged."""
    kept, rest = len(feature.kept), len(feature.rest)
    if rest:
        return (
            f"Column {feature.name!r} has {kept + rest} levels: the {kept} most frequent are kept, the other {rest} "
            f"({feature.rest_rows} rows) are one level, {OTHER}."
        )
    return f"Column {feature.name!r}: texts that few rows share ({feature.rest_rows} rows) are one level, {OTHER}."


def fit_feature(name: str, log: Log, settings: Settings, fewest: int = 1) -> Feature:
    """Fit one feature on the rows of the log."""
    column = log.table.column(name)
    kind = kind_of(column.type)
    if kind == CATEGORY:
        return fit_category(name, summarise_texts(column), settings.max_levels, fewest)
    s = bin_count(len(log))
    found = summarise_numbers(column, s)
    by_quantile = settings.bins == "quantile" and found.values is None
    fitted = fit_number(name, kind, found, s, quantile_cuts(numbers(column), s) if by_quantile else None)
    return shared_number(fitted, numbers(column), fewest)


NOTHING = 1e300  # the scale of a column that says nothing: standardised it is 0


def shared_number(feature: NumberFeature, x: np.ndarray, fewest: int) -> NumberFeature:
    """A number without a column for so few missing cells, and without any where all but a few rows have one value."""
    if fewest <= 1:
        return feature
    known = x[~np.isnan(x)]
    common = int(np.unique(known, return_counts=True)[1].max()) if len(known) else 0
    if len(known) - common < fewest:
        usual = float(np.median(known)) if common >= fewest else 0.0
        found = replace(feature, low=usual, high=usual, bins=1, cuts=(), values=(usual,), mean=usual, scale=NOTHING)
        return replace(found, missing=feature.missing and min(len(known), len(x) - len(known)) >= fewest)
    return replace(feature, missing=feature.missing and len(x) - len(known) >= fewest)
