"""A network with one trunk for all actions and a head for each, its losses and its training loop.

Where the network of section 4.3 has a first layer per action, this one reads the union of the relevant sets once: what
one action's rows teach about the features serves all actions, and a step costs 1/k of the time.

symbol     meaning                                                                    shape
X          design columns                                                             [n, D]
S          scores, one per action                                                     [n, k]
A, R       action taken, reward in [0, 1]                                             [n]
r          r_hat(a, x), what an action promises                                       [n, k]
G          doubly robust scores (scores.py), any real numbers                         [n, k]
T          temperature of the stochastic policy softmax(r / T)
weight     how often a row counts, mean 1                                             [n]
u, slope   what a row adds to the loss, and the slope of u in its scores              [n], [n, k]

    loss             u_j                                                              whose minimum is
    taken_reward     logistic loss of sigmoid(S_jA) against R_j                       sigmoid(S) = r
    taken_share      logistic loss of softmax(S_j)_A against R_j                      softmax(S) = r, if r adds up to 1
    every_reward     sum_a logistic loss of sigmoid(S_ja) against r_ja                sigmoid(S) = r
    value            -sum_a h_ja (G_ja - T log h_ja), h = softmax(sigmoid(S) / T)     h = softmax(E[G | x] / T)

The last two lead to the same policy softmax(r / T): every_reward is steady and needs rewards r that are right, value
needs only scores that are right on average, and is noisy.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from ponn.errors import PonnError
from ponn.policy.models import Heads, head_shapes
from ponn.training.loop import RETRIES, SMALLER, Adam, DivergenceError, thread_count
from ponn.training.objective import add_weight_penalties
from ponn.training.policy_network import is_intercept

EVALUATED_ROWS = 8_192  # rows in one pass without slopes
MOST_VISITS = 4_000_000  # rows a training may visit: beyond 65,000 rows fewer epochs do, down to FEWEST_EPOCHS
FEWEST_EPOCHS = 3
POOL = 1 << 19  # spare draws for dropout
threshold_backward = torch.ops.aten.threshold_backward  # passes a slope on where the unit is above 0


class Losses(NamedTuple):
    """u_j of each row, and its slope in the row's scores."""

    u: Tensor  # [n]
    slope: Tensor  # [n, k]


Loss = Callable[[Tensor, Tensor], Losses]  # scores of rows, and which rows these are


# Losses --------------------------------------------------------------------------------------------------


def taken_reward(S: Tensor, A: Tensor, R: Tensor) -> Losses:
    """Logistic loss of the action taken; nothing is said about the others."""
    s = S.gather(1, A.unsqueeze(1)).squeeze(1)  # [n]
    return Losses(softplus(s) - R * s, torch.zeros_like(S).scatter_(1, A.unsqueeze(1), (s.sigmoid() - R).unsqueeze(1)))


def taken_share(S: Tensor, A: Tensor, R: Tensor) -> Losses:
    """Logistic loss of the action taken where the actions' rewards share one unit: a failure speaks for the others."""
    log_h = S.log_softmax(dim=1)  # [n, k]
    others = S.scatter(1, A.unsqueeze(1), -math.inf)
    log_rest = others.logsumexp(dim=1) - S.logsumexp(dim=1)  # log(1 - h_A), exact where h_A is near 1
    log_taken = log_h.gather(1, A.unsqueeze(1)).squeeze(1)
    wanted = others.softmax(dim=1).mul_((1 - R).unsqueeze(1)).scatter_add_(1, A.unsqueeze(1), R.unsqueeze(1))
    return Losses(-R * log_taken - (1 - R) * log_rest, log_h.exp_().sub_(wanted))


def every_reward(S: Tensor, r: Tensor) -> Losses:
    """Logistic loss of every action against what it promises."""
    return Losses((softplus(S) - r * S).sum(dim=1), S.sigmoid() - r)


def value(S: Tensor, G: Tensor, T: float) -> Losses:
    """The negative value of h = softmax(sigmoid(S) / T) by the scores G, with T times its entropy as a bonus."""
    r = S.sigmoid()
    log_h = (r / T).log_softmax(dim=1)
    h, worth = log_h.exp(), G - T * log_h
    mean = (h * worth).sum(dim=1, keepdim=True)
    return Losses(-mean.squeeze(1), h * (mean - worth) * r * (1 - r) / T)


# The network -----------------------------------------------------------------------------------------------


class HeadNetwork:
    """Rectified layers shared by all actions, one linear head each. All weights lie in one vector, as do the slopes."""

    def __init__(
        self,
        D: int,
        hidden: tuple[int, ...],
        k: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        self.shapes, self.depth, self.generator = head_shapes(D, hidden, k), len(hidden) + 1, generator
        size = sum(math.prod(shape) for shape in self.shapes.values())
        self.weight, self.slope = (torch.zeros(size, dtype=dtype) for _ in range(2))
        self.W, self.G = (named(vector, self.shapes) for vector in (self.weight, self.slope))
        some = sum(math.prod(shape) for name, shape in self.shapes.items() if not is_intercept(name))
        self.penalised = (self.weight[:some], self.slope[:some])
        self.pool = torch.empty(0, dtype=dtype)  # see `kept`
        for number in range(1, self.depth):  # He et al. 2015; heads start at 0: what knows nothing is uniform
            W = self.W[f"W{number}"]
            W.copy_(torch.randn(W.shape, generator=generator) * math.sqrt(2 / W.shape[0]))

    def forward(self, X: Tensor, dropout: float = 0.0) -> list[Tensor]:
        """The units of every layer, X first and the scores last; with dropout some units are silent."""
        layers = [X]
        for number in range(1, self.depth):
            H = torch.addmm(self.W[f"b{number}"], layers[-1], self.W[f"W{number}"]).clamp_(min=0)
            if dropout:
                H.mul_(self.kept(H, dropout))
            layers.append(H)
        layers.append(torch.addmm(self.W["c"], layers[-1], self.W["W"]))  # [n, k]
        return layers

    def kept(self, H: Tensor, dropout: float) -> Tensor:
        """Which units speak, and how loud: 0 or 1 / (1 - dropout).

        Cut at random from one long run of draws: new ones for every unit took a third of a step's time.
        """
        size = H.numel()
        if len(self.pool) < 4 * size:
            draws = torch.rand(4 * size + POOL, generator=self.generator, dtype=H.dtype)
            self.pool = (draws >= dropout).to(H.dtype).div_(1 - dropout)
        start = int(torch.randint(len(self.pool) - size, (1,), generator=self.generator))
        return self.pool[start : start + size].view(H.shape)

    def backward(self, layers: list[Tensor], dS: Tensor, dropout: float = 0.0) -> None:
        """Fill `slope` by the chain rule. A silent unit has H = 0, like one that rectification cut: no slope passes."""
        names = [*(f"W{number}" for number in range(1, self.depth)), "W"]
        intercepts = [*(f"b{number}" for number in range(1, self.depth)), "c"]
        dZ = dS
        for number in range(self.depth - 1, -1, -1):
            below = layers[number]
            torch.mm(below.T, dZ, out=self.G[names[number]])
            torch.sum(dZ, dim=0, out=self.G[intercepts[number]])
            if number:
                dH = torch.mm(dZ, self.W[names[number]].T)
                dZ = threshold_backward(dH, below, 0)
                if dropout:
                    dZ.div_(1 - dropout)

    def scores(self, X: Tensor) -> Tensor:
        """Scores in blocks: [n, k]."""
        return torch.cat([self.forward(block)[-1] for block in torch.split(X, EVALUATED_ROWS)])

    def model(self, columns: np.ndarray, temperature: float, promises: bool) -> Heads:
        """The network with numpy alone; columns [D]: which of all design columns are its inputs."""
        arrays = {name: value.numpy().copy() for name, value in self.W.items()}
        first = next(iter(self.shapes))
        whole = np.zeros((len(columns), arrays[first].shape[1]), np.float32)
        whole[columns] = arrays[first]
        return Heads(arrays | {first: whole}, temperature, promises)


def named(vector: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Views of a vector by weight, intercepts last, where penalties do not reach."""
    names = sorted(shapes, key=is_intercept)
    parts = torch.split(vector, [math.prod(shapes[name]) for name in names])
    found = {name: part.view(shapes[name]) for name, part in zip(names, parts, strict=True)}
    return {name: found[name] for name in shapes}


# Training --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How a network is trained."""

    hidden: tuple[int, ...]
    epochs: int
    batch: int
    learning_rate: float
    dropout: float
    l2: float
    seed: int

    def epochs_for(self, n: int) -> int:
        """Fewer for many rows, so that time grows with the rows and no faster."""
        return min(self.epochs, max(FEWEST_EPOCHS, MOST_VISITS // n))


def fit_heads(X: Tensor, k: int, loss: Loss, weight: Tensor, plan: Plan) -> HeadNetwork:
    """A trained network; after a divergence again with a smaller step, from the same start."""
    for retries in range(RETRIES + 1):
        generator = torch.Generator().manual_seed(plan.seed)
        network = HeadNetwork(X.shape[1], plan.hidden, k, generator)
        try:
            with thread_count(1):
                train_heads(network, X, loss, weight, plan, plan.learning_rate * SMALLER**retries)
            return network
        except DivergenceError as error:
            reason = error
    raise PonnError(
        f"Training diverged {RETRIES + 1} times: {reason}. Look for features with extreme values (ponn check), or set "
        "a smaller learning_rate."
    )


@torch.inference_mode()
def train_heads(network: HeadNetwork, X: Tensor, loss: Loss, weight: Tensor, plan: Plan, learning_rate: float) -> None:
    """Adam in mini-batches with a step that falls to 0 along a cosine.

    Weights that were cooled down seem to rank better than the best of many hot epochs, even where they are too sure of
    themselves, which calibration mends (docs/decisions/030 has the one comparison).
    """
    optimizer = Adam(network.weight, network.slope, learning_rate)
    n, epochs = len(X), plan.epochs_for(len(X))
    batches = max(1, round(n / plan.batch))
    for epoch in range(epochs):
        order = torch.randperm(n, generator=network.generator)
        for number, rows in enumerate(order.tensor_split(batches)):
            done = (epoch + number / batches) / epochs
            optimizer.learning_rate = learning_rate * 0.5 * (1 + math.cos(math.pi * done))
            step(network, optimizer, X, rows, loss, weight, plan)
        if not bool(network.weight.isfinite().all()):
            raise DivergenceError(f"a weight of epoch {epoch + 1} is not a number")


def step(
    network: HeadNetwork, optimizer: Adam, X: Tensor, rows: Tensor, loss: Loss, weight: Tensor, plan: Plan
) -> None:
    """One step of the optimizer on a batch of rows."""
    layers = network.forward(X[rows], plan.dropout)
    dS = loss(layers[-1], rows).slope.mul_((weight[rows] / len(rows)).unsqueeze(1))
    network.backward(layers, dS, plan.dropout)
    add_weight_penalties(*network.penalised, 0.0, plan.l2)
    optimizer.step()
