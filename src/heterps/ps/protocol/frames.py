"""The frames of a message, and arrays in them that keep every bit: parts of tables, and table metadata.

Rows, ValuePart, TableMetadata --pack--> (description for the header, frames) ~~~> unpack --> the same, or Malformed
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from heterps.ps.protocol.messages import Count
from heterps.ps.protocol.parts import TablePart, ValuePart
from heterps.ps.table.metadata import NUM_COUNTERS, TableMetadata, stack, unstack
from heterps.ps.table.rows import Rows
from heterps.wire import Frame, Malformed


class ArrayInfo(Struct, frozen=True, array_like=True):
    """An array of any plain type as a frame, for what must keep every bit: rows on their way to another place."""

    dtype: Literal["<f4", "<f8", "<u8", "<i8", "<u4", "<i4", "<u2", "<i2", "|u1"]
    shape: tuple[Count, ...]


class PartInfo(Struct, frozen=True, array_like=True):
    """Frames of Rows; or, of a dense table from value `first` on, values [n] and their state [words a value, n]."""

    arrays: tuple[ArrayInfo, ...]
    first: Count | None = None


MetadataInfo = Annotated[tuple[ArrayInfo, ...], Meta(min_length=4, max_length=4)]
"""Frames of the fields of TableMetadata, for one shard."""


def pack_arrays(arrays: tuple[NDArray[np.generic], ...]) -> tuple[tuple[ArrayInfo, ...], list[Frame]]:
    frames = [np.ascontiguousarray(array) for array in arrays]
    return tuple(ArrayInfo(frame.dtype.str, frame.shape) for frame in frames), list(frames)


def unpack_array(info: ArrayInfo, frame: memoryview) -> NDArray[np.generic]:
    """Return the array of a frame; Malformed where frame and description do not fit."""
    expected = int(np.prod(info.shape, dtype=object)) * np.dtype(info.dtype).itemsize
    if expected != frame.nbytes:
        raise Malformed(f"an array {list(info.shape)} of {info.dtype} takes {expected} bytes, not {frame.nbytes}")
    return np.frombuffer(frame, info.dtype).reshape(info.shape)


ROW_DTYPES = ("<u8", "<f4", "<f4", "<f4", "<u4")
VALUE_DTYPES = ("<f4", "<f4")


def pack_part(part: TablePart) -> tuple[PartInfo, list[Frame]]:
    """Return a part of a table, every bit of it, as frames."""
    infos, frames = pack_arrays(part if isinstance(part, Rows) else (part.values, part.state))
    return PartInfo(infos, None if isinstance(part, Rows) else part.first), frames


def unpack_part(info: PartInfo, frames: Frames) -> TablePart:
    """Return what `pack_part` packed; Malformed where it is not that."""
    dtypes, ranks = tuple(array.dtype for array in info.arrays), [len(array.shape) for array in info.arrays]
    expected = ROW_DTYPES if info.first is None else VALUE_DTYPES
    if dtypes != expected:
        raise Malformed(f"a part of a table is arrays of {', '.join(expected)} here, not {', '.join(dtypes)}")
    arrays: list[Any] = [unpack_array(array, frames.take()) for array in info.arrays]
    if info.first is None:
        if ranks != [1, 2, 2, 1, 1] or len({len(array) for array in arrays}) > 1:
            raise Malformed(f"keys [n] and their rows do not fit: {[list(array.shape) for array in arrays]}")
        return Rows(*arrays)
    if ranks != [1, 2] or arrays[1].shape[1] != len(arrays[0]):
        raise Malformed(f"values [n] and their state [k, n] do not fit: {[list(array.shape) for array in arrays]}")
    return ValuePart(info.first, *arrays)


METADATA_DTYPES = ("<i8", "<i8", "<i8", "|u1")


def pack_metadata(metadata: TableMetadata) -> tuple[MetadataInfo, list[Frame]]:
    return pack_arrays(tuple(stack([metadata]).values()))


def unpack_metadata(infos: MetadataInfo, frames: Frames) -> TableMetadata:
    """Return what `pack_metadata` packed; Malformed where it is not that."""
    shapes = [info.shape for info in infos]
    ranks = [len(shape) for shape in shapes]
    if (
        tuple(info.dtype for info in infos) != METADATA_DTYPES
        or ranks != [1, 1, 2, 2]
        or any(s[0] != 1 for s in shapes)
    ):
        raise Malformed(f"table metadata is arrays of one shard, of {', '.join(METADATA_DTYPES)}; got shapes {shapes}")
    if shapes[2][1] != NUM_COUNTERS:
        raise Malformed(f"table metadata has {NUM_COUNTERS} counters, got {shapes[2][1]}")
    arrays = [unpack_array(info, frames.take()) for info in infos]
    metadata = unstack(dict(zip(TableMetadata._fields, arrays, strict=True)), 1)[0]
    assert metadata is not None
    return metadata


class Frames:
    """The frames of a message, taken in turn."""

    def __init__(self, frames: list[memoryview]) -> None:
        self._frames = frames
        self.at = 0  # how many were taken

    def take(self) -> memoryview:
        if self.at == len(self._frames):
            raise Malformed(f"the ops of this message need more than its {len(self._frames)} frames")
        self.at += 1
        return self._frames[self.at - 1]

    def taken(self, since: int) -> list[memoryview]:
        """The frames that were taken after the first `since`."""
        return self._frames[since : self.at]

    def end(self) -> None:
        if self.at < len(self._frames):
            raise Malformed(f"the ops of this message need {self.at} frames, and {len(self._frames)} came")
