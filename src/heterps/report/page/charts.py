"""Charts as inline SVG: no script, colours from style.css, a tooltip on every point and bar, readable without colours.

value
 0.80 |- - - - - - - - - - reference     Panel           maps values to pixels; draws the grid and both axes
 0.75 |        ____----o                 Chart           one series, with gaps where a value is None
 0.70 |___/----                          draw_lines      several series, each with its own colour, dash and mark
      +------------------ samples        draw_shares     stacked shares of a stage's time, one bar per interval
                                         draw_histogram  one bar per value, or per range of values
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from markupsafe import Markup

from heterps.report.page.panel import (
    EMPTY,
    WIDE_PANEL,
    Panel,
    corners,
    figure,
    legend,
    place_ticks,
    tag,
    tick_labels,
    value_ticks,
)
from heterps.report.stage_figures import DOINGS, percent

MAX_POINTS = 120
"""Largest number of points or bars in a small chart: more are averaged in groups of neighbours."""

Point = tuple[float, float | None]


@dataclass(frozen=True)
class Chart:
    """One series over samples, or over `x_name`, with gaps where a value is None."""

    title: str
    points: Sequence[Point]
    show: Callable[[float | None], str]
    """Writes a value with its unit."""
    tick: Callable[[float], str] | None = None
    """Writes a label of the value axis; None: a plain number."""
    from_zero: bool = False
    reference: float | None = None
    """A value to compare the series with, drawn as a horizontal line."""
    reference_name: str = ""
    x_name: str = "samples"
    x_from: float | None = 0.0
    """Where the x axis begins; None: where its first label does, at or before the first place."""
    steps: bool = False
    """Whether a value holds from the point before up to its own, instead of only at its own."""
    mark: float | None = None
    """A place on the x axis, drawn as a vertical line; told at the left edge where it is far from all others."""
    mark_name: str = ""
    is_wide: bool = False
    """Whether it is drawn as wide as a page, instead of beside others."""
    spots: Sequence[tuple[float, float, str]] = ()
    """Points beside the series, (x, y, name), each with a mark of its own and its name in a legend."""

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if y is not None]

    @property
    def last(self) -> float | None:
        """The last value that is known."""
        return self.known[-1][1] if self.known else None


def draw(chart: Chart) -> Markup:
    """The chart as a `<figure>`: its title, the reference or the mark, the last value, and the SVG."""
    note = f"{chart.reference_name} {chart.show(chart.reference)}" if chart.reference is not None else ""
    if chart.mark is not None:
        note = f"{chart.mark:,.0f} {chart.x_name} {chart.mark_name}"
    keys = [legend((_spot_sample(i), name) for i, (_, _, name) in enumerate(chart.spots))] if chart.spots else []
    return figure(chart.title, draw_svg(chart), *keys, note=note, value="" if chart.spots else chart.show(chart.last))


def draw_svg(chart: Chart, style: str = "") -> Markup:
    """The SVG alone; `style` is put inside it, for a file of its own."""
    if not chart.known:
        return EMPTY
    values = [y for _, y in chart.known] + [y for _, y, _ in chart.spots]
    values += [chart.reference] if chart.reference is not None else []
    ticks = value_ticks(values, 4, from_zero=chart.from_zero)
    places = [x for x, _ in chart.points] + [x for x, _, _ in chart.spots]
    positions = place_ticks(places, chart.mark) if chart.x_from is None else [chart.x_from, _end(chart, places)]
    size = WIDE_PANEL if chart.is_wide else ()
    panel = Panel((positions[0], positions[-1]), (ticks[0], ticks[-1]), *size)
    return panel.svg(
        f"{chart.title}: {chart.show(chart.last)} at {chart.known[-1][0]:,.0f} {chart.x_name}",
        *panel.levels(ticks, [chart.tick(tick) for tick in ticks] if chart.tick else tick_labels(ticks)),
        *panel.positions(chart.x_name, ticks=positions if chart.x_from is None else None),
        *([panel.level("reference", chart.reference)] if chart.reference is not None else []),
        *([panel.mark(chart.mark, chart.mark_name)] if chart.mark is not None else []),
        *_series(panel, chart),
        *_spots(panel, chart),
        style=style,
    )


def _end(chart: Chart, places: Sequence[float]) -> float:
    return max(*places, chart.x_from or 0.0, chart.mark or 0.0) or 1.0


def _series(panel: Panel, chart: Chart) -> list[Markup]:
    lines, dots = [], []
    for is_known, run in groupby(thin_points(chart.points), lambda point: point[1] is not None):
        places = [(panel.across(x), panel.down(y), x, y) for x, y in run if y is not None]
        if is_known and len(places) > 1:
            path = [(x, y) for x, y, _, _ in places]
            lines.append(tag("polyline", class_="line", points=corners(stairs(path) if chart.steps else path)))
        kind = "point alone" if len(places) == 1 or chart.steps else "point"
        for cx, cy, x, y in places:
            title = tag("title", f"{chart.show(y)} at {x:,.0f} {chart.x_name}")
            dots.append(tag("circle", title, class_=kind, cx=cx, cy=cy, r=4))
    x, y = chart.known[-1]
    return [*lines, tag("circle", class_="last", cx=panel.across(x), cy=panel.down(y), r=4), *dots]


def _spots(panel: Panel, chart: Chart) -> Iterator[Markup]:
    for i, (x, y, name) in enumerate(chart.spots):
        title = tag("title", f"{name}: {chart.show(y)} at {x:,.0f} {chart.x_name}")
        place = f"translate({panel.across(x):.1f} {panel.down(y):.1f}) scale(1.4)"
        yield tag("path", title, class_=f"mark series-{_spot_style(i)}", transform=place, d=MARKS[_spot_style(i)])


def _spot_sample(i: int) -> Markup:
    mark = tag("path", class_="mark", transform="translate(7 7)", d=MARKS[_spot_style(i)])
    return tag("svg", mark, viewBox="0 0 14 14", class_=f"series-{_spot_style(i)}")


def _spot_style(i: int) -> int:
    """The number of the colour and mark of a spot; the first ones are left to the series."""
    return (i + 1) % len(MARKS)


def thin_points(points: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """Thin to about `most` points: means of neighbours, at the place of the last of them; the end is kept."""
    group = math.ceil(len(points) / most)
    if group <= 1:
        return list(points)
    thinned: list[Point] = []
    for start in range(0, len(points) - 1, group):
        some = points[start : min(start + group, len(points) - 1)]
        values = [y for _, y in some if y is not None]
        thinned.append((some[-1][0], sum(values) / len(values) if values else None))
    return [*thinned, points[-1]]


def stairs(path: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The path with a corner between each two places: up first, then along."""
    return [path[0], *(corner for a, b in pairwise(path) for corner in ((a[0], b[1]), b))]


# --- several series --------------------------------------------------------------------------------------------------

DASHES = ("none", "9 4", "2 4", "9 4 2 4", "16 4", "5 3", "16 4 2 4", "2 7")
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
"""About how many points of a series carry its mark; all of them have a tooltip."""
EARLY = 0.15
"""Values in this first part of each series do not widen the axis: an untrained model would flatten the rest."""


@dataclass(frozen=True)
class Series:
    """A named series whose points are (x, y, tooltip), in the order of x."""

    name: str
    points: Sequence[tuple[float, float, str]]


def draw_lines(
    title: str,
    series: Sequence[Series],
    *,
    x_name: str,
    level: float | None = None,
    level_name: str = "",
    is_small: bool = False,
) -> Markup:
    """Several series in one `<figure>` with a legend; `level` is a value to compare them with.

    One that `is_small` has the size of a chart beside others, and can be read on a phone.
    """
    if not any(one.points for one in series):
        return figure(title, EMPTY)
    values = [y for one in series for _, y, _ in one.points[int(len(one.points) * EARLY) :]]
    ticks = value_ticks(values + ([level] if level is not None else []), 5)
    end = max(x for one in series for x, _, _ in one.points) or 1.0
    ranges = (0.0, end), (ticks[0], ticks[-1])
    panel = Panel(*ranges) if is_small else Panel(*ranges, 960, 400, 62, 16, 12, 40)
    clip = "clip-" + "".join(letter for letter in title.lower() if letter.isalnum())
    width, height = panel.width - panel.left - panel.right + 8, panel.height - panel.top - panel.bottom + 12
    drawing = panel.svg(
        f"{title}: {len(series)} lines over {x_name}",
        tag("clipPath", tag("rect", x=panel.left, y=panel.top - 6, width=width, height=height), id=clip),
        *panel.levels(ticks, tick_labels(ticks)),
        *panel.positions(x_name, 4 if is_small else 8),
        *([panel.level("reference", level)] if level is not None else []),
        tag("g", *(_marked_line(panel, i, one) for i, one in enumerate(series)), clip_path=f"url(#{clip})"),
    )
    keys = legend((_line_sample(i), one.name) for i, one in enumerate(series))
    return figure(title, drawing, keys, note=level_name if level is not None else "")


def _marked_line(panel: Panel, i: int, series: Series) -> Markup:
    places = [(panel.across(x), panel.down(y), told) for x, y, told in series.points]
    step = max(1, -(-len(places) // MARKED))
    return tag(
        "g",
        tag("polyline", class_="series", stroke_dasharray=_dash(i), points=corners((x, y) for x, y, _ in places)),
        *(_series_mark(i, f"{x:.1f} {y:.1f}") for x, y, _ in places[i % step :: step]),
        *(
            tag("circle", tag("title", f"{series.name}: {told}"), class_="spot", cx=x, cy=y, r=6)
            for x, y, told in places
        ),
        class_=f"series-{i % len(MARKS)}",
    )


def _line_sample(i: int) -> Markup:
    line = tag("path", class_="series", stroke_dasharray=_dash(i), d="M0 7H46")
    return tag("svg", line, _series_mark(i, "23 7"), viewBox="0 0 46 14", class_=f"series-{i % len(MARKS)}")


def _series_mark(i: int, place: str) -> Markup:
    return tag("path", class_="mark", transform=f"translate({place})", d=MARKS[i % len(MARKS)])


def _dash(i: int) -> str:
    """The dash of series `i`; beyond the number of dashes, marks and dashes meet in other pairs."""
    return DASHES[(i + i // len(DASHES)) % len(DASHES)]


# --- bars ------------------------------------------------------------------------------------------------------------


def bar(kind: str, told: str, x: float, y: float, width: float, height: float) -> Markup:
    """A bar with a tooltip, at a place in pixels."""
    return tag("rect", tag("title", told), class_=kind, x=x, y=y, width=max(width, 0.5), height=height)


@dataclass(frozen=True)
class Span:
    """An interval from sample `start` to `end`, with a share of time for each of DOINGS; None: not known."""

    start: float
    end: float
    shares: tuple[float, ...] | None


def draw_shares(title: str, value: str, spans: Sequence[Span], most: int = MAX_POINTS) -> Markup:
    """Stacked shares of a stage's time as a `<figure>`: one bar per interval, as wide as its samples.

    Neighbours are put together where there are more intervals than `most`.
    """
    if not any(span.shares for span in spans):
        return figure(title, EMPTY, value=value)
    panel = Panel((0.0, spans[-1].end or 1.0))
    levels = (0.0, 0.25, 0.5, 0.75, 1.0)
    drawing = panel.svg(
        f"{title}: shares of {', '.join(DOINGS)} over {panel.x[1]:,.0f} samples",
        *(part for span in thin(spans, most) if span.shares for part in _stack(panel, span, span.shares)),
        *panel.levels(levels, [f"{share:.0%}" for share in levels]),
        *panel.positions("samples"),
    )
    return figure(title, drawing, value=value)


def share_legend() -> Markup:
    """How `draw_shares` draws each of DOINGS."""
    return legend(
        (tag("svg", tag("rect", class_=f"sample share {doing}", width=18, height=12), viewBox="0 0 18 12"), doing)
        for doing in DOINGS
    )


def thin(spans: Sequence[Span], most: int = MAX_POINTS) -> list[Span]:
    """Return at most `most` spans: neighbours become one, with the mean of their shares by samples."""
    size = math.ceil(len(spans) / most)
    if size <= 1:
        return list(spans)
    thinned = []
    for first in range(0, len(spans), size):
        some = spans[first : first + size]
        known = [(span.end - span.start, span.shares) for span in some if span.shares]
        weight = sum(samples for samples, _ in known)
        means = (
            tuple(sum(n * shares[i] for n, shares in known) / weight for i in range(len(DOINGS))) if weight else None
        )
        thinned.append(Span(some[0].start, some[-1].end, means))
    return thinned


def _stack(panel: Panel, span: Span, shares: Sequence[float]) -> Iterator[Markup]:
    left, width, floor = panel.across(span.start), panel.across(span.end) - panel.across(span.start) - 0.5, 0.0
    for doing, share in zip(DOINGS, shares, strict=True):
        told = f"{doing} {percent(share)}, from {span.start:,.0f} to {span.end:,.0f} samples"
        top = panel.down(floor + share)
        yield bar(f"share {doing}", told, left, top, width, panel.down(floor) - top)
        floor += share


def draw_histogram(label: str, counts: dict[int, int], x_name: str, noun: str) -> Markup:
    """How often each value occurs: one bar per value, or one per range of values where there are many.

    Shares are told above bars that are wide enough for them, and in the tooltip of each.
    """
    most_bins, widest, least_told = 40, 40, 36
    size = max(1, -(-(max(counts) + 1) // most_bins))
    bins = [0] * (max(counts) // size + 1)
    for value, count in counts.items():
        bins[value // size] += count
    panel = Panel((0.0, 1.0), (0.0, max(bins)), height=182, left=8, right=8, top=20, bottom=34)
    step, floor = min((panel.width - panel.left - panel.right) / len(bins), widest), panel.height - panel.bottom
    parts = [panel.text(panel.width - panel.right, panel.height - 4, x_name, "end")]
    for i, count in enumerate(bins):
        name, x = f"{i}" if size == 1 else f"{i * size} to {(i + 1) * size - 1}", panel.left + i * step
        top = panel.down(count)
        share = f"{count / sum(bins):.0%}" if count >= sum(bins) / 200 else "<1%"
        parts.append(bar("compute", f"{name}: {count:,} {noun} ({share})", x, top, step, floor - top))
        if count and step >= least_told:
            parts.append(panel.text(x + step / 2, top - 5, share))
        if i % max(1, len(bins) // 8) == 0:
            parts.append(panel.text(x + step / 2, panel.height - 20, f"{i * size}"))
    return panel.svg(label, *parts)
