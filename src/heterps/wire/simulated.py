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
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from heterps.config import Faults
from heterps.errors import PeerLost
from heterps.wire.channel import Received
from heterps.wire.counters import Counters
from heterps.wire.faults import FaultPlan
from heterps.wire.message import Frame, contiguous

Outgoing = Iterable[tuple[str, Sequence[Frame]]]
Way = Literal["both", "out", "in"]
Handler = Callable[[float, str, list[memoryview]], Outgoing]
"""Takes (now in seconds, sender, message) and returns (receiver, message) pairs."""


class _Parted(NamedTuple):
    """What separates `names` from all others, until a time."""

    names: frozenset[str]
    until_s: float
    way: Way

    def is_between(self, sender: str, peer: str) -> bool:
        goes_out, comes_in = sender in self.names, peer in self.names
        return goes_out != comes_in and self.way in ("both", "out" if goes_out else "in")


class SimulatedNetwork:
    """Holds peers, messages under way, and the simulated clock. Messages are copied, as between processes.

    What senders send that are `spared` meets no faults, and waits for the end of a partition, as over TCP.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        latency_s: float = 0.001,
        faults: Faults = Faults(),
        spared: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.now_s = 0.0
        self.counters = Counters()
        self._seed = seed
        self._latency_s = latency_s
        self._faults, self._spared = faults, spared
        self._fault_plans: dict[str, FaultPlan] = {}
        self._peers: dict[str, Handler] = {}
        self._partitions: list[_Parted] = []
        self._frozen: dict[str, float] = {}  # until when
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def attach(self, name: str, handler: Handler) -> None:
        """Deliver messages to `name` to `handler` from now on; it replaces an earlier one, as a restart does."""
        self._peers[name] = handler

    def detach(self, name: str, handler: Handler | None = None) -> None:
        """Remove a peer as if it were killed: messages to it, also those under way, are dropped.

        With a `handler`, only where that is attached: another one may have taken its place.
        """
        if handler is None or self._peers.get(name) == handler:
            self._peers.pop(name, None)

    def channel(self, name: str) -> SimulatedChannel:
        channel = SimulatedChannel(name, self)
        self.attach(name, channel._put)
        return channel

    def part(self, names: Collection[str], until_s: float, way: Way = "both") -> None:
        """Partition the network until then: drop what goes `out` from `names`, or comes `in` to them, or `both`."""
        self._partitions.append(_Parted(frozenset(names), until_s, way))

    def freeze(self, names: Collection[str], until_s: float) -> None:
        """Stop peers, as SIGSTOP does: what they are sent, and what they send, arrives when they go on."""
        for name in names:
            self._frozen[name] = max(until_s, self._frozen.get(name, until_s))

    def jump(self, seconds: float) -> None:
        """Let the clock of all peers jump ahead, as when a machine was asleep: what was due meanwhile comes late."""
        self.now_s += seconds

    def calm(self) -> None:
        """End all faults, partitions and standstills that last."""
        self._faults, self._partitions, self._frozen = Faults(), [], {}
        self._fault_plans.clear()

    def call_at(self, time_s: float, action: Callable[[], None]) -> None:
        """Schedule `action` for `time_s`, or for now if that is past: a tick, a kill, a restart."""
        heapq.heappush(self._events, (max(time_s, self.now_s), next(self._number), action))

    def send(self, sender: str, peer: str, parts: Sequence[Frame]) -> None:
        copies = [memoryview(bytes(contiguous(part))) for part in parts]
        self.counters.sent(copies)
        sent_s = max(self.now_s, self._frozen.get(sender, self.now_s))
        over_s = [parted.until_s for parted in self._partitions if parted.is_between(sender, peer)]
        if sent_s < (together_s := max(over_s, default=sent_s)):
            if not self._spared(sender) or together_s == math.inf:
                self.counters.drop("apart")
                return
            sent_s = together_s
        if sender not in self._fault_plans:
            faults = Faults() if self._spared(sender) else self._faults
            self._fault_plans[sender] = FaultPlan(sender, faults, self._seed, self.counters)
        for due_s, message in self._fault_plans[sender].arrivals(peer, copies, sent_s + self._latency_s):
            self.call_at(due_s, functools.partial(self._arrive, sender, peer, message))

    @property
    def next_time_s(self) -> float | None:
        """Time of the next event; None while nothing is under way."""
        return self._events[0][0] if self._events else None

    def step(self, until_s: float) -> bool:
        """Advance to the next event and run it; False, with the clock at `until_s`, if there is none by then."""
        if not self._events or self._events[0][0] > until_s:
            self.now_s = max(self.now_s, until_s)
            return False
        due_s, _, action = heapq.heappop(self._events)
        self.now_s = max(self.now_s, due_s)
        action()
        return True

    def run(self, until_s: float) -> None:
        while self.step(until_s):
            pass

    def _arrive(self, sender: str, peer: str, message: list[Frame]) -> None:
        if self.now_s < (thawed_s := self._frozen.get(peer, self.now_s)):
            self.call_at(thawed_s, functools.partial(self._arrive, sender, peer, message))
            return
        handler = self._peers.get(peer)
        if handler is None:
            self.counters.drop("unknown peer")
            return
        views = [contiguous(part) for part in message]
        self.counters.received(views)
        for receiver, parts in handler(self.now_s, sender, views):
            self.send(peer, receiver, parts)


class SimulatedChannel:
    """A channel on which waiting advances the simulated clock. Senders are never told that a peer is gone."""

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
        """Return the next message; runs the network until one arrives or `timeout_s` simulated seconds are over."""
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
