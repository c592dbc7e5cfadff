"""What the columns of a table probably are: the action, the outcome and other roles, by name and by shape.

Only a first guess, shown to a person who changes it: a wrong one costs a click, so no column is left out silently.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.log.profile import BOOLEAN, CATEGORY, count_distinct, is_plain_number, kind_of, numbers, profile, texts

SHOWN = 3  # values of a column that are shown
LONGEST = 100  # characters of each
MOST_ACTIONS = 50  # a column with more values is hardly a choice between actions


def words_of(name: str) -> frozenset[str]:
    """The words in a column's name, small letters: `meanCost`, `mean_cost` and `Mean cost` are mean and cost."""
    return frozenset(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()))


ACTION_WORDS = words_of(
    "action treatment treated arm regimen therapy drug medication variant banner offer choice decision assigned "
    "assignment intervention campaign method exercise"
)
LESS_WORDS = words_of(
    "cost costs died dead death mortality loss losses churn churned relapse relapsed readmitted complaint complaints "
    "error errors failed failure"
)
REWARD_WORDS = LESS_WORDS | words_of(
    "reward outcome survived survival success recovered recovery converted conversion clicked click clicks revenue "
    "profit sales sale bought score result response passed improved cured y"
)
PEOPLE = words_of("patient customer client user visitor person household subject student pupil")
NUMBERED = words_of("number no code name")  # what may stand beside them
PROPENSITY_WORDS = words_of("propensity propensities pscore prob probability")


@dataclass(frozen=True)
class ColumnLine:
    """One column of a table."""

    name: str
    kind: str  # number, boolean, category, date; empty when it cannot be a feature
    distinct: int
    missing: int
    identifier: bool
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Guess:
    """The roles that columns probably have; None where no column looks like it."""

    action: str | None
    reward: str | None
    propensity: str | None
    group: str | None
    minimize: bool


def column_lines(table: pa.Table) -> tuple[ColumnLine, ...]:
    """Every column with its kind, how many values it has and the first few of them."""
    return tuple(column_line(name, table.column(name)) for name in table.column_names)


def column_line(name: str, column: pa.ChunkedArray) -> ColumnLine:
    """One column in a line."""
    found = profile(name, column)
    distinct = count_distinct(column) if found.kind else 0
    return ColumnLine(name, found.kind, distinct, found.missing, found.identifier, first_values(column))


def first_values(column: pa.ChunkedArray) -> tuple[str, ...]:
    """The first few different values, as texts."""
    if not kind_of(column.type):
        return ()
    first = texts(pc.unique(column.slice(0, 1000).drop_null())[:SHOWN])
    return tuple(pc.utf8_slice_codeunits(first, 0, LONGEST).to_pylist())


def guess_roles(table: pa.Table, lines: Sequence[ColumnLine]) -> Guess:
    """The most likely column of each role, no column twice."""
    propensity = best(lines, lambda one: named(one, PROPENSITY_WORDS) * is_share(table.column(one.name)))
    rest = [one for one in lines if one.name != propensity]
    action = best(rest, action_likeness)
    rest = [one for one in rest if one.name != action]
    reward = best(rest, lambda one: reward_likeness(one, table, last=one is rest[-1]))
    group = best([one for one in rest if one.name != reward], group_likeness)
    less = reward is not None and bool(words_of(reward) & LESS_WORDS)
    return Guess(action, reward, propensity, group, less)


def best(lines: Sequence[ColumnLine], likeness: Callable[[ColumnLine], float]) -> str | None:
    """The column most like it, the later of equals (outcomes and choices tend to stand last); None where none is."""
    scores = [likeness(one) for one in lines]
    top = max(scores, default=0.0)
    return lines[len(scores) - 1 - scores[::-1].index(top)].name if top > 0 else None


def named(line: ColumnLine, words: frozenset[str]) -> float:
    """10 for a name that is one of the words, 6 for one that contains one, else 0."""
    found = words_of(line.name)
    return 10.0 if found and found <= words else 6.0 if found & words else 0.0


def action_likeness(line: ColumnLine) -> float:
    """A choice has a few values, mostly texts."""
    if not 2 <= line.distinct <= MOST_ACTIONS or line.identifier:
        return 0.0
    return named(line, ACTION_WORDS) + (2.0 if line.kind == CATEGORY else 1.0 if line.kind == BOOLEAN else 0.5)


def reward_likeness(line: ColumnLine, table: pa.Table, last: bool) -> float:
    """An outcome is a number or true/false that varies."""
    type = table.column(line.name).type
    if not (is_plain_number(type) or pa.types.is_boolean(type)) or line.distinct < 2 or line.identifier:
        return 0.0
    return named(line, REWARD_WORDS) + (2.0 if last else 0.0) + (1.0 if line.distinct == 2 else 0.5)


def group_likeness(line: ColumnLine) -> float:
    """An identifier or a person by name that repeats: several rows of one person."""
    words = words_of(line.name)
    by_name = "id" in words or (bool(words & PEOPLE) and words <= PEOPLE | NUMBERED)
    return float(by_name and not line.identifier and line.distinct > MOST_ACTIONS)


def is_share(column: pa.ChunkedArray) -> bool:
    """Do all values lie above 0 and up to 1?"""
    if not is_plain_number(column.type) or column.null_count == len(column):
        return False
    x = numbers(column)
    return bool(np.nanmin(x) > 0 and np.nanmax(x) <= 1)
