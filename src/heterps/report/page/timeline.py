"""What each worker did when, one row of bars per worker: as a picture alone, and as a figure that can be zoomed.

w0  |== step ==|wait|== step ==|         draw_timeline       an SVG for a file of its own
w1  |==== step ====|== step ==|          zoomable_timeline   a figure of a page, 1, 4 or 16 times as wide as the page
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup

from heterps.report.figures import batch_time, plural, short
from heterps.report.page.charts import bar
from heterps.report.page.panel import Panel, figure, legend, make_ticks, tag
from heterps.report.terminal.timeline import WORDS, Timeline, TimelineRow, make_rows
from heterps.sim.result import SimResult

ROW, GAP, AXIS = 18, 5, 22
"""Height of a row of a timeline, of the gap below it, and of the axis, in pixels."""
MOST_ROWS, MOST_BARS, NUM_CELLS = 48, 6000, 290
"""A timeline with more rows or bars than this is drawn in rows of cells that show what took most of their time."""
EDGE = 0.07
"""Share of the width at either end in which the label of a tick stands beside it: half a label on a phone."""
ZOOMS = (1, 4, 16)
"""How many times as wide as the page a timeline can be made."""


def draw_timeline(result: SimResult, style: str = "") -> Markup:
    """The SVG of the window that `result` kept segments for; `style` is put inside it, for a file of its own."""
    first, last = result.window or (0.0, result.end_s or 1.0)
    rows = list(_timeline_rows(result, first, last, WORDS, MOST_BARS))
    panel = Panel((first, last), width=960, height=68 + len(rows) * (ROW + GAP), left=74, top=34, bottom=34)
    parts = []
    for i, (kind, word) in enumerate(_words_of(rows, WORDS).items()):
        parts.append(tag("rect", class_=kind, x=panel.left + 110 * i, y=6, width=18, height=12))
        parts.append(panel.text(panel.left + 110 * i + 24, 16, word, "start"))
    parts += panel.positions("seconds", 8, has_lines=True)
    for i, (name, bars) in enumerate(rows):
        y = panel.top + i * (ROW + GAP)
        parts.append(panel.text(panel.left - 8, y + ROW - 5, name, "end"))
        for start, end, kind, told, *_ in bars:
            parts.append(bar(kind, told, panel.across(start), y, panel.across(end) - panel.across(start), ROW))
    label = f"{result.policy}: what {plural(len(result.workers), 'worker')} did from {first:g} to {last:g} s"
    return panel.svg(label, *parts, style=style)


def zoomable_timeline(
    title: str,
    result: Timeline,
    name: str,
    *,
    words: Mapping[str, str] = WORDS,
    most_bars: int = MOST_BARS,
    is_stacked: bool = False,
) -> Markup:
    """A `<figure>` of the window of `result` that can be made wider, without a script: only times are stretched.

    name        of its buttons, its own on the page
    words       what a worker does, by the kinds of segments
    most_bars   about how many bars are drawn; of more segments, cells that show what took most of their time
    is_stacked  whether such cells show the shares of all that was done instead
    """
    first, last = result.window or (0.0, result.end_s or 1.0)
    rows = list(_timeline_rows(result, first, last, words, most_bars, is_stacked=is_stacked))
    height = len(rows) * (ROW + GAP) + AXIS
    parts = list(_axis(first, last, height))
    for i, (_, bars) in enumerate(rows):
        for start, end, kind, told, low, high in bars:
            x, width = (100 * seconds / (last - first) for seconds in (start - first, end - start))
            y, tall = i * (ROW + GAP) + ROW * (1 - high), ROW * (high - low)
            place = {"x": f"{x:.3f}%", "y": f"{y:.4g}", "width": f"{max(width, 0.02):.3f}%", "height": f"{tall:.3g}"}
            parts.append(tag("rect", tag("title", told), class_=kind, **place))
    label = f"{title}: what {plural(len(result.workers), 'worker')} did from {first:.4g} to {last:.4g} s"
    drawing = tag("svg", *parts, style=f"height:{height}px", role="img", aria_label=label)
    names = tag("ul", *(tag("li", name) for name, _ in rows), aria_hidden="true")
    keys = legend(
        (tag("svg", tag("rect", class_=f"sample {kind}", width=18, height=12), viewBox="0 0 18 12"), word)
        for kind, word in _words_of(rows, words).items()
    )
    scroll = tag("div", drawing, class_="scroll", tabindex="0", role="group", aria_label=f"{title}, scrollable")
    rows_of_bars = tag("div", names, scroll, class_="rows")
    return figure(title, tag("div", *_zoom_buttons(name), rows_of_bars, class_="timeline"), keys)


def _zoom_buttons(name: str) -> Iterator[Markup]:
    """A radio button for each of ZOOMS: style.css makes the drawing after it as wide as the checked one says."""
    for zoom in ZOOMS:
        checked = {"checked": "checked"} if zoom == 1 else {}
        fields = {"type": "radio", "name": name, "id": f"{name}-{zoom}", "class_": f"zoom-{zoom}"}
        yield tag("input", **fields, **checked)
        yield tag("label", f"{zoom}×", for_=f"{name}-{zoom}")


def _axis(first: float, last: float, height: int) -> Iterator[Markup]:
    """Ticks of the time, whose places are shares of the width; the finer ones are shown where it is zoomed."""
    levels = {"": make_ticks(first, last, 5), " fine": make_ticks(first, last, 20)}
    for tick in sorted({round(tick, 9) for one in (*levels.values(), make_ticks(first, last, 40)) for tick in one}):
        share = (tick - first) / (last - first)
        if 0 <= share <= 1:
            x, anchor = f"{share:.3%}", "start" if share < EDGE else "end" if share > 1 - EDGE else "middle"
            known = (kind for kind, ticks in levels.items() if any(math.isclose(tick, t, abs_tol=1e-8) for t in ticks))
            kind = next(known, " finest")
            yield tag("line", class_=f"grid{kind}", x1=x, x2=x, y1=0, y2=height - AXIS)
            yield tag("text", f"{short(tick)} s", class_=f"tick{kind}", x=x, y=height - 4, text_anchor=anchor)


class TimelineBar(NamedTuple):
    """A bar of a row: from when to when in seconds, and between which parts of the row's height, 0 the lowest."""

    start: float
    end: float
    kind: str
    told: str
    low: float = 0.0
    high: float = 1.0


def _words_of(rows: Sequence[tuple[str, list[TimelineBar]]], words: Mapping[str, str]) -> dict[str, str]:
    """The words of what is drawn: a legend names nothing that a reader would look for in vain."""
    drawn = {one.kind for _, bars in rows for one in bars}
    return {kind: word for kind, word in words.items() if kind in drawn}


def _timeline_rows(
    result: Timeline,
    first: float,
    last: float,
    words: Mapping[str, str],
    most_bars: int,
    *,
    is_stacked: bool = False,
) -> Iterator[tuple[str, list[TimelineBar]]]:
    """One row per worker with its segments; where there are many workers or segments, rows of cells."""
    if len(result.workers) > MOST_ROWS or sum(len(worker.segments) for worker in result.workers) > most_bars:
        num_bars = most_bars // len(words) if is_stacked else most_bars
        num_cells = min(NUM_CELLS, max(20, num_bars // min(len(result.workers), MOST_ROWS)))
        make_bars = _stacked_bars if is_stacked else _cell_bars
        yield from ((row.name, make_bars(row, first, last, words)) for row in make_rows(result, num_cells, MOST_ROWS))
        return
    for worker in result.workers:
        bars = []
        for start, end, kind in worker.segments:
            is_long = end - start >= 0.1
            moments = f"from {start:,.2f} to {end:,.2f} s" if is_long else f"at {start:,.4f} s"
            lasted = f"{end - start:,.2f} s" if is_long else batch_time(end - start)
            told = f"{worker.name} {words[kind]} {moments} ({lasted})"
            bars.append(TimelineBar(max(start, first), min(end, last), kind, told))
        yield worker.name, bars


def _cell_bars(row: TimelineRow, first: float, last: float, words: Mapping[str, str]) -> list[TimelineBar]:
    """Neighbouring cells of one kind as one bar."""
    cell_s, bars, end = (last - first) / len(row.kinds), [], first
    for kind, cells in groupby(row.kinds):
        start, end = end, end + cell_s * len(list(cells))
        if kind:
            told = f"{row.name}: mostly {words[kind]} from {start:,.2f} to {end:,.2f} s"
            bars.append(TimelineBar(start, min(end, last), kind, told))
    return bars


def _stacked_bars(row: TimelineRow, first: float, last: float, words: Mapping[str, str]) -> list[TimelineBar]:
    """A stack for each cell, whose parts are as tall as the shares of what was done in it."""
    cell_s, bars = (last - first) / len(row.spent), []
    for number, spent in enumerate(row.spent):
        whole_s, high = sum(spent.values()), 0.0
        for kind in words:
            low, high = high, high + (spent.get(kind, 0.0) / whole_s if whole_s else 0.0)
            if high - low > 0.005:  # others cannot be seen
                start = first + number * cell_s
                told = f"{row.name}, {start:,.2f} s: {words[kind]} {high - low:.0%}"
                bars.append(TimelineBar(start, start + cell_s, f"share {kind}", told, low, high))
    return bars
