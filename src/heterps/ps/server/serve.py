"""The shell around a Server: a channel, the clock, and a reason to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from heterps.errors import PeerLost
from heterps.ps.protocol.roster import Seat
from heterps.ps.server.mirror_stream import Outgoing
from heterps.ps.server.server import Server
from heterps.wire import BackPressure, Channel, Shared
from heterps.wire.message import message_bytes

TICK_S = 1.0


class EmulatedLimits(Protocol):
    """The speed and memory of an emulated server."""

    def __call__(self, num_bytes: int, began_at: float) -> None: ...

    def check_memory(self, name: str, num_bytes: int) -> None:
        """Raise an error where tables of this size do not fit."""


def serve(
    server: Server,
    channel: Channel,
    stopped: Callable[[], bool],
    wait_s: float = 0.1,
    pace: EmulatedLimits | None = None,
    reach: Callable[[str, str], None] = lambda *_: None,
    ticked: Callable[[], None] = lambda: None,
) -> None:
    """Answer messages until `stopped`, which is looked at after every message and every `wait_s`.

    pace  of an emulated server: called with the bytes of a message and of what it is answered with, and the monotonic
          time when it came, before it is answered. It returns when that server would be done with it.
    reach  connects the channel to a mirror, by name and address, before anything is sent to it
    ticked  is called after the first turn, and then about every second, between two messages
    """
    if isinstance(channel, Shared):
        server.room = channel.room
    tick_at = time.monotonic()
    mirror: Seat | None = None
    while not stopped():
        received = channel.receive(wait_s)
        now = time.monotonic()
        if received is not None:
            server.counts.received_bytes += message_bytes(received[1])
            answers = server.handle(*received, now)
            server.counts.latency.add(time.monotonic() - now)
            if pace is not None:
                pace(message_bytes(received[1]) + sum(message_bytes(parts) for _, parts in answers), now)
                pace.check_memory(server.name, server.shard.num_bytes)
            if (newest := server.mirroring.mirror) != mirror:
                mirror = newest
                if mirror is not None:
                    reach(mirror.name, mirror.address)
            _send(server, channel, answers)
            server.mirroring.settle()  # after it was said to be here: a mirror runs what it has taken
            server.shard.sum_ahead()
        del received  # its frames may be in memory that the peer waits for
        if now >= tick_at:
            _send(server, channel, server.tick(now))
            ticked()
            tick_at = now + TICK_S


def _send(server: Server, channel: Channel, messages: Outgoing) -> None:
    for peer, parts in messages:
        try:
            channel.send(peer, parts, 0.0)  # a peer that does not read must not keep the others waiting
            server.counts.sent_bytes += message_bytes(parts)
        except BackPressure:
            server.counts.drop("peer_full")
        except PeerLost:  # it asks again if it still wants to know
            server.counts.drop("peer_gone")
