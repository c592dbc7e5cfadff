"""The direct method: a reward model of scikit-learn per action; the action that promises most."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import sklearn
from sklearn.base import RegressorMixin
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import Ridge

from trials import Fit, Rows, Scores, main

ROUNDS, TREES = 100, 100


def boosting(trial: Mapping[str, Any], seed: int) -> RegressorMixin:
    return HistGradientBoostingRegressor(
        learning_rate=trial["learning_rate"],
        max_leaf_nodes=trial["leaves"],
        max_iter=ROUNDS,
        early_stopping=False,
        random_state=seed,
    )


def forest(trial: Mapping[str, Any], seed: int) -> RegressorMixin:
    return RandomForestRegressor(
        TREES, min_samples_leaf=trial["leaf"], max_features=trial["columns"], random_state=seed
    )


def extra_trees(trial: Mapping[str, Any], seed: int) -> RegressorMixin:
    return ExtraTreesRegressor(TREES, min_samples_leaf=trial["leaf"], max_features=trial["columns"], random_state=seed)


def ridge(trial: Mapping[str, Any], seed: int) -> RegressorMixin:
    return Ridge(alpha=trial["alpha"])


def direct(model: Callable[[Mapping[str, Any], int], RegressorMixin]) -> Fit:
    """One model per action on the rows in which it was taken."""

    def fit(rows: Rows, trial: Mapping[str, Any], seed: int) -> Scores:
        models = [model(trial, seed).fit(rows.X[rows.A == a], rows.R[rows.A == a]) for a in range(rows.k)]
        return lambda new: np.column_stack([one.predict(new.X) for one in models])

    return fit


if __name__ == "__main__":
    fits = {one.__name__: direct(one) for one in (boosting, forest, extra_trees, ridge)}
    main(fits, {"scikit-learn": sklearn.__version__})
