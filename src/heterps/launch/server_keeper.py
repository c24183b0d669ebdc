"""ServerKeeper: the thread that keeps servers and their mirrors (ps/client/keeper.py), which are processes here.

thread   messages of servers, ends of processes, the time --> Keeper --> Lead, a new process, the end of one
run      `failure` is what the keeper cannot make good; `take_news` says what was lost and replaced
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from heterps.errors import HeterpsError, PeerLost
from heterps.processes import Adopted, Child
from heterps.ps.client.keeper import Effect, Keeper, News, StartServer, StopServer, Tell
from heterps.ps.protocol.roster import Roster, Seat
from heterps.training.coordinator.failures import PeerDied
from heterps.wire.stack import layered
from heterps.wire.zmq_channel import ClientChannel

TURN_S = 0.05
"""Seconds between two looks at whether a process has ended, while no message comes."""


class ServerKeeper:
    """Keeps the servers of `keeper`, whose processes are `children`, by name; all of them listen.

    start       starts a process for the mirror of the server with a number, given the roster in force
    loss_of     says how a process ended; None while it runs
    on_failure  is called once, on the thread, when the run cannot go on
    """

    def __init__(
        self,
        keeper: Keeper,
        children: dict[str, Child | Adopted],
        start: Callable[[Seat, int, Roster], Child],
        loss_of: Callable[[Child | Adopted], PeerDied | None],
        on_failure: Callable[[], None],
    ) -> None:
        self._keeper, self._children = keeper, children
        self._start, self._loss_of, self._on_failure = start, loss_of, on_failure
        self._socket = ClientChannel(f"keeper-{os.getpid()}-{time.monotonic_ns()}", {})
        self._channel = layered(self._socket)
        for seat in keeper.roster.seats:
            self._socket.connect(seat.name, seat.address)
        self._news: list[News] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper of servers", daemon=True)
        self._thread.start()

    @property
    def roster(self) -> Roster:
        """The newest roster."""
        return self._keeper.roster

    @property
    def failure(self) -> HeterpsError | None:
        return self._keeper.failure

    @property
    def is_complete(self) -> bool:
        """Whether every server has a mirror that has all."""
        return self._keeper.is_complete

    def take_news(self) -> list[News]:
        """What has happened since the last call. Any thread may call it."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def close(self) -> None:
        """End the thread. The processes stay."""
        self._over.set()
        self._thread.join()
        self._channel.close()

    def _keep(self) -> None:
        try:
            self._turns()
        except Exception as error:  # whatever it is: servers that are not led refuse to serve after a while
            self._keeper.failure = PeerLost(f"nobody keeps the servers any more: {type(error).__name__}: {error}")
        if not self._over.is_set():
            self._on_failure()

    def _turns(self) -> None:
        """Until the run is over, or cannot go on."""
        while not self._over.is_set() and self._keeper.failure is None:
            wait_s = TURN_S
            while (received := self._channel.receive(wait_s)) is not None:
                self._perform(self._keeper.handle(*received, time.monotonic()))
                wait_s = 0.0
            for name, child in list(self._children.items()):
                if not child.is_running and (lost := self._loss_of(child)) is not None:
                    self._perform(self._keeper.ended(name, str(lost), time.monotonic()))
            self._perform(self._keeper.tick(time.monotonic()))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    with suppress(PeerLost):  # it is gone, as its end or its silence will tell, or does not listen yet
                        self._channel.send(*effect, 0.0)
                case StartServer():
                    self._socket.connect(effect.seat.name, effect.seat.address)
                    self._children[effect.seat.name] = self._start(effect.seat, effect.number, self._keeper.roster)
                case StopServer():
                    self._children.pop(effect.name).close()
                    with suppress(PeerLost):
                        self._socket.disconnect(effect.name)
        with self._lock:
            self._news += self._keeper.take_news()
