"""The leaderboard at a glance: by how many points of value PONN-DR is ahead of every method in every world, as SVG."""

from collections.abc import Mapping
from statistics import mean
from typing import Any

from leaderboard import FEWEST
from peer_space import OURS, STANDING
from peer_worlds import SIMULATED
from ponn.report.drawing import INK, MARK, PALE, label, picture, shade, text_width, title

WIDTH, HEIGHT = 50, 24  # of a cell, in pixels
GAP = 10  # pixels before the methods that need no learning
DARKEST = 40.0  # points; who is further behind is no darker
WHITE_FROM = 0.63  # of the way to the darkest colour, where black and white numbers are equally readable (contrast 3.9)
LEGEND = (
    "points of value that PONN-DR is ahead, the darker the more; red frame: the 95 % interval holds 0; "
    f"in brackets: fewer than {FEWEST} seeds; order: mean over the simulated worlds"
)


def at_a_glance(worlds: Mapping[str, Any]) -> str:
    """Methods x worlds."""
    methods = nearest_first(worlds)
    left = text_width(methods) + 12
    top = text_width(worlds) * 0.75 + 16
    places = [top + HEIGHT * number + GAP * (who in STANDING) for number, who in enumerate(methods)]
    height = (places[-1] if places else top) + HEIGHT + 30
    parts = [label(left + WIDTH * (at + 0.4), top - 6, name, turn=-50) for at, name in enumerate(worlds)]
    for who, y in zip(methods, places, strict=True):
        parts.append(label(left - 8, y + 16, who, anchor="end"))
        for at, (name, world) in enumerate(worlds.items()):
            parts += cell(name, who, world["methods"].get(who), left + WIDTH * at, y)
    width = max(left + WIDTH * len(worlds) + text_width(worlds) * 0.6, text_width([LEGEND]))
    parts.append(label(4, height - 8, LEGEND, fill=PALE))
    return picture(width, height, "By how many points PONN-DR is ahead of every method in every world", parts)


def nearest_first(worlds: Mapping[str, Any]) -> list[str]:
    """All methods but PONN-DR, by its mean gain over the simulated worlds; what needs no learning comes last."""
    gains: dict[str, list[float]] = {}
    for name, world in worlds.items():
        for who, one in world["methods"].items():
            gains.setdefault(who, [])
            if name in SIMULATED and one["gain in value"]:
                gains[who].append(one["gain in value"]["mean"])
    others = [who for who in gains if who != OURS]
    return sorted(others, key=lambda who: (who in STANDING, mean(gains[who]) if gains[who] else DARKEST))


def cell(world: str, who: str, one: Mapping[str, Any] | None, x: float, y: float) -> list[str]:
    """A method's distance in a world; nothing where it was not run or always failed."""
    gain = one and one["gain in value"]
    if not gain:
        return []
    share = (max(gain["mean"], 0.0) / DARKEST) ** 0.5  # the root keeps small differences apart
    width = gain["half_width"]
    noise = width is not None and abs(gain["mean"]) <= width
    few = gain["seeds"] < FEWEST
    told = f"{world}, {who}: {gain['mean']:+.2f}" + ("" if width is None else f" ± {width:.2f}")
    told += f", {gain['seeds']} seed{'s' * (gain['seeds'] != 1)}"
    place = f"x='{x + 1:.1f}' y='{y + 1:.1f}' width='{WIDTH - 3}' height='{HEIGHT - 3}'"
    frame = f" stroke='{MARK}' stroke-width='2'" if noise else ""
    shown, ink = f"{gain['mean']:z.1f}", "white" if share > WHITE_FROM else INK
    return [
        f"<rect {place} fill='{shade(share)}'{frame}>{title(told)}</rect>",
        label(x + WIDTH / 2 - 1, y + 16, f"({shown})" if few else shown, anchor="middle", fill=ink),
    ]
