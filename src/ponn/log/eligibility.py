"""Which actions are available in which row: by a column that names them, by rules that exclude some, or by both.

    symbol     meaning                                   shape
    eligible   may action a be taken in row j?           [n, k] bool

A column names, in each cell, the actions available there: an Arrow list of labels, or text such as "AC|CAF". A missing
cell or an empty text stands for all actions. Rules (rules.py) say where an action is NOT available.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import LogError, PonnError, listing, one_line
from ponn.log.profile import BOOLEAN, CATEGORY, NUMBER, kind_of, texts
from ponn.log.roles import Rows
from ponn.log.rules import Rule, is_missing, label_text, parse_rule, plain_values

SEPARATOR = "|"


# Labels --------------------------------------------------------------------------------------------------


UNTAKEN = -1  # the number of a label that may be named though no row of this log has it


def label_numbers(actions: Sequence[Any], others: Iterable[Any] = ()) -> dict[str, int]:
    """Label as text → number of the action."""
    found = {label_text(label): UNTAKEN for label in others} | {label_text(one): a for a, one in enumerate(actions)}
    return found | {text.capitalize(): a for text, a in found.items() if text in ("true", "false")}


def marked(rows: int, k: int, row: np.ndarray, a: np.ndarray) -> np.ndarray:
    """True at the pairs of row and action; pairs with UNTAKEN are passed over: [rows, k] bool."""
    found = np.zeros((rows, k), bool)
    found[row[a >= 0], a[a >= 0]] = True
    return found


def given_actions(eligible: Any, actions: Sequence[Any], n: int) -> np.ndarray:
    """What a caller said: an array [n, k] of truth values, or the labels that are available in every row."""
    if isinstance(eligible, np.ndarray) and eligible.ndim == 2:
        if eligible.dtype != bool or eligible.shape != (n, len(actions)):
            raise PonnError(
                f"eligible is an array of {eligible.dtype} of shape {eligible.shape}; expected truth values of shape "
                f"{(n, len(actions))}: rows x actions."
            )
        return eligible
    if isinstance(eligible, str) or not isinstance(eligible, Iterable):
        raise PonnError(f"eligible is {eligible!r}; expected a list of actions, or an array [n, k] of truth values.")
    labels = list(eligible)
    numbers_of = label_numbers(actions)
    unknown = [label for label in labels if label_text(label) not in numbers_of]
    if unknown or not labels:
        raise PonnError(f"eligible names {listing(unknown) or 'no action'}; the actions are {listing(actions)}.")
    one = np.zeros(len(actions), bool)
    one[[numbers_of[label_text(label)] for label in labels]] = True
    return np.broadcast_to(one, (n, len(actions)))


# The column ----------------------------------------------------------------------------------------------


def named_actions(rows: Rows, name: str, numbers_of: Mapping[str, int], k: int) -> np.ndarray:
    """Which actions the cells of a column name; an empty one names all: [n, k] bool."""
    column = rows.table.column(name)
    nested = isinstance(column.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
    try:
        found, empty = (listed if nested else written)(rows, name, numbers_of, k)
    except pa.ArrowException as error:
        raise LogError(
            f"The eligibility column {name!r} is of type {column.type} ({one_line(error)}); expected texts such as "
            "'AC|CAF', or lists of labels."
        ) from error
    found[empty] = True
    return found


def written(rows: Rows, name: str, numbers_of: Mapping[str, int], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Cells of text, labels separated by |; a cell that holds a number is one label."""
    empty = rows.table.column(name).null_count == rows.table.num_rows
    if not empty and any(SEPARATOR in label for label in numbers_of):
        raise LogError(
            f"The eligibility column {name!r} holds text, in which {SEPARATOR} separates labels, but a label of the "
            f"actions holds {SEPARATOR} itself. Write the column as lists, or rename the action."
        )
    encoded = label_cells(rows.table.column(name)).combine_chunks().dictionary_encode()
    cells = [split_cell(cell, numbers_of) for cell in encoded.dictionary.to_pylist()]
    code = np.asarray(pc.fill_null(encoded.indices, len(cells)).to_numpy(zero_copy_only=False))
    cells.append([])  # of the missing ones
    labels = sorted({label for cell in cells for label in cell if label not in numbers_of})
    if labels:
        refuse_labels(rows, name, labels, np.array([any(label in labels for label in cell) for cell in cells])[code])
    pairs = [(cell, numbers_of[label]) for cell, known in enumerate(cells) for label in known]
    row, a = np.array(pairs, np.intp).reshape(-1, 2).T
    blank = [not (cell or "").strip() for cell in encoded.dictionary.to_pylist()] + [True]
    return marked(len(cells), k, row, a)[code], np.array(blank)[code]


def split_cell(cell: str, numbers_of: Mapping[str, int]) -> list[str]:
    """The labels in a cell, without the spaces around them unless a label has such."""
    parts = (part if part in numbers_of else part.strip() for part in cell.split(SEPARATOR))
    return [part for part in parts if part]


def listed(rows: Rows, name: str, numbers_of: Mapping[str, int], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Cells that are lists of labels; an empty list names no action."""
    column = rows.table.column(name)
    lists = pc.cast(column, pa.large_list(column.type.value_type)).combine_chunks()
    row = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    labels = pc.fill_null(label_cells(pc.list_flatten(lists)), "").dictionary_encode()
    number = [numbers_of.get(label) for label in labels.dictionary.to_pylist()]
    code = np.asarray(labels.indices.to_numpy(zero_copy_only=False), np.intp)
    unknown = [label for label, a in zip(labels.dictionary.to_pylist(), number, strict=True) if a is None]
    if unknown:
        bad = np.zeros(len(lists), bool)
        bad[row[np.array([a is None for a in number])[code]]] = True
        refuse_labels(rows, name, unknown, bad)
    a = np.array(number, np.intp)[code]
    return marked(len(lists), k, row, a), np.asarray(pc.is_null(lists).to_numpy(zero_copy_only=False))


def label_cells(column: Any) -> Any:
    """Labels as text; whole numbers stored as floats are written as such."""
    column = plain_values(column)
    if pa.types.is_floating(column.type):
        column = pc.cast(pc.if_else(pc.is_nan(column), None, column), pa.int64())
    elif kind_of(column.type) not in (CATEGORY, BOOLEAN, NUMBER) or pa.types.is_temporal(column.type):
        raise pa.ArrowTypeError("not labels")
    return texts(column)


def refuse_labels(rows: Rows, name: str, labels: Sequence[str], bad: np.ndarray) -> NoReturn:
    """Raise the error of cells that name something else than actions."""
    raise LogError(
        f"The eligibility column {name!r} names {listing(labels)} in {rows.told(bad)}, which is no action of the log. "
        f"Expected labels of actions with {SEPARATOR} between them, or lists of such; an empty cell stands for all."
    )


# Both together -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Eligibility:
    """How to tell which actions are available in a row; what a policy carries to the rows it recommends for."""

    column: str | None = None
    rules: Sequence[str] = ()  # kept as a tuple
    drop: bool = False  # were rows whose logged action is not eligible left out of the log?
    labels: tuple[Any, ...] = ()  # that a cell or rule may name beside the actions of the log at hand

    def __post_init__(self) -> None:
        if self.column is not None and not isinstance(self.column, str):
            raise PonnError(f"eligible is {self.column!r}; expected the name of a column.")
        if isinstance(self.rules, str) or not isinstance(self.rules, Sequence):
            raise PonnError(f"rules is {self.rules!r}; expected a list of texts such as 'CAF if age >= 70'.")
        object.__setattr__(self, "rules", tuple(self.rules))
        self.parsed  # noqa: B018 - a rule that cannot be read is told at once

    @cached_property
    def parsed(self) -> tuple[Rule, ...]:
        """The rules."""
        return tuple(map(parse_rule, self.rules))

    @property
    def rule_columns(self) -> tuple[str, ...]:
        """The columns that rules look at, each once."""
        return tuple(dict.fromkeys(one.column for rule in self.parsed for one in rule.conditions))

    @property
    def text_columns(self) -> set[str]:
        """Columns whose cells are text even where a file makes them look like numbers."""
        found = {one.column for rule in self.parsed for one in rule.conditions if one.type is str}
        return found | ({self.column} if self.column else set())

    @property
    def sentences(self) -> tuple[str, ...]:
        """Column and rules for people."""
        by_column = (f"Available actions by column {self.column!r}",) if self.column else ()
        return (*by_column, *(f"Never {rule}" for rule in self.rules))

    def as_json(self) -> dict[str, Any]:
        """What a policy file keeps."""
        return {"column": self.column, "rules": list(self.rules), "drop": self.drop}


def described(eligible: str | Eligibility | None, rules: Sequence[str], drop: bool) -> Eligibility | None:
    """What the keywords of `read_log` say; None where every action is always available."""
    if isinstance(eligible, Eligibility):
        if rules or drop:
            raise PonnError("An Eligibility already holds its rules; give no others beside it.")
        return eligible
    if eligible is None and not rules:
        if drop:
            raise PonnError("drop_ineligible needs to know what is eligible: name a column (eligible=) or give rules.")
        return None
    return Eligibility(eligible, rules, drop)


def eligible_actions(
    eligibility: Eligibility, rows: Rows, actions: Sequence[Any], *, by_column: bool = True
) -> np.ndarray:
    """May action a be taken in row j? By the column (unless told to pass it over) and the rules: [n, k] bool."""
    n, k = rows.table.num_rows, len(actions)
    numbers_of = label_numbers(actions, eligibility.labels)
    eligible = np.ones((n, k), bool)
    if eligibility.column is not None and by_column:
        eligible = named_actions(rows, eligibility.column, numbers_of, k)
    for rule in eligibility.parsed:
        a = rule_action(rule, numbers_of, actions)
        if a != UNTAKEN:
            eligible[:, a] &= ~rule.holds(rows.table)
    return eligible


def logged_eligible(eligibility: Eligibility, rows: Rows, actions: Sequence[Any], A: np.ndarray) -> np.ndarray:
    """Was the logged action eligible? [n] bool."""
    return np.asarray(eligible_actions(eligibility, rows, actions)[np.arange(len(A)), A])


def rule_action(rule: Rule, numbers_of: Mapping[str, int], actions: Sequence[Any]) -> int:
    """The number of the action that a rule excludes."""
    if rule.action not in numbers_of:
        raise PonnError(f"The rule {rule.text!r} is about {rule.action!r}; the actions are {listing(actions)}.")
    return numbers_of[rule.action]


def excluded_actions(eligibility: Eligibility, actions: Sequence[Any]) -> list[int]:
    """The number of the action that each rule excludes; refuses rules about what is no action."""
    numbers_of = label_numbers(actions, eligibility.labels)
    return [rule_action(rule, numbers_of, actions) for rule in eligibility.parsed]


def silent_cells(eligibility: Eligibility, table: pa.Table) -> Counter[str]:
    """How many cells of a column say nothing about what is eligible."""
    found = Counter({name: int(is_missing(table.column(name)).sum()) for name in eligibility.rule_columns})
    if eligibility.column is not None:
        found[eligibility.column] = int(is_empty(table.column(eligibility.column)).sum())
    return found


def is_empty(column: pa.ChunkedArray) -> np.ndarray:
    """Cells that are missing, or texts of nothing but spaces: [n] bool."""
    found = np.asarray(is_missing(column))
    plain = plain_values(column)
    if kind_of(plain.type) != CATEGORY:
        return found
    blank = pc.equal(pc.utf8_trim_whitespace(texts(plain)), "")
    return found | np.asarray(pc.fill_null(blank, True).to_numpy())


def silence_told(eligibility: Eligibility, silent: Mapping[str, int], n: int, actions: Sequence[Any]) -> list[str]:
    """Notes where cells say nothing about what is eligible."""
    notes = []
    if eligibility.column is not None and silent[eligibility.column]:
        notes.append(
            f"The eligibility column {eligibility.column!r} is empty in {silent[eligibility.column]} of {n} rows: all "
            "actions are eligible there."
        )
    taken = label_numbers(actions)
    for rule in eligibility.parsed:
        compared = sorted({one.column for one in rule.conditions if one.sign != "missing"})
        told = ", ".join(f"{name!r} ({silent[name]})" for name in compared if silent[name])
        if told and rule.action in taken:
            notes.append(f"The rule {rule.text!r} does not exclude rows that lack a value: {told}.")
    return notes


def check_some_eligible(eligible: np.ndarray, rows: Rows) -> None:
    """Every row has an action that may be taken."""
    none = np.asarray(~eligible.any(axis=1))
    if none.any():
        raise LogError(
            f"No action is eligible in {rows.told(none)}. Every row needs at least one: mend the cells or the rules, "
            "or leave these rows out."
        )


def check_logged(eligible: np.ndarray, A: np.ndarray, actions: Sequence[Any], rows: Rows) -> None:
    """What was done could be done."""
    wrong = ~eligible[np.arange(len(A)), A]
    if wrong.any():
        taken = listing(dict.fromkeys(actions[a] for a in A[wrong]), 3)
        raise LogError(
            f"The logged action is not eligible in {rows.told(wrong)} of {len(A)}: {taken} was taken there. Mend the "
            "cells or the rules, or leave these rows out (drop_ineligible=True, --drop-ineligible)."
        )
