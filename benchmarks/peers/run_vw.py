"""Vowpal Wabbit's contextual bandits: ips, dm and dr by --cb, mtr by --cb_adf, which alone has it."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from vowpalwabbit import Workspace

from trials import Fit, Rows, Scores, main

BITS = 22  # of the table of weights, so that pairs of features hardly share one


def cells(X: np.ndarray) -> list[str]:
    """Rows in the text format; what is 0 is left out.

    Features have names, as numbers are taken for places in the table of weights, which actions then share.
    """
    return [" ".join(f"x{i}:{row[i]:.6g}" for i in np.flatnonzero(row)) for row in X]


def arguments(kind: str, trial: Mapping[str, Any], seed: int) -> str:
    """What all kinds share; costs are negative rewards, as an unseen action is taken to cost 0."""
    told = f"--cb_type {kind} --quiet --random_seed {seed} -b {BITS} --learning_rate {trial['learning_rate']}"
    return told + (f" --nn {trial['nn']}" if "nn" in trial else "")


def learn(model: Workspace, examples: Sequence[Any], passes: int, seed: int) -> None:
    """Several passes over the rows in an order of chance; the examples' memory is given back."""
    rng = np.random.default_rng(seed)
    for _ in range(passes):
        for j in rng.permutation(len(examples)):
            model.learn(examples[j])
    for example in examples:
        model.finish_example(example)


def by_cb(kind: str) -> Fit:
    """One model for a fixed number of actions."""

    def fit(rows: Rows, trial: Mapping[str, Any], seed: int) -> Scores:
        pairs = " --quadratic xx" if "interactions" in trial else ""
        model = Workspace(f"--cb {rows.k} {arguments(kind, trial, seed)}{pairs}")
        lines = zip(rows.A, rows.R, rows.p, cells(rows.X), strict=True)
        examples = [model.example(f"{A + 1}:{-R:.6g}:{p:.6g} |x {x}") for A, R, p, x in lines]
        learn(model, examples, trial["passes"], seed)
        return lambda new: np.eye(rows.k)[[model.predict(f"|x {x}") - 1 for x in cells(new.X)]]

    return fit


def by_adf(kind: str) -> Fit:
    """Every action is described by its number, crossed with the row's features."""

    def fit(rows: Rows, trial: Mapping[str, Any], seed: int) -> Scores:
        crossed = " --quadratic ax" + (" --cubic axx" if "interactions" in trial else "")
        model = Workspace(f"--cb_adf {arguments(kind, trial, seed)}{crossed}")
        lines = zip(rows.A, rows.R, rows.p, cells(rows.X), strict=True)
        examples = [model.parse(adf(x, rows.k, A, f"0:{-R:.6g}:{p:.6g} ")) for A, R, p, x in lines]
        learn(model, examples, trial["passes"], seed)
        return lambda new: -np.array([model.predict(adf(x, rows.k)) for x in cells(new.X)])

    return fit


def adf(x: str, k: int, taken: int = -1, label: str = "") -> list[str]:
    """One row as a line for what all actions share and a line for each."""
    return [f"shared |x {x}", *(f"{label if a == taken else ''}|a a{a}" for a in range(k))]


if __name__ == "__main__":
    fits = {kind: by_cb(kind) for kind in ("ips", "dm", "dr")}
    main({**fits, "mtr": by_adf("mtr")}, {"vowpalwabbit": version("vowpalwabbit")})
