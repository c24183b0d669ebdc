"""The look that all tables on the console share."""

from __future__ import annotations

from rich import box
from rich.table import Table


def plain_table() -> Table:
    """A table with a line under its heads, and no other lines."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
