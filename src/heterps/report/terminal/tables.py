"""The look that all tables and lines of figures on the console share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table


def plain_table() -> Table:
    """A table with a line under its heads, and no other lines."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)


def add_figures(table: Table, *heads: str) -> None:
    """Adds columns of numbers: right-aligned, and never wrapped."""
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)


def figures_table(heads: Sequence[str], rows: Iterable[tuple[str, ...]], bold: str | None = None) -> Table:
    """A table of text: the first cell of a row names it, the others are numbers; the row named `bold` stands out."""
    table = plain_table()
    table.add_column(heads[0], no_wrap=True)
    add_figures(table, *heads[1:])
    for row in rows:
        table.add_row(*row, style="bold" if row[0] == bold else "")
    return table


def join_within(phrases: Iterable[str], width: int, indent: int) -> str:
    """Phrases with two spaces between them, in lines of at most `width` columns, the later ones indented.

    A phrase is never broken: one that is too long has a line of its own.
    """
    lines: list[str] = []
    for phrase in phrases:
        if lines and len(lines[-1]) + 2 + len(phrase) <= width:
            lines[-1] += f"  {phrase}"
        else:
            lines.append(" " * indent + phrase if lines else phrase)
    return "\n".join(lines)
