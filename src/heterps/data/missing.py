"""Notice columns from which nothing can be learned, because every value is missing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from heterps.config import Schema
from heterps.data.columns import is_list
from heterps.data.sources import Dataset, spread_groups

SAMPLE_ROWS = 4_096


def empty_columns(dataset: Dataset, schema: Schema) -> str | None:
    """Return a sentence about dense columns and slots without any value in a sample of the rows; None if all have some.

    The sample is small, and from all over the data: a column that has a value in every thousandth row is not named.
    """
    groups = spread_groups(dataset, min(SAMPLE_ROWS, dataset.row_groups[0].num_rows))
    empty = dict.fromkeys(schema.sources((*schema.dense, *schema.slots)))
    for group in groups:
        table = group.file.read(group.index, list(empty))
        empty = {name: None for name in empty if _is_empty(table.column(name))}
    if not empty:
        return None
    num_rows = sum(group.num_rows for group in groups)
    shown = ", ".join(list(empty)[:10]) + (f" and {len(empty) - 10} more" if len(empty) > 10 else "")
    return (
        f"{shown}: every value is missing in {num_rows:,} rows of the training data. Nothing is learned from such a "
        "column: leave it out of data.columns, or find out why it is empty."
    )


def _is_empty(column: Any) -> bool:
    values = pc.list_flatten(column) if is_list(column.type) else column
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), None, values)
    return bool(values.null_count == len(values))
