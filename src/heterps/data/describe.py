"""What a data set holds, from footers and one pass over the label: for people who meet it for the first time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field

from heterps.data.columns import id_kind, is_list, is_number
from heterps.data.decode import key_column
from heterps.data.sources import Dataset, open_dataset
from heterps.errors import DataError


class Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class ColumnDescription(Value):
    name: str
    type: str
    roles: tuple[str, ...] = Field(description="What data.columns may use it as: label, dense, slots; empty: nothing.")
    nulls: int | None = Field(description="Over all files; none: some footer does not say.")
    example: str | None = Field(description="The first value.")
    key: int | None = Field(description="The key of that value, where the column can be a slot.")


class Description(Value):
    files: int
    rows: int
    row_groups: int
    file_bytes: int
    label: str | None
    label_mean: float | None
    columns: tuple[ColumnDescription, ...]


def describe(source: str | Sequence[str], label: str = "label") -> Description:
    """Describes the columns of the first file, which all others must have too. Without a column `label`: no mean."""
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
    return Description(
        files=len(dataset.files),
        rows=dataset.num_rows,
        row_groups=len(dataset.row_groups),
        file_bytes=sum(int(file.fs.size(file.path) or 0) for file in dataset.files),
        label=label if has_label else None,
        label_mean=_label_mean(dataset, label) if has_label else None,
        columns=tuple(_describe_column(dataset, field, head.column(field.name), label) for field in first.schema),
    )


def _describe_column(dataset: Dataset, field: Any, head: Any, label: str) -> ColumnDescription:
    ids = id_kind(field.type) is not None
    roles = ["label"] if field.name == label and is_number(field.type) else []
    if not roles:
        roles = ["dense"] * is_number(field.type) + ["slots"] * ids
    value = head[0].as_py()
    keyed = "slots" in roles and not is_list(field.type)
    return ColumnDescription(
        name=field.name,
        type=str(field.type),
        roles=tuple(roles),
        nulls=_nulls(dataset, field.name),
        example=None if value is None else str(value),
        key=int(key_column(head.combine_chunks(), field.name)[0]) if keyed else None,
    )


def _nulls(dataset: Dataset, name: str) -> int | None:
    """From the footers' statistics. A nested column has several leaves there: its own nulls are not told."""
    total = 0
    for group in dataset.row_groups:
        metadata = group.file.metadata.row_group(group.index)
        leaves = [metadata.column(i) for i in range(metadata.num_columns)]
        statistics = next((leaf.statistics for leaf in leaves if leaf.path_in_schema == name), None)
        if statistics is None or not statistics.has_null_count:
            return None
        total += statistics.null_count
    return total


def _label_mean(dataset: Dataset, label: str) -> float | None:
    total, count = 0.0, 0
    for group in dataset.row_groups:
        column = group.file.read(group.index, [label]).column(label)
        count += len(column) - column.null_count
        total += float(pc.sum(column.cast("float64")).as_py() or 0.0)
    return total / count if count else None
