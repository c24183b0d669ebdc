"""The description of a data set on the console, within 80 characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heterps.report.terminal.consoles import make_console
from heterps.report.terminal.tables import add_figures, plain_table

if TYPE_CHECKING:
    from heterps.data.describe import Description

_NAME_WIDTH, _TYPE_WIDTH = 16, 12


def show_description(path: str, description: Description) -> None:
    """Prints a row for each column, and below the size of the data and what the label is good for."""
    table = plain_table()
    table.title, table.title_justify = path, "left"
    for head, width in (("column", _NAME_WIDTH), ("type", _TYPE_WIDTH), ("usable as", None)):
        table.add_column(head, no_wrap=True, max_width=width)
    add_figures(table, "missing", "distinct", "min", "mean", "max")
    for column in description.columns:
        table.add_row(
            column.name,
            column.type.replace("item: ", "").replace("element: ", ""),
            "/".join(column.roles) or "nothing",
            "" if not column.missing else f"{100 * column.missing_share:.3g} %",
            "" if column.distinct is None else f"{'' if column.distinct_is_exact else '~'}{_short(column.distinct)}",
            *("" if value is None else _short(value) for value in (column.min, column.mean, column.max)),
        )
    console = make_console()
    console.print(table)
    size = f"{description.file_bytes / 1e6:,.1f} MB"
    groups = f"files: {description.files:,}; row groups: {description.row_groups:,}"
    read = "" if description.rows_read == description.rows else f" Figures are of {description.rows_read:,} rows."
    console.print(f"{description.rows:,} rows; {groups}; {size}.{read}")
    if any(column.distinct_is_exact is False for column in description.columns):
        console.print("~: counted by a sketch (HyperLogLog), which is off by about 0.8 %.")
    if (words := _growth_words(description)) is not None:
        console.print(words)
    for column in description.columns:
        if column.missing_share == 1.0:
            console.print(f"Every value of {column.name} is missing: leave it out.")
    if description.label is not None:
        console.print(_label_words(description))


def _growth_words(description: Description) -> str | None:
    """How many ids are expected in more rows: in all columns that may be slots."""
    of_ids = [column for column in description.columns if "slots" in column.roles and column.expected is not None]
    found = [column.expected for column in of_ids if column.expected is not None]
    if not found:
        return None
    now = sum(column.distinct or 0 for column in of_ids)
    expected, low, high = (sum(getattr(ids, end) for ids in found) for end in ("distinct", "low", "high"))
    about = f"about {_short(expected)} ({_short(low)} to {_short(high)}) expected in {found[0].rows:,} rows"
    return f"Ids in columns usable as slots: {_short(now)} now, {about} (Heaps' law)."


def _label_words(description: Description) -> str:
    name, problem = description.label, description.label_problem
    kind = {"binary": "0 or 1", "classes": "whole numbers from 0 on", "number": "numbers"}.get(
        description.label_kind or "", "no numbers"
    )
    mean = "" if description.label_mean is None else f" Mean of {name}: {description.label_mean:.4f}."
    if problem is not None:
        return f"The label {name} cannot be trained as it is: {problem}.{mean}"
    return f"The label {name} can be trained: its values are {kind}.{mean}"


def _short(value: float) -> str:
    """A number in at most seven characters."""
    if value == int(value) and abs(value) < 100_000:
        return f"{int(value):,}"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if limit <= abs(value) < 1e12 and abs(value) >= 1e5:
            return f"{value / limit:.4g}{unit}"
    return f"{value:.4g}"
