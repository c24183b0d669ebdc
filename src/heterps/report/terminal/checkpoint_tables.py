"""Checkpoints as tables on the console."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from heterps.checkpoint.finished import short_name
from heterps.checkpoint.inspection import Difference, Listed
from heterps.report.figures import whole
from heterps.report.terminal.profile_table import size
from heterps.report.terminal.tables import add_figures, plain_table

SHOWN_ARRAYS = 5


def list_table(found: Sequence[Listed]) -> RenderableType:
    """A row for each checkpoint, and below the table what is wrong with those that are damaged."""
    table = plain_table()
    table.add_column("checkpoint", no_wrap=True)
    add_figures(table, "clock", "samples", "size")
    table.add_column("saved", no_wrap=True)
    table.add_column("rows")
    for each in found:
        figures = [whole(each.clock), whole(each.samples), "-" if each.bytes is None else size(each.bytes)]
        when = "-" if each.saved_s is None else f"{datetime.fromtimestamp(each.saved_s):%Y-%m-%d %H:%M:%S}"
        kind = "all" if each.parent is None else f"since {short_name(each.parent)}"
        table.add_row(each.name, *figures, when, "DAMAGED" if each.problem is not None else kind)
    return Group(table, *(Text(each.problem) for each in found if each.problem is not None))


def difference_view(found: Difference) -> RenderableType:
    """How two checkpoints differ, in a table of tables and a few lines on dense arrays."""
    head = f"clock {found.clock[0]:,} to {found.clock[1]:,}, samples {found.samples[0]:,} to {found.samples[1]:,}"
    table = plain_table()
    table.add_column("table")
    add_figures(table, "rows", "same", "changed", "new", "gone", "largest")
    for name, rows in found.tables.items():
        figures = (rows.rows[1], rows.same, rows.changed, rows.new, rows.gone)
        table.add_row(Text(name), *map(whole, figures), f"{rows.largest:.3g}")
    return Group(Text(head), *([table] if found.tables else []), *map(Text, _dense_lines(found)))


def _dense_lines(found: Difference) -> Iterable[str]:
    differing = {name: value for name, value in found.dense.items() if value != 0}
    yield f"{len(differing)} of {len(found.dense)} dense arrays differ"
    for name, value in list(differing.items())[:SHOWN_ARRAYS]:
        yield f"  {name}: " + ("another shape or kind" if value is None else f"by up to {value:.3g}")
    if len(differing) > SHOWN_ARRAYS:
        yield f"  and {len(differing) - SHOWN_ARRAYS} others (--json has all)"
    for names, which in zip(found.only_in, ("first", "second"), strict=True):
        if names:
            yield f"only in the {which}: {', '.join(names)}"
