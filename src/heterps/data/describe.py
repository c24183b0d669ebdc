"""Describe a data set to people who see it for the first time: one pass over its rows, on several threads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from heterps.arrays import KeyArray
from heterps.config import Format, Storage
from heterps.config.base import Record
from heterps.data.arrow import integer_ids, one_chunk, without_dictionary
from heterps.data.columns import holds_numbers, id_kind, is_list, is_number, list_width
from heterps.data.decode import key_column
from heterps.data.distinct import DistinctCounter
from heterps.data.growth import fit_growth, worth_a_point
from heterps.data.sources import Dataset, RowGroup, open_dataset, spread_groups
from heterps.errors import DataError

USUAL_LABEL = "label"
AHEAD = 10
"""Distinct values are predicted for this multiple of the rows that were read."""
MAX_SHOWN = 8
"""Number of items of a list that an example shows."""


class ExpectedIds(Record):
    """Number of distinct values expected among `rows` rows of the same kind, by Heaps' law."""

    rows: int
    distinct: int
    low: int = Field(description="9 of 10 such numbers are expected between low and high.")
    high: int


class ColumnDescription(Record):
    """One column of a data set. Items of lists count one by one."""

    name: str
    type: str
    roles: tuple[str, ...] = Field(description="Roles that data.columns may give it: label, dense, slots.")
    missing: int = Field(description="Number of values that are null or NaN.")
    missing_share: float = Field(description="Share of the values that are null or NaN.")
    distinct: int | None = Field(description="Number of distinct values, where the column can be a slot.")
    expected: ExpectedIds | None = Field(
        description="Distinct values expected in ten times as many rows, where enough row groups were read to tell."
    )
    distinct_is_exact: bool | None = Field(description="False: by a HyperLogLog sketch, with an error of about 0.8 %.")
    min: float | None = Field(description="The smallest of numbers; only they have a mean and a largest value too.")
    mean: float | None
    max: float | None
    example: str | None = Field(description="The first value.")
    key: int | None = Field(description="The key of that value, where the column can be a slot.")


class Description(Record):
    """A data set: its size, its label and its columns."""

    files: int
    rows: int
    rows_read: int = Field(description="Number of rows from which the figures of columns are.")
    row_groups: int
    file_bytes: int
    label: str | None
    label_mean: float | None
    label_kind: str | None = Field(description="What the label can be trained as: binary, classes or a number.")
    label_problem: str | None = Field(description="Why the label cannot be trained as it is; null: it can be.")
    columns: tuple[ColumnDescription, ...]


def describe(
    source: str | Sequence[str],
    label: str = USUAL_LABEL,
    *,
    options: Format = Format(),
    storage: Storage = Storage(),
    max_rows: int | None = None,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> Description:
    """Describe a data set whose files all have the same columns. DataError if a label of an unusual name is not there.

    max_rows  read about this number of rows, of row groups from all over the data; None: all
    progress  called with the number of rows just read, and of all that will be
    """
    dataset = open_dataset(source, options, storage)
    check_same_columns(dataset)
    groups = dataset.row_groups if max_rows is None else spread_groups(dataset, max_rows)
    rows_read = sum(group.num_rows for group in groups)
    stats = {field.name: _ColumnStats(field.type) for field in dataset.files[0].schema}
    if label not in ("", USUAL_LABEL, *stats):
        near = get_close_matches(label, stats, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DataError(
            f"{dataset.files[0].address}: there is no column {label!r}.{hint} There are: {', '.join(stats)}."
        )
    for group, pieces in _read(groups, list(stats)):
        for name, piece in pieces.items():
            stats[name].add(piece, group.num_rows)
        progress(group.num_rows, rows_read)
    first = dataset.row_groups[0]
    head = first.file.read(first.index, list(stats)).slice(0, 1)
    has_label = label in stats and is_number(stats[label].type)
    kind, problem = _judge(stats[label]) if has_label else (None, None)
    return Description(
        files=len(dataset.files),
        rows=dataset.num_rows,
        rows_read=rows_read,
        row_groups=len(dataset.row_groups),
        file_bytes=sum(file.num_bytes for file in dataset.files),
        label=label if has_label else None,
        label_mean=stats[label].mean if has_label else None,
        label_kind=kind,
        label_problem=problem,
        columns=tuple(_describe_column(name, column, head.column(name), label) for name, column in stats.items()),
    )


def check_same_columns(dataset: Dataset) -> None:
    """Raise DataError unless all files have the same columns in the same order."""
    first = dataset.files[0]
    for file in dataset.files[1:]:
        if file.schema.names != first.schema.names:
            differing = sorted(set(file.schema.names) ^ set(first.schema.names)) or ["their order"]
            raise DataError(
                f"{file.address}: this file and {first.address} differ in columns ({', '.join(differing[:10])}). "
                "Files of one data set have the same columns: take them apart."
            )


# --- figures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _GroupFigures:
    """Figures of one column in one row group."""

    count: int
    missing: int
    keys: KeyArray | None  # distinct ones; None where values cannot be ids
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    is_whole: bool = True


@dataclass
class _ColumnStats:
    """Figures of one column in the row groups that were read."""

    type: Any
    count: int = 0
    missing: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    is_whole: bool = True  # all numbers are whole
    keys: DistinctCounter | None = field(default_factory=DistinctCounter)
    rows: int = 0
    points: list[tuple[int, int]] = field(default_factory=list)  # rows, and distinct values among them

    def add(self, piece: _GroupFigures, num_rows: int) -> None:
        self.rows += num_rows
        self.count += piece.count
        self.missing += piece.missing
        self.total += piece.total
        self.low, self.high = min(self.low, piece.low), max(self.high, piece.high)
        self.is_whole &= piece.is_whole
        if piece.keys is None:
            self.keys = None
        elif self.keys is not None:
            self.keys.add(piece.keys)
            if worth_a_point(self.rows, self.points):
                self.points.append((self.rows, self.keys.count))

    @property
    def mean(self) -> float | None:
        present = self.count - self.missing
        return self.total / present if present and math.isfinite(self.low) else None


def _read(groups: Sequence[RowGroup], columns: list[str]) -> Iterator[tuple[RowGroup, dict[str, _GroupFigures]]]:
    """Read row groups on several threads; iterate over them in order, each with the figures of its columns."""

    def read(group: RowGroup) -> tuple[RowGroup, dict[str, _GroupFigures]]:
        table = group.file.read(group.index, columns)
        return group, {name: _piece(one_chunk(table.column(name)), name) for name in columns}

    num_threads = os.cpu_count() or 1
    with ThreadPoolExecutor(num_threads) as pool:
        for start in range(0, len(groups), 2 * num_threads):  # few at a time: a row group is large
            yield from pool.map(read, groups[start : start + 2 * num_threads])


def _piece(column: Any, name: str) -> _GroupFigures:
    values, missing = column, 0
    if is_list(column.type):
        values, missing = without_dictionary(column.flatten()), column.null_count
    count, missing = len(values) + missing, missing + values.null_count
    ids = integer_ids(values)[0] if id_kind(values.type) is not None else None
    keys = np.unique(key_column(ids.drop_null(), name)) if ids is not None and not _is_float(ids.type) else None
    if not is_number(values.type) or pa.types.is_null(values.type):
        return _GroupFigures(count, missing, keys)
    numbers = values.cast(pa.float64(), safe=False).drop_null().to_numpy(zero_copy_only=False)
    present = numbers[~np.isnan(numbers)]
    missing += len(numbers) - len(present)
    if not len(present):
        return _GroupFigures(count, missing, keys)
    is_whole = bool(np.all(present == np.floor(present)))
    return _GroupFigures(
        count, missing, keys, float(present.sum()), float(present.min()), float(present.max()), is_whole
    )


def _is_float(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind))


# --- words -----------------------------------------------------------------------------------------------------------


def _judge(label: _ColumnStats) -> tuple[str | None, str | None]:
    """Return what a label can be trained as, and why it cannot be as it is, or None."""
    if label.count == label.missing:
        return None, "every value is missing"
    if not math.isfinite(label.total):
        return None, "some values are infinite"
    values = range(2) if label.is_whole and label.low >= 0 and label.high <= 1 else None
    kind = "binary" if values else "classes" if label.is_whole and label.low >= 0 else "number"
    if label.missing:
        return kind, f"{label.missing:,} values are missing; leave these rows out, or let data.columns.labels mask them"
    if label.low == label.high:
        return kind, f"every value is {label.low:g}; there is nothing to learn"
    return kind, None


def _describe_column(name: str, stats: _ColumnStats, head: Any, label: str) -> ColumnDescription:
    kind = stats.type
    ids = id_kind(kind) is not None and stats.keys is not None
    roles = ["label"] if name == label and is_number(kind) else []
    if not roles:
        of_one_width = is_number(kind) or list_width(kind) is not None or not ids
        roles = ["dense"] * (of_one_width and holds_numbers(kind)) + ["slots"] * ids
    value = head[0].as_py()
    has_numbers = math.isfinite(stats.low)
    return ColumnDescription(
        name=name,
        type=str(kind),
        roles=tuple(roles),
        missing=stats.missing,
        missing_share=stats.missing / max(stats.count, 1),
        distinct=stats.keys.count if ids and stats.keys else None,
        expected=_expected(stats) if ids else None,
        distinct_is_exact=stats.keys.is_exact if ids and stats.keys else None,
        min=stats.low if has_numbers else None,
        mean=stats.mean,
        max=stats.high if has_numbers else None,
        example=None if value is None else _shown(value),
        key=int(key_column(head.combine_chunks(), name)[0]) if "slots" in roles and not is_list(kind) else None,
    )


def _expected(stats: _ColumnStats) -> ExpectedIds | None:
    growth = fit_growth(stats.points)
    if growth is None:
        return None
    rows = AHEAD * stats.rows
    low, high = growth.interval(rows)
    return ExpectedIds(rows=rows, distinct=round(growth.distinct(rows)), low=round(low), high=round(high))


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) > MAX_SHOWN:
        return f"[{', '.join(map(str, value[:MAX_SHOWN]))}, ... {len(value):,} in all]"
    return str(value)
