"""Policies made of forests, learned with scikit-learn: weighted classification, a reward model per action, offset tree.

symbol   meaning                                                                          shape
X        design columns                                                                   [n, D]
A        actions taken, 0 to k - 1                                                        [n]
R        rewards in [0, 1]                                                                [n]
w        importance weights 1/p_j times row weights; for reward models row weights alone   [n]

All forests are of extremely randomised trees (Geurts et al. 2006) on all rows: no bootstrap, for which scikit-learn
draws weighted rows by their weight. With a third of the columns tried at a split they are more accurate than random
forests on all three UCI worlds.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict, Unpack

import numpy as np

from ponn.errors import PonnError, install_line
from ponn.policy.trees import LEAF, Duel, Forests, TreeModel, duels

MOST_VALUES = 1 << 22  # numbers in the leaves of one policy: 84 MB of arrays at most, half of it in the file
NEUTRAL = 0.5  # the offset of Beygelzimer and Langford: rewards below it speak against the action


class Growth(TypedDict):
    """How trees grow: how many in a forest, fewest rows in a leaf, share of columns tried at a split."""

    trees: int
    leaf: int
    columns: float
    threads: NotRequired[int]  # 1 unless given; the trees do not depend on it


# The methods ---------------------------------------------------------------------------------------------


def ipw_forest(
    X: np.ndarray, A: np.ndarray, R: np.ndarray, w: np.ndarray, k: int, seed: int, **growth: Unpack[Growth]
) -> TreeModel:
    """Weighted classification: the action taken is the label, R/p its weight, and h(a | x) the share of its votes.

    Like the corrected cross-entropy it aims at h(a | x) = r(a, x) / sum_a' r(a', x). Actions never rewarded get 0.
    """
    chosen = np.flatnonzero(R * w > 0)
    check_rows(chosen, R, "a reward and a weight above 0")
    growth = limited(growth, len(chosen) * k)
    model = grow("ExtraTreesClassifier", X[chosen], A[chosen], (R * w)[chosen], seed, **growth)
    forest = [flat(tree.tree_, spread(tree.tree_.value[:, 0], model.classes_, k)) for tree in model.estimators_]
    return TreeModel(joined([forest], k), k, X.shape[1], "vote")


def direct_forest(
    X: np.ndarray, A: np.ndarray, R: np.ndarray, w: np.ndarray, k: int, seed: int, **growth: Unpack[Growth]
) -> TreeModel:
    """The direct method: a reward model r(a, x) per action, and the action with the largest prediction.

    w: row weights, not 1/p, which only adds variance here (greedy accuracy on pendigits with scaling "hard": 0.877
    against 0.899). An action without rows, or with fewer than a leaf must have, predicts 0 and is never taken, not even
    where all others predict 0 as well.
    """
    check_rows(np.flatnonzero(w > 0), R, "a weight above 0")
    chosen = [np.flatnonzero((a == A) & (w > 0)) for a in range(k)]
    chosen = [rows if len(rows) >= growth["leaf"] else rows[:0] for rows in chosen]
    check_rows(np.concatenate(chosen), R, f"an action that {growth['leaf']} rows have taken, the fewest in a leaf,")
    growth = limited(growth, sum(map(len, chosen)))
    found = [
        reward_forest(X[rows], R[rows], w[rows], seed_of(seed, a), growth) if len(rows) else []
        for a, rows in enumerate(chosen)
    ]
    return TreeModel(joined(found, 1), k, X.shape[1], "best")


def offset_tree(
    X: np.ndarray,
    A: np.ndarray,
    R: np.ndarray,
    w: np.ndarray,
    k: int,
    seed: int,
    *,
    folds: int,
    **growth: Unpack[Growth],
) -> TreeModel:
    """The offset tree of Beygelzimer and Langford (2009): a binary classifier per inner node of a tree over actions.

    From the leaves up, a node learns from the rows whose action won every duel below it: a reward above 1/2 says that
    the action's side wins, one below that the other does, with importance |R - 1/2| / p. At a given x the importance
    of the two sides then differs by the difference of their rewards.

    folds: whether a row's action won is said by classifiers that did not see the row. With 1, as for the simple
    classifiers the method was made for, by the node's own; but a forest repeats what it saw, so that no row with a
    bad reward would get past its first duel (greedy accuracy on pendigits: 0.895 with 1, 0.919 with 2, 0.929 with 4).
    A side of which no action was ever taken loses.
    """
    check_rows(np.flatnonzero(w > 0), R, "a weight above 0")
    importance = np.abs(R - NEUTRAL) * w
    taken = np.bincount(A[w > 0], minlength=k) > 0
    growth = limited(growth, len(A) * math.ceil(math.log2(k)))
    alive = importance > 0
    forests: list[list[Tree]] = []
    for number, duel in reversed(list(enumerate(duels(k)))):
        rows = np.flatnonzero(alive & (duel.low <= A) & (duel.high > A))
        side = A[rows] >= duel.middle  # True: right
        forest = sure_winner(taken, duel)
        if forest is None and len(rows):
            wins = side ^ (R[rows] < NEUTRAL)
            forest, won = learn_duel(X[rows], wins, importance[rows], seed_of(seed, number), folds, growth)
            alive[rows[won != side]] = False
        forests.insert(0, forest or [single(0.0)])
    return TreeModel(joined(forests, 1), k, X.shape[1], "tournament")


def check_rows(chosen: np.ndarray, R: np.ndarray, what: str) -> None:
    """Raise PonnError where no row can teach anything."""
    if not len(chosen):
        raise PonnError(
            f"None of the {len(R)} training rows has {what}, so there is nothing to learn from. "
            "Check the reward column, its direction and the row weights, or give more rows."
        )


def sure_winner(taken: np.ndarray, duel: Duel) -> list["Tree"] | None:
    """A duel of which one side was never taken is won by the other; None where both were."""
    left, right = taken[duel.low : duel.middle].any(), taken[duel.middle : duel.high].any()
    return None if left and right else [single(float(right))]


def learn_duel(
    X: np.ndarray, wins: np.ndarray, importance: np.ndarray, seed: int, folds: int, growth: Growth
) -> tuple[list["Tree"], np.ndarray]:
    """The forest that says whether the right side wins, and what it says about its own rows, out of fold."""
    forest = right_forest(X, wins, importance, seed, growth)
    folds = min(folds, len(X))
    if folds == 1:
        return forest, says_right(forest, X)
    fold = np.random.default_rng(seed).permutation(len(X)) % folds
    said = np.empty(len(X), bool)
    for number in range(folds):
        rest, rows = fold != number, fold == number
        other = right_forest(X[rest], wins[rest], importance[rest], seed_of(seed, number), growth)
        said[rows] = says_right(other, X[rows])
    return forest, said


def says_right(forest: list["Tree"], X: np.ndarray) -> np.ndarray:
    """Does the right side win, row by row?"""
    return joined([forest], 1).means(X)[:, 0, 0] > 0.5  # [n]


def reward_forest(X: np.ndarray, R: np.ndarray, w: np.ndarray, seed: int, growth: Growth) -> list["Tree"]:
    """A forest that predicts the reward."""
    model = grow("ExtraTreesRegressor", X, R, w, seed, **growth)
    return [flat(tree.tree_, np.clip(tree.tree_.value[:, 0], 0, 1)) for tree in model.estimators_]


def right_forest(X: np.ndarray, wins: np.ndarray, importance: np.ndarray, seed: int, growth: Growth) -> list["Tree"]:
    """A forest that predicts the share of importance on the right side."""
    model = grow("ExtraTreesClassifier", X, wins.astype(int), importance, seed, **growth)
    return [flat(tree.tree_, spread(tree.tree_.value[:, 0], model.classes_, 2)[:, 1:]) for tree in model.estimators_]


# Growing trees and flattening them -----------------------------------------------------------------------


class Tree(NamedTuple):
    """One tree in the order of `ponn.trees`."""

    column: np.ndarray
    threshold: np.ndarray
    value: np.ndarray


def grow(kind: str, X: np.ndarray, y: np.ndarray, weight: np.ndarray, seed: int, **growth: Unpack[Growth]) -> Any:
    """A fitted forest of scikit-learn."""
    try:
        from sklearn import ensemble
    except ImportError as error:
        raise PonnError(f"Learning forests needs scikit-learn: {install_line('learn')}.") from error
    model = getattr(ensemble, kind)(
        growth["trees"],
        min_samples_leaf=growth["leaf"],
        max_features=growth["columns"],
        n_jobs=growth.get("threads", 1),
        random_state=seed,
    )
    return model.fit(X, y, sample_weight=weight)


def limited(growth: Growth, values: int) -> Growth:
    """Leaves so large that the policy stays small; values: the numbers in its leaves, per tree, if a row had its own.

    n rows fill at most n / leaf leaves of a tree.
    """
    return {**growth, "leaf": max(growth["leaf"], math.ceil(values * growth["trees"] / MOST_VALUES))}


def seed_of(seed: int, number: int) -> int:
    """The seed of one of several forests."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def spread(shares: np.ndarray, classes: np.ndarray, k: int) -> np.ndarray:
    """Shares of the classes seen as shares of all k."""
    out = np.zeros((len(shares), k))
    out[:, classes] = shares
    return out


def flat(tree: Any, value: np.ndarray) -> Tree:
    """A tree of scikit-learn, level by level; value: of every node."""
    order = level_order(tree.children_left, tree.children_right)
    inner = tree.children_left[order] >= 0
    column = np.where(inner, tree.feature[order], LEAF).astype(np.int32)
    return Tree(column, rounded_down(tree.threshold[order[inner]]), value[order[~inner]])


def level_order(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The nodes of a tree, root first, then level by level from left to right."""
    levels = [np.zeros(1, np.intp)]
    while len(levels[-1]):
        inner = levels[-1][left[levels[-1]] >= 0]
        levels.append(np.stack([left[inner], right[inner]], axis=1).ravel())
    return np.concatenate(levels)


def rounded_down(threshold: np.ndarray) -> np.ndarray:
    """The largest single-precision number that is not above: x <= threshold stays the same for single-precision x."""
    near = threshold.astype(np.float32)
    return np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)


def single(value: float) -> Tree:
    """A tree that says the same of every row."""
    return Tree(np.array([LEAF], np.int32), np.empty(0, np.float32), np.array([[value]]))


def joined(forests: Sequence[Sequence[Tree]], m: int) -> Forests:
    """Forests of trees as one set of arrays; m values in a leaf."""
    trees = [tree for forest in forests for tree in forest]
    return Forests(
        column=np.concatenate([tree.column for tree in trees]),
        threshold=np.concatenate([tree.threshold for tree in trees]),
        value=np.concatenate([tree.value for tree in trees]).reshape(-1, m),
        nodes=np.array([len(tree.column) for tree in trees], np.int32),
        trees=np.array([len(forest) for forest in forests], np.int32),
    )
