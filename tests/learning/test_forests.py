"""Forests learn what their criteria say: exact on logs that are the population, and against plain loops."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ponn.learning.forests
from ponn.errors import PonnError
from ponn.learning.forests import direct_forest, ipw_forest, limited, offset_tree
from ponn.policy.trees import duels

GROWTH = {"trees": 5, "leaf": 1, "columns": 0.5}


def learn_offset(X, A, R, w, k, seed, folds=2, **growth):
    return offset_tree(X, A, R, w, k, seed, folds=folds, **growth)


METHODS = (ipw_forest, direct_forest, learn_offset)


def population(k, seed, copies=1):
    """A log that is its own population: every cell, action and outcome once, with its probability as row weight.

    Returns X, A, R, 1/p, the probability of each row, the cells and r [cells, k].
    """
    rng = np.random.default_rng(seed)
    cells = np.array(list(product([0, 1, 2], [0, 1])), np.float32)
    r = rng.permuted(np.tile(np.linspace(0.1, 0.9, k), (len(cells), 1)), axis=1)  # gaps of at least 0.8 / (k - 1)
    p = rng.dirichlet(np.full(k, 2.0), len(cells)) * 0.9 + 0.1 / k
    mass = rng.dirichlet(np.full(len(cells), 5.0))
    events = [(x, a, y) for x in range(len(cells)) for a in range(k) for y in (0, 1)] * copies
    x, A, R = (np.array(one) for one in zip(*events, strict=True))
    chance = mass[x] * p[x, A] * np.where(R, r[x, A], 1 - r[x, A]) / copies
    return cells[x], A, R.astype(float), 1 / p[x, A], chance, cells, r


def noisy(n=300, k=4, D=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(np.float32)
    A = rng.integers(0, k, n)
    R = (rng.random(n) < np.where(A == np.digitize(X[:, 0], [-1, 0, 1]) % k, 0.9, 0.1)).astype(float)
    return X, A, R, np.full(n, float(k)) * (1 + rng.random(n)), k


# Exact on the population ----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3, 5])
def test_ipw_forest_gives_each_action_its_share_of_the_reward(k):
    """The minimiser of the corrected cross-entropy: h(a | x) = r(a, x) / sum_a' r(a', x), whatever the logging did."""
    X, A, R, w, chance, cells, r = population(k, seed=k)
    found = ipw_forest(X, A, R, w * chance, k, 0, **GROWTH).probabilities(cells)
    np.testing.assert_allclose(found, r / r.sum(axis=1, keepdims=True), rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_direct_forest_predicts_the_expected_reward_and_takes_the_best(k):
    X, A, R, _, chance, cells, r = population(k, seed=k)
    model = direct_forest(X, A, R, chance, k, 0, **GROWTH)
    np.testing.assert_allclose(model.rewards(cells), r, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(model.probabilities(cells).argmax(axis=1), r.argmax(axis=1))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_offset_tree_finds_the_best_action_of_every_cell(k, seed):
    X, A, R, w, chance, cells, r = population(k, seed)
    found = learn_offset(X, A, R, w * chance, k, seed, folds=1, **GROWTH).probabilities(cells)
    np.testing.assert_array_equal(found.argmax(axis=1), r.argmax(axis=1))


@pytest.mark.parametrize("k", [2, 3, 5])
def test_offset_tree_finds_it_out_of_fold_too(k):
    """400 copies of the population, so that each fold is nearly one; a duel's gap of 0.2 is then over 6 sd."""
    X, A, R, w, chance, cells, r = population(k, seed=1, copies=400)
    found = learn_offset(X, A, R, w * chance, k, 0, **GROWTH).probabilities(cells)
    np.testing.assert_array_equal(found.argmax(axis=1), r.argmax(axis=1))


@pytest.mark.parametrize("method", METHODS)
def test_the_zero_of_weights_is_absence(method):
    X, A, R, w, k = noisy()
    off = np.arange(len(A)) % 3 == 0
    first = method(X, A, R, np.where(off, 0, w), k, 0, **GROWTH)
    again = method(X[~off], A[~off], R[~off], w[~off], k, 0, **GROWTH)
    np.testing.assert_array_equal(first.probabilities(X), again.probabilities(X))


# The offset tree as plain loops ---------------------------------------------------------------------------


def offset_oracle(cells, A, R, w, k):
    """Beygelzimer and Langford's algorithm with a table as classifier: cell → importance for left and right, per duel.

    Without a forest: a fully grown tree says of a cell it saw what the importance there says.
    """
    tables = {}

    def wins(a, x, top):
        """Does action a win every duel below `top` at x?"""
        inside = [one for one in tables if top[0] <= one[0] and one[2] <= top[1]]
        return all(says(tables[one], x) == (a >= one[1]) for one in inside if one[0] <= a < one[2])

    def learn(low, high):
        if high - low < 2:
            return
        middle = (low + high) // 2
        learn(low, middle)
        learn(middle, high)
        table = {}
        for x, a, reward, weight in zip(cells, A, R, w, strict=True):
            if low <= a < high and wins(a, x, (low, middle) if a < middle else (middle, high)):
                right = int((a >= middle) == (reward >= 0.5))
                table.setdefault(x, [0.0, 0.0])[right] += abs(reward - 0.5) * weight
        tables[low, middle, high] = table

    def says(table, x):
        return table[x][1] > table[x][0]

    learn(0, k)
    return tables, says


def oracle_action(tables, says, x, k):
    """The winner at x; None where a duel on the way never saw the cell."""
    low, high = 0, k
    while high - low > 1:
        middle = (low + high) // 2
        table = tables[low, middle, high]
        if x not in table:
            return None
        low, high = (middle, high) if says(table, x) else (low, middle)
    return low


@given(n=st.integers(1, 80), k=st.integers(2, 6), levels=st.integers(1, 4), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_offset_tree_is_the_algorithm_as_plain_loops(n, k, levels, seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, levels, (n, 2)).astype(np.float32)
    A = np.r_[np.arange(k), rng.integers(0, k, n)]  # every action once: none is set aside as never seen
    X = np.concatenate([rng.integers(0, levels, (k, 2)).astype(np.float32), X])
    R, w = rng.random(n + k), 1 + 5 * rng.random(n + k)
    cells = [tuple(x) for x in X]
    tables, says = offset_oracle(cells, A, R, w, k)
    found = learn_offset(X, A, R, w, k, seed, folds=1, **GROWTH).probabilities(X).argmax(axis=1)
    expected = [oracle_action(tables, says, x, k) for x in cells]
    assert [a for a, b in zip(found, expected, strict=True) if b is not None] == [b for b in expected if b is not None]


def test_bad_rows_get_past_a_duel_only_out_of_fold():
    """Where a forest repeats its rows, only rewarded rows reach the final."""
    X, A, R, w, k = noisy(n=800)
    reached = {}
    for folds in (1, 2):
        seen = []
        learn = ponn.learning.forests.learn_duel

        def spy(X, wins, importance, *rest, seen=seen, learn=learn):
            seen.append(importance)
            return learn(X, wins, importance, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ponn.learning.forests, "learn_duel", spy)
            learn_offset(X, A, R, w, k, 0, folds=folds, **GROWTH)
        reached[folds] = len(seen[-1])  # the final stands first in the tree and is learned last
    assert reached[1] == R.sum()
    assert reached[2] > 1.3 * R.sum()


# Learning -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_gives_the_same_trees_whatever_the_threads_and_another_seed_gives_others(method):
    X, A, R, w, k = noisy()
    first, again, other = (method(X, A, R, w, k, seed, threads=t, **GROWTH) for seed, t in ((1, 1), (1, 2), (2, 1)))
    for name in first.arrays:
        np.testing.assert_array_equal(first.arrays[name], again.arrays[name])
    assert not np.array_equal(first.arrays["threshold"], other.arrays["threshold"])


@pytest.mark.parametrize("method", METHODS)
def test_forests_find_the_best_actions(method):
    X, A, R, w, k = noisy(n=3_000)
    X_new, *_ = noisy(n=1_000, seed=1)
    best = np.digitize(X_new[:, 0], [-1, 0, 1]) % k
    found = method(X, A, R, w, k, 0, trees=30, leaf=5, columns=1.0).probabilities(X_new).argmax(axis=1)
    assert np.mean(found == best) > 0.85


@pytest.mark.parametrize("method", METHODS)
def test_an_action_never_taken_is_never_chosen(method):
    X, A, R, w, k = noisy()
    for absent in ([1], [0, 1], [0, 2], [0, 1, 3]):
        rows = ~np.isin(A, absent)
        model = method(X[rows], A[rows], R[rows], w[rows], k, 0, **GROWTH)
        h = model.probabilities(X)
        assert not h[:, absent].any()
        np.testing.assert_allclose(h.sum(axis=1), 1, rtol=0, atol=1e-12)
        rewards = model.rewards(X)
        assert rewards is None or not rewards[:, absent].any()


def test_an_action_never_rewarded_gets_no_vote():
    X, A, R, w, k = noisy()
    h = ipw_forest(X, A, np.where(A == 2, 0, R), w, k, 0, **GROWTH).probabilities(X)
    assert not h[:, 2].any()
    assert h[:, [0, 1, 3]].any(axis=0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reward", [0.0, 0.5, 1.0])
def test_a_log_of_one_row(method, reward):
    X, A, R, w = np.ones((1, 2), np.float32), np.array([2]), np.array([reward]), np.array([3.0])
    if method is ipw_forest and not reward:
        with pytest.raises(PonnError, match="None of the 1 training rows has a reward and a weight above 0"):
            method(X, A, R, w, 4, 0, **GROWTH)
        return
    model = method(X, A, R, w, 4, 0, **GROWTH)
    assert model.probabilities(np.zeros((2, 2))).argmax(axis=1).tolist() == [2, 2]


def test_without_any_row_of_weight_there_is_nothing_to_learn():
    X, A, R, w, k = noisy()
    for method in METHODS:
        with pytest.raises(PonnError, match="None of the 300 training rows"):
            method(X, A, R, 0 * w, k, 0, **GROWTH)


def test_duels_are_learned_in_the_order_in_which_they_are_decided():
    """Actions 0 and 3 are good where x is below or above 0, 1 and 2 never: each duel gets the forest of its own."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2_000, 1)).astype(np.float32)
    A = rng.integers(0, 4, 2_000)
    R = np.where(A == np.where(X[:, 0] < 0, 0, 3), 1.0, 0.0)
    model = learn_offset(X, A, R, np.full(2_000, 4.0), 4, 0, **GROWTH)
    right = model.forests.means(np.array([[-1.0], [1.0]]))[:, :, 0] > 0.5
    final, left, right_half = (duels(4).index(one) for one in ((0, 2, 4), (0, 1, 2), (2, 3, 4)))
    assert right[:, final].tolist() == [False, True]
    assert not right[0, left]
    assert right[1, right_half]


def test_large_logs_get_larger_leaves(monkeypatch):
    assert limited(GROWTH, 1_000) == GROWTH
    assert limited({**GROWTH, "trees": 100}, 5_000_000)["leaf"] == 120
    assert limited({**GROWTH, "leaf": 500}, 5_000_000)["leaf"] == 500
    monkeypatch.setattr(ponn.learning.forests, "MOST_VALUES", 400)
    X, A, R, w, k = noisy()
    for method in METHODS:
        assert method(X, A, R, w, k, 0, **GROWTH).forests.value.size <= 400


@pytest.mark.parametrize("method", METHODS)
def test_an_action_whose_rows_weigh_nothing_is_never_chosen(method):
    X, A, R, w, k = noisy()
    assert not method(X, A, R, np.where(A == 0, 0, w), k, 0, **GROWTH).probabilities(X)[:, 0].any()


@pytest.mark.parametrize("folds", [1, 2, 4])
def test_a_duel_with_one_row_that_says_anything(folds):
    """A reward of 1/2 speaks for neither side, so one row is left; there is no other to learn from out of fold."""
    X, w = np.zeros((2, 1), np.float32), np.ones(2)
    for A, R, winner in (([0, 1], [1, 0.5], 0), ([0, 1], [0, 0.5], 1), ([1, 0], [1, 0.5], 1)):
        model = learn_offset(X, np.array(A), np.array(R), w, 2, 0, folds=folds, **GROWTH)
        assert model.probabilities(X).argmax(axis=1).tolist() == [winner] * 2
