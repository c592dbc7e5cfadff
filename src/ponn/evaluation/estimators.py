"""What a policy is worth, from rows that another policy logged: the published off-policy estimators.

    symbol   meaning                                                                  shape
    h        h(a | x_j), the policy to value; rows sum to 1                           [n, k]
    A, R     logged action and reward in [0, 1]                                       [n]
    p        probability with which the logged action was taken                       [n]
    Q        r_hat(a, x_j), predictions of a reward model fitted on other rows        [n, k]
    w        importance weight h(A_j | x_j) / p_j                                     [n]
    q        r_hat(A_j, x_j)                                                          [n]
    dm       sum over a of h(a | x_j) r_hat(a, x_j)                                   [n]
    weight   row weights of the log, any scale: M below is the weighted mean          [n]
    psi      influence of row j on the value, mean 0: Var(value) = Var(psi) / n       [n]
    u        n times what the value changes per unit of what the outcome of row j has
             beyond the reward model: weight w (of ratios nearly so, as E[w] = 1)     [n]
    e        what was unexpected: R - q, by weights alone R less its mean             [n]

    estimator       value                            published by
    dm              M(dm)                            Dudik, Langford, Li 2011
    ips             M(w R)                           Horvitz, Thompson 1952
    truncated-ips   M(min(w, m) R)                   Ionides 2008; Bottou et al. 2013
    snips           M(w R) / M(w)                    Swaminathan, Joachims 2015
    dr              M(dm + w (R - q))                Dudik, Langford, Li 2011; Dudik et al. 2014
    sndr            M(dm) + M(w (R - q)) / M(w)      Thomas, Brunskill 2016, in the form of obp
    switch-dr       M(dm + w 1{w <= tau} (R - q))    Wang, Agarwal, Dudik 2017
    dros            M(dm + lambda w / (w^2 + lambda) (R - q))    Su et al. 2020, optimistic shrinkage

m = inf is ips; tau = inf and lambda = inf are dr, tau = 0 and lambda = 0 are dm. Wang et al. write switch-dr as the
reward model for actions with w > tau and dr for the others; the reward model's parts add up to dm.

psi takes p and Q as given. For p known, or Q fitted on other rows (dr, sndr), that is right to first order; for p
estimated by maximum likelihood it makes ips and snips intervals too wide, not too narrow. dm has the psi of dr: the
spread of its own terms leaves out the error of the reward model, and an interval made of it held the truth in 34 % of
simulated logs instead of 95 %. The weights of the log are part of the estimate: a value is a ratio of two sums, and psi
is that of the ratio.

truncated-ips, switch-dr and dros reduce w to some w_hat <= w: they trade variance for a bias, which is bounded, and
their parameter can be chosen by the rows: see `largest_bias` and `tuned`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from ponn.errors import SHOWN, PonnError, listing

BIAS_DELTA = 0.05  # the squared bias in the estimated error holds with probability 1 - delta, as in Su et al. 2020
CANDIDATES = 21  # values of a parameter that are tried, as in Wang et al. 2017


@dataclass(frozen=True, eq=False)
class Moves:
    """What outcomes move, for `intervals.unseen_error`."""

    u: np.ndarray  # [n]
    e: np.ndarray  # [n]
    weight: np.ndarray  # [n], of the rows
    surprise: float = 0.0  # at least, where it is known from more rows than these

    def less(self, other: "Moves | None") -> "Moves":
        """Of a difference: what was unexpected in an outcome was so for both."""
        if other is None:
            return self
        return replace(self, u=self.u - other.u, surprise=max(self.surprise, other.surprise))


@dataclass(frozen=True, eq=False)
class Valuation:
    """The value of a policy and the influence of each row on it; those of one log subtract, which pairs them."""

    value: float
    psi: np.ndarray  # [n], mean 0
    parameter: float | None = None  # m, tau or lambda, where the estimator has one
    bias: float = 0.0  # what |bias| can be at most by `largest_bias`, where weights were reduced
    moves: Moves | None = None  # None where outcomes that were not seen are not to be thought of

    def __sub__(self, other: "Valuation") -> "Valuation":
        moves = None if self.moves is None else self.moves.less(other.moves)
        return Valuation(self.value - other.value, self.psi - other.psi, None, self.bias + other.bias, moves)


@dataclass(frozen=True, eq=False)
class Terms:
    """What every estimator is made of: each row's weight, reward and predictions."""

    w: np.ndarray  # [n]
    R: np.ndarray  # [n]
    weight: np.ndarray  # [n], mean 1
    q: np.ndarray | None = None  # [n]; None without a reward model
    dm: np.ndarray | None = None  # [n]

    def predictions(self) -> tuple[np.ndarray, np.ndarray]:
        """(dm, R - q), or an error where there is no reward model."""  # [n], [n]
        if self.q is None or self.dm is None:
            raise PonnError(
                "This estimator needs predictions of a reward model, and none were given. "
                "Fit one on other rows (cross-fitting), or use ips, truncated-ips or snips."
            )
        return self.dm, self.R - self.q


def terms(
    h: np.ndarray,
    A: np.ndarray,
    R: np.ndarray,
    p: np.ndarray,
    Q: np.ndarray | None = None,
    weight: np.ndarray | None = None,
) -> Terms:
    """The terms of a policy h on logged rows; p must be above 0 where the policy may take the logged action."""
    h_taken = h[np.arange(len(A)), A]  # [n]
    refuse_impossible(h_taken, p)
    w = np.divide(h_taken, p, out=np.zeros(len(A)), where=h_taken > 0)
    if Q is None:
        return Terms(w, R, mean_one(weight, len(A)))
    return Terms(w, R, mean_one(weight, len(A)), Q[np.arange(len(A)), A], np.einsum("ja,ja->j", h, Q))


def mean_one(weight: np.ndarray | None, n: int) -> np.ndarray:
    """Row weights scaled to mean 1; ones where there are none."""  # [n]
    return np.ones(n) if weight is None else weight / np.mean(weight)


def refuse_impossible(h_taken: np.ndarray, p: np.ndarray) -> None:
    """Raise PonnError where the log says that what was done could not have been done."""
    wrong = np.flatnonzero(~((p > 0) & (p <= 1)) & (h_taken > 0))
    if len(wrong):
        seen = listing((float(p[j]) for j in wrong), SHOWN)
        rows = listing((int(j) for j in wrong), SHOWN)
        raise PonnError(
            f"The logged action of {len(wrong)} rows has propensity {seen} (rows {rows}, counted from 0); expected a "
            "probability above 0 and at most 1, since the action was taken. Mend the propensity column, or leave it "
            "empty in those rows to have it estimated."
        )


# Estimators ----------------------------------------------------------------------------------------------


def mean_of(x: np.ndarray, weight: np.ndarray) -> Valuation:
    """M(x) = sum weight x / sum weight, a Valuation; weight has mean 1."""
    value = float(np.mean(weight * x))
    return Valuation(value, weight * (x - value))


def ratio_of(x: np.ndarray, w: np.ndarray) -> Valuation:
    """sum w x / sum w as a Valuation, for weights of any scale that may be 0."""
    scale = float(np.mean(w))
    if scale <= 0:
        raise PonnError(
            "No logged row has an action that this policy would take: every importance weight is 0, and a "
            "self-normalised estimate does not exist. The log says nothing about this policy; use rows with other "
            "actions, or dm if you trust the reward model."
        )
    value = float(np.mean(w * x)) / scale
    return Valuation(value, w * (x - value) / scale)


def with_moves(found: Valuation, t: Terms, modelled: bool) -> Valuation:
    """The value of these terms with what its outcomes move; modelled: a reward model says what is expected."""
    e = t.predictions()[1] if modelled else t.R - np.mean(t.R)
    return replace(found, moves=Moves(t.weight * t.w, e, t.weight))


def logged_value(R: np.ndarray, weight: np.ndarray | None = None) -> Valuation:
    """Current practice: the mean reward of the log, which needs neither propensities nor a model."""
    t = Terms(np.ones(len(R)), R, mean_one(weight, len(R)))
    return with_moves(mean_of(R, t.weight), t, modelled=False)


def direct_method(t: Terms) -> Valuation:
    """DM: M(dm). As good as the reward model; psi is that of dr, as the model's own spread leaves out its error."""
    dm, _ = t.predictions()
    return replace(doubly_robust(t), value=float(np.mean(t.weight * dm)))


def ips(t: Terms) -> Valuation:
    """IPS: M(w R), unbiased where p is right and positive wherever h is."""
    return mean_of(t.w * t.R, t.weight)


def snips(t: Terms) -> Valuation:
    """Self-normalised IPS: M(w R) / M(w), inside the range of the rewards and blind to shifts of their zero."""
    return ratio_of(t.R, t.weight * t.w)


def doubly_robust(t: Terms) -> Valuation:
    """DR: M(dm + w (R - q)), unbiased where either p or Q is right."""
    dm, error = t.predictions()
    return mean_of(dm + t.w * error, t.weight)


def self_normalised_dr(t: Terms) -> Valuation:
    """SNDR: M(dm) + M(w (R - q)) / M(w)."""
    dm, error = t.predictions()
    model, correction = mean_of(dm, t.weight), ratio_of(error, t.weight * t.w)
    return Valuation(model.value + correction.value, model.psi + correction.psi)


# Reduced weights, w_hat [n] --------------------------------------------------------------------------------


def truncated(w: np.ndarray, m: float) -> np.ndarray:
    """min(w, m)."""
    return np.minimum(w, m)


def switched(w: np.ndarray, tau: float) -> np.ndarray:
    """w 1{w <= tau}: rows with a larger weight are left to the reward model."""
    return np.where(w <= tau, w, 0.0)


def shrunk(w: np.ndarray, lambda_: float) -> np.ndarray:
    """lambda w / (w^2 + lambda), the optimistic shrinkage."""
    if math.isinf(lambda_):
        return w
    return w * lambda_ / np.maximum(w**2 + lambda_, np.finfo(float).tiny)


PLAIN: dict[str, Callable[[Terms], Valuation]] = {
    "dm": direct_method,
    "ips": ips,
    "snips": snips,
    "dr": doubly_robust,
    "sndr": self_normalised_dr,
}
REDUCED: dict[str, tuple[Callable[[Terms], Valuation], Callable[[np.ndarray, float], np.ndarray]]] = {
    "truncated-ips": (ips, truncated),
    "switch-dr": (doubly_robust, switched),
    "dros": (doubly_robust, shrunk),
}
ESTIMATORS = (*PLAIN, *REDUCED)
BY_WEIGHTS_ALONE = ("ips", "snips", "truncated-ips")  # the others have a reward model beside the weights


def valuation(estimator: str, t: Terms, parameter: float | None = None, group: np.ndarray | None = None) -> Valuation:
    """The estimator's value of the terms; where it takes a parameter and none is given, `tuned` chooses it."""
    check_estimator(estimator)
    if estimator in PLAIN:
        return with_moves(PLAIN[estimator](t), t, estimator not in BY_WEIGHTS_ALONE)
    return tuned(estimator, t, group) if parameter is None else reduced(estimator, t, parameter, group)


def check_estimator(estimator: str) -> None:
    """Raise PonnError for a name that no estimator has."""
    if estimator not in ESTIMATORS:
        raise PonnError(f"There is no estimator {estimator!r}; expected one of {', '.join(ESTIMATORS)}.")


def reduced(estimator: str, t: Terms, parameter: float, group: np.ndarray | None = None) -> Valuation:
    """truncated-ips, switch-dr or dros at a given m, tau or lambda."""
    unbiased, reduce = REDUCED[estimator]
    w_hat = reduce(t.w, parameter)
    less = replace(t, w=w_hat)
    found = with_moves(unbiased(less), less, estimator not in BY_WEIGHTS_ALONE)
    return replace(found, parameter=parameter, bias=largest_bias(found, unbiased(t), w_hat, t, group))


# Error, and the parameter that makes it small --------------------------------------------------------------


def group_codes(group: np.ndarray) -> np.ndarray:
    """Group ids as small whole numbers: themselves where they are, as sorting a million ids takes 0.2 s."""  # [n]
    if group.dtype.kind in "iu" and len(group) and 0 <= group.min() and group.max() < 2 * len(group):
        return group
    return np.unique(group, return_inverse=True)[1]


def cluster_sums(x: np.ndarray, group: np.ndarray | None) -> np.ndarray:
    """The sum of x over each group; x itself without groups."""  # [groups]
    if group is None:
        return x
    codes = group_codes(group)
    return np.bincount(codes, x)[np.bincount(codes) > 0]


def standard_error(psi: np.ndarray, group: np.ndarray | None = None) -> float:
    """sqrt(Var(psi) / n); with groups the cluster-robust sqrt(g / (g - 1) sum over groups (sum of psi)^2) / n.

    Infinite for a single row or group, whose spread is unknown.
    """
    sums = cluster_sums(psi, group)
    g = len(sums)
    if g < 2:
        return math.inf
    return math.sqrt(g / (g - 1) * float(np.sum((sums - sums.mean()) ** 2))) / len(psi)


def largest_bias(found: Valuation, unbiased: Valuation, w_hat: np.ndarray, t: Terms, group: np.ndarray | None) -> float:
    """What |bias| can be at most, with probability about 1 - delta: the smaller of two bounds (as in Su et al. 2020).

    direct   |d| + z se(d) + max(1 - M(w), 0), d = found - unbiased = M((w_hat - w) (R - q)) on the same rows
    mass     1 - M(w_hat) + z se

    E[w] = 1, so reducing takes away E[w - w_hat] = 1 - E[w_hat] of all weight, and no error of a prediction in [0, 1]
    exceeds 1: the mass bound. It stays small where a few huge weights make the direct one wild. Where the huge weights
    are too rare to have been seen, d misses them; but then M(w) falls short of 1, and the shortfall is added.
    """
    if np.array_equal(w_hat, t.w):
        return 0.0
    z = NormalDist().inv_cdf(1 - BIAS_DELTA / 2)
    difference, kept = found - unbiased, mean_of(w_hat, t.weight)
    unseen = max(1 - float(np.mean(t.weight * t.w)), 0.0)
    direct = abs(difference.value) + z * standard_error(difference.psi, group) + unseen
    mass = max(1 - kept.value, 0.0) + z * standard_error(kept.psi, group)
    return min(direct, mass)


def candidates(estimator: str, w: np.ndarray) -> np.ndarray:
    """The values of the parameter that are tried: even steps of its logarithm, and infinity.

    m and tau go from the 5 % quantile of the positive weights to the largest (beyond it nothing changes). Where
    lambda = w^2 a weight is halved: lambda goes from a hundredth of the smaller square to 100 times the larger.
    """
    positive = w[w > 0]
    if not len(positive):
        return np.array([math.inf])
    low, high = float(np.quantile(positive, 0.05)), float(positive.max())
    ends = (low**2 / 100, high**2 * 100) if estimator == "dros" else (low, high)
    return np.append(np.geomspace(*ends, CANDIDATES), math.inf)


def tuned(estimator: str, t: Terms, group: np.ndarray | None = None) -> Valuation:
    """The estimator at the candidate with the least variance + `largest_bias`^2; of equals the least biased.

    One rule for m, tau and lambda (Wang et al. 2017, Su et al. 2020: least estimated squared error, the bias by an
    upper bound). It leaves the unbiased end only where the variance saved is worth more than the bias can be.
    """
    group = None if group is None else group_codes(group)
    tried = [reduced(estimator, t, parameter, group) for parameter in candidates(estimator, t.w)[::-1]]
    return min(tried, key=lambda one: standard_error(one.psi, group) ** 2 + one.bias**2)
