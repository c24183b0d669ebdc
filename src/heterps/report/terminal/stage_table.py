"""The stages of a run as a table on a terminal: while it runs, and at its end.

stage     workers  samples/s  compute  communicate  wait                queue
1 cpu           3     32,476       5%           3%   93%  █▒··········    0.2
2 v100          1     32,476      91%           3%    6%  ███████████·    3.0     the bottleneck is in bold
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from heterps.report.figures import rate
from heterps.report.stage_figures import DOINGS, StageFigures, bottleneck, cells, percent

BAR = 12
STYLES = {"compute": "cyan", "communicate": "yellow", "wait": "dim"}


def stage_table(stages: Sequence[StageFigures]) -> Table:
    """A table with one row per stage, at most 80 columns wide; the bottleneck is in bold."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    table.add_column("stage", no_wrap=True, max_width=16, overflow="ellipsis")
    for head in ("workers", "samples/s", *DOINGS):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=BAR)
    table.add_column("queue", justify="right", no_wrap=True)
    slowest = bottleneck(stages)
    for number, stage in enumerate(stages):
        table.add_row(
            Text(f"{number + 1} {stage['resource']}", style="bold" if number == slowest else ""),
            f"{stage['workers']:,}",
            rate(stage["samples_per_s"] or 0.0),
            *(percent(stage.get(doing)) for doing in DOINGS),
            Text.assemble(*((part, STYLES[doing]) for doing, part in cells(stage, BAR))),
            f"{stage['queue']:.1f}",
        )
    return table
