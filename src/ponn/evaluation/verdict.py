"""What follows from an estimated difference: better, not better or not enough evidence, and the rows it would take."""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from ponn.evaluation.intervals import Estimate, percent

Kind = Literal["better", "not better", "not enough evidence"]
POWER = 0.8  # rows_needed: the chance that so many rows settle the verdict, were the difference as estimated


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
