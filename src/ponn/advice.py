"""What a served policy answers, whoever asks and however: from a parsed request to recommendations as plain values.

symbol   meaning                                                                   shape
h        h(a | x) among the eligible actions                                       [n, k]
q        the probability with which each action is served: 0 and 1 for arg max     [n, k]
A        the action that is served                                                 [n]
u        uniform numbers that decide the draws                                     [n]
E        is the action eligible?                                                   [n, k] bool
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.encode import CategoryFeature, Feature, NumberFeature
from ponn.errors import PonnError, listing, one_line
from ponn.inference import actions_at
from ponn.policy import Policy, load, runner_up
from ponn.profile import BOOLEAN, DATE
from ponn.rows import RowReader, kind_in_words, shown

MOST_WHOLE = 1e15  # numbers below are exact in JSON, whoever reads it
FIELDS = ("row", "rows", "eligible", "reasons", "probabilities")


@dataclass(frozen=True)
class Mode:
    """How an action is chosen: the most probable, a draw from h, or now and then one of the supported at random."""

    serve: str = "best"  # best, sample, explore
    explore: float = 0.0  # share of requests that explore

    def __post_init__(self) -> None:
        if self.serve not in ("best", "sample", "explore") or not 0 <= self.explore <= 1:
            raise PonnError(f"The mode is {self}; expected best, sample or explore with a share from 0 to 1.")


class AskError(PonnError):
    """A request that is not what can be asked: it names the field."""

    def __init__(self, field: str, reason: str, expected: str) -> None:
        super().__init__(f"{field!r}: {reason}; expected {expected}.")
        self.field, self.reason, self.expected = field, reason, expected


@dataclass(frozen=True)
class Ask:
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


@dataclass(frozen=True)
class Advice:
    """What is answered for each row, and what a decision log needs to know."""

    recommendations: list[dict[str, Any]]
    actions: list[Any]
    served: list[float]  # the probability with which each was drawn
    unsupported: int
    surprised: int  # rows with notes


class Adviser:
    """A policy that answers requests; refuses to come into being for a policy file that could not answer."""

    def __init__(self, policy: Policy, mode: Mode | None = None) -> None:
        self.policy, self.mode = policy, mode or Mode()
        self.digest = policy.digest
        self.reader = RowReader(policy.encoding)
        self.places = {(type(label), label): a for a, label in enumerate(policy.actions)}
        self.keys = [str(label) for label in policy.actions]
        self.random = np.random.default_rng()

    def advise(self, ask: Ask) -> Advice:
        """Recommendations for the rows of a request."""
        read = self.reader.read(ask.rows)
        X, n = read.X, np.arange(len(read.X))
        E = None if ask.eligible is None else self.eligible(ask.eligible, len(X))
        h = self.probabilities(X, E)  # [n, k]
        supported = self.policy.support(X)  # [n, k]
        q = self.serving(h, E, supported)
        A = h.argmax(axis=1) if q is None else drawn(q, self.random.random(len(X)))
        second = runner_up(h if E is None else np.where(E, h, -1.0), A)
        columns = {
            "action": [self.policy.actions[a] for a in A],
            "probability": h[n, A].tolist(),
            "runner_up": self.labels(second, None if E is None else E.sum(axis=1) > 1),
            "expected_reward": plain(self.policy.expected_reward(X, A)),
            "expected_low": [None] * len(X),
            "expected_high": [None] * len(X),
            "supported": [None] * len(X) if supported is None else supported[n, A].tolist(),
            "served": [1.0] * len(X) if q is None else q[n, A].tolist(),
        }
        if ask.probabilities:
            columns["probabilities"] = [dict(zip(self.keys, row, strict=True)) for row in h.tolist()]
        columns |= {"reasons": [None] * len(X), "notes": read.notes}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        unsupported, surprised = columns["supported"].count(False), sum(map(bool, read.notes))
        return Advice(rows, columns["action"], columns["served"], unsupported, surprised)

    def labels(self, A: np.ndarray, there: np.ndarray | None) -> list[Any]:
        """Labels of actions, None where there is none."""
        actions = self.policy.actions
        known = [True] * len(A) if there is None else there.tolist()
        return [actions[a] if one else None for a, one in zip(A.tolist(), known, strict=True)]

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

    def probabilities(self, X: np.ndarray, E: np.ndarray | None) -> np.ndarray:
        """h(a | x) among the eligible actions; where it gives them nothing, all to the one that promises most."""
        h = self.policy.model.probabilities(X)
        if E is None:
            return h
        h = h * E
        total = h.sum(axis=1, keepdims=True)
        if not total.all():
            promised = np.where(E, self.promises(X), -np.inf)
            h = np.where(total > 0, h, np.eye(len(self.keys))[promised.argmax(axis=1)])
        return h / np.where(total > 0, total, 1.0)  # [n, k]

    def promises(self, X: np.ndarray) -> np.ndarray:
        """What each action promises: its reward where a model tells, else how usual it is in current practice."""
        r = self.policy.model.rewards(X)
        if r is None and "reward" in self.policy.companions:
            r = self.policy.companions["reward"].rewards(X)
        if r is None and "logging" in self.policy.companions:
            r = self.policy.companions["logging"].probabilities(X)
        return np.zeros((len(X), len(self.keys))) if r is None else r

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
        policy, columns = self.policy, self.policy.provenance["columns"]
        reward = policy.provenance["reward"]
        return {
            "digest": self.digest,
            "method": policy.method,
            "actions": list(policy.actions),
            "features": [described(one) for one in policy.encoding.features],
            "relevance": [asdict(one) for one in policy.relevance],
            "selected": {str(action): list(names) for action, names in policy.sets().items()},
            "settings": dict(policy.settings),
            "provenance": dict(policy.provenance),
            "evaluation": policy.evaluation,
            "examples": examples(policy.encoding.features),
            "reward": {"name": columns["reward"], "range": list(reward["range"]), "minimize": reward["minimize"]},
            "mode": asdict(self.mode),
        }


LABELS = "a list of actions, or one such list for each row"


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
        adviser.advise(Ask(adviser.about["examples"]))
        check_names(adviser)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PonnError(f"{path} is damaged: its policy cannot answer ({one_line(error)}).") from error
    return adviser


def check_names(adviser: Adviser) -> None:
    """What is said of the policy can be written as JSON, with every action under a name of its own."""
    import json

    json.dumps(adviser.about, allow_nan=False)
    if len(set(adviser.keys)) < len(adviser.keys):
        raise PonnError(f"Two actions have one name: {listing(adviser.keys, 20)}.")


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


def examples(features: Sequence[Feature]) -> list[dict[str, Any]]:
    """Three rows to try: usual values with the first levels, low ones with the next, high ones with those after."""
    return [{one.name: example(one, number) for one in features} for number in range(3)]


def example(feature: Feature, number: int) -> Any:
    """A value of one feature."""
    if isinstance(feature, CategoryFeature):
        return feature.kept[number % len(feature.kept)] if feature.kept else None
    return as_sent(feature, (usual_of(feature), feature.low, feature.high)[number])
