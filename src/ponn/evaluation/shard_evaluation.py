"""What policies are worth on a log on disk: the off-policy estimators from sums over shards.

Every row gives a few numbers (`VARIABLES`); their means and co-moments are summed over all rows and merge with `+`.
An estimator is a smooth function of the means, so its value and standard error follow from these sums alone
(the delta method, which is the variance of psi in estimators.py).

symbol   meaning                                                             shape
V        the variables of a row, times its weight                            [n, variables]
mu, C    their means and co-moments                                          [variables], [variables, variables]
u        what the outcome of a row moves: weight w; the weight itself in     [n, policies + 1]
         the last column, which is current practice
slope    slope of an estimator in the means                                  [variables]

Rows of one group count together: groups are dealt out to GROUP_BUCKETS buckets by a hash, and buckets take the place
of groups in the cluster-robust variance. With fewer groups than buckets that is nearly the same; with more, sums over
independent groups are as good, but for outcomes that were not seen, for which they leave less room.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from ponn.engine.passes import Arrays, Passes
from ponn.errors import PonnError
from ponn.evaluation.estimators import BY_WEIGHTS_ALONE, terms
from ponn.evaluation.intervals import Estimate, lopsided, room_for, unseen_from
from ponn.evaluation.valuation import (
    FOLDS,
    Comparison,
    CurrentPractice,
    Sampled,
    SupportedOnly,
    Valued,
    hardly_logged,
    ineligible_share_told,
    possible,
    wanted_on,
)
from ponn.evaluation.verdict import both_sides, verdict
from ponn.evaluation.weights import Overlap, pareto_k_of, tail_rows
from ponn.log.encoding import Encoding
from ponn.log.sharded import Batch, Reader, ShardedLog
from ponn.log.shards import FileShard
from ponn.policy.policy import Policy
from ponn.settings import Settings
from ponn.steps.logistic import with_ones
from ponn.steps.shard_steps import Practice, fit_practice, fit_reward_models, predicted_rewards
from ponn.steps.tally import GramTally

# Variables of every row, times its weight: nothing, its reward, and what was unexpected in that by the reward model and
# by the mean reward of the sample.
COMMON = ("1", "R", "by model", "by mean")
EXPECTED = (2, 3)  # the places of the last two
VARIABLES = ("dm", "w error", "w", "w R")  # of every policy
GROUP_BUCKETS = 16_384
SLACK = 1.2  # more of the largest weights are kept than are needed, as the number of rows of a part is not known before
PRACTICE, LOGGED = "practice", -1


# The sums ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ValueSums:
    """Means and co-moments of the variables over the rows of a shard, and the largest weights."""

    reader: Reader
    encoding: Encoding
    practice: Practice
    theta: np.ndarray  # reward models: [folds, D + 1, k]
    policies: tuple[Valued, ...]
    seed: int
    largest: int  # weights to keep
    counts: np.ndarray  # [k]: rows of each action in the whole directory
    mean: float  # reward of the sample
    scale: float  # mean weight of the sample's rows: cubes of very large ones would overflow

    def __call__(self, shard: FileShard) -> Arrays:
        """The shard's sums."""
        total = Sums.zero(len(self.policies), len(self.reader.actions), self.reader.columns.group is not None)
        for batch in self.reader.batches(shard):
            total += self.looked_at(batch)
        return total.arrays(self.largest)

    def looked_at(self, batch: Batch) -> "Sums":
        """The sums of a few rows."""
        log, X = batch.log, with_ones(self.encoding.design(batch.log))
        p, Q = self.practice.p(batch, X), predicted_rewards(self.theta, batch, X, self.seed)
        unexpected = [log.R - Q[np.arange(len(log)), log.A], log.R - self.mean]
        columns, weights, wanted, impossible = [np.ones(len(log)), log.R, *unexpected], [], [], []
        ask = cache(lambda learned: learned.predict_proba(log))  # taken as it recommends and drawn from, asked once
        for policy in self.policies:
            plain = wanted_on(policy, log, ask)
            impossible.append(0.0 if log.eligible is None else float(plain[~log.eligible].sum()))
            h = possible(plain, log, self.counts)
            t = terms(h, log.A, log.R, p, Q)
            dm, error = t.predictions()
            columns += [dm, t.w * error, t.w, t.w * log.R]
            weights.append(t.w * log.row_weights)
            wanted.append(h.sum(axis=0))
        V = np.column_stack(columns) * log.row_weights[:, None]  # [n, variables]
        taken = np.bincount(log.A, minlength=len(log.actions)).astype(float)
        tails = [Tail.of(w, self.largest) for w in weights]
        groups = None if log.columns.group is None else bucket_sums(V, batch.units)
        by_policy = np.array(wanted).reshape(len(self.policies), -1)
        moved = moved_sums(np.column_stack([*weights, log.row_weights]) / self.scale, unexpected)
        return Sums(moments(V), taken, by_policy, np.array(impossible), tails, moved, groups)


def moments(V: np.ndarray) -> GramTally:
    """Means and co-moments of some rows."""
    mean = V.mean(axis=0)
    away = V - mean
    return GramTally(float(len(V)), mean, away.T @ away)


def bucket_sums(V: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Sums of the variables, and rows, by bucket: [buckets, variables + 1]."""
    bucket = (units % np.uint64(GROUP_BUCKETS)).astype(np.intp)
    columns = [*V.T, np.ones(len(V))]
    return np.column_stack([np.bincount(bucket, one, minlength=GROUP_BUCKETS) for one in columns])


def moved_sums(u: np.ndarray, unexpected: Sequence[np.ndarray]) -> np.ndarray:
    """sum |u|, sum |u|^3, and for both e in turn sum |u| e^2, sum |u| e^3: [6, columns, columns].

    Of every column of u by itself on the diagonal, elsewhere of differences.
    """
    shapes = np.column_stack([power for e in unexpected for power in (e * e, e * e * e)])  # [n, 4]
    found = np.zeros((6, u.shape[1], u.shape[1]))
    for one, column in enumerate(u.T):
        apart = np.abs(column[:, None] - u)  # [n, columns]
        apart[:, one] = np.abs(column)
        found[:2, one] = apart.sum(axis=0), (apart * apart * apart).sum(axis=0)
        found[2:, one] = shapes.T @ apart
    return found


@dataclass(frozen=True, eq=False)
class Tail:
    """The largest weights: different values, ascending, and how often each occurs."""

    values: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, w: np.ndarray, most: int) -> "Tail":
        """The tail of some weights."""
        return cls(*np.unique(w, return_counts=True)).cut(most)

    def __add__(self, other: "Tail") -> "Tail":
        values, place = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        return Tail(values, np.bincount(place, np.concatenate([self.counts, other.counts])).astype(np.int64))

    def cut(self, most: int) -> "Tail":
        """Only as many values as at least `most` rows need, and the next one below them."""
        above = np.cumsum(self.counts[::-1])
        kept = min(int(np.searchsorted(above, most)) + 2, len(self.values))
        return Tail(self.values[-kept:], self.counts[-kept:]) if kept else self


@dataclass(frozen=True, eq=False)
class Sums:
    """What a value is made from, over some rows."""

    moments: GramTally
    taken: np.ndarray  # [k]: rows of each action
    wanted: np.ndarray  # [policies, k]: sum of h
    impossible: np.ndarray  # [policies]: sum of h over actions that are not eligible, before it is restricted
    tails: list[Tail]
    moved: np.ndarray  # [6, policies + 1, policies + 1], see `moved_sums`
    groups: np.ndarray | None  # [buckets, variables + 1]

    @classmethod
    def zero(cls, policies: int, k: int, grouped: bool) -> "Sums":
        """The sums of no rows."""
        variables = len(COMMON) + len(VARIABLES) * policies
        nothing = Tail(np.zeros(0), np.zeros(0, np.int64))
        groups = np.zeros((GROUP_BUCKETS, variables + 1)) if grouped else None
        nobody = (np.zeros(k), np.zeros((policies, k)), np.zeros(policies))
        unmoved = np.zeros((6, policies + 1, policies + 1))
        return cls(GramTally.zero(variables), *nobody, [nothing] * policies, unmoved, groups)

    def __add__(self, other: "Sums") -> "Sums":
        groups = None if self.groups is None or other.groups is None else self.groups + other.groups
        tails = [one + two for one, two in zip(self.tails, other.tails, strict=True)]
        return Sums(
            self.moments + other.moments,
            self.taken + other.taken,
            self.wanted + other.wanted,
            self.impossible + other.impossible,
            tails,
            self.moved + other.moved,
            groups,
        )

    def arrays(self, largest: int) -> Arrays:
        """Named arrays."""
        found = {"n": np.array(self.moments.n), "mean": self.moments.mean, "C": self.moments.C}
        found |= {"taken": self.taken, "wanted": self.wanted, "impossible": self.impossible}
        found["moved"] = self.moved
        for number, tail in enumerate(self.tails):
            short = tail.cut(largest)
            found |= {f"values{number}": short.values, f"counts{number}": short.counts}
        return found if self.groups is None else {**found, "groups": self.groups}

    @classmethod
    def from_arrays(cls, found: Arrays) -> "Sums":
        """The sums in named arrays."""
        tails = [Tail(found[f"values{one}"], found[f"counts{one}"]) for one in range(len(found["wanted"]))]
        gram = GramTally(float(found["n"]), found["mean"], found["C"])
        counted = (found["taken"], found["wanted"], found["impossible"])
        return cls(gram, *counted, tails, found["moved"], found.get("groups"))


# From sums to values -------------------------------------------------------------------------------------


def ratio(mu: np.ndarray, top: Sequence[int], bottom: int) -> tuple[float, np.ndarray]:
    """sum of mu[top] / mu[bottom], and its slope in the means."""
    slope = np.zeros(len(mu))
    if mu[bottom] <= 0:
        raise PonnError(
            "No logged row has an action that this policy would take: a self-normalised estimate does not exist. "
            "The log says nothing about this policy."
        )
    value = float(sum(mu[one] for one in top) / mu[bottom])
    for one in top:
        slope[one] += 1 / mu[bottom]
    slope[bottom] -= value / mu[bottom]
    return value, slope


def estimator_of(name: str, mu: np.ndarray, policy: int) -> tuple[float, np.ndarray]:
    """The value of an estimator at these means, and its slope."""
    dm, error, w, rewarded = (len(COMMON) + len(VARIABLES) * policy + one for one in range(4))
    if name == PRACTICE:
        return ratio(mu, (1,), 0)
    plain = {"ips": (rewarded,), "dr": (dm, error)}
    if name in plain:
        return ratio(mu, plain[name], 0)
    if name == "dm":  # as good as the reward model, whose error its own spread leaves out
        return ratio(mu, (dm,), 0)[0], ratio(mu, (dm, error), 0)[1]
    if name == "snips":
        return ratio(mu, (rewarded,), w)
    if name == "sndr":
        (first, one), (second, two) = ratio(mu, (dm,), 0), ratio(mu, (error,), w)
        return first + second, one + two
    raise PonnError(
        f"The estimator {name!r} is not there for logs on disk; expected dr, sndr, ips, snips or dm. Others need the "
        "log in memory (lazy=False)."
    )


def error_of(found: Sums, slope: np.ndarray) -> tuple[float, float]:
    """Standard error of a function of the means, and the independent pieces it rests on."""
    n = found.moments.n
    if found.groups is None:
        if n < 2:
            return math.inf, n
        return math.sqrt(max(float(slope @ found.moments.C @ slope), 0.0) / (n - 1) / n), n
    used = found.groups[found.groups[:, -1] > 0]
    sums = (used[:, :-1] - used[:, -1:] * found.moments.mean) @ slope
    g = len(sums)
    return (math.sqrt(g / (g - 1) * float(np.sum((sums - sums.mean()) ** 2))) / n if g > 1 else math.inf), g


def unseen_error_of(found: Sums, modelled: bool, one: int, less: int | None) -> float:
    """`intervals.unseen_error` of a value or difference; LOGGED is current practice, the last column of u.

    modelled: outcomes are expected by the reward model, else by their mean.
    """
    if found.groups is not None:
        used = found.groups[found.groups[:, 0] > 0]
        other = 0.0 if less is None else grouped_moves(used, less)
        e = used[:, EXPECTED[not modelled]] / used[:, 0]
        return unseen_from(np.abs(grouped_moves(used, one) - other), used[:, 0], e)
    sums, everywhere = found.moved[:, one, one if less is None else less], found.moved[:, LOGGED, LOGGED]
    squares = 2 if modelled else 4
    surprise = max(lopsided(*map(float, part[squares : squares + 2])) for part in (sums, everywhere))
    return room_for(surprise, *map(float, (sums[0], sums[1], everywhere[0])))


def grouped_moves(groups: np.ndarray, policy: int) -> np.ndarray:
    """What the outcomes of each bucket move; LOGGED: in the value of current practice."""  # [buckets]
    return np.asarray(groups[:, 0 if policy == LOGGED else len(COMMON) + len(VARIABLES) * policy + 2])


def estimate_of(
    found: Sums, estimator: str, policy: int, level: float, *, less: int | None = None, ess: float = 0.0
) -> Estimate:
    """An estimate in [0, 1] units; less: of the difference to another policy, or to current practice (LOGGED)."""
    from scipy.special import stdtrit

    mu = found.moments.mean
    value, slope = estimator_of(estimator, mu, policy)
    if less is not None:
        practice, other = estimator_of(PRACTICE, mu, 0) if less == LOGGED else estimator_of(estimator, mu, less)
        value, slope = value - practice, slope - other
    error, pieces = error_of(found, slope)
    one, modelled = (LOGGED, False) if estimator == PRACTICE else (policy, estimator not in BY_WEIGHTS_ALONE)
    error = math.hypot(error, unseen_error_of(found, modelled, one, less))
    reach = float(stdtrit(max(pieces - 1, 1), (1 + level) / 2)) * error
    name = "mean" if estimator == PRACTICE else estimator
    n = int(found.moments.n)
    difference = less is not None
    return Estimate(value, value - reach, value + reach, n, ess, name, level, "normal", error, difference=difference)


def overlap_of(found: Sums, policy: int) -> Overlap:
    """The diagnostics of a policy's importance weights."""
    n, place = found.moments.n, len(COMMON) + len(VARIABLES) * policy + 2
    total = n * found.moments.mean[place]
    squares = found.moments.C[place, place] + total**2 / n
    tail = found.tails[policy]
    k = pareto_k_of(tail.values, tail.counts, int(n))
    largest = float(tail.values[-1]) if len(tail.values) else 0.0
    ess, share = (total**2 / squares, largest / total) if total > 0 else (0.0, 0.0)
    return Overlap(int(n), ess, k, share, float(found.moments.mean[place] / found.moments.mean[0]))


def doubts(found: Sums, policy: int, seen: Overlap, estimator: str, actions: Sequence[Any]) -> tuple[str, ...]:
    """Why a value should not be trusted."""
    rare = hardly_logged(actions, found.wanted[policy] / found.moments.n, found.taken)
    return (*seen.doubts(estimator not in BY_WEIGHTS_ALONE), *rare)


# Values --------------------------------------------------------------------------------------------------


def value_sums(
    policies: Sequence[Valued],
    log: ShardedLog,
    encoding: Encoding,
    passes: Passes,
    settings: Settings | None = None,
    *,
    folds: int = FOLDS,
    seed: int = 0,
) -> Sums:
    """The sums of several policies on the same rows, with cross-fitted corrections."""
    settings = settings or Settings()
    if settings.reward_model != "logistic":
        raise PonnError("On a log on disk the reward model is logistic; leave out the setting reward_model.")
    practice = fit_practice(log, encoding, passes, settings, folds=folds, seed=seed)
    theta = fit_reward_models(log, encoding, passes, settings, folds=folds, seed=seed)
    n = len(log)
    largest = math.ceil(SLACK * tail_rows(n)) + 10
    counts = np.array([log.survey.actions[label][0] for label in log.actions])
    seen = log.sample.log
    mean, scale = (float(seen.R.mean()), float(seen.row_weights.mean())) if len(seen) else (0.5, 1.0)
    work = ValueSums(log.reader, encoding, practice, theta, light(policies), seed, largest, counts, mean, scale)
    total = Sums.zero(len(policies), len(log.actions), log.columns.group is not None)
    for part in passes.over("values", work, log.shards):
        total += Sums.from_arrays(part)
        total = replace(total, tails=[tail.cut(largest) for tail in total.tails])
    return total


def light(policies: Sequence[Valued]) -> tuple[Valued, ...]:
    """Policies without what only people read: workers do not need it, and kept results do not depend on it.

    A learned policy that several rest on stays one, also where workers unpack it.
    """
    bare = cache(lambda learned: replace(learned, provenance={}, evaluation=None, relevance=()))

    def without(policy: Valued) -> Valued:
        if isinstance(policy, Sampled | SupportedOnly):
            return replace(policy, policy=bare(policy.policy))
        return bare(policy) if isinstance(policy, Policy) else policy

    return tuple(map(without, policies))


def compare_sharded(
    policies: Mapping[str, Valued],
    log: ShardedLog,
    encoding: Encoding,
    passes: Passes,
    estimator: str = "dr",
    level: float = 0.95,
    settings: Settings | None = None,
    *,
    paired_level: float | None = None,
    seed: int = 0,
) -> Comparison:
    """Values of policies on the same rows, and the verdict of each against current practice.

    paired_level: of the intervals of paired differences, by default `level`.
    """
    if not 0.5 <= level < 1:
        raise PonnError(f"The level is {level}; expected a number from 0.5 to below 1, e.g. 0.95.")
    estimator_of(estimator, np.ones(len(COMMON) + len(VARIABLES)), 0)
    rivals = {name: one for name, one in policies.items() if not isinstance(one, CurrentPractice)}
    found = value_sums(tuple(rivals.values()), log, encoding, passes, settings, seed=seed)
    places = {name: place for place, name in enumerate(rivals)}
    values, verdicts = {}, {}
    for name in policies:
        if name not in places:
            told = estimate_of(found, PRACTICE, 0, level, ess=found.moments.n)
            values[name] = told.in_unit(log.reward_range, log.minimize)
            continue
        place = places[name]
        seen = overlap_of(found, place)
        reasons = doubts(found, place, seen, estimator, log.actions)
        value = estimate_of(found, estimator, place, level, ess=seen.ess)
        moved = ineligible_share_told(float(found.impossible[place] / found.moments.n))
        value = replace(value, warnings=(*moved, *seen.cautions(estimator not in BY_WEIGHTS_ALONE)))
        values[name] = value.in_unit(log.reward_range, log.minimize).distrusted(*reasons)
        gain = estimate_of(found, estimator, place, both_sides(level), less=LOGGED, ess=seen.ess)
        verdicts[name] = verdict(gain.distrusted(*reasons)).in_unit(log.reward_range, log.minimize)
    paired_level = level if paired_level is None else paired_level
    return Comparison(values, verdicts, differences_of(found, estimator, places, paired_level, log))


def differences_of(
    found: Sums, estimator: str, places: Mapping[str, int], level: float, log: ShardedLog
) -> dict[tuple[str, str], Estimate]:
    """Paired differences of policies, the first less the second."""
    differences = {}
    seen = {name: overlap_of(found, place) for name, place in places.items()}
    why = {name: doubts(found, places[name], seen[name], estimator, log.actions) for name in places}
    for one, other in combinations(places, 2):
        ess = min(seen[one].ess, seen[other].ess)
        reasons = dict.fromkeys((*why[one], *why[other]))
        gain = estimate_of(found, estimator, places[one], level, less=places[other], ess=ess)
        differences[one, other] = gain.in_unit(log.reward_range, log.minimize).distrusted(*reasons)
    return differences
