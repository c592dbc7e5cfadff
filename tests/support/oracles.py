"""The paper's sums as plain loops: nothing vectorised, nothing imported from ponn, slow on purpose.

Tests compare the package with these. Letters as in the paper: j row, i feature, a action, x level.
Where the paper is silent: V of one row is 0; a constant column correlates 0 with everything; with a single
feature the mean absolute correlation is 0; R_hat of a level without rows is NaN and enters nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import inf, log, nan, sqrt
from typing import Any, NamedTuple

Loss = Callable[[float], float]


def l1(z: float) -> float:
    """The absolute loss |z|."""
    return abs(z)


def l2(z: float) -> float:
    """The squared loss z^2."""
    return z * z


class Log(NamedTuple):
    """Rows (x_j, A_j, R_j, p_j): levels [n][d] from 0 to b[i] - 1, actions from 0 to k - 1, p_j of the action taken."""

    levels: Sequence[Sequence[int]]  # [n][d]
    b: Sequence[int]  # [d]
    A: Sequence[int]  # [n]
    R: Sequence[float]  # [n]
    p: Sequence[float]  # [n]
    k: int
    m: float = inf  # truncation of the weights


# Counts (section 4.2.2) ---------------------------------------------------------------------------------


def rows_with(log: Log, i: int, x: int) -> list[int]:
    """J(x_i) = {j : X_{i,j} = x_i}."""
    return [j for j in range(len(log.A)) if log.levels[j][i] == x]


def N_level(log: Log, i: int, x: int) -> int:
    """N(x_i): rows with level x of feature i."""
    return len(rows_with(log, i, x))


def N_action(log: Log, a: int) -> int:
    """N(a): rows with action a."""
    return sum(1 for taken in log.A if taken == a)


def N_action_level(log: Log, a: int, i: int, x: int) -> int:
    """N(a, x_i): rows with action a and level x of feature i."""
    return sum(1 for j in rows_with(log, i, x) if log.A[j] == a)


# Means and variances (sections 4.2.2, 4.2.3, 4.5, 6) ------------------------------------------------------


def U(log: Log, j: int, a: int) -> float:
    """U_j(a) = min(1{A_j = a} / p_j, m) R_j."""
    indicator = 1 if log.A[j] == a else 0
    return min(indicator / log.p[j], log.m) * log.R[j]


def mean(values: Sequence[float]) -> float:
    """The mean, NaN of nothing."""
    return sum(values) / len(values) if len(values) else nan


def variance(values: Sequence[float]) -> float:
    """sum (value - mean)^2 / (N - 1); 0 for N < 2."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return sum((value - centre) ** 2 for value in values) / (len(values) - 1)


def R_hat(log: Log, a: int) -> float:
    """R_hat(a) = (1/n) sum_j U_j(a)."""
    return mean([U(log, j, a) for j in range(len(log.A))])


def R_hat_level(log: Log, a: int, i: int, x: int) -> float:
    """R_hat(a, x_i) = (1/N(x_i)) sum over j in J(x_i) of U_j(a)."""
    return mean([U(log, j, a) for j in rows_with(log, i, x)])


def V(log: Log, a: int) -> float:
    """V_n(a) = (1/(n-1)) sum_j (U_j(a) - R_hat(a))^2."""
    return variance([U(log, j, a) for j in range(len(log.A))])


def V_level(log: Log, a: int, i: int, x: int) -> float:
    """V_n(a, x_i) = (1/(N(x_i)-1)) sum over j in J(x_i) of (U_j(a) - R_hat(a, x_i))^2; 0 for N(x_i) < 2."""
    return variance([U(log, j, a) for j in rows_with(log, i, x)])


def V_bar(log: Log, a: int, i: int) -> float:
    """V_bar(a, i) = sum over x_i of N(x_i) V_n(a, x_i) / n."""
    n = len(log.A)
    return sum(N_level(log, i, x) * V_level(log, a, i, x) / n for x in range(log.b[i]))


def G_hat(log: Log, a: int, i: int, loss: Loss) -> float:
    """G_hat(a, i) = (1/n) sum over x_i of N(x_i) l(R_hat(a, x_i) - R_hat(a))."""
    total = 0.0
    for x in range(log.b[i]):
        if N_level(log, i, x) > 0:
            total += N_level(log, i, x) * loss(R_hat_level(log, a, i, x) - R_hat(log, a))
    return total / len(log.A)


# Correlations (section 4.2.3) -----------------------------------------------------------------------------


def pearson(u: Sequence[float], v: Sequence[float]) -> float:
    """|rho| = |cov(u, v)| / sqrt(var(u) var(v)); 0 if a column is constant."""
    if len(set(u)) < 2 or len(set(v)) < 2:
        return 0.0
    cov = sum((s - mean(u)) * (t - mean(v)) for s, t in zip(u, v, strict=True))
    return abs(cov) / sqrt(sum((s - mean(u)) ** 2 for s in u) * sum((t - mean(v)) ** 2 for t in v))


def correlation_ratio(category: Sequence[Any], number: Sequence[float]) -> float:
    """eta = sqrt(sum over c of N(c) (mean_c - mean)^2 / sum_j (v_j - mean)^2): |rho| with the group's mean."""
    if len(set(number)) < 2:
        return 0.0
    centre, between = mean(number), 0.0
    for c in sorted(set(category)):
        group = [v for s, v in zip(category, number, strict=True) if s == c]
        between += len(group) * (mean(group) - centre) ** 2
    return sqrt(between / sum((v - centre) ** 2 for v in number))


def cramers_v(u: Sequence[Any], v: Sequence[Any]) -> float:
    """Cramer's V = sqrt(chi^2 / (n (min(levels seen of u, of v) - 1))); for two binary columns it is |rho|."""
    smaller = min(len(set(u)), len(set(v)))
    if smaller < 2:
        return 0.0
    n, chi2 = len(u), 0.0
    for s, t in product(sorted(set(u)), sorted(set(v))):
        expected = sum(1 for w in u if w == s) * sum(1 for w in v if w == t) / n
        seen = sum(1 for pair in zip(u, v, strict=True) if pair == (s, t))
        chi2 += (seen - expected) ** 2 / expected
    return sqrt(chi2 / (n * (smaller - 1)))


def association(u: Sequence[Any], u_is_number: bool, v: Sequence[Any], v_is_number: bool) -> float:
    """|rho| for two numbers, the correlation ratio for a number and a category, Cramer's V for two categories."""
    if u_is_number and v_is_number:
        return pearson(u, v)
    if u_is_number:
        return correlation_ratio(v, u)
    if v_is_number:
        return correlation_ratio(u, v)
    return cramers_v(u, v)


def mean_absolute_correlation(columns: Sequence[Sequence[Any]], is_number: Sequence[bool], i: int) -> float:
    """(1/(d-1)) sum over l != i of |rho_{i,l}|."""
    d = len(columns)
    others = [association(columns[i], is_number[i], columns[o], is_number[o]) for o in range(d) if o != i]
    return sum(others) / (d - 1) if d > 1 else 0.0


# Thresholds and relevant sets (sections 4.2.3, 4.2.4, 6) --------------------------------------------------


def tau_levels(log: Log, a: int, i: int, lambda1: float, lambda2: float, correlation: float) -> float:
    """Section 4: tau(a, i) = lambda1 sqrt(b_i V_bar(a, i) / n) + lambda2 (mean absolute correlation of i)."""
    return lambda1 * sqrt(log.b[i] * V_bar(log, a, i) / len(log.A)) + lambda2 * correlation


def tau_bins(log: Log, a: int, i: int, lambda1: float, lambda2: float, correlation: float) -> float:
    """Section 6: tau(a, i) = lambda1 n^(-1/3) sqrt(V_bar(a, i)) + lambda2 (mean absolute correlation of i)."""
    return lambda1 / float(len(log.A) ** (1 / 3)) * sqrt(V_bar(log, a, i)) + lambda2 * correlation


def relevant(log: Log, a: int, loss: Loss, tau: Sequence[float]) -> set[int]:
    """R_hat(a) = {i : G_hat(a, i) > tau(a, i)}, tau [d] of action a."""
    return {i for i in range(len(log.b)) if G_hat(log, a, i, loss) > tau[i]}


def ips_value(log: Log, h: Sequence[Sequence[float]]) -> float:
    """(1/n) sum_j R_j min(1/p_j, m) h(A_j | X_j), h [n][k]."""
    n = len(log.A)
    return sum(log.R[j] * min(1 / log.p[j], log.m) * h[j][log.A[j]] for j in range(n)) / n


# A finite world and everything about it by enumeration ----------------------------------------------------


class World(NamedTuple):
    """Feature vectors x [S][d] with probabilities P [S], logging policy p0 [S][k], expected rewards r [S][k]."""

    x: Sequence[Sequence[int]]
    P: Sequence[float]
    p0: Sequence[Sequence[float]]
    r: Sequence[Sequence[float]]
    b: Sequence[int]

    @property
    def k(self) -> int:
        """The number of actions."""
        return len(self.p0[0])


def Pr_level(world: World, i: int, x: int) -> float:
    """Pr(X_i = x_i)."""
    return sum(P for P, vector in zip(world.P, world.x, strict=True) if vector[i] == x)


def true_r(world: World, a: int) -> float:
    """r(a) = sum over x of Pr(x) r(a, x)."""
    return sum(P * r[a] for P, r in zip(world.P, world.r, strict=True))


def true_r_level(world: World, a: int, i: int, x: int) -> float:
    """r(a, x_i) = E[r(a, X) | X_i = x_i]."""
    inside = sum(world.P[s] * world.r[s][a] for s in range(len(world.x)) if world.x[s][i] == x)
    return inside / Pr_level(world, i, x)


def true_g(world: World, a: int, i: int, loss: Loss) -> float:
    """g(a, i) = E[l(r(a, X_i) - r(a))]."""
    total = 0.0
    for x in range(world.b[i]):
        if Pr_level(world, i, x) > 0:
            total += Pr_level(world, i, x) * loss(true_r_level(world, a, i, x) - true_r(world, a))
    return total


def true_value(world: World, h: Sequence[Sequence[float]]) -> float:
    """E[R(h)] = sum over x of Pr(x) sum_a h(a | x) r(a, x), h [S][k]."""
    return sum(world.P[s] * h[s][a] * world.r[s][a] for s in range(len(world.x)) for a in range(world.k))


def every_log(
    world: World, n: int, m: float = inf, p_hat: Sequence[Sequence[float]] | None = None
) -> Iterator[tuple[float, Log, tuple[int, ...]]]:
    """(probability, log, states [n]) of each log of n rows with rewards 0 or 1: (2 S k)^n logs, keep the world tiny.

    p_hat [S][k], where given, replaces p0 in the weights (not in the probabilities).
    """
    p = world.p0 if p_hat is None else p_hat
    outcomes = []
    for s, a, R in product(range(len(world.x)), range(world.k), (0, 1)):
        chance = world.P[s] * world.p0[s][a] * (world.r[s][a] if R else 1 - world.r[s][a])
        if chance > 0:
            outcomes.append((chance, s, a, R))
    for rows in product(outcomes, repeat=n):
        probability = 1.0
        for row in rows:
            probability *= row[0]
        states = tuple(row[1] for row in rows)
        A, R_seen = [row[2] for row in rows], [float(row[3]) for row in rows]
        taken = [p[s][a] for s, a in zip(states, A, strict=True)]
        yield probability, Log([world.x[s] for s in states], world.b, A, R_seen, taken, world.k, m), states


# Lemmas and theorems (appendix) -----------------------------------------------------------------------------


def truncated_r(world: World, p_hat: Sequence[Sequence[float]], m: float, a: int) -> float:
    """r_m(a) = E[min(1{A = a} / p_hat(A|X), m) R], over every x, A."""
    total = 0.0
    for s, taken in product(range(len(world.x)), range(world.k)):
        indicator = 1 if taken == a else 0
        total += world.P[s] * world.p0[s][taken] * min(indicator / p_hat[s][taken], m) * world.r[s][taken]
    return total


def truncated_r_level(world: World, p_hat: Sequence[Sequence[float]], m: float, a: int, i: int, x: int) -> float:
    """r_m(a, x_i) = E[min(1{A = a} / p_hat(A|X), m) R | X_i = x_i]."""
    total = 0.0
    for s in range(len(world.x)):
        if world.x[s][i] == x:
            total += world.P[s] * world.p0[s][a] * min(1 / p_hat[s][a], m) * world.r[s][a]
    return total / Pr_level(world, i, x)


def lemma1(V_n: float, n: int, range_: float, delta: float) -> float:
    """sqrt(2 V ln(3/delta) / n) + 3 range ln(3/delta) / n, V_n divided by n - 1 and the lemma's V by n."""
    return sqrt(2 * V_n * (n - 1) / n * log(3 / delta) / n) + 3 * range_ * log(3 / delta) / n


def lemma2(b: int, n: int, delta: float) -> float:
    """The epsilon with (2^b - 2) exp(-n epsilon^2 / 2) = delta; 0 for one level."""
    return sqrt(2 * log((2**b - 2) / delta) / n) if b > 1 else 0.0


def theorem1_printed(log_: Log, a: int, i: int, M: float, B: float, delta: float) -> dict[str, float]:
    """Theorem 1 as printed, term by term."""
    n, b = len(log_.A), log_.b[i]
    return {
        "levels": B * sqrt(2 * b * log(3 / delta) * V_bar(log_, a, i) / n),
        "mean": B * sqrt(2 * log(3 / delta) * V(log_, a) / n),
        "range": B * M * (b + 1) * log(3 / delta) / n,
        "arrival": sqrt(2 * (log(1 / delta) + b * log(2)) / n),
    }


def theorem1_corrected(
    log_: Log, a: int, i: int, M: float, B: float, delta: float, k: int = 1, d: int = 1
) -> dict[str, float]:
    """Theorem 1 with the gaps closed, for all pairs of k actions and d features at once (1, 1: this pair alone)."""
    n, b = len(log_.A), log_.b[i]
    level, whole = log(3 * b * k * d / delta), log(3 * k / delta)
    return {
        "levels": B * sqrt(2 * b * level * V_bar(log_, a, i) / n),
        "mean": B * sqrt(2 * whole * (V(log_, a) * (n - 1) / n) / n),
        "range": B * 3 * M * (b * level + whole) / n,
        "arrival": lemma2(b, n, delta / d),
    }


def theorem1_line_by_line(log_: Log, a: int, i: int, M: float, B: float, delta: float) -> float:
    """The proof of Theorem 1 before Jensen, for one pair: Lemma 1 at each level seen, weighted by N(x_i)/n."""
    n, seen = len(log_.A), [x for x in range(log_.b[i]) if N_level(log_, i, x) > 0]
    total = lemma1(V(log_, a), n, M, delta)
    for x in seen:
        N = N_level(log_, i, x)
        total += N / n * lemma1(V_level(log_, a, i, x), N, M, delta / len(seen))
    return B * total + sqrt(log(2 / delta) / (2 * n))


def theorem2_printed(
    log_: Log, a: int, i: int, B: float, L: float, bias: float, bias_levels: float, delta: float
) -> dict[str, float]:
    """Theorem 2 as printed, term by term, m from the log."""
    n, m = len(log_.A), log_.m
    return {
        "levels": B * sqrt(4 * log(3 / delta)) / n ** (1 / 3) * sqrt(V_bar(log_, a, i)),
        "mean": B * sqrt(4 * log(3 / delta)) / n ** (1 / 3) * sqrt(V(log_, a)),
        "range": 4 * m * B * log(3 / delta) / n ** (2 / 3),
        "arrival": sqrt(2 * log(1 / delta) + log(2)) / n ** (2 / 3),
        "binning": B * L / n ** (1 / 3),
        "bias": B * (abs(bias) + bias_levels),
    }


def bins(n: int) -> int:
    """s = ceil(n^(1/3)), section 6: the smallest whole number whose cube is at least n."""
    s = 1
    while s**3 < n:
        s += 1
    return s
