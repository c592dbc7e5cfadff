"""Criteria and penalties against plain loops, and the paper's claims about them by enumeration."""

from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from ponn.policy.inference import Architecture
from ponn.training.objective import (
    CRITERIA,
    Majorant,
    add_weight_penalties,
    contributes,
    majorant,
    mean_loss,
    outcomes,
    ratio,
    read,
    row_losses,
    score_slopes,
    snips_value,
    validation_loss,
    variance,
)
from ponn.training.policy_network import PolicyNetwork

TINY = oracles.World(
    x=[(0,), (1,)],
    P=[0.3, 0.7],
    p0=[[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]],
    r=[[0.9, 0.4, 0.2], [0.1, 0.5, 0.8]],
    b=[2],
)
LOG_H = [[log(0.2), log(0.5), log(0.3)], [log(0.7), log(0.2), log(0.1)]]  # some policy on TINY's two states


@st.composite
def rows(draw):
    """log h(A_j | x_j), R, w of a log, many rewards 0."""
    n = draw(st.integers(1, 12))
    some = lambda low, high: draw(st.lists(st.floats(low, high), min_size=n, max_size=n))  # noqa: E731
    R = [r if keep > 0.5 else 0.0 for r, keep in zip(some(0.01, 1), some(0, 1), strict=True)]
    return tuple(torch.tensor(one, dtype=torch.float64) for one in (some(-5, -0.01), R, some(1, 50)))


def seen(criterion, R, w, baseline=0.0, A=None):
    """Outcomes; which action was taken matters only where scores are read."""
    return outcomes(criterion, torch.zeros(len(R), dtype=torch.int64) if A is None else A, R, w, baseline)


def literal(criterion, log_h, R, w, M, b):
    """Section 4.3/4.4 and the table of objective.py, one row after the other."""
    total = 0.0
    for j in range(len(R)):
        h = exp(log_h[j])
        if criterion == "logistic":  # log_h is the score, the log-odds of a reward
            chance = h / (1 + h)
            total += -w[j] * (R[j] * log(chance) + (1 - R[j]) * log(1 - chance))
        elif criterion == "cross-entropy":
            total += -R[j] * w[j] * log(h)
        elif criterion == "ips":
            total += -R[j] * min(M, w[j] * h)
        else:
            total += -(R[j] - b) * w[j] * h
    return total / len(R)


@pytest.mark.parametrize("criterion", CRITERIA)
@given(data=rows())
@settings(max_examples=30, deadline=None)
def test_losses_are_those_of_the_loops_and_need_only_the_rows_that_contribute(criterion, data):
    log_h, R, w = data
    n, kept = len(R), torch.tensor(contributes(criterion, R.numpy()))
    expected = literal(criterion, *(one.tolist() for one in data), M=3.0, b=0.3)
    for part in (torch.ones(n, dtype=torch.bool), kept):
        u = row_losses(criterion, log_h[part], seen(criterion, R[part], w[part], 0.3), M=3.0).u
        assert float(mean_loss(u, n)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("criterion", CRITERIA)
@given(data=rows())
@settings(max_examples=30, deadline=None)
def test_row_slopes_are_differences_of_the_row_losses(criterion, data):
    v, R, w = data
    part, step = seen(criterion, R, w, 0.3), 1e-6
    at, above, below = (row_losses(criterion, v + move, part, M=3.0) for move in (0, step, -step))
    smooth = (w * v.exp() - 3).abs() > 1e-3  # away from the clip's corner
    expected = (above.u - below.u) / (2 * step)
    torch.testing.assert_close(at.slope[smooth], expected[smooth], rtol=1e-6, atol=1e-7)  # differences: step^2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [Majorant(), Majorant(0.7, 0.4)])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_score_slopes_are_those_of_autograd(criterion, bound, dtype):
    rng = np.random.default_rng(0)
    n, k, M = 40, 1 if criterion == "logistic" else 5, 4.0
    S = torch.tensor(rng.normal(size=(k, n)) * 2, dtype=dtype)
    A, R = torch.tensor(rng.integers(0, k, n)), torch.tensor(rng.choice([0, 0.4, 1], n), dtype=dtype)
    w = torch.tensor(rng.uniform(1, 20, n), dtype=dtype)
    part = seen(criterion, R, w, 0.3, A)
    free = S.clone().requires_grad_()
    v = free[0] if criterion == "logistic" else torch.log_softmax(free, dim=0)[A, range(n)]
    torch.testing.assert_close(read(criterion, S, part), v.detach())
    ratio = w * v.exp()
    u = {
        "cross-entropy": -R * w * v,
        "ips": -R * ratio.clamp(max=M),
        "snips": -(R - 0.3) * ratio,
        "logistic": w * ((1 + v.exp()).log() - R * v),
    }[criterion]
    (bound.alpha * u + bound.beta * u.square()).sum().backward()
    found = score_slopes(criterion, S, part, bound, M)
    rtol = 1e-5 if dtype == torch.float32 else 1e-10  # of the precision
    torch.testing.assert_close(found.u, u.detach(), rtol=rtol, atol=rtol)
    torch.testing.assert_close(found.slopes, free.grad, rtol=rtol, atol=rtol * float(free.grad.abs().max()))


def test_a_confident_reward_network_has_finite_losses_and_slopes():
    part = seen("logistic", torch.tensor([0.0, 1.0, 0.0]), torch.ones(3))
    u, slope = row_losses("logistic", torch.tensor([1_000.0, -1_000.0, -1_000.0]), part)
    assert u.tolist() == [1_000, 1_000, 0]
    assert slope.tolist() == [1, -1, 0]


@given(data=rows())
@settings(max_examples=30, deadline=None)
def test_the_variance_counts_rows_that_were_left_out(data):
    log_h, R, w = data
    n, kept = len(R), R > 0
    u = row_losses("ips", log_h, seen("ips", R, w), M=3.0).u
    expected = oracles.variance([-R[j] * min(3.0, w[j] * exp(log_h[j])) for j in range(n)])
    assert float(variance(u[kept], n)) == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


def test_no_hidden_layer_and_ips_and_the_variance_penalty_are_poem():
    rng = np.random.default_rng(0)
    n, D, k, M, strength = 40, 4, 3, 2.5, 0.7
    X, A, R = rng.normal(size=(n, D)), rng.integers(0, k, n), rng.choice([0.0, 0.5, 1.0], n)
    w = rng.uniform(1, 8, n)
    network = PolicyNetwork(Architecture(k, D, ()), np.ones((k, D), bool))
    theta, c = rng.normal(size=(k, D)), rng.normal(size=k)
    network.restore({"W1": theta.T.copy(), "c": c})
    u = []  # POEM: h(a|x) proportional to exp(theta_a . x), u = -R min(M, h/p), mean + lambda sqrt(Var / n)
    for j in range(n):
        powers = [exp(sum(theta[a][i] * X[j][i] for i in range(D)) + c[a]) for a in range(k)]
        u.append(-R[j] * min(M, powers[A[j]] / sum(powers) * w[j]))
    expected = oracles.mean(u) + strength * sqrt(oracles.variance(u) / n)

    kept = contributes("ips", R)
    part = seen("ips", torch.tensor(R[kept]), torch.tensor(w[kept]), A=torch.tensor(A[kept]))
    log_h = read("ips", network.forward(torch.tensor(X[kept], dtype=torch.float32)).double(), part)
    found = poem(log_h, part, n, strength, M)
    assert float(found) == pytest.approx(expected, rel=1e-5)  # the network is in single precision


def poem(log_h, rows, n, strength, M=np.inf):
    """mean(u) + lambda sqrt(Var(u) / n) with u_j = -R_j min(M, h(A_j | x_j) / p_j)."""
    u = row_losses("ips", log_h, rows, M).u
    smallest = torch.finfo(u.dtype).tiny  # the root has no slope at 0
    return mean_loss(u, n) + strength * (variance(u, n) / n).clamp(min=smallest).sqrt()


@given(data=rows(), strength=st.floats(0, 5))
@settings(max_examples=40, deadline=None)
def test_the_majorant_touches_poem_and_lies_above_it(data, strength):
    log_h, R, w = data
    n, other, part = len(R), log_h.flip(0) * 0.7, seen("ips", R, w)

    def losses(at):
        return row_losses("ips", at, part)

    def objective(at):
        return poem(at, part, n, strength)

    bound = majorant(losses(log_h).u, n, strength)

    def majorised(at):
        u = losses(at).u
        return mean_loss(bound.alpha * u + bound.beta * u.square(), n)

    here = log_h.clone().requires_grad_()
    objective(here).backward()
    torch.testing.assert_close(bound.times(1 / n).slopes(losses(log_h)), here.grad, rtol=1e-6, atol=1e-9)
    rise = majorised(other) - majorised(log_h)
    if float(variance(losses(log_h).u, n)) > 1e-12:
        assert float(rise) >= float(objective(other) - objective(log_h)) - 1e-9


def test_no_slope_is_nan_where_the_variance_is_zero():
    log_h = torch.zeros(3, requires_grad=True)
    poem(log_h, seen("ips", torch.zeros(3), torch.ones(3)), 3, 1.0).backward()
    assert torch.isfinite(log_h.grad).all()


@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)])
def test_the_slopes_of_the_penalties_are_those_of_autograd(l1, l2):
    W = torch.tensor([1.0, -2.0, 0.0, 3.0], requires_grad=True)
    (l1 * W.abs().sum() + l2 * W.square().sum()).backward()
    slope = torch.full((4,), 5.0)
    add_weight_penalties(W.detach(), slope, l1, l2)
    torch.testing.assert_close(slope, 5 + W.grad)


def test_snips_is_a_weighted_mean_and_does_not_move_with_the_weights_scale():
    log_h = torch.log(torch.tensor([0.5, 0.25, 0.2], dtype=torch.float64))
    R, w = torch.tensor([1.0, 0.0, 0.5]), torch.tensor([2.0, 4.0, 5.0])
    assert float(snips_value(log_h, R, w)) == pytest.approx(0.5)
    assert float(snips_value(log_h, R, 3 * w)) == pytest.approx(0.5)
    assert float(validation_loss("snips", log_h, seen("snips", R, w, 0.9), 3)) == pytest.approx(-0.5)


# By enumeration ------------------------------------------------------------------------------------------


def expectation(criterion):
    """E of the loss of the policy LOG_H, over every log of two rows."""
    total = 0.0
    for probability, logged, states in oracles.every_log(TINY, 2):
        log_h = torch.tensor([LOG_H[s][a] for s, a in zip(states, logged.A, strict=True)], dtype=torch.float64)
        R, p = (torch.tensor(one, dtype=torch.float64) for one in (logged.R, logged.p))
        total += probability * float(mean_loss(row_losses(criterion, log_h, seen(criterion, R, 1 / p)).u, 2))
    return total


def test_the_corrected_cross_entropy_is_unbiased():
    """It estimates the cross-entropy with every reward known (section 4.4)."""
    truth = sum(TINY.P[s] * -TINY.r[s][a] * LOG_H[s][a] for s in range(2) for a in range(3))
    assert expectation("cross-entropy") == pytest.approx(truth, rel=1e-12)


def test_negative_ips_is_unbiased_for_the_value():
    h = [[exp(one) for one in row] for row in LOG_H]
    assert -expectation("ips") == pytest.approx(oracles.true_value(TINY, h), rel=1e-12)


def test_the_cross_entropy_is_least_at_rewards_over_their_sum():
    """A free table of logits on the expected loss over every row: h(a|x) = r(a, x) / sum_a' r(a', x), notes point 9."""
    chance, state, action, R, p = [], [], [], [], []
    for probability, logged, states in oracles.every_log(TINY, 1):
        chance.append(probability)
        state.append(states[0])
        action.append(logged.A[0])
        R.append(logged.R[0])
        p.append(logged.p[0])
    chance, R, p = (torch.tensor(one, dtype=torch.float64) for one in (chance, R, p))
    logits = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS(
        [logits], max_iter=200, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def loss():
        solver.zero_grad()
        log_h = logits.log_softmax(dim=1)[state, action]
        value = (chance * row_losses("cross-entropy", log_h, seen("cross-entropy", R, 1 / p)).u).sum()
        value.backward()
        return value

    solver.step(loss)
    r = np.array(TINY.r)
    found = logits.detach().softmax(dim=1).numpy()
    np.testing.assert_allclose(found, r / r.sum(axis=1, keepdims=True), atol=1e-6)  # where the solver stops


def test_the_ratio_is_one_for_a_fixed_policy():
    """E of mean(h/p) is 1, and per action both means agree, over every log of one row."""
    total, up, down = 0.0, np.zeros(3), np.zeros(3)
    for probability, logged, states in oracles.every_log(TINY, 1):
        S = torch.tensor([LOG_H[states[0]]], dtype=torch.float64).T  # log h is a score of the policy h
        R, p = (torch.tensor(one, dtype=torch.float64) for one in (logged.R, logged.p))
        found = ratio(S, seen("ips", R, 1 / p, A=torch.tensor(logged.A)))
        h = np.exp(LOG_H[states[0]])
        total += probability * found.total
        up += probability * np.array(found.by_action) * h  # n = 1: mean of h(a | x) is h itself
        down += probability * h
    assert total == pytest.approx(1, rel=1e-12)
    np.testing.assert_allclose(up, down, rtol=1e-12)
