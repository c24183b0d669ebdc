"""Encode arrays as frames: values in fp32, fp16 or bf16, optionally compressed, and keys raw or as differences.

    array --pack--> (Packed: a struct for the header, frame) ~~~> unpack(packed, frame, limits) --> array

What `Packed` says is checked against the frame and the limits before memory is taken: a frame never decides how much
its receiver allocates. fp32 without compression and raw keys are not copied on either side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from heterps.arrays import FloatArray, KeyArray
from heterps.wire import halves
from heterps.wire.message import Frame, Limits, Malformed, TooLarge, contiguous

Dtype = Literal["fp32", "fp16", "bf16"]
Compression = Literal["lz4", "zstd"]

WIDTHS: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes of one value."""
Room = Callable[[int], NDArray[np.uint8] | None]
"""Takes a number of bytes and returns shared memory of that size to build a frame in, or None: see Shared.room."""
Size = Annotated[int, msgspec.Meta(ge=0)]


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """How to read a frame of values: its shape, dtype and compression."""

    shape: Annotated[tuple[Size, ...], msgspec.Meta(min_length=1, max_length=8)]
    dtype: Dtype
    compression: Compression | None = None


class PackedKeys(msgspec.Struct, frozen=True, array_like=True):
    """How to read a frame of keys: raw, or the first key and the differences of sorted keys in `width` bytes each."""

    num_keys: Size
    first: Size = 0
    width: Literal[0, 1, 2, 4, 8] = 0
    """Bytes of one difference; 0 means raw keys."""


def pack_values(
    array: FloatArray,
    dtype: Dtype = "fp32",
    compression: Compression | None = None,
    least_bytes: int = 4096,
    room: Room = lambda _: None,
) -> tuple[Packed, Frame]:
    """Encode a float32 array [n, ...]. fp16 and bf16 round to nearest even; finite values stay finite.

    Frames under `least_bytes`, and frames that compression does not shrink, are not compressed. The frame may be the
    array's own memory; a converted frame that is not compressed is built in memory from `room`.
    """
    if array.dtype != np.float32:
        raise ValueError(f"values are packed from float32, not {array.dtype}: convert them first")
    if not 1 <= array.ndim <= 8:
        raise ValueError(f"values need 1 to 8 dimensions, not {array.ndim}: pass a number as array.reshape(1)")
    frame: Frame = narrow(array, dtype, room if compression is None else lambda _: None)
    if compression is not None and (raw := contiguous(frame)).nbytes >= max(least_bytes, 1):
        import pyarrow as pa

        small = pa.compress(raw, codec=compression, asbytes=True)
        if len(small) < raw.nbytes:
            return Packed(array.shape, dtype, compression), small
    return Packed(array.shape, dtype), frame


def unpack_values(packed: Packed, frame: Frame, limits: Limits = Limits()) -> FloatArray:
    """Decode a frame; the array is a read-only view of it where no conversion is needed. WireError if it is invalid."""
    num_bytes = math.prod(packed.shape) * WIDTHS[packed.dtype]
    if math.prod(max(side, 1) for side in packed.shape) * 4 > limits.message_bytes:  # NumPy refuses 0 x 2**62 too
        raise TooLarge(f"values of shape {packed.shape} exceed the limit of {limits.message_bytes} bytes")
    data = contiguous(frame)
    if packed.compression is not None:
        data = _decompress(data, packed.compression, num_bytes)
    if data.nbytes != num_bytes:
        raise Malformed(f"values of shape {packed.shape} in {packed.dtype} are {num_bytes} bytes, not {data.nbytes}")
    stored = np.frombuffer(data, "<f4" if packed.dtype == "fp32" else "<f2" if packed.dtype == "fp16" else "<u2")
    return widen(stored, packed.dtype).reshape(packed.shape)


def narrow(array: FloatArray, dtype: Dtype, room: Room = lambda _: None) -> NDArray[Any]:
    """Convert float32 to a contiguous array of `dtype`; bf16 comes as uint16, because NumPy has no bf16."""
    array = np.ascontiguousarray(array)
    if dtype == "fp32":
        return array
    memory = room(2 * array.size)
    out = np.empty(array.size, np.uint16) if memory is None else memory.view(np.uint16)
    (halves.to_fp16 if dtype == "fp16" else halves.to_bf16)(array.reshape(-1), out)
    return out.view(np.float16 if dtype == "fp16" else np.uint16).reshape(array.shape)


def widen(stored: NDArray[Any], dtype: Dtype) -> FloatArray:
    if dtype == "fp32":
        return stored.astype(np.float32, copy=False)
    out = np.empty(stored.size, np.float32)
    (halves.from_fp16 if dtype == "fp16" else halves.from_bf16)(stored.view(np.uint16).reshape(-1), out)
    return out.reshape(stored.shape)


def _decompress(data: memoryview, compression: str, num_bytes: int) -> memoryview:
    """Decompress at most `num_bytes` + 1 bytes.

    A stream is read, because pyarrow.decompress hides that fewer bytes came than were announced.
    """
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), compression) as stream:
            return memoryview(stream.read_buffer(num_bytes + 1))
    except (OSError, pa.ArrowException) as error:
        raise Malformed(f"a frame is not {compression} data: {error}") from None


def pack_keys(keys: KeyArray, *, delta: bool = False) -> tuple[PackedKeys, Frame]:
    """Encode uint64 keys [n]; with `delta`, which needs sorted keys, as differences where those are smaller."""
    if keys.dtype != np.uint64 or keys.ndim != 1:
        raise ValueError(f"keys are packed from uint64 of one dimension, not {keys.dtype} of {keys.ndim}")
    if delta and len(keys):
        if (keys[1:] < keys[:-1]).any():
            raise ValueError("differences need sorted keys: sort them, or pass delta=False")
        steps = np.diff(keys)
        widest = int(steps.max()) if len(steps) else 0
        width: Literal[1, 2, 4, 8] = 1 if widest < 2**8 else 2 if widest < 2**16 else 4 if widest < 2**32 else 8
        if width < 8:
            return PackedKeys(len(keys), int(keys[0]), width), steps.astype(f"<u{width}")
    return PackedKeys(len(keys)), np.ascontiguousarray(keys)


def unpack_keys(packed: PackedKeys, frame: Frame, limits: Limits = Limits()) -> KeyArray:
    """Decode keys; raw keys are a read-only view of the frame. Raises WireError if struct and frame do not match."""
    if packed.num_keys * 8 > limits.message_bytes:
        raise TooLarge(f"{packed.num_keys} keys exceed the limit of {limits.message_bytes} bytes")
    data = contiguous(frame)
    expected = packed.num_keys * 8 if not packed.width else max(packed.num_keys - 1, 0) * packed.width
    if data.nbytes != expected:
        raise Malformed(f"{packed.num_keys} keys should take {expected} bytes, not {data.nbytes}")
    if not packed.width:
        return np.frombuffer(data, "<u8")
    if not packed.num_keys or packed.first >= 2**64:
        raise Malformed(f"differences of {packed.num_keys} keys from {packed.first} are no keys of 64 bits")
    keys = np.empty(packed.num_keys, np.uint64)
    keys[0] = packed.first
    keys[1:] = np.frombuffer(data, f"<u{packed.width}")
    np.cumsum(keys, out=keys)
    if keys[-1] < keys[0] or (keys[1:] < keys[:-1]).any():
        raise Malformed("differences of keys add up to more than 64 bits")
    return keys
