"""What a policy may tell of the people it learned from: nothing that fewer than `min_cell` of them share.

symbol   meaning
fewest   Settings.min_cell: people who must share what is told; 1: everything may be told

The encoding that a policy was learned with knows the smallest and the largest value of a column, the edges of bins and
values that hardly anybody has; each of them is the value of a single person. None of that is needed to encode rows,
only to describe columns. So a policy carries the same encoding with coarser descriptions.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.errors import Note
from ponn.log.encoding import Encoding
from ponn.log.features import CategoryFeature, Feature, NumberFeature, midpoint, summarise_texts
from ponn.log.log import Log
from ponn.log.profile import BOOLEAN, DATE
from ponn.log.roles import Observed, scaled
from ponn.policy.reasons import plain_number, usual_values

DIGITS = 2  # of a spread (standard deviation, range) that are told of a single person's value


# Features ---------------------------------------------------------------------------------------------------


def disclosed_encoding(encoding: Encoding, table: pa.Table, fewest: int) -> Encoding:
    """The encoding with descriptions of its columns that tell of nobody; what it makes of rows stays the same."""
    if fewest <= 1:
        return encoding
    features = (disclosed_feature(one, table.column(one.name), fewest) for one in encoding.features)
    return replace(encoding, features=tuple(features))


def disclosed_feature(feature: Feature, column: pa.ChunkedArray, fewest: int) -> Feature:
    """A number without ends, values and edges that fewer people share; texts have lost such levels before."""
    if isinstance(feature, CategoryFeature):
        return feature
    x = feature.read(column)
    values, counts = np.unique(x[~np.isnan(x)], return_counts=True)
    common = values[counts >= fewest]
    if feature.values is not None and len(common):
        return of_values(feature, common)
    low, high = disclosed_ends(np.repeat(values, counts), fewest, feature.scale)
    if not low < high or feature.kind == BOOLEAN:
        return of_values(feature, np.array([rounded(feature.mean, feature.scale)]))
    if feature.cuts is None:
        return replace(feature, low=low, high=high)
    cuts = sorted({rounded(cut, feature.scale) for cut in feature.cuts})
    inner = tuple(cut for cut in cuts if low < cut < high)
    return replace(feature, low=low, high=high, values=None, cuts=inner, bins=len(inner) + 1)


def of_values(feature: NumberFeature, values: np.ndarray) -> NumberFeature:
    """The feature with these values as its levels."""
    told = tuple(values.tolist())
    cuts = tuple(midpoint(one, next_) for one, next_ in pairwise(told))
    return replace(feature, low=told[0], high=told[-1], values=told, cuts=cuts, bins=len(told))


def disclosed_ends(x: np.ndarray, fewest: int, scale: float) -> tuple[float, float]:
    """Two round numbers such that at least `fewest` of the sorted values lie at or below the first, as many above."""
    if len(x) < 2 * fewest:
        return math.inf, -math.inf
    step = step_of(scale)
    low, high = float(x[fewest - 1]), float(x[-fewest])
    return tidy(math.ceil(low / step) * step, step), tidy(math.floor(high / step) * step, step)


def step_of(spread: float) -> float:
    """The unit that values of this spread are told in."""
    return float(10.0 ** (math.floor(math.log10(spread)) + 1 - DIGITS)) if spread > 0 and math.isfinite(spread) else 1.0


def tidy(value: float, step: float) -> float:
    """A multiple of a step without the digits that rounding left behind it."""
    digits = -math.floor(math.log10(step))
    return float(round(value, digits)) + 0.0 if math.isfinite(value) and abs(digits) < 300 else value


def rounded(value: float, spread: float) -> float:
    """A value in two digits of the spread."""
    step = step_of(spread)
    return tidy(round(value / step) * step, step) if math.isfinite(value / step) else value


# Usual values, the range of outcomes, notes -----------------------------------------------------------------


def disclosed_usual(encoding: Encoding, table: pa.Table, fewest: int) -> dict[str, Any]:
    """The usual value of each feature: a common one as it is, others in two digits of the column's spread."""
    found = usual_values(encoding, table)
    if fewest <= 1:
        return found
    return {one.name: common_value(one, table.column(one.name), found[one.name], fewest) for one in encoding.features}


def common_value(feature: Feature, column: pa.ChunkedArray, usual: Any, fewest: int) -> Any:
    """A usual value that at least `fewest` people have, or one that is about that of many."""
    if usual is None:
        return None
    if isinstance(feature, CategoryFeature):
        return usual if summarise_texts(column).counts[usual] >= fewest else None
    x = feature.read(column)
    median = float(np.sort(x[~np.isnan(x)])[(np.count_nonzero(~np.isnan(x)) - 1) // 2])
    if np.count_nonzero(x == median) >= fewest:
        return usual
    near = rounded(median, feature.scale)
    return plain_number(feature, np.float64(round(near) if feature.kind == DATE else near))


def with_disclosed_range(log: Log, fewest: int) -> Log:
    """The log with the range of its outcomes in two digits where it was not declared and few people are at its ends."""
    range_ = disclosed_range(log, fewest)
    if range_ == log.reward_range:
        return log
    return replace(log, R=scaled(log.outcome, range_, log.minimize), reward_range=range_)


def disclosed_range(log: Log, fewest: int) -> tuple[float, float]:
    """The range of outcomes that a policy tells: a declared one as it is, an observed one rounded outward."""
    low, high = log.reward_range
    if fewest <= 1 or not isinstance(log.reward_range, Observed):
        return log.reward_range
    ends = (1.0, 0.0) if log.minimize else (0.0, 1.0)
    at = [int(np.count_nonzero(log.R == end)) for end in ends]
    step = step_of(high - low)
    below = low if at[0] >= fewest else min(tidy(math.floor(low / step) * step, step), low)
    above = high if at[1] >= fewest else max(tidy(math.ceil(high / step) * step, step), high)
    return Observed(below, above) if math.isfinite(above - below) else log.reward_range


def disclosed_notes(notes: Iterable[str], fewest: int) -> list[str]:
    """Notes as they may be passed on: without rows, cells and counts of a few people."""
    found = (one.passed_on if isinstance(one, Note) and fewest > 1 else str(one) for one in notes)
    return [one for one in found if one]


def fewer_than(count: int, fewest: int) -> str:
    """A count in words that tells nothing of a few people."""
    return f"fewer than {fewest}" if 0 < count < fewest else f"{count:,}"


def rare_actions_told(actions: Mapping[Any, int], fewest: int) -> list[str]:
    """A note on actions that so few got that what was learned of them may tell of these people."""
    rare = [repr(label) for label, rows in actions.items() if 0 < rows < fewest]
    if not rare:
        return []
    return [
        f"Fewer than {fewest} training rows each got {', '.join(rare)}. What the policy says of these actions rests on "
        "so few people that it may tell of them: leave those rows out, or merge the action with another, before the "
        "policy is passed on."
    ]
