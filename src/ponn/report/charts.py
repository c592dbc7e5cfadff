"""Pictures as self-contained SVG text: legible in print, numbers on hover, a title for those who cannot see them.

Charts of policies and actions are 326 pixels wide, which fits a phone; wider ones are meant to scroll in their box.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ponn.evaluation.intervals import Estimate
from ponn.report.drawing import (
    ACCENT,
    MARK,
    PALE,
    QUIET,
    box,
    dot,
    in_percent,
    label,
    line,
    picture,
    shade,
    shortened,
    spread,
    text_width,
    tick_texts,
    ticks,
    title,
)

CELL, BAR = 26, 20  # heights in pixels
MOST = 40  # features or actions across or down a map; how many are left out is said
MOST_LINES = 20  # of a list of bars or points, which are taller
NARROW = 326  # pixels: a phone of 360 with its margins
NAME = 24  # characters of a name beside a picture's marks


# Relevance -----------------------------------------------------------------------------------------------


class Scored(Protocol):
    """What Step B found, as far as it is drawn: a `Relevance`, or what a policy keeps of it."""

    @property
    def actions(self) -> tuple[Any, ...]:
        """Labels."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names."""

    @property
    def G(self) -> np.ndarray:
        """Relevance [k, d]."""

    @property
    def tau(self) -> np.ndarray:
        """Thresholds [k, d]."""

    @property
    def selected(self) -> np.ndarray:
        """Relevant sets [k, d]."""


class Bounded(Protocol):
    """Bounds on |G - g| per pair: a `RelevanceBound`, or what a policy keeps of it."""

    @property
    def total(self) -> np.ndarray:
        """[k, d], NaN where there is none."""


def heat_map(found: Scored, most: int = MOST) -> str:
    """Action x feature: the darker, the more relevant; a frame marks what was selected."""
    shown = most_relevant(found, most)
    actions, features = found.actions[:most], [shortened(found.features[i], NAME) for i in shown]
    left = text_width(shortened(action, NAME) for action in actions) + 12
    top = text_width(features) * 0.75 + 16
    width = left + max(CELL * len(shown) + text_width(features) * 0.6, 400)
    height = top + CELL * len(actions) + 34
    scale = found.G.max(initial=0.0) or 1.0
    parts = [label(left + CELL * at + 16, top - 6, name, turn=-50) for at, name in enumerate(features)]
    for a, action in enumerate(actions):
        y = top + CELL * a
        parts.append(label(left - 8, y + 17, shortened(action, NAME), anchor="end"))
        parts += [heat_cell(found, a, i, left + CELL * at, y, scale) for at, i in enumerate(shown)]
    legend = f"Relevance G from 0 (light) to {scale:.3g} (dark); framed: selected"
    parts.append(label(left, height - 10, legend, fill=PALE))
    return picture(width, height, "Relevance of each feature for each action", parts)


def most_relevant(found: Scored, most: int) -> list[int]:
    """The features whose largest relevance for any action is highest, in their own order."""
    best = found.G.max(axis=0, initial=0.0)
    return sorted(np.argsort(-best, kind="stable")[:most].tolist())


def heat_cell(found: Scored, a: int, i: int, x: float, y: float, scale: float) -> str:
    """One cell, with its numbers on hover."""
    kept = bool(found.selected[a, i])
    action, feature = shortened(found.actions[a]), shortened(found.features[i])
    told = f"{action}, {feature}: relevance {found.G[a, i]:.4g}, threshold {found.tau[a, i]:.4g}"
    told += ", selected" if kept else ""
    frame = f"stroke='{MARK}' stroke-width='2'" if kept else "stroke='white'"
    fill = shade(np.sqrt(found.G[a, i] / scale))  # the root keeps small values apart
    place = f"x='{x + 1:.0f}' y='{y + 1:.0f}' width='{CELL - 3}' height='{CELL - 3}'"
    return f"<rect {place} fill='{fill}' {frame}>{title(told)}</rect>"


def relevance_bars(found: Scored, action: object, bound: Bounded | None = None, most: int = 20) -> str:
    """One action's features, most relevant first: a bar for G, a tick for its threshold, a whisker for its bound."""
    a = found.actions.index(action)
    order = np.argsort(-found.G[a], kind="stable")[:most]
    left = text_width(shortened(found.features[i], NAME) for i in order) + 12
    reach = max(found.G[a].max(initial=0.0), found.tau[a][order].max(initial=0.0)) or 1.0
    height = 34 + BAR * len(order) + 28
    parts = [label(0, 18, f"Relevance for {shortened(action, NAME)}", size=14)]
    for place, i in enumerate(order):
        parts += relevance_bar(found, a, int(i), left, 34 + BAR * place, 300 / reach, bound)
    legend = "bar: relevance G (dark: selected); tick: threshold" + ("; whisker: bound" if bound is not None else "")
    parts.append(label(0, height - 8, legend, fill=PALE))
    return picture(max(left + 380, text_width([legend])), height, f"Features relevant for {shortened(action)}", parts)


def relevance_bar(
    found: Scored, a: int, i: int, left: float, y: float, per_unit: float, bound: Bounded | None
) -> list[str]:
    """One feature's bar, tick and whisker."""
    G, tau = found.G[a, i], found.tau[a, i]
    told = f"{shortened(found.features[i])}: relevance {G:.4g}, threshold {tau:.4g}"
    parts = [label(left - 8, y + 14, shortened(found.features[i], NAME), anchor="end")]
    if bound is not None and np.isfinite(bound.total[a, i]):
        told += f", bound ±{bound.total[a, i]:.4g}"
        ends = (max(G - bound.total[a, i], 0), G + bound.total[a, i])
        low, high = (left + min(end * per_unit, 370) for end in ends)
        parts.append(line(low, y + 16, high, y + 16, stroke=PALE))
    fill = shade(0.9 if found.selected[a, i] else 0.35)
    x = left + tau * per_unit
    return [
        *parts,
        box(left, y + 3, max(G * per_unit, 0.5), BAR - 7, fill, told),
        line(x, y + 1, x, y + BAR - 2, stroke=MARK, width=2),
        label(max(left + G * per_unit, x) + 5, y + 14, f"{G:.3g}", fill=PALE),
    ]


# Values --------------------------------------------------------------------------------------------------

ROW = 54  # pixels: the name, the numbers, the marks


def value_chart(values: Mapping[str, Estimate], *, name: str, x_name: str, reference: float | None = None) -> str:
    """A value with its interval per line; hollow and said so where it is not to be trusted; a tick at the reference."""
    ends = [end for one in values.values() for end in (one.value, one.low, one.high)]
    ends += [] if reference is None else [reference]
    low, high = padded([end for end in ends if math.isfinite(end)])

    def across(value: float) -> float:
        return 8 + (NARROW - 16) * (min(max(value, low), high) - low) / (high - low)

    foot = 8 + ROW * len(values)
    parts = []
    for number, (who, one) in enumerate(values.items()):
        y = 8 + ROW * number
        if reference is not None:
            parts.append(line(across(reference), y + 31, across(reference), y + 47, stroke=PALE, width=2))
        parts += value_line(shortened(who, 44), one, y, across)
    parts += scale_below(low, high, across, foot, x_name)
    return picture(NARROW, foot + 42, name, parts)


def value_line(who: str, one: Estimate, y: float, across: Callable[[float], float]) -> list[str]:
    """The name, the numbers, and below them the interval and the value."""
    told = f"{in_figures(one)}{'' if one.trusted else ': not trusted'}"
    colour = ACCENT if one.trusted else MARK
    parts = [label(8, y + 12, who), label(8, y + 27, told, fill=PALE if one.trusted else MARK)]
    if math.isfinite(one.value):
        ends = across(one.low), across(one.high)
        parts.append(line(ends[0], y + 39, ends[1], y + 39, stroke=colour, width=3, dashed=not one.trusted))
        parts.append(dot(across(one.value), y + 39, f"{who}: {told}", colour=colour, hollow=not one.trusted))
    return parts


def in_figures(one: Estimate) -> str:
    """value (low to high), with as many digits as the interval deserves."""
    value, low, high = one.in_digits()
    return f"{value} ({low} to {high})"


def padded(values: Sequence[float], share: float = 0.05) -> tuple[float, float]:
    """The range of values and a bit more on both sides; something around 0 and 1 where there is none."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    more = share * (high - low) or abs(high) * share or 0.5
    return low - more, high + more


def scale_below(low: float, high: float, across: Callable[[float], float], y: float, x_name: str) -> list[str]:
    """A line with numbers below it, and what they are."""
    parts = [line(across(low), y, across(high), y, stroke=QUIET)]
    for at, told in scale(low, high):
        parts += [line(across(at), y, across(at), y + 4, stroke=QUIET), number_at(across(at), y + 17, told)]
    return [*parts, label((across(low) + across(high)) / 2, y + 35, shortened(x_name, 44), anchor="middle", fill=PALE)]


def scale(low: float, high: float, about: int = 4) -> list[tuple[float, str]]:
    """Round numbers from low to high, and how they are written."""
    at = ticks(low, high, about)
    return list(zip(at, tick_texts(at), strict=True))


def number_at(x: float, y: float, told: str) -> str:
    """A number of a scale, centred."""
    return label(x, y, told, anchor="middle", fill=PALE)


# Shares --------------------------------------------------------------------------------------------------


def bar_pairs(bars: Mapping[str, Sequence[float]], sides: Sequence[str], *, name: str, most: int = MOST_LINES) -> str:
    """Per name one bar for each side, of shares from 0 to 1, with a legend."""
    shown = list(bars.items())[:most]
    colours = (ACCENT, QUIET)[: len(sides)]
    step = 22 + 15 * len(sides)
    per_unit = (NARROW - 66) / (max((share for _, shares in shown for share in shares), default=0.0) or 1.0)
    parts = legend_of(sides, colours) if len(sides) > 1 else []
    top = 24 * bool(parts)
    for number, (who, shares) in enumerate(shown):
        y = top + step * number
        parts.append(label(0, y + 14, shortened(who, 44)))
        for place, (side, share, colour) in enumerate(zip(sides, shares, colours, strict=True)):
            at, told = y + 19 + 15 * place, f"{shortened(who)}: {side} {in_percent(share)}"
            parts.append(box(0, at, share * per_unit, 12, colour, told))
            parts.append(label(share * per_unit + 5, at + 10, in_percent(share), fill=PALE))
    height = top + step * len(shown) + (22 if len(bars) > most else 4)
    if len(bars) > most:
        parts.append(label(0, height - 6, f"and {len(bars) - most} more, in the table", fill=PALE))
    return picture(NARROW, height, name, parts)


def legend_of(sides: Sequence[str], colours: Sequence[str]) -> list[str]:
    """What the colours mean, in one line."""
    parts, x = [], 0.0
    for side, colour in zip(sides, colours, strict=True):
        parts += [box(x, 2, 12, 12, colour, side), label(x + 17, 13, side)]
        x += 17 + text_width([side]) + 14
    return parts


class WeightBin(NamedTuple):
    """Importance weights in low < w <= high (or w = 0): how many rows have one, and how much of all weight they are."""

    low: float
    high: float
    rows: int
    share_of_rows: float
    share_of_weight: float

    @property
    def name(self) -> str:
        """The range in words."""
        return "0: would do otherwise" if self.high == 0 else f"{self.low:g} to {self.high:g}"


def weight_bins(w: np.ndarray) -> tuple[WeightBin, ...]:
    """The distribution of importance weights in ranges that double: 0, up to 1, 1 to 2, 2 to 4, ..."""
    doublings = max(math.ceil(math.log2(max(float(w.max(initial=0.0)), 1.0))), 0)
    edges = [0.0, *(2.0**power for power in range(doublings + 1))]
    place = np.searchsorted(edges, w)  # 0 for w = 0, then the range that it is at most the high end of
    rows = np.bincount(place, minlength=len(edges))
    weight = np.bincount(place, w, minlength=len(edges)) / (w.sum() or 1.0)
    lows = [0.0, *edges[:-1]]
    found = zip(lows, edges, rows.tolist(), (rows / max(len(w), 1)).tolist(), weight.tolist(), strict=True)
    return tuple(one for one in map(WeightBin._make, found) if one.rows)


def weight_chart(bins: Sequence[WeightBin]) -> str:
    """How the importance weights are distributed: trouble is where few rows hold much of the weight."""
    bars = {one.name: (one.share_of_weight, one.share_of_rows) for one in bins}
    return bar_pairs(bars, ("share of all weight", "share of rows"), name="Distribution of the weights")


def support_chart(supported: Mapping[str, float]) -> str:
    """Per action the share of rows in which the log supports it."""
    bars = {who: (share,) for who, share in supported.items()}
    return bar_pairs(bars, ("supported in",), name="Share of rows in which the log supports each action")


# Points --------------------------------------------------------------------------------------------------


def balance_chart(features: Sequence[str], before: np.ndarray, after: np.ndarray, *, mark: float = 0.1) -> str:
    """How far the rows of the actions are from all rows, per feature, before (hollow) and after weighting."""
    order = np.argsort(-before, kind="stable")[:MOST_LINES]
    left = min(text_width(shortened(features[i], NAME) for i in order) + 8, 180)
    high = max(before.max(initial=0.0), after.max(initial=0.0), 2 * mark) * 1.05

    def across(value: float) -> float:
        return left + (NARROW - 8 - left) * value / high

    foot = 26 + BAR * len(order)
    parts = [dot(6, 10, "before", colour=QUIET, hollow=True), label(16, 14, "before weighting")]
    parts += [dot(136, 10, "after"), label(146, 14, "after weighting")]
    parts.append(line(across(mark), 20, across(mark), foot, stroke=MARK, dashed=True))
    for place, i in enumerate(order):
        y, who = 26 + BAR * place, shortened(features[i])
        parts.append(label(left - 8, y + 14, shortened(features[i], NAME), anchor="end"))
        parts.append(line(across(0), y + 10, across(high), y + 10))
        parts.append(dot(across(before[i]), y + 10, f"{who}: before {before[i]:.3g}", colour=QUIET, hollow=True))
        parts.append(dot(across(after[i]), y + 10, f"{who}: after {after[i]:.3g}"))
    parts += scale_below(0.0, high, across, foot, "standard deviations")
    return picture(NARROW, foot + 42, "Balance of the features before and after weighting", parts)


class CalibrationBin(NamedTuple):
    """Rows with alike predictions: what was predicted, what came, and an interval for the latter."""

    predicted: float
    observed: float
    low: float
    high: float
    rows: int


def calibration_chart(bins: Sequence[CalibrationBin], *, name: str, what: str) -> str:
    """Predicted against observed means; where predictions can be relied on the points lie on the line."""
    low, high = padded([value for one in bins for value in one[:4] if math.isfinite(value)])
    left, side = 50, NARROW - 60

    def place(x: float, y: float) -> tuple[float, float]:
        inside = min(max(y, low), high)
        return left + side * (x - low) / (high - low), 8 + side * (1 - (inside - low) / (high - low))

    (x_low, y_low), (x_high, y_high) = place(low, low), place(high, high)
    parts = [line(x_low, y_low, x_high, y_high, stroke=PALE, dashed=True)]
    for at, told in scale(low, high):
        y = place(low, at)[1]
        parts += [line(left, y, left + side, y), label(left - 6, y + 4, told, anchor="end", fill=PALE)]
    for one in bins:
        x, y = place(one.predicted, one.observed)
        parts.append(line(x, place(0, one.low)[1], x, place(0, one.high)[1], stroke=ACCENT))
        told = f"predicted {one.predicted:.4g}, observed {one.observed:.4g} ({one.low:.4g} to {one.high:.4g})"
        parts.append(dot(x, y, f"{told}, {one.rows:,} rows"))
    parts += scale_below(low, high, lambda x: place(x, low)[0], 8 + side, f"predicted mean {what}")
    parts.append(label(12, 8 + side / 2, shortened(f"observed mean {what}", 36), anchor="middle", turn=-90, fill=PALE))
    return picture(NARROW, side + 54, name, parts)


# Lines ---------------------------------------------------------------------------------------------------

LINES = ("#084081", "#b3261e", "#2e7d32", "#6a1b9a", "#8a6d00", "#455a64")  # dark enough on white
WIDE, HIGH, MARGIN = 520, 300, 54

Points = Sequence[tuple[float, float]]
Place = Callable[[float, float], tuple[float, float]]


def line_chart(
    lines: Mapping[str, Points], *, name: str, x_name: str, y_name: str, width: int | None = None, high: int = HIGH
) -> str:
    """Named lines through points (x, y), with a dot and its numbers on hover at every point.

    width: of the whole picture, which then has no heading: what it stands in has one.
    """
    names = text_width(lines) + 16
    wide, top = (WIDE, 34) if width is None else (width - MARGIN - names, 10)
    points = np.array([point for one in lines.values() for point in one])
    (x_low, y_low), (x_high, y_high) = points.min(axis=0), points.max(axis=0)
    least, most = padded((float(y_low), float(y_high)), 0.06)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low or 1.0)
        return MARGIN + across * wide, top + (1 - (y - least) / (most - least)) * high

    heading = [label(0, 18, name, size=14)] if width is None else []
    parts = [*heading, *axes((x_low, x_high), (least, most), place, x_name, y_name)]
    ends = spread([place(*one[-1])[1] for one in lines.values()], 15)
    for number, ((who, one), end) in enumerate(zip(lines.items(), ends, strict=True)):
        parts += drawn_line(who, one, place, LINES[number % len(LINES)], end)
    return picture(MARGIN + wide + names, top + high + 56, name, parts)


def axes(x: tuple[float, float], y: tuple[float, float], place: Place, x_name: str, y_name: str) -> list[str]:
    """Grid lines with numbers, and what the axes mean."""
    (left, foot), (right, top) = place(x[0], y[0]), place(x[1], y[1])
    parts = []
    for value, told in scale(*y, 5):
        at = place(x[0], value)[1]
        parts += [line(left, at, right, at), label(left - 6, at + 4, told, anchor="end", fill=PALE)]
    parts += [number_at(place(value, y[0])[0], foot + 18, told) for value, told in scale(*x, 5)]
    parts.append(label((left + right) / 2, foot + 40, x_name, anchor="middle"))
    return [*parts, label(12, (foot + top) / 2, y_name, anchor="middle", turn=-90)]


def drawn_line(name: str, points: Points, place: Place, colour: str, end: float) -> list[str]:
    """A line, its dots, and its name beside its end."""
    spots = [place(x, y) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    parts = [f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>"]
    for (x, y), (at_x, at_y) in zip(points, spots, strict=True):
        parts.append(dot(at_x, at_y, f"{name}: {y:.4g} at {x:.4g}", colour=colour, radius=3))
    return [*parts, label(spots[-1][0] + 8, end + 4, name, fill=colour)]
