"""Names of layers in narrow columns: ranges break at their dots, long names lose their middle.

→ v100×1 [cat..deep.linear2]   in 20 cells:   → v100×1 [cat..
                                                deep.linear2]
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

RANGE = ".."
INDENT = "  "


def shortened(name: str, width: int) -> str:
    """The name in at most `width` characters. The middle goes, because ends tell layers apart: user_tow…linear2."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def broken(line: str, width: int) -> list[str]:
    """A line of `first..last` as one line, or as two where it is wider than `width`."""
    if len(line) <= width:
        return [line]
    first, dots, last = line.partition(RANGE)
    if not dots:
        return [shortened(line, width)]
    return [shortened(first, width - len(dots)) + dots, INDENT + shortened(last, width - len(INDENT))]


class Ranges:
    """A renderable of `first..last` lines, as wide as its place allows."""

    def __init__(self, *lines: str) -> None:
        self._lines: Sequence[str] = lines

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widest = max(map(len, self._lines))
        least = max(len(part) for line in self._lines for part in broken(line, len(line) - 1))
        return Measurement(min(least, options.max_width), min(widest, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._lines:
            for part in broken(line, options.max_width):
                yield Text(part, no_wrap=True, overflow="crop")
