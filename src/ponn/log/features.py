"""Features: numbers and texts, each with its levels or bins (Step B) and its design columns (Step C)."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ponn.errors import PonnError
from ponn.log.profile import (
    BOOLEAN,
    CATEGORY,
    DATE,
    NUMBER,
    SECONDS_PER_DAY,
    is_float,
    kind_of,
    numbers,
    raw_numbers,
    texts,
    without_infinite,
)

NO_LEVEL, UNSEEN = -1, -2
MISSING, OTHER = "(missing)", "(other)"
FAR = 1e6  # standard deviations; values beyond would overflow the networks' single precision
READ_ROWS = 65_536  # rows taken from Arrow at a time: few calls, little memory where a column has to be copied
BLOCK_ROWS = 8_192  # rows encoded at a time: one column and what is made of it stay in the second-level cache
COUNTED_CUTS = 100  # up to so many cuts, counting those below a value beats a binary search (by 1.0 to 5 times)


def bin_count(n: int) -> int:
    """Section 6: s = ceil(n^(1/3)), in whole numbers."""
    s = int(np.cbrt(n))
    return s if s**3 >= n else s + 1


@dataclass(frozen=True)
class NumberSummary:
    """Count, missing, range, mean, sum of squared deviations and, while there are few, the values of a column."""

    count: int  # values, without the missing ones
    missing: int
    low: float
    high: float
    mean: float
    M2: float
    values: frozenset[float] | None  # None: more than `most`
    most: int

    def __add__(self, other: "NumberSummary") -> "NumberSummary":
        count = self.count + other.count
        gap = other.mean - self.mean
        share = other.count / count if count else 0.0
        return NumberSummary(
            count=count,
            missing=self.missing + other.missing,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            mean=self.mean + gap * share,
            M2=self.M2 + other.M2 + gap * (gap * self.count * share),  # Chan, Golub, LeVeque
            values=few(self.values, other.values, self.most),
            most=self.most,
        )


def few(some: frozenset[float] | None, more: frozenset[float] | None, most: int) -> frozenset[float] | None:
    """The union of two sets of values, or None once there are too many."""
    if some is None or more is None:
        return None
    union = some | more
    return union if len(union) <= most else None


def summarise_numbers(column: pa.ChunkedArray, most: int) -> NumberSummary:
    """Summary of a numeric column; distinct values are kept while there are at most `most`.

    The column is taken in pieces that do not depend on its chunks, so neither does the result.
    """
    total = NumberSummary(0, 0, np.inf, -np.inf, 0.0, 0.0, frozenset(), most)
    for start in range(0, len(column), READ_ROWS):
        x = numbers(column.slice(start, READ_ROWS))
        total += summarise_values(x, most, look_for_values=total.values is not None)
    return total


def summarise_values(x: np.ndarray, most: int, look_for_values: bool) -> NumberSummary:
    """Summary of values in memory, NaN where missing."""
    known = np.asarray(x[~np.isnan(x)] if np.isnan(x.min()) else x, np.float64)
    missing = len(x) - len(known)
    if not len(known):
        return NumberSummary(0, missing, np.inf, -np.inf, 0.0, 0.0, frozenset(), most)
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers beyond 1e154; `centre_and_scale` sees to them
        mean = float(known.mean())
        deviation = known - mean
        deviation *= deviation
        M2 = float(deviation.sum())
    values = distinct_values(known, most) if look_for_values else None
    return NumberSummary(len(known), missing, float(known.min()), float(known.max()), mean, M2, values, most)


def distinct_values(x: np.ndarray, most: int) -> frozenset[float] | None:
    """The distinct values, or None when there are more than `most`; a short look first, which settles most columns."""
    for part in (x[: 4 * most], x):
        found = pc.unique(pa.array(part))
        if len(found) > most + 1:  # Arrow tells 0.0 from -0.0
            return None
    values = frozenset(one + 0.0 for one in found.to_pylist())  # + 0.0 makes 0.0 of -0.0
    return values if len(values) <= most else None


@dataclass(frozen=True)
class TextSummary:
    """How often each text occurs in a column."""

    counts: Counter[str]
    missing: int

    def __add__(self, other: "TextSummary") -> "TextSummary":
        return TextSummary(self.counts + other.counts, self.missing + other.missing)


def summarise_texts(column: pa.ChunkedArray) -> TextSummary:
    """Summary of a column of categories."""
    counted = pc.value_counts(texts(column))
    names, counts = counted.field("values").to_pylist(), counted.field("counts").to_pylist()
    counts = Counter(dict(zip(names, counts, strict=True)))
    missing = counts.pop(None, 0)
    return TextSummary(counts, missing)


@dataclass(frozen=True)
class NumberFeature:
    """A numeric, boolean or date column: levels where it has few values, bins otherwise; one standardised column."""

    name: str
    kind: str
    low: float
    high: float
    bins: int  # levels without the missing one
    cuts: tuple[float, ...] | None  # inner cut points; None: equal width over low .. high
    values: tuple[float, ...] | None  # the value of each level; None: bins
    missing: bool  # were values missing in training? Then missing is the last level
    mean: float
    scale: float  # standard deviation, 1 for a constant

    @property
    def b(self) -> int:
        """Number of levels, missing included."""
        return self.bins + self.missing

    @property
    def design_names(self) -> tuple[str, ...]:
        """One standardised column, and an indicator where values were missing in training."""
        return (self.name, f"{self.name} {MISSING}") if self.missing else (self.name,)

    @cached_property
    def level_names(self) -> tuple[str, ...]:
        """The levels in words."""
        last = (MISSING,) if self.missing else ()
        if self.values is not None:
            return (*(self.say(value) for value in self.values), *last)
        edges = [self.low, *self.inner_cuts(), self.high]
        return (
            *(f"{self.say(one)} to {self.say(next_)}" for one, next_ in pairwise(edges)),
            *last,
        )

    def say(self, value: float) -> str:
        """A value as the user would write it."""
        if self.kind == BOOLEAN:
            return "true" if value else "false"
        if self.kind == DATE:
            moment = np.datetime64(0, "s") + np.timedelta64(round(np.clip(value, -FAR, FAR) * SECONDS_PER_DAY), "s")
            day = moment.astype("datetime64[D]")
            return str(day if moment == day else moment)
        return f"{value:.6g}"

    def span(self, start: int, stop: int) -> str:
        """The levels from start to before stop in words, to follow "where the feature is"."""
        if start == self.bins:
            return "missing"
        edges = (self.low, *self.inner_cuts(), self.high)
        if self.values is not None and stop - start == 1:
            return self.say(self.values[start])
        if start == 0:
            return f"under {self.say_briefly(edges[stop])}"
        if stop == self.bins:
            return f"{self.say_briefly(edges[start])} or more"
        return f"{self.say_briefly(edges[start])} to {self.say_briefly(edges[stop])}"

    def say_briefly(self, value: float) -> str:
        """A cut point, with no more digits than a reader wants."""
        return f"{value:.3g}" if self.kind == NUMBER else self.say(value)

    def inner_cuts(self) -> tuple[float, ...]:
        """Where one bin ends and the next begins."""
        if self.cuts is not None:
            return self.cuts
        return tuple(self.low + (self.high - self.low) * j / self.bins for j in range(1, self.bins))

    def read(self, column: pa.ChunkedArray) -> np.ndarray:
        """The column as numbers, NaN where missing or infinite; text that does not hold numbers is an error."""
        return without_infinite(self.read_raw(column))

    def read_raw(self, column: pa.ChunkedArray) -> np.ndarray:
        """The same with infinite cells as they are."""
        if is_float(column.type) and self.kind != DATE:
            return raw_numbers(column)
        found = kind_of(column.type)
        if found == CATEGORY:
            column = parse_text(column, self.name, self.kind)
        elif not found or ((found == DATE) != (self.kind == DATE) and not pa.types.is_null(column.type)):
            raise wrong_type(self, column)
        return raw_numbers(column)

    def codes(self, x: np.ndarray) -> np.ndarray:
        """The level of each value. The one place where the bin rule lives, always in double precision.

        A bin begins at its lower cut: floor((x - low) / width), or the number of cuts that are not above x.
        """
        if self.cuts is None:
            scale = self.bins / (self.high - self.low)
            first, last = float(x.min(initial=np.inf)), float(x.max(initial=-np.inf))  # NaN where one is missing
            with np.errstate(over="ignore"):  # far outside the range; the end bin all the same
                position = np.subtract(x, self.low, dtype=np.float64)
                position *= scale
            if first >= self.low and (last - self.low) * scale < self.bins:
                return position.astype(np.int16)
            codes = np.nan_to_num(position, nan=0.0).clip(0, self.bins - 1).astype(np.int16)
        else:
            codes = cuts_not_above(np.asarray(x, np.float64), self.cuts)
        codes[np.isnan(x)] = self.bins if self.missing else NO_LEVEL
        return codes

    def fill(self, x: np.ndarray, out: np.ndarray) -> None:
        """Write the design columns, given as zeros: (x - mean) / scale, 0 where missing, and the indicator."""
        standard = standardised(x, self.mean, 1 / self.scale)
        if np.isnan(standard.min(initial=np.inf)):
            missing = np.isnan(standard)
            standard[missing] = 0
            if self.missing:
                out[:, 1] = missing
        out[:, 0] = standard

    def surprises(self, x: np.ndarray) -> dict[str, int]:
        """What training had not: missing values where none were, values outside the range."""
        x = np.asarray(x, np.float64)
        missing = 0 if self.missing else int(np.isnan(x).sum())
        outside = int(((x < self.low) | (x > self.high)).sum())
        return {"missing": missing, "outside": outside}


def standardised(x: np.ndarray, mean: Any, rate: Any) -> np.ndarray:
    """(x - mean) / scale in double precision, within reach, NaN where missing; rate: 1 / scale. One column or many."""
    with np.errstate(over="ignore"):  # of numbers beyond all reason, which are clipped
        standard = np.subtract(x, mean, dtype=np.float64)
        standard *= rate
    np.maximum(standard, -FAR, out=standard)
    return np.minimum(standard, FAR, out=standard)


def cuts_not_above(x: np.ndarray, cuts: tuple[float, ...]) -> np.ndarray:
    """How many of the cuts are at most x."""
    if len(cuts) > COUNTED_CUTS:
        return np.searchsorted(cuts, x, side="right").astype(np.int16)
    count = np.zeros(len(x), np.uint8)
    for cut in cuts:
        count += (x >= cut).view(np.uint8)
    return count.astype(np.int16)


def wrong_type(feature: "Feature", column: pa.ChunkedArray) -> PonnError:
    """What to say about a column that cannot be what it was in training."""
    return PonnError(
        f"Column {feature.name!r} is of type {column.type}; the policy learned from a {feature.kind} there. "
        "Give it the type it had in training."
    )


def parse_text(column: pa.ChunkedArray, name: str, kind: str) -> pa.ChunkedArray:
    """Text cells that should be numbers or dates."""
    target = pa.timestamp("us") if kind == DATE else pa.bool_() if kind == BOOLEAN else pa.float64()
    try:
        return pc.cast(texts(column), target)
    except pa.ArrowInvalid as error:
        raise PonnError(
            f"Column {name!r} holds text ({str(error)[:120]}); the policy learned from a {kind} there."
        ) from error


@dataclass(frozen=True)
class CategoryFeature:
    """A column of texts: its levels are the kept texts, then (other) for those that were capped, then (missing)."""

    name: str
    kept: tuple[str, ...]
    rest: tuple[str, ...]  # the levels that were merged into (other), as far as they may be named
    rest_rows: int
    missing: bool
    kind: str = CATEGORY
    stand_in: str | None = None  # the level that texts and missing cells count as where they have none of their own

    @property
    def b(self) -> int:
        """Number of levels, other and missing included."""
        return len(self.level_names)

    @cached_property
    def level_names(self) -> tuple[str, ...]:
        """The levels in words."""
        return (*self.kept, *((OTHER,) if self.other else ()), *((MISSING,) if self.missing else ()))

    @property
    def other(self) -> bool:
        """Is there a level for texts that have none of their own?"""
        return bool(self.rest or self.rest_rows)

    def span(self, start: int, stop: int) -> str:
        """The levels from start to before stop in words, to follow "where the feature is"."""
        return " or ".join(self.level_names[start:stop])

    @property
    def design_names(self) -> tuple[str, ...]:
        """One 0/1 column per level."""
        return tuple(f"{self.name}={level}" for level in self.level_names)

    def read(self, column: pa.ChunkedArray) -> np.ndarray:
        """The level of each cell."""
        if not kind_of(column.type):
            raise wrong_type(self, column)
        cells = texts(column)
        known = pa.array([*self.kept, *self.rest], pa.string())
        found = pc.index_in(cells, value_set=known)
        codes = pc.fill_null(found, pa.scalar(UNSEEN, pa.int32())).to_numpy()
        codes = np.minimum(codes, len(self.kept)).astype(np.int16)  # all of the rest are one level
        if cells.null_count:
            codes[pc.is_null(cells).to_numpy()] = self.b - 1 if self.missing else NO_LEVEL
        return codes

    def codes(self, x: np.ndarray) -> np.ndarray:
        """The level of each cell; a text never seen counts as (other) where there is one."""
        stand_in = NO_LEVEL if self.stand_in is None else self.level_names.index(self.stand_in)
        found = np.where(x == UNSEEN, len(self.kept) if self.other else stand_in, x)
        return np.where(found == NO_LEVEL, stand_in, found).astype(np.int16, copy=False)

    def fill(self, x: np.ndarray, out: np.ndarray) -> None:
        """Write the design columns, given as zeros: 1 in the column of the row's level, nowhere for unseen ones."""
        level = self.codes(x)
        rows = np.flatnonzero(level >= 0)
        out[rows, level[rows]] = 1

    def surprises(self, x: np.ndarray) -> dict[str, int]:
        """Texts, or missing cells, that training never saw."""
        return {"unseen": int((x == UNSEEN).sum()), "missing": int((x == NO_LEVEL).sum())}


Feature = NumberFeature | CategoryFeature


def check_feature(feature: Feature) -> None:
    """Raise PonnError unless the levels and numbers of a feature, as a file tells them, can be worked with."""
    fits = fitting_levels(feature) if isinstance(feature, CategoryFeature) else fitting_bins(feature)
    if not fits:
        raise PonnError(
            f"The levels of feature {feature.name!r} do not fit together; the policy file is damaged. Take another "
            "copy of it."
        )


def fitting_levels(feature: CategoryFeature) -> bool:
    """Is every level named once, are there any, and is the one that stands in for others among them?"""
    levels = {*feature.kept, *feature.rest}
    if feature.stand_in is not None and feature.stand_in not in feature.level_names:
        return False
    return len(levels) == len(feature.kept) + len(feature.rest) and feature.b > 0


def fitting_bins(feature: NumberFeature) -> bool:
    """Do bins, cuts and values agree, and can a cell be placed among them?"""
    if not feature.low <= feature.high or not np.isfinite(1 / feature.scale if feature.scale > 0 else np.inf):
        return False
    reach = feature.high - feature.low + feature.scale  # generous: means of large numbers are rounded
    if not feature.low - reach <= feature.mean <= feature.high + reach:
        return False
    if feature.values is not None and (len(feature.values) != feature.bins or feature.cuts is None):
        return False
    if feature.cuts is None:
        return feature.low < feature.high and is_divisible(feature.low, feature.high, feature.bins)
    rising = all(one <= next_ for one, next_ in pairwise(feature.cuts))
    return rising and len(feature.cuts) == feature.bins - 1


def fit_number(name: str, kind: str, found: NumberSummary, s: int, cuts: tuple[float, ...] | None) -> NumberFeature:
    """Levels when there are at most s values; otherwise s equal bins, or those between the given cuts."""
    values, bins = None, s
    if found.values is not None:
        values = tuple(sorted(found.values)) or (0.0,)  # nothing but missing cells: a level all the same, empty
        cuts = tuple(midpoint(one, next_) for one, next_ in pairwise(values))
        bins = len(values)
    elif cuts is not None:
        bins = len(cuts) + 1
    elif not is_divisible(found.low, found.high, s):
        cuts = tuple(found.low * (1 - j / s) + found.high * (j / s) for j in range(1, s))
    mean, scale = centre_and_scale(found)
    return NumberFeature(
        name=name,
        kind=kind,
        low=found.low if found.count else 0.0,
        high=found.high if found.count else 0.0,
        bins=bins,
        cuts=cuts,
        values=values,
        missing=found.missing > 0,
        mean=mean,
        scale=scale,
    )


def midpoint(one: float, next_: float) -> float:
    """The cut between two values: the first is below it, the second is not, even if no number lies between them."""
    middle = 0.5 * one + 0.5 * next_
    return middle if middle > one else next_


def centre_and_scale(found: NumberSummary) -> tuple[float, float]:
    """Mean and standard deviation; for a constant itself and 1, whatever rounding made of its deviations."""
    if found.low >= found.high:  # one value, or (inf, -inf) none
        return (found.low if found.count else 0.0), 1.0
    scale = float(np.sqrt(found.M2 / found.count))
    if np.isfinite(found.mean) and np.isfinite(scale) and scale > 0 and np.isfinite(1 / scale):
        return found.mean, scale
    half_range = 0.5 * found.high - 0.5 * found.low  # squares overflow or vanish
    return 0.5 * found.low + 0.5 * found.high, half_range if half_range > 0 and np.isfinite(1 / half_range) else 1.0


def is_divisible(low: float, high: float, s: int) -> bool:
    """Can the range be cut by one multiplication without overflow?"""
    with np.errstate(over="ignore", divide="ignore"):
        span = np.float64(high) - np.float64(low)
        return bool(np.isfinite(span) and np.isfinite(s / span))


def quantile_cuts(x: np.ndarray, s: int) -> tuple[float, ...]:
    """The values, above the lowest, below which the share of rows comes nearest to j/s; repetitions are left out.

    Where most rows share one value (zero, often), the others still get a bin of their own.
    """
    values, counts = np.unique(x[~np.isnan(x)], return_counts=True)
    below = np.cumsum(counts)[:-1] / counts.sum()  # share of rows below values[1:]
    target = np.arange(1, s) / s
    after = np.searchsorted(below, target).clip(max=len(below) - 1)
    before = (after - 1).clip(min=0)
    nearest = np.where(target - below[before] <= below[after] - target, before, after)
    return tuple(float(values[1 + place]) for place in np.unique(nearest))


def fit_category(name: str, found: TextSummary, most: int, fewest: int = 1) -> CategoryFeature:
    """Keep the most frequent levels (ties by name); the others become one.

    fewest: levels with fewer rows are not named. Where all such levels, or the missing cells, have fewer rows even
    together, they count as the most frequent level: a level of theirs would speak of a few people alone. So do texts
    and missing cells that were never seen, as else it would show whether there were a few.
    """
    ranked = sorted(found.counts.items(), key=lambda one: (-one[1], one[0]))
    named = [one for one in ranked if one[1] >= fewest]
    kept, rest = named[:most], ranked[len(named[:most]) :]
    missing, rest_rows = found.missing, sum(count for _, count in rest)
    few_texts = rest_rows < fewest and bool(kept or missing >= fewest)  # else they are the only level there is
    few_missing = missing < fewest and bool(kept or rest_rows)
    usual = kept[0][0] if kept else OTHER if rest_rows and not few_texts else MISSING
    return CategoryFeature(
        name=name,
        kept=tuple(sorted(level for level, _ in kept)),
        rest=() if few_texts else tuple(sorted(level for level, count in rest if count >= fewest)),
        rest_rows=0 if few_texts else rest_rows,
        missing=missing > 0 and not few_missing,
        stand_in=usual if fewest > 1 else None,
    )
