"""Rows given as plain values, as JSON has them: checked cell by cell, then encoded like any other rows. numpy alone.

    symbol   meaning                                                     shape
    x        the numeric cells as numbers, NaN where missing             [n, numbers]
    X        design columns                                              [n, D]

The rules are those of `encode.py`: numbers are standardised by its function, and the column of each text is asked of
the feature itself. Only what a cell may hold is stricter here: a number written as text is refused, because whoever
sends JSON can send a number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.encode import UNSEEN, CategoryFeature, Encoding, Feature, NumberFeature, standardised
from ponn.errors import PonnError, listing
from ponn.profile import BOOLEAN, DATE

LEFT_OUT = object()  # stands for a field that a row does not have
SHOWN = 60  # characters of a value that a message repeats
EXPECTED = {"number": "a number or null", BOOLEAN: "true, false or null", DATE: 'a date as text ("2026-11-16") or null'}


class RowError(PonnError):
    """A cell that cannot be what the policy learned from: which row (counted from 1), which field, and why."""

    def __init__(self, row: int, field: str | None, reason: str, expected: str) -> None:
        place = f"Row {row}" if field is None else f"Row {row}, field {field!r}"
        super().__init__(f"{place}: {reason}; expected {expected}.")
        self.row, self.field, self.reason, self.expected = row, field, reason, expected


@dataclass(frozen=True)
class Read:
    """Rows in design columns, and what is odd about each."""

    X: np.ndarray  # [n, D]
    notes: list[list[str]]  # [n]


class NumberCell:
    """Reads one number, boolean or date."""

    def __init__(self, feature: NumberFeature) -> None:
        self.feature = feature
        self.name, self.low, self.high = feature.name, feature.low, feature.high

    def odd(self, value: Any, j: int, notes: list[str]) -> float:
        """The number behind a value that is no number within the range of training, with a note on what is odd."""
        if value is None or value is LEFT_OUT:
            note_missing(self.feature, value, notes)
            return math.nan
        number = self.checked(value, j)
        if not self.low <= number <= self.high:
            ends = f"{self.feature.say(self.low)} to {self.feature.say(self.high)}"
            notes.append(f"{self.name}: {shown(value)} is outside the range of training, {ends}")
        return number

    def checked(self, value: Any, j: int) -> float:
        """The value as a number, if it is of the kind that training had."""
        kind = self.feature.kind
        if kind == DATE and isinstance(value, str):
            return self.date(value, j)
        if kind == BOOLEAN and value in (True, False) and not isinstance(value, str):  # 0 and 1 are equal to them
            return float(value)
        if kind in (DATE, BOOLEAN) or isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(j, f"{shown(value)} is {kind_in_words(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.wrong(j, f"{shown(value)} is not a finite number")
        return number

    def date(self, value: str, j: int) -> float:
        """Days since 1970, by the rule of the encoder."""
        try:
            return float(self.feature.read(pa.chunked_array([pa.array([value], pa.string())]))[0])
        except (PonnError, UnicodeEncodeError) as error:
            raise self.wrong(j, f"{shown(value)} is not a date") from error

    def wrong(self, j: int, reason: str) -> RowError:
        """What to say of a cell that is refused."""
        return RowError(j + 1, self.name, reason, EXPECTED[self.feature.kind])


class TextCell:
    """Reads one text: the design column it turns on, -1 for none."""

    def __init__(self, feature: CategoryFeature, first: int) -> None:
        self.feature, self.name = feature, feature.name
        levels: list[str | None] = [*feature.kept, *feature.rest, None]
        codes = feature.codes(feature.read(pa.chunked_array([pa.array(levels, pa.string())])))
        codes = np.append(codes, feature.codes(np.array([UNSEEN])))
        columns = [first + int(code) if code >= 0 else -1 for code in codes]
        self.missing, self.unseen = columns[-2:]
        self.columns = dict(zip(levels[:-1], columns[:-2], strict=True))  # text → design column

    def odd(self, value: Any, j: int, notes: list[str]) -> int:
        """The column of a value that is no text of training, with a note."""
        if value is None or value is LEFT_OUT:
            note_missing(self.feature, value, notes)
            return self.missing
        if not isinstance(value, str) or not is_unicode(value):
            raise RowError(j + 1, self.name, f"{shown(value)} is {kind_in_words(value)}", "a text or null")
        notes.append(f"{self.name}: {shown(value)} was never seen in training")
        return self.unseen


class RowReader:
    """From plain rows to design columns, for one encoding. Fast for one row, one product of loops for many."""

    def __init__(self, encoding: Encoding) -> None:
        features = encoding.features
        self.order = [one.name for one in features]
        self.names = frozenset(self.order)
        if len(self.names) < len(features):
            raise PonnError("The policy file names a feature twice; it is damaged.")
        widths = [len(one.design_names) for one in features]
        firsts = np.cumsum([0, *widths])
        placed = list(zip(features, firsts.tolist(), strict=False))
        numbers = [(one, first) for one, first in placed if isinstance(one, NumberFeature)]
        self.D = int(firsts[-1])
        self.numbers = [NumberCell(one) for one, _ in numbers]
        self.texts = [TextCell(one, first) for one, first in placed if isinstance(one, CategoryFeature)]
        self.number_columns = np.array([first for _, first in numbers], np.intp)
        self.mean, self.scale = (np.array([getattr(one, part) for one, _ in numbers]) for part in ("mean", "scale"))
        self.with_indicator = np.flatnonzero([one.missing for one, _ in numbers])  # of `numbers`

    def read(self, rows: Sequence[Any]) -> Read:
        """Design columns and notes; raises RowError for the first cell that cannot be read."""
        notes: list[list[str]] = [[] for _ in rows]
        x, turned_on = [], []
        for j, row in enumerate(rows):
            self.check_fields(row, j)
            x.append(self.numbers_of(row, j, notes[j]))
            turned_on += [(j, column) for column in self.texts_of(row, j, notes[j]) if column >= 0]
        return Read(self.design(np.array(x, np.float64).reshape(len(rows), -1), turned_on), notes)

    def check_fields(self, row: Any, j: int) -> None:
        """A row is an object with no other fields than features."""
        if not isinstance(row, Mapping):
            raise RowError(j + 1, None, f"it is {kind_in_words(row)}", "an object {field: value}")
        if not row.keys() <= self.names:
            unknown = sorted(set(row) - self.names)
            raise RowError(j + 1, shown(unknown[0], str), "the policy has no such field", f"some of {self.listed}")

    @property
    def listed(self) -> str:
        """The fields, in words."""
        return listing(self.order, 20)

    def numbers_of(self, row: Mapping[str, Any], j: int, notes: list[str]) -> list[float]:
        """The numeric cells of a row."""
        found = []
        for cell in self.numbers:
            value = row.get(cell.name, LEFT_OUT)
            usual = type(value) in PLAIN and cell.feature.kind not in (DATE, BOOLEAN) and cell.low <= value <= cell.high
            found.append(value if usual else cell.odd(value, j, notes))
        return found

    def texts_of(self, row: Mapping[str, Any], j: int, notes: list[str]) -> list[int]:
        """The design columns that the texts of a row turn on."""
        found = []
        for cell in self.texts:
            value = row.get(cell.name, LEFT_OUT)
            column = cell.columns.get(value) if type(value) is str else None
            found.append(cell.odd(value, j, notes) if column is None else column)
        return found

    def design(self, x: np.ndarray, turned_on: Sequence[tuple[int, int]]) -> np.ndarray:
        """What the model reads."""
        out = np.zeros((len(x), self.D), np.float32)
        if self.numbers:
            standard = standardised(x, self.mean, self.scale)
            missing = np.isnan(standard)
            standard[missing] = 0
            out[:, self.number_columns] = standard
            out[:, self.number_columns[self.with_indicator] + 1] = missing[:, self.with_indicator]
        if turned_on:
            out[tuple(zip(*turned_on, strict=True))] = 1
        return out  # [n, D]


PLAIN = (int, float)


def note_missing(feature: Feature, value: Any, notes: list[str]) -> None:
    """Say that a field was left out, or that training never saw it missing."""
    told = f"{feature.name}: left out, taken as missing" if value is LEFT_OUT else f"{feature.name}: missing"
    if not feature.missing:
        notes.append(f"{told}, which training never saw")
    elif value is LEFT_OUT:
        notes.append(told)


def is_unicode(text: str) -> bool:
    """Half a surrogate pair can be written in JSON, but is no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any, how: Any = repr) -> str:
    """The start of a value; what is nested is not repeated."""
    if isinstance(value, list | dict):
        return "the value"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**SHOWN:
        return f"a number of more than {SHOWN} digits"
    told: str = how(value[: SHOWN + 1] if isinstance(value, str) else value)
    return told if len(told) <= SHOWN else told[:SHOWN] + "…"


def kind_in_words(value: Any) -> str:
    """What JSON calls a value."""
    if isinstance(value, str):
        return "a text" if is_unicode(value) else "not text that can be written"
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list", type(None): "null"}
    return names.get(type(value), "an object")
