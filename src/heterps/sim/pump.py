"""SimulatedPump: moves the messages of a Session on a simulated network, without threads and without waiting.

    calls --> session --flush--> network --(latency, faults)--> servers
    futures <-- session <-----------------------------------------+       then `answered` is called

It stands where a Pump is in a RemoteClient. A caller that waits all the same lets the network run until its answer is
there: simulated workers never do, because they compute when everything has come.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from heterps.errors import PeerLost
from heterps.ps.client.pump import Pump
from heterps.ps.client.session import Session
from heterps.ps.protocol.roster import Roster
from heterps.wire import Channel
from heterps.wire.message import contiguous
from heterps.wire.simulated import Outgoing, SimulatedNetwork


class SimulatedPump(Pump):
    """`answered` is called after every message that came for the session."""

    def __init__(
        self,
        session: Session,
        channel: Channel,
        connect: Callable[[Roster], None],
        clock: Callable[[], float],
        *,
        network: SimulatedNetwork,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        del connect, clock  # all peers are reached by their names, and the time is the network's
        self.lock = threading.RLock()  # callers take it; nobody else does
        self._session, self._name, self._network, self._answered = session, channel.name, network, answered
        self._is_over = False
        network.attach(self._name, self._receive)
        if session.next_time() is not None:  # it asks for the roster also before the first call
            network.call_at(network.now_s, self._come_back)

    def flush(self) -> None:
        self._session.flush()
        self._send_due()

    def wait(self, future: Future[Any], timeout_s: float | None) -> None:
        until_s = math.inf if timeout_s is None else self._network.now_s + timeout_s
        self.flush()
        while not future.done() and self._network.step(until_s):
            pass

    def wait_for_room(self) -> None:
        self.flush()
        while not self._session.has_room and self._session.error is None and self._network.step(math.inf):
            pass

    def close(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._session.fail(PeerLost("the client was closed"))
            self._tell()
            self._network.detach(self._name)

    def _receive(self, now_s: float, sender: str, parts: list[memoryview]) -> Outgoing:
        self._session.receive(sender, parts, now_s)
        self._send_due()
        self._answered()
        return ()

    def _send_due(self) -> None:
        """Send what is due now, and come back when more is."""
        for peer, parts in self._session.outgoing(self._network.now_s):
            self._network.send(self._name, peer, parts)
        self._tell()
        if (at := self._session.next_time()) is not None and not self._is_over:
            self._network.call_at(at, self._come_back)

    def _come_back(self) -> None:
        due = self._session.next_time()
        if due is not None and due <= self._network.now_s and not self._is_over:
            self._send_due()

    def _tell(self) -> None:
        for future, value in self._session.finished():
            if isinstance(value, BaseException):
                future.set_exception(value)
            else:
                future.set_result(value)


class DirectPump(SimulatedPump):
    """Asks the servers at once, past the network and in no time: for those who only watch a simulation."""

    def __init__(
        self,
        session: Session,
        channel: Channel,
        connect: Callable[[Roster], None],
        clock: Callable[[], float],
        *,
        network: SimulatedNetwork,
        ask: Callable[[str, str, list[memoryview]], Outgoing],
    ) -> None:
        self._ask = ask
        super().__init__(session, channel, connect, clock, network=network)

    def wait(self, future: Future[Any], timeout_s: float | None) -> None:
        del future, timeout_s
        self.flush()

    def _send_due(self) -> None:
        while outgoing := self._session.outgoing(self._network.now_s):
            for peer, parts in outgoing:
                copies = [memoryview(bytes(contiguous(part))) for part in parts]
                for _, answer in self._ask(peer, self._name, copies):
                    views = [memoryview(bytes(contiguous(part))) for part in answer]
                    self._session.receive(peer, views, self._network.now_s)
        self._tell()
