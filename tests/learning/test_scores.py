"""Doubly robust scores: equal to plain loops, and unbiased by enumeration where either model is right."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponn.evaluation.estimators import doubly_robust, standard_error, terms
from ponn.learning.dr.scores import doubly_robust_scores, gain, policy_value


def drawn(n, k, seed):
    rng = np.random.default_rng(seed)
    return rng.random((n, k)), rng.integers(0, k, n), rng.random(n), rng.uniform(0.05, 1.0, n), rng


@given(st.integers(1, 12), st.integers(2, 5), st.integers(0, 1_000))
@settings(max_examples=40, deadline=None)
def test_scores_equal_the_plain_loop(n, k, seed):
    Q, A, R, p, _ = drawn(n, k, seed)
    G = doubly_robust_scores(Q, A, R, 1 / p)
    for j, a in product(range(n), range(k)):
        expected = Q[j, a]
        if A[j] == a:
            expected += (R[j] - Q[j, a]) / p[j]
        assert G[j, a] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("right", ["propensities", "rewards", "neither"])
def test_scores_are_unbiased_if_either_model_is_right(right):
    """The mean over every (action, outcome) of one case, weighted by its probability, is r(a): exact, no sampling."""
    rng = np.random.default_rng(0)
    k = 4
    p, r = rng.dirichlet(np.full(k, 3.0)), rng.random(k)
    p_used = p if right == "propensities" else rng.dirichlet(np.full(k, 3.0))
    Q = r if right == "rewards" else rng.random(k)
    mean = np.zeros(k)
    for a, y in product(range(k), (0.0, 1.0)):
        chance = p[a] * (r[a] if y else 1 - r[a])
        G = doubly_robust_scores(Q[None], np.array([a]), np.array([y]), np.array([1 / p_used[a]]))
        mean += chance * G[0]
    assert (np.abs(mean - r).max() < 1e-14) == (right != "neither")


def test_a_policys_value_is_that_of_the_doubly_robust_estimator():
    Q, A, R, p, rng = drawn(200, 3, 1)
    h, weight = rng.dirichlet(np.ones(3), 200), rng.random(200)
    found = policy_value(h, doubly_robust_scores(Q, A, R, 1 / p), weight)
    expected = doubly_robust(terms(h, A, R, p, Q, weight))
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    np.testing.assert_allclose(found.psi, expected.psi, atol=1e-12)


def test_a_gain_is_paired_and_counts_groups_as_one():
    Q, A, R, p, rng = drawn(100, 3, 2)
    G = doubly_robust_scores(Q, A, R, 1 / p)
    one, two = (np.eye(3)[rng.integers(0, 3, 100)] for _ in range(2))
    same = gain(one, one, G, None, None)
    assert (same.value, same.error, same.clear) == (0.0, 0.0, False)
    found = gain(one, two, G, None, None)
    difference = np.sum((one - two) * G, axis=1)
    assert found.value == pytest.approx(difference.mean())
    assert found.error == pytest.approx(difference.std(ddof=1) / 10)
    doubled = gain(np.repeat(one, 2, 0), np.repeat(two, 2, 0), np.repeat(G, 2, 0), None, np.repeat(np.arange(100), 2))
    assert doubled.error == pytest.approx(standard_error(difference - difference.mean()))
