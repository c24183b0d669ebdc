"""The stages of a plan as one bar: a letter and a colour for each resource, the counts of units below.

    ccccvvvvvvvvvvvvvvvvcccc        widths are in proportion to layers, and no stage is too small to be seen
    4   1               12

On a terminal without colours, or in a file, the letters remain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_letters

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.style import Style
from rich.text import Text

from heterps.planning.plan import Plan, Stage

NARROWEST, WIDEST = 12, 40
GREEK = "αβγδεζηθικλμνξοπρστυφχψω"  # for more than 52 resources; digits would be read as counts
PALETTE = (  # Okabe and Ito's, which people with any colour vision tell apart, with the ink that is read best on each
    ("#56b4e9", "black"), ("#e69f00", "black"), ("#009e73", "white"), ("#f0e442", "black"),
    ("#0072b2", "white"), ("#d55e00", "white"), ("#cc79a7", "black"), ("#bbbbbb", "black"),
)  # fmt: skip


@dataclass(frozen=True)
class ResourceKeys:
    """The letter and the style that stand for each resource of a cluster in every bar."""

    letters: dict[str, str]
    styles: dict[str, Style]

    def legend(self, names: Iterable[str]) -> Columns:
        """The meaning of the letters, for the resources in `names`."""
        shown = set(names)
        return Columns(
            [
                Text.assemble((f" {letter} ", self.styles[name]), f" {name}")
                for name, letter in self.letters.items()
                if name in shown
            ],
            padding=(0, 2),
        )


def make_keys(resources: Sequence[str]) -> ResourceKeys:
    """Gives each resource a letter of its name where one is free, else any; colours repeat where there are many."""
    letters: dict[str, str] = {}
    for name in resources:
        wanted = [letter for letter in name.lower() + name.upper() if letter in ascii_letters]
        free = [letter for letter in (*wanted, *ascii_letters, *GREEK) if letter not in letters.values()]
        letters[name] = free[0] if free else "?"
    styles = {
        name: Style(bgcolor=ground, color=ink)
        for name, (ground, ink) in zip(resources, _colours(len(resources)), strict=True)
    }
    return ResourceKeys(letters, styles)


class StageBar:
    """A renderable of one line, or of two with the counts of units, as wide as its place allows."""

    def __init__(self, plan: Plan, keys: ResourceKeys, *, with_counts: bool = True) -> None:
        self._stages, self._keys, self._with_counts = plan.stages, keys, with_counts

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(NARROWEST, options.max_width), min(WIDEST, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(WIDEST, options.max_width)
        widths = bar_widths(self._stages, width)
        bar = Text(no_wrap=True, overflow="ellipsis")
        for stage, cells in zip(self._stages, widths, strict=True):
            bar.append(self._keys.letters[stage.resource] * cells, self._keys.styles[stage.resource])
        yield bar
        if not self._with_counts:
            return
        counts = place_counts([stage.count for stage in self._stages], widths)
        yield Text(counts, no_wrap=True, overflow="ellipsis")


def bar_widths(stages: Sequence[Stage], width: int) -> list[int]:
    """Characters of each stage: in proportion to its layers, at least one; their sum is `width` if that is possible."""
    num_layers = stages[-1].last + 1
    borders = [0]
    for i, stage in enumerate(stages):
        still_to_come = len(stages) - 1 - i
        border = round((stage.last + 1) / num_layers * width)
        borders.append(max(min(border, width - still_to_come), borders[-1] + 1))
    return [b - a for a, b in itertools.pairwise(borders)]


def place_counts(counts: Sequence[int], widths: Sequence[int]) -> str:
    """A line with each count below the start of its stage, or as soon after it as there is room."""
    line, start = "", 0
    for count, width in zip(counts, widths, strict=True):
        line = line.ljust(start) + (" " if len(line) >= start > 0 else "") + str(count)
        start += width
    return line


def _colours(number: int) -> list[tuple[str, str]]:
    return [PALETTE[i % len(PALETTE)] for i in range(number)]
