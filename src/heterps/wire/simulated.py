"""A network on a simulated clock, in one thread: the same seed gives the same run, message by message.

    send --> [faults] --> (arrival time, number) in a heap --> the next event: a handler runs, or an inbox fills
                                                                   |  its answers are sent
                                                                   v
State machines are attached as handlers: they take the time, the sender and the message, and return messages. Code
that waits on a channel may use one too: its `receive` runs the network until a message is there or time is up.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from heterps.config import Faults
from heterps.errors import PeerLost
from heterps.wire.channel import Received
from heterps.wire.counters import Counters
from heterps.wire.faults import Fates
from heterps.wire.message import Frame, contiguous

Outgoing = Iterable[tuple[str, Sequence[Frame]]]
Handler = Callable[[float, str, list[memoryview]], Outgoing]
"""Takes (now in seconds, sender, message) and returns (receiver, message) pairs."""


class SimulatedNetwork:
    """Peers, their messages under way, and the clock. Messages are copied, as between processes."""

    def __init__(self, seed: int = 0, *, latency_s: float = 0.001, faults: Faults = Faults()) -> None:
        self.now_s = 0.0
        self.counters = Counters()
        self._seed = seed
        self._latency_s = latency_s
        self._faults = faults
        self._fates: dict[str, Fates] = {}
        self._peers: dict[str, Handler] = {}
        self._apart: list[tuple[frozenset[str], float]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def attach(self, name: str, handler: Handler) -> None:
        """From now on messages to `name` go to `handler`; one of the same name is replaced, as by a restart."""
        self._peers[name] = handler

    def detach(self, name: str) -> None:
        """`name` is gone, as if killed: messages to it, also those under way, are dropped."""
        self._peers.pop(name, None)

    def channel(self, name: str) -> SimulatedChannel:
        channel = SimulatedChannel(name, self)
        self.attach(name, channel._put)
        return channel

    def part(self, names: Collection[str], until_s: float) -> None:
        """Drop what is sent between `names` and all others before `until_s`."""
        self._apart.append((frozenset(names), until_s))

    def call_at(self, time_s: float, action: Callable[[], None]) -> None:
        """Run `action` at a time, now at the earliest: a tick, a kill, a restart."""
        heapq.heappush(self._events, (max(time_s, self.now_s), next(self._number), action))

    def send(self, sender: str, peer: str, parts: Sequence[Frame]) -> None:
        copies = [memoryview(bytes(contiguous(part))) for part in parts]
        self.counters.sent(copies)
        if any((sender in names) != (peer in names) and self.now_s < until_s for names, until_s in self._apart):
            self.counters.drop("apart")
            return
        if sender not in self._fates:
            self._fates[sender] = Fates(sender, self._faults, self._seed, self.counters)
        for due_s, message in self._fates[sender].of(peer, copies, self.now_s + self._latency_s):
            self.call_at(due_s, functools.partial(self._arrive, sender, peer, message))

    @property
    def next_time_s(self) -> float | None:
        """When the next event happens; None while nothing is under way."""
        return self._events[0][0] if self._events else None

    def step(self, until_s: float) -> bool:
        """Go to the next event and let it happen; False, with the clock at `until_s`, if there is none by then."""
        if not self._events or self._events[0][0] > until_s:
            self.now_s = max(self.now_s, until_s)
            return False
        self.now_s, _, action = heapq.heappop(self._events)
        action()
        return True

    def run(self, until_s: float) -> None:
        while self.step(until_s):
            pass

    def _arrive(self, sender: str, peer: str, message: list[Frame]) -> None:
        handler = self._peers.get(peer)
        if handler is None:
            self.counters.drop("unknown peer")
            return
        views = [contiguous(part) for part in message]
        self.counters.received(views)
        for receiver, parts in handler(self.now_s, sender, views):
            self.send(peer, receiver, parts)


class SimulatedChannel:
    """A channel whose waiting passes simulated time. Senders are never told that a peer is gone."""

    def __init__(self, name: str, network: SimulatedNetwork) -> None:
        self.name = name
        self.counters = Counters()
        self._network = network
        self._inbox: deque[Received] = deque()
        self._is_open = True

    def send(self, peer: str, parts: Sequence[Frame], deadline_s: float | None = None) -> None:  # noqa: ARG002
        self._check_open()
        self._network.send(self.name, peer, parts)
        self.counters.sent(parts)

    def receive(self, timeout_s: float) -> Received | None:
        """The next message; until one is here, or `timeout_s` simulated seconds are over, the network runs."""
        self._check_open()
        until_s = self._network.now_s + timeout_s
        while not self._inbox:
            if not self._network.step(until_s):
                return None
        received = self._inbox.popleft()
        self.counters.received(received[1])
        return received

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._network.detach(self.name)

    def _put(self, _now_s: float, sender: str, message: list[memoryview]) -> Outgoing:
        self._inbox.append((sender, message))
        return ()

    def _check_open(self) -> None:
        if not self._is_open:
            raise PeerLost(f"channel {self.name} is closed")
