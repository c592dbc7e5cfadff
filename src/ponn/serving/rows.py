"""Rows given as plain values, as JSON has them: checked cell by cell, then encoded like any other rows. numpy alone.

    symbol   meaning                                                     shape
    x        the numeric cells as numbers, NaN where missing             [n, numbers]
    X        design columns                                              [n, D]

The rules are those of `log/features.py`: numbers are standardised by its function, and the column of each text is
asked of the feature itself. Only what a cell may hold is stricter here: a number written as text is refused, because
whoever sends JSON can send a number.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError, listing
from ponn.log.encoding import Encoding
from ponn.log.features import OTHER, UNSEEN, CategoryFeature, Feature, NumberFeature, standardised
from ponn.log.profile import BOOLEAN, DATE

LEFT_OUT = object()  # stands for a field that a row does not have
DATES = 4_096  # remembered: to read one takes a hundred times as long as to look it up
LONGEST_TEXT = 10_000  # characters of a text that training never saw; it is logged and repeated, but tells nothing
LONGEST_DATE = 64  # characters
SHOWN = 60  # characters of a value that a message repeats
EXPECTED = {"number": "a number or null", BOOLEAN: "true, false or null", DATE: 'a date as text ("2026-11-16") or null'}


class RowError(PonnError):
    """A cell that cannot be what the policy learned from: which row (counted from 1), which field, and why."""

    def __init__(self, row: int, field: str | None, reason: str, expected: str) -> None:
        place = f"Row {row}" if field is None else f"Row {row}, field {field!r}"
        super().__init__(f"{place}: {reason}; expected {expected}.")
        self.row, self.field, self.reason, self.expected = row, field, reason, expected


class Cells(NamedTuple):
    """Rows whose cells were checked one by one, and what is odd about each; a tuple, the cheapest to make."""

    x: list[list[float]]  # [n, numbers]
    texts: list[list[int]]  # [n, texts]: the design columns that are turned on
    notes: list[list[str]]  # [n]


class NumberCell:
    """Reads one number, boolean or date."""

    def __init__(self, feature: NumberFeature) -> None:
        self.feature = feature
        self.name, self.low, self.high = feature.name, feature.low, feature.high
        plain = feature.kind not in (DATE, BOOLEAN)
        self.days = lru_cache(DATES)(self.parse_date)
        self.usual_from = feature.low if plain else math.inf  # numbers from here up to `high` need no second look

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
        """Days since 1970."""
        try:
            if len(value) > LONGEST_DATE:
                raise PonnError("A date is never that long.")
            return self.days(value)
        except (PonnError, UnicodeEncodeError, pa.ArrowException) as error:
            raise self.wrong(j, f"{shown(value)} is not a date") from error

    def parse_date(self, value: str) -> float:
        """Days since 1970, by the rule of the encoder."""
        return float(self.feature.read(pa.chunked_array([pa.array([value], pa.string())]))[0])

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
        if reason := why_no_text(value):
            raise RowError(j + 1, self.name, reason, "a text or null")
        taken_as = OTHER if self.feature.other else self.feature.stand_in
        seldom = f", or too seldom to be told; it counts as {taken_as}" if self.feature.stand_in else ""
        notes.append(f"{self.name}: {shown(value)} was never seen in training{seldom}")
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
        cells = [NumberCell(one) for one, _ in numbers]
        texts = [TextCell(one, first) for one, first in placed if isinstance(one, CategoryFeature)]
        self.number_cells = [(one.name, one.usual_from, one.high, one.odd) for one in cells]
        self.text_cells = [(one.name, one.columns, one.odd) for one in texts]
        self.number_columns = np.array([first for _, first in numbers], np.intp)
        self.mean = np.array([one.mean for one, _ in numbers])
        self.rate = np.array([1 / one.scale for one, _ in numbers])
        self.with_indicator = np.flatnonzero([one.missing for one, _ in numbers])  # of `numbers`

    def read(self, rows: Sequence[Any]) -> Cells:
        """Check all cells; raises RowError for the first one that cannot be read."""
        found = Cells([], [], [])
        for j, row in enumerate(rows):
            self.check_fields(row, j)
            notes: list[str] = []
            found.x.append(self.numbers_of(row, j, notes))
            found.texts.append(self.texts_of(row, j, notes))
            found.notes.append(notes)
        return found

    def check_fields(self, row: Any, j: int) -> None:
        """A row is an object with no other fields than features."""
        if not isinstance(row, dict):
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
        for name, low, high, odd in self.number_cells:
            value = row.get(name, LEFT_OUT)
            usual = type(value) in PLAIN and low <= value <= high
            found.append(value if usual else odd(value, j, notes))
        return found

    def texts_of(self, row: Mapping[str, Any], j: int, notes: list[str]) -> list[int]:
        """The design columns that the texts of a row turn on."""
        found = []
        for name, columns, odd in self.text_cells:
            value = row.get(name, LEFT_OUT)
            column = columns.get(value) if type(value) is str else None
            found.append(odd(value, j, notes) if column is None else column)
        return found

    def design(self, x: list[list[float]], texts: list[list[int]]) -> np.ndarray:
        """What the model reads, for rows that were checked."""
        out = np.zeros((len(x), self.D), np.float32)
        if self.number_cells:
            standard = standardised(np.array(x, np.float64), self.mean, self.rate)
            missing = np.isnan(standard)
            if missing.any():
                standard[missing] = 0
                out[:, self.number_columns[self.with_indicator] + 1] = missing[:, self.with_indicator]
            out[:, self.number_columns] = standard
        out.put([j * self.D + column for j, row in enumerate(texts) for column in row if column >= 0], 1)
        return out  # [n, D]


PLAIN = (int, float)


def note_missing(feature: Feature, value: Any, notes: list[str]) -> None:
    """Say that a field was left out, or that training never saw it missing."""
    told = f"{feature.name}: left out, taken as missing" if value is LEFT_OUT else f"{feature.name}: missing"
    if not feature.missing:
        notes.append(f"{told}, which training never saw")
    elif value is LEFT_OUT:
        notes.append(told)


def why_no_text(value: Any) -> str:
    """Why a cell cannot be a text, empty where it can: files of text, and those who read them, take no others."""
    if not isinstance(value, str) or not is_unicode(value):
        return f"{shown(value)} is {kind_in_words(value)}"
    if len(value) > LONGEST_TEXT:
        return f"{shown(value)} has {len(value):,} characters, more than {LONGEST_TEXT:,}"
    return f"{shown(value)} holds the character NUL" if "\x00" in value else ""


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
