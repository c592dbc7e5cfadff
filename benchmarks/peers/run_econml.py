"""EconML's policy learners. They estimate propensities themselves and refuse known ones."""

from collections.abc import Mapping
from typing import Any

import econml
import numpy as np
from econml.policy import DRPolicyForest, DRPolicyTree
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression

from trials import Fit, Rows, Scores, main, once

TREES = 100


class RewardForest(RandomForestRegressor):
    """Rewards predicted by a forest, which does not depend on the settings that are tried."""

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: None = None) -> "RewardForest":
        """Fitted once on the same rows."""
        fitted = once(lambda: clone(self).fit_anew(X, y), X, y)
        self.__dict__.update(fitted.__dict__)
        return self

    def fit_anew(self, X: np.ndarray, y: np.ndarray) -> "RewardForest":
        """Fitted as usual."""
        return super().fit(X, y)


def policy_learner(kind: type, **fixed: Any) -> Fit:
    """A policy tree or forest on doubly robust scores; the reward model is a forest, as is its usual one."""

    def fit(rows: Rows, trial: Mapping[str, Any], seed: int) -> Scores:
        made = kind(
            model_regression=RewardForest(TREES, min_samples_leaf=5, random_state=seed),
            model_propensity=LogisticRegression(max_iter=1_000, random_state=seed),
            random_state=seed,
            **fixed,
            **trial,
        )
        made.fit(rows.R, rows.A, X=rows.X.astype(float))
        return lambda new: np.eye(rows.k)[made.predict(new.X.astype(float)).astype(int)]

    return fit


if __name__ == "__main__":
    fits = {
        "forest": policy_learner(DRPolicyForest, n_estimators=TREES, n_jobs=1),
        "tree": policy_learner(DRPolicyTree),
    }
    main(fits, {"econml": econml.__version__})
