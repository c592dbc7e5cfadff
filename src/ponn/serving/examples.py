"""What rows must hold beside the features, so that a policy's rules and column can tell which actions are available.

A form has a field for each of these, and an example row a value: one by which as many actions as possible may be taken.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.log.eligibility import SEPARATOR, Eligibility, eligible_actions
from ponn.log.profile import BOOLEAN, CATEGORY, NUMBER
from ponn.log.roles import Rows
from ponn.log.rules import Condition, label_text
from ponn.policy.policy import Policy
from ponn.policy.reasons import arrow_type

MOST_TRIED = 20  # columns, and values of each, among which good ones for an example are looked for
OTHER_TEXT = "other"  # a text that rules hardly name
Row = dict[str, Any]


def eligibility_fields(policy: Policy) -> frozenset[str]:
    """Fields of a row by which the policy tells which actions are eligible, features or not."""
    if policy.eligibility is None:
        return frozenset()
    column = policy.eligibility.column
    return frozenset((*policy.eligibility.rule_columns, *(() if column is None else (column,))))


def added_fields(policy: Policy) -> list[dict[str, Any]]:
    """Those that are no features, described as a form needs them."""
    if policy.eligibility is None:
        return []
    features = {one.name for one in policy.encoding.features}
    kinds = {name: kind_and_levels(found) for name, found in conditions_by_column(policy.eligibility).items()}
    if policy.eligibility.column is not None:
        kinds[policy.eligibility.column] = CATEGORY, written_actions(policy)
    return [form_field(name, *told) for name, told in kinds.items() if name not in features]


def form_field(name: str, kind: str, levels: list[str] | None) -> dict[str, Any]:
    """A field in the words of `advice.described`."""
    nothing = dict.fromkeys(("low", "high", "usual", "values"))
    return {"name": name, "kind": kind, "missing": True, "levels": levels, "whole": False} | nothing


def written_actions(policy: Policy) -> list[str]:
    """What a cell of the column may say: all actions, or one; nothing where labels could not be told apart."""
    labels = [label_text(one) for one in policy.actions]
    return [] if any(SEPARATOR in one for one in labels) else [SEPARATOR.join(labels), *labels]


def conditions_by_column(eligibility: Eligibility) -> Mapping[str, list[Condition]]:
    """What rules ask of each column."""
    found: dict[str, list[Condition]] = {}
    for rule in eligibility.parsed:
        for one in rule.conditions:
            found.setdefault(one.column, []).append(one)
    return found


def kind_and_levels(conditions: Sequence[Condition]) -> tuple[str, list[str] | None]:
    """What a column holds by what it is compared with; the texts that rules name."""
    types = {one.type for one in conditions} - {None}
    if types == {bool}:
        return BOOLEAN, None
    if types == {float}:
        return NUMBER, None
    named = (label_text(value) for one in conditions for value in one.values)
    return CATEGORY, [*dict.fromkeys(named), OTHER_TEXT]


# Example rows --------------------------------------------------------------------------------------------


def answerable(policy: Policy, rows: Sequence[Row]) -> list[Row]:
    """Rows of features with what the rules need beside; those in which no action could be taken are left out."""
    if not eligibility_fields(policy):
        return list(rows)
    full = [with_added(policy, row) for row in rows]
    return [row for row in full if count_eligible(policy, [row])[0]]


def with_added(policy: Policy, row: Row) -> Row:
    """The row, and for each added field a value by which most actions are eligible, the others being as they are."""
    assert policy.eligibility is not None
    conditions = conditions_by_column(policy.eligibility)
    tried = {one["name"]: values_tried(conditions.get(one["name"], []), one) for one in added_fields(policy)}
    row = row | {name: values[0] for name, values in tried.items()}
    for name, values in list(tried.items())[:MOST_TRIED]:
        choices = [row | {name: value} for value in values]
        row = choices[int(np.argmax(count_eligible(policy, choices)))]
    return row


def values_tried(conditions: Sequence[Condition], field: Mapping[str, Any]) -> list[Any]:
    """Values of a field that rules may tell apart, and none."""
    if field["kind"] == NUMBER:
        ends = [value for one in conditions for value in one.values if isinstance(value, float)]
        near = [value + step for value in ends for step in (-1, 1, 0)]
        return [*near[:MOST_TRIED], None]
    levels = [False, True] if field["kind"] == BOOLEAN else list(reversed(field["levels"] or []))
    return [*levels[:MOST_TRIED], None] if conditions else [*(field["levels"] or [])[:1], None]


def count_eligible(policy: Policy, rows: Sequence[Row]) -> np.ndarray:
    """How many actions the rules and the column leave in each row: [n]."""
    assert policy.eligibility is not None
    types = {one["name"]: FIELD_TYPES[one["kind"]] for one in added_fields(policy)}
    types |= {one.name: arrow_type(one) for one in policy.encoding.features}
    needed = eligibility_fields(policy)
    table = pa.table({name: pa.array([row[name] for row in rows], types[name]) for name in sorted(needed)})
    return eligible_actions(policy.eligibility, Rows(table), policy.actions).sum(axis=1)


FIELD_TYPES = {NUMBER: pa.float64(), BOOLEAN: pa.bool_(), CATEGORY: pa.string()}
