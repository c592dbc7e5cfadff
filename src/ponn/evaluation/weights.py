"""Can importance weights be trusted? Their mean, how many rows they amount to, and how heavy their tail is."""

import math
from dataclasses import dataclass

import numpy as np

from ponn.evaluation.intervals import percent

FEWEST_EFFECTIVE = 30.0  # with fewer effective rows a normal interval by weights alone is not to be trusted
FEWEST_MODELLED = 10.0  # the same with a reward model beside the weights, see `Overlap`
LEAST_HELD = 0.7  # mean weight under which too much of what the policy would do is not in the log
MOST_HELD = 1 / LEAST_HELD  # mean weight above which the propensities are too small, if it is so for sure ...
FOR_SURE = 3.0  # ... by this many standard errors: a few heavy rows raise it by chance
HEAVY = 0.7  # Pareto k from which on more rows hardly help (Vehtari et al. 2024); from 1 on the tail has no mean


@dataclass(frozen=True)
class Overlap:
    """How much of the log speaks for the policy, and whether that is enough for a value to be trusted.

    refused               mean weight under   effective rows under   k above
    by weights alone      0.7                 30                     min(1 - 1 / log10(n), 0.7)
    with a reward model   0.7                 10                     0.7 by more than its standard error; 0.7 is told
    both, where the mean weight is above 1 / 0.7 by more than three standard errors: such propensities cannot be right

    The mean weight is 1 but for chance, whatever the policy: E[w] = sum over a of p(a | x) h(a | x) / p(a | x). Where
    it falls short, the rows that would make it up are too rare to have been seen, and no other number tells of them. By
    weights alone a value is as unsure as the mean of the weights, 1 / sqrt(ess) of itself. Beside a reward model (dr
    and its kin) weights carry only what the model got wrong, and the spread of just that is in the interval. Whether k
    is just above or below a limit is chance then, and chance of the wrong kind: a log with a large k has seen its heavy
    rows, its interval is wide and right; one that has not looks fine (docs/decisions/015 has the numbers).
    """

    n: int
    ess: float
    pareto_k: float
    largest_share: float  # of all weight, held by the heaviest row
    mean: float  # of the weights

    @property
    def pareto_limit(self) -> float:
        """min(1 - 1 / log10(n), 0.7): above it n rows are too few for the mean to settle (Vehtari et al. 2024)."""
        return min(1 - 1 / math.log10(max(self.n, 2)), HEAVY)

    @property
    def error_of_mean(self) -> float:
        """The standard error of the mean weight: its variance is mean^2 (n / ess - 1)."""
        return self.mean * math.sqrt(max(1 / self.ess - 1 / self.n, 0.0)) if self.ess else 0.0

    @property
    def heavy_for_sure(self) -> float:
        """0.7 + the standard error (1 + k) / sqrt(tail rows) (Smith 1987), at most 1: for values with a model."""
        return min(HEAVY + (1 + HEAVY) / math.sqrt(max(tail_rows(self.n), 1)), 1.0)

    def doubts(self, modelled: bool) -> tuple[str, ...]:
        """Why a value must not be trusted; modelled: a reward model stands beside the weights."""
        fewest = FEWEST_MODELLED if modelled else FEWEST_EFFECTIVE
        limit = self.heavy_for_sure if modelled else self.pareto_limit
        found = []
        if self.mean < LEAST_HELD:
            found.append(f"the log holds about {self.mean:.0%} of what the policy would do (mean weight, expected 1)")
        if self.mean - FOR_SURE * self.error_of_mean > MOST_HELD:
            found.append(f"the propensities are too small: the mean weight is {self.mean:.3g}, expected 1")
        if self.ess < fewest:
            found.append(f"{self.n:,} rows count as {self.ess:,.0f} for this policy, fewer than {fewest:,.0f}")
        if self.pareto_k > limit:
            found.append(self.dominated(limit))
        return tuple(found)

    def cautions(self, modelled: bool) -> tuple[str, ...]:
        """What is to be told of a value that is trusted all the same."""
        heavy = modelled and HEAVY < self.pareto_k <= self.heavy_for_sure
        return (f"{self.dominated(HEAVY)}, so that more rows help little",) if heavy else ()

    def dominated(self, limit: float) -> str:
        """That the weights have a heavy tail."""
        held = percent(round(self.largest_share, 3))
        seen = f"Pareto k = {self.pareto_k:.2f}, above {limit:.2f}; the heaviest row holds {held}"
        return f"a few rows dominate the weights ({seen})"


def overlap(w: np.ndarray) -> Overlap:
    """The diagnostics of importance weights (times row weights, where there are any)."""
    total = float(np.sum(w))
    largest = float(np.max(w)) / total if total > 0 else 0.0
    return Overlap(len(w), effective_size(w), pareto_k(w), largest, float(np.mean(w)))


def effective_size(w: np.ndarray) -> float:
    """(sum w)^2 / sum w^2: so many equally weighted rows would be as precise (Kish 1965); 0 if no row counts."""
    largest = float(np.max(w, initial=0.0))
    if largest <= 0:
        return 0.0
    scaled = w / largest  # squares of huge weights would overflow
    return float(np.sum(scaled) ** 2 / np.sum(scaled**2))


def pareto_k(w: np.ndarray) -> float:
    """Shape k of the generalised Pareto distribution of the largest weights; moments below 1/k exist.

    Vehtari, Simpson, Gelman, Yao, Gabry 2024: the tail is the largest min(n / 5, 3 sqrt(n)) weights, less the largest
    one below them; k is drawn to 1/2 as if by 10 more rows. Weights equal to the smallest of the tail belong to it, as
    logged propensities are often a few round numbers. Infinite below 5 tail rows, with which nothing can be said.
    """
    return pareto_k_of(*np.unique(w, return_counts=True), len(w))


def tail_rows(n: int) -> int:
    """How many of n weights count as their tail."""
    return math.ceil(min(n / 5, 3 * math.sqrt(n)))


def pareto_k_of(values: np.ndarray, counts: np.ndarray, n: int) -> float:
    """`pareto_k` of n weights from their different values, ascending, and counts; those below the tail may lack."""
    rows = tail_rows(n)
    if rows < 5:
        return math.inf
    first = len(values) - 1 - int(np.searchsorted(np.cumsum(counts[::-1]), rows))  # the smallest value of the tail
    below = values[first - 1] if first > 0 else 0.0
    tail, size = values[first:] - below, int(counts[first:].sum())
    if tail[0] <= 0:
        return math.inf  # so few weights are above 0 that zeros are in the tail
    return (size * pareto_shape(tail, counts[first:]) + 10 * 0.5) / (size + 10)


def pareto_shape(x: np.ndarray, counts: np.ndarray) -> float:
    """k of the generalised Pareto distribution (Zhang, Stephens 2009, with their sign turned); x > 0 ascending.

    The posterior mean of theta under their prior, theta_i = 1 / x_max + (1 - sqrt(g / (i - 1/2))) / (3 x_quarter) for
    i = 1 .. g; log-likelihood n (ln(-theta / k) - k - 1), k(theta) = mean ln(1 - theta x),
    and -theta / k tends to 1 / mean(x) as theta tends to 0.
    """
    n = int(counts.sum())
    points = 30 + int(math.sqrt(n))
    quarter = x[np.searchsorted(np.cumsum(counts), max(int(n / 4 + 0.5), 1))]
    theta = 1 / x[-1] + (1 - np.sqrt(points / (np.arange(1, points + 1) - 0.5))) / (3 * quarter)  # [points]
    k = shape_at(theta[:, None], x, counts)  # [points]
    rate = np.full(points, counts.sum() / (x @ counts))
    np.divide(-theta, k, out=rate, where=np.abs(theta) * x[-1] > 1e-9)
    likelihood = n * (np.log(rate) - k - 1)
    posterior = np.exp(likelihood - likelihood.max())
    return float(shape_at(np.array(np.sum(theta * posterior) / np.sum(posterior)), x, counts))


def shape_at(theta: np.ndarray, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """k(theta) = mean ln(1 - theta x)."""
    return np.asarray(np.log1p(-theta * x) @ counts / counts.sum())
