"""A practical certificate of relevance: a studentised test per (action, feature), with false-discovery control.

The theorems' constants are loose; this test is sharp and only asymptotic. H0 of (a, i): r(a, x_i) = r(a) in every
level. It compares the level means of the centred variable

    Z_j(a) = 1{A_j = a} w_j (R_j - c_a),   c_a = sum_j 1{A_j = a} w_j R_j / sum_j 1{A_j = a} w_j,

whose expectation given X_i is r(a, X_i) - c_a, so the means differ exactly when feature i matters. Centring takes out
the variance that the weights alone would bring. Variances are those of each level by itself, because under H0 the
variance of Z still depends on a feature that drives the logging: Welch's analysis of variance. Neighbouring levels
are pooled until each group holds enough rows of the action for its mean to be near normal, and further where there are
many levels: more groups spread the same signal over more degrees of freedom. Over all pairs the Benjamini-Hochberg
procedure holds the expected share of false discoveries.
"""

import numpy as np

from ponn.steps.tally import LevelTally

MOST_GROUPS = 8  # features with more levels are pooled to about so many; with fewer, a rare level stays by itself
FEWEST_TAKEN = 50  # rows of the action per group; benchmarks/discovery_calibration.py


def centre(R: np.ndarray, A: np.ndarray, w: np.ndarray, k: int) -> np.ndarray:
    """c_a of each row's action: the self-normalised mean reward of the action."""  # [n]
    weight = np.bincount(A, w, minlength=k)
    c = np.divide(np.bincount(A, w * R, minlength=k), weight, out=np.zeros(k), where=weight > 0)
    return np.asarray(c[A])


def p_values(tally: LevelTally, b: np.ndarray) -> np.ndarray:
    """The p-value of every (action, feature) from a tally of Z; 1 where there are too few rows to test."""  # [k, d]
    ends = np.cumsum(b)
    columns = [slice(end - size, end) for end, size in zip(ends, b, strict=True)]
    return np.column_stack(
        [test_feature(tally, part, rows_per_group(tally, size)) for part, size in zip(columns, b, strict=True)]
    )


def rows_per_group(tally: LevelTally, levels: int) -> np.ndarray:
    """Rows of each action that a group of this feature must hold."""  # [k]
    taken = tally.N_taken[:, -1]
    return np.maximum(FEWEST_TAKEN, taken / MOST_GROUPS if levels > MOST_GROUPS else np.zeros_like(taken))


def test_feature(tally: LevelTally, part: slice, target: np.ndarray) -> np.ndarray:
    """The p-values of one feature for all actions."""  # [k]
    group = pool(tally.N_taken[:, part], target)  # [k, b]
    N, N_taken, mean, M2 = merge(tally, part, group)  # [k, b]: one column per group, unused ones are empty
    V = np.divide(M2, N - 1, out=np.zeros_like(M2), where=N > 1)
    used = N_taken > 0
    some = V[used].max(initial=0.0)
    V = np.where(used & (V <= 0), some, V)
    return welch(mean, np.divide(N, V, out=np.zeros_like(V), where=used & (V > 0)), N_taken - 1)


def pool(N_taken: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The group of each level: neighbours are joined until a group has `target` rows of the action."""  # [k, b]
    k, b = N_taken.shape
    group, held = np.zeros((k, b), np.intp), np.zeros(k)
    current = np.zeros(k, np.intp)
    for level in range(b):
        group[:, level] = current
        held += N_taken[:, level]
        full = held >= target
        current, held = current + full, np.where(full, 0, held)
    return np.minimum(group, np.maximum(current - 1, 0)[:, None])  # an unfilled last group joins the one before


def merge(tally: LevelTally, part: slice, group: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows, taken rows, mean and squared deviations of the pooled groups, each [k, b]."""
    k, b = group.shape
    cell = (np.arange(k)[:, None] * b + group).ravel()

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(cell, values.ravel(), minlength=k * b).reshape(k, b)

    N_level = np.broadcast_to(tally.N[part], (k, b))
    U, N = tally.U[:, part], total(N_level)
    mean = np.divide(total(N_level * U), N, out=np.zeros((k, b)), where=N > 0)
    gap = U - np.take_along_axis(mean, group, axis=1)
    return N, total(tally.N_taken[:, part]), mean, total(tally.M2[:, part] + N_level * gap * gap)


def welch(mean: np.ndarray, precision: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Welch's test that all groups of a row have one mean; groups without precision do not take part."""  # [k]
    total = np.maximum(precision.sum(axis=1), np.finfo(float).tiny)
    centre = (precision * mean).sum(axis=1) / total
    statistic = (precision * (mean - centre[:, None]) ** 2).sum(axis=1)
    share = precision / total[:, None]
    slack = np.where(precision > 0, (1 - share) ** 2 / np.maximum(freedom, 1), 0).sum(axis=1)
    return welch_james((precision > 0).sum(axis=1) - 1, statistic, slack)


def welch_james(freedom: np.ndarray, statistic: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """p-value of a chi-square statistic whose variances are estimated (Welch, James; Johansen 1980); 1 if untestable.

    statistic / c ~ F(f, f (f + 2) / (3 A)),  c = f + 2 A - 6 A / (f + 2),
    A = sum over the cells of (1 - leverage)^2 / (rows - 1), here `slack`.
    """
    from scipy.special import fdtrc

    testable = (freedom > 0) & (slack > 0)
    f, A = np.where(testable, freedom, 1), np.where(testable, slack, 1.0)
    p = fdtrc(f, f * (f + 2) / (3 * A), statistic / (f + 2 * A - 6 * A / (f + 2)))
    return np.where(testable, p, 1.0)


def discoveries(p: np.ndarray, rate: float) -> np.ndarray:
    """Benjamini-Hochberg over all pairs: which p-values are discoveries at this false-discovery rate."""
    return np.asarray(q_values(p) <= rate)


def q_values(p: np.ndarray) -> np.ndarray:
    """The smallest false-discovery rate at which each pair would be a discovery."""
    flat = p.ravel()
    order = np.argsort(flat)
    ranked = flat[order] * len(flat) / np.arange(1, len(flat) + 1)
    q = np.empty_like(flat)
    q[order] = np.minimum(np.minimum.accumulate(ranked[::-1])[::-1], 1)
    return q.reshape(p.shape)
