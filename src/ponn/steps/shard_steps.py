"""Steps A and B and reward models for logs on disk: sums over shards, each a pass of few or many workers.

symbol   meaning                                                                              shape
X        design columns and a last column of 1                                                [n, D + 1]
theta    coefficients of a regression per fold, each fitted without the rows of its fold      [folds, D + 1, k]
p        probability of the action that was taken                                             [n]

One fold means a regression on all rows, as in the paper's Step A.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from ponn.engine.passes import Arrays, Passes
from ponn.errors import PonnError
from ponn.log.encoding import Encoding
from ponn.log.log import Log
from ponn.log.sharded import Batch, Reader, ShardedLog
from ponn.log.shards import ROWS_SALT, FileShard, uniform
from ponn.settings import Settings
from ponn.steps.discovery import p_values
from ponn.steps.logistic import (
    MOST_PASSES,
    fold_starts,
    log_probabilities,
    multinomial_sums,
    newton_step,
    penalised,
    reward_sums,
    with_ones,
)
from ponn.steps.propensity import Propensities, ionides_truncation, likeliest_penalty, with_eligibility
from ponn.steps.relevance import Relevance, relevance_of
from ponn.steps.reward import SURE, fit_rewards
from ponn.steps.tally import GramTally, LevelTally, Tally, tally_log

REWARD_PASSES = 2  # Newton's method from a sample's optimum: what is left after two is about (error of the sample)^4
FAR = 5.0  # the longest step of a coefficient of a reward model: further away the loss is not near a parabola
ROWS_PER_COEFFICIENT = 20  # sampled rows of an action for its regression to be a start


def added(one: Arrays, other: Arrays) -> Arrays:
    """Plain sums merge array by array."""
    return {name: array + other[name] for name, array in one.items()}


# Step A --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Practice:
    """How likely the logged actions were: known from the log, or by a regression on its rows."""

    theta: np.ndarray | None  # [folds, D + 1, k]; None: every propensity is known
    m: float
    seed: int
    notes: tuple[str, ...] = ()
    limited: tuple[int, ...] = ()  # actions that are not eligible everywhere; the regression sees where they are

    @property
    def model(self) -> str:
        """What the propensities are from."""
        return "known" if self.theta is None else "logistic"

    def p(self, batch: Batch, X: np.ndarray) -> np.ndarray:
        """The probability of each action that was taken, among the eligible ones; X has a last column of 1."""
        log = batch.log
        if self.theta is None:
            assert log.p0 is not None
            return log.p0  # [n]
        X, p = with_eligibility(X, log, self.limited), np.empty(len(log))
        for f, rows in fold_rows(batch, len(self.theta), self.seed):
            log_p, taken = log_probabilities(self.theta[f], X[rows]), (np.arange(len(rows)), log.A[rows])
            p[rows] = np.exp(log_p[taken])
            if log.eligible is not None:
                p[rows] /= (np.exp(log_p) * log.eligible[rows]).sum(axis=1)
        return p if log.p0 is None else np.where(np.isnan(log.p0), p, log.p0)  # [n]


def fold_rows(batch: Batch, folds: int, seed: int) -> Iterator[tuple[int, np.ndarray]]:
    """Each fold with the rows that belong to it."""
    number = batch.folds(folds, seed)
    for f in range(folds):
        yield f, np.flatnonzero(number == f)


def other_rows(batch: Batch, folds: int, seed: int) -> Iterator[tuple[int, np.ndarray]]:
    """Each fold with the rows that its regression is fitted on: those of the other folds; all where there is one."""
    number = batch.folds(folds, seed)
    for f in range(folds):
        yield f, np.flatnonzero(number != f) if folds > 1 else np.arange(len(number))


@dataclass(frozen=True, eq=False)
class LoggingSums:
    """Loss and slope of Step A's regressions over the rows of a shard."""

    reader: Reader
    encoding: Encoding
    theta: np.ndarray  # [folds, D + 1, k]; D counts the columns of actions that are not eligible everywhere
    seed: int

    def __call__(self, shard: FileShard) -> Arrays:
        """Sums per fold."""
        loss, g = np.zeros(len(self.theta)), np.zeros_like(self.theta)
        for batch in self.reader.batches(shard):
            X = with_eligibility(with_ones(self.encoding.design(batch.log)), batch.log, self.reader.limited)
            for f, rows in other_rows(batch, len(self.theta), self.seed):
                more, slope = multinomial_sums(self.theta[f], X[rows], batch.log.A[rows])
                loss[f] += more
                g[f] += slope
        return {"loss": loss, "g": g}


def fit_practice(
    log: ShardedLog, encoding: Encoding, passes: Passes, settings: Settings, *, folds: int = 1, seed: int = 0
) -> Practice:
    """Step A: nothing where propensities are known, else a multinomial regression in at most MOST_PASSES passes."""
    if log.known_propensities:
        return Practice(None, settings.m or np.inf, seed)
    if settings.propensity != "logistic" or settings.calibrate:
        raise PonnError(
            "On a log on disk propensities are estimated by plain logistic regression; leave out the settings "
            "propensity and calibrate, or read the log into memory (lazy=False)."
        )
    penalty, notes = chosen_penalty(log, encoding, settings)
    sample, limited = log.sample, log.reader.limited
    X = with_eligibility(with_ones(encoding.design(sample.log)), sample.log, limited)
    k, times = len(log.actions), len(log) / len(sample.log)
    rows_of_folds = [rows for _, rows in other_rows(sample, folds, seed)]
    descents = fold_starts(X, sample.log.A, k, penalty, times, rows_of_folds)
    for _ in range(MOST_PASSES):
        points = np.array([one.point for one in descents])
        work = LoggingSums(log.reader, encoding, points, seed)
        total = reduce(added, passes.over("Step A", work, log.shards))
        for f, one in enumerate(descents):
            one.tell(*penalised(float(total["loss"][f]), total["g"][f], points[f], penalty))
        if all(one.done for one in descents):
            break
    notes += [
        f"The propensity model had not settled after {MOST_PASSES} passes: a coefficient would still move by "
        f"{one.left:.2g}."
        for one in descents
        if not one.done
    ][:1]
    if log.survey.unknown_propensities:
        share = log.survey.unknown_propensities / log.survey.rows
        notes.append(f"{share:.1%} of the propensities were missing and were estimated (logistic).")
    m = settings.m or ionides_truncation(len(log))
    return Practice(np.array([one.theta for one in descents]), m, seed, tuple(notes), limited)


def chosen_penalty(log: ShardedLog, encoding: Encoding, settings: Settings) -> tuple[float, list[str]]:
    """The penalty of the settings, or the likeliest one of the sample."""
    if settings.propensity_penalty is not None:
        return settings.propensity_penalty, []
    rows = log.sample.log
    X = with_eligibility(encoding.design(rows).astype(float), rows, log.reader.limited)
    penalty = likeliest_penalty(X, rows, settings, len(log.actions) * X.shape[1], 0)
    return penalty, [f"The penalty {penalty:g} of the propensity model was chosen by cross-validation on a sample."]


# Step B --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TallySums:
    """The tally of a shard's rows, and what else Step B wants to know of its weights."""

    reader: Reader
    encoding: Encoding
    practice: Practice
    centre: np.ndarray | None = None  # [k]: mean rewards to take off, for the test

    def __call__(self, shard: FileShard) -> Arrays:
        """The sums of Step B."""
        k = len(self.reader.actions)
        total, least = Tally.zero(self.encoding, k), np.inf
        weight, rewarded, cut, taken, outcome = np.zeros((5, k))
        for batch in self.reader.batches(shard):
            log = batch.log
            p = self.practice.p(batch, self.design(log))
            plain = 1 / p
            w = np.minimum(plain, self.practice.m)
            u = w * log.R if self.centre is None else w * (log.R - self.centre[log.A])
            total += tally_log(self.encoding, log, u, gram=self.centre is None)
            least, A = min(least, float(p.min())), log.A.astype(np.intp)
            weight += np.bincount(A, w, minlength=k)
            rewarded += np.bincount(A, u if self.centre is None else w * log.R, minlength=k)
            cut += np.bincount(A[plain > self.practice.m], minlength=k)
            taken += np.bincount(A, minlength=k)
            outcome += np.bincount(A, log.R, minlength=k)
        sums = {"w": weight, "wR": rewarded, "taken": taken, "R": outcome, "cut": cut}
        return {**packed_tally(total), "least": np.array(least), **sums}

    def design(self, log: Log) -> np.ndarray:
        """What the propensities are computed from; nothing where they are known."""
        return with_ones(self.encoding.design(log)) if self.practice.theta is not None else np.empty((0, 0))


def packed_tally(tally: Tally) -> Arrays:
    """A tally as named arrays."""
    levels, gram = tally.levels, tally.gram
    found = {"N": levels.N, "N_taken": levels.N_taken, "U": levels.U, "M2": levels.M2}
    return {**found, "n": np.array(gram.n), "mean": gram.mean, "C": gram.C}


def unpacked_tally(part: Arrays) -> Tally:
    """A tally from named arrays."""
    levels = LevelTally(*(part[name] for name in ("N", "N_taken", "U", "M2")))
    return Tally(levels, GramTally(float(part["n"]), part["mean"], part["C"]))


def tally_shards(
    log: ShardedLog, encoding: Encoding, practice: Practice, passes: Passes, centre: np.ndarray | None = None
) -> tuple[Tally, Arrays]:
    """One pass of Step B: the tally, and sums of weights by action with the least propensity."""
    total = Tally.zero(encoding, len(log.actions))
    rest: Arrays = {}
    name = "Step B" if centre is None else "Step B, test"
    for part in passes.over(name, TallySums(log.reader, encoding, practice, centre), log.shards):
        total += unpacked_tally(part)
        sums = {one: rest[one] + part[one] if rest else part[one] for one in ("w", "wR", "taken", "R", "cut")}
        rest = {**sums, "least": np.minimum(rest["least"], part["least"]) if rest else part["least"]}
    return total, rest


def shard_relevance(
    log: ShardedLog, encoding: Encoding, practice: Practice, passes: Passes, settings: Settings
) -> tuple[Relevance, Propensities]:
    """Step B: one pass, and one more for the test where features are selected by it.

    The propensities returned stand for all rows: the least one, which decides the largest weight.
    """
    tally, sums = tally_shards(log, encoding, practice, passes)
    p = tested_shards(log, encoding, practice, passes, sums, settings.even) if settings.select != "threshold" else None
    found = summary_of(practice, log, sums, float(tally.levels.N[-1]))
    weighted, even = (None, p) if settings.even else (p, None)
    return relevance_of(tally, encoding, log.actions, found, settings, p_value=weighted, even_p_value=even), found


def tested_shards(
    log: ShardedLog, encoding: Encoding, practice: Practice, passes: Passes, sums: Arrays, even: bool
) -> np.ndarray:
    """The test's p-values by one more pass; even: with rows that count alike, as weights cut at 1 do."""
    total, of = (sums["R"], sums["taken"]) if even else (sums["wR"], sums["w"])
    centre = np.divide(total, of, out=np.zeros(len(of)), where=of > 0)
    by = replace(practice, m=1.0) if even else practice
    return p_values(tally_shards(log, encoding, by, passes, centre)[0].levels, encoding.b)


def summary_of(practice: Practice, log: ShardedLog, sums: Arrays, n: float) -> Propensities:
    """Step A's result in the form of a log in memory, of a single row: the least probable one."""
    cut, notes = int(sums["cut"].sum()), list(practice.notes)
    if cut:
        notes.append(f"Weights above {practice.m:.4g} were cut to it in {cut} of {n} rows.")
    known = np.array([log.known_propensities])
    return Propensities(sums["least"].reshape(1), None, known, practice.m, practice.model, 1, tuple(notes))


# Reward models -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RewardSums:
    """Slope and curvature of the reward models over the rows of a shard."""

    reader: Reader
    encoding: Encoding
    theta: np.ndarray  # [folds, D + 1, k]
    seed: int

    def __call__(self, shard: FileShard) -> Arrays:
        """Sums per fold and action."""
        folds, size, k = self.theta.shape
        g, H, seen = np.zeros_like(self.theta), np.zeros((folds, k, size, size)), np.zeros((folds, 2, k))
        for batch in self.reader.batches(shard):
            log, X = batch.log, with_ones(self.encoding.design(batch.log))
            for f, rows in other_rows(batch, folds, self.seed):
                found = reward_sums(self.theta[f], X[rows], log.A[rows], log.R[rows], log.row_weights[rows])
                for total, more in zip((g[f], H[f], seen[f]), found, strict=True):
                    total += more
        return {"g": g, "H": H, "seen": seen}


def fit_reward_models(
    log: ShardedLog, encoding: Encoding, passes: Passes, settings: Settings, *, folds: int = 1, seed: int = 0
) -> np.ndarray:
    """Logistic reward models per fold and action, in REWARD_PASSES passes: [folds, D + 1, k]."""
    sample = log.sample
    X, rows = encoding.design(sample.log), sample.log
    times, penalty = len(log) / len(rows), settings.reward_penalty
    theta = np.array(
        [start_of_rewards(X[some], rows.take(some), penalty / times) for _, some in other_rows(sample, folds, seed)]
    )
    for _ in range(REWARD_PASSES):
        work = RewardSums(log.reader, encoding, theta, seed)
        total = reduce(added, passes.over("reward models", work, log.shards))
        theta = np.array(
            [stepped(theta[f], total["g"][f], total["H"][f], total["seen"][f], penalty) for f in range(folds)]
        )
    return theta


def start_of_rewards(X: np.ndarray, log: Log, penalty: float) -> np.ndarray:
    """The sample's optimum; for an action with few rows its mean reward."""
    k = len(log.actions)
    model = fit_rewards(X, log.A, log.R, log.row_weights, k, penalty)
    theta = np.vstack([model.W, model.c])  # [D + 1, k]
    for a in range(k):
        R = log.R[log.A == a]
        if len(R) < ROWS_PER_COEFFICIENT * len(theta) or not 0 < R.mean() < 1:
            share = (R.sum() + 1) / (len(R) + 2)
            theta[:, a] = 0
            theta[-1, a] = np.log(share / (1 - share))
    return theta


def stepped(theta: np.ndarray, g: np.ndarray, H: np.ndarray, seen: np.ndarray, penalty: float) -> np.ndarray:
    """Newton's step, shortened where it is long; an action with one outcome only has no slopes."""
    step = newton_step(theta, g, H, penalty) - theta
    step /= np.maximum(np.abs(step).max(axis=0) / FAR, 1.0)
    found = theta + step
    share = np.divide(seen[1], seen[0], out=np.zeros(len(seen[0])), where=seen[0] > 0)
    for a in np.flatnonzero(~((share > 0) & (share < 1))):
        found[:, a] = 0
        found[-1, a] = SURE * np.sign(share[a] - 0.5)
    return found


def predicted_rewards(theta: np.ndarray, batch: Batch, X: np.ndarray, seed: int) -> np.ndarray:
    """r_hat(a, x_j) of every action from the model that never saw row j's fold: [n, k]."""
    Q = np.empty((len(X), theta.shape[2]))
    for f, rows in fold_rows(batch, len(theta), seed):
        Q[rows] = 1 / (1 + np.exp(-np.clip(X[rows] @ theta[f], -500, 500)))
    return Q


# Rows for Step C -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ContributingRows:
    """The rows that can change the criterion of Step C, as the network reads them."""

    reader: Reader
    encoding: Encoding
    practice: Practice
    rewarded_only: bool  # rows without reward add nothing to the criterion
    truncate: bool  # weights at most m; otherwise plain 1/p
    mean_weight: float  # of the log's row weights
    share: float = 1.0  # of the rows, by hash

    def parts(self, shard: FileShard) -> Iterator[Arrays]:
        """X, A, R, w of some rows at a time, and how many rows they come from."""
        for batch in self.reader.batches(shard):
            chosen = uniform(batch.units, ROWS_SALT) < self.share
            kept = np.flatnonzero(chosen & (batch.log.R > 0) if self.rewarded_only else chosen)
            part = Batch(batch.log.take(kept), batch.units[kept])
            yield {**self.rows(part), "n": np.array(float(chosen.sum()))}

    def rows(self, batch: Batch) -> Arrays:
        """Rows as the network reads them."""
        log, X = batch.log, self.encoding.design(batch.log)
        p = self.practice.p(batch, with_ones(X) if self.practice.theta is not None else X)
        w = np.minimum(1 / p, self.practice.m) if self.truncate else 1 / p
        w = w if log.weight is None else w * (log.weight / self.mean_weight)
        found = {"X": X, "A": log.A, "R": log.R.astype(np.float32), "w": w.astype(np.float32)}
        return found if log.eligible is None else {**found, "eligible": log.eligible}

    def __call__(self, shard: FileShard) -> Arrays:
        """All contributing rows of a shard."""
        parts = list(self.parts(shard))
        if not parts:
            return {"n": np.array(0.0)}
        columns = {name: np.concatenate([one[name] for one in parts]) for name in parts[0] if name != "n"}
        return {**columns, "n": np.array(sum(float(one["n"]) for one in parts))}
