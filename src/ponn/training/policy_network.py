"""The network of section 4.3: an action-specific first layer, policy layers shared by all actions, one score each.

phi(x, a) holds x * f_a in the a-th of k blocks and zeros elsewhere, so W1 phi(x, a) is the a-th block of X @ W1 with
the columns that f_a leaves out at 0: one product serves all actions and phi is never made.

symbol   meaning                                                   shape
X        design columns                                            [n, D]
f        masks: does action a see a design column?                 [k, D]
S        scores, by action                                         [k, n]
Z, H     a policy layer's sums, and its units H = rho(Z)           [n * k, h_l]; layer 1 also seen as [n, k * h_1]
W, G     weights by name, and the loss's slope in each             see inference.py
dS, dH   the loss's slope in the scores, in a layer's units        as S, H; likewise dZ

The backward pass is written out: no graph is recorded, and every large array is made once per number of rows.
The weights W1 b1 W2 b2 .. w c and the one deviation from the paper are described in inference.py.
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ponn.errors import PonnError
from ponn.policy.inference import Architecture


class Units(NamedTuple):
    """A policy layer's arrays for n rows; filled by a forward pass, read by the backward pass after it."""

    Z: Tensor  # [n * k, h]
    H: Tensor  # [n * k, h]; the same memory as Z where rho's slope can be had from H alone
    slope: Tensor  # [n * k, h]: dH, and after `chain` dZ


class Activation(NamedTuple):
    """rho, and its derivative by torch's own kernel (one pass over memory, where products would take three)."""

    fill: Callable[[Units], object]  # H = rho(Z)
    chain: Callable[[Units], object]  # slope becomes dZ = dH * rho'(Z)
    in_place: bool  # H may take the memory of Z


aten = torch.ops.aten
ACTIVATIONS: Mapping[str, Activation] = {
    "sigmoid": Activation(
        lambda at: torch.sigmoid(at.Z, out=at.H),
        lambda at: aten.sigmoid_backward.grad_input(at.slope, at.H, grad_input=at.slope),
        in_place=True,
    ),
    "relu": Activation(
        lambda at: torch.clamp(at.Z, min=0, out=at.H),
        lambda at: aten.threshold_backward.grad_input(at.slope, at.H, 0, grad_input=at.slope),
        in_place=True,
    ),
    "silu": Activation(
        lambda at: aten.silu.out(at.Z, out=at.H),
        lambda at: aten.silu_backward.grad_input(at.slope, at.Z, grad_input=at.slope),
        in_place=False,
    ),
}


class Penalised(NamedTuple):
    """The weights that penalties act on, all but the intercepts, and their slopes."""

    weight: Tensor
    slope: Tensor


class PolicyNetwork:
    """Scores w . Phi(x, a) + c_a; the policy h(. | x) is their softmax over a. With k = 1: a reward network.

    All weights lie in one vector, those that penalties act on first, and so do their slopes: an optimizer's step is
    one pass over it.
    """

    def __init__(
        self,
        architecture: Architecture,
        masks: np.ndarray,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        k, D = architecture.k, architecture.D
        if masks.shape != (k, D):
            raise PonnError(f"The masks have shape {masks.shape}; expected [k, D] = {(k, D)}.")
        self.architecture = architecture
        self.rho = ACTIVATIONS[architecture.activation]
        f = torch.tensor(masks, dtype=torch.bool)  # [k, D]
        self.weight, self.slope = (torch.zeros(architecture_size(architecture), dtype=dtype) for _ in range(2))
        self.W, self.G = named(self.weight, architecture), named(self.slope, architecture)
        some = sum(value.numel() for name, value in self.W.items() if not is_intercept(name))
        self.penalised = Penalised(self.weight[:some], self.slope[:some])
        for name, value in initial_weights(architecture, f, generator).items():
            self.W[name].copy_(value)
        self.kept = None if f.all() else torch.empty_like(self.W["W1"]).copy_(spread(f, architecture.first))
        self.b1_of_actions = torch.empty(k, architecture.first, dtype=dtype)  # b1 once for each action
        self.units: dict[int, list[Units]] = {}

    def forward(self, X: Tensor) -> Tensor:
        """The score of every action; the units stay for `backward`, until the next pass over as many rows.

        By action, because a softmax down the columns takes half the time of one along rows of k = 10.
        """
        W, k = self.W, self.architecture.k
        if not self.architecture.hidden:
            return torch.addmm(W["c"].unsqueeze(1), W["W1"].T, X.T)  # [k, n]
        layers = self.layers(len(X))
        self.b1_of_actions.copy_(W["b1"])
        torch.addmm(self.b1_of_actions.view(-1), X, W["W1"], out=layers[0].Z.view(len(X), -1))
        self.rho.fill(layers[0])
        for number, (below, layer) in enumerate(pairwise(layers), start=2):
            torch.addmm(W[f"b{number}"], below.H, W[f"W{number}"], out=layer.Z)
            self.rho.fill(layer)
        return torch.mv(layers[-1].H, W["w"]).view(-1, k).T + W["c"].unsqueeze(1)  # [k, n]

    def backward(self, X: Tensor, dS: Tensor) -> None:
        """Fill `slope` by the chain rule, after a forward pass over the same X."""
        G = self.G
        torch.sum(dS, dim=1, out=G["c"])
        if self.architecture.hidden:
            dZ1 = self.backward_to_first_layer(len(X), dS.T.reshape(-1))  # [n, k * h_1]
            torch.mm(X.T, dZ1, out=G["W1"])
        else:
            torch.mm(dS, X, out=G["W1"].T)
        if self.kept is not None:  # a weight that starts at 0 and whose slope is 0 stays exactly 0
            G["W1"].mul_(self.kept)

    def backward_to_first_layer(self, n: int, dS: Tensor) -> Tensor:
        """The slopes of all weights between the first layer's sums and the scores dS [n * k]; those in its sums."""
        W, G, layers = self.W, self.G, self.layers(n)
        torch.mv(layers[-1].H.T, dS, out=G["w"])
        torch.outer(dS, W["w"], out=layers[-1].slope)
        for number in range(len(layers), 1, -1):
            layer, below = layers[number - 1], layers[number - 2]
            self.rho.chain(layer)
            torch.sum(layer.slope, dim=0, out=G[f"b{number}"])
            torch.mm(below.H.T, layer.slope, out=G[f"W{number}"])
            torch.mm(layer.slope, W[f"W{number}"].T, out=below.slope)
        self.rho.chain(layers[0])
        torch.sum(layers[0].slope, dim=0, out=G["b1"])
        return layers[0].slope.view(n, -1)

    def layers(self, n: int) -> list[Units]:
        """The arrays for n rows, made when n is first met."""
        if n not in self.units:
            sizes = [(n * self.architecture.k, h) for h in self.architecture.hidden]
            self.units[n] = [self.room(*size) for size in sizes]
        return self.units[n]

    def room(self, rows: int, h: int) -> Units:
        """Arrays for one layer."""
        Z, other, slope = (torch.empty(rows, h, dtype=self.weight.dtype) for _ in range(3))
        return Units(Z, Z if self.rho.in_place else other, slope)

    def weights(self) -> dict[str, np.ndarray]:
        """A copy of every weight, for inference.py."""
        return {name: self.W[name].numpy().copy() for name in self.architecture.shapes}

    def restore(self, weights: Mapping[str, np.ndarray]) -> None:
        """Put weights back."""
        for name, value in weights.items():
            self.W[name].copy_(torch.from_numpy(value))


def is_intercept(name: str) -> bool:
    """b1, b2, .. and c."""
    return name.startswith(("b", "c"))


def architecture_size(architecture: Architecture) -> int:
    """How many weights there are."""
    return sum(math.prod(shape) for shape in architecture.shapes.values())


def named(vector: Tensor, architecture: Architecture) -> dict[str, Tensor]:
    """Views of a vector by weight, the intercepts last."""
    names = sorted(architecture.shapes, key=is_intercept)
    parts = torch.split(vector, [math.prod(architecture.shapes[name]) for name in names])
    found = {name: part.view(architecture.shapes[name]) for name, part in zip(names, parts, strict=True)}
    if not architecture.hidden:  # by action: products with k columns took 4 times as long as with k rows (k = 10)
        found["W1"] = found["W1"].view(architecture.k, architecture.D).T
    return found


def spread(f: Tensor, units: int) -> Tensor:
    """The masks [k, D] over the first layer's weights: [D, k * units]."""
    return f.T.repeat_interleave(units, dim=1)


def initial_weights(architecture: Architecture, f: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
    """Uniform in +-1/sqrt(inputs) as torch's linear layers, an action's inputs being the columns it sees.

    The intercepts c start at 0, and so does a linear policy (its objective has no symmetry to break): a policy that
    knows nothing is uniform.
    """
    found = {}
    for name, shape in architecture.shapes.items():
        bound = 1 / fan_in(name, architecture, f) ** 0.5
        found[name] = (2 * torch.rand(shape, generator=generator) - 1) * bound
    found["c"].zero_()
    if not architecture.hidden:
        found["W1"].zero_()
    found["W1"] *= spread(f, architecture.first)
    return found


def fan_in(name: str, architecture: Architecture, f: Tensor) -> Tensor:
    """How many inputs feed a unit: [k * h_1] for the first layer's weights, else one number."""
    seen = f.sum(dim=1).clamp(min=1)  # [k]
    if name == "W1":
        return seen.repeat_interleave(architecture.first)
    if name in ("b1", "c"):
        return seen.max()
    return torch.tensor(architecture.hidden[-1] if name == "w" else architecture.hidden[int(name[1:]) - 2])
