"""contextualbandits: the offset tree, and cost-sensitive regression on doubly robust costs. It refuses a seed of 0."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
from contextualbandits.offpolicy import DoublyRobustEstimator, OffsetTree
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge

from trials import Rows, Scores, main, once

TREES = 50


def offset_tree(rows: Rows, trial: Mapping[str, Any], seed: int) -> Scores:
    """A binary classifier per duel."""
    if trial["base"] == "logistic":
        base = LogisticRegression(C=trial["C"], max_iter=1_000, random_state=seed)
    else:
        base = RandomForestClassifier(
            TREES, min_samples_leaf=trial["leaf"], max_features=trial["columns"], random_state=seed
        )
    made = OffsetTree(base, rows.k, random_state=seed + 1, njobs=1)
    made.fit(rows.X.astype(float), rows.A, rows.R, rows.p)
    return lambda new: np.eye(rows.k)[winners(made, new.X.astype(float))]


def winners(made: OffsetTree, X: np.ndarray) -> np.ndarray:
    """What its predict says; that asks for one row at a time, which takes a hundred times as long."""
    right = np.stack([np.asarray(one.predict(X)).astype(bool) for one in made._oracles])  # [duels, n]
    below, node, j = np.array(made.tree.childs), np.zeros(len(X), int), np.arange(len(X))
    alive = np.ones(len(X), bool)
    while alive.any():
        go = right[node[alive], j[alive]]
        node[alive] = np.where(go, below[node[alive], 0], below[node[alive], 1])
        alive &= node > 0
    return -node


def doubly_robust(rows: Rows, trial: Mapping[str, Any], seed: int) -> Scores:
    """One regression per action on doubly robust costs.

    handle_invalid must be off: it takes costs for rewards and replaces all of them by random numbers.
    """
    X = rows.X.astype(float)
    if trial["base"] == "ridge":
        base = Ridge(alpha=trial["alpha"])
    else:
        base = RandomForestRegressor(
            TREES, min_samples_leaf=trial["leaf"], max_features=trial["columns"], random_state=seed
        )
    costs = -once(lambda: expected_rewards(rows, X, seed), rows.places)
    made = DoublyRobustEstimator(base, costs, rows.k, "rovr", handle_invalid=False, random_state=seed + 1, njobs=1)
    made.fit(X, rows.A, rows.R, rows.p)
    return lambda new: np.eye(rows.k)[np.asarray(made.predict(new.X.astype(float))).astype(int)]


def expected_rewards(rows: Rows, X: np.ndarray, seed: int) -> np.ndarray:
    """A forest per action; rows that it saw are predicted out of bag. It wants classes, so rewards come from here."""
    Q = np.zeros((len(X), rows.k))
    for a in range(rows.k):
        taken = rows.A == a
        forest = RandomForestRegressor(TREES, min_samples_leaf=5, oob_score=True, random_state=seed)
        forest.fit(X[taken], rows.R[taken])
        Q[:, a] = forest.predict(X)
        Q[taken, a] = forest.oob_prediction_
    return Q


if __name__ == "__main__":
    fits = {"offset tree": offset_tree, "doubly robust": doubly_robust}
    main(fits, {"contextualbandits": version("contextualbandits")})
