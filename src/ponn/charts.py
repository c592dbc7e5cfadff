"""Pictures as self-contained SVG text: legible in print, numbers on hover, a title for those who cannot see them."""

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from ponn.relevance import Relevance, RelevanceBound

FONT = "font-family='system-ui, sans-serif'"
INK, PALE, MARK = "#1a1a1a", "#8a8a8a", "#b3261e"
LIGHT, DARK = np.array([247, 251, 255]), np.array([8, 64, 129])  # ends of a single-hue scale
CELL, BAR = 26, 20  # heights in pixels
CHARACTER = 7.2  # width of a character at 12 pixels, about


def heat_map(found: Relevance) -> str:
    """Action x feature: the darker, the more relevant; a frame marks what was selected."""
    left = text_width(str(action) for action in found.actions) + 12
    top = text_width(found.features) * 0.75 + 16
    width, height = left + CELL * len(found.features) + 40, top + CELL * len(found.actions) + 34
    scale = found.G.max(initial=0.0) or 1.0
    parts = [label(left + CELL * i + 16, top - 6, name, turn=-50) for i, name in enumerate(found.features)]
    for a, action in enumerate(found.actions):
        y = top + CELL * a
        parts.append(label(left - 8, y + 17, str(action), anchor="end"))
        parts += [heat_cell(found, a, i, left + CELL * i, y, scale) for i in range(len(found.features))]
    legend = f"Relevance G from 0 (light) to {scale:.3g} (dark); framed: selected"
    parts.append(label(left, height - 10, legend, fill=PALE))
    return picture(width, height, "Relevance of each feature for each action", parts)


def heat_cell(found: Relevance, a: int, i: int, x: float, y: float, scale: float) -> str:
    """One cell, with its numbers on hover."""
    kept = bool(found.selected[a, i])
    told = f"{found.actions[a]}, {found.features[i]}: relevance {found.G[a, i]:.4g}, threshold {found.tau[a, i]:.4g}"
    told += ", selected" if kept else ""
    frame = f"stroke='{MARK}' stroke-width='2'" if kept else "stroke='white'"
    fill = shade(np.sqrt(found.G[a, i] / scale))  # the root keeps small values apart
    place = f"x='{x + 1:.0f}' y='{y + 1:.0f}' width='{CELL - 3}' height='{CELL - 3}'"
    return f"<rect {place} fill='{fill}' {frame}>{title(told)}</rect>"


def relevance_bars(found: Relevance, action: object, bound: RelevanceBound | None = None, most: int = 20) -> str:
    """One action's features, most relevant first: a bar for G, a tick for its threshold, a whisker for its bound."""
    a = found.actions.index(action)
    order = np.argsort(-found.G[a], kind="stable")[:most]
    left = text_width(found.features[i] for i in order) + 12
    reach = max(found.G[a].max(initial=0.0), found.tau[a][order].max(initial=0.0)) or 1.0
    per_unit = 360 / reach
    height = 34 + BAR * len(order) + 28
    parts = [label(0, 18, f"Relevance for {action}", size=14)]
    for place, i in enumerate(order):
        parts += bar(found, a, int(i), left, 34 + BAR * place, per_unit, bound)
    legend = "bar: relevance G (dark: selected); tick: threshold" + ("; whisker: bound" if bound is not None else "")
    parts.append(label(left, height - 8, legend, fill=PALE))
    return picture(left + 440, height, f"Features relevant for {action}", parts)


def bar(
    found: Relevance, a: int, i: int, left: float, y: float, per_unit: float, bound: RelevanceBound | None
) -> list[str]:
    """One feature's bar, tick and whisker."""
    G, tau = found.G[a, i], found.tau[a, i]
    told = f"{found.features[i]}: relevance {G:.4g}, threshold {tau:.4g}"
    fill = shade(0.9 if found.selected[a, i] else 0.35)
    parts = [label(left - 8, y + 14, found.features[i], anchor="end")]
    if bound is not None and np.isfinite(bound.total[a, i]):
        told += f", bound ±{bound.total[a, i]:.4g}"
        ends = (max(G - bound.total[a, i], 0), G + bound.total[a, i])
        low, high = (left + min(end * per_unit, 420) for end in ends)
        parts.append(f"<line x1='{low:.1f}' x2='{high:.1f}' y1='{y + 16}' y2='{y + 16}' stroke='{PALE}'/>")
    shape = f"<rect x='{left:.0f}' y='{y + 3}' width='{max(G * per_unit, 0.5):.1f}' height='{BAR - 7}' fill='{fill}'>"
    x = left + tau * per_unit
    tick = f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{y + 1}' y2='{y + BAR - 2}' stroke='{MARK}' stroke-width='2'/>"
    return [*parts, f"{shape}{title(told)}</rect>", tick, label(left + G * per_unit + 5, y + 14, f"{G:.3g}", fill=PALE)]


# Shapes --------------------------------------------------------------------------------------------------


def picture(width: float, height: float, name: str, parts: Sequence[str]) -> str:
    """An SVG document that scales with its surroundings."""
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' "
        f"style='max-width:100%;height:auto' role='img' aria-label='{escape(name, quote=True)}' {FONT} "
        f"font-size='12' fill='{INK}'>\n{title(name)}\n{body}\n</svg>\n"
    )


def label(
    x: float, y: float, text: str, *, anchor: str = "start", turn: int = 0, fill: str = INK, size: int = 12
) -> str:
    """A piece of text."""
    turned = f" transform='rotate({turn} {x:.1f} {y:.1f})'" if turn else ""
    look = f"text-anchor='{anchor}' fill='{fill}' font-size='{size}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {look}{turned}>{escape(text)}</text>"


def title(text: str) -> str:
    """What shows on hover and what a screen reader says."""
    return f"<title>{escape(text)}</title>"


def shade(share: float) -> str:
    """A colour from light (0) to dark (1)."""
    red, green, blue = (LIGHT + (DARK - LIGHT) * min(max(share, 0.0), 1.0)).round().astype(int)
    return f"#{red:02x}{green:02x}{blue:02x}"


def text_width(texts: Iterable[object]) -> float:
    """Width of the longest text in pixels, about."""
    return CHARACTER * max((len(str(text)) for text in texts), default=0)
