"""Sensitivity to hidden confounding: equal to brute force, exact in worlds with a real confounder, monotone."""

import json
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import estimator_oracles as oracles
import ponn
from ponn.errors import PonnError
from ponn.evaluation.confounding import doubted, hidden_confounding, what_overturns
from ponn.evaluation.estimators import standard_error, terms, valuation
from ponn.evaluation.intervals import normal_interval
from ponn.evaluation.sensitivity import confounded
from ponn.evaluation.valuation import Asked, Nuisances, Scored, judged, scored, value_of

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
    assert ready.bounds(100.0) == pytest.approx((R.mean(), R.mean()), abs=1e-12)


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


def test_gamma_below_1_is_refused():
    ready = confounded(np.eye(2), np.array([0, 1]), np.ones(2), np.full(2, 0.5))
    for wrong in (0.5, math.nan):
        with pytest.raises(PonnError, match="expected a number of at least 1"):
            ready.bounds(wrong)
    with pytest.raises(PonnError, match=r"has propensity 0\.0"):
        confounded(np.eye(2), np.array([0, 1]), np.ones(2), np.array([0.0, 0.5]))


# Sampling error ---------------------------------------------------------------------------------------------


def drawn(n, rng):
    (h, A, R, p), weight, truth = confounded_world(2.0, 0.4, 7)
    rows = rng.choice(len(A), size=n, p=weight)
    return (h[rows], A[rows], R[rows], p[rows]), truth


def test_bounds_with_sampling_error_hold_the_truth_where_plain_ones_do_not():
    """40 logs of 1,000 rows, level 90 %: at the true strength all but 10 (4 expected at most; by chance 1 in 500)."""
    rng = np.random.default_rng(9)
    hits = np.zeros(2)
    for _ in range(40):
        data, truth = drawn(1_000, rng)
        for which, gamma in enumerate((1.0, 2.0)):
            ready = confounded(*data)
            low = normal_interval(ready.least_value(gamma), 0.9).low
            high = normal_interval(ready.largest_value(gamma), 0.9).high
            hits[which] += low <= truth <= high
    assert hits[0] < 20
    assert hits[1] >= 30


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("end", ["least_value", "largest_value"])
def test_the_influence_of_a_row_is_the_slope_of_the_bound_in_its_weight(form, end):
    """d bound / d weight_j = psi_j / (n weight_j), by a central difference."""
    rng = np.random.default_rng(4)
    n, step = 30, 1e-5
    h, A, R, p = rng.dirichlet([1, 1, 1], n), rng.integers(3, size=n), rng.random(n), rng.uniform(0.1, 0.9, n)
    weight = rng.uniform(0.5, 2, n)

    def bound(w):
        return getattr(confounded(h, A, R, p, weight=w, form=form), end)(2.0)

    found = bound(weight)
    assert found.value == pytest.approx(
        confounded(h, A, R, p, weight=weight, form=form).bounds(2.0)[end == "largest_value"], abs=1e-12
    )
    for j in range(n):
        moved = np.eye(n)[j] * step
        slope = (bound(weight + moved).value - bound(weight - moved).value) / (2 * step)
        assert slope == pytest.approx(found.psi[j] / (n * weight[j]), abs=1e-7)


def test_standard_errors_of_bounds_are_the_spread_of_bounds():
    """300 logs of 500 rows: within 15 % of the standard deviation, whose own error is 4 %."""
    rng = np.random.default_rng(10)
    found = [confounded(*drawn(500, rng)[0]).least_value(2.0) for _ in range(300)]
    spread = np.std([one.value for one in found])
    assert np.mean([standard_error(one.psi) for one in found]) == pytest.approx(spread, rel=0.15)


# In the product ---------------------------------------------------------------------------------------------


def as_scored(data) -> Scored:
    """Rows of the enumerated worlds as a log, with the probabilities of the policy."""
    h, A, R, p = data
    table = {"idle": np.arange(len(A)) % 2, "a": A, "r": R, "p": p}
    log = ponn.read_log(table, action="a", reward="r", propensity="p", reward_range=(0, 1))
    return scored(h, log, Nuisances(log.p0, np.full(h.shape, 0.5), "known", ()))


def test_where_nothing_is_hidden_the_bounds_are_the_value_and_the_verdict():
    one = as_scored(drawn(1_000, np.random.default_rng(11))[0])
    for estimator in ("dr", "snips"):
        asked = Asked(estimator)
        found, value, verdict = doubted(one, 1.0, asked), value_of(one, asked), judged(one, asked)
        assert (found.value.least, found.value.largest) == pytest.approx((value.value, value.value), abs=1e-12)
        assert (found.value.low, found.value.high) == pytest.approx((value.low, value.high), abs=1e-12)
        gain = verdict.difference
        assert (found.difference.low, found.difference.high) == pytest.approx((gain.low, gain.high), abs=1e-12)
        assert (found.breaking_gamma > 1) == (verdict.kind == "better")


def better_policy(n: int, seed: int) -> Scored:
    rng = np.random.default_rng(seed)
    A = rng.integers(2, size=n)
    R = (rng.random(n) < 0.3 + 0.4 * A).astype(float)
    return as_scored((np.tile([0.0, 1.0], (n, 1)), A, R, np.full(n, 0.5)))


def test_better_breaks_where_the_lower_end_meets_zero_and_sooner_with_few_rows():
    strengths = []
    for n in (200, 2_000, 20_000):
        one = better_policy(n, 5)
        gamma = doubted(one, 1.0, Asked()).breaking_gamma
        assert doubted(one, gamma, Asked()).difference.low == pytest.approx(0, abs=1e-5)
        assert doubted(one, 0.99 * gamma, Asked()).difference.low > 0
        strengths.append(gamma)
    assert strengths == sorted(strengths)
    limit = 7 / 3  # untreated rows may then have a mean of 0.3 under treatment, which is what they have without
    assert strengths[-1] == pytest.approx(limit, rel=0.1)
    assert strengths[-1] < limit


def test_a_conclusion_that_nothing_hidden_can_break():
    """Everybody treated had the best outcome, the policy treats all: even the least reward of the others is better."""
    A = np.arange(400) % 2
    always = as_scored((np.tile([0.0, 1.0], (400, 1)), A, A.astype(float), np.full(400, 0.5)))
    assert doubted(always, 1.0, Asked()).breaking_gamma == math.inf
    never = as_scored((np.tile([1.0, 0.0], (400, 1)), A, A.astype(float), np.full(400, 0.5)))
    assert doubted(never, 1.0, Asked()).breaking_gamma == 1


def test_costs_are_bounded_as_costs():
    one = better_policy(1_000, 6)
    plain = doubted(one, 1.5, Asked())
    log = replace(one.log, reward_range=(100.0, 300.0), minimize=True)
    cost = doubted(replace(one, log=log), 1.5, Asked())
    assert (cost.value.least, cost.value.low) == pytest.approx(
        (300 - 200 * plain.value.largest, 300 - 200 * plain.value.high)
    )
    assert (cost.difference.largest, cost.difference.high) == pytest.approx(
        (-200 * plain.difference.least, -200 * plain.difference.low)
    )
    assert cost.breaking_gamma == plain.breaking_gamma


def test_bounds_with_sampling_error_hold_the_truth_at_the_true_strength():
    """150 logs of 500 rows, 95 %: the truth is outside in at most 5 % + 3 standard errors (1.8 points) of them."""
    rng = np.random.default_rng(13)
    outside = naive = 0
    for _ in range(150):
        data, truth = drawn(500, rng)
        one = as_scored(data)
        found, plain = doubted(one, 2.0, Asked("snips")).value, doubted(one, 1.0, Asked("snips")).value
        outside += not found.low <= truth <= found.high
        naive += not plain.low <= truth <= plain.high
    assert outside <= 15
    assert naive > 40


@pytest.mark.parametrize(
    ("gamma", "words"),
    [
        (1.4, "change the odds of an action by 1.4 to overturn"),
        (math.inf, "No unseen cause"),
        (None, "No unseen cause"),
        (1.0, "nothing for an unseen cause to overturn"),
        (1.001, "slightest unseen cause"),
    ],
)
def test_the_strength_that_overturns_in_words(gamma, words):
    assert words in what_overturns(gamma)


def test_hidden_confounding_of_a_log():
    one = better_policy(1_000, 7)
    found = hidden_confounding(one.h, one.log, 1.5, corrections=one.fitted)
    assert found == doubted(one, 1.5, Asked())
    assert "changed the odds of an action by up to 1.5" in str(found)
    told = found.as_json()
    assert json.loads(json.dumps(told, allow_nan=False))["breaking_gamma"] == found.breaking_gamma
    assert replace(found, breaking_gamma=math.inf).as_json()["breaking_gamma"] is None
    with pytest.raises(PonnError, match="expected a number of at least 1"):
        hidden_confounding(one.h, one.log, 0.5)
