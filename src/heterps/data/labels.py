"""Decode the labels and weights of a row group, and explain values that they cannot have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.arrays import FloatArray
from heterps.config import Schema
from heterps.config.labels import MAX_CLASSES, BinaryLabel, ClassLabel, Label, PoissonLabel
from heterps.data.sources import RowGroup

Values = NDArray[np.float64]


def read_labels(schema: Schema, group: RowGroup, columns: dict[str, Any]) -> FloatArray:
    """The labels and weights of all rows as Batch has them; DataError for a value that they cannot have.

    Rows without labels get zeros.
    """
    if not schema.target_columns:
        return np.zeros(group.num_rows, np.float32)
    read = [_read(schema, name, label, group, columns[name]) for name, label in schema.all_labels.items()]
    if schema.weight is not None:
        read.append(_weights(schema.weight, group, columns[schema.weight]))
    return read[0] if len(read) == 1 else np.stack(read, axis=1)


def _read(schema: Schema, name: str, label: Label, group: RowGroup, column: Any) -> FloatArray:
    values = _numbers(column)
    words, lowest, highest, is_whole = label.range
    read = _single(values)
    wrong = ~((values >= lowest) & (values <= highest) & np.isfinite(read))
    if is_whole:
        wrong |= values != np.floor(values)
    if label.missing == "mask":
        wrong &= ~np.isnan(values)
    if wrong.any():
        row = int(np.argmax(wrong))
        advice = _advice(schema, name, label, values, row)
        raise group.error(row, name, f"a label is {words}, this one is {_shown(column, row)}{advice}")
    return read


def _weights(name: str, group: RowGroup, column: Any) -> FloatArray:
    values = _numbers(column)
    read = _single(values)
    wrong = ~((values >= 0) & np.isfinite(read))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise group.error(
            row,
            name,
            f"a weight is a finite number, at least 0, this one is {_shown(column, row)}; write 1 for a sample that "
            "counts as usual, and 0 for one that does not count",
        )
    return read


def _numbers(column: Any) -> Values:
    """Return the values in float64: a label of 1e-50 is invalid where it must be whole, but would be 0 in float32."""
    numbers = column.cast(pa.float64(), safe=False)
    if numbers.null_count or not len(numbers):
        values: Values = numbers.to_numpy(zero_copy_only=False)
        return values
    return np.frombuffer(numbers.buffers()[1], np.float64, len(numbers), 8 * numbers.offset)  # to_numpy imports pandas


def _single(values: Values) -> FloatArray:
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _shown(column: Any, row: int) -> Any:
    value = column[row].as_py()
    return "null" if value is None else value


def _advice(schema: Schema, name: str, label: Label, values: Values, row: int) -> str:
    """What to do about the wrong value in `row`, judged by all values of the row group."""
    if np.isnan(values[row]):
        return (
            f"; write a label, or leave such samples out of its loss: data.columns.labels: {{{name}: "
            f"{{loss: {label.loss}, missing: mask}}}}"
        )
    known = values[np.isfinite(values)]
    if not np.isfinite(_single(values[row : row + 1])).all():
        return "; write a finite number"
    as_numbers = f"data.columns.labels: {{{name}: mse}}"
    if (known != np.floor(known)).any():
        return f"; values that are not whole are learned as numbers with {as_numbers}"
    if isinstance(label, PoissonLabel):
        return f"; values below 0 are learned as numbers with {as_numbers}"
    if known.min() < 0:
        signs = "write 0 in place of -1" if set(known.tolist()) <= {-1.0, 1.0} else "number the classes from 0 on"
        return f"; {signs}, or learn the values as numbers with {as_numbers}"
    num_classes = int(known.max()) + 1
    if not isinstance(label, BinaryLabel | ClassLabel) or num_classes > MAX_CLASSES:
        return f"; learn the values as numbers with {as_numbers}"
    classes = f"data.columns.num_classes: {num_classes}"
    if schema.labels:
        classes = f"data.columns.labels: {{{name}: {{loss: classes, num_classes: {num_classes}}}}}"
    return f"; if these are classes, set {classes} or more; if they are amounts or ratings, {as_numbers}"
