"""What a value that was read from JSON must be: declared, and checked in one place before anything is made of it.

A schema says by `check` where a value is not what it should be: `actions[3] is None; expected a text`. What passes is
of the declared type exactly (true is no number), finite, text that can be written, and of the declared length.
"""

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from ponn.errors import PonnError, listing

LARGEST_WHOLE = 1 << 63  # beyond, a whole number fits no 64 bits
LONGEST_TEXT = 1_000_000  # characters
SHOWN_NAME = 60  # characters of a name in an error


class SchemaError(PonnError):
    """A value that is not what was declared; it says where."""


class Schema(Protocol):
    """Something that values can be checked against."""

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless the value is what it should be; place: what it is called."""


def refuse(value: Any, place: str, expected: str) -> NoReturn:
    """Raise the error of a value that is something else."""
    raise SchemaError(f"{place} is {reprlib.repr(value)}; expected {expected}")


def is_text(value: Any) -> bool:
    """A text that can be written: JSON can also hold half a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# Single values -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """true or false."""

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless it is one."""
        if not isinstance(value, bool):
            refuse(value, place, "true or false")


@dataclass(frozen=True)
class Whole:
    """A whole number from low to high."""

    low: int = -LARGEST_WHOLE
    high: int = LARGEST_WHOLE

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless it is one."""
        if type(value) is not int or not self.low <= value <= self.high:
            refuse(value, place, f"a whole number from {self.low:,} to {self.high:,}")


@dataclass(frozen=True)
class Number:
    """A finite number from low to high."""

    low: float = -math.inf
    high: float = math.inf

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless it is one."""
        if type(value) not in (int, float) or not (self.low <= value <= self.high and is_finite(value)):
            refuse(value, place, f"a finite number from {self.low:g} to {self.high:g}")


def is_finite(value: float) -> bool:
    """Is the number neither NaN nor infinite, also once it is a float?"""
    return abs(value) <= LARGEST_WHOLE if isinstance(value, int) else math.isfinite(value)


@dataclass(frozen=True)
class Text:
    """A text of bounded length."""

    most: int = LONGEST_TEXT

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless it is one."""
        if not is_text(value) or len(value) > self.most:
            refuse(value, place, f"a text of at most {self.most:,} characters")


@dataclass(frozen=True)
class OneOf:
    """One of a few texts."""

    texts: tuple[str, ...]

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless it is one."""
        if not isinstance(value, str) or value not in self.texts:
            refuse(value, place, f"one of {listing(self.texts)}")


@dataclass(frozen=True)
class Maybe:
    """null, or something."""

    schema: Schema

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless it is one of both."""
        if value is not None:
            self.schema.check(value, place)


# What holds others ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Items:
    """A list of so many values of one kind."""

    schema: Schema
    fewest: int = 0
    most: int | None = None

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless it is one."""
        if not isinstance(value, list):
            refuse(value, place, "a list")
        if len(value) < self.fewest or (self.most is not None and len(value) > self.most):
            told = f"{self.fewest:,}" + ("" if self.most == self.fewest else f" to {self.most or math.inf:,}")
            raise SchemaError(f"{place} has {len(value):,} entries; expected {told}")
        for number, one in enumerate(value):
            self.schema.check(one, f"{place}[{number}]")


@dataclass(frozen=True)
class Named:
    """An object whose fields may have any name, all of one kind."""

    schema: Schema

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless it is one."""
        if not isinstance(value, dict):
            refuse(value, place, "an object")
        for name, one in value.items():
            if not is_text(name):
                refuse(name, f"a name in {place}", "a text")
            self.schema.check(one, f"{place}.{name[:SHOWN_NAME]}")


@dataclass(frozen=True)
class Plain:
    """Any value that JSON can hold, with numbers of 64 bits and text that can be written."""

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless it is one. The depth is that of what was read, which is bounded."""
        if isinstance(value, list):
            Items(self).check(value, place)
        elif isinstance(value, dict):
            Named(self).check(value, place)
        elif isinstance(value, str):
            Text().check(value, place)
        elif type(value) in (int, float):
            Number().check(value, place)
        elif value is not None:
            Truth().check(value, place)


@dataclass(frozen=True)
class Fields:
    """An object with fields of declared kinds: some must be there, some may; others must be plain, or must not be."""

    needed: Mapping[str, Schema] = field(default_factory=dict)
    optional: Mapping[str, Schema] = field(default_factory=dict)
    closed: bool = False  # are other fields refused?

    def check(self, value: Any, place: str) -> None:
        """Raise SchemaError unless it is one."""
        if not isinstance(value, dict):
            refuse(value, place, "an object")
        absent = [name for name in self.needed if name not in value]
        if absent:
            raise SchemaError(f"{place} lacks {listing(absent)}")
        known = {**self.needed, **self.optional}
        others = {name: one for name, one in value.items() if name not in known}
        if others and self.closed:
            raise SchemaError(f"{place} holds {reprlib.repr(list(others))}, which it cannot have")
        Named(Plain()).check(others, place)
        for name, schema in known.items():
            if name in value:
                schema.check(value[name], f"{place}.{name}")
