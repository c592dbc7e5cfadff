"""The policy: encoding, model, relevant sets and where they come from. numpy alone; no training stack, no pickle.

    symbol     meaning                                        shape
    h          h(a | x), the stochastic policy                [n, k]
    eligible   may action a be taken in row j? None: always   [n, k] bool

Whatever a policy gives, it gives to eligible actions alone: those that its own rules, its column and the caller allow.

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
from typing import Any, BinaryIO, TypeVar

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError, listing, one_line
from ponn.log.acquaintance import Acquaintance, forget_beside, read_acquaintance
from ponn.log.eligibility import (
    Eligibility,
    check_some_eligible,
    eligible_actions,
    excluded_actions,
    given_actions,
)
from ponn.log.encoding import Encoding
from ponn.log.features import CategoryFeature, Feature, NumberFeature, check_feature
from ponn.log.log import Log, in_units
from ponn.log.roles import Rows
from ponn.policy.description import check_description
from ponn.policy.inference import actions_at, draw_actions
from ponn.policy.models import Heads, Model, build_model, check_model, greedy
from ponn.policy.parts import ArrayHead, DamagedError, open_parts, read_arrays, read_heads, read_json
from ponn.policy.reasons import (
    EXPECTED_REWARD,
    NOBODY,
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
from ponn.policy.schema import SchemaError
from ponn.policy.similar import SimilarRows
from ponn.settings import check_seed
from ponn.storage import replacing
from ponn.tables.table import read_table

FORMAT = 2  # 1: version 0.1, whose columns of text had no level that stands in for others
Array = TypeVar("Array", np.ndarray, ArrayHead)  # an array, or what is said of it
RECOMMENDED = ("action", "probability", "runner_up", "expected_reward", "supported")  # columns of `recommend`
ON_REQUEST = ("expected_low", "expected_high")  # columns that `recommend` adds when they are named
ANSWERS = ("actions", "encoding", "model", "companions", "selected", "usual", "eligibility")  # parts that decide them
JSON_NAME, WEIGHTS_NAME = "policy.json", "weights.safetensors"
SUPPORT_FLOOR = 0.01  # a row with an action less probable than this cannot tell how that action would do there
SMALL_EFFECT = 0.05  # of the largest effect in a row: what moves less is not told where one network reads all sets


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
    restricted: np.ndarray  # is it another action, a supported one, because of the restriction? [n]
    fell_back: np.ndarray  # is it what current practice does most, for want of a best supported action? [n]
    eligible: np.ndarray | None  # [n, k] bool

    def take(self, rows: np.ndarray) -> "Decision":
        """Some of the rows."""
        eligible = None if self.eligible is None else self.eligible[rows]
        parts = (self.restricted[rows], self.fell_back[rows])
        return Decision(self.h[rows], self.first[rows], self.supported_only, *parts, eligible)


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
    eligibility: Eligibility | None = None  # which actions are available where; None: all, always
    acquaintance: Acquaintance | None = None  # knows its training rows again; never a part of the policy file

    def __repr__(self) -> str:
        return f"Policy({self.method}, {len(self.actions)} actions, {len(self.encoding.features)} features)"

    def predict_proba(self, X: Any, *, eligible: Any = None) -> np.ndarray:
        """h(a | x) for every row, columns in the order of `actions`.

        eligible: truth values [n, k], or the labels of the actions that are available in every row; beside what the
        policy's own rules and column say.
        """
        design, can = self.design(X, eligible)
        return self.model.probabilities(design, can)  # [n, k]

    def predict(self, X: Any, *, eligible: Any = None) -> np.ndarray:
        """The recommended action per row: arg max_a h(a | x), as in Algorithm 2."""
        return np.array(self.actions)[self.predict_proba(X, eligible=eligible).argmax(axis=1)]

    def sample(self, X: Any, seed: int = 0, *, eligible: Any = None) -> np.ndarray:
        """An action drawn from h(. | x) per row, as in section 5."""
        check_seed(seed)
        h = self.predict_proba(X, eligible=eligible)
        return np.array(self.actions)[draw_actions(h, np.random.default_rng(seed))]

    def design(self, X: Any, eligible: Any = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows in design columns, and which actions are eligible in them."""
        rows = X if isinstance(X, Log | pa.Table) else read_table(X).table
        return self.encoding.design(rows), self.eligible_in(rows, eligible)

    def eligible_in(self, rows: Log | pa.Table, given: Any = None, before: int = 0) -> np.ndarray | None:
        """The actions that may be taken in rows by the rules, the column, the log and the caller: [n, k] bool.

        before: how many rows stand before these, for errors that name rows. The column may be absent where the caller
        says what is eligible.
        """
        limits = [] if given is None else [given_actions(given, self.actions, len(rows))]
        if isinstance(rows, Log) and rows.eligible is not None:
            limits.append(aligned(rows.eligible, rows.actions, self.actions))
        table = rows.table if isinstance(rows, Log) else rows
        numbered = Rows(table, np.arange(before + 1, before + 1 + len(table)) if before else None)
        if self.eligibility is not None:
            self.check_eligibility_columns(table.column_names, given)
            by_column = self.eligibility.column in table.column_names
            limits.append(eligible_actions(self.eligibility, numbered, self.actions, by_column=by_column))
        if not limits:
            return None
        found = np.logical_and.reduce(limits)
        check_some_eligible(found, numbered)
        return np.asarray(found)

    def check_eligibility_columns(self, there: Sequence[str], given: Any) -> None:
        """The columns that say what is eligible must be there; without them something harmful might be recommended."""
        needed = self.eligibility or Eligibility()
        absent = [name for name in needed.rule_columns if name not in there]
        if absent:
            raise PonnError(f"The rows lack the columns {listing(absent)}, which the policy's rules look at.")
        if needed.column is not None and needed.column not in there and given is None:
            raise PonnError(
                f"The rows lack the column {needed.column!r}, which tells the policy which actions are available. Add "
                "it (an empty cell stands for all actions), or say which are (eligible=, --available)."
            )

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
        eligible: Any = None,
    ) -> pa.Table:
        """One row per row of X: action, probability, runner_up, expected_reward, supported.

        supported: was the action taken in such cases often enough for the log to tell (propensity above 1 %)?
        sample: actions are drawn from h instead of the most probable. probabilities: h as columns p_<action>.
        columns: only these of the five, or expected_low and expected_high, the interval of the expected reward.
        supported_only: unsupported actions are left out. reasons: a column with the reasons as JSON text.
        eligible: as in `predict_proba`. runner_up is null where no other action is eligible.
        """
        check_seed(seed)
        design, can = self.design(X, eligible)
        u = np.random.default_rng(seed).random(len(design)) if sample else None
        told = self.encoding.select(X) if reasons else None
        return self.recommendations(design, u, columns, probabilities, supported_only, told, can)

    def reasons(
        self, X: Any, actions: Sequence[Any] | None = None, *, supported_only: bool = False, eligible: Any = None
    ) -> list[Reason]:
        """Why the recommended action, or the action given for each row, is recommended; each prints itself in words."""
        design, can = self.design(X, eligible)
        decision = self.decide(design, None, supported_only, can)
        if actions is not None:
            decision = replace(decision, first=self.numbers_of(actions, len(design)))
        return self.reasons_for(self.encoding.select(X), design, decision)

    def recommendations(
        self,
        X: np.ndarray,
        u: np.ndarray | None,
        columns: Sequence[str] = RECOMMENDED,
        probabilities: bool = False,
        supported_only: bool = False,
        told: pa.Table | None = None,
        eligible: np.ndarray | None = None,
    ) -> pa.Table:
        """`recommend` for rows in design columns; u: the uniform numbers that decide the draws, None for arg max h.

        told: the same rows as the user gave them, where reasons are asked for.
        """
        return self.table_of(X, self.decide(X, u, supported_only, eligible), columns, probabilities, told)

    def decide(
        self,
        X: np.ndarray,
        u: np.ndarray | None,
        supported_only: bool = False,
        eligible: np.ndarray | None = None,
    ) -> Decision:
        """The action for each row; u: the uniform numbers that decide the draws, None for arg max h."""
        h = self.model.probabilities(X, eligible)  # [n, k]
        first = chosen(h, u)
        if not supported_only:
            never = np.zeros(len(h), bool)
            return Decision(h, first, False, never, never, eligible)
        safe, fell_back = self.restricted_to_supported(X, eligible)
        safe_first = chosen(safe, u)
        return Decision(safe, safe_first, True, (safe_first != first) & ~fell_back, fell_back, eligible)

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
            "runner_up": lambda: labels.take(numbers_or_null(self.next_best(X, decision))),
            "expected_reward": lambda: self.expected_reward(X, first),
            "supported": lambda: self.support_of(X, first, decision.eligible),
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
        """The most probable eligible action but for the first; of equally probable ones that which promises more.

        NOBODY where no other is eligible: [n].
        """
        h, can = decision.h, decision.eligible
        r = self.model.rewards(X)  # a policy that takes what promises most gives all others the same probability, 0
        if r is None:
            return runner_up(h, decision.first, can)
        allowed = self.support(X, can) if decision.supported_only else None
        return runner_up(2 * h + (r if allowed is None else r * allowed), decision.first, can)

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

    def made(self, *names: str) -> list[Any]:
        """What is told of how the policy was made, under these names; refuses where a file does not tell."""
        absent = [name for name in names if name not in self.provenance]
        if absent:
            raise PonnError(
                f"The policy does not tell how it was made: {listing(absent)} is not in its provenance, which holds "
                f"{listing(self.provenance) or 'nothing'}. Learn it again, or take another copy of its file."
            )
        return [self.provenance[name] for name in names]

    def in_units(self, r: np.ndarray) -> Any:
        """Rewards in [0, 1] in the user's unit."""
        (reward,) = self.made("reward")
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

    def support(self, X: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray | None:
        """Is p_hat(a | x), the estimated probability of the action in current practice, at least 1 %? [n, k]."""
        found = self.companions.get("logging")
        return None if found is None else found.probabilities(X, eligible) >= SUPPORT_FLOOR

    def support_of(self, X: np.ndarray, A: np.ndarray, eligible: np.ndarray | None = None) -> Any:
        """Support of one action per row; null where the policy carries no picture of current practice."""
        found = self.support(X, eligible)
        return pa.nulls(len(X), pa.bool_()) if found is None else found[np.arange(len(X)), A]

    def safer(self, X: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
        """h over the supported actions; where it cannot choose among them, what current practice does most."""
        return self.restricted_to_supported(X, eligible)[0]

    def restricted_to_supported(self, X: np.ndarray, eligible: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """h over the supported actions, and where current practice decides instead: [n, k], [n].

        The model is asked as if no other action were eligible: a policy that takes what promises most then takes the
        best supported one. Current practice decides where none is supported, or several are and get the same h.
        """
        supported = self.support(X, eligible)
        if supported is None:
            raise PonnError("This policy carries no picture of current practice, so it cannot tell what is supported.")
        usual = greedy(self.companions["logging"].probabilities(X, eligible))  # [n, k]
        many = supported.sum(axis=1)  # [n]
        h = self.model.probabilities(X, np.where(many[:, None] > 0, supported, usual > 0))
        alike = np.where(supported, h, np.inf).min(axis=1) == h.max(axis=1)
        fell_back = (many == 0) | (alike & (many > 1))
        return np.where(fell_back[:, None], usual, h), fell_back

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
            least=1 if similar is None else similar.least,
            expected=None if r is None else self.in_units(r),
            low=low,
            high=high,
            supported=self.support(X, decision.eligible),
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
        (reward,) = self.made("reward")
        name = self.provenance.get("columns", {}).get("reward", "reward")
        low, high = map(float, reward["range"])
        return Outcome(str(name), low, high, bool(reward["minimize"]))

    def effects_for(self, told: pa.Table, X: np.ndarray, decision: Decision) -> list[tuple[FeatureEffect, ...]]:
        """The features that move the actions most: those that the action's own set holds, or any that it can read."""
        n, A = np.arange(len(X)), decision.first

        def moved(rows: np.ndarray) -> Any:
            if self.moves == EXPECTED_REWARD:
                return self.in_units(np.asarray(self.model.rewards(rows))[n, A])
            give = self.safer if decision.supported_only else self.model.probabilities
            return give(rows, decision.eligible)[n, A]

        usual = usual_design(self.encoding, self.usual)
        looked_at = np.flatnonzero(self.selected.any(axis=0))
        found = effects(moved, X, self.encoding.owner, usual, looked_at)  # [n, d]
        if self.reads_all_sets:
            size = np.abs(found)
            worth_telling = (size > 0) & (size >= SMALL_EFFECT * size.max(axis=1, keepdims=True))
        else:
            worth_telling = self.selected[A] if self.relevance else found != 0
        return feature_effects(self.encoding, told, self.usual, found, worth_telling)

    @property
    def reads_all_sets(self) -> bool:
        """Does one network read what was selected for any action, so that another action's features may count?"""
        return isinstance(self.model, Heads) and bool(self.relevance)

    def sets(self) -> dict[Any, tuple[str, ...]]:
        """The features that were selected for each action, by name; the only ones it reads, unless `reads_all_sets`."""
        names = np.array([one.name for one in self.encoding.features], dtype=object)
        return {action: tuple(names[mask]) for action, mask in zip(self.actions, self.selected, strict=True)}

    @property
    def digest(self) -> str:
        """A fingerprint of all that decides what is answered: equal digests, equal answers to equal rows.

        Labels, encoding, models, what is eligible, what reasons are told by and the unit of the reward; not how the
        policy was learned or what it was worth.
        """
        told = {name: value for name, value in as_json(self).items() if name in ANSWERS}
        told["reward"] = self.provenance.get("reward")
        arrays = sorted(all_arrays(self).items())
        told["arrays"] = [[name, array.dtype.str, array.shape] for name, array in arrays]
        found = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
        for _, array in arrays:
            found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy file, whole or not at all, and beside it the file that knows its training rows again."""
        write_policy(self, Path(path))


def chosen(h: np.ndarray, u: np.ndarray | None) -> np.ndarray:
    """The most probable action of each row, or that drawn by u: [n]."""
    return h.argmax(axis=1) if u is None else actions_at(h, u)


def runner_up(h: np.ndarray, first: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
    """The most probable action but for the first, NOBODY where no other is eligible: [n]."""
    rest = h.copy() if eligible is None else np.where(eligible, h, -1)
    rest[np.arange(len(h)), first] = -1
    second = rest.argmax(axis=1)
    return np.where(rest[np.arange(len(h)), second] < 0, NOBODY, second)


def numbers_or_null(numbers: np.ndarray) -> pa.Array:
    """Action numbers, null for NOBODY."""
    return pa.array(numbers, mask=numbers == NOBODY)


def aligned(eligible: np.ndarray, given: Sequence[Any], actions: Sequence[Any]) -> np.ndarray:
    """Columns moved from one order of actions to another; an action that only the second has counts as eligible."""
    found = np.ones((len(eligible), len(actions)), bool)
    for a, action in enumerate(actions):
        if action in given:
            found[:, a] = eligible[:, list(given).index(action)]
    return found


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

    parts = {
        JSON_NAME: json.dumps(as_json(policy), indent=1, allow_nan=False).encode(),
        WEIGHTS_NAME: save({name: np.ascontiguousarray(array) for name, array in all_arrays(policy).items()}),
    }
    try:
        if policy.acquaintance is None:
            forget_beside(path)
        else:
            policy.acquaintance.write(path)
        with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in parts.items():
                archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise PonnError(f"{path} could not be written: {one_line(error)}.") from error


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
        "eligibility": None if policy.eligibility is None else policy.eligibility.as_json(),
    }


def load(path: str | os.PathLike[str]) -> Policy:
    """Read a policy file. Whatever is wrong with it is an error that says so; nothing in it is executed.

    Parameters
    ----------
    path
        Of a file that `Policy.save` or `ponn learn` wrote.

    Returns
    -------
    Policy
        The policy. It needs neither torch nor scikit-learn.

    Examples
    --------
    >>> import ponn
    >>> log = ponn.simulate.world("actg175").log
    >>> policy = ponn.learn(log, "lr-l1")
    >>> policy.save("trial.ponn")
    >>> same = ponn.load("trial.ponn")
    >>> bool((same.predict(log) == policy.predict(log)).all())
    True
    """
    path = Path(path)
    if not path.is_file():
        raise PonnError(f"There is no policy file {path}.")
    try:
        with path.open("rb") as file:
            policy = without_sketch(read_policy(path, file))
    except OSError as error:
        raise PonnError(f"The policy file {path} could not be read: {one_line(error)}.") from error
    except (DamagedError, SchemaError) as error:
        raise PonnError(f"{path} is not a policy file, or is damaged: {one_line(error)}.") from error
    id = policy.provenance.get("source", {}).get("id")
    return policy if id is None else replace(policy, acquaintance=read_acquaintance(path, id))


SKETCH_TOLD = (
    "The file is of version 0.1 and held fingerprints of single training rows. They are not used and are left out when "
    "the policy is saved: save it anew in place of the old file, or better learn it again, which also keeps values "
    "that fewer than ten people share out of it."
)


def without_sketch(policy: Policy) -> Policy:
    """The policy without the fingerprints that version 0.1 put into its file, and a note that says so."""
    made = policy.provenance
    if "sketch" not in made.get("source", {}):
        return policy
    source = {name: value for name, value in made["source"].items() if name != "sketch"}
    return replace(policy, provenance={**made, "source": source, "notes": [*made["notes"], SKETCH_TOLD]})


def read_policy(path: Path, file: BinaryIO) -> Policy:
    """The policy of an open file: the description first, which says how large the arrays can be."""
    parts = open_parts(file, (JSON_NAME, WEIGHTS_NAME))
    found = read_json(parts[JSON_NAME].whole())
    check_format(path, found)
    check_description(found)
    heads, starts = read_heads(parts[WEIGHTS_NAME])
    for name, described in {"": found["model"], **found["companions"]}.items():
        check_model(described["kind"], plain_values(described), arrays_of(name, heads))
    owners = {name.rpartition(".")[0] for name in heads}
    if not owners <= {"", *found["companions"]}:
        raise DamagedError(f"it holds arrays of {listing(sorted(owners - {'', *found['companions']}))}, which it lacks")
    return build(found, read_arrays(parts[WEIGHTS_NAME], heads, starts))


def check_format(path: Path, found: Any) -> None:
    """Only formats this version knows."""
    version = found.get("format") if isinstance(found, dict) else None
    if type(version) is not int or version < 1:
        raise PonnError(f"{path} is not a policy file: it names no format.")
    if version > FORMAT:
        raise PonnError(
            f"{path} has format {version}; this ponn reads up to {FORMAT}. Install a later version of ponn."
        )


def build(found: dict[str, Any], weights: dict[str, np.ndarray]) -> Policy:
    """A policy from its parts, each of which was checked by itself, and which must fit together."""
    encoding = Encoding(tuple(map(build_feature, found["encoding"]["features"])), found["encoding"]["rows"])
    actions, selected = tuple(found["actions"]), found["selected"]
    check_names(actions, encoding)
    model = model_from(found["model"], arrays_of("", weights))
    companions = {name: model_from(one, arrays_of(name, weights)) for name, one in found["companions"].items()}
    fits = all((one.D, one.k) == (len(encoding.owner), len(actions)) for one in (model, *companions.values()))
    if not fits or len(selected) != len(actions) or {len(one) for one in selected} != {len(encoding.features)}:
        raise PonnError("The parts of the policy file do not fit together; it is damaged.")
    check_companions(companions)
    usual = dict(found.get("usual") or {})  # files of before have none
    if usual:
        usual_design(encoding, usual)
    relevance = tuple(PairLine(**one) for one in found["relevance"])
    check_relevance(relevance, actions, encoding)
    rest = (found["method"], found["settings"], found["provenance"], found.get("evaluation"))
    eligibility = None if found.get("eligibility") is None else Eligibility(**found["eligibility"])
    if eligibility is not None:
        excluded_actions(eligibility, actions)
    told = np.array(selected, bool)
    return Policy(actions, encoding, model, told, relevance, *rest, companions, usual, eligibility)


def check_names(actions: Sequence[Any], encoding: Encoding) -> None:
    """Raise PonnError unless every action and feature has a name of its own, and actions are of one kind."""
    kinds, names = {type(one) for one in actions}, [one.name for one in encoding.features]
    if len(kinds) > 1 or len({str(one) for one in actions}) < len(actions):
        raise PonnError(f"The actions of the policy file are {listing(actions)}: two are alike, or of different kinds.")
    if int in kinds and min(actions) < 0 and max(actions) >= 1 << 63:
        raise PonnError(f"The actions of the policy file are {listing(actions)}, which no column of numbers can hold.")
    if len(set(names)) < len(names):
        raise PonnError("The policy file names a feature twice; it is damaged.")


def check_companions(companions: Mapping[str, Model]) -> None:
    """Raise PonnError unless every companion can do what it is there for."""
    if not isinstance(companions.get("similar"), SimilarRows | None):
        raise PonnError("The similar rows of the policy file are something else; it is damaged.")
    reward = companions.get("reward")
    if reward is not None and reward.rewards(np.zeros((0, reward.D), np.float32)) is None:
        raise PonnError("The reward model of the policy file promises no rewards; it is damaged.")


def check_relevance(relevance: Sequence[PairLine], actions: Sequence[Any], encoding: Encoding) -> None:
    """Raise PonnError unless Step B, where it is told, is told of every action and feature once."""
    pairs = {(one.action, one.feature) for one in relevance}
    names = {one.name for one in encoding.features}
    known = all(action in actions and name in names for action, name in pairs)
    if relevance and (not known or len(pairs) < len(relevance) or len(relevance) < len(actions) * len(names)):
        raise PonnError("The relevance in the policy file is not that of its actions and features; it is damaged.")


def plain_values(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a model is described by, beside its kind."""
    return {name: value for name, value in found.items() if name != "kind"}


def model_from(found: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> Model:
    """A model from its kind, plain values and arrays."""
    return build_model(found["kind"], plain_values(found), arrays)


def arrays_of(name: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of one companion, or of the model itself, which has no name."""
    beginning = f"{name}." if name else ""
    return {part.removeprefix(beginning): one for part, one in arrays.items() if part.rpartition(".")[0] == name}


def build_feature(found: Mapping[str, Any]) -> Feature:
    """A feature from its JSON."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    kind: type[Feature] = CategoryFeature
    if values.pop("type") == NumberFeature.__name__:
        kind = NumberFeature
        values |= {name: float(values[name]) for name in ("low", "high", "mean", "scale")}
        values |= {name: values[name] and tuple(map(float, values[name])) for name in ("cuts", "values")}
    feature = kind(**values)
    check_feature(feature)
    return feature
