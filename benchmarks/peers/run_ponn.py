"""The methods of ponn. They read the table itself, not its design columns; the rows of each part are the same."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trials import Fit, Rows, Scores, job, main

import ponn
from peer_worlds import make_world


def learned(method: str, log: ponn.Log, details: dict[str, Any]) -> Fit:
    """A named method."""

    def fit(rows: Rows, trial: Mapping[str, Any], seed: int) -> Scores:
        policy = ponn.learn(log.take(rows.places), method, seed=seed, workers=1, **trial)
        if method == "ponn-dr":
            details.update(policy.provenance["training"])
        return lambda new: policy.predict_proba(log.take(new.places))

    return fit


if __name__ == "__main__":
    asked, details = job(), dict[str, Any]()
    data = None if asked["data"] is None else Path(asked["data"])
    log = make_world(asked["world"], asked["seed"], data, asked["quick"]).log
    main({asked["fit"]: learned(asked["fit"], log, details)}, {"ponn": ponn.__version__}, details)
