"""Fault injection: messages are lost, doubled, delayed, reordered or corrupted, or a route is cut for a while.

    send --> [cut?] [dropped?] [twice?] [how late?] [overtaken?] [a bit flipped?] --> (arrival time, message) ...

`FaultPlan` is a pure state machine that is given the time. `Faulty` applies it to any channel, and the simulated
network to its own deliveries. Each pair of sender and receiver has its own random numbers, and every message draws
equally many of them: with the same seed, the n-th message from one peer to another meets the same faults, whatever
other peers send.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence

from heterps.config import Faults
from heterps.errors import PeerLost
from heterps.wire.channel import Channel, Received
from heterps.wire.counters import Counters
from heterps.wire.message import Frame, contiguous


class FaultPlan:
    """Decides which faults the messages of one sender meet. Times are seconds of any monotonic clock."""

    def __init__(self, sender: str, faults: Faults, seed: int, counters: Counters) -> None:
        self._sender = sender
        self._faults = faults
        self._seed = seed
        self._counters = counters
        self._routes: dict[str, _Route] = {}

    def arrivals(self, peer: str, parts: Sequence[Frame], now_s: float) -> list[tuple[float, list[Frame]]]:
        """Return (arrival time, message) for each copy that arrives: one, two, or none. Lost messages are counted."""
        faults = self._faults
        if peer not in self._routes:
            self._routes[peer] = _Route(random.Random(f"{self._seed}/{self._sender}/{peer}"))
        route = self._routes[peer]
        is_cut, is_dropped, is_doubled = [route.random.random() < p for p in (faults.cut, faults.drop, faults.double)]
        numbers = [[route.random.random() for _ in range(5)] for _ in range(2)]
        if is_cut and now_s >= route.cut_until_s:
            route.cut_until_s = now_s + faults.cut_s
        if now_s < route.cut_until_s or is_dropped:
            self._counters.drop("cut" if now_s < route.cut_until_s else "drop")
            return []
        return [route.arrival(faults, parts, now_s, *five) for five in numbers[: 2 if is_doubled else 1]]


class _Route:
    """The state of the connection from one sender to one receiver."""

    def __init__(self, numbers: random.Random) -> None:
        self.random = numbers
        self.cut_until_s = float("-inf")
        self._last_due_s = float("-inf")

    def arrival(
        self,
        faults: Faults,
        parts: Sequence[Frame],
        now_s: float,
        late: float,
        overtaken: float,
        held: float,
        corrupt: float,
        place: float,
    ) -> tuple[float, list[Frame]]:
        """Return (arrival time, message), decided by five random numbers in [0, 1)."""
        due_s = now_s + late * faults.delay_s
        if overtaken < faults.reorder:
            due_s += held * faults.reorder_s
        else:
            due_s = self._last_due_s = max(due_s, self._last_due_s)
        return due_s, flip_bit(parts, place) if corrupt < faults.corrupt else list(parts)


def flip_bit(parts: Sequence[Frame], place: float) -> list[Frame]:
    """Copy the message and flip one bit; `place` in [0, 1) says where among all its bits."""
    copies = [bytearray(contiguous(part)) for part in parts]
    bit = int(place * 8 * sum(map(len, copies)))
    for copy in copies:
        if bit < 8 * len(copy):
            copy[bit // 8] ^= 1 << (bit % 8)
            break
        bit -= 8 * len(copy)
    return [memoryview(copy) for copy in copies]


class Faulty:
    """A channel whose outgoing messages meet faults. Delayed ones are sent when it is next used: it has no thread.

    A delayed message whose receiver has gone is dropped and counted, as on any network.
    """

    def __init__(
        self, channel: Channel, faults: Faults, seed: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = channel.name
        self.counters = channel.counters
        self._channel = channel
        self._clock = clock
        self._lock = threading.Lock()
        self._plan = FaultPlan(channel.name, faults, seed, channel.counters)
        self._late: list[tuple[float, int, str, list[Frame]]] = []
        self._number = itertools.count()

    def send(self, peer: str, parts: Sequence[Frame], deadline_s: float | None = None) -> None:
        with self._lock:
            copies = set()
            for due_s, message in self._plan.arrivals(peer, parts, self._clock()):
                copies.add(number := next(self._number))
                heapq.heappush(self._late, (due_s, number, peer, message))
            self._pass_on(copies, deadline_s)

    def receive(self, timeout_s: float) -> Received | None:
        deadline_s = self._clock() + timeout_s
        while True:
            with self._lock:
                self._pass_on()
                until_s = min(deadline_s, self._late[0][0]) if self._late else deadline_s
            received = self._channel.receive(max(until_s - self._clock(), 0.0))
            if received is not None or self._clock() >= deadline_s:
                return received

    def close(self) -> None:
        self._channel.close()

    def _pass_on(self, copies: Collection[int] = (), deadline_s: float | None = 0.0) -> None:
        """Send what is due. `copies` numbers the copies of the message being sent: PeerLost if none can arrive."""
        hopes = set(copies)
        while self._late and self._late[0][0] <= self._clock():
            _, number, peer, parts = heapq.heappop(self._late)
            try:
                self._channel.send(peer, parts, deadline_s if number in copies else 0.0)
            except PeerLost:
                if hopes == {number}:
                    raise
                hopes.discard(number)
                self.counters.drop("peer lost")
