"""The servers of a simulated job, their mirrors, and the keeper that leads them, on its network.

SimulatedServer   takes messages one after another; can be killed, paused and resumed
SimulatedServers  all of them: with mirrors, losses are noticed and made good as in a real job
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from heterps.errors import HeterpsError, PeerLost
from heterps.ps.client.keeper import Effect as KeeperEffect
from heterps.ps.client.keeper import Keeper, News, StartServer, StopServer, Tell
from heterps.ps.protocol.roster import Roster, Seat
from heterps.ps.protocol.row_files import RowFiles
from heterps.ps.protocol.specs import TableSpecs
from heterps.ps.server.serve import TICK_S
from heterps.ps.server.server import Server
from heterps.wire.simulated import Outgoing, SimulatedNetwork

KEEPER = "keeper"
KEEPER_TICK_S = 0.1
NOTICE_S = 0.1
"""Seconds until the end of a process is noticed."""


class SimulatedServer:
    """A server that answers after the messages with pushes that came before are done with."""

    def __init__(self, server: Server, network: SimulatedNetwork, server_s: float) -> None:
        self.server, self._network, self._server_s = server, network, server_s
        self._free_at = 0.0
        self.ahead_s = 0.0  # of its clock
        self._waiting: list[tuple[str, list[memoryview]]] | None = None  # what came while it was paused
        self.is_dead = False
        network.attach(server.name, self._take)

    def begin_ticks(self) -> None:
        """Let it see the time, as it needs to with a mirror."""
        self._network.call_at(self._network.now_s + TICK_S, self._tick)

    def die(self) -> None:
        self.is_dead = True
        self._network.detach(self.server.name)

    @property
    def is_paused(self) -> bool:
        return self._waiting is not None

    def pause(self) -> None:
        self._waiting = self._waiting or []

    def resume(self) -> None:
        """Go on, with all that came meanwhile."""
        waiting, self._waiting = self._waiting or [], None
        for sender, parts in waiting:
            self.answer(self._take(self._network.now_s, sender, parts))

    def _take(self, now_s: float, sender: str, parts: list[memoryview]) -> Outgoing:
        if self._waiting is not None:
            self._waiting.append((sender, parts))
            return ()
        if not self._server_s:
            return self._handle(sender, parts)
        self._free_at = max(now_s, self._free_at)
        self._network.call_at(self._free_at, partial(self._serve, sender, parts))
        return ()

    def _serve(self, sender: str, parts: list[memoryview]) -> None:
        if self._waiting is not None:
            self._waiting.append((sender, parts))
            return
        before = self.server.counts.updates
        answers = self._handle(sender, parts)
        if self.server.counts.updates > before:
            self._free_at = max(self._free_at, self._network.now_s) + self._server_s
        self._network.call_at(self._free_at, partial(self.answer, answers))

    def _handle(self, sender: str, parts: list[memoryview]) -> Outgoing:
        if self.is_dead:
            return ()
        answers = self.server.handle(sender, parts, self._network.now_s + self.ahead_s)
        self.server.mirroring.settle()
        return answers

    def answer(self, answers: Outgoing) -> None:
        """Send these to the peers that they are for, unless it is dead."""
        for peer, message in answers:
            if not self.is_dead:
                self._network.send(self.server.name, peer, message)

    def _tick(self) -> None:
        if not self.is_dead:
            if self._waiting is None:
                self.answer(self.server.tick(self._network.now_s + self.ahead_s))
            self.begin_ticks()


class SimulatedServers:
    """`count` servers with these tables; with `replicas` each has a mirror.

    start_s    what a server takes to start in the place of one that was lost
    silence_s  a server that is silent for so long is lost
    tell       is told the news of the keeper
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        count: int,
        tables: TableSpecs,
        *,
        replicas: int = 0,
        server_s: float = 0.0,
        start_s: float = 1.0,
        silence_s: float = 5.0,
        next_start: Callable[[float], float | None] = lambda now: now,
        row_files: RowFiles | None = None,
        tell: Callable[[News], None] = lambda _: None,
    ) -> None:
        self._network, self._tables, self._server_s, self._start_s = network, tables, server_s, start_s
        self._row_files, self._tell = row_files, tell
        self.hang_up: Callable[[], None] = lambda: None
        """Called once the job cannot go on, so that nobody waits for answers that cannot come."""
        self._is_told = False  # of a failure
        self._lost: PeerLost | None = None  # a server without a mirror
        seats = tuple(Seat(f"server-{number}") for number in range(count))
        mirrors = tuple(Seat(f"server-{number}.1") for number in range(count)) if replicas else ()
        self._first = Roster(seats, mirrors=mirrors)
        self.all: dict[str, SimulatedServer] = {}
        for seat in self._first.seats:
            self._make(seat.name, self._first, self._first.mirrored_by(seat.name))
        self.keeper: Keeper | None = None
        self._num_keepers = 0
        self._make_keeper: Callable[[Roster, int], Keeper] = lambda roster, life: Keeper(
            roster, silence_s=silence_s, next_start=next_start, now=network.now_s, life=life
        )
        self._waiting: list[tuple[str, list[memoryview]]] | None = None  # for the keeper, while it is paused
        if replicas:
            self._begin_keeper(self._first)
            assert self.keeper is not None
            while not self.keeper.is_complete and self.keeper.failure is None:
                network.step(math.inf)
            if self.keeper.failure is not None:
                raise self.keeper.failure

    @property
    def roster(self) -> Roster:
        return self._first if self.keeper is None else self.keeper.roster

    @property
    def failure(self) -> HeterpsError | None:
        """Why the job cannot go on."""
        return self._lost if self.keeper is None else self.keeper.failure

    @property
    def in_place(self) -> list[SimulatedServer]:
        """The servers of the newest roster, without mirrors."""
        return [self.all[seat.name] for seat in self.roster.servers]

    def kill(self, name: str) -> None:
        """Let a server die now, which is noticed a little later."""
        self.all[name].die()
        self._network.call_at(self._network.now_s + NOTICE_S, partial(self._ended, name))

    def _begin_keeper(self, roster: Roster) -> None:
        self._num_keepers += 1
        self.keeper = self._make_keeper(roster, self._num_keepers)
        self._waiting = None
        self._network.attach(KEEPER, self._hear)
        self._keep(self._num_keepers)

    def kill_keeper(self) -> None:
        """Let the keeper die with the coordinator; servers wait for the next."""
        if self.keeper is not None:
            self._first, self.keeper = self.keeper.roster, None
            self._network.detach(KEEPER)

    def take_over(self) -> bool:
        """Let another keeper go on with what the servers know, which have to answer; False where it cannot."""
        if not self._num_keepers:
            return True
        seats: set[Seat] = set()
        newest = self._first
        while found := {seat for seat in newest.seats if not self.all[seat.name].is_dead} - seats:
            if any(self.all[seat.name].is_paused for seat in found):
                return False
            newest = max([newest, *(self.all[seat.name].server.roster for seat in found)], key=lambda one: one.epoch)
            seats |= found
        roster = newest.without_gone(lambda seat: not self.all[seat.name].is_dead)
        if roster is not None:
            self._begin_keeper(roster)
        return roster is not None

    def pause_keeper(self, seconds: float) -> None:
        """Let the keeper stand still for a while; it has not to do so already."""
        assert self._waiting is None
        self._waiting = []
        self._network.call_at(self._network.now_s + seconds, self._resume_keeper)

    def _resume_keeper(self) -> None:
        waiting, self._waiting = self._waiting or [], None
        for sender, parts in waiting if self.keeper is not None else ():
            self._hear(self._network.now_s, sender, parts)

    def _ended(self, name: str) -> None:
        if self._waiting is not None:
            self._network.call_at(self._network.now_s + NOTICE_S, partial(self._ended, name))
        elif self.keeper is not None:
            self._perform(self.keeper.ended(name, f"{name} was killed", self._network.now_s))
        elif not self._num_keepers:  # else the next keeper finds out
            self._lost = self._lost or PeerLost(f"{name} was killed, and has no mirror")
            self.hang_up()

    def _make(self, name: str, roster: Roster, mirrors: int) -> None:
        server = Server(
            name, roster, self._tables, mirrors=mirrors if mirrors >= 0 else None, row_files=self._row_files
        )
        self.all[name] = SimulatedServer(server, self._network, self._server_s)
        if roster.mirrors:
            self.all[name].begin_ticks()

    def _start(self, start: StartServer, life: int) -> None:
        if self.keeper is None or life != self._num_keepers:
            return
        self._make(start.name, self.keeper.roster, start.number)
        self._perform(self.keeper.listens(start.name, "", self._network.now_s))

    def _hear(self, now_s: float, sender: str, parts: list[memoryview]) -> Outgoing:
        assert self.keeper is not None
        if self._waiting is not None:
            self._waiting.append((sender, parts))
            return ()
        self._perform(self.keeper.handle(sender, parts, now_s))
        return ()

    def _keep(self, life: int) -> None:
        if self.keeper is None or life != self._num_keepers:
            return
        if self._waiting is None:
            self._perform(self.keeper.tick(self._network.now_s))
        self._network.call_at(self._network.now_s + KEEPER_TICK_S, partial(self._keep, life))

    def _perform(self, effects: list[KeeperEffect]) -> None:
        assert self.keeper is not None
        for effect in effects:
            match effect:
                case Tell():
                    self._network.send(KEEPER, *effect)
                case StartServer():
                    self._network.call_at(
                        self._network.now_s + self._start_s, partial(self._start, effect, self._num_keepers)
                    )
                case StopServer():
                    pass  # it is dead, or comes back as one that was replaced
        for news in self.keeper.take_news():
            self._tell(news)
        if self.keeper.failure is not None and not self._is_told:
            self._is_told = True
            self.hang_up()
