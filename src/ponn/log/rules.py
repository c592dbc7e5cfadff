"""Rules that say where an action is not available, such as "CAF if age >= 70 and prior == 'yes'".

Their grammar, read by the parser below (nothing is ever executed):

    rule       action "if" condition { "and" condition }         several rules for one action are joined by or
    condition  column sign value | column "in" ( value, ... ) | column ["is"] "missing"
    sign       <  <=  >  >=  (numbers only)   ==  !=
    value      a number, 'text' or "text" (a quote inside is doubled), true, false
    column     a word, or any name in backticks

A missing cell meets no comparison, != neither; where missing should exclude an action, say so by a rule of its own.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import LogError, PonnError, one_line
from ponn.log.profile import BOOLEAN, CATEGORY, NUMBER, kind_of, numbers, texts

LONGEST_RULE = 10_000  # characters
Value = float | str | bool


# Conditions --------------------------------------------------------------------------------------------

SIGNS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
KINDS: Mapping[type, str] = {float: "a number", str: "a text", bool: "true or false"}
TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    |`(?P<name>[^`]+)`
    |(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?!\w))
    |(?P<word>[^\W\d][\w.]*)
    |(?P<sign><=|>=|==|!=|<|>|\(|\)|,)""",
    re.VERBOSE,
)
QUOTED_ACTION = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")\s+if\s""")


@dataclass(frozen=True)
class Condition:
    """One comparison of a column, as one side of an `and`."""

    column: str
    sign: str  # one of SIGNS, "in" or "missing"
    values: tuple[Value, ...]  # of one type; none for "missing"

    @property
    def type(self) -> type | None:
        """What the column is compared with."""
        return type(self.values[0]) if self.values else None

    def holds(self, column: pa.ChunkedArray) -> np.ndarray:
        """Rows in which the condition is met: [n] bool."""
        if self.sign == "missing":
            return is_missing(column)
        if self.type is float:
            x = as_numbers(column)
            found = (
                np.isin(x, np.array(self.values, x.dtype)) if self.sign == "in" else SIGNS[self.sign](x, self.values[0])
            )
            return np.asarray(found & ~np.isnan(x))
        cells = as_texts(column) if self.type is str else as_truths(column)
        named = pc.is_in(cells, value_set=pa.array([label_text(one) for one in self.values], pa.string()))
        found = np.asarray(named.to_numpy(), bool)
        return ~found & ~is_missing(column) if self.sign == "!=" else found


@dataclass(frozen=True)
class Rule:
    """An action that is not available where all conditions hold."""

    text: str
    action: str  # the label as text
    conditions: tuple[Condition, ...]

    def holds(self, table: pa.Table) -> np.ndarray:
        """Rows in which the action is excluded: [n] bool."""
        found = np.ones(table.num_rows, bool)
        for one in self.conditions:
            try:
                found &= one.holds(table.column(one.column))
            except (pa.ArrowException, TypeError) as error:
                raise LogError(
                    f"The rule {self.text!r} compares column {one.column!r} with {KINDS[one.type or float]}, but the "
                    f"column is of type {table.column(one.column).type} ({one_line(error)}). Numbers are written bare, "
                    "texts in quotes, truth values as true or false; dates cannot be compared."
                ) from error
        return found


def is_missing(column: pa.ChunkedArray) -> np.ndarray:
    """Null, NaN and infinite cells: [n] bool."""
    if pa.types.is_floating(column.type):
        return np.isnan(numbers(column))
    return np.asarray(pc.is_null(column).to_numpy(), bool)


def as_numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Cells as numbers, NaN where missing; text is parsed, because files of text tell no types."""
    column = plain_values(column)
    kind = kind_of(column.type)
    if kind == CATEGORY:
        column = pc.cast(column, pa.float64())
    elif kind != NUMBER or pa.types.is_temporal(column.type):
        raise TypeError("not numbers")
    return numbers(column)


def as_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cells as text."""
    column = plain_values(column)
    if kind_of(column.type) != CATEGORY and not pa.types.is_null(column.type):
        raise TypeError("not text")
    return texts(column)


def as_truths(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cells as the texts true and false."""
    column = plain_values(column)
    if kind_of(column.type) not in (BOOLEAN, CATEGORY) and not pa.types.is_null(column.type):
        raise TypeError("not truth values")
    return texts(pc.cast(column, pa.bool_()))


def plain_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values of a dictionary column; others as they are."""
    return pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column


def label_text(label: Any) -> str:
    """An action's label as cells and rules write it: 1 for the number, true and false for truth values."""
    if isinstance(label, bool | np.bool_):
        return "true" if label else "false"
    if isinstance(label, float | np.floating) and float(label).is_integer():
        return str(int(label))
    return str(label)


# The parser ----------------------------------------------------------------------------------------------


def parse_rule(text: str) -> Rule:
    """A rule from its text; PonnError names the rule and the place that cannot be read."""
    if not isinstance(text, str) or len(text) > LONGEST_RULE:
        raise PonnError(
            f"A rule is {str(text)[:80]!r}; expected a text of at most {LONGEST_RULE:,} characters, e.g. "
            "'CAF if age >= 70'."
        )
    found = QUOTED_ACTION.match(text.lstrip())
    if found:
        start = len(text) - len(text.lstrip())
        return Rule(text, unquoted(found[1]), RuleReader(text, start + found.end()).conditions())
    word = re.search(r"\sif\s", text)
    if word is None or not text[: word.start()].strip():
        raise PonnError(f"The rule {text!r} names no action before an 'if'; expected e.g. 'CAF if age >= 70'.")
    return Rule(text, text[: word.start()].strip(), RuleReader(text, word.end()).conditions())


def unquoted(text: str) -> str:
    """A quoted text without its quotes."""
    return text[1:-1].replace(2 * text[0], text[0])


class RuleReader:
    """Reads the conditions of a rule, token by token."""

    def __init__(self, text: str, place: int):
        self.text, self.place = text, place
        self.kind, self.token = "", ""
        self.start = place  # of the token at hand
        self.next()

    def next(self) -> None:
        """Go to the next token; kind and token are empty at the end."""
        while self.text[self.place : self.place + 1].isspace():
            self.place += 1
        self.start = self.place
        found = TOKEN.match(self.text, self.place)
        if found:
            self.kind, self.token, self.place = str(found.lastgroup), found[str(found.lastgroup)], found.end()
        elif self.place < len(self.text):
            self.refuse("nothing that a rule can hold is there")
        else:
            self.kind, self.token = "", ""

    def refuse(self, expected: str) -> NoReturn:
        """Say where the rule cannot be read."""
        rest = self.text[self.start :]
        where = f"at character {self.start + 1}, {rest[:30]!r}" if rest.strip() else "at its end"
        raise PonnError(f"The rule {self.text!r} cannot be read {where}: {expected}.")

    def is_word(self, *words: str) -> bool:
        """Is the token one of these words?"""
        return self.kind == "word" and self.token.lower() in words

    def take(self, sign: str) -> None:
        """Go past a sign that must be here."""
        if self.kind != "sign" or self.token != sign:
            self.refuse(f"expected {sign!r}")
        self.next()

    def conditions(self) -> tuple[Condition, ...]:
        """All conditions, to the end of the text."""
        found = [self.condition()]
        while self.is_word("and"):
            self.next()
            found.append(self.condition())
        if self.is_word("or"):
            self.refuse("'or' is said by a second rule for the same action")
        if self.kind:
            self.refuse("expected 'and' or the end")
        return tuple(found)

    def condition(self) -> Condition:
        """One condition."""
        if self.kind not in ("word", "name"):
            self.refuse("expected the name of a column; one that is no plain word stands in backticks")
        column = self.token
        self.next()
        if self.is_word("is", "missing"):
            return self.missing(column)
        if self.is_word("in"):
            return Condition(column, "in", self.several_values())
        if self.kind != "sign" or self.token not in SIGNS:
            self.refuse(f"expected one of {' '.join(SIGNS)}, or in (...), or missing")
        return self.comparison(column)

    def missing(self, column: str) -> Condition:
        """missing, or is missing."""
        if self.is_word("is"):
            self.next()
        if not self.is_word("missing"):
            self.refuse("expected 'missing'")
        self.next()
        return Condition(column, "missing", ())

    def comparison(self, column: str) -> Condition:
        """A sign and a value; only numbers have an order."""
        sign, start = self.token, self.start
        self.next()
        value = self.value()
        if sign not in ("==", "!=") and not isinstance(value, float):
            self.start = start
            self.refuse("only numbers are larger or smaller; texts and truth values are compared by == and !=")
        return Condition(column, sign, (value,))

    def several_values(self) -> tuple[Value, ...]:
        """Values of one type in parentheses."""
        self.next()
        self.take("(")
        found = [self.value()]
        while self.kind == "sign" and self.token == ",":
            self.next()
            found.append(self.value())
            if type(found[-1]) is not type(found[0]):
                self.refuse("numbers, texts and truth values cannot be mixed in one list")
        self.take(")")
        return tuple(found)

    def value(self) -> Value:
        """A number, a text or a truth value."""
        found: Value
        if self.kind == "text":
            found = unquoted(self.token)
        elif self.kind == "number" and math.isfinite(float(self.token)):
            found = float(self.token)
        elif self.is_word("true", "false"):
            found = self.token.lower() == "true"
        else:
            self.refuse("expected a number, a text in quotes, true or false")
        self.next()
        return found
