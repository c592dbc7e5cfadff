"""Step B: which feature matters for which action, corrected for the logging bias (sections 4.2 and 6).

symbol     meaning                                                                       shape
N          N(x_i), rows per level, all features one after the other (see tally.py)       [L + 1]
R_hat      R_hat(a), mean of U(a) over the log                                           [k]
V          V_n(a), variance of U(a)                                                      [k]
V_bar      V_bar(a, i): the variances within the levels of feature i, averaged           [k, d]
G          G_hat(a, i) = sum over x_i of N(x_i)/n l(R_hat(a, x_i) - R_hat(a))            [k, d]
rho        |correlation| of two features                                                 [d, d]
tau        threshold tau(a, i)                                                           [k, d]
selected   f_a: is feature i kept for action a?                                          [k, d]
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ponn.errors import PonnError
from ponn.log.encoding import Encoding
from ponn.log.features import CategoryFeature
from ponn.log.log import Log
from ponn.settings import Settings
from ponn.steps.bounds import Form, lipschitz, theorem1, theorem2
from ponn.steps.discovery import centre, discoveries, p_values, q_values
from ponn.steps.propensity import Propensities
from ponn.steps.tally import GramTally, LevelTally, Tally, correlation_owner, tally_log


@dataclass(frozen=True)
class Loss:
    """The loss l of the relevance measure: l(0) = 0, growing with |difference|, Lipschitz.

    lipschitz: B such that |l(u) - l(v)| <= B |u - v| for |u| <= largest and |v| <= 1; None where nobody gave it.
    """

    name: str
    function: Callable[[np.ndarray], np.ndarray]
    lipschitz: Callable[[float], float] | None = None


LOSSES = {
    "l1": Loss("l1", np.abs, lambda largest: float(lipschitz("l1", largest))),
    "l2": Loss("l2", np.square, lambda largest: float(lipschitz("l2", largest))),
}


@dataclass(frozen=True, eq=False)
class Relevance:
    """What Step B found. Thresholds can be moved without another pass over the rows (`under`)."""

    actions: tuple[Any, ...]
    features: tuple[str, ...]
    n: float
    b: np.ndarray  # [d]
    binned: np.ndarray  # [d] bool: bins of a numeric range, not levels
    levels: LevelTally
    loss: Loss
    G: np.ndarray  # [k, d]
    V_bar: np.ndarray  # [k, d]
    correlation: np.ndarray  # [d]: mean absolute correlation with the other features
    p_value: np.ndarray | None  # [k, d]: studentised test that the feature does not matter
    even_p_value: np.ndarray | None  # [k, d]: the same with rows that count alike
    lambda1: float
    lambda2: float
    select: str
    fdr: float
    even: bool
    largest_weight: float
    known_propensities: bool

    @property
    def R_hat(self) -> np.ndarray:
        """R_hat(a), the IPS estimate of each action's mean reward."""
        return self.levels.U[:, -1]  # [k]

    @property
    def V(self) -> np.ndarray:
        """V_n(a), the variance of U(a)."""
        return self.levels.V[:, -1]  # [k]

    @property
    def tau(self) -> np.ndarray:
        """The threshold of each pair: the formula of section 6 for binned features, of section 4 for the others."""
        return np.where(self.binned, threshold_of_bins(self), threshold_of_levels(self))  # [k, d]

    @property
    def selected(self) -> np.ndarray:
        """f_a(i): the relevant sets R_hat(a) as masks."""
        if self.select == "threshold":
            return np.asarray(self.G > self.tau)  # [k, d]
        return discoveries(self.tested(), self.fdr)

    @property
    def p_values(self) -> np.ndarray | None:
        """Those of the test that selects, if it was made."""
        return self.even_p_value if self.even else self.p_value

    def tested(self) -> np.ndarray:
        """The p-values that select, or an error when that test was left out."""
        if self.p_values is None:
            asked = "Settings(even=True)" if self.even else "test=True"
            raise PonnError(f"The studentised test was left out; call relevance(...) with {asked} to select by it.")
        return self.p_values

    def sets(self) -> dict[Any, tuple[str, ...]]:
        """The relevant features of each action, by name."""
        return {
            action: tuple(name for name, kept in zip(self.features, mask, strict=True) if kept)
            for action, mask in zip(self.actions, self.selected, strict=True)
        }

    def under(self, settings: Settings) -> "Relevance":
        """The same sums under another rule: thresholds, or the test at a false-discovery rate."""
        s = settings
        return replace(self, select=s.select, fdr=s.fdr, even=s.even, lambda1=s.lambda1, lambda2=s.lambda2)

    def bound(
        self, delta: float = 0.05, *, form: Form = "corrected", M: float | None = None, L: float | None = None
    ) -> "RelevanceBound":
        """How far G can be from the true relevance, for all pairs at once with probability 1 - 3 delta.

        M: the largest 1/p0(a | x) possible; default the largest weight in the log, which is an assumption.
        L: the Lipschitz constant of r(a, x_i) over a numeric feature's training range; without it binned features have
        no bound.
        """
        return bound_relevance(self, delta, form, M or self.largest_weight, L)

    def table(self, delta: float = 0.05) -> pa.Table:
        """One row per (action, feature), the most relevant first within each action."""
        bound = self.bound(delta)
        k, d = self.G.shape
        a, i = np.repeat(np.arange(k), d), np.argsort(-self.G, axis=1, kind="stable").ravel()
        columns = {
            "action": [self.actions[one] for one in a],
            "feature": [self.features[one] for one in i],
            "relevance": self.G[a, i],
            "threshold": self.tau[a, i],
            "bound": pa.array(bound.total[a, i], from_pandas=True),
            "selected": self.selected[a, i],
            "certified": bound.certified[a, i],
        }
        if self.p_values is not None:
            columns |= {"p_value": self.p_values[a, i], "q_value": q_values(self.p_values)[a, i]}
        return pa.table(columns)


@dataclass(frozen=True, eq=False)
class RelevanceBound:
    """A bound on |G - g| per pair: Theorem 1 for features with levels, Theorem 2 for binned ones; NaN where none is."""

    delta: float
    form: Form
    total: np.ndarray  # [k, d]
    certified: np.ndarray  # [k, d] bool: G exceeds its bound (never the printed one), so the true relevance is above 0
    reasons: tuple[str, ...]  # [d]: why a feature has no bound, empty where it has one


# From a log to its relevance -----------------------------------------------------------------------------


def relevance(
    log: Log,
    encoding: Encoding,
    found: Propensities,
    settings: Settings | None = None,
    *,
    loss: Loss | None = None,
    test: bool = True,
) -> Relevance:
    """Step B for a log in memory: one pass for the paper's sums and, unless test=False, one for the test's.

    Where rows count alike in the test (settings.even), or may do so (select="auto"), one more for that.
    """
    settings = settings or Settings()
    w = found.weights
    tally = tally_log(encoding, log, w * log.R)
    p = tested_log(log, encoding, w) if test or settings.select == "fdr" else None
    even = tested_log(log, encoding, np.ones(len(log))) if settings.even or settings.select == "auto" else None
    return relevance_of(tally, encoding, log.actions, found, settings, loss=loss, p_value=p, even_p_value=even)


def tested_log(log: Log, encoding: Encoding, w: np.ndarray) -> np.ndarray:
    """The test's p-values for a log in memory whose rows count by w."""  # [k, d]
    centred = w * (log.R - centre(log.R, log.A, w, len(log.actions)))
    return p_values(tally_log(encoding, log, centred, gram=False).levels, encoding.b)


def relevance_of(
    tally: Tally,
    encoding: Encoding,
    actions: tuple[Any, ...],
    found: Propensities,
    settings: Settings,
    *,
    loss: Loss | None = None,
    p_value: np.ndarray | None = None,
    even_p_value: np.ndarray | None = None,
) -> Relevance:
    """Step B from its sums, wherever they were made."""
    loss = loss or LOSSES[settings.loss]
    levels, n = tally.levels, float(tally.levels.N[-1])
    return Relevance(
        actions=actions,
        features=tuple(one.name for one in encoding.features),
        n=n,
        b=encoding.b,
        binned=np.array([not isinstance(one, CategoryFeature) and one.values is None for one in encoding.features]),
        levels=levels,
        loss=loss,
        G=per_feature(levels.N * loss.function(levels.U - levels.U[:, -1:]), encoding.b) / n,
        V_bar=per_feature(levels.N * levels.V, encoding.b) / n,
        correlation=mean_correlation(correlations(tally.gram, encoding)),
        p_value=p_value,
        even_p_value=even_p_value,
        lambda1=settings.lambda1,
        lambda2=settings.lambda2,
        select=settings.select,
        fdr=settings.fdr,
        even=settings.even,
        largest_weight=float(found.weights.max()),
        known_propensities=bool(found.known.all()) and np.isinf(found.m),
    )


def per_feature(values: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sum over the levels of each feature: [k, L + 1] → [k, d]."""
    starts = np.concatenate([[0], np.cumsum(b)[:-1]])
    return np.asarray(np.add.reduceat(values[:, :-1], starts, axis=1))


def threshold_of_levels(found: Relevance) -> np.ndarray:
    """Section 4: tau = lambda1 sqrt(b_i V_bar(a, i) / n) + lambda2 mean |rho_i|."""
    return found.lambda1 * np.sqrt(found.b * found.V_bar / found.n) + found.lambda2 * found.correlation  # [k, d]


def threshold_of_bins(found: Relevance) -> np.ndarray:
    """Section 6: tau = lambda1 n^(-1/3) sqrt(V_bar(a, i)) + lambda2 mean |rho_i|."""
    return found.lambda1 * found.n ** (-1 / 3) * np.sqrt(found.V_bar) + found.lambda2 * found.correlation  # [k, d]


# Correlations --------------------------------------------------------------------------------------------


def correlations(gram: GramTally, encoding: Encoding) -> np.ndarray:
    """|rho| of every two features from the co-moments of their columns.

    rho_il^2 = tr(C_ii^+ C_il C_ll^+ C_li) / min(rank C_ii, rank C_ll): the mean squared canonical correlation. For two
    numbers it is Pearson's rho squared, for a number and a category the squared correlation ratio, for two categories
    Cramer's V squared. A number's missing cells count as its mean.
    """
    owner = correlation_owner(encoding)
    blocks = [np.flatnonzero(owner == i) for i in range(len(encoding.features))]
    roots = [whitener(gram.C[np.ix_(block, block)]) for block in blocks]  # W_i with W_i W_i^T = C_ii^+
    d = len(blocks)
    rho = np.eye(d)
    for i in range(d):
        for j in range(i):
            between = roots[i].T @ gram.C[np.ix_(blocks[i], blocks[j])] @ roots[j]
            least = min(between.shape)
            rho[i, j] = rho[j, i] = np.sqrt(min(np.sum(between**2) / least, 1.0)) if least else 0.0
    return rho  # [d, d]


def whitener(C: np.ndarray) -> np.ndarray:
    """W with W W^T = C^+, one column per dimension in which C varies."""
    values, vectors = np.linalg.eigh(C)
    varies = values > 1e-10 * max(values.max(initial=0.0), np.finfo(float).tiny)
    return np.asarray(vectors[:, varies] / np.sqrt(values[varies]))


def mean_correlation(rho: np.ndarray) -> np.ndarray:
    """1/(d-1) sum over the other features of |rho|; 0 for a lone feature."""
    d = len(rho)
    return (rho.sum(axis=1) - 1) / (d - 1) if d > 1 else np.zeros(1)  # [d]


# Bounds --------------------------------------------------------------------------------------------------


def bound_relevance(found: Relevance, delta: float, form: Form, M: float, L: float | None) -> RelevanceBound:
    """Theorem 1 or 2 per feature; certified only in corrected form."""
    k, d = found.G.shape
    if not found.known_propensities:
        reason = "no bound: the propensities are estimated or truncated, and their bias is not known"
        return RelevanceBound(delta, form, np.full((k, d), np.nan), np.zeros((k, d), bool), (reason,) * d)
    if found.loss.lipschitz is None:
        reason = f"no bound: the Lipschitz constant of the loss {found.loss.name!r} was not given"
        return RelevanceBound(delta, form, np.full((k, d), np.nan), np.zeros((k, d), bool), (reason,) * d)
    B, n = found.loss.lipschitz(M), int(found.n)
    first = theorem1(found.V_bar, found.V, found.b, n, M, B, delta, form=form)
    second = theorem2(found.V_bar, found.V, found.b, n, M, B, L, 0.0, 0.0, delta, form=form)
    total = np.where(found.binned, in_numbers(second.total, (k, d)), in_numbers(first.total, (k, d)))
    certain = (found.G - total > 0) if form != "printed" else np.zeros((k, d), bool)
    reasons = tuple(second.reason if binned else "" for binned in found.binned)
    return RelevanceBound(delta, form, total, certain, reasons)


def in_numbers(total: np.ndarray | None, shape: tuple[int, int]) -> np.ndarray:
    """A bound, or NaN everywhere where there is none."""
    return np.full(shape, np.nan) if total is None else total
