"""Open Bandit Pipeline: policy networks, weighted classification and reward regression."""

from collections.abc import Callable, Mapping
from typing import Any

import obp
import obp.policy.offline
import torch
from obp.policy import IPWLearner, NNPolicyLearner, QLearner
from sklearn.base import ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression

from trials import Fit, Rows, Scores, main

EPOCHS, BATCH, ROUNDS, TREES = 40, 128, 100, 100
NEVER = 10**9  # its own stopping counts a falling loss as no progress, so it is left out
obp.policy.offline.tqdm = lambda steps, **_: steps  # no progress bars


def policy_network(objective: str) -> Fit:
    """NNPolicyLearner; its reward network, where it has one, is trained in the same way."""

    def fit(rows: Rows, trial: Mapping[str, Any], seed: int) -> Scores:
        training = {
            "hidden_layer_size": tuple(trial["hidden"]),
            "learning_rate_init": trial["learning_rate"],
            "max_iter": EPOCHS,
            "batch_size": BATCH,
            "n_iter_no_change": NEVER,
            "random_state": seed,
        }
        made = NNPolicyLearner(
            n_actions=rows.k,
            dim_context=rows.X.shape[1],
            off_policy_objective=objective,
            q_func_estimator_hyperparams=dict(training),
            **training,
        )
        made.fit(context=rows.X, action=rows.A, reward=rows.R, pscore=rows.p)
        return lambda new: made.predict_proba(context=new.X)[:, :, 0]

    return fit


def logistic(trial: Mapping[str, Any], seed: int) -> ClassifierMixin:
    return LogisticRegression(C=trial["C"], max_iter=1_000, random_state=seed)


def forest(trial: Mapping[str, Any], seed: int) -> ClassifierMixin:
    return RandomForestClassifier(
        TREES, min_samples_leaf=trial["leaf"], max_features=trial["columns"], random_state=seed
    )


def boosting(trial: Mapping[str, Any], seed: int) -> ClassifierMixin:
    return HistGradientBoostingClassifier(
        learning_rate=trial["learning_rate"],
        max_leaf_nodes=trial["leaves"],
        max_iter=ROUNDS,
        early_stopping=False,
        random_state=seed,
    )


def weighted_classification(classifier: Callable[[Mapping[str, Any], int], ClassifierMixin]) -> Fit:
    """IPWLearner."""

    def fit(rows: Rows, trial: Mapping[str, Any], seed: int) -> Scores:
        made = IPWLearner(n_actions=rows.k, base_classifier=classifier(trial, seed))
        made.fit(context=rows.X, action=rows.A, reward=rows.R, pscore=rows.p)
        return lambda new: made.predict(context=new.X)[:, :, 0]

    return fit


def reward_regression(rows: Rows, trial: Mapping[str, Any], seed: int) -> Scores:
    """QLearner with a forest."""
    model = RandomForestRegressor(
        TREES, min_samples_leaf=trial["leaf"], max_features=trial["columns"], random_state=seed
    )
    made = QLearner(n_actions=rows.k, base_model=model)
    made.fit(context=rows.X, action=rows.A, reward=rows.R, pscore=rows.p)
    return lambda new: made.predict_score(context=new.X)[:, :, 0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    fits: dict[str, Fit] = {name: policy_network(name) for name in ("ipw", "dr", "dm")}
    fits |= {one.__name__: weighted_classification(one) for one in (logistic, forest, boosting)}
    main({**fits, "q": reward_regression}, {"obp": obp.__version__, "torch": torch.__version__})
