"""What a policy is made of: models that give h(a | x) or r(a, x) for design columns. numpy alone.

    symbol   meaning                                         shape
    X        design columns, single precision                [n, D]
    h        h(a | x), the stochastic policy                 [n, k]
    r        r_hat(a, x), the reward expected of each action [n, k]

A model of rewards becomes a policy by taking the action that promises most. Every model is its `description` (small,
plain values) and its `arrays`, and can be built again from both; whatever does not fit together is refused.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from ponn.errors import PonnError
from ponn.inference import Architecture, scores, sigmoid, softmax
from ponn.similar import SimilarRows
from ponn.trees import TreeModel

Arrays = Mapping[str, np.ndarray]


class Model(Protocol):
    """What a policy needs of its model."""

    kind: ClassVar[str]

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


@dataclass(frozen=True, eq=False)
class Network:
    """The policy network of section 4.3: h(. | x) is the softmax of its scores."""

    architecture: Architecture
    arrays: Arrays
    kind: ClassVar[str] = "network"

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
    def build(cls, description: Mapping[str, Any], arrays: Arrays) -> Self:
        """The network of a policy file."""
        return cls(checked_architecture(description, arrays), arrays)

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

    @property
    def D(self) -> int:
        """Design columns of x alone."""
        return self.architecture.D - self.k

    @property
    def description(self) -> dict[str, Any]:
        """The architecture and how many of its columns say the action."""
        return {"actions": self.k, **asdict(self.architecture)}

    @classmethod
    def build(cls, description: Mapping[str, Any], arrays: Arrays) -> Self:
        """The network of a policy file."""
        k, architecture = description["actions"], checked_architecture(description, arrays)
        if architecture.k != 1 or not 2 <= k < architecture.D:
            raise PonnError(f"The reward network has {architecture.k} outputs, {architecture.D} columns, {k} actions.")
        return cls(architecture, arrays, k)

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
    def build(cls, description: Mapping[str, Any], arrays: Arrays) -> Self:
        """The regressions of a policy file."""
        W, c = arrays["W"], arrays["c"]
        if set(arrays) != {"W", "c"} or W.ndim != 2 or c.shape != W.shape[1:]:
            raise PonnError("The reward model of the policy file does not fit together; it is damaged.")
        return cls(W, c)

    def rewards(self, X: np.ndarray) -> np.ndarray:
        """The success probability of every action."""
        return sigmoid(X.astype(float) @ self.W + self.c)  # [n, k]

    def probabilities(self, X: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
        """The eligible action that promises most."""
        return greedy(self.rewards(X), eligible)


def checked_architecture(description: Mapping[str, Any], arrays: Arrays) -> Architecture:
    """The architecture, if the arrays have its shapes and hold finite single-precision numbers."""
    names = ("k", "D", "hidden", "activation")
    k, D, hidden, activation = (description[name] for name in names)
    architecture = Architecture(k, D, tuple(hidden), activation)
    if {name: array.shape for name, array in arrays.items()} != architecture.shapes:
        raise PonnError("The parts of the policy file do not fit together; it is damaged.")
    return architecture


KINDS: tuple[type[Model], ...] = (Network, RewardNetwork, LinearRewards, TreeModel, SimilarRows)
MODELS: Mapping[str, type[Model]] = {one.kind: one for one in KINDS}


def build_model(kind: str, description: Mapping[str, Any], arrays: Arrays) -> Model:
    """The model of a policy file, by its kind."""
    if any(array.dtype.kind not in "fiu" or not np.isfinite(array).all() for array in arrays.values()):
        raise PonnError("The policy file holds weights that are not finite numbers; it is damaged.")
    return MODELS[kind].build(description, arrays)
