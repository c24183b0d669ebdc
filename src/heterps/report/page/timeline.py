"""What each worker did when, one row of bars per worker: as a picture alone, and as a figure that can be zoomed.

w0  |== step ==|wait|== step ==|         draw_timeline       an SVG for a file of its own
w1  |==== step ====|== step ==|          zoomable_timeline   a figure of a page, 1, 4 or 16 times as wide as the page
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby

from markupsafe import Markup

from heterps.report.figures import plural, short
from heterps.report.page.charts import bar
from heterps.report.page.panel import Panel, figure, legend, make_ticks, tag
from heterps.report.terminal.timeline import WORDS, TimelineRow, make_rows
from heterps.sim.result import SimResult

ROW, GAP, AXIS = 18, 5, 22
"""Height of a row of a timeline, of the gap below it, and of the axis, in pixels."""
MOST_ROWS, MOST_BARS, NUM_CELLS = 48, 6000, 290
"""A timeline with more rows or bars than this is drawn in rows of cells that show what took most of their time."""
ZOOMS = (1, 4, 16)
"""How many times as wide as the page a timeline can be made."""


def draw_timeline(result: SimResult, style: str = "") -> Markup:
    """The SVG of the window that `result` kept segments for; `style` is put inside it, for a file of its own."""
    first, last = result.window or (0.0, result.end_s or 1.0)
    rows = list(_timeline_rows(result, first, last, WORDS, MOST_BARS))
    panel = Panel((first, last), width=960, height=68 + len(rows) * (ROW + GAP), left=74, top=34, bottom=34)
    parts = []
    for i, (kind, word) in enumerate(WORDS.items()):
        parts.append(tag("rect", class_=kind, x=panel.left + 110 * i, y=6, width=18, height=12))
        parts.append(panel.text(panel.left + 110 * i + 24, 16, word, "start"))
    parts += panel.positions("seconds", 8, has_lines=True)
    for i, (name, bars) in enumerate(rows):
        y = panel.top + i * (ROW + GAP)
        parts.append(panel.text(panel.left - 8, y + ROW - 5, name, "end"))
        for start, end, kind, told in bars:
            parts.append(bar(kind, told, panel.across(start), y, panel.across(end) - panel.across(start), ROW))
    label = f"{result.policy}: what {plural(len(result.workers), 'worker')} did from {first:g} to {last:g} s"
    return panel.svg(label, *parts, style=style)


def zoomable_timeline(
    title: str, result: SimResult, name: str, *, words: Mapping[str, str] = WORDS, most_bars: int = MOST_BARS
) -> Markup:
    """A `<figure>` of the window of `result` that can be made wider, without a script: only times are stretched.

    name       of its buttons, its own on the page
    words      what a worker does, by the kinds of segments
    most_bars  about how many bars are drawn; of more segments, cells that show what took most of their time
    """
    first, last = result.window or (0.0, result.end_s or 1.0)
    rows = list(_timeline_rows(result, first, last, words, most_bars))
    height = len(rows) * (ROW + GAP) + AXIS
    parts = list(_axis(first, last, height))
    for i, (_, bars) in enumerate(rows):
        for start, end, kind, told in bars:
            x, width = (100 * seconds / (last - first) for seconds in (start - first, end - start))
            place = {"x": f"{x:.3f}%", "y": i * (ROW + GAP), "width": f"{max(width, 0.02):.3f}%", "height": ROW}
            parts.append(tag("rect", tag("title", told), class_=kind, **place))
    label = f"{title}: what {plural(len(result.workers), 'worker')} did from {first:.4g} to {last:.4g} s"
    drawing = tag("svg", *parts, style=f"height:{height}px", role="img", aria_label=label)
    names = tag("ul", *(tag("li", name) for name, _ in rows), aria_hidden="true")
    samples = {kind: tag("rect", class_=f"sample {kind}", width=18, height=12) for kind in words}
    keys = legend((tag("svg", sample, viewBox="0 0 18 12"), words[kind]) for kind, sample in samples.items())
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
    coarse = make_ticks(first, last, 5)
    for tick in make_ticks(first, last, 40):
        share = (tick - first) / (last - first)
        if 0 <= share <= 1:
            x, anchor = f"{share:.3%}", "start" if share < 0.03 else "end" if share > 0.97 else "middle"
            kind = "" if any(math.isclose(tick, one, abs_tol=1e-9) for one in coarse) else " fine"
            yield tag("line", class_=f"grid{kind}", x1=x, x2=x, y1=0, y2=height - AXIS)
            yield tag("text", f"{short(tick)} s", class_=f"tick{kind}", x=x, y=height - 4, text_anchor=anchor)


TimelineBar = tuple[float, float, str, str]  # start and end in seconds, what the worker did, tooltip


def _timeline_rows(
    result: SimResult, first: float, last: float, words: Mapping[str, str], most_bars: int
) -> Iterator[tuple[str, list[TimelineBar]]]:
    """One row per worker with its segments; where there are many workers or segments, rows of cells."""
    if len(result.workers) > MOST_ROWS or sum(len(worker.segments) for worker in result.workers) > most_bars:
        num_cells = min(NUM_CELLS, max(20, most_bars // min(len(result.workers), MOST_ROWS)))
        rows = make_rows(result, num_cells, MOST_ROWS)
        yield from ((row.name, _cell_bars(row, first, last, words)) for row in rows)
        return
    for worker in result.workers:
        bars = []
        for start, end, kind in worker.segments:
            told = f"{worker.name} {words[kind]} from {start:,.2f} to {end:,.2f} s ({end - start:,.2f} s)"
            bars.append((max(start, first), min(end, last), kind, told))
        yield worker.name, bars


def _cell_bars(row: TimelineRow, first: float, last: float, words: Mapping[str, str]) -> list[TimelineBar]:
    """Neighbouring cells of one kind as one bar."""
    cell_s, bars, end = (last - first) / len(row.kinds), [], first
    for kind, cells in groupby(row.kinds):
        start, end = end, end + cell_s * len(list(cells))
        if kind:
            told = f"{row.name}: mostly {words[kind]} from {start:,.2f} to {end:,.2f} s"
            bars.append((start, min(end, last), kind, told))
    return bars
