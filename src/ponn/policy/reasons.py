"""Why an action is recommended: what moves it, how similar rows fared, what else there is. numpy alone.

    symbol   meaning                                                              shape
    X        design columns                                                       [n, D]
    owner    the feature that a design column belongs to                          [D]
    usual    the design columns of a row in which every feature has its usual value [D]
    effect   f(x) - f(x with feature i at its usual value), one feature at a time [n, d]

f is the probability h(a | x) of the action, or its expected reward where the policy takes what promises most and
probabilities are 0 or 1. The effects of a row do not add up to anything: features can act together. Their cost is one
more scoring of the rows per feature that any action looks at.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError
from ponn.log.encoding import Encoding
from ponn.log.features import CategoryFeature, Feature, NumberFeature, summarise_texts
from ponn.log.profile import BOOLEAN, DATE, texts
from ponn.log.roles import EXACT
from ponn.policy.schema import is_text

MOST_FEATURES = 5  # told of a recommendation
DIGITS = 6  # of a number in JSON: networks work in single precision, more digits would be noise
SMALL = 0.005  # an effect on a probability that is not worth a word; of rewards, this share of their range
WHOLE = 1e15  # whole numbers up to here are written without a fraction
PROBABILITY, EXPECTED_REWARD = "probability", "expected_reward"  # what effects are told of
NOBODY = -1  # the number of a runner-up that does not exist: no other action is eligible


@dataclass(frozen=True)
class FeatureEffect:
    """One feature of a row, and what it does to the action."""

    feature: str
    value: Any  # as in the user's rows; None: missing
    usual: Any  # in training: the median, or the most common value; None: missing
    effect: float
    seen: bool = True  # was the value, or a missing one, ever seen in training?

    def __str__(self) -> str:
        unseen = "never seen in training, " if not self.seen else ""
        return f"{self.feature} {said(self.value)} ({unseen}usually {said(self.usual)})"


@dataclass(frozen=True)
class Similar:
    """Training rows alike in what was done and how it turned out, as far as a few questions about them can tell."""

    rows: int
    took_action: int
    fewer_than: int = 1  # of actions that fewer similar rows took nothing is known; 0 of them stands for that


@dataclass(frozen=True)
class ExpectedReward:
    """In the user's unit; no ends where nobody similar took the action."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class RunnerUp:
    """The next best action."""

    action: Any
    probability: float
    expected_reward: float | None


@dataclass(frozen=True)
class Outcome:
    """What a reward is called, its range and whether small ones are good."""

    name: str
    low: float
    high: float
    minimize: bool


@dataclass(frozen=True)
class Reason:
    """Why an action is recommended for a row; prints itself in plain words. None: the policy file does not tell."""

    action: Any
    probability: float
    moves: str  # what effects are told of: "probability" or "expected_reward"
    features: tuple[FeatureEffect, ...] | None  # the largest effects first
    similar: Similar | None
    expected_reward: ExpectedReward | None
    runner_up: RunnerUp | None  # None: no other action is eligible
    supported: bool | None
    outcome: Outcome

    def __str__(self) -> str:
        told = (recommendation_text(self), features_text(self), similar_text(self), expected_text(self))
        return " ".join(sentence for sentence in told if sentence)

    def as_json(self) -> dict[str, Any]:
        """Plain values, numbers with six digits."""
        beside = ("action", "probability", "outcome")  # in the table, or the same for all rows
        return {name: plain(one) for name, one in vars(self).items() if name not in beside} | {"text": str(self)}


def plain(found: Any) -> Any:
    """Results as plain values whose fractions have few digits; several times faster than `dataclasses.asdict`."""
    if isinstance(found, float):
        return float(f"{found:.{DIGITS}g}")
    if isinstance(found, tuple):
        return [plain(one) for one in found]
    return {name: plain(one) for name, one in vars(found).items()} if is_dataclass(found) else found


def json_column(reasons: Iterable[Reason]) -> pa.Array:
    """Reasons as JSON text, one for each row."""
    return pa.array([json.dumps(one.as_json(), ensure_ascii=False) for one in reasons], pa.string())


# In words ------------------------------------------------------------------------------------------------


def said(value: Any) -> str:
    """A value in words."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def brief(value: float, digits: int) -> str:
    """A number with few digits, and without an exponent where it is large."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def recommendation_text(reason: Reason) -> str:
    """What is recommended, and what comes next."""
    if reason.runner_up is None:
        return f"{reason.action} is recommended; no other action is eligible."
    if reason.moves == EXPECTED_REWARD:
        return f"{reason.action} is recommended; the runner-up is {reason.runner_up.action}."
    return (
        f"{reason.action} is recommended with probability {reason.probability:.2f}; the runner-up is "
        f"{reason.runner_up.action} with {reason.runner_up.probability:.2f}."
    )


def features_text(reason: Reason) -> str:
    """What speaks for the action and against it."""
    if reason.features is None:
        return ""
    if reason.moves == EXPECTED_REWARD:
        moved, small = f"the expected {reason.outcome.name}", SMALL * (reason.outcome.high - reason.outcome.low)
    else:
        moved, small = "this probability", SMALL
    told = [
        f"{one} {'raises' if one.effect > 0 else 'lowers'} it by {brief(abs(one.effect), 2)}"
        for one in reason.features
        if abs(one.effect) >= small
    ]
    if not told:
        return f"No single feature moves {moved} much."
    return f"What moves {moved} most: {'; '.join(told)}."


def similar_text(reason: Reason) -> str:
    """How many similar rows there are."""
    doubt = "" if reason.supported is not False else " The log hardly holds such cases with it: it cannot tell."
    if reason.similar is None:
        return doubt.strip()
    rows, took, least = vars(reason.similar).values()
    nobody = "none" if least == 1 else f"fewer than {least}"
    if not rows:
        return f"Of similar past cases {nobody} got any action.{doubt}"
    return f"Of {rows:,} similar past cases {took or nobody} got {reason.action}.{doubt}"


def expected_text(reason: Reason) -> str:
    """What is expected."""
    expected = reason.expected_reward
    if expected is None:
        return ""
    alone = " by the model alone" if reason.similar and not reason.similar.took_action else ""
    ends = (
        alone
        if expected.low is None or expected.high is None
        else f" ({brief(expected.low, 3)} to {brief(expected.high, 3)})"
    )
    good = ", where less is better" if reason.outcome.minimize else ""
    return f"Expected {reason.outcome.name}: {brief(expected.value, 3)}{ends}{good}."


# Usual values --------------------------------------------------------------------------------------------


def plain_number(feature: NumberFeature, value: Any) -> Any:
    """A number as the user would write it: true or false, a date as text, whole numbers without a fraction."""
    if math.isnan(value):
        return None
    if feature.kind == BOOLEAN:
        return bool(value)
    if feature.kind == DATE:
        return feature.say(float(value))
    return int(value) if value == round(value) and abs(value) < WHOLE else float(str(value))


def usual_values(encoding: Encoding, table: pa.Table) -> dict[str, Any]:
    """The usual value of each feature in these rows; None: missing in most of them."""
    return {one.name: usual_value(one, table.column(one.name)) for one in encoding.features}


def usual_value(feature: Feature, column: pa.ChunkedArray) -> Any:
    """The most common text, or the median number (of two the smaller, so that it did occur)."""
    if isinstance(feature, CategoryFeature):
        found = summarise_texts(column)
        level, count = min(found.counts.items(), key=lambda one: (-one[1], one[0]), default=(None, 0))
        return None if found.missing > count else level
    x = feature.read(column)
    known = x[~np.isnan(x)]
    if 2 * len(known) < len(x) or not len(known):
        return None
    middle = (len(known) - 1) // 2
    return plain_number(feature, np.partition(known, middle)[middle])


def usual_design(encoding: Encoding, usual: Mapping[str, Any]) -> np.ndarray:
    """The design columns of a row in which every feature has its usual value; what cannot be one is refused."""
    named = set(usual) == {one.name for one in encoding.features}
    if not named or not all(is_usual(one, usual[one.name]) for one in encoding.features):
        raise PonnError("The usual values of the policy file do not fit its features; it is damaged.")
    table = pa.table({one.name: pa.array([usual[one.name]], arrow_type(one)) for one in encoding.features})
    return encoding.design(table)[0]  # [D]


def is_usual(feature: Feature, value: Any) -> bool:
    """Nothing, or a value of the feature's kind."""
    if isinstance(feature, CategoryFeature) or feature.kind == DATE:
        return value is None or is_text(value)
    if feature.kind == BOOLEAN:
        return value is None or isinstance(value, bool)
    most = EXACT if isinstance(value, int) else sys.float_info.max
    return value is None or (type(value) in (int, float) and abs(value) <= most)  # not so for NaN


def arrow_type(feature: Feature) -> pa.DataType:
    """How a usual value is written: dates and categories as text."""
    if isinstance(feature, CategoryFeature) or feature.kind == DATE:
        return pa.string()
    return pa.bool_() if feature.kind == BOOLEAN else pa.float64()


# Effects -------------------------------------------------------------------------------------------------


def effects(
    f: Callable[[np.ndarray], np.ndarray], X: np.ndarray, owner: np.ndarray, usual: np.ndarray, looked_at: np.ndarray
) -> np.ndarray:
    """f(x) - f(x with feature i at its usual value); 0 for features that are not looked at.

    f is always given all rows, so that their place among others, on which the last bits depend, does not change.
    """
    found, here = np.zeros((len(X), owner[-1] + 1)), f(X)
    for i in looked_at:
        columns = np.flatnonzero(owner == i)
        if (X[:, columns] != usual[columns]).any():
            changed = X.copy()
            changed[:, columns] = usual[columns]
            found[:, i] = here - f(changed)
    return found  # [n, d]


def strongest(effect: np.ndarray, told: np.ndarray, most: int = MOST_FEATURES) -> list[np.ndarray]:
    """Of each row the features with the largest effects, among those that are told: [n] arrays of numbers."""
    size = np.where(told, np.abs(effect), -1.0)
    order = np.argsort(-size, axis=1, kind="stable")[:, :most]
    return [row[size[j, row] >= 0] for j, row in enumerate(order)]


def shown(feature: Feature, column: pa.ChunkedArray) -> tuple[Any, np.ndarray]:
    """A feature's values in rows, and whether such were ever seen in training; any number is like its neighbours."""
    read = feature.read(column)
    if isinstance(feature, CategoryFeature):
        return texts(column).to_pylist(), read >= 0
    return read, ~np.isnan(read) | feature.missing


def feature_effects(
    encoding: Encoding, table: pa.Table, usual: Mapping[str, Any], effect: np.ndarray, told: np.ndarray
) -> list[tuple[FeatureEffect, ...]]:
    """What is told of the features of each row."""
    columns = [(one, *shown(one, table.column(one.name))) for one in encoding.features]

    def line(j: int, i: int) -> FeatureEffect:
        feature, values, seen = columns[i]
        value = plain_number(feature, values[j]) if isinstance(feature, NumberFeature) else values[j]
        return FeatureEffect(feature.name, value, usual[feature.name], float(effect[j, i]), bool(seen[j]))

    return [tuple(line(j, i) for i in chosen) for j, chosen in enumerate(strongest(effect, told))]


# All together --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known of the recommendations for n rows; None: the policy file does not tell."""

    actions: Sequence[Any]
    h: np.ndarray  # [n, k]
    first: np.ndarray  # the action recommended: [n]
    second: np.ndarray  # the runner-up, or NOBODY: [n]
    moves: str
    features: Sequence[tuple[FeatureEffect, ...]] | None
    similar: np.ndarray | None  # similar rows by action: [n, k]
    least: int  # of actions that fewer similar rows took nothing is known
    expected: np.ndarray | None  # expected reward in the user's unit: [n, k]
    low: np.ndarray  # [n], NaN: not known
    high: np.ndarray
    supported: np.ndarray | None  # [n, k]
    outcome: Outcome


def reasons_of(facts: Facts) -> list[Reason]:
    """One reason for each row."""
    return [reason_of(facts, j, int(a), int(b)) for j, (a, b) in enumerate(zip(facts.first, facts.second, strict=True))]


def reason_of(facts: Facts, j: int, a: int, b: int) -> Reason:
    """Why action a, with b next, is recommended for row j."""
    r = None if facts.expected is None else facts.expected[j]
    next_best = RunnerUp(facts.actions[b], float(facts.h[j, b]), None if r is None else float(r[b]))
    return Reason(
        action=facts.actions[a],
        probability=float(facts.h[j, a]),
        moves=facts.moves,
        features=None if facts.features is None else facts.features[j],
        similar=None if facts.similar is None else similar_of(facts.similar[j], a, facts.least),
        expected_reward=None if r is None else ExpectedReward(float(r[a]), known(facts.low[j]), known(facts.high[j])),
        runner_up=None if b == NOBODY else next_best,
        supported=None if facts.supported is None else bool(facts.supported[j, a]),
        outcome=facts.outcome,
    )


def similar_of(rows: np.ndarray, a: int, least: int) -> Similar:
    """Similar rows, and those of them that took action a."""
    return Similar(int(rows.sum()), int(rows[a]), least)


def known(value: float) -> float | None:
    """A number, None for NaN."""
    return None if math.isnan(value) else float(value)
