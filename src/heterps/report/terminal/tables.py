"""The look that all tables share: on the console, and on a page."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from rich import box
from rich.table import Table


def plain_table() -> Table:
    """A line under the heads, and no other."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)


def html_table(heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    """Of text, which is escaped; the first cell of a row is its head."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in others)}</tr>'
        for first, *others in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
