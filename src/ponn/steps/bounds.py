"""How far G_hat(a, i) can be from the true relevance g(a, i): Lemmas 1-4, Theorems 1 and 2 (appendix).

    symbol        meaning                                                            shape
    n, k, d       rows, actions, feature types
    b             levels of feature i (section 6: bins)                              [d]
    U_j(a)        1{A_j = a} min(1 / p_j, m) R_j                                     [n, k]
    V             V_n(a): variance of U(a), divided by n - 1                         [k]
    V_bar         sum over x_i of N(x_i) V_n(a, x_i) / n, V_n divided by N(x_i) - 1  [k, d]
    M             U(a) never exceeds it: largest 1 / p0(a | x) over all x (or m)     number or [k]
    B             Lipschitz constant of the loss l, see `lipschitz`                  number or [k, d]
    delta         each theorem holds with probability at least 1 - 3 delta           number
    bias          r(a) - E[R_hat_m(a)]                                               [k]
    bias_levels   E |r(a, X_i) - E[R_hat_m(a, X_i)]|                                 [k, d]
    L             |r(a, x) - r(a, x')| <= L |x - x'| (Assumption 3)                  number

Leading axes (many logs at once) are allowed in front of every [k] and [k, d].

Three forms:
  printed    the formula as published. Its proof has gaps, so it certifies nothing.
  corrected  the published proof with the gaps closed, nothing else changed.
  sharp      the same three events, bounded without avoidable loss: Hoeffding for the arrival term (see
             `arrival_width`), half a bin for the binning term. Levels may be counted in the log itself.

What no log reveals: M bounds 1/p0(a | x) over every x and action, so the largest weight *seen* is not M. It comes
from the logging policy (epsilon-greedy: k / epsilon) or from truncation, U <= m, which then costs a bias.

Propensities must be known or fitted on other rows: p_hat fitted on the same rows makes the U_j dependent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from ponn.errors import PonnError

Form = Literal["printed", "corrected", "sharp"]
Number: TypeAlias = float | np.ndarray

MEANINGS = {
    "levels": "estimation error of R_hat(a, x_i), the mean reward of each level",
    "mean": "estimation error of R_hat(a), the mean reward of the action",
    "range": "rare large weights, which the variance seen in this log need not show",
    "arrival": "N(x_i) / n instead of the true frequency of each level",
    "binning": "change of the expected reward inside a bin (Assumption 3)",
    "bias": "truncated weights and wrong propensities (Lemmas 3 and 4)",
}


@dataclass(frozen=True, eq=False)
class Bound:
    """A bound on |G_hat(a, i) - g(a, i)| that holds with probability >= 1 - 3 delta, term by term.

    `terms` maps names of `MEANINGS` to arrays; without a bound it is empty and `reason` says why.
    """

    theorem: int
    form: Form
    delta: float
    simultaneous: bool  # the probability is that of all pairs (a, i) at once, not of each pair alone
    terms: Mapping[str, np.ndarray]  # each [k, d]
    reason: str = ""

    @property
    def total(self) -> np.ndarray | None:
        """The bound itself, the sum of its terms; None where there is none."""  # [k, d]
        return None if self.reason else np.sum(list(self.terms.values()), axis=0)

    def certified(self, G: np.ndarray) -> np.ndarray:
        """Whether g(a, i) > 0 is certain at this delta: G_hat(a, i) - bound > 0."""  # [k, d]
        if self.form == "printed":
            raise PonnError('the printed bound has gaps in its proof and certifies nothing: use form="corrected"')
        return np.zeros(np.shape(G), dtype=bool) if self.total is None else np.asarray(G - self.total > 0)


# Lemmas 1 and 2 -----------------------------------------------------------------------------------------


def lemma1_parts(V: Number, n: Number, range_: Number, delta: Number) -> tuple[np.ndarray, np.ndarray]:
    """Empirical Bernstein (Audibert et al. 2009) in its two parts, V divided by n as in the lemma.

    |mean - mu| <= sqrt(2 V ln(3/delta) / n) + 3 range ln(3/delta) / n.
    It needs independence only: rows with different means are fine (mu is then the mean of the means). With
    range 1, S^2 = mean E(X_j - mu)^2 and u^2 = ln(3/delta)/n: Bernstein gives |mean - mu| <= S u sqrt(2) + u^2/3,
    its one-sided form for (X_j - mu)^2 gives V + (mean - mu)^2 >= S^2 - S u sqrt(2). Were the lemma false, then
    S > 8 u / (3 sqrt 2) and, as S <= 1/2, u < 0.266, with which the two lines give S < sqrt(V) + 1.76 u: but the
    lemma fails only if S > sqrt(V) + 1.88 u.
    """
    log = np.log(3 / np.asarray(delta))
    return np.sqrt(2 * V * log / n), np.asarray(3 * range_ * log / n)


def lemma1_width(V: Number, n: Number, range_: Number, delta: Number, form: Form = "corrected") -> np.ndarray:
    """Lemma 1: with probability 1 - delta a mean of n values in [0, range] is this close to its expectation.

    V divides by n - 1, as everywhere in ponn; the lemma's divides by n. The proof of Theorem 1 ignores this
    (`printed`, larger, so harmless); here V (n - 1) / n. One row: 3 range ln(3/delta), true since
    nothing exceeds the range. No row: infinite.
    """
    rows = np.asarray(n, dtype=float)
    some = np.maximum(rows, 1)  # 0 rows are answered below, without dividing by 0
    V_lemma = V if form == "printed" else V * (some - 1) / some
    from_variance, from_range = lemma1_parts(V_lemma, some, range_, delta)
    return np.where(rows > 0, from_variance + from_range, np.inf)


def lemma2_width(b: Number, n: Number, delta: Number, form: Form = "corrected") -> np.ndarray:
    """Lemma 2 (Weissman et al. 2003): sum over x_i of |N(x_i)/n - Pr(x_i)| <= width, probability 1 - delta.

    width = sqrt(2 ln((2^b - 2) / delta) / n), and 0 for one level; the theorems as printed use 2^b.
    b is the number of levels that can occur, fixed before looking: a level not seen still counts.
    """
    levels = np.asarray(b, dtype=float)
    if form == "printed":
        return np.asarray(np.sqrt(2 * (levels * np.log(2) - np.log(delta)) / n))
    several = np.maximum(levels, 2)
    subsets = several * np.log(2) + np.log1p(-(2 ** (1 - several)))  # ln(2^b - 2) without overflow
    return np.where(levels > 1, np.sqrt(2 * (subsets - np.log(delta)) / n), 0.0)


def hoeffding_width(n: Number, range_: Number, delta: Number) -> np.ndarray:
    """Hoeffding: with probability 1 - delta, |mean - mu| <= range sqrt(ln(2/delta) / (2 n))."""
    return np.asarray(range_ * np.sqrt(np.log(2 / np.asarray(delta)) / (2 * n)))


def arrival_width(b: Number, n: int, delta: float, loss_max: float, form: Form, unions: tuple[int, int]) -> np.ndarray:
    """The error of N(x_i)/n for Pr(x_i): |sum over x_i of (N(x_i)/n - Pr(x_i)) l(r(a, x_i) - r(a))|.

    corrected: at most loss_max times the L1 distance of Lemma 2, one event per feature.
    sharp: for one pair (a, i) the losses l(r(a, X_ij) - r(a)) are n i.i.d. numbers in [0, loss_max] and the sum is
    their mean minus its expectation: Hoeffding, whatever b is. Lemma 2 would allow for every loss at once.
    """
    features, pairs = unions
    if form == "sharp":
        return hoeffding_width(n, loss_max, delta / pairs) * np.ones(np.shape(b))
    return loss_max * lemma2_width(b, n, delta / features)


# Lemmas 3 and 4 -----------------------------------------------------------------------------------------


def lost_share(p0: np.ndarray, p_hat: np.ndarray, m: float, form: Form = "corrected") -> np.ndarray:
    """The share of r(a, X_j) that truncated weights lose: 1 - p0(a|X_j) min(1/p_hat(a|X_j), m).

    As printed, both cases of Lemma 3 contain p_hat = 1/m, which is then counted twice (its proof has "<").
    """
    if form == "printed":
        kept, cut = p_hat >= 1 / m, p_hat <= 1 / m
        return np.where(kept, 1 - p0 / p_hat, 0.0) + np.where(cut, 1 - p0 * np.where(cut, m, 0.0), 0.0)
    return np.asarray(1 - p0 * np.minimum(1 / p_hat, m))


def truncation_bias(
    r: np.ndarray,
    p0: np.ndarray,
    p_hat: np.ndarray,
    m: float,
    weights: np.ndarray | None = None,
    form: Form = "corrected",
) -> np.ndarray:
    """Lemma 3: bias(R_hat_m(a)) = E[r(a, X) (1 - p0(a|X) min(1/p_hat(a|X), m))].

    r, p0, p_hat [n, k]; the expectation is over the rows, `weights` [n] are their probabilities (default equal).
    As printed p_0j is the propensity of the action taken: give p0 and p_hat as [n, 1] for that. p_hat must not
    depend on the rows averaged (known, or fitted elsewhere). With p_hat = p0 the bias lies in [0, that of r = 1].
    """
    return np.asarray(np.average(r * lost_share(p0, p_hat, m, form), axis=0, weights=weights))  # [k]


def truncation_bias_levels(
    r: np.ndarray,
    p0: np.ndarray,
    p_hat: np.ndarray,
    m: float,
    levels: np.ndarray,
    weights: np.ndarray | None = None,
    form: Form = "corrected",
) -> np.ndarray:
    """Lemma 3 within each level: E |bias(R_hat_m(a, X_i))|, levels [n, d], the rest as in `truncation_bias`."""
    w = np.full(len(r), 1 / len(r)) if weights is None else weights / np.sum(weights)
    lost = w[:, None] * r * lost_share(p0, p_hat, m, form)  # [n, k]
    biases = np.empty((r.shape[1], levels.shape[1]))
    for i, level in enumerate(levels.T):
        sums = np.zeros((level.max() + 1, r.shape[1]))  # [b_i, k]: Pr(x_i) bias(R_hat_m(a, x_i))
        np.add.at(sums, level, lost)
        biases[:, i] = np.abs(sums).sum(axis=0)
    return biases  # [k, d]


def lemma4(bias: Number, bias_levels: Number, B: Number) -> np.ndarray:
    """Lemma 4: |g_m(a, i) - g(a, i)| <= B (E |bias(R_hat_m(a, X_i))| + |bias(R_hat_m(a))|).

    The paper defines g_m for the loss |.| and with p0 in its weights; l and p_hat are meant, and used here.
    """
    return np.asarray(B * (np.abs(bias_levels) + np.abs(per_action(bias))))  # [k, d]


# Theorems 1 and 2 ---------------------------------------------------------------------------------------


def lipschitz(loss: str, largest: Number = 1.0) -> Number:
    """B such that |l(u) - l(v)| <= B |u - v| for |u| <= largest (estimates) and |v| <= 1 (the truth).

    l1: 1. l2: |u^2 - v^2| = |u + v| |u - v|, so B = 1 + largest. `largest` may be M or m (R_hat lies in [0, M]), 1 if
    R_hat is clipped to [0, 1] (which moves it no further from r), or max over x_i of |R_hat(a, x_i) - R_hat(a)| as
    observed [k, d]: the inequality is used for that one log only, so B may depend on it.
    """
    constants: dict[str, Number] = {"l1": 1.0, "l2": 1.0 + largest}
    if loss not in constants:
        raise PonnError(f"no Lipschitz constant is known for loss {loss!r}: give B yourself (known: l1, l2)")
    return constants[loss]


def level_variance(V_levels: np.ndarray, N: np.ndarray, n: int) -> np.ndarray:
    """What Lemma 1 gives before the proof applies Jensen's inequality; may stand in for V_bar, never exceeds it.

    (sum over x_i of sqrt((N(x_i) - 1) V_n(a, x_i)))^2 / (n b), b = levels with N(x_i) > 0. Much smaller when levels
    are of unequal size. V_levels [k, d, levels] (divided by N - 1; 0 where N < 2), N [d, levels], padded with 0.
    Give the theorems b >= the number of levels seen.
    """
    N = N[..., None, :, :]  # [1, d, levels]: the same for every action
    roots = np.sqrt(np.maximum(N - 1, 0) * V_levels).sum(axis=-1)  # [k, d]
    return np.asarray(roots**2 / (n * np.count_nonzero(N, axis=-1)))


def theorem1(
    V_bar: np.ndarray,
    V: np.ndarray,
    b: Number,
    n: int,
    M: Number,
    B: Number,
    delta: float,
    *,
    form: Form = "corrected",
    simultaneous: bool = True,
    loss_max: float = 1.0,
) -> Bound:
    """Theorem 1: |G_hat(a, i) - g(a, i)| with probability >= 1 - 3 delta, for finite levels and known propensities.

    corrected, for one pair:
        B (sqrt(2 b ln(3 b/delta) V_bar / n) + sqrt(2 ln(3/delta) V (n - 1) / n^2)
           + 3 M (b ln(3 b/delta) + ln(3/delta)) / n) + loss_max sqrt(2 ln((2^b - 2)/delta) / n)
    simultaneous: delta is divided by k d in the b terms, by k in the mean's, by d in Lemma 2's: one event each.

    Why it holds: given the whole column X_i the rows are independent, the N(x_i) are fixed, and the U_j(a) of one
    level are i.i.d. with mean r(a, x_i); Lemma 1 with delta/b at each level seen therefore holds given the column,
    hence also without. (Given N(a, x_i), as in the printed proof, it would not: A is part of U.) A level without rows
    has weight 0 in G_hat and is covered by the arrival term; a level with one row has V_n = 0 and width > M. V_bar
    with its N - 1 exceeds what Lemma 1 needs; `level_variance` is exact. loss_max bounds l at true differences:
    1 for l1 and l2, since rewards lie in [0, 1]; B for another loss with l(0) = 0, l >= 0.

    sharp: as Lemma 2 is not used, b may be the number of levels seen in the log. For a convex loss the lower side
    g >= G_hat - bound then holds for any levels made from the column X_i alone (quantile bins, merged rare levels):
    Lemma 1 needs no identical rows, and merging values can only lower a convex relevance.
    The printed form ignores `simultaneous` and `loss_max`.
    """
    k, d = checked(V_bar, n, delta, form)
    if form == "printed":
        log = np.log(3 / delta)
        terms = {
            "levels": B * np.sqrt(2 * b * log * V_bar / n),
            "mean": B * np.sqrt(2 * log * per_action(V) / n),
            "range": B * per_action(M) * (b + 1) * log / n,
            "arrival": lemma2_width(b, n, delta, form),
        }
    else:
        unions = (k, d) if simultaneous else (1, 1)
        terms = sampling_terms(V_bar, V, b, n, M, B, delta, form, unions, loss_max)
    return Bound(1, form, delta, simultaneous, in_shape(terms, V_bar))


def theorem2(
    V_bar: np.ndarray,
    V: np.ndarray,
    s: Number,
    n: int,
    m: Number,
    B: Number,
    L: float | None,
    bias: Number | None,
    bias_levels: Number | None,
    delta: float,
    *,
    form: Form = "corrected",
    simultaneous: bool = True,
    loss_max: float = 1.0,
    width: Number | None = None,
) -> Bound:
    """Theorem 2: the same for a feature on [0, 1] cut into s equal bins, with truncated or estimated weights.

    corrected: Theorem 1 with b = s, M = m, plus B L / s + B (|bias| + bias_levels).
    sharp: B L / (2 s) instead, the mean distance from the mean of values in an interval of length L / s.

    G_hat_m -> sum Pr(c) l(r_m(a, c) - r_m(a)) by the proof of Theorem 1; -> sum Pr(c) l(r(a, c) - r(a)) by Lemma 4,
    since |bias at c| <= E[|bias(a, X_i)| | c]; -> g by Assumption 3. The paper bins first and truncates second, and so
    needs r_m, not r, to be Lipschitz, which nothing grants.

    m bounds U: the truncation, or M where weights are not truncated. Known propensities without truncation have
    bias = bias_levels = 0; give None where unknown, and the answer is no bound, with the reason. For the l2
    loss give lipschitz("l2", largest) with largest >= 1, as B is also used between two true differences.
    With p_hat = p0, r_m <= r <= 1 and loss_max is that of Theorem 1; otherwise r_m reaches m: l1 needs loss_max = m,
    l2 m^2 and B = 2 m. `width` is the bins' length where it is not 1/s (say an extra bin holds missing values).
    """
    k, d = checked(V_bar, n, delta, form)
    if L is None or bias is None or bias_levels is None:
        return Bound(2, form, delta, simultaneous, {}, missing_reason(L, bias, bias_levels))
    unions = (k, d) if simultaneous else (1, 1)
    if form == "printed":
        terms = printed_sampling_terms2(V_bar, V, n, m, B, delta)
    else:
        terms = sampling_terms(V_bar, V, s, n, m, B, delta, form, unions, loss_max)
    terms["binning"] = np.asarray(B * L * bin_share(s, n, width, form))
    terms["bias"] = lemma4(bias, bias_levels, B)
    return Bound(2, form, delta, simultaneous, in_shape(terms, V_bar))


def sampling_terms(
    V_bar: np.ndarray,
    V: np.ndarray,
    b: Number,
    n: int,
    M: Number,
    B: Number,
    delta: float,
    form: Form,
    unions: tuple[int, int],
    loss_max: float,
) -> dict[str, np.ndarray]:
    """The four terms that both theorems share, in corrected or sharp form; `unions` counts actions and features.

    Lemma 1 weighted by N(x_i)/n and summed over the levels is Lemma 1 with variance b V_bar (by Jensen), range b M.
    """
    actions, features = unions
    pairs = actions * features
    levels, levels_range = lemma1_parts(b * V_bar, n, b * per_action(M), delta / (pairs * b))
    mean, mean_range = lemma1_parts(per_action(V) * (n - 1) / n, n, per_action(M), delta / actions)
    return {
        "levels": B * levels,
        "mean": B * mean,
        "range": B * (levels_range + mean_range),
        "arrival": arrival_width(b, n, delta, loss_max, form, (features, pairs)),
    }


def printed_sampling_terms2(
    V_bar: np.ndarray, V: np.ndarray, n: int, m: Number, B: Number, delta: float
) -> dict[str, np.ndarray]:
    """Theorem 2's first four terms as printed: orders n^(-1/3), n^(-1/3), n^(-2/3), n^(-2/3), and no s."""
    log, root = np.log(3 / delta), n ** (1 / 3)
    return {
        "levels": np.asarray(B * np.sqrt(4 * log * V_bar) / root),
        "mean": np.asarray(B * np.sqrt(4 * log * per_action(V)) / root),
        "range": np.asarray(4 * per_action(m) * B * log / root**2),
        "arrival": np.asarray(np.sqrt(2 * np.log(1 / delta) + np.log(2)) / root**2),
    }


def bin_share(s: Number, n: int, width: Number | None, form: Form) -> Number:
    """By how much of L the expected reward can differ from its bin's mean: n^(-1/3), one bin, or half a bin."""
    if form == "printed":
        return float(n ** (-1 / 3))
    length = 1 / s if width is None else width
    return length / 2 if form == "sharp" else length


def missing_reason(L: float | None, bias: Number | None, bias_levels: Number | None) -> str:
    """Why Theorem 2 gives no bound."""
    reasons = []
    if L is None:
        reasons.append("the Lipschitz constant L of the expected reward was not given, and no log reveals it")
    if bias is None or bias_levels is None:
        reasons.append("the biases of the estimated or truncated propensities are unknown: they need the true p0(a|x)")
    return "no bound by Theorem 2: " + "; ".join(reasons)


def per_action(values: Number) -> np.ndarray:
    """A number as it is, [k] as [k, 1]."""
    array = np.asarray(values, dtype=float)
    return array[..., None] if array.ndim else array


def in_shape(terms: Mapping[str, np.ndarray], V_bar: np.ndarray) -> dict[str, np.ndarray]:
    """Every term in the shape of V_bar, in the order of `MEANINGS`."""  # each [k, d]
    return {name: np.broadcast_to(terms[name], V_bar.shape) for name in MEANINGS if name in terms}


def checked(V_bar: np.ndarray, n: int, delta: float, form: str) -> tuple[int, int]:
    """(k, d), after refusing what the theorems do not cover."""
    if form not in get_args(Form):
        raise PonnError(f"form is {form!r}, expected one of {', '.join(get_args(Form))}")
    if not 0 < delta <= 1 / 3:
        raise PonnError(f"delta is {delta}, expected 0 < delta <= 1/3: the bound holds with probability 1 - 3 delta")
    if n < 1:
        raise PonnError(f"n is {n}: a bound needs at least one row")
    k, d = V_bar.shape[-2:]
    return k, d
