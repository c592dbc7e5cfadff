"""The survey: one look at all rows of a log on disk. It validates them, summarises columns and draws a sample.

What it finds merges with `+`, so shards can be looked at anywhere; errors name the file and its rows.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.engine.passes import Arrays
from ponn.errors import LogError
from ponn.log.eligibility import (
    Eligibility,
    check_logged,
    check_some_eligible,
    eligible_actions,
    logged_eligible,
    silent_cells,
)
from ponn.log.features import NumberSummary, TextSummary, summarise_numbers, summarise_texts
from ponn.log.log import Columns
from ponn.log.profile import CATEGORY, IDENTIFIER_ROWS, Profile, count_distinct, count_infinite, kind_of
from ponn.log.roles import (
    MOST_ACTIONS,
    Rows,
    action_labels,
    check_complete,
    check_count,
    check_group,
    check_time,
    possible_propensities,
    read_outcomes,
    read_weights,
)
from ponn.log.shards import SAMPLE_SALT, FileShard, uniform

MOST_TEXTS = 10_000  # different texts counted per column; of the others only their number of rows is known


@dataclass(frozen=True)
class ColumnSurvey:
    """What is known of a column."""

    type: str
    kind: str
    numbers: NumberSummary | None
    texts: TextSummary | None
    uncounted: int = 0  # rows with a text beyond MOST_TEXTS
    infinite: int = 0
    repeats: bool = False  # has a piece of the log the same value twice?

    def __add__(self, other: "ColumnSurvey") -> "ColumnSurvey":
        texts, uncounted = None, self.uncounted + other.uncounted
        if self.texts is not None and other.texts is not None:
            texts, more = capped(self.texts + other.texts)
            uncounted += more
        return replace(
            self,
            numbers=None if self.numbers is None or other.numbers is None else self.numbers + other.numbers,
            texts=texts,
            uncounted=uncounted,
            infinite=self.infinite + other.infinite,
            repeats=self.repeats or other.repeats,
        )

    @property
    def missing(self) -> int:
        """Cells without a value."""
        found = self.numbers or self.texts
        return 0 if found is None else found.missing

    @property
    def count(self) -> int:
        """Cells with a value."""
        if self.texts is not None:
            return sum(self.texts.counts.values()) + self.uncounted
        return 0 if self.numbers is None else self.numbers.count

    @property
    def one_value(self) -> bool:
        """Do all values agree?"""
        if self.texts is not None:
            return len(self.texts.counts) <= 1 and not self.uncounted
        return self.numbers is not None and self.numbers.low >= self.numbers.high

    def profile(self, name: str) -> Profile:
        """The column as `check` and the notes see it."""
        whole = self.type.startswith(("int", "uint"))
        unique = (
            not self.repeats and self.count >= (IDENTIFIER_ROWS if whole else 2) and (whole or self.kind == CATEGORY)
        )
        constant = bool(self.kind) and (self.count == 0 or (self.one_value and self.missing == 0))
        identifier = unique and not self.one_value
        return Profile(name, self.type, self.kind, self.missing, self.infinite, constant, identifier)


def capped(found: TextSummary) -> tuple[TextSummary, int]:
    """The most frequent texts (ties by name), and the rows of the others."""
    if len(found.counts) <= MOST_TEXTS:
        return found, 0
    ranked = sorted(found.counts.items(), key=lambda one: (-one[1], one[0]))
    return TextSummary(Counter(dict(ranked[:MOST_TEXTS])), found.missing), sum(
        count for _, count in ranked[MOST_TEXTS:]
    )


@dataclass(frozen=True)
class Survey:
    """What one look at all rows tells; merges with `+`."""

    rows: int = 0
    dropped: int = 0
    actions: Mapping[Any, tuple[int, float]] = field(default_factory=dict)  # label → rows, sum of outcomes
    low: float = np.inf  # of the outcomes
    high: float = -np.inf
    unknown_propensities: int = 0
    columns: Mapping[str, ColumnSurvey] = field(default_factory=dict)
    ineligible: int = 0  # rows left out because their action was not eligible
    eligible: Counter[Any] = field(default_factory=Counter)  # label → rows in which it is
    silent: Counter[str] = field(default_factory=Counter)  # column → cells that do not tell what is eligible

    def __add__(self, other: "Survey") -> "Survey":
        actions = dict(self.actions)
        for label, (rows, total) in other.actions.items():
            before = actions.get(label, (0, 0.0))
            actions[label] = (before[0] + rows, before[1] + total)
        columns, both = self.columns or other.columns, self.columns and other.columns
        return Survey(
            self.rows + other.rows,
            self.dropped + other.dropped,
            actions,
            min(self.low, other.low),
            max(self.high, other.high),
            self.unknown_propensities + other.unknown_propensities,
            {name: one + other.columns[name] for name, one in self.columns.items()} if both else columns,
            self.ineligible + other.ineligible,
            self.eligible + other.eligible,
            self.silent + other.silent,
        )


def survey_columns(table: pa.Table, names: Sequence[str], most: int) -> dict[str, ColumnSurvey]:
    """Look at columns of a few rows."""
    found = {}
    for name in names:
        column = table.column(name)
        kind = kind_of(column.type)
        texts, uncounted = capped(summarise_texts(column)) if kind == CATEGORY else (None, 0)
        found[name] = ColumnSurvey(
            type=str(column.type),
            kind=kind,
            numbers=summarise_numbers(column, most) if kind and kind != CATEGORY else None,
            texts=texts,
            uncounted=uncounted,
            infinite=count_infinite(column),
            repeats=not is_distinct(column, kind),
        )
    return found


def is_distinct(column: pa.ChunkedArray, kind: str) -> bool:
    """Text or whole numbers of which none occurs twice."""
    if kind != CATEGORY and not pa.types.is_integer(column.type):
        return False
    return all(
        count_distinct(part) == len(part) - part.null_count
        for part in (column.slice(0, rows) for rows in (500, len(column)))
    )


@dataclass(frozen=True)
class Names:
    """What a log on disk was said to be: its columns, those offered as features, the declared range, the eligible."""

    columns: Columns
    offered: tuple[str, ...]
    span: tuple[float, float] | None = None
    available: Eligibility | None = None

    @property
    def read(self) -> list[str]:
        """The columns that are looked at."""
        return names_read(self.offered, self.columns, self.available)


def names_read(features: tuple[str, ...], columns: Columns, available: Eligibility | None) -> list[str]:
    """Features, columns with another part and columns of rules, each once."""
    by_rules = () if available is None else available.rule_columns
    return list(dict.fromkeys([*features, *columns.roles().values(), *by_rules]))


@dataclass(frozen=True)
class Surveying:
    """The survey of one shard: validation, summaries of the columns, and a sample of the rows."""

    names: Names  # where not all actions are eligible everywhere, with the labels of the whole log
    drop_missing: bool
    most: int = 0  # values of a number to tell apart
    share: float = 0.0  # of the rows to sample

    def __call__(self, shard: FileShard) -> Arrays:
        """The shard's survey and its share of the sample."""
        total, kept, numbers_kept = Survey(), [], []
        columns, available = self.names.columns, self.names.available
        for piece in shard.pieces:
            for row, table in piece.tables(self.names.read):
                number = np.arange(row, row + len(table), dtype=np.uint64)
                rows = len(table)
                if self.drop_missing:
                    table, number = complete_rows(table, columns, number)
                complete = len(table)
                if available is not None and available.drop:
                    table, number = possible_rows(table, columns, number, available)
                total += Survey(dropped=rows - complete, ineligible=complete - len(table))
                if not len(table):
                    continue
                total += self.validated(piece.file, Rows(table, number.astype(np.int64) + piece.before + 1))
                number = number + np.uint64(piece.first)
                chosen = uniform(number, SAMPLE_SALT) < self.share
                kept.append(table.filter(pa.array(chosen)))
                numbers_kept.append(number[chosen])
        if not kept:
            return {"survey": packed_survey(total)}
        sample = pa.concat_tables(kept, promote_options="permissive")
        return {
            "survey": packed_survey(total),
            "sample": packed_table(sample),
            "number": np.concatenate(numbers_kept),
        }

    def validated(self, file: str, rows: Rows) -> Survey:
        """What a few rows hold; errors name the file and its rows."""
        try:
            return self.looked_at(rows)
        except LogError as error:
            raise LogError(f"{file}: {error}") from error

    def looked_at(self, rows: Rows) -> Survey:
        """What a few rows hold."""
        columns, available = self.names.columns, self.names.available
        check_complete(rows, columns.action, "action")
        encoded = action_labels(rows, columns.action).combine_chunks().dictionary_encode()
        outcome = read_outcomes(rows, columns.reward, self.names.span)
        read_weights(rows, columns.weight)
        check_group(rows, columns.group)
        check_time(rows, columns.time)
        p0 = None if columns.propensity is None else possible_propensities(rows, columns.propensity)
        taken = encoded.indices.to_numpy(zero_copy_only=False)
        labels = encoded.dictionary.to_pylist()
        if len(labels) > MOST_ACTIONS:
            check_count(len(labels), labels[0], columns.action, len(outcome))
        counts = np.bincount(taken, minlength=len(labels)).tolist()
        totals = np.bincount(taken, outcome, minlength=len(labels)).tolist()
        found = Survey(
            rows=len(outcome),
            actions=dict(zip(labels, zip(counts, totals, strict=True), strict=True)),
            low=float(outcome.min()),
            high=float(outcome.max()),
            unknown_propensities=0 if p0 is None else int(np.isnan(p0).sum()),
            columns=survey_columns(rows.table, self.names.offered, self.most),
        )
        if available is None:
            return found
        counts, silent = what_is_eligible(available, rows, labels, taken), silent_cells(available, rows.table)
        return replace(found, eligible=counts, silent=silent)


def what_is_eligible(available: Eligibility, rows: Rows, labels: list[Any], taken: np.ndarray) -> Counter[Any]:
    """In how many rows each action is eligible, after looking whether those that were taken are."""
    actions = available.labels
    can = eligible_actions(available, rows, actions)
    check_some_eligible(can, rows)
    check_logged(can, np.array([actions.index(label) for label in labels])[taken], actions, rows)
    return Counter(dict(zip(actions, can.sum(axis=0).tolist(), strict=True)))


def packed_survey(found: Survey) -> np.ndarray:
    """A survey as JSON in an array of bytes; Python writes numbers so that they are read back to the last bit."""
    plain_values = {
        **{name: getattr(found, name) for name in ("rows", "dropped", "low", "high", "unknown_propensities")},
        **{name: getattr(found, name) for name in ("ineligible", "silent")},
        "actions": [[label, *rest] for label, rest in found.actions.items()],
        "eligible": list(found.eligible.items()),
        "columns": {name: plain_column(one) for name, one in found.columns.items()},
    }
    return np.frombuffer(json.dumps(plain_values, default=sorted).encode(), np.uint8)


def plain_column(found: ColumnSurvey) -> dict[str, Any]:
    """One column of a survey in plain values."""
    numbers, texts = (None if one is None else vars(one) for one in (found.numbers, found.texts))
    return {**vars(found), "numbers": numbers, "texts": texts}


def unpacked_survey(content: np.ndarray) -> Survey:
    """The survey in an array of bytes."""
    found = json.loads(content.tobytes())
    actions = {label: (rows, total) for label, rows, total in found.pop("actions")}
    columns = {name: unpacked_column(one) for name, one in found.pop("columns").items()}
    eligible, silent = Counter(dict(found.pop("eligible"))), Counter(found.pop("silent"))
    return Survey(**found, actions=actions, columns=columns, eligible=eligible, silent=silent)


def unpacked_column(found: dict[str, Any]) -> ColumnSurvey:
    """One column of a survey."""
    if found["numbers"] is not None:
        values = found["numbers"]["values"]
        found["numbers"]["values"] = None if values is None else frozenset(values)
        found["numbers"] = NumberSummary(**found["numbers"])
    if found["texts"] is not None:
        found["texts"] = TextSummary(Counter(found["texts"]["counts"]), found["texts"]["missing"])
    return ColumnSurvey(**found)


def packed_table(table: pa.Table) -> np.ndarray:
    """A table as Arrow IPC in an array of bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def unpacked_table(content: np.ndarray) -> pa.Table:
    """The table in an array of bytes."""
    return pa.ipc.open_stream(pa.py_buffer(content.tobytes())).read_all()


def complete_rows(table: pa.Table, columns: Columns, number: np.ndarray) -> tuple[pa.Table, np.ndarray]:
    """The rows that have an action and a reward."""
    missing = pc.or_(*(pc.is_null(table.column(one), nan_is_null=True) for one in (columns.action, columns.reward)))
    if not pc.any(missing).as_py():
        return table, number
    kept = pc.invert(missing)
    return table.filter(kept), number[kept.to_numpy()]


def possible_rows(
    table: pa.Table, columns: Columns, number: np.ndarray, available: Eligibility
) -> tuple[pa.Table, np.ndarray]:
    """The rows whose action was eligible; rows without action are left for the validation to find."""
    encoded = action_labels(Rows(table), columns.action).combine_chunks().dictionary_encode()
    taken = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
    kept = np.asarray(pc.is_null(encoded).to_numpy(zero_copy_only=False))
    if len(encoded.dictionary):
        kept = kept | logged_eligible(available, Rows(table), encoded.dictionary.to_pylist(), taken)
    return table.filter(pa.array(kept)), number[kept]


def merged(parts: Iterable[Arrays]) -> Survey:
    """The sum of partial surveys, in order."""
    return reduce(add, (unpacked_survey(one["survey"]) for one in parts), Survey())
