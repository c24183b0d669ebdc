"""Describe a data set to people who see it for the first time, with one pass over the label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
from pydantic import Field

from heterps.config.base import Record
from heterps.data.columns import holds_numbers, id_kind, is_list, is_number, list_width
from heterps.data.decode import key_column
from heterps.data.sources import Dataset, open_dataset
from heterps.errors import DataError

MAX_SHOWN = 8
"""Number of items of a list that an example shows."""


class ColumnDescription(Record):
    """One column of a data set."""

    name: str
    type: str
    roles: tuple[str, ...] = Field(description="Roles that data.columns may give it: label, dense, slots.")
    nulls: int | None = Field(description="Number of nulls in all files; null: some file does not say.")
    example: str | None = Field(description="The first value.")
    key: int | None = Field(description="The key of that value, where the column can be a slot.")


class Description(Record):
    """A data set: its size, its label and its columns."""

    files: int
    rows: int
    row_groups: int
    file_bytes: int
    label: str | None
    label_mean: float | None
    columns: tuple[ColumnDescription, ...]


def describe(source: str | Sequence[str], label: str = "label") -> Description:
    """Describe a data set whose files all have the same columns. The mean label is None if there is no such column."""
    dataset = open_dataset(source)
    first = dataset.files[0]
    for file in dataset.files[1:]:
        if file.schema.names != first.schema.names:
            differing = sorted(set(file.schema.names) ^ set(first.schema.names)) or ["their order"]
            raise DataError(
                f"{file.address}: this file and {first.address} differ in columns ({', '.join(differing[:10])}). "
                "Files of one data set have the same columns: describe them apart."
            )
    group = dataset.row_groups[0]
    head = group.file.read(group.index, first.schema.names).slice(0, 1)
    has_label = label in first.schema.names and is_number(first.schema.field(label).type)
    nulls = _nulls(dataset)
    return Description(
        files=len(dataset.files),
        rows=dataset.num_rows,
        row_groups=len(dataset.row_groups),
        file_bytes=sum(file.num_bytes for file in dataset.files),
        label=label if has_label else None,
        label_mean=_label_mean(dataset, label) if has_label else None,
        columns=tuple(_describe_column(f, head.column(f.name), nulls.get(f.name), label) for f in first.schema),
    )


def _describe_column(field: Any, head: Any, nulls: int | None, label: str) -> ColumnDescription:
    ids = id_kind(field.type) is not None
    roles = ["label"] if field.name == label and is_number(field.type) else []
    if not roles:
        of_one_width = is_number(field.type) or list_width(field.type) is not None or not ids
        roles = ["dense"] * (of_one_width and holds_numbers(field.type)) + ["slots"] * ids
    value = head[0].as_py()
    keyed = "slots" in roles and not is_list(field.type)
    return ColumnDescription(
        name=field.name,
        type=str(field.type),
        roles=tuple(roles),
        nulls=nulls,
        example=None if value is None else _shown(value),
        key=int(key_column(head.combine_chunks(), field.name)[0]) if keyed else None,
    )


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) > MAX_SHOWN:
        return f"[{', '.join(map(str, value[:MAX_SHOWN]))}, ... {len(value):,} in all]"
    return str(value)


def _nulls(dataset: Dataset) -> dict[str, int | None]:
    """Number of nulls by column; None if some file does not say."""
    totals: dict[str, int | None] = {}
    for group in dataset.row_groups:
        for name, count in group.file.num_nulls(group.index).items():
            known = totals.setdefault(name, 0)
            totals[name] = None if known is None or count is None else known + count
    return totals


def _label_mean(dataset: Dataset, label: str) -> float | None:
    total, count = 0.0, 0
    for group in dataset.row_groups:
        column = group.file.read(group.index, [label]).column(label)
        count += len(column) - column.null_count
        total += float(pc.sum(column.cast("float64")).as_py() or 0.0)
    return total / count if count else None
