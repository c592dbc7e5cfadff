"""Pictures as self-contained SVG text: legible in print, numbers on hover, a title for those who cannot see them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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


LINES = ("#084081", "#b3261e", "#2e7d32", "#6a1b9a", "#8a6d00", "#455a64")  # dark enough on white
WIDE, HIGH, MARGIN = 520, 300, 54


def line_chart(lines: Mapping[str, Sequence[tuple[float, float]]], *, name: str, x_name: str, y_name: str) -> str:
    """Named lines through points (x, y), with a dot and its numbers on hover at every point."""
    points = np.array([point for line in lines.values() for point in line])
    (x_low, y_low), (x_high, y_high) = points.min(axis=0), points.max(axis=0)
    low, high = y_low - 0.06 * (y_high - y_low or 1.0), y_high + 0.06 * (y_high - y_low or 1.0)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low or 1.0)
        return MARGIN + across * WIDE, 34 + (1 - (y - low) / (high - low)) * HIGH

    parts = [label(0, 18, name, size=14), *axes(x_low, x_high, low, high, place, x_name, y_name)]
    for number, (title_of, line) in enumerate(lines.items()):
        parts += drawn_line(title_of, line, place, LINES[number % len(LINES)])
    widest = text_width(lines) + 16
    return picture(MARGIN + WIDE + widest, HIGH + 90, name, parts)


Place = Callable[[float, float], tuple[float, float]]


def axes(x_low: float, x_high: float, low: float, high: float, place: Place, x_name: str, y_name: str) -> list[str]:
    """Grid lines with numbers, and what the axes mean."""
    parts = []
    for y in np.linspace(low, high, 5):
        left, at = place(x_low, y)
        parts.append(f"<line x1='{left:.1f}' x2='{left + WIDE:.1f}' y1='{at:.1f}' y2='{at:.1f}' stroke='#dddddd'/>")
        parts.append(label(left - 6, at + 4, f"{y:.3g}", anchor="end", fill=PALE))
    parts += [
        label(place(x, low)[0], 34 + HIGH + 18, f"{x:.3g}", anchor="middle", fill=PALE)
        for x in np.linspace(x_low, x_high, 5)
    ]
    parts.append(label(MARGIN + WIDE / 2, 34 + HIGH + 40, x_name, anchor="middle"))
    return [*parts, label(14, 34 + HIGH / 2, y_name, anchor="middle", turn=-90)]


def drawn_line(name: str, line: Sequence[tuple[float, float]], place: Place, colour: str) -> list[str]:
    """A line, its dots, and its name at its end."""
    spots = [place(x, y) for x, y in line]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    parts = [f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>"]
    for (x, y), (at_x, at_y) in zip(line, spots, strict=True):
        told = title(f"{name}: {y:.4g} at {x:.4g}")
        parts.append(f"<circle cx='{at_x:.1f}' cy='{at_y:.1f}' r='3.5' fill='{colour}'>{told}</circle>")
    return [*parts, label(spots[-1][0] + 8, spots[-1][1] + 4, name, fill=colour)]


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
