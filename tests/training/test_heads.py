"""The network with a head per action: slopes by finite differences, minima, the numpy twin, files that do not fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ponn.errors import PonnError
from ponn.policy.models import Heads, build_model
from ponn.training.reward_network import HeadNetwork, Plan, every_reward, fit_heads, taken_reward, taken_share, value

PLAN = Plan(hidden=(16,), epochs=60, batch=32, learning_rate=1e-2, dropout=0.0, l2=0.0, seed=0)


def rows(n=6, k=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    S, G = (torch.randn(n, k, generator=g, dtype=torch.float64) for _ in range(2))
    return S, torch.arange(n) % k, torch.rand(n, generator=g, dtype=torch.float64), G


LOSSES = {
    "taken_reward": lambda S, A, R, G: taken_reward(S, A, R),
    "taken_share": lambda S, A, R, G: taken_share(S, A, R),
    "every_reward": lambda S, A, R, G: every_reward(S, G.sigmoid()),
    "value": lambda S, A, R, G: value(S, G, 0.3),
}


@pytest.mark.parametrize("name", LOSSES)
def test_slopes_are_those_of_the_loss(name):
    S, A, R, G = rows()
    step, slope = 1e-6, LOSSES[name](S, A, R, G).slope
    for a in range(S.shape[1]):
        up, down = S.clone(), S.clone()
        up[:, a] += step
        down[:, a] -= step
        expected = (LOSSES[name](up, A, R, G).u - LOSSES[name](down, A, R, G).u) / (2 * step)
        torch.testing.assert_close(slope[:, a], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)])
@pytest.mark.parametrize("name", LOSSES)
def test_the_chain_rule_down_to_every_weight(name, hidden):
    _, A, R, G = rows()
    network = HeadNetwork(4, hidden, 3, torch.Generator().manual_seed(1), torch.float64)
    network.weight.add_(0.3 * torch.randn(network.weight.shape, generator=network.generator, dtype=torch.float64))
    X = torch.randn(6, 4, generator=network.generator, dtype=torch.float64)
    layers = network.forward(X)
    network.backward(layers, LOSSES[name](layers[-1], A, R, G).slope)
    step, slope = 1e-6, torch.zeros_like(network.weight)
    for place in range(len(slope)):
        ends = []
        for sign in (1, -1):
            network.weight[place] += sign * step
            ends.append(LOSSES[name](network.forward(X)[-1], A, R, G).u.sum())
            network.weight[place] -= sign * step
        slope[place] = (ends[0] - ends[1]) / (2 * step)
    torch.testing.assert_close(network.slope, slope, rtol=1e-6, atol=1e-7)


def test_dropout_keeps_the_mean_and_passes_slopes_only_through_units_that_speak():
    network = HeadNetwork(3, (400,), 2, torch.Generator().manual_seed(0), torch.float64)
    X = torch.ones(50, 3, dtype=torch.float64)
    network.W["W"].fill_(1.0)
    still, moving = network.forward(X)[1], network.forward(X, 0.4)[1]
    speaking = still > 0
    assert (moving[speaking] == 0).double().mean() == pytest.approx(0.4, abs=0.03)  # 10,000 draws: 6 sd
    torch.testing.assert_close(moving[moving > 0], still[moving > 0] / 0.6)
    layers = network.forward(X, 0.4)
    network.backward(layers, torch.ones(50, 2, dtype=torch.float64), 0.4)
    torch.testing.assert_close(network.G["b1"], 2 * (layers[1] > 0).double().sum(dim=0) / 0.6)


def test_the_minimum_of_value_is_the_softmax_of_the_mean_scores():
    """One case, scores of which only the mean is right: gradient steps end at h = softmax(r / T)."""
    T, r = 0.2, torch.tensor([[0.3, 0.5, 0.6]], dtype=torch.float64)
    noise = torch.tensor([[1.0, -2.0, 1.5], [-1.0, 2.0, -1.5]], dtype=torch.float64)
    S = torch.zeros(1, 3, dtype=torch.float64)
    for _ in range(20_000):
        S -= 0.05 * value(S.expand(2, 3), r + noise, T).slope.mean(dim=0)
    h = (S.sigmoid() / T).softmax(dim=1)
    torch.testing.assert_close(h, (r / T).softmax(dim=1), atol=1e-4, rtol=0)


def test_a_share_network_reads_failures_as_word_for_the_others():
    S, A = torch.zeros(1, 3), torch.tensor([1])
    after_failure = taken_share(S, A, torch.zeros(1)).slope[0]
    assert after_failure[1] > 0
    assert (after_failure[[0, 2]] < 0).all()
    assert torch.equal(taken_reward(S, A, torch.zeros(1)).slope[0] != 0, torch.tensor([False, True, False]))


def test_shares_stay_finite_where_the_network_is_sure():
    found = taken_share(torch.tensor([[200.0, 0.0, -200.0]]), torch.tensor([0]), torch.zeros(1))
    assert torch.isfinite(found.u).all()
    assert torch.isfinite(found.slope).all()


def learned(**changes):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(400, 3, generator=g)
    r = torch.stack([X[:, 0].sigmoid(), (-X[:, 0]).sigmoid()], dim=1)
    plan = replace(PLAN, **changes)
    return fit_heads(X, 2, lambda S, some: every_reward(S, r[some]), torch.ones(400), plan), X, r


def test_a_network_learns_what_it_is_taught_the_same_every_time():
    network, X, r = learned()
    assert (network.scores(X).sigmoid() - r).abs().max() < 0.05
    assert torch.equal(network.weight, learned()[0].weight)
    assert not torch.equal(network.weight, learned(seed=1)[0].weight)


def test_row_weights_decide_what_is_learned():
    X, R = torch.zeros(300, 1), torch.tensor([0.0, 1.0, 1.0]).repeat(100)
    weight = torch.tensor([2.0, 0.5, 0.5]).repeat(100)
    A = torch.zeros(300, dtype=torch.int64)
    network = fit_heads(X, 2, lambda S, some: taken_reward(S, A[some], R[some]), weight, replace(PLAN, epochs=200))
    assert float(network.scores(X)[0, 0].sigmoid()) == pytest.approx(1 / 3, abs=0.02)


def test_a_hopeless_step_is_told():
    with pytest.raises(PonnError, match="diverged 4 times"):
        learned(learning_rate=float("nan"))


# The numpy twin and its file ------------------------------------------------------------------------------


def model(columns=(True, False, True, True)):
    network, X, _ = learned()
    return network.model(np.array(columns), 0.1, promises=True), network, X


def test_numpy_says_what_torch_says_and_unread_columns_do_not_matter():
    found, network, X = model()
    wide = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    wide[:, [0, 2, 3]] = X.numpy()
    np.testing.assert_allclose(found.scores(wide), network.scores(X).sigmoid().numpy(), atol=1e-5)
    wide[:, 1] = 7.0
    np.testing.assert_allclose(found.scores(wide), network.scores(X).sigmoid().numpy(), atol=1e-5)
    np.testing.assert_allclose(found.probabilities(wide).sum(axis=1), 1.0)
    assert found.rewards(wide) is not None
    assert replace(found, promises=False).rewards(wide) is None


def test_a_low_temperature_takes_the_best_a_high_one_anything():
    found, *_ = model()
    X = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    best = found.scores(X).argmax(axis=1)
    cold, warm = (replace(found, temperature=T).probabilities(X) for T in (1e-3, 100.0))
    assert np.array_equal(cold.argmax(axis=1), best)
    assert cold.max(axis=1).min() > warm.max(axis=1).max() - 0.5
    np.testing.assert_allclose(warm, 0.5, atol=0.01)


@pytest.mark.parametrize(
    "damage",
    [
        lambda found, arrays: arrays.pop("b1"),
        lambda found, arrays: arrays.update(W=arrays["W"][:-1]),
        lambda found, arrays: arrays.update(W9=arrays["W"]),
        lambda found, arrays: found.update(temperature=0.0),
        lambda found, arrays: found.update(temperature="warm"),
        lambda found, arrays: found.pop("promises"),
        lambda found, arrays: arrays.update(c=np.full(2, np.nan, np.float32)),
    ],
    ids=["no-b1", "short-W", "another-W", "no-temperature", "text", "no-promise", "not-finite"],
)
def test_what_does_not_fit_is_refused(damage):
    found, *_ = model()
    description, arrays = found.description, dict(found.arrays)
    assert isinstance(build_model("heads", description, arrays), Heads)
    damage(description, arrays)
    with pytest.raises((PonnError, KeyError)):
        build_model("heads", description, arrays)
    with pytest.raises(PonnError, match="expected 4 design columns"):
        found.scores(np.zeros((2, 3), np.float32))
