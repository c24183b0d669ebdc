"""ClientCounts: the bytes between a worker and its servers, by kind, and what was saved on the way.

gradients of a batch --summed by key--> one each --rounded, compressed--> frames --merged--> requests
                      deduplication saved          compression saved               calls - requests
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from heterps.ps.keys.dedup import Lookup
from heterps.ps.ops.base import Built, Call, Result, Values
from heterps.ps.ops.dense import PullDenseCall, PushDense
from heterps.ps.ops.rows import PullRows, PullRowsCall, PushRows
from heterps.wire import Frame, Packed
from heterps.wire.message import message_bytes

KEY_BYTES, VALUE_BYTES = 8, 4
"""Bytes of a key and of a value, as they are in memory."""


@dataclass
class ClientCounts:
    """Counts the messages of a worker since it began.

    Bytes by kind are those of the frames, in both directions, whether they travel by sockets or by shared memory.
    """

    bytes_sent: int = 0  # by sockets
    bytes_received: int = 0
    bytes_shared: int = 0  # sent by shared memory
    retries: int = 0  # requests that were sent again
    dropped: int = 0  # messages that never arrived, by faults on purpose, or were not understood
    keys_bytes: int = 0
    rows_bytes: int = 0  # that were pulled
    row_gradients_bytes: int = 0
    dense_bytes: int = 0  # dense parameters that were pulled
    dense_gradients_bytes: int = 0
    other_bytes: int = 0  # first values, tables as a whole
    calls: int = 0  # parts of calls, one for each server
    requests: int = 0  # the messages in which they went
    deduplication_saved_bytes: int = 0  # of keys and values, as if none were rounded or compressed
    compression_saved_bytes: int = 0  # by 16 bits instead of 32, and by compression

    def repeated(self, lookup: Lookup, dim: int) -> None:
        """Count a lookup: each of its distinct keys travels once, with one row or the sum of its gradients."""
        num_repeats = len(lookup.sources) - len(lookup.unique)  # `inverse` may be of a piece of the batch
        self.deduplication_saved_bytes += num_repeats * row_bytes(dim)

    def requested(self, parts: Iterable[Built]) -> None:
        """Count the parts of calls that go in one request."""
        self.requests += 1
        for built in parts:
            self.calls += 1
            match built.op:
                case PullRows():
                    self.keys_bytes += message_bytes(built.frames)
                case PushRows(grads=grads):
                    keys, values = built.frames
                    self.keys_bytes += message_bytes([keys])
                    self.row_gradients_bytes += self._packed(grads, [values])
                case PushDense(grads=grads):
                    self.dense_gradients_bytes += self._packed(grads, built.frames)
                case _:
                    self.other_bytes += message_bytes(built.frames)

    def answered(self, call: Call, result: Result, frames: list[memoryview]) -> None:
        """Count the answer of a server to a call."""
        packed = result.values if isinstance(result, Values) else None
        match call:
            case PullRowsCall() if packed is not None:
                self.rows_bytes += self._packed(packed, frames)
            case PullDenseCall() if packed is not None:
                self.dense_bytes += self._packed(packed, frames)
            case _:
                self.other_bytes += message_bytes(frames)

    def _packed(self, packed: Packed, frames: Iterable[Frame]) -> int:
        """The bytes of a frame of values; what its coding saved is counted."""
        num_bytes = message_bytes(list(frames))
        self.compression_saved_bytes += VALUE_BYTES * prod(packed.shape) - num_bytes
        return num_bytes


def row_bytes(dim: int) -> int:
    """Bytes of a key with its row or gradient, where values are neither rounded nor compressed."""
    return KEY_BYTES + VALUE_BYTES * dim
