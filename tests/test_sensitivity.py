"""Sensitivity to hidden confounding: equal to brute force, exact in worlds with a real confounder, monotone."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import estimator_oracles as oracles
from ponn.errors import PonnError
from ponn.estimators import terms, valuation
from ponn.intervals import bootstrap
from ponn.sensitivity import confounded, sensitivity_interval

quick = settings(max_examples=40, deadline=None)
gammas = st.sampled_from([1.0, 1.2, 2.0, 5.0])
FORMS = ("changed", "whole")


@st.composite
def logs(draw, most_rows=8):
    """Logs with rows of both actions, ties among rewards, uneven weights."""
    n = draw(st.integers(2, most_rows))
    return oracles.Log(
        h=[[q, 1 - q] for q in (draw(st.floats(0.05, 0.95)) for _ in range(n))],
        A=[0, 1, *(draw(st.integers(0, 1)) for _ in range(n - 2))],
        R=[draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])) for _ in range(n)],
        p=[draw(st.floats(0.05, 0.95)) for _ in range(n)],
        Q=[[0.0, 0.0]] * n,
        weight=[draw(st.floats(0.2, 3)) for _ in range(n)],
    )


def of_log(log, form):
    h, A, R, p, _, weight = (np.array(column) for column in log)
    return confounded(h, A, R, p, weight=weight, form=form)


def confounded_world(strength, effect, seed):
    """Every (x, u, a, R) of a world with a hidden u, as weighted rows, and the true value of a policy.

    e(1 | x, u) has odds Gamma0 times (u = 1) and 1/Gamma0 times (u = 0) the odds of p(1 | x), and P(u | x) is what
    makes p(1 | x) their mean: the model holds with exactly this Gamma0. u moves the reward by `effect`.
    """
    rng = np.random.default_rng(seed)
    X = 3
    p1 = rng.uniform(0.2, 0.8, X)
    odds = p1 / (1 - p1)
    e1 = np.stack([odds / strength / (1 + odds / strength), odds * strength / (1 + odds * strength)], axis=1)  # [x, u]
    q = (p1 - e1[:, 0]) / (e1[:, 1] - e1[:, 0]) if strength > 1 else np.full(X, 0.5)
    P_u = np.stack([1 - q, q], axis=1)
    base = rng.uniform(0.2, 0.8, (X, 2))
    r = np.clip(base[:, None, :] + effect * np.array([-1, 1])[None, :, None], 0, 1)  # [x, u, a]
    policy = rng.uniform(0, 1, X)
    policy = np.stack([1 - policy, policy], axis=1)
    rows, weight = [], []
    for x, u, a, R in product(range(X), (0, 1), (0, 1), (0, 1)):
        taken = e1[x, u] if a else 1 - e1[x, u]
        rows.append((x, a, R))
        weight.append(P_u[x, u] / X * taken * (r[x, u, a] if R else 1 - r[x, u, a]))
    truth = sum(P_u[x, u] / X * policy[x, a] * r[x, u, a] for x, u, a in product(range(X), (0, 1), (0, 1)))
    x, A, R = np.array(rows).T
    p = np.where(A == 1, p1[x], 1 - p1[x])
    return (policy[x], A, R.astype(float), p), np.array(weight), truth


# Equal to plain loops ---------------------------------------------------------------------------------------


@quick
@given(logs(), gammas)
def test_bounds_equal_the_extremes_over_all_vertices(log, gamma):
    for form, oracle in (("changed", oracles.changed_value), ("whole", oracles.whole_value)):
        everything = [oracle(log, r) for r in oracles.vertices(len(log.A), gamma)]
        assert of_log(log, form).bounds(gamma) == pytest.approx((min(everything), max(everything)), abs=1e-12)


@quick
@given(logs())
def test_gamma_1_is_self_normalised_ips_exactly(log):
    h, A, R, p, _, weight = (np.array(column) for column in log)
    snips = valuation("snips", terms(h, A, R, p, None, weight)).value
    assert of_log(log, "whole").bounds(1.0) == pytest.approx((snips, snips), abs=1e-13)
    low, high = of_log(log, "changed").bounds(1.0)
    assert low == pytest.approx(high, abs=1e-13)


# Laws -------------------------------------------------------------------------------------------------------


@quick
@given(logs(), st.floats(1, 20), st.floats(1, 20), st.sampled_from(FORMS))
def test_bounds_grow_with_gamma(log, one, other, form):
    small, large = sorted((one, other))
    low, high = of_log(log, form).bounds(small)
    lower, higher = of_log(log, form).bounds(large)
    assert lower <= low + 1e-12
    assert low <= high + 1e-12
    assert high <= higher + 1e-12


@quick
@given(logs())
def test_the_changed_form_tends_to_what_holds_under_any_confounding(log):
    """Manski: the rows in which the policy does as was done are known, every other reward lies in [0, 1]."""
    h, A, R, _, _, weight = (np.array(column) for column in log)
    agree = h[np.arange(len(A)), A]
    known, rest = (np.average(x, weights=weight) for x in (agree * R, 1 - agree))
    low, high = of_log(log, "changed").bounds(1e6)
    assert known - 1e-9 <= low
    assert high <= known + rest + 1e-9


def test_rewards_turned_round_turn_the_bounds_round():
    (h, A, R, p), weight, _ = confounded_world(2.0, 0.2, 1)
    for form in FORMS:
        low, high = confounded(h, A, R, p, weight=weight, form=form).bounds(3.0)
        turned = confounded(h, A, 1 - R, p, weight=weight, form=form).bounds(3.0)
        assert turned == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_an_action_that_was_never_logged_may_be_worth_anything():
    h, A, R = np.tile([0.5, 0.5], (4, 1)), np.zeros(4, int), np.array([0, 1, 1, 1.0])
    for p in (np.ones(4), np.full(4, 0.5)):
        assert confounded(h, A, R, p).bounds(1.0) == pytest.approx((0.375, 0.875))


def test_current_practice_itself_is_beyond_doubt():
    """A policy that does what was done, row by row: no weight is needed, whatever is hidden."""
    rng = np.random.default_rng(2)
    A, R = rng.integers(3, size=50), rng.random(50)
    ready = confounded(np.eye(3)[A], A, R, rng.uniform(0.1, 0.9, 50))
    assert ready.difference_bounds(100.0) == pytest.approx((0, 0), abs=1e-12)


# A real confounder ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strength", [1.0, 1.5, 3.0])
def test_the_bounds_hold_the_truth_exactly_at_the_true_strength(form, strength):
    """Whole worlds as weighted rows: no sampling. What nothing-hidden says is wrong in them."""
    wrong = 0
    for seed in range(40):
        data, weight, truth = confounded_world(strength, 0.2, seed)
        ready = confounded(*data, weight=weight, form=form)
        low, high = ready.bounds(strength)
        assert low - 1e-12 <= truth <= high + 1e-12
        wrong += abs(ready.bounds(1.0)[0] - truth) > 0.003
    assert wrong == 0 if strength == 1 else wrong > 20


def test_the_bounds_are_not_idle():
    """Rewards that are u itself: with half the strength some truths fall outside, with the strength none does."""
    outside = 0
    for seed in range(40):
        data, weight, truth = confounded_world(3.0, 1.0, seed)
        low, high = confounded(*data, weight=weight).bounds(3.0)
        assert low - 1e-12 <= truth <= high + 1e-12
        low, high = confounded(*data, weight=weight).bounds(1.5)
        outside += not low <= truth <= high
    assert outside >= 10


def test_what_is_known_makes_the_changed_form_narrower():
    """In whole worlds: 12 % narrower on average. The two are relaxed differently, so it need not be inside."""
    shares = []
    for seed in range(40):
        data, weight, _ = confounded_world(2.0, 0.2, seed)
        whole, changed = (confounded(*data, weight=weight, form=form).bounds(2.0) for form in ("whole", "changed"))
        shares.append((changed[1] - changed[0]) / (whole[1] - whole[0]))
    assert max(shares) < 0.95
    assert np.mean(shares) < 0.9


# Where the conclusion breaks --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_breaking_gamma_is_where_the_lower_bound_meets_current_practice(form):
    rng = np.random.default_rng(3)
    A = rng.integers(2, size=400)
    R = (rng.random(400) < 0.3 + 0.4 * A).astype(float)
    ready = confounded(np.tile([0.0, 1.0], (400, 1)), A, R, np.full(400, 0.5), form=form)
    gamma = ready.breaking_gamma()
    assert 1.5 < gamma < 10
    assert ready.difference_bounds(gamma)[0] == pytest.approx(0, abs=1e-9)
    assert ready.difference_bounds(0.999 * gamma)[0] > 0
    worse = confounded(np.tile([1.0, 0.0], (400, 1)), A, R, np.full(400, 0.5), form=form)
    assert worse.breaking_gamma() == 1


def test_a_conclusion_that_nothing_hidden_can_break():
    """Everybody treated had the best outcome, the policy treats all: even the least reward of the others is better."""
    A, R = np.array([0, 0, 1, 1]), np.array([0.0, 0.0, 1.0, 1.0])
    always = confounded(np.tile([0.0, 1.0], (4, 1)), A, R, np.full(4, 0.5))
    assert always.breaking_gamma() == math.inf


def test_gamma_below_1_is_refused():
    ready = confounded(np.eye(2), np.array([0, 1]), np.ones(2), np.full(2, 0.5))
    for wrong in (0.5, math.nan):
        with pytest.raises(PonnError, match="expected a number of at least 1"):
            ready.bounds(wrong)
    with pytest.raises(PonnError, match=r"has propensity 0\.0"):
        confounded(np.eye(2), np.array([0, 1]), np.ones(2), np.array([0.0, 0.5]))


# Bootstrap --------------------------------------------------------------------------------------------------


def drawn(n, rng):
    (h, A, R, p), weight, truth = confounded_world(2.0, 0.4, 7)
    rows = rng.choice(len(A), size=n, p=weight)
    return (h[rows], A[rows], R[rows], p[rows]), truth


def test_sensitivity_intervals_are_quantiles_of_the_bounds():
    data, _ = drawn(200, np.random.default_rng(6))
    h, A, R, p = data
    weight = np.random.default_rng(7).uniform(0.5, 2, 200)
    group = np.arange(200) // 2
    found = sensitivity_interval(*data, 2.0, 0.9, repetitions=50, seed=8, weight=weight, group=group)

    def bounds(rows):
        return confounded(h[rows], A[rows], R[rows], p[rows], weight=weight[rows]).bounds(2.0)

    replicates = bootstrap(bounds, 200, 50, 8, group)
    assert found[:2] == pytest.approx((np.quantile(replicates[:, 0], 0.05), np.quantile(replicates[:, 1], 0.95)))
    assert found[2:] == ("sensitivity", 0.9)
    gain = sensitivity_interval(*data, 2.0, 0.9, repetitions=50, seed=8, minus_logging=True)
    assert gain.low < found.low - R.mean() + 0.1
    assert gain.high < found.high


def test_sensitivity_intervals_cover_the_truth_where_plain_ones_do_not():
    """40 logs of 1,000 rows, level 90 %: at the true strength all but 10 (4 expected at most; by chance 1 in 500)."""
    rng = np.random.default_rng(9)
    hits = np.zeros(2)
    for seed in range(40):
        data, truth = drawn(1_000, rng)
        for which, gamma in enumerate((1.0, 2.0)):
            low, high, *_ = sensitivity_interval(*data, gamma, 0.9, repetitions=40, seed=seed)
            hits[which] += low <= truth <= high
    assert hits[0] < 20
    assert hits[1] >= 30
