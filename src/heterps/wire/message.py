"""The message format: a typed header for small fields, and raw frames for large arrays.

    parts[0]   prefix   magic "HPSW" | version u8 | zero u8 | num_frames u16 | header_bytes u32 | frame_bytes u64 ...
               header   msgpack of a tagged msgspec.Struct
    parts[1:]  frames   as they are in memory, never copied

All integers are little-endian. The prefix gives every length, so a message with a missing, extra or truncated part is
refused before it is decoded. What is decoded never exceeds `Limits`. Users of the wire define the headers; nothing is
ever unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Generic, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from heterps.errors import HeterpsError

MAGIC = b"HPSW"
VERSION = 1
PREFIX = struct.Struct("<4sBBHI")

Frame = bytes | memoryview | NDArray[np.generic]
"""One contiguous buffer."""

H = TypeVar("H")


class WireError(HeterpsError):
    """Bytes from a peer are not a message that this version can read. The message is dropped; the receiver goes on."""

    exit_code = 8


class BadMagic(WireError):
    """The first bytes are not those of a heterps message: another program is talking to this address."""


class BadVersion(WireError):
    """The message uses another version of the format."""


class TooLarge(WireError):
    """The message is, or claims to be, larger than the limits allow."""


class Malformed(WireError):
    """The message contradicts itself: cut, corrupt, or not one of the known headers."""


@dataclass(frozen=True)
class Limits:
    """The largest message that a receiver accepts."""

    header_bytes: int = 64 * 1024
    frames: int = 1024
    message_bytes: int = 1024**3

    def __post_init__(self) -> None:
        if self.header_bytes >= 2**32 or self.frames >= 2**16:
            raise ValueError(f"the format has no room for {self.header_bytes} header bytes or {self.frames} frames")


class Codec(Generic[H]):
    """Encodes and decodes messages whose header is one of `headers`: a msgspec.Struct, or a union with distinct tags.

    A codec has no mutable state: threads may share one.
    """

    def __init__(self, headers: type[H] | UnionType, limits: Limits = Limits()) -> None:
        self.limits = limits
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(headers)

    def encode(self, header: H, frames: Sequence[Frame] = ()) -> list[Frame]:
        """Return the parts of a message. Frames are passed on, not copied, and must be contiguous.

        Raises TooLarge if a receiver with the same limits would refuse the message.
        """
        data = self._encoder.encode(header)
        sizes = [contiguous(frame).nbytes for frame in frames]
        self._check_sizes(len(data), len(sizes), PREFIX.size + 8 * len(sizes) + len(data) + sum(sizes))
        prefix = PREFIX.pack(MAGIC, VERSION, 0, len(sizes), len(data))
        return [b"".join((prefix, struct.pack(f"<{len(sizes)}Q", *sizes), data)), *frames]

    def decode(self, parts: Sequence[Frame]) -> tuple[H, list[memoryview]]:
        """Return the header and the frames, as views of `parts`; raises WireError, allocating nothing, if invalid."""
        if not parts:
            raise Malformed("a message of no parts: expected a header at least")
        views = [contiguous(part) for part in parts]
        num_frames, header_bytes = self._read_prefix(views[0])
        if num_frames != len(views) - 1:
            raise Malformed(f"the header announces {num_frames} frames, but {len(views) - 1} came: parts were lost")
        begin = PREFIX.size + 8 * num_frames
        if views[0].nbytes != begin + header_bytes:
            raise Malformed(f"the first part has {views[0].nbytes} bytes instead of {begin + header_bytes}: it was cut")
        sizes = struct.unpack_from(f"<{num_frames}Q", views[0], PREFIX.size)
        for number, (announced, view) in enumerate(zip(sizes, views[1:], strict=True)):
            if announced != view.nbytes:
                raise Malformed(f"frame {number} has {view.nbytes} bytes, but {announced} were announced: it was cut")
        self._check_sizes(header_bytes, num_frames, sum(view.nbytes for view in views))
        return self._decode_header(views[0][begin:]), views[1:]

    def _read_prefix(self, first: memoryview) -> tuple[int, int]:
        if bytes(first[:4]) != MAGIC:
            raise BadMagic(f"a message begins with {MAGIC!r}, this with {bytes(first[:4])!r}: is the peer heterps?")
        if first.nbytes < PREFIX.size:
            raise Malformed(f"the first part has {first.nbytes} bytes, fewer than a prefix of {PREFIX.size}")
        _, version, zero, num_frames, header_bytes = PREFIX.unpack_from(first)
        if version != VERSION:
            raise BadVersion(
                f"the message has version {version} of the wire format, and this heterps reads version {VERSION} only: "
                "run the same release of heterps in every process of a job"
            )
        if zero:
            raise Malformed(f"the sixth byte of a prefix is 0 in version {VERSION}, not {zero}")
        return num_frames, header_bytes

    def _check_sizes(self, header_bytes: int, num_frames: int, message_bytes: int) -> None:
        sizes = (("header bytes", header_bytes, self.limits.header_bytes), ("frames", num_frames, self.limits.frames))
        for what, size, limit in (*sizes, ("bytes in all", message_bytes, self.limits.message_bytes)):
            if size > limit:
                raise TooLarge(f"a message of {size} {what} exceeds the limit of {limit}: send it in smaller pieces")

    def _decode_header(self, data: memoryview) -> H:
        try:
            header: H = self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"the header is not one of the known ones: {error}") from None
        return header


def contiguous(frame: Frame) -> memoryview:
    """Return the bytes of a frame as a flat view; ValueError if they are not contiguous in memory."""
    view = memoryview(cast("bytes", frame))  # NumPy says only from Python 3.12 on that its arrays are buffers
    if not view.c_contiguous:
        raise ValueError("a frame must be contiguous in memory: pass numpy.ascontiguousarray(frame)")
    if view.nbytes == 0:
        return memoryview(b"")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def message_bytes(parts: Sequence[Frame]) -> int:
    return sum(contiguous(part).nbytes for part in parts)
