"""Algorithm 1: a log becomes a policy. Step A, Step B, Step C, in this order, and the choice of lambda1 to lambda3."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import product
from typing import Any

import numpy as np

from ponn.encode import Encoding
from ponn.log import Log
from ponn.policy import PairLine, Policy
from ponn.propensity import Propensities, propensities
from ponn.relevance import Relevance, relevance
from ponn.settings import DEFAULT_METHOD, METHODS, Settings, settings_of
from ponn.train import Candidate, Problem, Rows, Trained, train, train_many

VALID_SHARE = 0.3  # of the rows given to `learn`, as in section 7.2.1
# Where lambda1..3 are looked for: the paper's ranges for l2 (lambda1 in [0.005, 0.1], lambda2 in [0, 0.01], lambda3 in
# [0.0001, 0.1]); with l1 the useful lambda1 is near 0.5 to 1.
LAMBDA1 = {"l2": (0.005, 0.02, 0.05, 0.1), "l1": (0.2, 0.4, 0.7, 1.0)}
LAMBDA2 = (0.0, 0.01)
LAMBDA3 = (1e-4, 1e-3, 1e-2)

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What all candidates share: one encoding, one pass of Step A, one of Step B."""

    train: Log
    valid: Log
    encoding: Encoding
    step_a: Propensities  # of the training rows
    step_b: Relevance | None
    problem: Problem


def learn(
    log: Log,
    method: str | None = None,
    tune: bool = False,
    seed: int = 0,
    *,
    progress: Progress | None = None,
    workers: int | None = None,
    **settings: Any,
) -> Policy:
    """Learn a policy from a log by a named method (`ponn.METHODS`); every field of `ponn.Settings` is a keyword.

    30 % of the rows (by time or group where the log has such a column) are kept to stop training and, with tune=True,
    to choose lambda1, lambda2 and lambda3 by the validation criterion, as in the paper. Nothing is refitted.
    """
    started = time.perf_counter()
    name = method or DEFAULT_METHOD
    chosen = settings_of(name, **settings)
    say = progress or (lambda message: None)
    say("Steps A and B: propensities and relevance")
    prepared = prepare(log, chosen, seed)
    options = candidates(prepared, chosen, METHODS[name]["penalty"], seed) if tune else [one(prepared, chosen, seed)]
    say(f"Step C: training {len(options)} network{'s' if len(options) > 1 else ''}")
    best, trained = train_best(prepared.problem, options, workers, say)
    return assemble(prepared, name, best, trained, len(options), time.perf_counter() - started)


def prepare(log: Log, settings: Settings, seed: int) -> Prepared:
    """Split, encode, Step A on the rows of each part, Step B on the training rows."""
    part, valid = log.split(1 - VALID_SHARE, seed)
    encoding = Encoding.fit(part, settings)
    step_a, step_a_valid = (propensities(rows, encoding, settings) for rows in (part, valid))
    step_b = relevance(part, encoding, step_a, settings) if settings.relevance else None
    train_rows, valid_rows = (
        rows_of(rows, encoding, found, settings.m is not None)
        for rows, found in ((part, step_a), (valid, step_a_valid))
    )
    problem = Problem(train_rows, valid_rows, len(log.actions))
    return Prepared(part, valid, encoding, step_a, step_b, problem)


def rows_of(log: Log, encoding: Encoding, step_a: Propensities, truncate: bool) -> Rows:
    """Rows as the network reads them; Step C uses plain 1/p unless m was given. Row weights count with mean 1."""
    w = step_a.weights if truncate else 1 / step_a.p
    if log.weight is not None:
        w = w * (log.weight / log.weight.mean())
    return Rows(encoding.design(log), log.A, log.R, w, float(len(log)))


def masks_of(prepared: Prepared, lambda1: float, lambda2: float) -> np.ndarray:
    """f_a over design columns: [k, D]."""
    if prepared.step_b is None:
        return np.ones((len(prepared.train.actions), len(prepared.encoding.owner)), bool)
    return prepared.step_b.with_thresholds(lambda1, lambda2).selected[:, prepared.encoding.owner]


def one(prepared: Prepared, settings: Settings, seed: int) -> Candidate:
    """The network with these very settings."""
    return Candidate(masks_of(prepared, settings.lambda1, settings.lambda2), settings, seed)


def candidates(prepared: Prepared, settings: Settings, penalty: str, seed: int) -> list[Candidate]:
    """The grid of lambda1, lambda2, lambda3; points with equal masks and penalty are one candidate."""
    by_threshold = prepared.step_b is not None and settings.select == "threshold"
    thresholds = product(LAMBDA1[settings.loss], LAMBDA2) if by_threshold else [(settings.lambda1, settings.lambda2)]
    found: dict[tuple[bytes, float], Candidate] = {}
    for (lambda1, lambda2), lambda3 in product(thresholds, LAMBDA3):
        change: dict[str, Any] = {"lambda1": lambda1, "lambda2": lambda2, penalty: lambda3}
        tried = replace(settings, **change)
        candidate = one(prepared, tried, seed)
        found.setdefault((candidate.masks.tobytes(), lambda3), candidate)
    return list(found.values())


def train_best(
    problem: Problem, options: list[Candidate], workers: int | None, say: Progress
) -> tuple[Candidate, Trained]:
    """Train all candidates; the one with the lowest validation criterion."""
    if len(options) == 1:
        return options[0], train(problem, options[0])
    quick = [replace(option, settings=replace(option.settings, watched=0)) for option in options]

    def tell(done: int, total: int, newest: Trained) -> None:
        say(f"Step C: {done} of {total} networks trained, validation loss {newest.valid_loss:.4g}")

    results = train_many(problem, quick, workers=workers, progress=tell)
    best = int(np.argmin([result.valid_loss for result in results]))
    return options[best], results[best]


def assemble(
    prepared: Prepared, method: str, chosen: Candidate, trained: Trained, tried: int, seconds: float
) -> Policy:
    """The policy with everything needed to explain it."""
    step_b, settings = prepared.step_b, chosen.settings
    if step_b is not None:
        step_b = step_b.with_thresholds(settings.lambda1, settings.lambda2)
    d = len(prepared.encoding.features)
    selected = np.ones((len(prepared.train.actions), d), bool) if step_b is None else step_b.selected
    provenance = {
        "rows": {"train": len(prepared.train), "valid": len(prepared.valid)},
        "reward": {"range": list(prepared.train.reward_range), "minimize": prepared.train.minimize},
        "columns": asdict(prepared.train.columns),
        "propensities": {"model": prepared.step_a.model, "known": float(prepared.step_a.known.mean())},
        "seed": chosen.seed,
        "candidates": tried,
        "training": {
            "epochs": trained.epochs,
            "best_epoch": trained.best_epoch,
            "valid_loss": trained.valid_loss,
            "retries": trained.retries,
            "mean_ratio": None if trained.ratio is None else float(trained.ratio.total),
        },
        "notes": [*prepared.train.notes, *prepared.encoding.notes, *prepared.step_a.notes, *trained.notes],
        "versions": {"ponn": version("ponn"), "numpy": np.__version__},
        "seconds": round(seconds, 3),
    }
    return Policy(
        actions=prepared.train.actions,
        encoding=prepared.encoding,
        architecture=trained.architecture,
        weights=trained.weights,
        selected=selected,
        relevance=() if step_b is None else tuple(pair_lines(step_b)),
        method=method,
        settings=asdict(settings),
        provenance=provenance,
    )


def pair_lines(step_b: Relevance) -> list[PairLine]:
    """Step B's table in plain values."""
    names = ("action", "feature", "relevance", "threshold", "bound", "selected")
    return [PairLine(**{name: row[name] for name in names}) for row in step_b.table().to_pylist()]
