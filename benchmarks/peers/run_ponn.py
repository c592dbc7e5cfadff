"""The methods of ponn. They read the table itself, not its design columns; the rows of each part are the same."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

import ponn
from peer_space import OURS
from peer_worlds import make_world
from ponn.simulate.worlds import World
from trials import Fit, New, Rows, Scores, answer_jobs, done, once

fit_anew = LogisticRegression.fit
EVERYTHING = {"min_cell": 1}  # accuracy is compared; the policies are never passed on


def fit_once(
    model: LogisticRegression, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None = None
) -> LogisticRegression:
    """Fit as usual, but once on the same rows: Step A and what policies carry along do not depend on the settings that
    are tried; with 50 actions they took a third of the time of a network's trial."""
    how = np.frombuffer(repr(sorted(model.get_params().items())).encode(), np.uint8)
    weight = np.empty(0) if sample_weight is None else sample_weight
    fitted = once(lambda: fit_anew(clone(model), X, y, sample_weight), X, y, weight, how)
    vars(model).update(vars(fitted))
    return model


def learned(method: str, world: World, details: dict[str, Any]) -> Fit:
    """A named method; of PONN-DR more is told, also what its stochastic policy is worth."""

    def fit(rows: Rows, trial: Mapping[str, Any], seed: int) -> Scores:
        policy = ponn.learn(world.log.take(rows.places), method, seed=seed, workers=1, **{**EVERYTHING, **trial})

        def probabilities(new: New) -> np.ndarray:
            h = policy.predict_proba(world.log.take(new.places))
            if method == OURS:
                details.update(policy.provenance["training"], stochastic=stochastic(world, new.places, h))
            return h

        return probabilities

    return fit


def stochastic(world: World, places: np.ndarray, h: np.ndarray) -> dict[str, float]:
    """True value and accuracy of drawing actions from h; empty where nobody knows."""
    expected = world.expected[places]
    if np.isnan(expected).any():
        return {}
    value, accuracy = (h * expected).sum(axis=1), h[np.arange(len(h)), world.best[places]]
    return {"value": float(value.mean()), "accuracy": float(accuracy.mean())}


def learned_as_asked(asked: Mapping[str, Any]) -> dict[str, Any]:
    """One method on one log."""
    details, data = dict[str, Any](), None if asked["data"] is None else Path(asked["data"])
    world = make_world(asked["world"], asked["seed"], data, asked["quick"])
    return done(asked, {asked["fit"]: learned(asked["fit"], world, details)}, {"ponn": ponn.__version__}, details)


if __name__ == "__main__":
    for name in ("torch", "sklearn.ensemble"):  # ponn loads them when they are needed
        import_module(name)
    LogisticRegression.fit = fit_once
    answer_jobs(learned_as_asked)
