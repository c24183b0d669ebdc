"""The shell around a Server: a channel, the clock, and a reason to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from heterps.errors import PeerLost
from heterps.ps.server.server import Server
from heterps.wire import BackPressure, Channel, Frame, Shared
from heterps.wire.message import contiguous

TICK_S = 1.0


class Pace(Protocol):
    """The speed and memory of an emulated server."""

    def __call__(self, num_bytes: int, began_at: float) -> None: ...

    def check_memory(self, name: str, num_bytes: int) -> None:
        """Raise an error where tables of this size do not fit."""


def serve(
    server: Server,
    channel: Channel,
    stopped: Callable[[], bool],
    wait_s: float = 0.1,
    pace: Pace | None = None,
) -> None:
    """Answer messages until `stopped`, which is looked at after every message and every `wait_s`.

    pace  of an emulated server: called with the bytes of a message and of what it is answered with, and the monotonic
          time when it came, before it is answered. It returns when that server would be done with it.
    """
    if isinstance(channel, Shared):
        server.room = channel.room
    ticked = time.monotonic()
    while not stopped():
        received = channel.receive(wait_s)
        now = time.monotonic()
        if received is not None:
            answers = server.handle(*received, now)
            server.counts.latency.add(time.monotonic() - now)
            if pace is not None:
                pace(_size(received[1]) + sum(_size(parts) for _, parts in answers), now)
                pace.check_memory(server.name, server.shard.num_bytes)
            for peer, parts in answers:
                try:
                    channel.send(peer, parts, 0.0)  # a peer that does not read must not keep the others waiting
                except BackPressure:
                    server.counts.drop("peer_full")
                except PeerLost:  # it asks again if it still wants to know
                    server.counts.drop("peer_gone")
        del received  # its frames may be in memory that the peer waits for
        if now - ticked >= TICK_S:
            server.tick(now)
            ticked = now


def _size(parts: Sequence[Frame]) -> int:
    return sum(contiguous(part).nbytes for part in parts)
