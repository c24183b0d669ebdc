"""Views of Arrow's memory as NumPy arrays: numbers as float32, ids as 64-bit integers, and which values are null."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.arrays import FloatArray
from heterps.data.kernels import copy_floats
from heterps.data.keys import EVERY_BIT_VALID, hash_bytes

Bitmap = NDArray[np.uint8]


def one_chunk(column: Any) -> Any:
    return without_dictionary(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())


def without_dictionary(column: Any) -> Any:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def read_floats(column: Any, out: FloatArray) -> None:
    """Write the numbers of a column to `out` as float32, with NaN for null."""
    if column.type != pa.float32():
        column = column.cast(pa.float32(), safe=False)
    values = np.frombuffer(column.buffers()[1], np.float32, len(column), column.offset * 4)
    if column.null_count:
        copy_floats(values, _bitmap(column), column.offset, out)
    else:
        out[:] = values


def floats_of(column: Any) -> FloatArray:
    """Return the numbers of a column as float32, with NaN for null; a view of Arrow's memory if nothing is null."""
    if column.null_count:
        values = np.empty(len(column), np.float32)
        read_floats(column, values)
        return values
    column = column.cast(pa.float32(), safe=False)
    return np.frombuffer(column.buffers()[1], np.float32, len(column), column.offset * 4)


def integer_ids(column: Any) -> tuple[Any, int | None]:
    """Return float ids as integers, with NaN as null, and the index of the first that is no whole number, or None.

    Ids of other types are returned as they are. Above 2**53 floats skip whole numbers: two ids may have become one.
    """
    if not pa.types.is_floating(column.type):
        return column, None
    values = np.array(column.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False))
    absent = np.isnan(values)
    values[absent] = 0.0
    wrong = (values != np.floor(values)) | (np.abs(values) > 2.0**53)
    if wrong.any():
        return column, int(np.argmax(wrong))
    return pa.array(values.astype(np.int64), mask=absent), None


def read_ids(column: Any) -> tuple[NDArray[np.int64], Bitmap, int]:
    """Return integers that represent the ids of a column, their validity bitmap, and its first bit."""
    if pa.types.is_uint64(column.type):
        column = column.view(pa.int64())
    elif pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type):
        column = column.cast(pa.int64())
    else:
        has_short_ends = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        column = column.cast(pa.binary() if has_short_ends else pa.large_binary())  # the bytes stay where they are
        kind = np.dtype(np.int32 if has_short_ends else np.int64)
        ends = np.frombuffer(column.buffers()[1], kind, len(column) + 1, column.offset * kind.itemsize)
        data = column.buffers()[2]
        ids = np.empty(len(column), np.int64)
        hash_bytes(np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), ends, ids)
        return ids, _bitmap(column), column.offset
    ids = np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8)
    return ids, _bitmap(column), column.offset


def _bitmap(column: Any) -> Bitmap:
    return np.frombuffer(column.buffers()[0], np.uint8) if column.null_count else EVERY_BIT_VALID


def nulls_of(column: Any) -> NDArray[np.bool_]:
    nulls: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls
