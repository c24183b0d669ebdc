"""Line charts as inline SVG: no script, colours from the page's style sheet, every point a tooltip.

value
 0.80 |- - - - - - - - - - reference     x: samples, or what x_name says    y: ticks at 1, 2 or 5 times a power of ten
 0.75 |        ____----o                 gaps where a value is null
 0.70 |___/----                          more points than MAX_POINTS are averaged in groups of neighbours
      +------------------ samples
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise

from heterps.report.figures import short

WIDTH, HEIGHT = 440, 206
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 8, 38
MAX_POINTS = 120
TINY = 1e-300
"""Differences below this have no tick that a float could hold."""
LEAST_SPAN = 1e-6

Point = tuple[float, float | None]


@dataclass(frozen=True)
class Chart:
    """A series over samples, or over `x_name`. `show` writes a value with its unit; `reference` is a level to compare
    it with, `mark` a place on the other axis. `steps`: a value holds from the point before up to its own.
    """

    title: str
    points: Sequence[Point]
    show: Callable[[float | None], str]
    tick: Callable[[float], str] | None = None  # writes a label of the value axis
    from_zero: bool = False
    reference: float | None = None
    reference_name: str = ""
    x_name: str = "samples"
    x_from: float = 0.0
    steps: bool = False
    mark: float | None = None
    mark_name: str = ""

    @property
    def known(self) -> list[tuple[float, float]]:
        return [(x, y) for x, y in self.points if y is not None]

    @property
    def last(self) -> float | None:
        return self.known[-1][1] if self.known else None


def draw(chart: Chart) -> str:
    """The chart as a `<figure>`: its name, the reference or the mark, the last value, and the SVG."""
    reference = f"{chart.reference_name} {chart.show(chart.reference)}" if chart.reference is not None else ""
    if chart.mark is not None:
        reference = f"{chart.mark:,.0f} {chart.x_name} {chart.mark_name}"
    return (
        f"<figure><figcaption>{escape(chart.title)}<span>{escape(reference)}</span>"
        f"<strong>{escape(chart.show(chart.last))}</strong></figcaption>{draw_svg(chart)}</figure>"
    )


def draw_svg(chart: Chart, style: str = "") -> str:
    """The SVG alone; `style` is put inside it, for a file of its own."""
    if not chart.known:
        return '<p class="empty">No values were recorded.</p>'
    places = [x for x, _ in chart.points] + ([chart.mark] if chart.mark is not None else [])
    start, end = chart.x_from, max(max(places), chart.x_from * (1 + LEAST_SPAN)) or 1
    low, high, ticks = _value_axis(chart)

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (x - start) / (end - start)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - low) / (high - low)

    label = escape(f"{chart.title}: {chart.show(chart.last)} at {chart.known[-1][0]:,.0f} {chart.x_name}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">',
        style,
        *(_level(down(tick), text) for tick, text in zip(ticks, _labels(chart, ticks), strict=True)),
        *(_position(across(tick), short(tick)) for tick in make_ticks(start, end, 4) if start <= tick <= end),
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(chart.x_name)}</text>',
        _line("reference", down(chart.reference)) if chart.reference is not None else "",
        _upright(across(chart.mark), chart.mark_name) if chart.mark is not None else "",
        *_series(chart, across, down),
        "</svg>",
    ]
    return "".join(parts)


def _value_axis(chart: Chart) -> tuple[float, float, list[float]]:
    """Lowest and highest value shown, and the ticks between them; everything drawn lies inside."""
    values = [y for _, y in chart.known]
    values += [chart.reference] if chart.reference is not None else []
    values += [0.0] if chart.from_zero else []
    low, high = min(values), max(values)
    if high - low <= max(1e-6 * max(abs(low), abs(high)), TINY):  # a level line: give it room on both sides
        room = max(abs(high) * 0.1, TINY) if abs(high) > TINY else 1.0
        low, high = (low if chart.from_zero else low - room), high + room
    ticks = make_ticks(low, high, 4)
    return ticks[0], ticks[-1], ticks


def make_ticks(low: float, high: float, wanted: int) -> list[float]:
    """About `wanted` steps of 1, 2 or 5 times a power of ten that cover low to high."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, last + 1)]


def _thin(points: Sequence[Point]) -> list[Point]:
    """About MAX_POINTS at most, each the mean of its neighbours at the place of the last of them; the end as it is."""
    group = math.ceil(len(points) / MAX_POINTS)
    if group == 1:
        return list(points)
    thinned: list[Point] = []
    for start in range(0, len(points) - 1, group):
        some = points[start : min(start + group, len(points) - 1)]
        values = [y for _, y in some if y is not None]
        thinned.append((some[-1][0], sum(values) / len(values) if values else None))
    return [*thinned, points[-1]]


def _series(chart: Chart, across: Callable[[float], float], down: Callable[[float], float]) -> list[str]:
    parts, dots = [], []
    points = _thin(chart.points)
    for is_known, run in groupby(points, lambda point: point[1] is not None):
        places = [(across(x), down(y), x, y) for x, y in run if y is not None]
        if is_known and len(places) > 1:
            corners = [(x, y) for x, y, _, _ in places]
            corners = _stairs(corners) if chart.steps else corners
            parts.append(f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in corners)}"/>')
        for x, y, samples, value in places:
            title = escape(f"{chart.show(value)} at {samples:,.0f} {chart.x_name}")
            alone = " alone" if len(places) == 1 or chart.steps else ""
            dots.append(f'<circle class="point{alone}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{title}</title></circle>')
    samples, value = chart.known[-1]
    last = f'<circle class="last" cx="{across(samples):.1f}" cy="{down(value):.1f}" r="4"/>'
    return [*parts, last, *dots]


def _stairs(corners: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """With a corner between each two: up first, then along."""
    between = [(a[0], b[1]) for a, b in pairwise(corners)]
    return [corners[0], *(corner for pair in zip(between, corners[1:], strict=True) for corner in pair)]


def _labels(chart: Chart, ticks: list[float]) -> list[str]:
    """The ticks as text, with equally many digits after the point."""
    if chart.tick is not None:
        return [chart.tick(tick) for tick in ticks]
    if max(map(abs, ticks)) >= 1000:
        return [short(tick) for tick in ticks]
    digits = max(len(short(tick).partition(".")[2]) for tick in ticks)
    return [f"{tick:.{digits}f}" for tick in ticks]


def _level(y: float, text: str) -> str:
    return _line("grid", y) + f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'


def _line(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _upright(x: float, name: str) -> str:
    is_left = x < WIDTH / 2
    return (
        f'<line class="reference" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text x="{x + (5 if is_left else -5):.1f}" y="{TOP + 10}" text-anchor="{"start" if is_left else "end"}">'
        f"{escape(name)}</text>"
    )


def _position(x: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{HEIGHT - 20}" text-anchor="middle">{escape(text)}</text>'
