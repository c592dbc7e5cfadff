"""What if the log hides a reason for its decisions? Bounds on a policy's value under hidden confounding.

    symbol   meaning                                                                     shape
    Gamma    strength: the true odds of the logged action, given everything, differ from the odds p / (1 - p) given the
             features by at most this factor either way (marginal sensitivity model, Tan 2006); 1: nothing is hidden
    r        that factor, unknown, in [1/Gamma, Gamma]                                   [n]
    W        1 / true propensity = 1 + (1/p - 1) r                                       [n]
    c        row weight times h(A_j | x_j)                                               [n]

E over rows of c W R is the value, whatever is hidden; only r is unknown. Two forms of the bounds:

    changed   sum c R / n + sum over a of s(a) [sum_a c (1/p - 1) r R / sum_a c (1/p - 1) r]
    whole     sum c W R / sum c W                                      (sum_a: over the rows with A = a)

Both are ratios (Zhao, Small, Bhattacharya 2019; for policies Kallus, Zhou 2021), at their least and largest where r is
1/Gamma up to some reward and Gamma beyond it, or the reverse: one sort and n + 1 ratios.

"whole" is self-normalised IPS, at Gamma = 1 exactly. It knows one thing, E[c W] = 1. "changed", the default, uses
that W = 1 + (1/p - 1) r: the part of the value that the log shows, rows in which the policy would do as was done, is
not doubted, and of the rest E[c (W - 1) 1{A = a}] = s(a) = E[h(a | x) 1{A != a}] is known for each action. So they
are narrower as a rule, stay within the bounds that hold under any confounding (Manski 1990) as Gamma grows, and a
policy that changes little has little to fear. Where the log never has an action the bounds are 0 and 1.

Neither is the sharpest: the known parts hold for each x as well (Dorn, Guo 2023), which takes a model per x.
p is taken as given.

psi, the influence of a row on a bound, is that of the ratios with r as it is at the bound: where r is best, a small
change of it changes nothing (envelope theorem). With it a bound has a standard error like any value, no bootstrap.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ponn.errors import PonnError
from ponn.evaluation.estimators import Valuation, mean_one, refuse_impossible

Form = Literal["changed", "whole"]
STRONGEST = 1e6  # a conclusion that holds at this Gamma is said to hold at any


class Part(NamedTuple):
    """Rows whose weights share a known sum: share × (sum c (base + excess r) R) / (sum c (base + excess r))."""

    shares: np.ndarray  # [n]: their mean is the share
    rows: np.ndarray  # [rows], by ascending R
    R: np.ndarray  # [rows]
    fixed: np.ndarray  # [rows]: c base
    excess: np.ndarray  # [rows]: c (1/p - 1)

    @property
    def share(self) -> float:
        """What the ratio counts for."""
        return float(np.mean(self.shares))


@dataclass(frozen=True, eq=False)
class Confounded:
    """A policy's value as far as it is known without knowing r: the mean of `known` plus the ratios of the parts."""

    known: np.ndarray  # [n]
    parts: tuple[Part, ...]
    weight: np.ndarray  # [n], mean 1

    def bounds(self, gamma: float) -> tuple[float, float]:
        """The least and the largest value under confounding of strength Gamma."""
        return self.least_value(gamma).value, self.largest_value(gamma).value

    def least_value(self, gamma: float) -> Valuation:
        """The lower of the bounds, with the influence of each row on it."""
        check_strength(gamma)
        return self.at([(part, *lowest_ratio(part, gamma)) for part in self.parts])

    def largest_value(self, gamma: float) -> Valuation:
        """The upper of the bounds, with the influence of each row on it."""
        check_strength(gamma)
        return self.at([(part, *highest_ratio(part, gamma)) for part in self.parts])

    def at(self, chosen: "list[tuple[Part, float, np.ndarray]]") -> Valuation:
        """The value at a ratio of each part and the weights c (base + excess r) that give it."""
        scores = self.known.copy()  # [n]
        for part, ratio, w in chosen:
            scores += part.shares * ratio
            total = float(np.sum(w))
            if total > 0:
                scores[part.rows] += part.share * len(scores) * w * (part.R - ratio) / total
        value = float(np.mean(scores))
        return Valuation(value, scores - self.weight * value)


def confounded(
    h: np.ndarray,
    A: np.ndarray,
    R: np.ndarray,
    p: np.ndarray,
    *,
    weight: np.ndarray | None = None,
    form: Form = "changed",
) -> Confounded:
    """The policy h on logged rows, ready for bounds at any Gamma; arguments as in `estimators.terms`."""
    h_taken, row_weight = h[np.arange(len(A)), A], mean_one(weight, len(R))  # [n], [n]
    refuse_impossible(h_taken, p)
    c = row_weight * h_taken  # [n]
    excess = np.divide(c, p, out=np.zeros(len(A)), where=c > 0) - c  # [n]
    order = np.argsort(R, kind="stable")
    if form == "whole":
        everything = Part(row_weight, order, R[order], c[order], excess[order])
        return Confounded(np.zeros(len(A)), (everything,), row_weight)
    parts = []
    for a in range(h.shape[1]):
        rows, shares = order[A[order] == a], np.where(A == a, 0.0, row_weight * h[:, a])  # [n]: of mean s(a)
        if shares.any():
            parts.append(Part(shares, rows, R[rows], np.zeros(len(rows)), excess[rows]))
    return Confounded(c * R, tuple(parts), row_weight)


def check_strength(gamma: float) -> None:
    """Raise PonnError for what is no strength of confounding."""
    if not gamma >= 1:
        raise PonnError(f"Gamma is {gamma}; expected a number of at least 1 (1: nothing is hidden).")


def ratios(part: Part, low_end: float, high_end: float) -> np.ndarray:
    """The ratio with r = low_end up to each reward and high_end beyond it."""  # [rows + 1]
    first, then = part.fixed + part.excess * low_end, part.fixed + part.excess * high_end
    return np.asarray(split_sums(first * part.R, then * part.R) / split_sums(first, then))


def split_sums(first: np.ndarray, then: np.ndarray) -> np.ndarray:
    """sum of first[:s] + sum of then[s:] for s = 0 .. n."""
    return np.asarray(np.append(0.0, np.cumsum(first)) + np.append(np.cumsum(then[::-1])[::-1], 0.0))


def highest_ratio(part: Part, gamma: float) -> tuple[float, np.ndarray]:
    """The largest ratio and its weights: small rewards get r = 1/Gamma, large ones Gamma. 1 where no row tells."""
    if not tells(part):
        return 1.0, np.zeros(len(part.rows))
    found = ratios(part, 1 / gamma, gamma)
    return float(found.max()), weights_split_at(part, int(found.argmax()), 1 / gamma, gamma)


def lowest_ratio(part: Part, gamma: float) -> tuple[float, np.ndarray]:
    """The least ratio and its weights: small rewards get r = Gamma, large ones 1/Gamma. 0 where no row tells."""
    if not tells(part):
        return 0.0, np.zeros(len(part.rows))
    found = ratios(part, gamma, 1 / gamma)
    return float(found.min()), weights_split_at(part, int(found.argmin()), gamma, 1 / gamma)


def weights_split_at(part: Part, split: int, low_end: float, high_end: float) -> np.ndarray:
    """c (base + excess r) with r = low_end in the first `split` rows and high_end beyond."""  # [rows]
    return np.asarray(part.fixed + part.excess * np.where(np.arange(len(part.rows)) < split, low_end, high_end))


def tells(part: Part) -> bool:
    """Whether any row has weight."""
    return bool(np.any(part.fixed + part.excess > 0))
