"""What workers did when, as a Gantt chart in SVG: no script, a tooltip on every bar, readable without colours.

w0  |████|████|████|- - - - |████|      compute: filled    push: dark    wait: hollow
w1  |███████████|███████████|████|
    0          4          8      12 s
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from heterps.report.figures import short
from heterps.report.page.charts import make_ticks
from heterps.report.terminal.timeline import Row, make_rows
from heterps.sim.result import COMPUTE, PUSH, WAIT, SimResult

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 960, 74, 14, 34, 34
ROW, GAP = 18, 5
MOST_ROWS, MOST_BARS = 48, 6000
WORDS = {COMPUTE: "computes", PUSH: "pushes", WAIT: "waits"}
STYLE = """
svg .compute { fill: var(--c0); stroke: var(--card); stroke-width: 1; }
svg .push { fill: var(--ink); } svg .wait { fill: var(--card); stroke: var(--soft); stroke-dasharray: 3 3; }
svg rect:hover { opacity: .7; }
"""


def draw_timeline(result: SimResult, style: str = "") -> str:
    """The SVG of the window that `result` kept segments for; `style` is put inside it, for a file of its own."""
    first, last = result.window or (0.0, result.end_s or 1.0)
    rows = list(_rows(result, first, last))
    height = TOP + len(rows) * (ROW + GAP) + BOTTOM
    label = escape(f"{result.policy}: what {len(result.workers)} workers did from {first:g} to {last:g} s")
    axis = [tick for tick in make_ticks(first, last, 8) if first <= tick <= last]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">',
        style,
        *_legend(),
        *(_upright(_across(tick, first, last), short(tick), height) for tick in axis),
        f'<text x="{WIDTH - RIGHT}" y="{height - 4}" text-anchor="end">seconds</text>',
        *(bar for i, (name, bars) in enumerate(rows) for bar in _draw_row(name, bars, TOP + i * (ROW + GAP))),
        "</svg>",
    ]
    return "".join(parts)


Bar = tuple[float, float, str, str]  # from and to across, the kind, what the tooltip says


def _rows(result: SimResult, first: float, last: float) -> Iterator[tuple[str, list[Bar]]]:
    """A row a worker with its segments as they are; of many workers or segments, rows of cells."""
    num_bars = sum(len(worker.segments) for worker in result.workers)
    if len(result.workers) > MOST_ROWS or num_bars > MOST_BARS:
        num_cells = (WIDTH - LEFT - RIGHT) // 3
        for row in make_rows(result, num_cells, MOST_ROWS):
            yield row.name, _cells(row, first, last)
        return
    for worker in result.workers:
        bars = []
        for start, end, kind in worker.segments:
            told = f"{worker.name} {WORDS[kind]} from {start:,.2f} to {end:,.2f} s ({end - start:,.2f} s)"
            bars.append((_across(max(start, first), first, last), _across(min(end, last), first, last), kind, told))
        yield worker.name, bars


def _cells(row: Row, first: float, last: float) -> list[Bar]:
    """Neighbouring cells of a kind as one bar."""
    cell_s = (last - first) / len(row.kinds)
    bars: list[Bar] = []
    start = 0
    for cell in range(1, len(row.kinds) + 1):
        kind = row.kinds[start]
        if cell < len(row.kinds) and row.kinds[cell] == kind:
            continue
        if kind:
            begin, end = first + start * cell_s, first + cell * cell_s
            told = f"{row.name}: mostly {WORDS[kind]} from {begin:,.2f} to {end:,.2f} s"
            bars.append((_across(begin, first, last), _across(end, first, last), kind, told))
        start = cell
    return bars


def _draw_row(name: str, bars: list[Bar], y: float) -> Iterator[str]:
    yield f'<text x="{LEFT - 8}" y="{y + ROW - 5}" text-anchor="end">{escape(name)}</text>'
    for start, end, kind, told in bars:
        yield (
            f'<rect class="{kind}" x="{start:.1f}" y="{y}" width="{max(end - start, 0.5):.1f}" height="{ROW}">'
            f"<title>{escape(told)}</title></rect>"
        )


def _legend() -> Iterator[str]:
    x = LEFT
    for kind, word in WORDS.items():
        yield f'<rect class="{kind}" x="{x}" y="6" width="18" height="12"/><text x="{x + 24}" y="16">{word}</text>'
        x += 110


def _across(seconds: float, first: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (seconds - first) / (last - first)


def _upright(x: float, text: str, height: float) -> str:
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - BOTTOM}"/>'
        f'<text x="{x:.1f}" y="{height - BOTTOM + 15}" text-anchor="middle">{escape(text)}</text>'
    )
