"""The network of section 4.3 with numpy alone, so that a policy serves without the training stack.

symbol     meaning                                                                          shape
X          design columns (encode.py), single precision                                     [n, D]
h_l        units of policy layer l = 1..L; h_1 counts as 1 where there is no hidden layer
W1         first layer of every action, side by side; 0 where f_a leaves a column out       [D, k * h_1]
b1         intercepts of the first layer, shared by all actions                             [h_1]
W2, b2     policy layer 2, shared by all actions; W3, b3 and so on likewise                 [h_1, h_2], [h_2]
w          from Phi(x, a) to the score                                                      [h_L]
c          intercept per action                                                             [k]

Deviation: the paper has no c. Its b1 is the same for all actions, so where nothing is selected for an action that
action's base rate could not be expressed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ponn.errors import PonnError

# Rows scored at a time, counted from the first row: with k * h_1 = 1,000 a layer takes 1 MB and stays in the cache.
# The last bits of a product depend on the rows it is made with; whoever cuts rows at multiples of this gets the same.
BLOCK_ROWS = 256


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)) in place; half the time of tanh. Where exp(-z) is beyond the largest number, 0 is right."""
    np.negative(z, out=z)
    with np.errstate(over="ignore"):
        np.exp(z, out=z)
    z += 1
    return np.reciprocal(z, out=z)


def relu(z: np.ndarray) -> np.ndarray:
    """max(z, 0) in place."""
    return np.maximum(z, 0, out=z)


def silu(z: np.ndarray) -> np.ndarray:
    """z / (1 + exp(-z))."""
    return z * sigmoid(z.copy())


ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {"sigmoid": sigmoid, "relu": relu, "silu": silu}


@dataclass(frozen=True)
class Architecture:
    """What the network looks like: k actions, D design columns, units per policy layer (none: a linear policy).

    A policy has k >= 2; k = 1 is a reward network, whose only score is a log-odds.
    """

    k: int
    D: int
    hidden: tuple[int, ...] = (100, 100)  # section 7.2: two policy layers of 100 sigmoid units
    activation: str = "sigmoid"

    def __post_init__(self) -> None:
        if self.k < 1 or self.D < 1:
            raise PonnError(f"The network has {self.k} actions and {self.D} columns; expected at least 1 of each.")
        if any(units < 1 for units in self.hidden):
            raise PonnError(f"The policy layers have {self.hidden} units; expected at least 1 in each.")
        if self.activation not in ACTIVATIONS:
            raise PonnError(f"The activation is {self.activation!r}; expected one of {', '.join(ACTIVATIONS)}.")

    @property
    def first(self) -> int:
        """h_1, the units of the first layer per action; 1 where the policy is linear."""
        return self.hidden[0] if self.hidden else 1

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of every weight."""
        shapes: dict[str, tuple[int, ...]] = {"W1": (self.D, self.k * self.first)}
        if self.hidden:
            shapes["b1"] = (self.first,)
            for layer in range(2, len(self.hidden) + 1):
                shapes[f"W{layer}"] = self.hidden[layer - 2 : layer]
                shapes[f"b{layer}"] = (self.hidden[layer - 1],)
            shapes["w"] = (self.hidden[-1],)
        return shapes | {"c": (self.k,)}


def scores(weights: Mapping[str, np.ndarray], X: np.ndarray, architecture: Architecture) -> np.ndarray:
    """w . Phi(x, a) + c_a for every row and action; h(. | x) is the softmax over a row.

    weights: in the shapes of the architecture; a model looks at that once, not for every row.
    """
    if X.ndim != 2 or X.shape[1] != architecture.D:
        raise PonnError(f"The rows have shape {X.shape}; expected {architecture.D} design columns.")
    X = np.asarray(X, np.float32)
    layers = empty_layers(architecture, min(len(X), BLOCK_ROWS))
    starts = range(0, len(X) or 1, BLOCK_ROWS)
    blocks = [block_scores(weights, X[start : start + BLOCK_ROWS], architecture, layers) for start in starts]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)  # [n, k]


def empty_layers(architecture: Architecture, rows: int) -> list[np.ndarray]:
    """Room for the units of each policy layer, used by one block after the other: [rows * k, h_l] each."""
    units = architecture.hidden or (architecture.first,)
    return [np.empty((rows * architecture.k, h), np.float32) for h in units]


def block_scores(
    weights: Mapping[str, np.ndarray], X: np.ndarray, architecture: Architecture, layers: list[np.ndarray]
) -> np.ndarray:
    """Scores of a few rows; phi(x, a) is never made: W1 phi(x, a) is the a-th block of X @ W1."""
    n, k = len(X), architecture.k
    H = layers[0][: n * k]  # [n * k, h_1]
    np.matmul(X, weights["W1"], out=H.reshape(n, k * architecture.first))
    if not architecture.hidden:
        return H.reshape(n, k) + weights["c"]  # [n, k]
    rho = ACTIVATIONS[architecture.activation]
    H += weights["b1"]
    H = rho(H)
    for layer, room in enumerate(layers[1:], start=2):
        H = np.matmul(H, weights[f"W{layer}"], out=room[: n * k])  # [n * k, h_l]
        H += weights[f"b{layer}"]
        H = rho(H)
    return np.asarray((H @ weights["w"]).reshape(n, k) + weights["c"])  # [n, k]


def softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax over the last axis in double precision, safe against overflow."""
    powers = np.exp((scores - scores.max(axis=-1, keepdims=True)).astype(np.float64))
    return powers / powers.sum(axis=-1, keepdims=True)


def restricted(h: np.ndarray, allowed: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Probabilities over the allowed actions only, with sum 1; where they had none: `otherwise`."""
    kept = h * allowed  # [n, k]
    total = kept.sum(axis=1, keepdims=True)
    return np.where(total > 0, kept / np.where(total > 0, total, 1.0), otherwise)


def draw_actions(h: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A_j ~ h(. | X_j), as action numbers."""
    return actions_at(h, rng.random(len(h)))


def actions_at(h: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The actions whose share of [0, 1), laid side by side, holds u_j: draws from h where u is uniform.

    Never one with share 0, also where the shares add up to a little less than 1.
    """
    last = h.shape[1] - 1 - (h[:, ::-1] > 0).argmax(axis=1)  # [n]: the last action with a share
    return np.minimum((u[:, None] >= np.cumsum(h, axis=1)).sum(axis=1), last)


MOST_REACHED = 1e38  # by a sum in a network: single precision ends at 3.4e38, and scores are subtracted
MOST_UNITS = 1 << 20  # of a layer, for all actions together: a block of rows takes 1 GB there


def check_reach(weights: Mapping[str, np.ndarray], architecture: Architecture, far: float) -> None:
    """Raise PonnError unless every sum stays a number for all rows whose columns lie within +-far.

    The most a unit can reach is the sum of its absolute weights times what the units below can reach.
    """
    k, hidden = architecture.k, architecture.hidden
    if k * max(hidden, default=1) > MOST_UNITS:
        raise PonnError(f"The policy layers have {hidden} units for each of {k} actions: too many to compute with.")
    intercept = weights["b1" if hidden else "c"]
    reached = far * absolute_sums(weights["W1"]).reshape(k, -1).max(axis=0) + np.abs(intercept).max()  # [h_1]
    above = [(f"W{layer}", f"b{layer}") for layer in range(2, len(hidden) + 1)] + [("w", "c")] * bool(hidden)
    for W, b in above:
        check_reached(reached)
        most = np.ones(len(reached)) if architecture.activation == "sigmoid" else reached
        reached = (most @ np.abs(weights[W]).astype(float)) + np.abs(weights[b]).max()  # [h_l]; at last one number
    check_reached(reached)


def absolute_sums(W: np.ndarray) -> np.ndarray:
    """The sum of each column's absolute weights, in double precision."""
    return np.asarray(np.abs(W).sum(axis=0, dtype=np.float64))


def check_reached(reached: np.ndarray) -> None:
    """Raise PonnError where a unit could reach what is no number any more."""
    if not np.all(reached <= MOST_REACHED):
        raise PonnError("The weights are so large that their sums can be no numbers any more; the file is damaged.")


def check_weights(weights: Mapping[str, np.ndarray], architecture: Architecture) -> None:
    """Raise PonnError unless the weights fit the architecture."""
    found = {name: array.shape for name, array in weights.items()}
    if found != architecture.shapes:
        told = f"The weights have shapes {found}; the architecture asks for {architecture.shapes}."
        raise PonnError(f"{told} They do not fit together; a file that says so is damaged.")
