"""ServerKeeper: the thread that keeps servers and their mirrors (ps/client/keeper.py), which are processes somewhere.

thread   messages of servers, ends of processes, the time --> Keeper --> Lead, a new process, the end of one
run      `failure` is what the keeper cannot make good; `take_news` says what was lost and replaced

A launcher says how a server's process is started, how it ended, and how to end it: a ServerProcess.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from heterps.errors import HeterpsError, PeerLost
from heterps.ps.client.keeper import Effect, Keeper, News, StartServer, StopServer, Tell
from heterps.ps.protocol.roster import Roster
from heterps.training.coordinator.failures import PeerDied
from heterps.wire.keys import Keys
from heterps.wire.stack import layered
from heterps.wire.zmq_channel import ClientChannel

TURN_S = 0.05
"""Seconds between two looks at whether a process has ended, while no message comes."""


class ServerProcess(Protocol):
    """The process of a server, wherever a launcher runs it."""

    @property
    def address(self) -> str:
        """Where it listens, or will as soon as it runs; "" while that is not known."""

    @property
    def loss(self) -> PeerDied | None:
        """How it ended on its own; None while it runs. Says so at once."""

    @property
    def has_to_leave(self) -> bool:
        """Whether its machine will end soon. A server whose process is told to end says so itself."""

    @property
    def has_place(self) -> bool:
        """Whether another can be started, where it has to leave."""

    def release(self) -> None:
        """Ask it to end."""

    def stop(self, deadline_s: float) -> None:
        """Wait until it has ended, and kill it after the deadline."""

    def close(self) -> None:
        """Kill it."""


class ServerKeeper:
    """Keeps the servers of `keeper`, which are `processes`, by name; all of them listen.

    start       starts a process with this name for the mirror of the server with a number, given the roster in force
    on_failure  is called once, on the thread, when the run cannot go on
    keys        of the servers
    """

    def __init__(
        self,
        keeper: Keeper,
        processes: dict[str, ServerProcess],
        start: Callable[[str, int, Roster], ServerProcess],
        on_failure: Callable[[], None],
        keys: Keys | None = None,
    ) -> None:
        self._keeper, self._processes = keeper, processes
        self._start, self._on_failure = start, on_failure
        self._starting: set[str] = set()
        self._losses: dict[str, PeerDied] = {}
        self._socket = ClientChannel(f"keeper-{os.getpid()}-{time.monotonic_ns()}", {}, keys=keys)
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
        """Why the run cannot go on: the error of the server that is lost, if it said so, else how it ended."""
        failure, lost = self._keeper.failure, self._losses.get(self._keeper.lost)
        if not isinstance(failure, PeerLost):
            return failure
        return (lost.cause if lost else None) or PeerDied(self._keeper.lost, str(failure))

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
        """Let the keeper work until the run is over, or cannot go on."""
        while not self._over.is_set() and self._keeper.failure is None:
            wait_s = TURN_S
            while (received := self._channel.receive(wait_s)) is not None:
                self._perform(self._keeper.handle(*received, time.monotonic()))
                wait_s = 0.0
            for name, process in list(self._processes.items()):
                if name in self._starting and process.address:
                    self._starting.remove(name)
                    self._socket.connect(name, process.address)
                    self._perform(self._keeper.listens(name, process.address, time.monotonic()))
                if (lost := process.loss) is not None:
                    self._losses[name] = lost
                    self._perform(self._keeper.ended(name, str(lost), time.monotonic()))
                elif process.has_to_leave:
                    self._perform(self._keeper.leaves(name, time.monotonic(), has_place=process.has_place))
            self._perform(self._keeper.tick(time.monotonic()))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    with suppress(PeerLost):  # it is gone, as its end or its silence will tell, or does not listen yet
                        self._channel.send(*effect, 0.0)
                case StartServer():
                    self._processes[effect.name] = self._start(*effect, self._keeper.roster)
                    self._starting.add(effect.name)
                case StopServer():
                    self._starting.discard(effect.name)
                    self._processes.pop(effect.name).close()
                    with suppress(PeerLost):
                        self._socket.disconnect(effect.name)
        with self._lock:
            self._news += self._keeper.take_news()
