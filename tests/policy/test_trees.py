"""Trees as arrays: equal to scikit-learn's predictions, decided as the oracle decides, and nothing hostile gets in."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor, RandomForestRegressor

from ponn.errors import PonnError
from ponn.learning.forests import flat, joined, single, spread
from ponn.policy.trees import BLOCK_ROWS, DTYPES, Duel, Forests, TreeModel, duels

# One tree: column 0 at 0.5, then right of it column 1 at 2; leaves 0.1 (left), 0.2 and 0.3.
SMALL = {
    "column": np.array([0, -1, 1, -1, -1], np.int32),
    "threshold": np.array([0.5, 2.0], np.float32),
    "value": np.array([[0.1], [0.2], [0.3]]),
    "nodes": np.array([5], np.int32),
    "trees": np.array([1], np.int32),
}


def forest_of(model, outputs=None):
    """A fitted forest of scikit-learn as arrays; outputs: columns of a classifier."""
    if outputs is None:
        return joined([[flat(tree.tree_, tree.tree_.value[:, 0]) for tree in model.estimators_]], 1)
    trees = [flat(one.tree_, spread(one.tree_.value[:, 0], model.classes_, outputs)) for one in model.estimators_]
    return joined([trees], outputs)


def literal(arrays, x):
    """The leaf value of each tree for one row, by pointers that are found by counting."""
    found, node0, inner0, leaf0 = [], 0, 0, 0
    for size in arrays["nodes"]:
        column = list(arrays["column"][node0 : node0 + size])
        at = 0
        while column[at] >= 0:
            rank = sum(one >= 0 for one in column[:at])
            at = 2 * rank + (1 if x[column[at]] <= arrays["threshold"][inner0 + rank] else 2)
        found.append(arrays["value"][leaf0 + sum(one < 0 for one in column[:at])])
        node0, inner0, leaf0 = node0 + size, inner0 + (size - 1) // 2, leaf0 + (size + 1) // 2
    return np.array(found)  # [trees, m]


# Equal to scikit-learn ------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 60),
    D=st.integers(1, 5),
    values=st.sampled_from([2, 5, 1_000]),
    kind=st.sampled_from([ExtraTreesRegressor, RandomForestRegressor]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=40, deadline=None)
def test_means_are_those_of_scikit_learn_also_on_the_thresholds(n, D, values, kind, seed):
    rng = np.random.default_rng(seed)
    X = (rng.integers(0, values, (n, D)) / rng.choice([1, 3, 7])).astype(np.float32)
    model = kind(7, random_state=seed).fit(X, rng.random(n), sample_weight=rng.random(n) + 0.1)
    cuts = np.concatenate([one.tree_.threshold[one.tree_.feature >= 0] for one in model.estimators_])
    rows = [X, rng.choice(X.ravel(), (20, D))]
    if len(cuts):  # the thresholds themselves, in single precision, and their neighbours
        on = rng.choice(cuts, (40, D)).astype(np.float32)
        rows += [on, np.nextafter(on, np.float32(np.inf)), np.nextafter(on, np.float32(-np.inf))]
    new = np.concatenate(rows)
    found = forest_of(model).means(new)[:, 0, 0]
    np.testing.assert_allclose(found, model.predict(new), rtol=0, atol=1e-12)


@pytest.mark.parametrize("leaf", [1, 10])
def test_shares_are_those_of_scikit_learn_and_unseen_classes_get_0(leaf):
    rng = np.random.default_rng(leaf)
    X = rng.normal(size=(500, 6)).astype(np.float32)
    y = np.array([0, 2, 5])[np.digitize(X[:, 0] + 0.3 * rng.normal(size=500), [-0.5, 0.5])]
    model = ExtraTreesClassifier(30, min_samples_leaf=leaf, random_state=0).fit(X, y, sample_weight=rng.random(500))
    new = rng.normal(size=(BLOCK_ROWS + 77, 6)).astype(np.float32)  # more than one block
    found = TreeModel(forest_of(model, 6), 6, 6, "vote").probabilities(new)
    np.testing.assert_allclose(found[:, [0, 2, 5]], model.predict_proba(new), rtol=0, atol=1e-12)
    assert not found[:, [1, 3, 4]].any()
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=0, atol=1e-12)


def test_thresholds_between_two_single_precision_numbers_are_rounded_down():
    low = np.float32(1_000)
    high = np.nextafter(low, np.float32(2_000))
    X = np.array([[low], [high]], np.float32)
    cuts = set()
    for seed in range(20):  # extra trees cut anywhere between the two; rounding to the nearest is wrong half the time
        model = ExtraTreesRegressor(1, random_state=seed).fit(X, [0.0, 1.0])
        cuts.add(model.estimators_[0].tree_.threshold[0])
        assert forest_of(model).means(X)[:, 0, 0].tolist() == [0, 1]
    assert any(np.float32(cut) > cut for cut in cuts)


def test_several_forests_of_different_sizes_in_one_pass_equal_each_by_itself():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    models = [ExtraTreesRegressor(size, random_state=size).fit(X, rng.random(300)) for size in (1, 40, 7)]
    each = [[flat(tree.tree_, tree.tree_.value[:, 0]) for tree in model.estimators_] for model in models]
    forests = joined([each[0], [], each[1], each[2], []], 1)
    for rows in (1, 300):
        found = forests.means(X[:rows])[:, :, 0]
        expected = np.stack([model.predict(X[:rows]) for model in models], axis=1)
        np.testing.assert_allclose(found[:, [0, 2, 3]], expected, rtol=0, atol=1e-12)
        assert not found[:, [1, 4]].any()
        np.testing.assert_array_equal(forests.means(X[:rows], 2, 4)[:, :, 0], found[:, 2:4])
    assert forests.means(X[:0]).shape == (0, 5, 1)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_walking_down_is_what_the_order_of_nodes_says(seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 6, (40, 3)).astype(np.float32)
    model = ExtraTreesRegressor(4, max_depth=int(rng.integers(1, 8)), random_state=seed).fit(X, rng.random(40))
    forests = forest_of(model)
    expected = [literal(forests.arrays, x).mean(axis=0) for x in X]
    np.testing.assert_allclose(forests.means(X)[:, 0], expected, rtol=0, atol=1e-12)


def test_infinite_columns_go_to_the_ends():
    found = Forests(**SMALL).means(np.array([[-np.inf, 0], [np.inf, np.inf], [np.inf, -np.inf]], np.float32))
    assert found[:, 0, 0].tolist() == [0.1, 0.3, 0.2]


# Decisions ------------------------------------------------------------------------------------------------


def constant(*values):
    """A forest per value that says it everywhere; None: a forest without trees."""
    return joined([[] if value is None else [single(value)] for value in values], 1)


def test_best_takes_the_first_of_equals_and_never_an_action_without_trees():
    X = np.zeros((2, 1), np.float32)
    model = TreeModel(constant(None, 0.0, 0.0), 3, 1, "best")
    assert model.probabilities(X).tolist() == [[0, 1, 0]] * 2
    assert model.rewards(X).tolist() == [[0, 0, 0]] * 2
    assert TreeModel(constant(0.1, 0.4, 0.4), 3, 1, "best").probabilities(X[:1]).tolist() == [[0, 1, 0]]


def test_only_the_best_decision_predicts_rewards():
    X = np.zeros((1, 1), np.float32)
    assert TreeModel(constant(0.2), 2, 1, "tournament").rewards(X) is None
    assert TreeModel(joined([[single(0.0)._replace(value=np.array([[0.3, 0.7]]))]], 2), 2, 1, "vote").rewards(X) is None


@pytest.mark.parametrize("k", [2, 3, 5, 10, 17])
def test_duels_are_a_binary_tree_over_the_actions(k):
    found = duels(k)
    assert len(found) == k - 1
    sides = [(one.low, one.high) for one in found]
    for place, one in enumerate(found):
        for low, high in ((one.low, one.middle), (one.middle, one.high)):
            assert high - low >= 1
            assert high - low == 1 or sides.index((low, high)) > place
    assert found[0] == Duel(0, k // 2, k)
    assert max(sum(one.low <= a < one.high for one in found) for a in range(k)) == np.ceil(np.log2(k))


@pytest.mark.parametrize("k", [2, 3, 6])
def test_the_tournament_takes_the_action_that_wins_all_its_duels(k):
    rng = np.random.default_rng(k)
    X = rng.normal(size=(200, 3)).astype(np.float32)
    trees = [ExtraTreesRegressor(3, max_depth=3, random_state=g).fit(X, rng.random(200)) for g in range(k - 1)]
    forests = joined([[flat(one.tree_, one.tree_.value[:, 0]) for one in model.estimators_] for model in trees], 1)
    found = TreeModel(forests, k, 3, "tournament").probabilities(X)
    right = forests.means(X)[:, :, 0] > 0.5  # [n, k - 1]
    for j in range(200):
        wins = [
            all(right[j, g] == (a >= duel.middle) for g, duel in enumerate(duels(k)) if duel.low <= a < duel.high)
            for a in range(k)
        ]
        assert found[j].tolist() == wins
    assert found.sum() == 200
    assert (found.sum(axis=0) > 0).sum() > 1


def test_an_even_duel_is_for_the_left_side():
    assert TreeModel(constant(0.5), 2, 1, "tournament").probabilities(np.zeros((1, 1))).tolist() == [[1, 0]]


# The policy file's parts ----------------------------------------------------------------------------------


def test_arrays_and_description_build_the_same_model():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 3)).astype(np.float32)
    model = ExtraTreesClassifier(5, random_state=0).fit(X, rng.integers(0, 4, 100))
    made = TreeModel(forest_of(model, 4), 4, 3, "vote")
    again = TreeModel.build(made.description, made.arrays)
    np.testing.assert_array_equal(again.probabilities(X), made.probabilities(X))
    assert {name: array.dtype for name, array in made.arrays.items()} == DTYPES
    assert all(array.flags.c_contiguous for array in made.arrays.values())


def damaged(**changes):
    return {**SMALL, **{name: np.array(value, DTYPES[name]) for name, value in changes.items()}}


HOSTILE = {
    "column too large": (damaged(column=[2, -1, 1, -1, -1]), "column 2 of 2"),
    "column below -1": (damaged(column=[-2, -1, 1, -1, -1]), "below 0"),
    "node before its parent": (damaged(column=[-1, 0, 1, -1, -1]), "before its parent"),
    "too few leaves": (damaged(column=[0, 0, 1, -1, -1]), "more or fewer leaves"),
    "too many leaves": (damaged(column=[0, -1, -1, -1, -1]), "more or fewer leaves"),
    "too few thresholds": (damaged(threshold=[0.5]), "thresholds or values"),
    "too many values": (damaged(value=[[0.1]] * 4), "thresholds or values"),
    "threshold not finite": (damaged(threshold=[0.5, np.nan]), "threshold holds values"),
    "threshold infinite": (damaged(threshold=[0.5, np.inf]), "threshold holds values"),
    "value not finite": (damaged(value=[[0.1], [np.nan], [0.3]]), "value holds values"),
    "value above 1": (damaged(value=[[0.1], [0.2], [1.5]]), "outside 0 to 1"),
    "value below 0": (damaged(value=[[0.1], [0.2], [-0.5]]), "outside 0 to 1"),
    "values of the wrong shape": (damaged(value=[0.1, 0.2, 0.3]), "1 dimensions"),
    "leaves with nothing": (damaged(value=np.empty((3, 0))), "hold nothing"),
    "nodes do not add up": (damaged(nodes=[3]), "do not fit"),
    "an empty tree": (damaged(nodes=[5, 0], trees=[2]), "without nodes"),
    "a negative tree": (damaged(nodes=[6, -1], trees=[2]), "without nodes"),
    "trees do not add up": (damaged(trees=[2]), "do not fit"),
    "a negative forest": (damaged(trees=[2, -1]), "without nodes"),
    "no tree": (damaged(column=[], threshold=[], value=np.empty((0, 1)), nodes=[], trees=[]), "no tree"),
    "sums that wrap around": (damaged(nodes=[2**31 - 1, 2**31 - 1, 7], trees=[3]), "do not fit"),
    "another type": ({**SMALL, "column": SMALL["column"].astype(np.int64)}, "int64"),
    "an array too many": ({**SMALL, "more": SMALL["nodes"]}, "it holds"),
    "an array too few": ({name: SMALL[name] for name in SMALL if name != "nodes"}, "it holds"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_arrays_are_refused(case):
    arrays, words = HOSTILE[case]
    good = {"k": 2, "D": 2, "decision": "tournament"}
    TreeModel.build(good, SMALL)
    with pytest.raises(PonnError, match=words):
        TreeModel.build(good, arrays)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decision": "coin"}, "decides by"),
        ({"decision": "vote"}, "1 forests with 2 values"),
        ({"decision": "best"}, "2 forests with 1 values"),
        ({"k": 3}, "2 forests"),
        ({"k": 1}, "1 actions"),
        ({"k": True}, "True actions"),
        ({"k": "2"}, "'2' actions"),
        ({"D": 0}, "0 columns"),
        ({"D": 1}, "column 1 of 1"),
        ({"D": 2.0}, "2.0 columns"),
        ({"more": 1}, "it holds"),
    ],
)
def test_hostile_descriptions_are_refused(changes, words):
    with pytest.raises(PonnError, match=words):
        TreeModel.build({"k": 2, "D": 2, "decision": "tournament", **changes}, SMALL)


def test_shares_must_add_up_and_duels_must_have_trees():
    with pytest.raises(PonnError, match="do not add up to 1"):
        TreeModel.build({"k": 2, "D": 2, "decision": "vote"}, damaged(value=[[0.5, 0.5], [0.5, 0.4], [1, 0]]))
    with pytest.raises(PonnError, match="a duel has no trees"):
        TreeModel(constant(0.2, None), 3, 1, "tournament")


@given(seed=st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_whatever_is_built_from_random_arrays_predicts(seed):
    """Random arrays either are refused or walk down to numbers; a cycle would never come back."""
    rng = np.random.default_rng(seed)
    inner = int(rng.integers(0, 6))
    column = rng.permutation(np.r_[rng.integers(0, 3, inner), np.full(inner + 1, -1)])
    arrays = damaged(
        column=column, threshold=rng.normal(size=inner), value=rng.random((inner + 1, 1)), nodes=[2 * inner + 1]
    )
    try:
        model = TreeModel.build({"k": 2, "D": 3, "decision": "tournament"}, arrays)
    except PonnError:
        return
    X = rng.normal(size=(5, 3)).astype(np.float32)
    expected = [literal(arrays, x).mean(axis=0) for x in X]
    np.testing.assert_allclose(model.forests.means(X)[:, 0], expected, rtol=0, atol=1e-12)


def test_rows_with_other_columns_are_refused():
    with pytest.raises(PonnError, match=r"shape \(4, 3\); expected 2 columns"):
        TreeModel.build({"k": 2, "D": 2, "decision": "tournament"}, SMALL).probabilities(np.zeros((4, 3)))


def test_predicting_imports_numpy_alone():
    code = "import sys, ponn.policy.trees; print('|'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sklearn", "torch", "scipy", "pandas"} & set(done.stdout.strip().split("|"))
