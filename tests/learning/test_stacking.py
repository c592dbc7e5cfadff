"""Reward models: calibration and shares against known answers, honesty of the folds, actions that are hardly there."""

from dataclasses import replace

import numpy as np
import pytest

from ponn.learning.dr import stacking
from ponn.learning.dr.pieces import Pieces
from ponn.learning.dr.stacking import (
    COMPONENTS,
    MEMBERS,
    TEACHERS,
    Part,
    Rows,
    calibrated,
    cross_fit,
    fit_kind,
    growth,
    lent,
    likeliest_shares,
    log_odds,
    logistic_losses,
    mean_loss,
    mixture,
    network_rewards,
    stacked,
    together,
    union,
    with_components,
    worthwhile,
)
from ponn.methods import settings_of
from ponn.policy.inference import sigmoid, softmax
from ponn.training.reward_network import fit_heads, taken_share

SMALL = settings_of("ponn-dr", trees=5, epochs=3, hidden=(8,))


def rows(n=180, D=4, k=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(np.float32)
    A = rng.integers(0, k, n)
    R = (rng.random(n) < sigmoid(2.0 * X[:, 0] * (A - 1))).astype(float)
    return Rows(X, A, R, rng.uniform(0.5, 1.5, n), k)


def part(given, f=None, seed=0):
    f = np.ones((given.k, given.X.shape[1]), bool) if f is None else f
    return Part(given, given.X, np.arange(len(given.A)), f, seed, SMALL)


def outcomes(q, R=None, weight=None):
    """Rows of which only the rewards matter."""
    n = len(q)
    return Rows(np.zeros((n, 1)), np.zeros(n, int), q if R is None else R, np.ones(n) if weight is None else weight, 2)


# Calibration and shares -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("slope", "intercept"), [(0.4, 0.0), (1.0, 0.0), (2.0, -0.7), (0.05, 2.0)])
def test_calibration_finds_the_slope_and_intercept_that_made_the_rewards(slope, intercept):
    """Rewards are their own expectation, so nothing is random; the prior worth one row moves the answer by 1/n."""
    q = np.linspace(0.02, 0.98, 5_000)
    R = sigmoid(slope * log_odds(q) + intercept)
    found = calibrated(q, outcomes(q, R))
    assert (found.slope, found.intercept) == pytest.approx((slope, intercept), abs=5e-3)
    np.testing.assert_allclose(found(q), R, atol=2e-3)


def test_calibration_of_the_few_stays_near_what_was_predicted_and_never_turns_the_order_round():
    q = np.array([0.3, 0.6])
    assert calibrated(q, outcomes(q, np.array([0.0, 1.0]))).slope < 4
    wrong = np.linspace(0.1, 0.9, 200)
    rare = calibrated(wrong, outcomes(wrong, 0.2 * (1 - wrong)))
    assert rare.slope == 0
    assert rare(wrong) == pytest.approx(np.full(200, 0.1), abs=0.003)  # what is left is the mean
    extreme = np.repeat([0.0, 1.0], 50)
    found = calibrated(extreme, outcomes(extreme, np.full(100, 0.5)))
    assert found(extreme) == pytest.approx(np.full(100, 0.5), abs=0.02)


def test_shares_are_those_of_the_smallest_loss():
    rng = np.random.default_rng(0)
    R, weight = (rng.random(400) < 0.4).astype(float), rng.uniform(0.2, 2.0, 400)
    q = np.clip(np.column_stack([0.7 * R + 0.2 * rng.random(400), rng.random(400), np.full(400, 0.4)]), 0.05, 0.95)
    given = outcomes(R, R, weight)
    share = likeliest_shares(q, given, np.zeros(q.shape[1]))
    assert share.min() >= 0
    assert share.sum() == pytest.approx(1)
    grid = [(a, b, 1 - a - b) for a in np.linspace(0, 1, 41) for b in np.linspace(0, 1 - a, 41)]
    best = min(mean_loss(q @ np.array(one), given) for one in grid)
    assert mean_loss(q @ share, given) <= best + 1e-6


def test_a_useless_kind_gets_no_share():
    R = np.tile([0.0, 1.0], 500)
    q = np.column_stack([np.where(R > 0, 0.9, 0.1), np.where(R > 0, 0.2, 0.8)])
    assert likeliest_shares(q, outcomes(R, R), np.zeros(q.shape[1]))[1] < 1e-6


def test_where_the_rows_say_nothing_the_prior_decides_and_where_they_speak_it_hardly_counts():
    """Kinds that predict the same: the shares are the prior's. A useless kind with a prior of 5 rows gets 5 of n."""
    R = np.tile([0.0, 1.0], 500)
    same = np.column_stack([np.full(1_000, 0.5)] * 3)
    shares = likeliest_shares(same, outcomes(R, R), np.array([30.0, 10.0, 0.0]))
    assert shares == pytest.approx([0.75, 0.25, 0.0], abs=1e-6)
    q = np.column_stack([np.where(R > 0, 0.2, 0.8), np.where(R > 0, 0.9, 0.1)])
    assert 0 < likeliest_shares(q, outcomes(R, R), np.array([5.0, 0.0]))[0] < 0.01


def test_kinds_without_a_share_in_the_first_fold_are_given_up_but_not_what_others_learn_from():
    given = rows(400)
    j, taken = np.arange(400), np.zeros((400, 3))
    taken[j, given.A] = given.R
    good, useless = np.clip(taken, 0.1, 0.9), np.clip(1 - taken, 0.1, 0.9)
    found = dict.fromkeys(MEMBERS, useless) | {"boosting": good}
    assert worthwhile(found, given) == ["linear", "boosting"]
    assert worthwhile(found | {"boosting": useless, "second forest": good}, given) == [
        *("linear", "forest", "reward network", "share network", "second forest")
    ]
    assert worthwhile(found | {"boosting": useless, "share forest": good}, given) == [
        *("linear", "forest", "share network", "share forest")
    ]


# Folds ----------------------------------------------------------------------------------------------------


def test_honest_predictions_come_from_the_rows_own_fold_and_the_others_are_averaged():
    given, fold = rows(60), np.arange(60) % 3
    rng = np.random.default_rng(1)
    found = [{"one": rng.uniform(0.1, 0.9, (60, 3))} for _ in range(3)]
    mixed, honest = stacked(given, fold, found)
    own = np.array([found[fold[j]]["one"][j] for j in range(60)])
    first = calibrated(own[np.arange(60), given.A], given)
    again = calibrated(first(own)[np.arange(60), given.A], given)
    np.testing.assert_allclose(honest, again(first(own)), rtol=1e-9)
    everywhere = again(np.mean([first(one["one"]) for one in found], axis=0))
    np.testing.assert_allclose(mixed(together(found)), everywhere, rtol=1e-9)
    assert mixed.shares == {"one": pytest.approx(1.0)}


def test_kinds_that_hardly_count_are_left_out_of_the_stack_but_their_losses_are_told():
    given, fold = rows(400), np.arange(400) % 2
    j, taken = np.arange(400), np.zeros((400, 3))
    taken[j, given.A] = given.R
    rng = np.random.default_rng(0)
    noisy = {"one": taken, "two": taken, "three": 1 - taken}
    noisy = {name: np.clip(one + rng.normal(0, 0.3, one.shape), 0.05, 0.95) for name, one in noisy.items()}
    mixed, honest = stacked(given, fold, [noisy, noisy])
    assert set(mixed.shares) == {"one", "two"}
    assert sum(mixed.shares.values()) == pytest.approx(1)
    assert set(mixed.losses) == {"one", "two", "three", "stack"}
    alone, expected = stacked(given, fold, [{name: noisy[name] for name in ("one", "two")}] * 2)
    np.testing.assert_allclose(honest, expected, rtol=1e-12)
    assert mixed.losses["stack"] == pytest.approx(alone.losses["stack"])


def test_the_stack_is_no_worse_than_its_plainest_kind_and_without_a_prior_than_its_best():
    given, fold = rows(300), np.arange(300) % 3
    parts = [
        Part(given.take(fold != number), given.X, np.flatnonzero(fold != number), np.ones((3, 4), bool), number, SMALL)
        for number in range(3)
    ]
    found, j = cross_fit(parts, list(MEMBERS), 1), np.arange(300)
    mixed, honest = stacked(given, fold, found)
    assert set(mixed.losses) == {*MEMBERS, "stack"}
    own = {name: np.stack([one[name] for one in found])[fold, j, given.A] for name in MEMBERS}
    freely = mixture(own, given, prior={}).losses
    # the prior of the last calibration is worth a row in 300
    assert mixed.losses["stack"] <= mixed.losses["linear"] + 2e-3
    assert freely["stack"] <= min(freely[name] for name in MEMBERS) + 2e-3
    assert ((honest > 0) & (honest < 1)).all()


@pytest.mark.parametrize(("n", "trees", "leaf"), [(500, 100, 1), (20_000, 100, 1), (50_000, 40, 2), (10**6, 20, 50)])
def test_many_rows_have_fewer_trees_and_larger_leaves(n, trees, leaf):
    found = growth(settings_of("ponn-dr"), n)
    assert (found["trees"], found["leaf"]) == (trees, leaf)
    assert growth(settings_of("ponn-dr", trees=5), n)["trees"] == 5


# Kinds ----------------------------------------------------------------------------------------------------


def fitted(given, name, f=None, new=None):
    """Predictions of a kind for the rows learned from, or for these and new ones."""
    made = part(given, f)
    made = made if new is None else made._replace(X_new=np.concatenate([given.X, new]))
    before = {}
    for one in TEACHERS.get(name, ()):
        before[one] = MEMBERS[one](made, before)
    return MEMBERS[name](made, before)


@pytest.mark.parametrize("name", MEMBERS)
def test_every_kind_predicts_rewards_and_an_action_never_taken_promises_nothing(name):
    given = rows()
    A = np.where(given.A == 2, 0, given.A)
    Q = fitted(Rows(given.X, A, given.R, given.weight, 3), name)
    assert Q.shape == (180, 3)
    assert ((Q >= 0) & (Q <= 1)).all()
    assert np.ptp(Q[:, 0]) > 0
    assert (Q[:, 2] == 0).all()


@pytest.mark.parametrize("name", MEMBERS)
def test_every_kind_is_the_same_every_time(name):
    given, new = rows(), rows(50, seed=1).X
    one, two = (fitted(Rows(given.X, given.A, given.R, given.weight, 3), name, new=new) for _ in range(2))
    assert np.array_equal(one, two)


@pytest.mark.parametrize("name", ["linear", "forest", "smooth forest", "additive boosting", "boosting"])
def test_an_actions_model_reads_its_own_features_only(name):
    given = rows()
    f = np.ones((3, 4), bool)
    f[1, 2] = f[2] = False
    moved = Rows(given.X.copy(), given.A, given.R, given.weight, 3)
    moved.X[:, 2] += 100 * np.random.default_rng(0).normal(size=180)
    one, two = fitted(given, name, f), fitted(moved, name, f)
    assert np.array_equal(one[:, 1], two[:, 1])
    assert not np.array_equal(one[:, 0], two[:, 0])
    taken = given.A == 2
    assert one[:, 2] == pytest.approx(np.average(given.R[taken], weights=given.weight[taken]))


@pytest.mark.parametrize(("name", "adds_up"), [("additive boosting", True), ("boosting", False)])
def test_what_two_features_do_together_is_left_to_the_larger_trees(name, adds_up):
    """r is high where both features are: a sum of steps gives every corner of a square the sum of its sides."""
    given = rows(600)
    R = np.where((given.X[:, 0] > 0) & (given.X[:, 1] > 0), 0.6, 0.4)
    corners = np.array([[1, 1, 0, 0], [1, -1, 0, 0], [-1, 1, 0, 0], [-1, -1, 0, 0]], np.float32)
    made = part(Rows(given.X, given.A, R, given.weight, 3))._replace(X_new=corners)
    both, first, second, none = MEMBERS[name](made, {})  # [k] each
    np.testing.assert_allclose(both - first - second + none, 0.0 if adds_up else 0.2, atol=1e-9 if adds_up else 0.05)


@pytest.mark.parametrize("name", ["reward network", "share network", "brief network", "second forest", "share forest"])
def test_models_for_all_actions_read_the_union_of_all_sets(name):
    given, new = rows(), rows(50, seed=1).X
    f = np.zeros((3, 4), bool)
    f[0, 0] = f[1, 1] = True
    before = {one: np.random.default_rng(2).random((180, 3)) for one in MEMBERS}

    def predicted(column):
        """After a column was shuffled, of rows that the models did not see."""
        moved, moved_new = given.X.copy(), new.copy()
        moved[:, column] = np.random.default_rng(0).permutation(moved[:, column])
        moved_new[:, column] = np.random.default_rng(0).permutation(moved_new[:, column])
        made = part(Rows(moved, given.A, given.R, given.weight, 3), f)
        return MEMBERS[name](made._replace(X_new=moved_new), before)

    assert np.array_equal(predicted(3), predicted(2))
    assert not np.array_equal(predicted(3), predicted(1))
    assert union(np.zeros((3, 4), bool)).all()


def test_the_second_forest_sees_the_outcome_in_the_place_of_the_action_taken():
    given = rows()
    before = {one: np.full((180, 3), 0.5) for one in MEMBERS}
    Q = MEMBERS["second forest"](part(given), before)  # leaves of one row: it repeats what it was shown
    taken = np.zeros((180, 3), bool)
    taken[np.arange(180), given.A] = True
    np.testing.assert_allclose(Q[taken], given.R)
    np.testing.assert_allclose(Q[~taken], 0.5)


def test_the_share_forest_gives_what_an_outcome_leaves_of_the_unit_to_the_other_actions():
    given, rng = rows(), np.random.default_rng(3)
    before = {one: rng.uniform(0.1, 0.9, (180, 3)) for one in ("forest", "share network")}
    Q, j = MEMBERS["share forest"](part(given), before), np.arange(180)  # leaves of one row
    said = np.mean([*before.values()], axis=0)
    said[j, given.A] = 0
    expected = said * ((1 - given.R) / said.sum(axis=1))[:, None]
    expected[j, given.A] = given.R
    np.testing.assert_allclose(Q, expected)


def test_components_are_the_directions_of_most_variance():
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(500, 20)) @ rng.normal(size=(20, 20))).astype(np.float32)
    both, new = with_components(X, X[:7])
    assert both.shape == (500, 20 + COMPONENTS)
    assert both.dtype == np.float32
    np.testing.assert_array_equal(both[:, :20], X)
    np.testing.assert_allclose(new, both[:7], rtol=1e-4, atol=1e-4)
    _, s, V = np.linalg.svd(X - X.mean(axis=0))
    parts = both[:, 20:] - both[:, 20:].mean(axis=0)
    np.testing.assert_allclose(np.sqrt((parts.astype(float) ** 2).sum(axis=0)), s[:COMPONENTS], rtol=1e-4)
    np.testing.assert_allclose(np.abs(np.corrcoef(parts[:, 0], X @ V[0])[0, 1]), 1, rtol=1e-6)
    assert with_components(X[:, :3], X[:2, :3])[0].shape == (500, 6)
    twins = np.column_stack([X[:, :2], X[:, 0] + X[:, 1], X[:, 1], np.ones(500)]).astype(np.float32)
    assert with_components(twins, twins)[0].shape == (500, 5 + 2)  # what is left is rounding


def test_very_many_columns_get_no_components():
    X = np.zeros((3, 1_001), np.float32)
    assert with_components(X, X)[1] is X


def test_the_share_network_is_the_mean_of_one_that_reads_columns_and_one_that_reads_their_pieces_too(monkeypatch):
    given = part(rows())
    pieces, epochs = Pieces.of(given.seen.X, 180), SMALL.epochs
    both = [network_rewards(given, taken_share, softmax, epochs, read) for read in (np.asarray, pieces.beside)]
    assert not np.allclose(*both, atol=1e-3)
    np.testing.assert_allclose(MEMBERS["share network"](given, {}), np.mean(both, axis=0), rtol=1e-9)
    plain = given.seen.X > 0  # two values each, so there are no pieces
    given = given._replace(seen=replace(given.seen, X=plain.astype(np.float32)), X_new=plain.astype(np.float32))
    alone, trained = network_rewards(given, taken_share, softmax, epochs), []
    monkeypatch.setattr(stacking, "fit_heads", lambda *lesson: trained.append(1) or fit_heads(*lesson))
    assert np.array_equal(MEMBERS["share network"](given, {}), alone)
    assert len(trained) == 1


def test_a_network_reads_new_rows_block_by_block_as_it_would_all_at_once(monkeypatch):
    given = part(rows())
    whole, read = network_rewards(given, taken_share, softmax, 1), []
    monkeypatch.setattr(stacking, "EVALUATED_ROWS", 7)
    found = network_rewards(given, taken_share, softmax, 1, lambda X: read.append(len(X)) or X)
    np.testing.assert_allclose(found, whole, rtol=1e-5)
    assert read == [180, *[7] * 25, 5]


def test_losses_are_those_of_the_formula():
    q, R = np.array([0.2, 0.9, 0.0]), np.array([0.0, 0.3, 1.0])
    expected = [-np.log(0.8), -0.3 * np.log(0.9) - 0.7 * np.log(0.1), -np.log(1e-3)]
    np.testing.assert_allclose(logistic_losses(q, R), expected)


def test_kinds_in_processes_give_the_same_and_learn_from_the_teachers_of_their_own_part():
    given, fold, told = rows(), np.arange(180) % 2, []
    parts = [
        Part(given.take(fold != number), given.X, np.flatnonzero(fold != number), np.ones((3, 4), bool), number, SMALL)
        for number in range(2)
    ]
    kinds = ["forest", "share network", "share forest"]
    alone = cross_fit(parts, kinds, 1, lambda *said: told.append(said))
    assert told == [(done, 6) for done in range(1, 7)]
    for one, two, given_part in zip(alone, cross_fit(parts, kinds, 2), parts, strict=True):
        assert list(one) == list(two) == kinds
        for name in kinds:
            assert np.array_equal(one[name], two[name])
        assert np.array_equal(one["share forest"], fit_kind(given_part, "share forest", one))


# Actions with few rows --------------------------------------------------------------------------------------


def test_an_action_with_few_rows_borrows_from_what_the_others_promise():
    """Three rows of its own (all weighted ones count) and LENT more with the mean of the others: plain arithmetic."""
    A = np.repeat([0, 1, 2, 2], [50, 50, 3, 1])
    given = Rows(np.zeros((104, 1)), A, np.ones(104), np.append(np.ones(103), 0.0), 4)  # nobody took action 3
    Q = np.array([[0.2, 0.6, 1.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    found = lent(Q, given)
    np.testing.assert_allclose(found[:, 2], [(3 * 1.0 + 5 * 0.4) / 8, (3 * 0.0 + 5 * 0.5) / 8])
    np.testing.assert_array_equal(found[:, [0, 1, 3]], Q[:, [0, 1, 3]])


@pytest.mark.parametrize("fewest", [20, 100])
def test_actions_with_enough_rows_keep_every_bit(fewest):
    Q = np.random.default_rng(0).random((5, 2))
    given = Rows(np.zeros((fewest + 30, 1)), np.repeat([0, 1], [30, fewest]), np.ones(130), np.ones(fewest + 30), 2)
    assert lent(Q, given) is Q


def test_an_action_that_stands_alone_has_nobody_to_borrow_from():
    Q = np.random.default_rng(0).random((5, 2))
    assert lent(Q, Rows(np.zeros((3, 1)), np.zeros(3, int), np.ones(3), np.ones(3), 2)) is Q


def test_one_lucky_outcome_is_not_promised_to_everybody():
    given = rows()
    A, R = given.A.copy(), given.R.copy()
    A[A == 2] = 1
    A[0], R[0] = 2, 1.0
    assert fit_kind(part(replace(given, A=A, R=R)), "forest", {})[:, 2].mean() < 0.75
