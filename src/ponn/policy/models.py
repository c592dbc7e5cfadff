"""What a policy is made of: models that give h(a | x) or r(a, x) for design columns. numpy alone.

    symbol   meaning                                         shape
    X        design columns, single precision                [n, D]
    h        h(a | x), the stochastic policy                 [n, k]
    r        r_hat(a, x), the reward expected of each action [n, k]

A model of rewards becomes a policy by taking the action that promises most. Every model is its `description` (small,
plain values) and its `arrays`, and can be built again from both; whatever does not fit together is refused.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from ponn.errors import PonnError, listing
from ponn.log.features import FAR
from ponn.log.roles import MOST_ACTIONS
from ponn.policy.inference import (
    ACTIVATIONS,
    BLOCK_ROWS,
    MOST_UNITS,
    Architecture,
    absolute_sums,
    check_reach,
    check_reached,
    check_weights,
    relu,
    scores,
    sigmoid,
    softmax,
)
from ponn.policy.parts import ArrayHead
from ponn.policy.schema import Fields, Items, Number, OneOf, Schema, Truth, Whole
from ponn.policy.similar import SimilarRows
from ponn.policy.trees import TreeModel

Arrays = Mapping[str, np.ndarray]
Shapes = Mapping[str, tuple[int | None, ...]]  # None: of any length
MOST_LAYERS = 50
MOST_COLUMNS = (1 << 31) - 1  # what trees number columns with
TEMPERATURES = 1e-9, 1e9  # beyond, rewards divided by them are no use to a softmax


class Model(Protocol):
    """What a policy needs of its model."""

    kind: ClassVar[str]
    schema: ClassVar[Schema]  # of the description

    @property
    def k(self) -> int:
        """Actions."""

    @property
    def D(self) -> int:
        """Design columns."""

    @property
    def description(self) -> dict[str, Any]:
        """Plain values."""

    @property
    def arrays(self) -> Arrays:
        """Everything large."""

    @classmethod
    def shapes(cls, description: Mapping[str, Any], names: Collection[str]) -> Shapes:
        """The shapes of the arrays by what the description says; names: those that the file has."""

    @classmethod
    def build(cls, description: Mapping[str, Any], arrays: Arrays) -> Self:
        """The model of a policy file."""

    def probabilities(self, X: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
        """h(a | x) over the eligible actions [n, k] bool, or over all: [n, k]."""

    def rewards(self, X: np.ndarray) -> np.ndarray | None:
        """r_hat(a, x) where the model predicts rewards: [n, k]."""


def greedy(r: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
    """The policy that takes the action promising most, the first of equals: [n, k]."""
    return np.eye(r.shape[1])[among(r, eligible).argmax(axis=1)]


def among(scores: np.ndarray, eligible: np.ndarray | None) -> np.ndarray:
    """The scores, -inf for actions that are not eligible: [n, k]."""
    return scores if eligible is None else np.where(eligible, scores, -np.inf)


ARCHITECTURE: Mapping[str, Schema] = {
    "k": Whole(1, MOST_ACTIONS),
    "D": Whole(1, MOST_COLUMNS),
    "hidden": Items(Whole(1, MOST_UNITS), most=MOST_LAYERS),
    "activation": OneOf(tuple(ACTIVATIONS)),
}


@dataclass(frozen=True, eq=False)
class Network:
    """The policy network of section 4.3: h(. | x) is the softmax of its scores."""

    architecture: Architecture
    arrays: Arrays
    kind: ClassVar[str] = "network"
    schema: ClassVar[Schema] = Fields(ARCHITECTURE, closed=True)

    def __post_init__(self) -> None:
        check_weights(self.arrays, self.architecture)

    @property
    def k(self) -> int:
        """Actions."""
        return self.architecture.k

    @property
    def D(self) -> int:
        """Design columns."""
        return self.architecture.D

    @property
    def description(self) -> dict[str, Any]:
        """The architecture."""
        return asdict(self.architecture)

    @classmethod
    def shapes(cls, description: Mapping[str, Any], names: Collection[str]) -> Shapes:
        """Those of the architecture."""
        return architecture_of(description).shapes

    @classmethod
    def build(cls, description: Mapping[str, Any], arrays: Arrays) -> Self:
        """The network of a policy file."""
        found = cls(architecture_of(description), arrays)
        check_reach(arrays, found.architecture, FAR)
        return found

    def probabilities(self, X: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
        """softmax over the scores of eligible actions."""
        return softmax(among(scores(self.arrays, X, self.architecture), eligible))  # [n, k]

    def rewards(self, X: np.ndarray) -> None:
        """A policy network promises no rewards."""


@dataclass(frozen=True, eq=False)
class RewardNetwork:
    """A network on the concatenated input (x, action), as the paper's MLP-L1: one score, the log odds of reward."""

    architecture: Architecture  # with one output and D + k columns
    arrays: Arrays
    k: int
    kind: ClassVar[str] = "reward-network"
    schema: ClassVar[Schema] = Fields({"actions": Whole(2, MOST_ACTIONS), **ARCHITECTURE}, closed=True)

    def __post_init__(self) -> None:
        check_weights(self.arrays, self.architecture)

    @property
    def D(self) -> int:
        """Design columns of x alone."""
        return self.architecture.D - self.k

    @property
    def description(self) -> dict[str, Any]:
        """The architecture and how many of its columns say the action."""
        return {"actions": self.k, **asdict(self.architecture)}

    @classmethod
    def shapes(cls, description: Mapping[str, Any], names: Collection[str]) -> Shapes:
        """Those of the architecture."""
        return architecture_of(description).shapes

    @classmethod
    def build(cls, description: Mapping[str, Any], arrays: Arrays) -> Self:
        """The network of a policy file."""
        k, architecture = description["actions"], architecture_of(description)
        if architecture.k != 1 or not 2 <= k < architecture.D:
            raise PonnError(f"The reward network has {architecture.k} outputs, {architecture.D} columns, {k} actions.")
        found = cls(architecture, arrays, k)
        check_reach(arrays, architecture, FAR)
        return found

    def rewards(self, X: np.ndarray) -> np.ndarray:
        """The success probability of every action."""
        return np.column_stack([self.reward_of(X, a) for a in range(self.k)])  # [n, k]

    def reward_of(self, X: np.ndarray, a: int) -> np.ndarray:
        """The success probability of one action."""
        odds = scores(self.arrays, with_action(X, np.full(len(X), a), self.k), self.architecture)
        return sigmoid(odds[:, 0].astype(float))  # [n]

    def probabilities(self, X: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
        """The eligible action that promises most."""
        return greedy(self.rewards(X), eligible)


def with_action(X: np.ndarray, A: np.ndarray, k: int) -> np.ndarray:
    """(x, action): design columns and the action as k columns of 0 and 1."""
    return np.hstack([X, np.eye(k, dtype=np.float32)[A]])  # [n, D + k]


@dataclass(frozen=True, eq=False)
class LinearRewards:
    """A logistic regression per action, as the paper's LR-L1: r_hat(a, x) = sigmoid(W_a . x + c_a)."""

    W: np.ndarray  # [D, k]
    c: np.ndarray  # [k]
    kind: ClassVar[str] = "linear-rewards"
    schema: ClassVar[Schema] = Fields(closed=True)

    @property
    def k(self) -> int:
        """Actions."""
        return len(self.c)

    @property
    def D(self) -> int:
        """Design columns."""
        return len(self.W)

    @property
    def description(self) -> dict[str, Any]:
        """The arrays say it all."""
        return {}

    @property
    def arrays(self) -> Arrays:
        """W and c."""
        return {"W": self.W, "c": self.c}

    @classmethod
    def shapes(cls, description: Mapping[str, Any], names: Collection[str]) -> Shapes:
        """The arrays say them."""
        return {"W": (None, None), "c": (None,)}

    @classmethod
    def build(cls, description: Mapping[str, Any], arrays: Arrays) -> Self:
        """The regressions of a policy file."""
        W, c = arrays["W"], arrays["c"]
        if set(arrays) != {"W", "c"} or W.ndim != 2 or c.shape != W.shape[1:]:
            raise PonnError("The reward model of the policy file does not fit together; it is damaged.")
        check_reached(FAR * absolute_sums(W) + np.abs(c))
        return cls(W, c)

    def rewards(self, X: np.ndarray) -> np.ndarray:
        """The success probability of every action."""
        return sigmoid(X.astype(float) @ self.W + self.c)  # [n, k]

    def probabilities(self, X: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
        """The eligible action that promises most."""
        return greedy(self.rewards(X), eligible)


def head_shapes(D: int, hidden: tuple[int, ...], k: int) -> dict[str, tuple[int, ...]]:
    """Name → shape of the weights of `Heads`."""
    sizes = (D, *hidden)
    shapes: dict[str, tuple[int, ...]] = {}
    for number, (below, units) in enumerate(pairwise(sizes), start=1):
        shapes |= {f"W{number}": (below, units), f"b{number}": (units,)}
    return shapes | {"W": (sizes[-1], k), "c": (k,)}


@dataclass(frozen=True, eq=False)
class Heads:
    """Rectified layers W1 b1 W2 b2 .. shared by all actions and a head per action: r = sigmoid(H @ W + c).

    The policy is softmax(r / temperature). promises: is r a calibrated reward, or only a score to decide by?
    """

    arrays: Arrays
    temperature: float
    promises: bool
    kind: ClassVar[str] = "heads"
    schema: ClassVar[Schema] = Fields({"temperature": Number(*TEMPERATURES), "promises": Truth()}, closed=True)

    def __post_init__(self) -> None:
        layers = range(1, len(self.arrays) // 2)
        hidden = tuple(self.arrays[f"b{number}"].shape[0] for number in layers)
        if {name: array.shape for name, array in self.arrays.items()} != head_shapes(self.D, hidden, self.k):
            raise PonnError("The parts of the policy file do not fit together; it is damaged.")
        if type(self.temperature) is not float or not self.temperature > 0 or type(self.promises) is not bool:
            raise PonnError(f"The network has temperature {self.temperature!r}; the policy file is damaged.")

    @property
    def k(self) -> int:
        """Actions."""
        return len(self.arrays["c"])

    @property
    def D(self) -> int:
        """Design columns."""
        return len(self.arrays["W1" if "W1" in self.arrays else "W"])

    @property
    def description(self) -> dict[str, Any]:
        """What the scores mean."""
        return {"temperature": self.temperature, "promises": self.promises}

    @classmethod
    def shapes(cls, description: Mapping[str, Any], names: Collection[str]) -> Shapes:
        """As many layers as there are."""
        some = head_shapes(1, (1,) * min(len(names) // 2 - 1, MOST_LAYERS), 1)
        return {name: (None,) * len(shape) for name, shape in some.items()}

    @classmethod
    def build(cls, description: Mapping[str, Any], arrays: Arrays) -> Self:
        """The network of a policy file."""
        T = description["temperature"]
        found = cls(arrays, float(T) if isinstance(T, int) else T, description["promises"])
        reached = np.full(found.D, FAR)
        for W, b in [(f"W{number}", f"b{number}") for number in range(1, len(arrays) // 2)] + [("W", "c")]:
            reached = reached @ np.abs(arrays[W]).astype(float) + np.abs(arrays[b])
            check_reached(reached)
        return found

    def scores(self, X: np.ndarray) -> np.ndarray:
        """r of every action in [0, 1], in blocks of rows that stay in the cache."""
        if X.ndim != 2 or X.shape[1] != self.D:
            raise PonnError(f"The rows have shape {X.shape}; expected {self.D} design columns.")
        X = np.asarray(X, np.float32)
        out = np.empty((len(X), self.k))
        for start in range(0, len(X), BLOCK_ROWS):
            H = X[start : start + BLOCK_ROWS]
            for number in range(1, len(self.arrays) // 2):
                H = relu(H @ self.arrays[f"W{number}"] + self.arrays[f"b{number}"])
            out[start : start + BLOCK_ROWS] = H @ self.arrays["W"] + self.arrays["c"]
        return sigmoid(out)  # [n, k]

    def probabilities(self, X: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
        """softmax(r / T) over the eligible actions."""
        return softmax(among(self.scores(X) / self.temperature, eligible))  # [n, k]

    def rewards(self, X: np.ndarray) -> Any:
        """The reward that each action promises: [n, k]; None where the scores promise none."""
        return self.scores(X) if self.promises else None


def architecture_of(description: Mapping[str, Any]) -> Architecture:
    """The architecture of a policy file."""
    k, D, hidden, activation = (description[name] for name in ("k", "D", "hidden", "activation"))
    return Architecture(k, D, tuple(hidden), activation)


KINDS: tuple[type[Model], ...] = (Network, RewardNetwork, LinearRewards, Heads, TreeModel, SimilarRows)
MODELS: Mapping[str, type[Model]] = {one.kind: one for one in KINDS}


def model_kind(kind: str) -> type[Model]:
    """The kind of a model by its name."""
    if kind not in MODELS:
        raise PonnError(f"A model of the policy file is of the kind {kind[:40]!r}; expected one of {listing(MODELS)}.")
    return MODELS[kind]


def check_model(kind: str, description: Mapping[str, Any], heads: Mapping[str, ArrayHead]) -> None:
    """Raise PonnError unless the description is that of such a model, and the arrays are said to be what it needs."""
    found = model_kind(kind)
    found.schema.check(description, kind)
    wanted = found.shapes(description, heads)
    if set(heads) != set(wanted):
        raise PonnError(f"The {kind} of the policy file holds {listing(sorted(heads))}; expected {listing(wanted)}.")
    for name, shape in wanted.items():
        given = heads[name].shape
        if len(given) != len(shape) or any(one not in (None, size) for one, size in zip(shape, given, strict=True)):
            raise PonnError(
                f"The parts of the policy file do not fit together: {name} of its {kind} has the shape {given}; "
                f"expected {shape}."
            )


def build_model(kind: str, description: Mapping[str, Any], arrays: Arrays) -> Model:
    """The model of a policy file, by its kind."""
    if any(array.dtype.kind not in "fiu" or not np.isfinite(array).all() for array in arrays.values()):
        raise PonnError("The policy file holds weights that are not finite numbers; it is damaged.")
    if any(not array.size for name, array in arrays.items() if name != "threshold"):
        raise PonnError("The policy file holds arrays without numbers; it is damaged.")
    return model_kind(kind).build(description, arrays)
