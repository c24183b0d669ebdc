"""What a server knows as the mirror of another, and the lease by which one with a mirror may serve."""

from __future__ import annotations

import math
from collections import deque

from heterps.ps.ops.mirrors import Fill, Lead, MirrorAck
from heterps.ps.ops.requests import MirrorOps
from heterps.ps.server.mirror_stream import MAX_SENT
from heterps.ps.shard.copies import Filling
from heterps.ps.shard.shard import Shard


class MirrorRole:
    """What a mirror has taken of its server's log. It acknowledges what it queues, and runs that first.

    is_synced  all that its server has said to be done is here
    differs    what is not equal in the two
    """

    def __init__(self, shard: Shard) -> None:
        self.filling = Filling(shard)
        self.is_synced = False
        self.differs = ""
        self.queue: deque[tuple[Fill | MirrorOps, list[memoryview]]] = deque()
        self._early: dict[int, tuple[Fill | MirrorOps, list[memoryview]]] = {}  # by number
        self._taken = 0

    @property
    def taken(self) -> MirrorAck:
        return MirrorAck(self._taken, self.differs)

    def take(self, item: Fill | MirrorOps, frames: list[memoryview]) -> None:
        """Queue the next item, and those after it that came too early. One that came before is left out."""
        if self._taken + 1 < item.id <= self._taken + MAX_SENT and item.id not in self._early:
            self._early[item.id] = item, [memoryview(bytes(frame)) for frame in frames]  # the sender waits for its own
        if item.id != self._taken + 1:
            return
        following: tuple[Fill | MirrorOps, list[memoryview]] | None = (item, frames)
        while following is not None:
            self._taken += 1
            self.queue.append(following)
            following = self._early.pop(self._taken + 1, None)


class Lease:
    """The time until which a server with a mirror may serve: for `lease_s` after the last Lead whose answer was heard.

    The keeper lets the mirror take over when it has heard nothing for as long. It counts from when it
    heard the answer, which is later: so the lease has ended by then, whatever was lost on the way.
    A Lead that comes a second time, perhaps to a server that slept meanwhile, or after a later one, renews nothing.
    """

    def __init__(self) -> None:
        self._came: dict[int, float] = {}  # when each Lead came first
        self._last = 0  # the newest Lead
        self._until = -math.inf

    def renew(self, lead: Lead, now: float) -> None:
        if lead.id > self._last:
            self._came[lead.id], self._last = now, lead.id
        if lead.heard in self._came:
            self._until = self._came[lead.heard] + lead.lease_s
            self._came = {number: at for number, at in self._came.items() if number >= lead.heard}

    def is_valid(self, now: float) -> bool:
        return now <= self._until
