"""Several lines in one chart as inline SVG: no script, a tooltip on every point, told apart without colours too.

value
 0.95 |- - - - - - - - - - - - - -  target      a line has a colour, a dash and a mark of its own
 0.90 |      __o---o---o                        the legend shows all three
 0.80 |   _o-  ..#...#...#
      +--------------------- x
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from heterps.report.figures import short
from heterps.report.page.charts import make_ticks

WIDTH, HEIGHT = 960, 400
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 12, 40
DASHES = ("", "9 4", "2 4", "9 4 2 4", "16 4", "5 3", "16 4 2 4", "2 7")
COLOURS = 8
MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",  # circle
    "M-3.5 -3.5h7v7h-7z",  # square
    "M0 -4.5L4.5 3.5H-4.5z",  # triangle
    "M0 -5L5 0L0 5L-5 0z",  # diamond
    "M0 4.5L4.5 -3.5H-4.5z",  # triangle upside down
    "M-4 -4L4 4M-4 4L4 -4",  # cross
    "M0 -5V5M-5 0H5",  # plus
    "M-4 0H4",  # bar
)
MARKED = 10
"""About so many points of a line carry its mark; all have a tooltip."""
EARLY = 0.15
"""Values of this first part of each line do not widen the axis: untrained models would flatten all that matters."""
LIGHT = ("#0067a5", "#c04a00", "#00775a", "#9c3f7d", "#5f5300", "#333333", "#2d87c8", "#a33030")
DARK = ("#6cb6ea", "#f2955a", "#4fc9a4", "#e39bc9", "#d3c25c", "#d8d8d8", "#a3d1f5", "#f08c8c")
STYLE = (
    ":root {" + " ".join(f"--s{i}: {colour};" for i, colour in enumerate(LIGHT)) + "}\n"
    "@media (prefers-color-scheme: dark) { :root {"
    + " ".join(f"--s{i}: {colour};" for i, colour in enumerate(DARK))
    + "} }\n"
    + "".join(f".series-{i} {{ --stroke: var(--s{i}); }}\n" for i in range(COLOURS))
    + """svg .series { fill: none; stroke: var(--stroke); stroke-width: 2; stroke-linejoin: round; }
svg .mark { fill: var(--stroke); stroke: var(--stroke); stroke-width: 1.6; }
svg .spot { fill: transparent; } svg .spot:hover { fill: var(--stroke); }
.keys { display: flex; flex-wrap: wrap; gap: .3rem 1.5rem; margin: .6rem 0 0; padding: 0; list-style: none; }
.keys svg { display: inline-block; width: 46px; height: 14px; margin-right: .5em; vertical-align: middle; }
"""
)


@dataclass(frozen=True)
class Line:
    """Points are (x, y, what the tooltip says), by x."""

    name: str
    points: Sequence[tuple[float, float, str]]


def draw_lines(
    title: str, lines: Sequence[Line], *, x_name: str, level: float | None = None, level_name: str = ""
) -> str:
    """The chart as a `<figure>` with a legend; `level` is a value to compare with."""
    drawn = [line for line in lines if line.points]
    if not drawn:
        return f'<figure><figcaption>{escape(title)}</figcaption><p class="empty">No values were recorded.</p></figure>'
    note = f"<span>{escape(level_name)}</span>" if level is not None else ""
    keys = "".join(f"<li>{_key(i)}{escape(line.name)}</li>" for i, line in enumerate(lines))
    return (
        f"<figure><figcaption>{escape(title)}{note}</figcaption>{_draw(title, lines, x_name, level)}"
        f'<ul class="keys">{keys}</ul></figure>'
    )


def _draw(title: str, lines: Sequence[Line], x_name: str, level: float | None) -> str:
    end = max(x for line in lines for x, _, _ in line.points) or 1.0
    low, high = _values(lines, level)
    ticks = make_ticks(low, high, 5)
    low, high = ticks[0], ticks[-1]
    digits = max(len(short(tick).partition(".")[2]) for tick in ticks)

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * x / end

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - low) / (high - low)

    clip = "clip-" + "".join(letter for letter in title.lower() if letter.isalnum())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(f"{title}: {len(lines)} lines over {x_name}")}">',
        f'<clipPath id="{clip}"><rect x="{LEFT}" y="{TOP - 6}" width="{WIDTH - LEFT - RIGHT + 8}" '
        f'height="{HEIGHT - TOP - BOTTOM + 12}"/></clipPath>',
        *(_level(down(tick), f"{tick:.{digits}f}") for tick in ticks),
        *(
            f'<text x="{across(tick):.1f}" y="{HEIGHT - 21}" text-anchor="middle">{short(tick)}</text>'
            for tick in make_ticks(0.0, end, 8)
            if tick <= end
        ),
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(x_name)}</text>',
        f'<line class="reference" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down(level):.1f}" y2="{down(level):.1f}"/>'
        if level is not None
        else "",
        f'<g clip-path="url(#{clip})">',
        *(_series(i, line, across, down) for i, line in enumerate(lines)),
        "</g></svg>",
    ]
    return "".join(parts)


def _values(lines: Sequence[Line], level: float | None) -> tuple[float, float]:
    """Lowest and highest value that the chart shows."""
    shown = [y for line in lines for _, y, _ in line.points[int(len(line.points) * EARLY) :]]
    shown += [level] if level is not None else []
    low, high = min(shown), max(shown)
    room = 0.0 if high - low > 1e-9 * max(abs(high), abs(low), 1e-9) else max(abs(high) * 0.1, 1e-6)
    return low - room, high + room


def _series(i: int, line: Line, across: Callable[[float], float], down: Callable[[float], float]) -> str:
    places = [(across(x), down(y), told) for x, y, told in line.points]
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    step = max(1, -(-len(places) // MARKED))
    marks = "".join(f'<path class="mark" transform="translate({x:.1f} {y:.1f})" d="{MARKS[i % len(MARKS)]}"/>'
                    for x, y, _ in places[i % step :: step])  # fmt: skip
    spots = "".join(
        f'<circle class="spot" cx="{x:.1f}" cy="{y:.1f}" r="6"><title>{escape(f"{line.name}: {told}")}</title></circle>'
        for x, y, told in places
    )
    return (
        f'<g class="series-{i % COLOURS}"><polyline class="series" stroke-dasharray="{_dash(i)}" points="{corners}"/>'
        f"{marks}{spots}</g>"
    )


def _key(i: int) -> str:
    """What a line looks like."""
    return (
        f'<svg viewBox="0 0 46 14" class="series-{i % COLOURS}" aria-hidden="true"><path class="series" '
        f'stroke-dasharray="{_dash(i)}" d="M0 7H46"/><path class="mark" transform="translate(23 7)" '
        f'd="{MARKS[i % len(MARKS)]}"/></svg>'
    )


def _dash(i: int) -> str:
    """Beyond as many lines as there are dashes, marks and dashes meet in other pairs."""
    return DASHES[(i + i // len(DASHES)) % len(DASHES)] or "none"


def _level(y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    )
