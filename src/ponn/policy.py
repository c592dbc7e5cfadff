"""The policy: encoding, model, relevant sets and where they come from. numpy alone; no training stack, no pickle.

    symbol   meaning                          shape
    h        h(a | x), the stochastic policy  [n, k]

A policy file is a zip of `policy.json` and `weights.safetensors`. Nothing in it is executed; a file that is damaged,
too large or from a later version is refused.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.encode import CategoryFeature, Encoding, Feature, NumberFeature
from ponn.errors import PonnError, listing, one_line
from ponn.inference import actions_at, draw_actions
from ponn.log import in_units
from ponn.models import Model, build_model
from ponn.propensity import SUPPORT_FLOOR
from ponn.reasons import (
    EXPECTED_REWARD,
    PROBABILITY,
    Facts,
    FeatureEffect,
    Outcome,
    Reason,
    effects,
    feature_effects,
    json_column,
    reasons_of,
    usual_design,
)
from ponn.similar import SimilarRows

FORMAT = 1
RECOMMENDED = ("action", "probability", "runner_up", "expected_reward", "supported")  # columns of `recommend`
ON_REQUEST = ("expected_low", "expected_high")  # columns that `recommend` adds when they are named
JSON_NAME, WEIGHTS_NAME = "policy.json", "weights.safetensors"
LARGEST = 1 << 30  # bytes a part of a policy file may have unpacked


@dataclass(frozen=True)
class PairLine:
    """What Step B found for one action and feature."""

    action: Any
    feature: str
    relevance: float
    threshold: float
    bound: float | None
    selected: bool


@dataclass(frozen=True, eq=False)
class Decision:
    """What a policy does with some rows."""

    h: np.ndarray  # [n, k], restricted to supported actions where that was asked
    first: np.ndarray  # the action recommended: [n]
    supported_only: bool
    changed: np.ndarray  # would it have been another action without the restriction? [n]
    fell_back: np.ndarray  # was nothing supported that it wanted, so that it is what current practice does? [n]


@dataclass(frozen=True, eq=False)
class Policy:
    """A stochastic policy h(a | x) that explains what it looks at."""

    actions: tuple[Any, ...]
    encoding: Encoding
    model: Model
    selected: np.ndarray  # f_a: [k, d] bool
    relevance: tuple[PairLine, ...]  # empty where Step B was left out
    method: str
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]  # rows, seed, training, versions
    evaluation: Mapping[str, Any] | None = None  # what it was worth on rows kept aside, where it was valued
    companions: Mapping[str, Model] = field(default_factory=dict)  # "reward": r_hat(a, x); "logging": p_hat(a | x)
    # ... and "similar": what happened in training rows like x
    usual: Mapping[str, Any] = field(default_factory=dict)  # feature → its usual value in training; empty: not known

    def __repr__(self) -> str:
        return f"Policy({self.method}, {len(self.actions)} actions, {len(self.encoding.features)} features)"

    def predict_proba(self, X: Any) -> np.ndarray:
        """h(a | x) for every row, columns in the order of `actions`."""
        return self.model.probabilities(self.encoding.design(X))  # [n, k]

    def predict(self, X: Any) -> np.ndarray:
        """The recommended action per row: arg max_a h(a | x), as in Algorithm 2."""
        return np.array(self.actions)[self.predict_proba(X).argmax(axis=1)]

    def sample(self, X: Any, seed: int = 0) -> np.ndarray:
        """An action drawn from h(. | x) per row, as in section 5."""
        return np.array(self.actions)[draw_actions(self.predict_proba(X), np.random.default_rng(seed))]

    def recommend(
        self,
        X: Any,
        *,
        sample: bool = False,
        seed: int = 0,
        probabilities: bool = False,
        columns: Sequence[str] = RECOMMENDED,
        supported_only: bool = False,
        reasons: bool = False,
    ) -> pa.Table:
        """One row per row of X: action, probability, runner_up, expected_reward, supported.

        supported: was the action taken in such cases often enough for the log to tell (propensity above 1 %)?
        sample: actions are drawn from h instead of the most probable. probabilities: h as columns p_<action>.
        columns: only these of the five, or expected_low and expected_high, the interval of the expected reward.
        supported_only: unsupported actions are left out. reasons: a column with the reasons as JSON text.
        """
        table = self.encoding.select(X)
        design = self.encoding.design(table)
        u = np.random.default_rng(seed).random(len(design)) if sample else None
        return self.recommendations(design, u, columns, probabilities, supported_only, table if reasons else None)

    def reasons(self, X: Any, actions: Sequence[Any] | None = None, *, supported_only: bool = False) -> list[Reason]:
        """Why the recommended action, or the action given for each row, is recommended; each prints itself in words."""
        table = self.encoding.select(X)
        design = self.encoding.design(table)
        decision = self.decide(design, None, supported_only)
        if actions is not None:
            decision = replace(decision, first=self.numbers_of(actions, len(design)))
        return self.reasons_for(table, design, decision)

    def recommendations(
        self,
        X: np.ndarray,
        u: np.ndarray | None,
        columns: Sequence[str] = RECOMMENDED,
        probabilities: bool = False,
        supported_only: bool = False,
        told: pa.Table | None = None,
    ) -> pa.Table:
        """`recommend` for rows in design columns; u: the uniform numbers that decide the draws, None for arg max h.

        told: the same rows as the user gave them, where reasons are asked for.
        """
        return self.table_of(X, self.decide(X, u, supported_only), columns, probabilities, told)

    def decide(self, X: np.ndarray, u: np.ndarray | None, supported_only: bool = False) -> Decision:
        """The action for each row; u: the uniform numbers that decide the draws, None for arg max h."""
        h = self.model.probabilities(X)  # [n, k]
        first = chosen(h, u)
        if not supported_only:
            never = np.zeros(len(h), bool)
            return Decision(h, first, False, never, never)
        safe, fell_back = self.restricted(X, h)
        safe_first = chosen(safe, u)
        return Decision(safe, safe_first, True, safe_first != first, fell_back)

    def table_of(
        self, X: np.ndarray, decision: Decision, columns: Sequence[str], probabilities: bool, told: pa.Table | None
    ) -> pa.Table:
        """Decisions for rows in design columns as a table."""
        check_columns(columns)
        h, first = decision.h, decision.first
        labels = pa.array(self.actions)
        ends = cache(lambda: self.expected_interval(X, first))
        makers: dict[str, Callable[[], Any]] = {
            "action": lambda: labels.take(pa.array(first)),
            "probability": lambda: h[np.arange(len(h)), first],
            "runner_up": lambda: labels.take(pa.array(self.next_best(X, decision))),
            "expected_reward": lambda: self.expected_reward(X, first),
            "supported": lambda: self.support_of(X, first),
            "expected_low": lambda: pa.array(ends()[0], from_pandas=True),
            "expected_high": lambda: pa.array(ends()[1], from_pandas=True),
        }
        made = {name: makers[name]() for name in columns}
        if probabilities:
            made |= {f"p_{action}": h[:, a] for a, action in enumerate(self.actions)}
        if told is not None:
            made["reasons"] = json_column(self.reasons_for(told, X, decision))
        return pa.table(made)

    def next_best(self, X: np.ndarray, decision: Decision) -> np.ndarray:
        """The most probable action but for the first; of equally probable ones that which promises more: [n]."""
        r = self.model.rewards(X)  # a policy that takes what promises most gives all others the same probability, 0
        if r is None:
            return runner_up(decision.h, decision.first)
        allowed = self.support(X) if decision.supported_only else None
        return runner_up(2 * decision.h + (r if allowed is None else r * allowed), decision.first)

    def numbers_of(self, actions: Sequence[Any], n: int) -> np.ndarray:
        """Actions by number, one for each of n rows."""
        numbers = {label: a for a, label in enumerate(self.actions)}
        wrong = [one for one in actions if one not in numbers]
        if wrong or len(actions) != n:
            unknown = f", among them {listing(wrong)}" if wrong else ""
            raise PonnError(
                f"{len(actions):,} actions were given for {n:,} rows{unknown}; expected one of "
                f"{listing(self.actions)} for each row."
            )
        return np.array([numbers[one] for one in actions], int)  # [n]

    def promised(self, X: np.ndarray) -> np.ndarray | None:
        """r_hat(a, x) in [0, 1], by the model itself or the reward model it carries: [n, k]."""
        r = self.model.rewards(X)
        return self.companions["reward"].rewards(X) if r is None and "reward" in self.companions else r

    def in_units(self, r: np.ndarray) -> Any:
        """Rewards in [0, 1] in the user's unit."""
        reward = self.provenance["reward"]
        return in_units(r.astype(float), reward["range"], reward["minimize"])

    def expected_reward(self, X: np.ndarray, A: np.ndarray) -> Any:
        """r_hat(A_j, x_j) in the user's unit; null where the model promises no rewards."""
        r = self.promised(X)
        return pa.nulls(len(X), pa.float64()) if r is None else self.in_units(r[np.arange(len(X)), A])

    @property
    def similar(self) -> SimilarRows | None:
        """What happened in training rows like a given one; None in files that do not hold it."""
        found = self.companions.get("similar")
        return found if isinstance(found, SimilarRows) else None

    def expected_interval(self, X: np.ndarray, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the expected reward of the actions lies, in the user's unit; NaN where nobody similar took them."""
        promised, n = self.promised(X), np.arange(len(X))
        modelled = self.companions["reward"].rewards(X) if "reward" in self.companions else None
        if promised is None or modelled is None or self.similar is None:
            return np.full(len(X), np.nan), np.full(len(X), np.nan)
        ends = self.similar.interval(X, A, promised[n, A].clip(0, 1), modelled[n, A])
        one, other = map(self.in_units, ends)
        return np.minimum(one, other), np.maximum(one, other)

    def support(self, X: np.ndarray) -> np.ndarray | None:
        """Is p_hat(a | x), the estimated probability of the action in current practice, at least 1 %? [n, k]."""
        found = self.companions.get("logging")
        return None if found is None else found.probabilities(X) >= SUPPORT_FLOOR

    def support_of(self, X: np.ndarray, A: np.ndarray) -> Any:
        """Support of one action per row; null where the policy carries no picture of current practice."""
        found = self.support(X)
        return pa.nulls(len(X), pa.bool_()) if found is None else found[np.arange(len(X)), A]

    def safer(self, X: np.ndarray) -> np.ndarray:
        """h restricted to supported actions; where it gives them nothing, what current practice does most."""
        return self.restricted(X, self.model.probabilities(X))[0]

    def restricted(self, X: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """h restricted to supported actions, and where it gives them nothing: [n, k], [n]."""
        supported = self.support(X)
        if supported is None:
            raise PonnError("This policy carries no picture of current practice, so it cannot tell what is supported.")
        h = h * supported  # [n, k]
        usual = np.eye(h.shape[1])[self.companions["logging"].probabilities(X).argmax(axis=1)]
        total = h.sum(axis=1, keepdims=True)
        return np.where(total > 0, h / np.where(total > 0, total, 1.0), usual), total[:, 0] <= 0

    def reasons_for(self, told: pa.Table, X: np.ndarray, decision: Decision) -> list[Reason]:
        """Why these actions; told: the rows as the user gave them, X: their design columns."""
        r, similar = self.promised(X), self.similar
        low, high = self.expected_interval(X, decision.first)
        facts = Facts(
            actions=self.actions,
            h=decision.h,
            first=decision.first,
            second=self.next_best(X, decision),
            moves=self.moves,
            features=self.effects_for(told, X, decision) if self.usual else None,
            similar=None if similar is None else similar.tallies(X).rows,
            expected=None if r is None else self.in_units(r),
            low=low,
            high=high,
            supported=self.support(X),
            outcome=self.outcome,
        )
        return reasons_of(facts)

    @property
    def moves(self) -> str:
        """What the effects of features are told of: probabilities, unless those are 0 or 1 by a model of rewards."""
        nothing = np.zeros((0, len(self.encoding.owner)), np.float32)
        return PROBABILITY if self.model.rewards(nothing) is None else EXPECTED_REWARD

    @property
    def outcome(self) -> Outcome:
        """What the reward is called and where it lies."""
        reward = self.provenance["reward"]
        name = self.provenance.get("columns", {}).get("reward", "reward")
        low, high = map(float, reward["range"])
        return Outcome(str(name), low, high, bool(reward["minimize"]))

    def effects_for(self, told: pa.Table, X: np.ndarray, decision: Decision) -> list[tuple[FeatureEffect, ...]]:
        """The features that move the actions most: those that Step B selected, or any where it was left out."""
        n, A = np.arange(len(X)), decision.first

        def moved(rows: np.ndarray) -> Any:
            if self.moves == EXPECTED_REWARD:
                return self.in_units(np.asarray(self.model.rewards(rows))[n, A])
            return (self.safer(rows) if decision.supported_only else self.model.probabilities(rows))[n, A]

        usual = usual_design(self.encoding, self.usual)
        looked_at = np.flatnonzero(self.selected.any(axis=0))
        found = effects(moved, X, self.encoding.owner, usual, looked_at)  # [n, d]
        by_step_b = self.selected[A] if self.relevance else found != 0
        return feature_effects(self.encoding, told, self.usual, found, by_step_b)

    def sets(self) -> dict[Any, tuple[str, ...]]:
        """The features that each action looks at, by name."""
        names = np.array([one.name for one in self.encoding.features], dtype=object)
        return {action: tuple(names[mask]) for action, mask in zip(self.actions, self.selected, strict=True)}

    @property
    def digest(self) -> str:
        """A fingerprint of the model's arrays: equal digests, equal policies on equal encodings."""
        found = hashlib.sha256()
        for name, array in sorted(self.model.arrays.items()):
            found.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return found.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy file under a temporary name, then rename it."""
        write_policy(self, Path(path))


def chosen(h: np.ndarray, u: np.ndarray | None) -> np.ndarray:
    """The most probable action of each row, or that drawn by u: [n]."""
    return h.argmax(axis=1) if u is None else actions_at(h, u)


def runner_up(h: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The most probable action but for the first: [n]."""
    rest = h.copy()
    rest[np.arange(len(h)), first] = -1
    return rest.argmax(axis=1)


def check_columns(columns: Sequence[str]) -> None:
    """Only columns that a recommendation has, each once."""
    possible = (*RECOMMENDED, *ON_REQUEST)
    wrong = [name for name in columns if name not in possible or list(columns).count(name) > 1]
    if wrong or not columns:
        raise PonnError(
            f"The columns asked for are {listing(columns) or 'none'}; expected some of {', '.join(possible)}, "
            "each once."
        )


# The policy file -----------------------------------------------------------------------------------------


def write_policy(policy: Policy, path: Path) -> None:
    """policy.json and weights.safetensors in one zip; the same policy gives the same bytes."""
    from safetensors.numpy import save

    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    parts = {
        JSON_NAME: json.dumps(as_json(policy), indent=1, allow_nan=False).encode(),
        WEIGHTS_NAME: save({name: np.ascontiguousarray(array) for name, array in all_arrays(policy).items()}),
    }
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in parts.items():
                archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
        temporary.replace(path)
    except OSError as error:
        raise PonnError(f"{path} could not be written: {one_line(error)}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def all_arrays(policy: Policy) -> dict[str, np.ndarray]:
    """The arrays of the model by name, those of its companions as "name.array"."""
    found = dict(policy.model.arrays)
    for name, model in policy.companions.items():
        found |= {f"{name}.{part}": array for part, array in model.arrays.items()}
    return found


def described(model: Model) -> dict[str, Any]:
    """A model's kind and plain values."""
    return {"kind": model.kind, **model.description}


def as_json(policy: Policy) -> dict[str, Any]:
    """Everything but the weights, in plain values."""
    return {
        "format": FORMAT,
        "actions": list(policy.actions),
        "method": policy.method,
        "settings": dict(policy.settings),
        "encoding": {
            "rows": policy.encoding.rows,
            "features": [{"type": type(one).__name__, **asdict(one)} for one in policy.encoding.features],
        },
        "model": described(policy.model),
        "companions": {name: described(model) for name, model in policy.companions.items()},
        "selected": policy.selected.tolist(),
        "relevance": [asdict(one) for one in policy.relevance],
        "provenance": dict(policy.provenance),
        "evaluation": policy.evaluation,
        "usual": dict(policy.usual),
    }


def load(path: str | os.PathLike[str]) -> Policy:
    """Read a policy file; whatever is wrong with it is told, nothing in it is executed."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as load_weights

    path = Path(path)
    try:
        description, weights = read_parts(path)
        found = json.loads(description)
        check_format(path, found)
        return build(found, load_weights(weights))
    except PonnError:
        raise
    except (OSError, zipfile.BadZipFile, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PonnError(f"{path} is not a policy file, or is damaged: {one_line(error)}.") from error


def read_parts(path: Path) -> tuple[bytes, bytes]:
    """The two parts of a policy file, if they are what they should be in kind and size."""
    if not path.is_file():
        raise PonnError(f"There is no policy file {path}.")
    with zipfile.ZipFile(path) as archive:
        sizes = {one.filename: one.file_size for one in archive.infolist()}
        if set(sizes) != {JSON_NAME, WEIGHTS_NAME}:
            raise PonnError(f"{path} is not a policy file: it holds {listing(sorted(sizes))}.")
        if max(sizes.values()) > LARGEST:
            raise PonnError(f"{path} would unpack to more than {LARGEST >> 30} GB; no policy is that large.")
        return archive.read(JSON_NAME), archive.read(WEIGHTS_NAME)


def check_format(path: Path, found: Any) -> None:
    """Only formats this version knows."""
    version = found.get("format") if isinstance(found, dict) else None
    if not isinstance(version, int) or version < 1:
        raise PonnError(f"{path} is not a policy file: it names no format.")
    if version > FORMAT:
        raise PonnError(
            f"{path} has format {version}; this ponn reads up to {FORMAT}. Install a later version of ponn."
        )


def build(found: dict[str, Any], weights: dict[str, np.ndarray]) -> Policy:
    """A policy from its parts, which must fit together."""
    model = model_from(found["model"], {name: array for name, array in weights.items() if "." not in name})
    companions = {name: model_from(one, arrays_of(name, weights)) for name, one in found["companions"].items()}
    encoding = Encoding(tuple(map(build_feature, found["encoding"]["features"])), found["encoding"]["rows"])
    actions = tuple(found["actions"])
    selected = np.array(found["selected"], bool)
    fits = all((one.D, one.k) == (len(encoding.owner), len(actions)) for one in (model, *companions.values()))
    if not fits or len(actions) < 2 or selected.shape != (len(actions), len(encoding.features)):
        raise PonnError("The parts of the policy file do not fit together; it is damaged.")
    if not isinstance(companions.get("similar"), SimilarRows | None):
        raise PonnError("The similar rows of the policy file are something else; it is damaged.")
    usual = dict(found.get("usual") or {})  # files of before have none
    if usual:
        usual_design(encoding, usual)
    relevance = tuple(PairLine(**one) for one in found["relevance"])
    rest = (found["method"], found["settings"], found["provenance"], found.get("evaluation"))
    return Policy(actions, encoding, model, selected, relevance, *rest, companions, usual)


def model_from(found: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> Model:
    """A model from its kind, plain values and arrays."""
    description = dict(found)
    return build_model(description.pop("kind"), description, arrays)


def arrays_of(name: str, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of one companion."""
    return {part.removeprefix(f"{name}."): array for part, array in weights.items() if part.startswith(f"{name}.")}


def build_feature(found: dict[str, Any]) -> Feature:
    """A feature from its JSON."""
    kinds: dict[str, type[Feature]] = {one.__name__: one for one in (NumberFeature, CategoryFeature)}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    fields: dict[str, Any] = {name: value for name, value in values.items() if name != "type"}
    return kinds[found["type"]](**fields)
