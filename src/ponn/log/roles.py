"""The columns that are not features: action, reward, propensity, weight, group, time; each validated and read.

Every message says what was seen, in which rows (counted from 1), and what to do.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import SHOWN, LogError, Note, PonnError, listing
from ponn.log.profile import BOOLEAN, CATEGORY, DATE, NUMBER, is_plain_number, kind_of, texts

HANDFUL = 5  # an action taken in fewer rows is told: nothing reliable can be learned about it
MOST_ACTIONS = 1_000  # more distinct values than this are not a choice among actions
FAR = 10.0  # a few rewards widen the range so many times: the others lie within a tenth of the scale that counts
FEW = 0.001  # ... where they are at most this share of the rows at each end, or 3, and a tenth in any case
LEAST_PROPENSITY = 1e-30  # what is smaller was never drawn, and single precision could not hold its weight
EXACT = 2.0**53  # up to here a float tells every whole number from its neighbours
COMMA_NUMBER = re.compile(r"\s*-?\d+([., ]\d+)+\s*")  # 3,5 or 1,234.50
LEAVE_OUT = "Leave these rows out (drop_missing=True, --drop-missing) or fill them in."


@dataclass(frozen=True)
class Rows:
    """The rows of a log, and where rows were left out their numbers in the source, counted from 1."""

    table: pa.Table
    number: np.ndarray | None = None  # [n]

    def told(self, bad: np.ndarray) -> str:
        """Count and first numbers of the rows marked True, e.g. '3 rows (4, 7, 9)'."""
        found = np.flatnonzero(bad)
        first = found[:SHOWN] + 1 if self.number is None else self.number[found[:SHOWN]]
        told = ", ".join(str(row) for row in first) + (", ..." if len(found) > SHOWN else "")
        return f"{len(found)} row{'s' if len(found) > 1 else ''} ({told})"


def check_complete(rows: Rows, name: str, role: str, remedy: str = "Fill them in.") -> None:
    """The column has a value in every row."""
    missing = pc.is_null(rows.table.column(name), nan_is_null=True).to_numpy()
    if missing.any():
        raise LogError(f"The {role} column {name!r} is missing in {rows.told(missing)} of {len(missing)}. {remedy}")


# Actions -------------------------------------------------------------------------------------------------


def read_actions(rows: Rows, name: str, notes: list[str]) -> tuple[tuple[Any, ...], np.ndarray]:
    """Sorted labels and, per row, the number of the action taken."""
    check_complete(rows, name, "action", LEAVE_OUT)
    encoded = action_labels(rows, name).combine_chunks().dictionary_encode()
    check_count(len(encoded.dictionary), encoded.dictionary[0].as_py(), name, rows.table.num_rows)
    labels = encoded.dictionary.to_pylist()
    order = sorted(range(len(labels)), key=lambda one: labels[one])
    number = np.empty(len(labels), np.int16)
    number[order] = np.arange(len(labels))
    A = number[encoded.indices.to_numpy(zero_copy_only=False)]  # [n]
    actions = tuple(labels[one] for one in order)
    notes += [*rare_actions(actions, np.bincount(A)), *similar_actions(actions)]
    return actions, A


def action_labels(rows: Rows, name: str) -> pa.ChunkedArray:
    """The column as text, whole numbers or booleans; 1.0 is a whole number."""
    column = rows.table.column(name)
    if kind_of(column.type) and pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        column = whole_numbers(rows, name, pc.cast(column, pa.float64(), safe=False))
    if kind_of(column.type) not in (CATEGORY, BOOLEAN) and not pa.types.is_integer(column.type):
        raise LogError(
            f"The action column {name!r} is of type {column.type}; expected text, whole numbers or booleans: "
            "write a label for each action."
        )
    return column


def whole_numbers(rows: Rows, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats that are whole numbers, as such."""
    values = column.to_numpy()
    wrong = (values != np.round(values)) | (np.abs(values) > EXACT)
    if wrong.any():
        raise LogError(
            f"The action column {name!r} holds numbers that are not whole, or too large, in {rows.told(wrong)}: e.g. "
            f"{values[wrong][0]:g}. Expected text, whole numbers or booleans. Is it a dose or an amount? Cut it into "
            "classes first."
        )
    return pc.cast(column, pa.int64())


def check_count(count: int, first: Any, name: str, rows: int) -> None:
    """At least two actions, and not so many that the column must be something else."""
    if count < 2:
        raise LogError(
            f"The action column {name!r} has only one value, {first!r}. A policy chooses between at least two actions: "
            "is this the column with the action taken, and does the log hold the rows of all actions?"
        )
    if count > MOST_ACTIONS:
        raise LogError(
            f"The action column {name!r} has {count} different values in {rows} rows; expected at most "
            f"{MOST_ACTIONS}. Is it really the action? Merge rare actions, or name another column."
        )


def rare_actions(actions: tuple[Any, ...], counts: np.ndarray) -> list[str]:
    """A warning with the counts of actions that were hardly ever taken."""
    rare = [(label, count) for label, count in zip(actions, counts, strict=True) if count < HANDFUL]
    if not rare:
        return []
    told = ", ".join(f"{label!r} ({count})" for label, count in rare[:SHOWN]) + (", ..." if len(rare) > SHOWN else "")
    first = f"Actions with fewer than {HANDFUL} rows, about which nothing reliable can be learned"
    return [Note(f"{first}: {told}.", f"{first}: {listing([label for label, _ in rare], SHOWN)}.")]


def similar_actions(actions: tuple[Any, ...]) -> list[str]:
    """Labels that differ in nothing but case or space are told: they are probably one action."""
    spellings: dict[str, list[str]] = {}
    for label in actions:
        if isinstance(label, str):
            spellings.setdefault(" ".join(label.split()).casefold(), []).append(label)
    alike = [listing(labels) for labels in spellings.values() if len(labels) > 1]
    if not alike:
        return []
    return [f"Actions that differ only in case or spaces are different actions here: {'; '.join(alike[:SHOWN])}."]


# Rewards -------------------------------------------------------------------------------------------------


class Observed(NamedTuple):
    """A range of rewards that was seen, not declared: more rewards may widen it."""

    low: float
    high: float

    def with_also(self, low: float, high: float) -> "Observed":
        """The range that holds these rewards too."""
        return Observed(min(self.low, low), max(self.high, high))


def widened_told(name: str, before: tuple[float, float] | None, now: tuple[float, float]) -> list[str]:
    """A note where rewards went beyond a range that was seen elsewhere."""
    if not isinstance(before, Observed) or now == before:
        return []
    return [
        Note(
            f"The reward column {name!r} goes beyond the {before.low:g} to {before.high:g} seen before: "
            f"{now[0]:g} to {now[1]:g} is its range here.",
            f"The reward column {name!r} goes beyond the range seen before.",
        )
    ]


def distant_told(rows: Rows, name: str, raw: np.ndarray) -> list[str]:
    """A note where a few rewards lie so far from the others that beside them these hardly differ."""
    few = min(max(3, int(FEW * len(raw))), len(raw) // 10)
    inner = np.partition(raw, (few, len(raw) - 1 - few))
    low, high = float(inner[few]), float(inner[len(raw) - 1 - few])
    if low == high or raw.max() - raw.min() < FAR * (high - low):
        return []
    away = np.maximum(low - raw, raw - high)
    distant = away > high - low
    told = (
        "A reward counts by its place in the whole range, so the others hardly differ beside these: correct or leave "
        "out what is an error."
    )
    return [
        Note(
            f"The reward column {name!r} lies far from all others in {rows.told(distant)}, e.g. {raw[away.argmax()]:g};"
            f" the others are between {raw[~distant].min():g} and {raw[~distant].max():g}. {told}",
            f"The reward column {name!r} lies far from all others in a few rows. {told}",
        )
    ]


def read_rewards(
    rows: Rows, name: str, reward_range: tuple[float, float] | None, minimize: bool
) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    """Rewards in the user's unit, the same scaled to [0, 1] with large as good, and the range."""
    span = None if reward_range is None else declared_range(reward_range)
    raw = read_outcomes(rows, name, span)
    whole = outcome_range(float(raw.min()), float(raw.max()), name, span)
    return raw, scaled(raw, whole, minimize), whole


def scaled(raw: np.ndarray, span: tuple[float, float], minimize: bool) -> np.ndarray:
    """Rewards in the user's unit scaled to [0, 1], large is good."""
    low, high = span
    return np.asarray((high - raw) / (high - low) if minimize else (raw - low) / (high - low))


def read_outcomes(rows: Rows, name: str, span: tuple[float, float] | None) -> np.ndarray:
    """Rewards in the user's unit: numbers, none missing, finite, within the declared range."""
    column = rows.table.column(name)
    if not (is_plain_number(column.type) or pa.types.is_boolean(column.type)):
        raise LogError(not_numeric(rows, name))
    check_complete(rows, name, "reward", LEAVE_OUT)
    raw = np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy())
    infinite = ~np.isfinite(raw)
    if infinite.any():
        raise LogError(
            f"The reward column {name!r} is infinite in {rows.told(infinite)}. "
            "Expected finite numbers: correct these rows."
        )
    if span is not None and not isinstance(span, Observed) and (raw.min() < span[0] or raw.max() > span[1]):
        outside = (raw < span[0]) | (raw > span[1])
        raise LogError(
            f"The reward column {name!r} is outside the declared range {span[0]:g} to {span[1]:g} in "
            f"{rows.told(outside)}: e.g. {raw[outside][0]:g}. Correct the rows or widen the range."
        )
    return raw


def outcome_range(low: float, high: float, name: str, span: tuple[float, float] | None) -> tuple[float, float]:
    """The declared or observed range of rewards, which must vary."""
    if low == high:
        raise LogError(
            f"The reward column {name!r} is {low:g} in every row. "
            "Nothing can be learned from a reward that never varies: is this the column with the outcome?"
        )
    if not np.isfinite(high - low):
        raise LogError(
            f"The reward column {name!r} runs from {low:g} to {high:g}, too wide for floating point: use a larger unit."
        )
    if isinstance(span, Observed):
        return span.with_also(low, high)
    return span or Observed(low, high)


def not_numeric(rows: Rows, name: str) -> str:
    """What to say about a reward column that is not numbers."""
    column = rows.table.column(name)
    message = f"The reward column {name!r} is of type {column.type}; expected numbers or booleans"
    if kind_of(column.type) != CATEGORY:
        return f"{message}: convert it, or name another column."
    counted = pc.value_counts(texts(column).drop_null())
    values = counted.field("values").to_pylist()
    odd = [value for value in values if not is_number(value)]
    if not odd:
        return f"{message}. All its cells read as numbers: convert the column."
    if all(COMMA_NUMBER.fullmatch(value) for value in odd):
        return f"{message}. It holds {listing(odd, 3)}: write a decimal point, and no thousands separators."
    if len(values) == 2:
        return f"{message}. It holds {listing(values)}: write them as numbers, for instance 0 and 1."
    wrong = pc.is_in(texts(column), value_set=pa.array(odd, pa.string())).to_numpy()
    first = texts(column)[int(np.argmax(wrong))].as_py()
    return f"{message}. It is not a number in {rows.told(wrong)}: e.g. {first[:80]!r}. Correct or leave out these rows."


def is_number(text: str | None) -> bool:
    """Does the text read as a number?"""
    try:
        float(text or "")
    except ValueError:
        return False
    return True


def declared_range(reward_range: tuple[float, float]) -> tuple[float, float]:
    """The declared range as two ordered, finite numbers; one that was only seen stays as it is."""
    if isinstance(reward_range, Observed):
        return reward_range
    try:
        if isinstance(reward_range, str):
            raise TypeError("text")
        low, high = (float(one) for one in reward_range)
    except (TypeError, ValueError, OverflowError) as error:
        raise PonnError(
            f"reward_range is {reward_range!r}; expected two numbers, the lowest and the highest possible reward."
        ) from error
    if not (np.isfinite(high - low) and low < high):
        raise PonnError(f"reward_range is {low:g} to {high:g}; expected finite numbers, the lower one first.")
    return low, high


# Propensities, weights, times ----------------------------------------------------------------------------


def read_propensities(rows: Rows, name: str | None, notes: list[str]) -> np.ndarray | None:
    """Known propensities of the logged actions, NaN where missing."""
    if name is None:
        return None
    p0 = possible_propensities(rows, name)
    notes += missing_propensities(name, int(np.isnan(p0).sum()), len(p0))
    return p0


def possible_propensities(rows: Rows, name: str) -> np.ndarray:
    """Propensities in (0, 1], NaN where missing."""
    p0 = read_floats(rows, name, "propensity", "probabilities between 0 and 1")
    wrong = ~np.isnan(p0) & ~((p0 >= LEAST_PROPENSITY) & (p0 <= 1))
    if wrong.any():
        raise LogError(
            f"The propensity column {name!r} is outside (0, 1] in {rows.told(wrong)}: e.g. {p0[wrong][0]:g}. It must "
            "be the probability with which the logged action was taken; leave it empty where it is not known."
        )
    return p0


def missing_propensities(name: str, missing: int, rows: int) -> list[str]:
    """A note where propensities are missing; missing in every row is an error."""
    if missing == rows:
        raise LogError(
            f"The propensity column {name!r} is empty in every row. "
            "Name it under ignore instead to have propensities estimated."
        )
    if not missing:
        return []
    return [
        f"Propensity {name!r} is missing in {missing} of {rows} rows ({missing / rows:.1%}); these are to be estimated."
    ]


def read_weights(rows: Rows, name: str | None) -> np.ndarray | None:
    """Row weights: finite and positive."""
    if name is None:
        return None
    check_complete(rows, name, "weight")
    weights = read_floats(rows, name, "weight", "positive numbers")
    wrong = ~(np.isfinite(weights) & (weights > 0))
    if wrong.any():
        raise LogError(
            f"The weight column {name!r} is not a positive number in {rows.told(wrong)}: e.g. {weights[wrong][0]:g}. "
            "Correct these rows, or leave out those that should not count."
        )
    with np.errstate(over="ignore"):
        if not np.isfinite(weights.sum()):
            raise LogError(
                f"The weights in column {name!r} add up to more than a number can hold: the largest is "
                f"{weights.max():g}, in {rows.told(weights == weights.max())}. Use a larger unit."
            )
    return weights


def read_floats(rows: Rows, name: str, role: str, expected: str) -> np.ndarray:
    """A numeric column as floats, NaN where missing."""
    column = rows.table.column(name)
    if not is_plain_number(column.type):
        raise LogError(f"The {role} column {name!r} is of type {column.type}; expected {expected}: convert it.")
    return np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy())


def check_group(rows: Rows, name: str | None) -> None:
    """Groups are named in every row, by text, numbers or dates."""
    if name is None:
        return
    type = rows.table.column(name).type
    if not kind_of(type):
        raise LogError(f"The group column {name!r} is of type {type}; expected text, numbers or dates: convert it.")
    check_complete(rows, name, "group")


def check_time(rows: Rows, name: str | None) -> None:
    """Times are numbers, dates or timestamps, in every row."""
    if name is None:
        return
    type = rows.table.column(name).type
    if kind_of(type) not in (NUMBER, DATE):
        raise LogError(
            f"The time column {name!r} is of type {type}; expected dates, timestamps or numbers. "
            "Write times as 2024-01-31 or 2024-01-31 12:00:00."
        )
    check_complete(rows, name, "time")
