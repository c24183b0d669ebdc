"""What workers did when, as bars on a terminal: a row a worker, or a row for several neighbours where there are many.

    w0  ██▊██▊██▊██▊······██▊··        █ computes, ▊ and ends an iteration    · waits
    w1  ██████▊██████▊██████▊██        ▒ pushes: network, queue, update       × leaves
        0 s                12 s

A cell shows what took most of its time. The characters alone tell it, without colours.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.text import Text

from heterps.report.figures import short
from heterps.sim.result import COMPUTE, PUSH, WAIT, Segment, SimResult

MOST_ROWS, WIDEST = 20, 110
LOOKS = {COMPUTE: ("█", "#56b4e9"), PUSH: ("▒", "#e69f00"), WAIT: ("·", "dim"), "": (" ", "")}
WORDS = {COMPUTE: "computes", PUSH: "pushes", WAIT: "waits"}
ENDED, LEFT = "▊", "×"


class HasSegments(Protocol):
    """A worker whose time is drawn; `left_s`: when it left, None if it stayed."""

    @property
    def name(self) -> str: ...
    @property
    def segments(self) -> Sequence[Segment]: ...
    @property
    def left_s(self) -> float | None: ...


class Timeline(Protocol):
    """Workers, and the part of their time that is drawn: a SimResult is one."""

    @property
    def workers(self) -> Sequence[HasSegments]: ...
    @property
    def window(self) -> tuple[float, float] | None: ...
    @property
    def end_s(self) -> float: ...


@dataclass(frozen=True)
class TimelineRow:
    """Workers that share a bar: for each cell, what took most of its time, and whether an iteration ended in it."""

    name: str
    kinds: tuple[str, ...]
    ends: tuple[bool, ...]
    spent: tuple[Mapping[str, float], ...]
    """Seconds by what was done, of each cell."""
    left: int | None
    """The cell in which the last of the workers left; None: some stayed."""


def make_rows(result: Timeline, num_cells: int, most_rows: int = MOST_ROWS) -> list[TimelineRow]:
    """The window of `result` in `num_cells` equal parts, as at most `most_rows` rows; none without a window."""
    if result.window is None:
        return []
    size = max(1, math.ceil(len(result.workers) / most_rows))
    groups = [result.workers[i : i + size] for i in range(0, len(result.workers), size)]
    return [_row(group, *result.window, num_cells) for group in groups]


def show_timeline(console: Console, result: SimResult) -> None:
    """Prints the rows, the axis and what the characters mean."""
    if result.window is None or not result.workers:
        return
    names = max(len(row.name) for row in make_rows(result, 1))
    room = min(console.width, WIDEST) - names - 2
    if room < 10:
        return
    first, last = result.window
    for row in make_rows(result, room):
        console.print(Text(f"{row.name:<{names}}  ").append_text(_bar(row)), no_wrap=True, overflow="crop")
    start, end = f"{short(first)} s", f"{short(last)} s"
    console.print(Text(" " * (names + 2) + start + end.rjust(room - len(start)), style="dim"), no_wrap=True)
    legend = Text(" " * (names + 2))
    for kind, word in WORDS.items():
        legend.append(*LOOKS[kind]).append(f" {word}   ")
    console.print(legend.append(f"{ENDED} ends an iteration   {LEFT} leaves"), overflow="fold")


def _row(workers: Sequence[HasSegments], first: float, last: float, num_cells: int) -> TimelineRow:
    cell_s = (last - first) / num_cells
    spent: list[dict[str, float]] = [defaultdict(float) for _ in range(num_cells)]
    ends = [False] * num_cells

    def place(seconds: float) -> int:
        return min(max(int((seconds - first) / cell_s), 0), num_cells - 1)

    for worker in workers:
        for start, end, kind in worker.segments:
            begin, stop = max(start, first), min(end, last)
            for cell in range(place(begin), place(stop) + 1):
                low, high = first + cell * cell_s, first + (cell + 1) * cell_s
                spent[cell][kind] += max(min(stop, high) - max(begin, low), 0.0)
            if kind == COMPUTE and first < end < last:
                ends[place(math.nextafter(end, first))] = True
    lefts = [worker.left_s for worker in workers]
    left = max((seconds for seconds in lefts if seconds is not None), default=None) if None not in lefts else None
    return TimelineRow(
        name=workers[0].name if len(workers) == 1 else f"{workers[0].name}-{workers[-1].name}",
        kinds=tuple(max(cell, key=lambda kind: cell[kind]) if any(cell.values()) else "" for cell in spent),
        ends=tuple(ends),
        spent=tuple(spent),
        left=place(left) if left is not None and first <= left < last else None,
    )


def _bar(row: TimelineRow) -> Text:
    bar = Text()
    for cell, (kind, is_end) in enumerate(zip(row.kinds, row.ends, strict=True)):
        character, style = LOOKS[kind]
        if cell == row.left:
            bar.append(LEFT, "bold red")
        else:
            bar.append(ENDED if is_end and kind == COMPUTE else character, style)
    return bar
