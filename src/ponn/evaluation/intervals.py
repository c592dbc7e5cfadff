"""How far an estimated value can be from the truth, whether it can be trusted, and what follows from it.

    symbol   meaning                                                                 shape
    w, R     importance weight h(A_j | x_j) / p_j and reward in [0, 1]               [n]
    psi      influence of each row on the value (see estimators)                     [n]
    u, e     what its outcome moves, and what was unexpected in it (see estimators)  [n]
    level    probability with which the interval is to hold the true value; half of what is left on each side
    delta    (1 - level) / 2, the error allowed to one side
    m        truncation of the weights: min(w, m)

    interval     holds                                    needs
    normal       for large n, few unlike outcomes too     psi; u and e, see `unseen_error`
    percentile   for large n                              a bootstrap, which may refit the propensities
    bernstein    for every n                              true propensities, independent rows or groups
    sequence     for every n and at all n at once         true propensities, independent rows in their order

What truncation takes away (Lemma 3) is bounded without knowing it: min(w, m) R underestimates, so its lower bound is a
lower bound of the value; min(w, m) (1 - R) underestimates the value of the reward 1 - R, which is 1 - value, so one
minus its lower bound is an upper bound of the value. The gap between the two, 1 - E[min(w, m)], is Lemma 3's bias
at its largest, r = 1. The same for policy - current practice with w - 1 in the place of w.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np

from ponn.errors import PonnError
from ponn.evaluation.estimators import Moves, Valuation, cluster_sums, mean_one, standard_error

# Any bet below 1 is valid. 1/2, usual for values in [0, 1], loses by early large weights: of 4 kinds of weights and
# n = 400, 2,000, 10,000 the interval with 0.1 was 0.3 to 1.2 times as wide; 0.2 and 0.05 were on average 12 % wider.
LARGEST_BET = 0.1
FEWEST_EFFECTIVE = 30.0  # with fewer effective rows a normal interval by weights alone is not to be trusted
FEWEST_MODELLED = 10.0  # the same with a reward model beside the weights, see `Overlap`
LEAST_HELD = 0.7  # mean weight under which too much of what the policy would do is not in the log
MOST_HELD = 1 / LEAST_HELD  # mean weight above which the propensities are too small, if it is so for sure ...
FOR_SURE = 3.0  # ... by this many standard errors: a few heavy rows raise it by chance
HEAVY = 0.7  # Pareto k from which on more rows hardly help (Vehtari et al. 2024); from 1 on the tail has no mean
# Outcomes of which too few were seen for a normal interval: as many more are thought of as Agresti and Coull (1998) add
# to each side of a share, z^2 / 2 at 95 %. benchmarks/rare_outcomes.py has 0, 1, 2 and 4 beside each other, and other
# ways to say how much they move.
UNSEEN = 2.0
POWER = 0.8  # rows_needed: the chance that so many rows settle the verdict, were the difference as estimated


class Interval(NamedTuple):
    """Two ends that hold the true value with probability `level`."""

    low: float
    high: float
    kind: str
    level: float


# What is said ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """The value of a policy, or a difference of two, with its interval and whether to trust it."""

    value: float
    low: float
    high: float
    n: int
    ess: float  # effective number of rows, see `effective_size`
    estimator: str
    level: float
    interval: str = "normal"
    standard_error: float = math.nan  # of the normal interval (`error_of`), whatever the interval is
    trusted: bool = True
    warnings: tuple[str, ...] = ()
    difference: bool = False  # policy minus another: it has the user's scale but no zero point

    def in_unit(self, reward_range: tuple[float, float], minimize: bool) -> "Estimate":
        """The same in the user's unit: lo + (hi - lo) v, or hi - (hi - lo) v where small outcomes are good.

        A difference is only scaled, and turned round where small outcomes are good (a better policy has a negative
        one). For values in [0, 1] only: not to be applied twice.
        """
        lo, hi = reward_range
        scale = (lo - hi) if minimize else (hi - lo)
        zero = 0.0 if self.difference else (hi if minimize else lo)
        ends = sorted((zero + scale * self.low, zero + scale * self.high))
        return replace(
            self,
            value=zero + scale * self.value,
            low=ends[0],
            high=ends[1],
            standard_error=abs(scale) * self.standard_error,
        )

    def as_gain(self, minimize: bool) -> "Estimate":
        """A difference in the user's unit, turned round where small outcomes are good: above 0 is always good."""
        if not minimize:
            return self
        return replace(self, value=0.0 - self.value, low=0.0 - self.high, high=0.0 - self.low)  # 0.0, not -0.0

    def distrusted(self, *reasons: str) -> "Estimate":
        """The same number, marked as not to be trusted where there are reasons."""
        return replace(self, trusted=self.trusted and not reasons, warnings=self.warnings + reasons)

    def in_digits(self) -> tuple[str, str, str]:
        """Value, low and high with as many digits as the interval deserves."""
        digits = decimals(self.high - self.low)
        return f"{self.value:.{digits}f}", f"{self.low:.{digits}f}", f"{self.high:.{digits}f}"

    def __str__(self) -> str:
        value, low, high = self.in_digits()
        doubt = "" if self.trusted else "; not trusted"
        rows = f"n = {self.n:,}, effective {self.ess:,.0f}"
        return f"{value} ({percent(self.level)}: {low} to {high}; {self.estimator}, {rows}{doubt})"


def estimate_json(found: Estimate) -> dict[str, Any]:
    """An estimate in plain values; an end that is infinite is null."""
    names = ("value", "low", "high", "n", "ess", "estimator", "level", "interval", "trusted")
    told = {name: getattr(found, name) for name in names}
    told |= {end: told[end] if math.isfinite(told[end]) else None for end in ("low", "high")}
    return told | {"warnings": list(found.warnings)}


def decimals(width: float) -> int:
    """Digits after the point that show two figures of an interval's width."""
    if not 0 < width < math.inf:
        return 3
    return max(0, 1 - math.floor(math.log10(width)))


def percent(level: float) -> str:
    """A level as people read it: 95 %."""
    return f"{100 * level:.6g} %"


class LowOverlap(PonnError):  # noqa: N818  (a public name: what was found, not a mistake)
    """The log hardly contains what the policy would do; `estimate` is the number that is not trusted."""

    def __init__(self, estimate: Estimate) -> None:
        self.estimate = estimate
        super().__init__(
            f"The log says too little about this policy: {'; '.join(estimate.warnings)}. The number it would give, "
            f"{estimate}, cannot be trusted. Bring more rows, which the policy never saw, value a policy closer to "
            "current practice, or ask for the number all the same with allow_low_overlap=True (--allow-low-overlap)."
        )


def estimated(
    found: Valuation,
    estimator: str,
    interval: Interval,
    ess: float,
    *,
    group: np.ndarray | None = None,
    difference: bool = False,
) -> Estimate:
    """An Estimate from a value and any interval for it."""
    error = error_of(found, group)
    low, high, kind, level = interval
    return Estimate(found.value, low, high, len(found.psi), ess, estimator, level, kind, error, difference=difference)


# Normal ---------------------------------------------------------------------------------------------------


def normal_interval(found: Valuation, level: float, group: np.ndarray | None = None) -> Interval:
    """value ± (t error + bias), t of Student's distribution with (rows or groups) - 1 degrees of freedom.

    bias is 0 but for reduced weights (see `estimators.largest_bias`); the error is that of `error_of`.
    """
    reach = t_quantile(level, found.psi, group) * error_of(found, group) + found.bias
    return Interval(found.value - reach, found.value + reach, "normal", level)


def error_of(found: Valuation, group: np.ndarray | None = None) -> float:
    """sqrt(Var(psi) / n + unseen_error^2): the spread that was seen, and room for outcomes that were not."""
    return math.hypot(standard_error(found.psi, group), unseen_error(found, group))


def unseen_error(found: Valuation, group: np.ndarray | None = None) -> float:
    """What UNSEEN more surprises would move a value: surprise sqrt(UNSEEN sum |v|^3 / sum |v|), v = u / sum weight.

    Where nearly all outcomes are alike, chance decides whether the others fall on rows that weigh much. Where they do
    not, the value is too good and its spread too small, both at once: "better" was said of up to 24 % of policies that
    are not, instead of 5 % (benchmarks/rare_outcomes.py). A surprise falls on a row in proportion to what the row
    moves, and is as large as outcomes are lopsided, in all rows or in those that count (`lopsided`): nearly 1 where
    nearly all are 1, nothing where they lie evenly around what was expected. The rows of a group are one.
    """
    if found.moves is None:
        return 0.0
    return unseen_from(*by_group(found.moves, group), found.moves.surprise)


def by_group(moves: Moves, group: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each group, or row: |u|, its weight, and what was unexpected in its mean outcome."""  # [groups] each
    size, sums = cluster_sums(moves.weight, group), cluster_sums(moves.weight * moves.e, group)
    e = np.divide(sums, size, out=np.zeros_like(size), where=size > 0)
    return np.abs(cluster_sums(moves.u, group)), size, e


def unseen_from(moved: np.ndarray, size: np.ndarray, e: np.ndarray, least: float = 0.0) -> float:
    """`unseen_error` from what `by_group` gives; least: surprise at least."""
    largest = float(np.max(moved, initial=0.0))
    if largest == 0:
        return 0.0
    part = moved / largest  # cubes of huge weights would overflow
    surprise = max(surprise_of(part, size, e), least)
    return largest * room_for(surprise, float(np.sum(part)), float(np.sum(part * part * part)), float(np.sum(size)))


def room_for(surprise: float, moved: float, cubed: float, weight: float) -> float:
    """`unseen_error` from how large a surprise is, sum |u|, sum |u|^3 and the weight of all rows."""
    return surprise * math.sqrt(UNSEEN * cubed / moved) / weight if moved > 0 else 0.0


def surprise_of(moved: np.ndarray, size: np.ndarray, e: np.ndarray) -> float:
    """How lopsided outcomes are, in all rows or in those that count."""
    return max(lopsided_of(size, e), lopsided_of(moved, e))


def lopsided_of(weight: np.ndarray, e: np.ndarray) -> float:
    """`lopsided` of what was unexpected, rows counted by their weight."""
    squares = weight * e * e
    return lopsided(float(np.sum(squares)), float(np.sum(squares * e)))


def lopsided(squares: float, cubes: float) -> float:
    """|sum e^3| / sum e^2: 1 - 2 p where a share p of the outcomes fares otherwise, 0 where e lies evenly around 0."""
    return abs(cubes) / squares if squares > 0 else 0.0


def t_quantile(level: float, psi: np.ndarray, group: np.ndarray | None) -> float:
    """The two-sided quantile of Student's distribution for so many rows or groups."""
    from scipy.special import stdtrit

    return float(stdtrit(max(len(cluster_sums(psi, group)) - 1, 1), (1 + level) / 2))


# Bootstrap ------------------------------------------------------------------------------------------------


def resamples(n: int, repetitions: int, seed: int, group: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Row numbers of each resample: n rows, or as many whole groups as there are, drawn with replacement."""
    rng = np.random.default_rng(seed)
    if group is None:
        yield from (rng.integers(n, size=n) for _ in range(repetitions))
        return
    _, of_row, sizes = np.unique(group, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(of_row, kind="stable"), np.cumsum(sizes)[:-1])
    for _ in range(repetitions):
        yield np.concatenate([members[g] for g in rng.integers(len(members), size=len(members))])


def bootstrap(
    estimate: Callable[[np.ndarray], float | tuple[float, ...]],
    n: int,
    repetitions: int,
    seed: int,
    group: np.ndarray | None = None,
) -> np.ndarray:
    """What `estimate(rows)` gives on each resample: one number, or several (value, standard error).

    Whatever `estimate` refits on the rows it is given, such as propensities, has its error in the interval.
    """
    return np.array([estimate(rows) for rows in resamples(n, repetitions, seed, group)])  # [repetitions, ...]


def percentile_interval(replicates: np.ndarray, level: float) -> Interval:
    """The quantiles of the replicates."""
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), "percentile", level)


# For every n ------------------------------------------------------------------------------------------------


def truncations(n: int) -> tuple[float, ...]:
    """The m that the finite-sample bounds try: 1, 2, 4, ... up to sqrt(n). They must not depend on the rows.

    Beyond sqrt(n) the range term 7 m ln(2/delta) / (3 n) alone is above 1 / sqrt(n), the size of the answer.
    """
    return tuple(2.0**power for power in range(1 + int(math.log2(math.sqrt(n)))))


def bernstein_interval(
    w: np.ndarray,
    R: np.ndarray,
    level: float,
    *,
    weight: np.ndarray | None = None,
    group: np.ndarray | None = None,
    minus_logging: bool = False,
    tried: tuple[float, ...] | None = None,
) -> Interval:
    """Empirical Bernstein bounds (Maurer, Pontil 2009) of the true value from truncated IPS, for every n.

    The best of several truncations m, each with its share of delta. minus_logging: of the value less that of current
    practice. Groups count as one observation each. Row weights and group sizes are taken as given, not as random.
    """
    cuts = truncations(len(cluster_sums(R, group))) if tried is None else tried
    delta = (1 - level) / 2 / len(cuts)
    row_weight = mean_one(weight, len(R))
    least = -1.0 if minus_logging else 0.0

    def lower(reward: np.ndarray) -> float:
        bounds = [bernstein_lower(ratio_terms(w, reward, m, minus_logging), m, delta, row_weight, group) for m in cuts]
        return max(least, *bounds)

    top = 0.0 if minus_logging else 1.0
    return Interval(lower(R), top - lower(1 - R), "bernstein", level)


def ratio_terms(w: np.ndarray, R: np.ndarray, m: float, minus_logging: bool) -> np.ndarray:
    """min(w, m) R, or (min(w, m) - 1) R."""  # [n]
    return np.asarray((np.minimum(w, m) - minus_logging) * R)


def bernstein_lower(
    x: np.ndarray, m: float, delta: float, weight: np.ndarray, group: np.ndarray | None = None
) -> float:
    """mean - sqrt(2 V ln(2/delta) / g) - 7 range ln(2/delta) / (3 (g - 1)), below E mean with probability 1 - delta.

    x lies in an interval of length max(m, 1). The g observations are the rows times their weight (mean 1), or the
    sums over groups scaled to keep the mean; V divides by g - 1. They need to be independent, not alike.
    """
    g = len(cluster_sums(x, group))
    if g < 2:
        return -math.inf
    y = cluster_sums(weight * x, group) * g / len(x)  # [g]
    range_ = max(m, 1.0) * float(np.max(cluster_sums(weight, group))) * g / len(x)
    log = math.log(2 / delta)
    return float(np.mean(y) - math.sqrt(2 * np.var(y, ddof=1) * log / g) - 7 * range_ * log / (3 * (g - 1)))


def confidence_sequence(
    w: np.ndarray, R: np.ndarray, level: float, *, m: float = math.inf, minus_logging: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) after each row, which hold the true value at every row at once with probability `level`.

    Waudby-Smith, Wu, Ramdas, Karampatziakis, Mineiro 2022: the predictable plug-in empirical Bernstein sequence of
    Waudby-Smith and Ramdas 2024, which from below needs no largest weight. One may look after every row and stop.
    """
    least, top = (-1.0, 0.0) if minus_logging else (0.0, 1.0)
    delta = (1 - level) / 2
    low = lower_sequence(ratio_terms(w, R, m, minus_logging), delta, least)
    high = top - lower_sequence(ratio_terms(w, 1 - R, m, minus_logging), delta, least)
    return low, high  # [n], [n]


def lower_sequence(x: np.ndarray, delta: float, least: float) -> np.ndarray:
    """Numbers that all stay below the common mean of x, with probability 1 - delta; x >= least, mean in [least, 1].

    y = (x - least) / (1 - least), mu and s2 its running mean and variance, each from the rows before:
    (sum l y - ln(1/delta) - sum (y - mu)^2 (-ln(1 - l) - l)) / sum l
    with the bet l = min(sqrt(2 ln(1/delta) / (s2 t ln(1 + t))), 1/10).
    Why: for v >= -1 and 0 <= l < 1, exp(l v - v^2 (-ln(1 - l) - l)) <= 1 + l v (Fan et al. 2015), and y - mu >= -1
    however large y is. So the product of these over the rows is a nonnegative supermartingale (Ville's inequality).
    """
    y, t = (x - least) / (1 - least), np.arange(1, len(x) + 1)
    mu = np.minimum((0.5 + np.cumsum(y)) / (t + 1), 1.0)
    s2 = (0.25 + np.cumsum((y - mu) ** 2)) / (t + 1)
    mu_before, s2_before = np.append(0.5, mu[:-1]), np.append(0.25, s2[:-1])
    log = math.log(1 / delta)
    bet = np.minimum(np.sqrt(2 * log / (s2_before * t * np.log1p(t))), LARGEST_BET)
    spent = np.cumsum((y - mu_before) ** 2 * (-np.log1p(-bet) - bet))
    bound = (np.cumsum(bet * y) - log - spent) / np.cumsum(bet)
    return least + (1 - least) * np.maximum(np.maximum.accumulate(bound), 0.0)  # [n]


# Can the weights be trusted ---------------------------------------------------------------------------------


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


# What follows -------------------------------------------------------------------------------------------------

Kind = Literal["better", "not better", "not enough evidence"]


@dataclass(frozen=True)
class Verdict:
    """Is the policy better than current practice? See `verdict` for what each answer means exactly."""

    kind: Kind
    difference: Estimate  # policy - current practice, paired on the same rows
    level: float  # one-sided confidence of "better" and of "not better"
    margin: float  # an advantage that would not matter
    rows_needed: int | None  # roughly, to settle it; None where settled, not trusted, or no difference was seen

    def in_unit(self, reward_range: tuple[float, float], minimize: bool) -> "Verdict":
        """The same with difference and margin in the user's unit."""
        lo, hi = reward_range
        return replace(self, difference=self.difference.in_unit(reward_range, minimize), margin=(hi - lo) * self.margin)

    def __str__(self) -> str:
        seen = f"policy minus current practice is {self.difference}."
        if self.kind == "better":
            return f"Better than current practice with {percent(self.level)} confidence: {seen}"
        if self.kind == "not better":
            by = f" by more than {self.margin:g}" if self.margin else ""
            return f"Not better than current practice{by} with {percent(self.level)} confidence: {seen}"
        return f"Not enough evidence to say whether it is better than current practice: {seen}{self.what_is_missing()}"

    def what_is_missing(self) -> str:
        """How many rows would settle it, where that can be said."""
        if not self.rows_needed:
            return ""
        more = self.rows_needed - self.difference.n
        return f" About {self.rows_needed:,} rows like these, {more:,} more, would settle it."


def both_sides(level: float) -> float:
    """The level of the interval whose two ends are one-sided bounds at `level`: 0.9 for 0.95."""
    return 2 * level - 1


def verdict(difference: Estimate, margin: float = 0.0) -> Verdict:
    """What the difference policy - current practice (in [0, 1] units, larger is better) lets one say.

    better               difference.low > 0
    not better           difference.high <= margin; margin 0: it is as good as certain that nothing is gained
    not enough evidence  neither, or the estimate is not trusted

    Each end is a one-sided bound at (1 + difference.level) / 2, the verdict's level: to say "better" wrongly in at most
    5 % of the cases where policy and current practice are worth the same, give a difference at `both_sides(0.95)`.
    """
    level = (1 + difference.level) / 2
    kind: Kind = "not enough evidence"
    if difference.trusted and difference.low > 0:
        kind = "better"
    elif difference.trusted and difference.high <= margin:
        kind = "not better"
    open_ = difference.trusted and kind == "not enough evidence"
    needed = rows_needed(difference, margin) if open_ else None
    return Verdict(kind, difference, level, margin, needed)


def told_over_fixed(gain: Estimate, action: str) -> str:
    """Whether a policy beats giving everyone the same action, in a sentence; gain: above 0 is good, see `as_gain`."""
    if not gain.trusted:
        return f"Whether it is better than giving everyone {action} cannot be told: {'; '.join(gain.warnings)}."
    value, low, high = gain.in_digits()
    signed, ends = f"{'+' * (gain.value > 0)}{value}", f"({percent(gain.level)}: {low} to {high})"
    kind = verdict(gain).kind
    if kind == "better":
        return f"Better than giving everyone {action} by {value} {ends}."
    if kind == "not better":
        return f"Not better than giving everyone {action}: {signed} {ends}; that simpler rule does at least as well."
    return f"No clear gain over giving everyone {action}: {signed} {ends}; that simpler rule may do as well."


def rows_needed(difference: Estimate, margin: float = 0.0) -> int | None:
    """Rows with which the same difference would be settled with probability 0.8, to two figures, rounded up.

    n (reach (1 + z_power / z_level) / distance)^2: the reach of the interval falls as 1 / sqrt(n); with a normal
    interval this is n ((z_level + z_power) se / distance)^2. The distance is to 0 for a gain, to the margin for a loss.
    Room for unseen outcomes falls faster, as 1 / n: where that is most of the reach, fewer rows will do.
    None without a distance or a finite reach.
    """
    gain = difference.value > 0
    distance = difference.value if gain else margin - difference.value
    reach = difference.value - difference.low if gain else difference.high - difference.value
    if distance <= 0 or not math.isfinite(reach):
        return None
    normal = NormalDist()
    more = 1 + normal.inv_cdf(POWER) / normal.inv_cdf((1 + difference.level) / 2)
    rows = difference.n * (reach * more / distance) ** 2
    unit = 10 ** max(math.floor(math.log10(max(rows, 1))) - 1, 0)
    return math.ceil(rows / unit) * unit
