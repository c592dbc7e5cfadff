"""What a served policy answers, whoever asks and however: from a parsed request to recommendations as plain values.

symbol   meaning                                                                   shape
h        h(a | x) among the eligible actions                                       [n, k]
q        the probability with which each action is served: 0 and 1 for arg max     [n, k]
A        the action that is served                                                 [n]
u        uniform numbers that decide the draws                                     [n]
E        is the action eligible?                                                   [n, k] bool
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError, listing, one_line
from ponn.log.features import CategoryFeature, Feature, NumberFeature
from ponn.log.profile import BOOLEAN, DATE
from ponn.policy.inference import actions_at
from ponn.policy.policy import Decision, Policy, load
from ponn.policy.reasons import NOBODY, Reason, arrow_type
from ponn.serving.examples import added_fields, answerable, eligibility_fields
from ponn.serving.rows import Cells, RowError, RowReader, kind_in_words, shown, why_no_text

MOST_WHOLE = 1e15  # numbers below are exact in JSON, whoever reads it
FIELDS = ("row", "rows", "eligible", "reasons", "probabilities")


@dataclass(frozen=True)
class Mode:
    """How an action is chosen: the most probable, a draw from h, or now and then one of the supported at random."""

    serve: str = "best"  # best, sample, explore
    explore: float = 0.0  # share of requests that explore
    supported_only: bool = False  # the best among the actions that the log supports

    def __post_init__(self) -> None:
        if self.serve not in ("best", "sample", "explore") or not 0 <= self.explore <= 1:
            raise PonnError(f"The mode is {self}; expected best, sample or explore with a share from 0 to 1.")


class AskError(PonnError):
    """A request that is not what can be asked: it names the field."""

    def __init__(self, field: str, reason: str, expected: str) -> None:
        super().__init__(f"{field!r}: {reason}; expected {expected}.")
        self.field, self.reason, self.expected = field, reason, expected


class Ask(NamedTuple):
    """One request for recommendations, its parts checked but for the rows themselves."""

    rows: Sequence[Any]
    eligible: Any = None
    reasons: bool = False
    probabilities: bool = True


def read_ask(body: Any) -> Ask:
    """A request from its JSON."""
    if not isinstance(body, dict):
        raise AskError("body", f"it is {kind_in_words(body)}", 'an object like {"rows": [{...}]}')
    unknown = [name for name in body if name not in FIELDS]
    if unknown:
        raise AskError(shown(unknown[0], str), "there is no such field", f"some of {listing(FIELDS)}")
    for name in ("reasons", "probabilities"):
        if not isinstance(body.get(name, False), bool):
            raise AskError(name, f"it is {kind_in_words(body[name])}", "true or false")
    return Ask(read_rows(body), body.get("eligible"), body.get("reasons", False), body.get("probabilities", True))


def read_rows(body: Mapping[str, Any]) -> Sequence[Any]:
    """The rows of a request, given as "rows" or as one "row"."""
    if ("row" in body) == ("rows" in body):
        raise AskError("rows", "the request has both or none of row and rows", "one of them")
    rows = [body["row"]] if "row" in body else body["rows"]
    if not isinstance(rows, list) or not rows:
        reason = "it is empty" if rows == [] else f"it is {kind_in_words(rows)}"
        raise AskError("rows", reason, "a list with at least one row")
    return rows


class Checked(NamedTuple):
    """A request that can be answered."""

    ask: Ask
    cells: Cells
    E: np.ndarray | None  # None: all actions are eligible

    def part(self, start: int, stop: int) -> "Checked":
        """Some of its rows."""
        here, ask, cells = slice(start, stop), self.ask, self.cells
        per_row = isinstance(ask.eligible, list) and isinstance(ask.eligible[0], list)
        return Checked(
            ask._replace(rows=ask.rows[here], eligible=ask.eligible[here] if per_row else ask.eligible),
            Cells(cells.x[here], cells.texts[here], cells.notes[here]),
            None if self.E is None else self.E[here],
        )


@dataclass(frozen=True)
class Advice:
    """What is answered: one recommendation per row."""

    recommendations: list[dict[str, Any]]
    restricted: int = 0  # rows whose best action gave way to the best supported one
    fell_back: int = 0  # rows without such an action: what current practice does most

    @property
    def unsupported(self) -> int:
        """Rows whose action was hardly ever taken in such cases."""
        return [one["supported"] for one in self.recommendations].count(False)

    @property
    def surprised(self) -> int:
        """Rows with notes."""
        return len([None for one in self.recommendations if one["notes"]])


def advice_for(ask: Ask, rows: list[dict[str, Any]], restricted: int, fell_back: int) -> Advice:
    """What was asked for, of recommendations with everything."""
    if not ask.probabilities:
        for one in rows:
            del one["probabilities"]
    return Advice(rows, restricted, fell_back)


class Adviser:
    """A policy that answers requests; refuses to come into being for a policy file that could not answer."""

    def __init__(self, policy: Policy, mode: Mode | None = None) -> None:
        self.policy, self.mode = policy, mode or Mode()
        self.digest = policy.digest
        self.reader = RowReader(policy.encoding)
        self.places = {(type(label), label): a for a, label in enumerate(policy.actions)}
        self.keys = [str(label) for label in policy.actions]
        self.looks_at = eligibility_fields(policy)
        self.beside = self.looks_at - self.reader.names
        self.random = np.random.default_rng()
        if self.mode.supported_only:
            policy.safer(np.zeros((0, policy.model.D), np.float32))  # can it tell what is supported?

    def check(self, ask: Ask) -> Checked:
        """A request whose rows and eligible actions can be read; raises RowError or AskError otherwise."""
        cells = self.reader.read(without(ask.rows, self.beside))
        given = None if ask.eligible is None else self.eligible(ask.eligible, len(ask.rows))
        return Checked(ask, cells, self.by_rules(ask.rows, given) if self.looks_at else given)

    def by_rules(self, rows: Sequence[Any], given: np.ndarray | None) -> np.ndarray | None:
        """What the request leaves, less what the policy's own rules and column exclude."""
        features = {one.name: one for one in self.policy.encoding.features}
        needed = [name for name in self.looks_at if name in features or any(name in row for row in rows)]
        columns = {
            name: as_column(features[name], rows) if name in features else column_beside(name, rows) for name in needed
        }
        try:
            return self.policy.eligible_in(pa.table(columns), given)
        except (pa.ArrowException, PonnError) as error:
            raise AskError("rows", one_line(error), "rows whose eligible actions can be told") from error

    def advise(self, asked: Sequence[Checked]) -> list[Advice]:
        """Recommendations for several requests at once, which costs hardly more than for one."""
        X = self.reader.design(
            [x for one in asked for x in one.cells.x], [on for one in asked for on in one.cells.texts]
        )
        E = self.together([one.E for one in asked], [len(one.ask.rows) for one in asked])
        decision = self.policy.decide(X, None, self.mode.supported_only, E)
        h, supported = decision.h, self.policy.support(X, E)  # [n, k]
        q = self.serving(h, E, supported)
        A = decision.first if q is None else drawn(q, self.random.random(len(X)))
        decision = replace(decision, first=A)
        reasons = self.reasons(asked, X, decision)
        n, nothing = np.arange(len(X)), [None] * len(X)
        columns = {
            "action": [self.policy.actions[a] for a in A.tolist()],
            "probability": h[n, A].tolist(),
            "runner_up": self.labels(self.policy.next_best(X, decision)),
            "expected_reward": plain(self.policy.expected_reward(X, A)),
            "expected_low": [one and one.expected_reward and one.expected_reward.low for one in reasons],
            "expected_high": [one and one.expected_reward and one.expected_reward.high for one in reasons],
            "supported": nothing if supported is None else supported[n, A].tolist(),
            "served": [1.0] * len(X) if q is None else q[n, A].tolist(),
            "probabilities": [dict(zip(self.keys, row, strict=True)) for row in h.tolist()],
            "reasons": [one and one.as_json() for one in reasons],
            "notes": [notes for one in asked for notes in one.cells.notes],
        }
        rows = iter([dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)])
        starts = np.cumsum([0] + [len(one.ask.rows) for one in asked[:-1]])
        counts = (np.add.reduceat(one, starts, dtype=int).tolist() for one in (decision.restricted, decision.fell_back))
        return [
            advice_for(one.ask, [next(rows) for _ in one.ask.rows], *counted)
            for one, *counted in zip(asked, *counts, strict=True)
        ]

    def reasons(self, asked: Sequence[Checked], X: np.ndarray, decision: Decision) -> list[Reason | None]:
        """Why, for the rows of requests that ask; they come with the interval of the expected reward."""
        found: list[Reason | None] = [None] * len(X)
        if not any(one.ask.reasons for one in asked):
            return found
        wanted = np.repeat([one.ask.reasons for one in asked], [len(one.ask.rows) for one in asked])
        rows = [row for one in asked if one.ask.reasons for row in one.ask.rows]
        told = pa.table({one.name: as_column(one, rows) for one in self.policy.encoding.features})
        made = self.policy.reasons_for(told, X[wanted], decision.take(wanted))
        for j, reason in zip(np.flatnonzero(wanted), made, strict=True):
            found[j] = reason
        return found

    def together(self, masks: Sequence[np.ndarray | None], rows: Sequence[int]) -> np.ndarray | None:
        """The eligible actions of several requests; None where all are for all."""
        if all(one is None for one in masks):
            return None
        everything = (
            np.ones((n, len(self.keys)), bool) if one is None else one for one, n in zip(masks, rows, strict=True)
        )
        return np.concatenate(list(everything))  # [n, k]

    def labels(self, A: np.ndarray) -> list[Any]:
        """Labels of actions, None for nobody."""
        return [None if a == NOBODY else self.policy.actions[a] for a in A.tolist()]

    def eligible(self, asked: Any, n: int) -> np.ndarray:
        """The eligible actions: a list of labels for all rows, or one list per row."""
        if not isinstance(asked, list) or not asked:
            raise AskError("eligible", "it is empty" if asked == [] else f"it is {kind_in_words(asked)}", LABELS)
        if not isinstance(asked[0], list):
            return np.tile(self.mask(asked), (n, 1))
        if len(asked) != n:
            raise AskError("eligible", f"it has {len(asked)} lists for {n} rows", "one list for each row")
        return np.array([self.mask(one) for one in asked])  # [n, k]

    def mask(self, labels: Any) -> np.ndarray:
        """Which actions are among these labels: [k]."""
        if not isinstance(labels, list) or not labels:
            raise AskError("eligible", "a row has no eligible action", LABELS)
        out = np.zeros(len(self.keys), bool)
        for label in labels:
            a = None if isinstance(label, list | dict) else self.places.get((type(label), label))
            if a is None:
                raise AskError("eligible", f"there is no action {shown(label)}", f"some of {listing(self.keys, 20)}")
            out[a] = True
        return out

    def serving(self, h: np.ndarray, E: np.ndarray | None, supported: np.ndarray | None) -> np.ndarray | None:
        """q: the probability with which each action is served; None where the most probable one is."""
        if self.mode.serve == "best":
            return None
        if self.mode.serve == "sample":
            return h
        best = np.eye(h.shape[1])[h.argmax(axis=1)]  # [n, k]
        open_ = np.ones(h.shape, bool) if E is None else E
        tried = open_ if supported is None else open_ & supported
        tried = np.where(tried.any(axis=1, keepdims=True), tried, best > 0)
        return (1 - self.mode.explore) * best + self.mode.explore * tried / tried.sum(axis=1, keepdims=True)

    @cached_property
    def about(self) -> dict[str, Any]:
        """The policy for people and forms, in plain values."""
        policy = self.policy
        columns, reward = policy.made("columns", "reward")
        return {
            "digest": self.digest,
            "method": policy.method,
            "actions": list(policy.actions),
            "features": [described(one) for one in policy.encoding.features],
            "relevance": [asdict(one) for one in policy.relevance],
            "selected": {str(action): list(names) for action, names in policy.sets().items()},
            "settings": dict(policy.settings),
            "provenance": {name: one for name, one in policy.provenance.items() if name != "source"},
            "evaluation": policy.evaluation,
            "examples": answerable(policy, examples(policy.encoding.features)),
            "eligibility": eligibility_told(policy),
            "reward": {"name": columns["reward"], "range": list(reward["range"]), "minimize": reward["minimize"]},
            "mode": asdict(self.mode),
        }


LABELS = "a list of actions, or one such list for each row"


def without(rows: Sequence[Any], fields: frozenset[str]) -> Sequence[Any]:
    """Rows without some fields; what is no row is left for others to refuse."""
    if not fields:
        return rows
    return [
        {name: value for name, value in row.items() if name not in fields} if isinstance(row, dict) else row
        for row in rows
    ]


def as_column(feature: Feature, rows: Sequence[Mapping[str, Any]]) -> pa.Array:
    """A feature's cells, which were checked, as the user gave them; whole numbers may be longer than Arrow takes."""
    cells = [row.get(feature.name) for row in rows]
    if isinstance(feature, NumberFeature) and feature.kind != DATE:
        plain_cell = bool if feature.kind == BOOLEAN else float  # 0 and 1 may stand for true and false
        cells = [None if cell is None else plain_cell(cell) for cell in cells]
    return pa.array(cells, arrow_type(feature))


def column_beside(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Array:
    """A column that is no feature, but tells which actions are eligible; its cells are checked here."""
    cells = [row.get(name) for row in rows]
    for j, cell in enumerate(cells):
        for one in cell if isinstance(cell, list) else [cell]:
            if reason := why_no_label(one):
                raise RowError(j + 1, name, reason, "labels of actions, or what a rule looks at")
    try:
        there = [cell for cell in cells if cell is not None]
        if there and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in there):
            return pa.array([None if cell is None else float(cell) for cell in cells], pa.float64())
        return pa.array(cells)
    except pa.ArrowException as error:
        raise AskError("rows", f"{name!r} holds cells of several types", "cells of one type") from error


def why_no_label(cell: Any) -> str:
    """Why a cell cannot say what is eligible, empty where it can."""
    if cell is None or isinstance(cell, bool):
        return ""
    if isinstance(cell, int | float):
        return "" if abs(cell) <= sys.float_info.max else f"{shown(cell)} is not a finite number"  # not so for NaN
    return why_no_text(cell)


def drawn(q: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Actions drawn from q. u in [0, 1) becomes (0, sum q], so that no action of probability 0 is ever drawn."""
    return actions_at(q, (1 - u) * np.cumsum(q, axis=1)[:, -1])


def plain(values: Any) -> list[Any]:
    """A numpy or Arrow column as a list."""
    return values.to_pylist() if isinstance(values, pa.Array) else values.tolist()


def load_adviser(path: str | os.PathLike[str], mode: Mode | None = None) -> Adviser:
    """The policy file, loaded and tried out: what could not answer is refused here and not at the first request."""
    policy = load(path)
    try:
        adviser = Adviser(policy, mode)
        check_names(adviser)
        try_out(adviser)
    except (PonnError, pa.ArrowException) as error:
        raise PonnError(f"{path} is damaged: its policy cannot answer ({one_line(error)}).") from error
    return adviser


def check_names(adviser: Adviser) -> None:
    """Every action has a name of its own."""
    if len(set(adviser.keys)) < len(adviser.keys):
        raise PonnError(f"Two actions have one name: {listing(adviser.keys, 20)}.")


def try_out(adviser: Adviser) -> None:
    """Answer example rows, with all actions and by the rules; what is said, and said of the policy, must be numbers.

    Example rows need not be such that an action is eligible: their values need not have come together in training.
    """
    import json

    rows, told = examples(adviser.policy.encoding.features), adviser.about
    asked = [Checked(Ask(rows, reasons=True), adviser.reader.read(rows), None)]
    if told["examples"]:
        asked.append(adviser.check(Ask(told["examples"], reasons=True)))
    answers = [one.recommendations for one in adviser.advise(asked)]
    try:
        json.dumps([told, answers], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PonnError(f"what it says cannot be written as JSON: {one_line(error)}") from error


# A policy's schema ---------------------------------------------------------------------------------------


def described(feature: Feature) -> dict[str, Any]:
    """A feature as a form needs it."""
    found: dict[str, Any] = {"name": feature.name, "kind": feature.kind, "missing": feature.missing}
    if isinstance(feature, CategoryFeature):
        levels = [*feature.kept, *feature.rest]
        return found | {"low": None, "high": None, "usual": None, "levels": levels, "values": None, "whole": False}
    low, usual, high = (as_sent(feature, value) for value in (feature.low, usual_of(feature), feature.high))
    values = None if feature.values is None else [as_sent(feature, value) for value in feature.values]
    return found | {"low": low, "high": high, "usual": usual, "levels": None, "values": values, "whole": whole(feature)}


def whole(feature: NumberFeature) -> bool:
    """Does the feature look like whole numbers? Its ends are, and its values where they are few."""
    values = (feature.low, feature.high, *(feature.values or ()))
    return all(float(value).is_integer() and abs(value) < MOST_WHOLE for value in values)


def usual_of(feature: NumberFeature) -> float:
    """The mean, or the value next to it where values are few."""
    if feature.values is not None:
        return min(feature.values, key=lambda value: abs(value - feature.mean))
    return float(round(feature.mean)) if whole(feature) else float(f"{feature.mean:.4g}")


def as_sent(feature: NumberFeature, value: float) -> Any:
    """A value as JSON has it."""
    if feature.kind == BOOLEAN:
        return bool(value)
    if feature.kind == DATE:
        return feature.say(value)
    return int(value) if whole(feature) else value


def eligibility_told(policy: Policy) -> dict[str, Any] | None:
    """By what the policy tells which actions are eligible, with the fields of a row that are no features."""
    if policy.eligibility is None:
        return None
    return policy.eligibility.as_json() | {"fields": added_fields(policy)}


def examples(features: Sequence[Feature]) -> list[dict[str, Any]]:
    """Three rows to try: usual values with the first levels, low ones with the next, high ones with those after."""
    return [{one.name: example(one, number) for one in features} for number in range(3)]


def example(feature: Feature, number: int) -> Any:
    """A value of one feature."""
    if isinstance(feature, CategoryFeature):
        return feature.kept[number % len(feature.kept)] if feature.kept else None
    return as_sent(feature, (usual_of(feature), feature.low, feature.high)[number])
