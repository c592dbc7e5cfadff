"""Off-policy estimators, intervals and sensitivity bounds as plain loops: nothing vectorised, nothing from ponn.

A log is lists: h [n][k], A [n], R [n], p [n], Q [n][k], weight [n]. Formulas as published by the papers that
`ponn.estimators` names (the definitions of obp for the estimators it has).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import exp, inf, log, log1p, sqrt
from typing import NamedTuple

Numbers = Sequence[float]


class Log(NamedTuple):
    """Rows of a log, the policy to value on them, predictions of a reward model, and row weights."""

    h: Sequence[Numbers]
    A: Sequence[int]
    R: Numbers
    p: Numbers
    Q: Sequence[Numbers]
    weight: Numbers


def ratio(log_: Log, j: int) -> float:
    """w_j = h(A_j | x_j) / p_j."""
    return log_.h[j][log_.A[j]] / log_.p[j]


def predicted(log_: Log, j: int) -> float:
    """sum over a of h(a | x_j) r_hat(a, x_j)."""
    return sum(share * guess for share, guess in zip(log_.h[j], log_.Q[j], strict=True))


def mean(log_: Log, term: Callable[[int], float]) -> float:
    """The mean of a term over the rows, by their weights."""
    return sum(log_.weight[j] * term(j) for j in range(len(log_.A))) / sum(log_.weight)


def error(log_: Log, j: int) -> float:
    """R_j - r_hat(A_j, x_j)."""
    return log_.R[j] - log_.Q[j][log_.A[j]]


def dm(log_: Log) -> float:
    return mean(log_, lambda j: predicted(log_, j))


def ips(log_: Log) -> float:
    return mean(log_, lambda j: ratio(log_, j) * log_.R[j])


def truncated_ips(log_: Log, m: float) -> float:
    return mean(log_, lambda j: min(ratio(log_, j), m) * log_.R[j])


def snips(log_: Log) -> float:
    return ips(log_) / mean(log_, lambda j: ratio(log_, j))


def dr(log_: Log) -> float:
    return mean(log_, lambda j: predicted(log_, j) + ratio(log_, j) * error(log_, j))


def sndr(log_: Log) -> float:
    correction = mean(log_, lambda j: ratio(log_, j) * error(log_, j))
    return dm(log_) + correction / mean(log_, lambda j: ratio(log_, j))


def switch_dr(log_: Log, tau: float) -> float:
    """As Wang et al. 2017 write it: importance weighting up to tau, the reward model above, action by action.

    The log gives p of the logged action only. For the others the doubly robust part adds and takes away the same
    prediction whichever side of tau they are on, so that only the logged action's side matters.
    """

    def row(j: int) -> float:
        if ratio(log_, j) > tau:
            return predicted(log_, j)
        return ratio(log_, j) * log_.R[j] + predicted(log_, j) - ratio(log_, j) * log_.Q[j][log_.A[j]]

    return mean(log_, row)


def dros(log_: Log, lambda_: float) -> float:
    def row(j: int) -> float:
        w = ratio(log_, j)
        w_hat = w if lambda_ == inf else 0.0 if w == 0 else lambda_ * w / (w * w + lambda_)
        return predicted(log_, j) + w_hat * error(log_, j)

    return mean(log_, row)


PLAIN = {"dm": dm, "ips": ips, "snips": snips, "dr": dr, "sndr": sndr}
REDUCED = {"truncated-ips": truncated_ips, "switch-dr": switch_dr, "dros": dros}


# Errors and intervals -------------------------------------------------------------------------------------


def standard_error(psi: Numbers, group: Sequence[int]) -> float:
    """sqrt(g / (g - 1) sum over groups (sum of psi)^2) / n, psi of mean 0."""
    sums = [sum(value for value, g in zip(psi, group, strict=True) if g == one) for one in sorted(set(group))]
    centre = sum(sums) / len(sums)
    return sqrt(len(sums) / (len(sums) - 1) * sum((s - centre) ** 2 for s in sums)) / len(psi)


def by_group(x: Numbers, group: Sequence[int]) -> list[float]:
    """Sums over groups."""
    return [sum(value for value, g in zip(x, group, strict=True) if g == one) for one in sorted(set(group))]


def lopsided(moved: Numbers, e: Numbers) -> float:
    """Third moment of what was unexpected over its second."""
    squares = sum(m * one**2 for m, one in zip(moved, e, strict=True))
    return abs(sum(m * one**3 for m, one in zip(moved, e, strict=True))) / squares if squares else 0.0


def unseen_error(u: Numbers, e: Numbers, weight: Numbers, group: Sequence[int]) -> float:
    """What two more surprises move a value, which fall on groups in proportion to what these move."""
    size = by_group(weight, group)
    apart = [
        part / s
        for part, s in zip(by_group([w * one for w, one in zip(weight, e, strict=True)], group), size, strict=True)
    ]
    moved = [abs(one) for one in by_group(u, group)]
    surprise = max(lopsided(size, apart), lopsided(moved, apart))
    return surprise * sqrt(2 * sum(one**3 for one in moved) / sum(moved)) / sum(weight)


def bernstein_lower(x: Numbers, range_: float, delta: float) -> float:
    """Theorem 4 of Maurer and Pontil 2009 for values in an interval of length range_."""
    n, average = len(x), sum(x) / len(x)
    pairs = sum((a - b) ** 2 for a in x for b in x) / (2 * n * (n - 1))  # their V_n
    return average - sqrt(2 * pairs * log(2 / delta) / n) - 7 * range_ * log(2 / delta) / (3 * (n - 1))


def lower_sequence(y: Numbers, delta: float) -> list[float]:
    """The predictable plug-in empirical Bernstein lower sequence for y >= 0 with mean in [0, 1], row by row."""
    total, squares, bets, won, spent, best, bounds = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, []
    mu, s2 = 0.5, 0.25
    for t, value in enumerate(y, start=1):
        bet = min(sqrt(2 * log(1 / delta) / (s2 * t * log(1 + t))), 0.1)
        bets, won = bets + bet, won + bet * value
        spent += (value - mu) ** 2 * (-log(1 - bet) - bet)
        best = max(best, (won - log(1 / delta) - spent) / bets)
        bounds.append(best)
        total += value
        mu = min((0.5 + total) / (t + 1), 1.0)
        squares += (value - mu) ** 2
        s2 = (0.25 + squares) / (t + 1)
    return bounds


def pareto_shape(x: Numbers) -> float:
    """Zhang and Stephens 2009 with a grid of 30 + sqrt(n) points; the sign of k is turned."""
    x, n = sorted(x), len(x)
    points = 30 + int(sqrt(n))
    quarter = x[max(int(n / 4 + 0.5), 1) - 1]
    thetas = [1 / x[-1] + (1 - sqrt(points / (i - 0.5))) / (3 * quarter) for i in range(1, points + 1)]
    shapes = [sum(log1p(-theta * value) for value in x) / n for theta in thetas]
    # where theta is 0 but for rounding, -theta / k is its limit
    rates = [-t / k if abs(t) * x[-1] > 1e-9 else n / sum(x) for t, k in zip(thetas, shapes, strict=True)]
    logs = [n * (log(rate) - k - 1) for rate, k in zip(rates, shapes, strict=True)]
    masses = [1 / sum(exp(min(other - own, 700)) for other in logs) for own in logs]
    theta = sum(theta * mass for theta, mass in zip(thetas, masses, strict=True))
    return sum(log1p(-theta * value) for value in x) / n


# Sensitivity ----------------------------------------------------------------------------------------------


def vertices(count: int, gamma: float) -> Iterator[tuple[float, ...]]:
    """Every corner of [1/Gamma, Gamma]^n: a ratio of linear functions has its extremes there."""
    return product((1 / gamma, gamma), repeat=count)


def whole_value(log_: Log, r: Numbers) -> float:
    """sum c W R / sum c W with W = 1 + (1/p - 1) r."""
    n = range(len(log_.A))
    cW = [log_.weight[j] * log_.h[j][log_.A[j]] * (1 + (1 / log_.p[j] - 1) * r[j]) for j in n]
    return sum(cW[j] * log_.R[j] for j in n) / sum(cW)


def changed_value(log_: Log, r: Numbers) -> float:
    """What the log shows, plus per action the mean reward that the unseen weights give; needs rows of every action."""
    n, total = range(len(log_.A)), sum(log_.weight)
    value = sum(log_.weight[j] * log_.h[j][log_.A[j]] * log_.R[j] for j in n) / total
    for a in range(len(log_.h[0])):
        share = sum(log_.weight[j] * log_.h[j][a] for j in n if log_.A[j] != a) / total
        unseen = {j: log_.weight[j] * log_.h[j][a] * (1 / log_.p[j] - 1) * r[j] for j in n if log_.A[j] == a}
        value += share * sum(unseen[j] * log_.R[j] for j in unseen) / sum(unseen.values())
    return value


# A finite world -------------------------------------------------------------------------------------------


class World(NamedTuple):
    """Contexts with probability P_x, logging policy P0 [x][a], success probability r [x][a], R is 0 or 1."""

    P_x: Numbers
    P0: Sequence[Numbers]
    r: Sequence[Numbers]

    def rows(self) -> Iterator[tuple[float, tuple[int, int, int]]]:
        """Every (x, A, R) with its probability."""
        for x, a, R in product(range(len(self.P_x)), range(len(self.r[0])), (0, 1)):
            yield self.P_x[x] * self.P0[x][a] * (self.r[x][a] if R else 1 - self.r[x][a]), (x, a, R)

    def value(self, h: Sequence[Numbers]) -> float:
        """The true value of a policy h [x][a]."""
        pairs = product(range(len(self.P_x)), range(len(self.r[0])))
        return sum(self.P_x[x] * h[x][a] * self.r[x][a] for x, a in pairs)

    def logs(self, n: int) -> Iterator[tuple[float, list[tuple[int, int, int]]]]:
        """Every log of n rows with its probability."""
        for several in product(self.rows(), repeat=n):
            chance = 1.0
            for probability, _ in several:
                chance *= probability
            yield chance, [row for _, row in several]
