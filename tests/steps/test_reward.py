"""Reward models: optimality, shares as outcomes, actions that were hardly taken."""

import numpy as np
import pytest

from ponn.errors import PonnError
from ponn.policy.inference import sigmoid
from ponn.policy.models import LinearRewards, RewardNetwork, build_model, with_action
from ponn.steps.reward import boosted_rewards, both_outcomes, fit_linear_rewards, fit_rewards, logistic_loss


def data(n: int = 600, D: int = 5, k: int = 2, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(np.float32)
    A = rng.integers(0, k, n)
    R = (rng.random(n) < sigmoid(X[:, A[0]] + A.astype(float))).astype(float)
    return X, A, R, np.ones(n)


def test_lr_l1_satisfies_the_optimality_conditions_of_its_objective():
    X, A, R, weight = data()
    l1, tolerance = 0.02, 3e-3  # the solver stops at 1e-4 of a sum over rows
    model, notes = fit_linear_rewards(X, A, R, weight, 2, l1)
    assert not notes
    for a in range(2):
        rows = a == A
        slope = X[rows].T @ (model.rewards(X[rows])[:, a] - R[rows]) / rows.sum()  # of the mean logistic loss
        on, off = model.W[:, a] != 0, model.W[:, a] == 0
        assert np.abs(slope[on] + l1 * np.sign(model.W[on, a])).max() < tolerance
        assert np.abs(slope[off]).max(initial=0.0) <= l1 + tolerance
        assert abs(np.mean(model.rewards(X[rows])[:, a] - R[rows])) < tolerance  # the intercept is not penalised


def test_a_stronger_penalty_keeps_fewer_columns():
    X, A, R, weight = data()
    kept = [np.count_nonzero(fit_linear_rewards(X, A, R, weight, 2, l1)[0].W) for l1 in (0.001, 0.05, 10.0)]
    assert kept[0] > kept[1] > kept[2] == 0


def test_a_share_counts_as_a_success_and_a_failure():
    X, R = np.arange(6.0).reshape(3, 2), np.array([0.25, 1.0, 0.0])
    rows, outcome, w = both_outcomes(X, R, np.array([2.0, 1.0, 1.0]))
    assert outcome.tolist() == [1, 1, 0, 0]
    assert w.tolist() == [0.5, 1.0, 1.5, 1.0]
    assert rows[:, 0].tolist() == [0, 2, 0, 4]


def test_a_weighted_row_is_that_many_rows():
    X, A, R, _ = data(200)
    weight = np.where(np.arange(200) < 50, 3.0, 1.0)
    repeated = np.repeat(np.arange(200), weight.astype(int))
    one = fit_rewards(X, A, R, weight, 2, 1.0)
    two = fit_rewards(X[repeated], A[repeated], R[repeated], np.ones(len(repeated)), 2, 1.0)
    assert np.allclose(one.W, two.W, atol=1e-4)


def test_boosting_counts_rows_by_their_weights_and_equal_weights_change_nothing():
    X, A, R, weight = data()
    plain = boosted_rewards(X, A, R, weight, 3, X, 0)
    assert np.array_equal(boosted_rewards(X, A, R, 3 * weight, 3, X, 0), plain)
    assert (plain[:, 2] == 0).all()  # never taken
    lucky = np.where(R == 1, 9.0, 1.0)
    assert boosted_rewards(X, A, R, lucky, 3, X, 0)[:, :2].mean() > plain[:, :2].mean() + 0.1


def test_actions_without_rows_or_with_one_outcome_have_no_slopes():
    X, _, _, weight = data(50)
    for fit in (lambda *rows: fit_rewards(*rows, 1.0), lambda *rows: fit_linear_rewards(*rows, 0.01)[0]):
        model = fit(X, np.zeros(50, int), np.ones(50), weight, 2)
        r = model.rewards(X)
        assert (r[:, 0] > 0.999).all()
        assert (r[:, 1] < 0.001).all()


def test_the_logistic_loss_is_that_of_the_taken_actions():
    r = np.array([[0.9, 0.1], [0.2, 0.5]])
    expected = -(np.log(0.9) + 0.25 * np.log(0.5) + 0.75 * np.log(0.5)) / 2
    assert logistic_loss(r, np.array([0, 1]), np.array([1.0, 0.25]), np.ones(2)) == pytest.approx(expected)


def test_damaged_reward_models_are_refused():
    good = LinearRewards(np.zeros((3, 2)), np.zeros(2))
    assert build_model("linear-rewards", {}, good.arrays).k == 2
    for arrays in ({"W": np.zeros((3, 2)), "c": np.zeros(3)}, {"W": np.full((3, 2), np.nan), "c": np.zeros(2)}):
        with pytest.raises(PonnError, match="damaged"):
            build_model("linear-rewards", {}, arrays)
    shape = {"k": 1, "D": 4, "hidden": [], "activation": "relu", "actions": 7}
    with pytest.raises(PonnError, match="reward network has"):
        RewardNetwork.build(shape, {"W1": np.zeros((4, 1), np.float32), "c": np.zeros(1, np.float32)})


def test_the_reward_network_reads_the_action_as_columns():
    X = np.array([[1.0, 2.0]], np.float32)
    assert with_action(X, np.array([1]), 3).tolist() == [[1, 2, 0, 1, 0]]
    weights = {"W1": np.array([[0.5], [0.0], [-1.0], [0.0], [2.0]], np.float32), "c": np.zeros(1, np.float32)}
    shape = {"k": 1, "D": 5, "hidden": [], "activation": "relu", "actions": 3}
    model = RewardNetwork.build(shape, weights)
    assert (model.k, model.D) == (3, 2)
    assert model.rewards(X)[0] == pytest.approx(sigmoid(np.array([-0.5, 0.5, 2.5])))
    assert model.probabilities(X).tolist() == [[0, 0, 1]]
