"""MirrorStream: what a server sends to its mirror, and the answers that wait until the mirror has it.

    log     [ copy: 1 2 3 4 | 5 | 6 | 7 | 8 ]          requests that changed something, numbered as they were run
                      ^taken          ^sent             all up to `taken` is at the mirror; up to `sent` on its way
    held    answer to 6, answer to 7, ...              go when the mirror has taken 6, 7, ...

    [1] a copy of the shard, made when no contributions to rounds are kept; meanwhile the server answers at once
    [2] the mirror has the copy and most of the log: from here on every answer waits, and the mirror is told (`synced`)
    [3] what was lost on the way is sent again, from the first that the mirror lacks

A server that has no mirror yet goes on alone. It waits early only where its log has become too long to keep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from heterps.ps.ops.base import Op
from heterps.ps.ops.mirrors import Fill, pack_fill
from heterps.ps.ops.requests import MirrorOps, ToServer
from heterps.ps.server.stats import MirrorStats
from heterps.ps.shard.copies import Copied
from heterps.wire import Codec, Frame
from heterps.wire.message import message_bytes

Outgoing = list[tuple[str, list[Frame]]]
Changed = tuple[Op, list[Frame]]
"""An op that was run, and its frames."""
MAX_SENT, MAX_SENT_BYTES = 32, 64 * 2**20
"""Most ops, and bytes of them, that are on their way at a time: less than a channel holds for a peer."""
MAX_LOG_BYTES = 512 * 2**20
"""When the log is larger than this, answers wait, although the mirror is not there yet."""
RESEND_S = 1.0


class _Item(NamedTuple):
    number: int
    parts: list[Frame]
    num_bytes: int


class HeldAnswer(NamedTuple):
    """An answer to request `request_id` that waits until the mirror has taken `number`."""

    number: int
    peer: str
    request_id: int
    parts: list[Frame]


class MirrorStream:
    """The log of a server for the mirror of this name."""

    def __init__(self, mirror: str, codec: Codec[ToServer]) -> None:
        self.mirror, self._codec = mirror, codec
        self.is_begun = self.is_synced = False
        self.held: deque[HeldAnswer] = deque()
        self._log: deque[_Item] = deque()  # not taken yet
        self._log_bytes = 0
        self._last = self._taken = self._sent = self._copy = 0  # numbers of items
        self._progressed_at = 0.0

    def begin(self, copied: Iterable[Copied]) -> None:
        """[1] Send a copy of the shard before all that follows."""
        for part in copied:
            self._add(partial(pack_fill, part))
        self.is_begun, self._copy = True, self._last

    def forward(self, worker: str, incarnation: int, changed: Iterable[Changed] = (), rounds: int = 0) -> None:
        """Log what a request has changed."""
        if self.is_begun:
            ops, frames = [op for op, _ in changed], [frame for _, some in changed for frame in some]
            self._add(lambda number: (MirrorOps(number, worker, incarnation, tuple(ops), rounds), frames))

    def hold(self, peer: str, request_id: int, parts: list[Frame]) -> Outgoing:
        """Keep an answer until the mirror has all that was logged so far; return it where it need not wait."""
        if self._last == self._taken or not (self.is_synced or self._log_bytes > MAX_LOG_BYTES):
            return [(peer, parts)]
        if any(held.peer == peer and held.request_id == request_id for held in self.held):
            return []  # an answer to an earlier copy of the request goes sooner
        self.held.append(HeldAnswer(self._last, peer, request_id, parts))
        return []

    def stats(self, now: float) -> MirrorStats:
        """Return how near the mirror is."""
        behind = self._last - self._taken
        behind_s = now - self._progressed_at if self._sent > self._taken else 0.0
        return MirrorStats(self.mirror, self.is_synced, self._last, behind, self._log_bytes, behind_s)

    def take(self, number: int, now: float, *, has_lease: bool) -> Outgoing:
        """The mirror has all up to `number`: return the answers that waited for it, and more of the log."""
        if number > self._taken:
            self._taken, self._progressed_at = min(number, self._last), now
            self._sent = max(self._sent, self._taken)
            while self._log and self._log[0].number <= self._taken:
                self._log_bytes -= self._log.popleft().num_bytes
        self.sync(has_lease=has_lease)
        return [*self.release(self._taken), *self.outgoing(now)]

    def sync(self, *, has_lease: bool) -> None:
        """[2] Let all answers wait from now on, if the mirror is near enough and this server may have one."""
        is_near = self.is_begun and self._taken >= self._copy and self._log_bytes <= MAX_SENT_BYTES
        if is_near and has_lease and not self.is_synced:
            self.is_synced = True
            self._add(lambda number: (MirrorOps(number, is_synced=True), []))

    def release(self, number: int | None = None) -> Outgoing:
        """Return the answers that waited for items up to `number`; all of them where the server has lost its mirror."""
        answers: Outgoing = []
        while self.held and (number is None or self.held[0].number <= number):
            held = self.held.popleft()
            answers.append((held.peer, held.parts))
        return answers

    def outgoing(self, now: float) -> Outgoing:
        """Return what is to be sent to the mirror now: as much as may be on its way."""
        messages: Outgoing = []
        on_its_way = num_bytes = 0
        for item in self._log:
            if on_its_way and (on_its_way >= MAX_SENT or num_bytes + item.num_bytes > MAX_SENT_BYTES):
                break
            on_its_way, num_bytes = on_its_way + 1, num_bytes + item.num_bytes
            if item.number > self._sent:
                if self._sent == self._taken:
                    self._progressed_at = now
                self._sent = item.number
                messages.append((self.mirror, item.parts))
        return messages

    def tick(self, now: float) -> Outgoing:
        """[3] Send again what the mirror has not taken for a while."""
        if self._sent > self._taken and now - self._progressed_at >= RESEND_S:
            self._sent, self._progressed_at = self._taken, now
        return self.outgoing(now)

    def _add(self, make: Callable[[int], tuple[Fill | MirrorOps, list[Frame]]]) -> None:
        self._last += 1
        parts = self._codec.encode(*make(self._last))
        self._log.append(_Item(self._last, parts, message_bytes(parts)))
        self._log_bytes += self._log[-1].num_bytes
