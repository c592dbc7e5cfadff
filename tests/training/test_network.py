"""The network against section 4.3 written as plain loops over phi(x, a), and numpy against torch."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ponn.errors import PonnError
from ponn.policy.inference import BLOCK_ROWS, Architecture, scores
from ponn.policy.models import Network
from ponn.training.policy_network import PolicyNetwork

RHO = {
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "relu": lambda z: np.maximum(z, 0),
    "silu": lambda z: z / (1 + np.exp(-z)),
}


def made(k=3, D=5, hidden=(4, 6), activation="sigmoid", seed=0, share=0.6, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    masks = rng.random((k, D)) < share
    generator = torch.Generator().manual_seed(seed)
    network = PolicyNetwork(Architecture(k, D, hidden, activation), masks, generator, dtype)
    for name, value in network.W.items():  # the intercepts are random too
        if name != "W1":
            value.copy_(torch.tensor(rng.normal(size=value.shape)))
    return network, masks, rng.normal(size=(7, D)).astype(np.float32)


def literal_score(weights, f_a, x, a, architecture):
    """w . Phi(x, a) with phi(x, a) written out: a vector of k * D entries, only block a of it filled."""
    k, D, h = architecture.k, architecture.D, architecture.first
    phi = np.zeros(k * D)
    phi[a * D : (a + 1) * D] = x * f_a
    W1 = np.concatenate([weights["W1"][:, b * h : (b + 1) * h] for b in range(k)])  # [k * D, h]
    z = W1.T @ phi
    if not architecture.hidden:
        return z[0] + weights["c"][a]
    rho = RHO[architecture.activation]
    z = rho(z + weights["b1"])
    for layer in range(2, len(architecture.hidden) + 1):
        z = rho(weights[f"W{layer}"].T @ z + weights[f"b{layer}"])
    return weights["w"] @ z + weights["c"][a]


@given(
    k=st.integers(1, 4),
    D=st.integers(1, 6),
    hidden=st.lists(st.integers(1, 5), max_size=3),
    activation=st.sampled_from(sorted(RHO)),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_scores_are_those_of_the_paper_with_phi_written_out(k, D, hidden, activation, seed):
    network, masks, X = made(k, D, tuple(hidden), activation, seed)
    weights = network.weights()
    expected = [[literal_score(weights, masks[a], x, a, network.architecture) for a in range(k)] for x in X]
    found = network.forward(torch.tensor(X)).T.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)  # single precision


@pytest.mark.parametrize("activation", sorted(RHO))
@pytest.mark.parametrize("hidden", [(), (100,), (100, 100)])
def test_numpy_equals_torch(hidden, activation):
    network, _, _ = made(10, 30, hidden, activation)
    X = np.random.default_rng(1).normal(size=(2 * BLOCK_ROWS + 3, 30)).astype(np.float32) * 5
    expected = network.forward(torch.tensor(X)).T.numpy()
    found = scores(network.weights(), X, network.architecture)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())  # single precision


def test_huge_inputs_do_not_overflow():
    network, _, X = made()
    assert np.isfinite(scores(network.weights(), X * 1e6, network.architecture)).all()


def test_a_column_that_an_action_does_not_see_changes_nothing_for_it():
    network, masks, X = made(k=4, D=8, share=0.5)
    before = scores(network.weights(), X, network.architecture)
    for i in range(8):
        changed = X.copy()
        changed[:, i] += 3
        moved = np.any(scores(network.weights(), changed, network.architecture) != before, axis=0)
        np.testing.assert_array_equal(moved, masks[:, i])


# The backward pass --------------------------------------------------------------------------------------


def recorded_scores(W, X, architecture):
    """The forward pass again, by operations that torch records: [k, n]."""
    rho = {"sigmoid": torch.sigmoid, "relu": torch.relu, "silu": torch.nn.functional.silu}[architecture.activation]
    H = (X @ W["W1"]).view(len(X), architecture.k, -1)
    for layer in range(1, len(architecture.hidden) + 1):
        H = rho((H if layer == 1 else H @ W[f"W{layer}"]) + W[f"b{layer}"])
    S = H @ W["w"] if architecture.hidden else H[:, :, 0]
    return (S + W["c"]).T


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", sorted(RHO))
@pytest.mark.parametrize("hidden", [(), (7,), (7, 5), (7, 5, 6)])
@pytest.mark.parametrize("k", [1, 4])
def test_slopes_are_those_of_autograd(k, hidden, activation, dtype):
    """Rows change in number between passes, as batches do."""
    network, masks, _ = made(k, 8, hidden, activation, dtype=dtype)
    rng = np.random.default_rng(1)
    for n in (9, 10, 9):
        X, dS = (torch.tensor(rng.normal(size=size), dtype=dtype) for size in ((n, 8), (k, n)))
        W = {name: value.clone().requires_grad_() for name, value in network.W.items()}
        (recorded_scores(W, X, network.architecture) * dS).sum().backward()
        W["W1"].grad *= torch.tensor(np.repeat(masks, network.architecture.first, axis=0).T)
        network.forward(X)
        network.backward(X, dS)
        scale = max(float(value.grad.abs().max()) for value in W.values())
        for name, value in W.items():  # tolerances: of the precision
            rtol = 1e-5 if dtype == torch.float32 else 1e-12
            torch.testing.assert_close(network.G[name], value.grad, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("activation", sorted(RHO))
@pytest.mark.parametrize("hidden", [(), (3,), (3, 4), (3, 4, 2)])
def test_slopes_are_differences_of_the_scores(hidden, activation):
    network, _, X = made(3, 5, hidden, activation, share=2, dtype=torch.float64)
    X, dS = torch.tensor(X, dtype=torch.float64), torch.tensor(np.random.default_rng(2).normal(size=(3, 7)))
    network.forward(X)
    network.backward(X, dS)
    found, step = network.slope.clone(), 1e-6
    for place in range(len(network.weight)):
        ends = []
        for sign in (1, -1):
            network.weight[place] += sign * step
            ends.append(float((network.forward(X) * dS).sum()))
            network.weight[place] -= sign * step
        expected = (ends[0] - ends[1]) / (2 * step)
        assert float(found[place]) == pytest.approx(
            expected, rel=1e-6, abs=1e-7
        )  # differences: step^2 and 1e-16 / step


def test_penalties_see_every_weight_but_the_intercepts():
    network, _, _ = made(3, 5, (4, 6))
    penalised = torch.cat([network.W[name].reshape(-1) for name in ("W1", "W2", "w")])
    torch.testing.assert_close(network.penalised.weight, penalised, rtol=0, atol=0)
    network.penalised.weight.zero_()
    network.penalised.slope.fill_(1)
    assert {name for name, value in network.W.items() if value.any()} == {"b1", "b2", "c"}
    assert {name for name, value in network.G.items() if value.all()} == {"W1", "W2", "w"}


def test_masked_weights_have_no_gradient():
    network, masks, X = made(k=4, D=8, share=0.5)
    network.backward(torch.tensor(X), 2 * network.forward(torch.tensor(X)))
    gradient = network.G["W1"].reshape(8, 4, -1).numpy()
    np.testing.assert_array_equal((gradient != 0).any(axis=2).T, masks)


def test_an_untrained_linear_policy_is_uniform_and_hidden_weights_are_small():
    linear = PolicyNetwork(Architecture(3, 5, ()), np.ones((3, 5), bool))
    assert not linear.forward(torch.ones(2, 5)).any()
    deep = PolicyNetwork(Architecture(3, 50), np.ones((3, 50), bool), torch.Generator().manual_seed(0))
    assert max(abs(value).max() for value in deep.weights().values()) <= 1 / 50**0.5


def test_the_seed_decides_the_start():
    def start(seed):
        architecture = Architecture(3, 5)
        return PolicyNetwork(architecture, np.ones((3, 5), bool), torch.Generator().manual_seed(seed)).weights()["W1"]

    np.testing.assert_array_equal(start(1), start(1))
    assert (start(1) != start(2)).all()


def test_an_action_without_any_feature_still_has_a_base_rate():
    network, _, X = made(share=0.0)
    found = scores(network.weights(), X, network.architecture)
    assert len(np.unique(found[0])) == 3
    # products in single precision may add up in another order in the last rows of a block
    np.testing.assert_allclose(found, np.tile(found[0], (len(X), 1)), rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"k": 0, "D": 2}, "0 actions"),
        ({"k": 2, "D": 0}, "0 columns"),
        ({"k": 2, "D": 2, "hidden": (3, 0)}, "at least 1"),
        ({"k": 2, "D": 2, "activation": "tanh"}, "sigmoid, relu, silu"),
    ],
)
def test_an_impossible_architecture_is_refused(arguments, words):
    with pytest.raises(PonnError, match=words):
        Architecture(**arguments)


def test_rows_and_weights_must_fit():
    network, _, X = made()
    with pytest.raises(PonnError, match="5 design columns"):
        scores(network.weights(), X[:, :4], network.architecture)
    with pytest.raises(PonnError, match="architecture asks"):
        Network(Architecture(3, 5, (4, 5)), network.weights())
    with pytest.raises(PonnError, match="masks"):
        PolicyNetwork(Architecture(3, 5), np.ones((5, 3), bool))


def test_inference_does_not_import_torch():
    code = "import sys, ponn.policy.inference; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
