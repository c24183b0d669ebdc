"""A channel that notices corrupt messages: each carries a checksum of all its parts, and a wrong one is dropped."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

import xxhash

from heterps.wire.channel import Channel, Received
from heterps.wire.message import Frame, contiguous


class Checked:
    """Appends a checksum (XXH3 of the lengths and bytes of all parts) to each message, and checks it when receiving.

    Both ends must be Checked. TCP's own checksum lets about one in 2**16 corrupt segments pass, and ipc and memory
    have none. Encrypted connections (CURVE) detect corruption themselves.
    """

    def __init__(self, channel: Channel) -> None:
        self.name = channel.name
        self.counters = channel.counters
        self._channel = channel

    def send(self, peer: str, parts: Sequence[Frame], deadline_s: float | None = None) -> None:
        self._channel.send(peer, [*parts, digest(parts)], deadline_s)

    def receive(self, timeout_s: float) -> Received | None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            received = self._channel.receive(max(deadline_s - time.monotonic(), 0.0))
            if received is None:
                return None
            peer, parts = received
            if parts and parts[-1] == digest(parts[:-1]):
                return peer, parts[:-1]
            self.counters.drop("corrupt")

    def close(self) -> None:
        self._channel.close()


def digest(parts: Sequence[Frame]) -> bytes:
    """Return a checksum of 8 bytes that depends on every byte and on where each part ends."""
    views = [contiguous(part) for part in parts]
    state = xxhash.xxh3_64(struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views)))
    for view in views:
        state.update(view)
    return state.digest()
