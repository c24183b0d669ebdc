"""Counters of a channel: messages and bytes in both directions, and dropped messages by reason."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from heterps.wire.message import Frame, message_bytes


@dataclass
class Counters:
    """Totals since the channel was made. Any thread may count; totals read together may differ by one message."""

    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Messages that were not delivered, by reason: `malformed`, `corrupt`, a fault's name, ..."""
    connects: int = 0
    """Number of handshakes that succeeded."""
    disconnects: int = 0
    """Number of connections that ended, including those that failed in their handshake."""
    refusals: int = 0
    """Number of connections that failed in their handshake: another key, or another protocol."""
    shared_bytes: int = 0
    """Bytes sent through shared memory; `bytes_sent` does not include them."""
    shared_full: int = 0
    """Number of large frames sent over the socket because no shared memory was free."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def sent(self, parts: Sequence[Frame]) -> None:
        with self._lock:
            self.messages_sent += 1
            self.bytes_sent += message_bytes(parts)

    def received(self, parts: Sequence[Frame]) -> None:
        with self._lock:
            self.messages_received += 1
            self.bytes_received += message_bytes(parts)

    def shared(self, num_bytes: int, *, is_full: bool) -> None:
        with self._lock:
            self.shared_bytes += num_bytes
            self.shared_full += is_full

    def drop(self, reason: str) -> None:
        with self._lock:
            self.dropped[reason] += 1
