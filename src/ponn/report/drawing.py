"""What charts are drawn with: SVG text without scripts, safe with any name, never smaller than 12 pixels."""

import math
import unicodedata
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

FONT = "font-family='system-ui, sans-serif'"
# Contrast on white: ink 14, pale 5.8, accent 10, mark 6.5 (text needs 4.5); quiet, for bars, 3.1 (shapes need 3)
INK, PALE, GRID, QUIET, ACCENT, MARK = "#1f2933", "#5b6670", "#dde3e8", "#87929d", "#084081", "#b3261e"
LIGHT, DARK = np.array([247, 251, 255]), np.array([8, 64, 129])  # ends of a single-hue scale
SIZE = 12
CHARACTER = 7.2  # width of a character at 12 pixels, about
LONGEST = 100  # characters of a name that are shown anywhere


def picture(width: float, height: float, name: str, parts: Sequence[str]) -> str:
    """An SVG document of this many pixels, with a name for those who cannot see it."""
    body = "\n".join(parts)
    size = f"viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' height='{height:.0f}'"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' aria-label='{safe(name)}' {FONT} "
        f"font-size='{SIZE}' fill='{INK}'>\n{title(name)}\n{body}\n</svg>\n"
    )


def label(
    x: float, y: float, text: str, *, anchor: str = "start", turn: int = 0, fill: str = INK, size: int = SIZE
) -> str:
    """A piece of text."""
    turned = f" transform='rotate({turn} {x:.1f} {y:.1f})'" if turn else ""
    look = f"text-anchor='{anchor}' fill='{fill}' font-size='{size}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {look}{turned}>{safe(text)}</text>"


def line(
    x1: float, y1: float, x2: float, y2: float, *, stroke: str = GRID, width: float = 1, dashed: bool = False
) -> str:
    """A straight line."""
    look = f"stroke='{stroke}' stroke-width='{width:g}'" + (" stroke-dasharray='4 3'" if dashed else "")
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' {look}/>"


def box(x: float, y: float, width: float, height: float, fill: str, told: str) -> str:
    """A filled rectangle with its numbers on hover."""
    place = f"x='{x:.1f}' y='{y:.1f}' width='{max(width, 0):.1f}' height='{height:.1f}'"
    return f"<rect {place} fill='{fill}'>{title(told)}</rect>"


def dot(x: float, y: float, told: str, *, colour: str = ACCENT, hollow: bool = False, radius: float = 4.5) -> str:
    """A point with its numbers on hover; hollow where it is to be doubted."""
    look = f"fill='white' stroke='{colour}' stroke-width='2'" if hollow else f"fill='{colour}'"
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:g}' {look}>{title(told)}</circle>"


def title(text: str) -> str:
    """What shows on hover and what a screen reader says."""
    return f"<title>{safe(text)}</title>"


def shade(share: float) -> str:
    """A colour from light (0) to dark (1)."""
    red, green, blue = (LIGHT + (DARK - LIGHT) * min(max(share, 0.0), 1.0)).round().astype(int)
    return f"#{red:02x}{green:02x}{blue:02x}"


# Names ---------------------------------------------------------------------------------------------------


def safe(text: object) -> str:
    """Text that cannot break out of a page or a picture: escaped, without what XML or the reading order forbids."""
    return escape("".join("�" if is_unruly(one) else one for one in str(text)), quote=True)


def is_unruly(character: str) -> bool:
    """Control characters, lone surrogates, and marks that turn the direction of the text behind them."""
    unruly = unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"
    turning = unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return unruly or turning or character in "\ufffe\uffff"


def shortened(text: object, most: int = LONGEST) -> str:
    """A name of at most so many characters (wide ones count twice), its end replaced by dots."""
    text = str(text)
    if columns(text) <= most:
        return text
    while columns(text) > most - 1:
        text = text[:-1] if len(text) <= 2 * most else text[: 2 * most]
    return text.rstrip() + "…"


def columns(text: str) -> int:
    """How many characters' width a text takes."""
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text)


def text_width(texts: Iterable[object]) -> float:
    """Width of the longest text in pixels, about."""
    return CHARACTER * max((columns(str(text)) for text in texts), default=0)


def in_percent(share: float) -> str:
    """A share as people read it: 12.5 %, never broken across lines."""
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


# Scales --------------------------------------------------------------------------------------------------


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers from low to high, in steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    if not rough > 0 or not math.isfinite(rough):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def tick_texts(at: Sequence[float]) -> list[str]:
    """The numbers of a scale, with so many digits that they differ: 10001 and 10002, not 1e+04 twice."""
    step, largest = (at[1] - at[0], max(map(abs, at))) if len(at) > 1 else (1.0, 1.0)
    digits = math.ceil(math.log10(largest / step)) + 2
    return [f"{one:.{max(digits, 6)}g}" for one in at]


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Heights moved apart as little as needed, so that labels do not cover each other; their order is kept."""
    order = np.argsort(places, kind="stable")
    sorted_ = np.asarray(places, float)[order]
    steps = gap * np.arange(len(sorted_))
    down = np.maximum.accumulate(sorted_ - steps) + steps
    up = np.minimum.accumulate((sorted_ - steps)[::-1])[::-1] + steps
    found = np.empty(len(sorted_))
    found[order] = (down + up) / 2
    return found.tolist()
