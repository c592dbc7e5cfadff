"""Algorithm 1: a log becomes a policy. Step A, Step B, Step C, in this order, and the choice of lambda1 to lambda3."""

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import product
from typing import Any

import numpy as np

from ponn import __version__
from ponn.errors import PonnError
from ponn.learning.dr.robust import prepare_ground
from ponn.learning.learners import LEARNERS, Fitted, Prepared, Progress, companions, silent
from ponn.log.acquaintance import acquaintance, new_id, seal
from ponn.log.encoding import Encoding
from ponn.log.log import Log
from ponn.log.roles import Observed
from ponn.methods import method_named, search_of, settings_of
from ponn.policy.disclosure import (
    disclosed_encoding,
    disclosed_notes,
    disclosed_usual,
    rare_actions_told,
    with_disclosed_range,
)
from ponn.policy.models import Model
from ponn.policy.policy import PairLine, Policy
from ponn.settings import Settings, check_seed
from ponn.steps.propensity import Propensities, TooFewRows, propensities
from ponn.steps.relevance import Relevance, relevance
from ponn.training.loop import Candidate, Problem, Rows

Grid = Mapping[str, tuple[Any, ...]]
VERSIONED = ("numpy", "pyarrow", "scikit-learn", "torch")  # what a policy's numbers may depend on
VALID_SHARE = 0.3  # of the rows given to `learn`, as in section 7.2.1


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
    to choose among the method's grid (lambda1 to lambda3 and the like) by the validation criterion, as in the paper.
    Settings given are not tuned. Nothing is refitted. `ponn-dr` tunes itself: it learns from all rows given, each in
    turn held out.
    """
    started = time.perf_counter()
    check_seed(seed)
    name, row = method_named(method)
    chosen = settings_of(name, **settings)
    grid = search_of(row, chosen, settings) if tune else {}
    say = progress or silent
    whole, log = log, with_disclosed_range(log, chosen.min_cell)
    say("Steps A and B: propensities and relevance")
    prepared = prepare_whole(log, chosen, seed) if row.cross_fitted else prepare(log, chosen, seed)
    options = candidates(prepared, chosen, grid, seed)
    if not row.cross_fitted:  # such a learner tells its own steps
        say(f"Step C: training {len(options)} candidate{'s' if len(options) > 1 else ''}")
    fitted = LEARNERS[row.learner](prepared, options, workers, say)
    best = int(np.argmin([one.valid_loss for one in fitted]))
    say("Models of rewards and of current practice")
    made = assemble(prepared, name, options[best], fitted[best], len(options), time.perf_counter() - started)
    known = acquaintance(whole, new_id())
    source = {"digest": seal(whole), "rows": len(whole), "id": known.id}
    return replace(made, provenance={**made.provenance, "source": source}, acquaintance=known)


def prepare(log: Log, settings: Settings, seed: int) -> Prepared:
    """Split, encode, Step A on all rows, Step B on the training rows.

    Step A sees no rewards, so nothing leaks when training and validation rows share one propensity model; fitted on
    the validation rows alone it follows them too closely and a few of its weights would decide which candidate wins.
    """
    first, rest = log.split_rows(1 - VALID_SHARE, seed)
    part, valid = log.take(first), log.take(rest)
    check_training(part)
    encoding = Encoding.fit(part, settings, settings.min_cell)
    step_a = propensities(log, encoding, settings)
    step_b = relevance(part, encoding, step_a.take(first), settings) if settings.relevance else None
    train_rows, valid_rows = (
        rows_of(one, encoding, step_a.take(rows), settings.m is not None)
        for one, rows in ((part, first), (valid, rest))
    )
    problem = Problem(train_rows, valid_rows, len(log.actions))
    return Prepared(part, valid, encoding, step_a.take(first), step_b, problem)


def prepare_whole(log: Log, settings: Settings, seed: int, encoding: Encoding | None = None) -> Prepared:
    """For a learner that holds out every row in turn: encode, cross-fitted Step A and Step B on all rows."""
    check_training(log)
    ground = prepare_ground(log, encoding or Encoding.fit(log, settings, settings.min_cell), settings, seed)
    nobody = np.empty(0, np.intp)
    rows = rows_of(log, ground.encoding, ground.step_a, settings.m is not None)
    problem = Problem(rows, rows.take(nobody, 0.0), len(log.actions))
    return Prepared(log, log.take(nobody), ground.encoding, ground.step_a, ground.step_b, problem, ground)


def check_training(train: Log) -> None:
    """Raise PonnError where the rows to learn from hold one action or one reward only."""
    if len(np.unique(train.A)) < 2:
        by_time = "; the others were taken only later" if train.columns.time else ""
        only = train.actions[train.A[0]]
        raise TooFewRows(f"in the {len(train)} rows to learn from only action {only!r} was taken{by_time}")
    if np.ptp(train.R) == 0:
        by_time = "; others came only later" if train.columns.time else ""
        raise PonnError(
            f"In the {len(train)} rows to learn from every reward is {train.in_units(float(train.R[0])):g}{by_time}: "
            "nothing tells one action from another. Bring more rows in which outcomes differ."
        )


def rows_of(log: Log, encoding: Encoding, step_a: Propensities, truncate: bool) -> Rows:
    """Rows as the network reads them; Step C uses plain 1/p unless m was given. Row weights count with mean 1."""
    w = step_a.weights if truncate else 1 / step_a.p
    if log.weight is not None:
        w = w * (log.weight / log.weight.mean())
    return Rows(encoding.design(log), log.A, log.R, w, float(len(log)), log.eligible)


def masks_of(prepared: Prepared, settings: Settings) -> np.ndarray:
    """f_a over design columns: [k, D]."""
    if prepared.step_b is None:
        return np.ones((len(prepared.train.actions), len(prepared.encoding.owner)), bool)
    return prepared.step_b.under(settings).selected[:, prepared.encoding.owner]


def candidates(prepared: Prepared, settings: Settings, grid: Grid, seed: int) -> list[Candidate]:
    """One candidate per point of the grid; points with equal masks that differ in thresholds alone are one.

    An empty grid is the settings themselves.
    """
    if settings.criterion == "ips" and settings.clip is None:
        settings = replace(settings, clip=usual_clip(prepared.problem.train.w))
    found: dict[tuple[Any, ...], Candidate] = {}
    for point in product(*grid.values()):
        tried = replace(settings, **dict(zip(grid, point, strict=True)))
        masks = masks_of(prepared, tried)
        key = (masks.tobytes(), replace(tried, lambda1=0.0, lambda2=0.0, fdr=0.0))
        found.setdefault(key, Candidate(masks, tried, seed))
    return list(found.values())


def usual_clip(w: np.ndarray) -> float:
    """M as Swaminathan and Joachims (2015) set it: the ratio of the 90th to the 10th percentile of the propensities."""
    low, high = np.quantile(1 / w, (0.1, 0.9))
    return float(high / low)


def assemble(
    prepared: Prepared,
    method: str,
    chosen: Candidate,
    fitted: Fitted,
    tried: int,
    seconds: float,
    beside: Mapping[str, Model] | None = None,
) -> Policy:
    """The policy with everything needed to explain it; beside: its companions, where they are fitted already."""
    step_a, settings = prepared.step_a, fitted.settings or chosen.settings
    step_b = prepared.step_b.under(settings) if prepared.step_b and settings.relevance else None
    d = len(prepared.encoding.features)
    told: list[str] = []
    carried = companions(prepared, settings, fitted, told) if beside is None else beside
    selected = np.ones((len(prepared.train.actions), d), bool) if step_b is None else step_b.selected
    counts = dict(zip(prepared.train.actions, np.bincount(prepared.train.A), strict=False))
    told += rare_actions_told(counts, settings.min_cell)
    notes = (*prepared.train.notes, *prepared.encoding.notes, *step_a.notes, *fitted.notes, *told)
    provenance = {
        "rows": {"train": len(prepared.train), "valid": len(prepared.valid)},
        "reward": {
            "range": list(prepared.train.reward_range),
            "declared": not isinstance(prepared.train.reward_range, Observed),
            "minimize": prepared.train.minimize,
        },
        "columns": asdict(prepared.train.columns),
        "drop_missing": prepared.train.drop_missing,
        "propensities": {"model": step_a.model, "known": float(step_a.known.mean())},
        "seed": chosen.seed,
        "candidates": tried,
        "training": {"valid_loss": fitted.valid_loss, **fitted.details},
        "notes": disclosed_notes(notes, settings.min_cell),
        "versions": {"ponn": __version__, **{name: version(name) for name in VERSIONED}},
        "seconds": round(seconds, 3),
    }
    return Policy(
        actions=prepared.train.actions,
        encoding=disclosed_encoding(prepared.encoding, prepared.train.X, settings.min_cell),
        model=fitted.model,
        selected=selected,
        relevance=() if step_b is None else tuple(pair_lines(step_b)),
        method=method,
        settings=asdict(settings),
        provenance=provenance,
        companions=carried,
        usual=disclosed_usual(prepared.encoding, prepared.train.X, settings.min_cell),
        eligibility=prepared.train.eligibility,
    )


def pair_lines(step_b: Relevance) -> list[PairLine]:
    """Step B's table in plain values."""
    names = ("action", "feature", "relevance", "threshold", "bound", "selected")
    return [PairLine(**{name: row[name] for name in names}) for row in step_b.table().to_pylist()]
