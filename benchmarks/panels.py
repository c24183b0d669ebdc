"""Cost over the optimum against something else, a panel a question, as plain SVG. Both axes are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 34, 44
# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
DASHES = ("none", "6 3", "2 3", "8 3 2 3")
LEVELS = (0.0, 0.001, 0.01, 0.1, 1.0, 10.0)
"""Ticks of the cost over the optimum. The lowest stands for everything below the next."""


@dataclass(frozen=True)
class Panel:
    title: str
    x: Sequence[float]
    x_name: str
    x_ticks: Sequence[float]
    lines: dict[str, list[float]]  # by name: cost over the optimum at each x, infinite where there is no plan


def draw(panels: Sequence[Panel]) -> str:
    width = WIDTH * len(panels)
    legend = min(130, (width - LEFT) // max(len(panels[0].lines), 1))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + 24}" role="img" '
        f'aria-label="Cost over the optimum against {escape(panels[0].x_name)}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{HEIGHT + 24}" fill="white"/>',
    ]
    for i, panel in enumerate(panels):
        parts.append(f'<g transform="translate({WIDTH * i} 0)">{"".join(_panel(panel))}</g>')
    for i, name in enumerate(panels[0].lines):
        x = LEFT + legend * i
        parts.append(f'<path d="M{x} {HEIGHT + 8}h26" {_stroke(i)}/>')
        parts.append(f'<text x="{x + 32}" y="{HEIGHT + 12}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel) -> list[str]:
    low, high = math.log10(min(*panel.x, *panel.x_ticks[:1])), math.log10(max(*panel.x, *panel.x_ticks[-1:]))

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(x) - low) / (high - low)

    def down(over: float) -> float:
        bottom, top = math.log10(LEVELS[1]) - 1, math.log10(LEVELS[-1])
        level = math.log10(max(over, 10**bottom))
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (min(level, top) - bottom) / (top - bottom)

    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">{escape(panel.title)}</text>']
    for level in LEVELS:
        y = down(level)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">+{level * 100:g} %</text>')
    for tick in panel.x_ticks:
        parts.append(f'<text x="{across(tick):.1f}" y="{HEIGHT - 28}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 12}" text-anchor="end">{escape(panel.x_name)}</text>')
    for i, (name, overs) in enumerate(panel.lines.items()):
        places = [(across(x), down(over), over) for x, over in zip(panel.x, overs, strict=True)]
        parts.append(f'<path d="{_path(places)}" fill="none" {_stroke(i)}/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[i % len(COLOURS)]}">'
            f"<title>{escape(name)}: +{over * 100:.2f} %</title></circle>"
            for x, y, over in places
            if math.isfinite(over)
        ]
    return parts


def _path(places: Sequence[tuple[float, float, float]]) -> str:
    """Broken where there is no plan."""
    path, pen_down = "", False
    for x, y, over in places:
        if math.isfinite(over):
            path += f"{'L' if pen_down else 'M'}{x:.1f} {y:.1f}"
        pen_down = math.isfinite(over)
    return path


def _stroke(i: int) -> str:
    return f'stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2" stroke-dasharray="{DASHES[i % len(DASHES)]}"'
