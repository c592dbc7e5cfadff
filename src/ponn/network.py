"""The network of section 4.3: an action-specific first layer, policy layers shared by all actions, one score each.

phi(x, a) holds x * f_a in the a-th of k blocks and zeros elsewhere, so W1 phi(x, a) is the a-th block of X @ W1 with
the columns that f_a leaves out at 0: one product serves all actions and phi is never made.

symbol   meaning                                                   shape
X        design columns                                            [n, D]
f        masks: does action a see a design column?                 [k, D]
H        units of a policy layer                                   [n, k * h_1], then [n * k, h_l]

The weights W1 b1 W2 b2 .. w c and the one deviation from the paper are described in inference.py.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ponn.errors import PonnError
from ponn.inference import Architecture

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "silu": nn.functional.silu,
}


class PolicyNetwork(nn.Module):
    """Scores w . Phi(x, a) + c_a; the policy h(. | x) is their softmax over a."""

    def __init__(self, architecture: Architecture, masks: np.ndarray, generator: torch.Generator | None = None):
        super().__init__()
        k, D = architecture.k, architecture.D
        if masks.shape != (k, D):
            raise PonnError(f"The masks have shape {masks.shape}; expected [k, D] = {(k, D)}.")
        self.architecture = architecture
        self.rho = ACTIVATIONS[architecture.activation]
        self.f = torch.tensor(masks, dtype=torch.bool)  # [k, D]
        self.W = nn.ParameterDict(initial_weights(architecture, self.f, generator))
        if not self.f.all():
            self.keep_masked_weights_at_zero()

    def keep_masked_weights_at_zero(self) -> None:
        """A weight that starts at 0 and whose gradient is 0 stays exactly 0 under Adam and any penalty.

        One in-place product per step; masking W1 in every forward pass costs one more and its backward (measured:
        none, hook and product within 5 % of each other, the product last).
        """
        kept = spread(self.f, self.architecture.first).to(torch.float32)  # [D, k * h_1]

        def mask_gradient(W1: Tensor) -> None:
            if W1.grad is not None:
                W1.grad.mul_(kept)

        self.W["W1"].register_post_accumulate_grad_hook(mask_gradient)

    def forward(self, X: Tensor) -> Tensor:
        """The score of every action."""
        k, h, W = self.architecture.k, self.architecture.first, self.W
        if not self.architecture.hidden:
            return torch.addmm(W["c"], X, W["W1"])  # [n, k]
        H = self.rho(torch.addmm(W["b1"].repeat(k), X, W["W1"])).view(-1, h)  # [n * k, h_1]
        for layer in range(2, len(self.architecture.hidden) + 1):
            H = self.rho(torch.addmm(W[f"b{layer}"], H, W[f"W{layer}"]))  # [n * k, h_l]
        return (H @ W["w"]).view(-1, k) + W["c"]  # [n, k]

    def penalised(self) -> list[Tensor]:
        """The weights that penalties act on: all but the intercepts."""
        return [value for name, value in self.W.items() if not is_intercept(name)]

    def intercepts(self) -> list[Tensor]:
        """The weights that no penalty acts on."""
        return [value for name, value in self.W.items() if is_intercept(name)]

    def weights(self) -> dict[str, np.ndarray]:
        """A copy of every weight, for inference.py."""
        return {name: value.detach().numpy().copy() for name, value in self.W.items()}

    def restore(self, weights: Mapping[str, np.ndarray]) -> None:
        """Put weights back."""
        with torch.no_grad():
            for name, value in weights.items():
                self.W[name].copy_(torch.from_numpy(value))


def is_intercept(name: str) -> bool:
    """b1, b2, .. and c."""
    return name.startswith(("b", "c"))


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
