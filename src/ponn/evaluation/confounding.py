"""Would a hidden reason behind the log's decisions overturn what a policy is said to be worth?

    symbol    meaning
    V         the value by an estimator, as `evaluate` gives it
    L(Gamma)  the least value under confounding of strength Gamma, from weights alone (see sensitivity)

The least value is told as V - (L(1) - L(Gamma)). Where nothing is hidden V and L(1) estimate the same, so this is the
same bound; but at Gamma = 1 it is the very value and verdict that `evaluate` gives, with the precision of V, and the
doubt of Gamma only adds to it. The largest value likewise. Errors of both come from the rows' influence; the room for
unseen outcomes is that of V.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ponn.evaluation.estimators import Valuation, logged_value
from ponn.evaluation.intervals import decimals, normal_interval, percent
from ponn.evaluation.sensitivity import STRONGEST, Confounded, check_strength, confounded
from ponn.evaluation.valuation import Asked, Nuisances, Scored, Valued, check_options, nuisances, scored, unseen_rows
from ponn.evaluation.verdict import both_sides
from ponn.log.log import Log, check_in_memory, in_units
from ponn.settings import Settings

STEPS = 24  # of bisection: ln(Gamma) to 1e-6
SLIGHTEST = 1.005  # below it Gamma would be printed as 1


@dataclass(frozen=True)
class Bounds:
    """The least and the largest value that a strength of confounding allows, and the same with sampling error."""

    least: float
    largest: float
    low: float  # below the least value
    high: float  # above the largest one, both with probability `level`
    level: float

    def __str__(self) -> str:
        digits = decimals(self.high - self.low)
        least, largest, low, high = (f"{one:.{digits}f}" for one in (self.least, self.largest, self.low, self.high))
        return f"{least} to {largest} ({percent(self.level)}: {low} to {high})"


@dataclass(frozen=True)
class HiddenConfounding:
    """What a hidden cause of the logged decisions could make of a policy's value, in the log's unit."""

    gamma: float
    value: Bounds
    difference: Bounds  # policy less current practice; each end is a one-sided bound at the verdict's level
    breaking_gamma: float  # from here on "better" no longer follows; 1: it never did, infinite: nothing overturns it
    level: float
    warnings: tuple[str, ...]  # why the value itself is not to be trusted

    def as_json(self) -> dict[str, Any]:
        """In plain values; breaking_gamma is null where nothing hidden overturns the verdict."""
        breaking = self.breaking_gamma if math.isfinite(self.breaking_gamma) else None
        told = {"gamma": self.gamma, "breaking_gamma": breaking, "trusted": not self.warnings}
        return told | {"value": vars(self.value), "difference": vars(self.difference), "warnings": list(self.warnings)}

    def __str__(self) -> str:
        doubt = f" Not to be trusted: {'; '.join(self.warnings)}." if self.warnings else ""
        return (
            f"If an unseen cause changed the odds of an action by up to {self.gamma:g}, the value would lie within "
            f"{self.value}, and policy minus current practice within {self.difference}.{doubt}"
        )


def what_overturns(breaking_gamma: float | None) -> str:
    """The strength at which "better" breaks, in plain words; None or infinite: nothing breaks it."""
    if breaking_gamma is None or math.isinf(breaking_gamma):
        return "No unseen cause of the logged decisions, however strong, would overturn this."
    if breaking_gamma == 1:
        return "There is nothing for an unseen cause to overturn: better does not follow even if nothing is hidden."
    if breaking_gamma < SLIGHTEST:
        return "The slightest unseen cause of the logged decisions would overturn this."
    return f"An unseen cause would have to change the odds of an action by {breaking_gamma:.3g} to overturn this."


def hidden_confounding(
    policy: Valued,
    log: Log,
    gamma: float = 1.5,
    estimator: str = "dr",
    level: float = 0.95,
    *,
    settings: Settings | None = None,
    corrections: Nuisances | None = None,
    seed: int = 0,
) -> HiddenConfounding:
    """Bound a policy's value and gain if the log hides a cause of its decisions (marginal sensitivity model).

    Parameters
    ----------
    policy, log, estimator, level
        As in `evaluate`.
    gamma
        An unseen cause may change the odds of an action by up to this factor; 1: nothing is hidden.
    settings, corrections, seed
        Of what is fitted to correct the value, or what is fitted already.

    Returns
    -------
    HiddenConfounding
        Bounds of `value` and `difference`, and `breaking_gamma`, from which on "better" no longer follows.

    Examples
    --------
    >>> import ponn
    >>> train, test = ponn.simulate.world("actg175").log.split(0.7, seed=0)
    >>> doubt = ponn.hidden_confounding(ponn.learn(train, "lr-l1"), test, gamma=1.5)
    >>> doubt.value.low < doubt.value.least < doubt.value.largest < doubt.value.high
    True
    >>> doubt.breaking_gamma  # "better" does not follow even if nothing is hidden
    1.0
    """
    check_in_memory(log, "What a hidden cause would change")
    check_options(log, estimator, level, "normal")
    check_strength(gamma)
    log = unseen_rows(policy, log)
    one = scored(policy, log, corrections or nuisances(log, settings, seed=seed))
    return doubted(one, gamma, Asked(estimator, level))


def doubted(one: Scored, gamma: float, asked: Asked) -> HiddenConfounding:
    """`hidden_confounding` of a policy on its rows."""
    return doubted_at(one, (gamma,), asked)[0]


def doubted_at(one: Scored, gammas: Sequence[float], asked: Asked) -> tuple[HiddenConfounding, ...]:
    """`hidden_confounding` at several strengths; what overturns "better" is found once."""
    log, found = one.log, one.valuation(asked)
    hidden = confounded(one.h, log.A, log.R, one.fitted.p, weight=log.weight)
    gain = found - logged_value(log.R, log.weight)
    breaking = breaking_gamma(one, gain, hidden, both_sides(asked.level))
    return tuple(
        HiddenConfounding(
            gamma=gamma,
            value=bounds(one, found, hidden, gamma, asked.level, in_units_of=log.reward_range),
            difference=bounds(one, gain, hidden, gamma, both_sides(asked.level), in_units_of=scale_only(log)),
            breaking_gamma=breaking,
            level=asked.level,
            warnings=one.doubts(asked.estimator),
        )
        for gamma in gammas
    )


def scale_only(log: Log) -> tuple[float, float]:
    """The range in whose unit a difference of 0 is 0: (0, span), or (-span, 0) where small outcomes are good."""
    low, high = log.reward_range
    return (low - high, 0.0) if log.minimize else (0.0, high - low)


def bounds(
    one: Scored, found: Valuation, hidden: Confounded, gamma: float, level: float, in_units_of: tuple[float, float]
) -> Bounds:
    """The ends of a value or gain, with and without sampling error."""
    least, largest = lowered(found, hidden, gamma), raised(found, hidden, gamma)
    low, high = normal_interval(least, level, one.group).low, normal_interval(largest, level, one.group).high
    ends = [in_units(end, in_units_of, one.log.minimize) for end in (low, least.value, largest.value, high)]
    low, first, last, high = sorted(ends)
    return Bounds(first, last, low, high, level)


def lowered(found: Valuation, hidden: Confounded, gamma: float) -> Valuation:
    """V - (L(1) - L(Gamma))."""
    return found - (hidden.least_value(1.0) - hidden.least_value(gamma))


def raised(found: Valuation, hidden: Confounded, gamma: float) -> Valuation:
    """V + (largest(Gamma) - largest(1))."""
    return found - (hidden.largest_value(1.0) - hidden.largest_value(gamma))


def breaking_gamma(one: Scored, gain: Valuation, hidden: Confounded, level: float) -> float:
    """The smallest Gamma at which the lower end of the least gain is no longer above 0, by bisection of ln(Gamma)."""

    def better(gamma: float) -> bool:
        return normal_interval(lowered(gain, hidden, gamma), level, one.group).low > 0

    if not better(1.0):
        return 1.0
    if better(STRONGEST):
        return math.inf
    holds, breaks = 0.0, math.log(STRONGEST)
    for _ in range(STEPS):
        middle = (holds + breaks) / 2
        holds, breaks = (middle, breaks) if better(math.exp(middle)) else (holds, middle)
    return math.exp(breaks)
