"""The shell around a Server: a channel, the clock, and a reason to stop."""

from __future__ import annotations

import time
from collections.abc import Callable

from heterps.errors import PeerLost
from heterps.ps.server.server import Server
from heterps.wire import BackPressure, Channel, Shared

TICK_S = 1.0


def serve(
    server: Server,
    channel: Channel,
    stopped: Callable[[], bool],
    wait_s: float = 0.1,
    pace: Callable[[float, float], None] | None = None,
) -> None:
    """Answer messages until `stopped`, which is looked at after every message and every `wait_s`.

    pace  of an emulated server: called with the updates that a message brought (see `Counts`) and the monotonic time
          when it came, before the message is answered. It returns when that server would be done with them.
    """
    if isinstance(channel, Shared):
        server.room = channel.room
    ticked = time.monotonic()
    while not stopped():
        received = channel.receive(wait_s)
        now = time.monotonic()
        if received is not None:
            before = server.counts.updates
            answers = server.handle(*received, now)
            server.counts.latency.add(time.monotonic() - now)
            if pace is not None and (updates := server.counts.updates - before):
                pace(updates, now)
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
