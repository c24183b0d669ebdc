"""The servers of a run, and their mirrors, as Ray actors.

[1] listen, all of them --> [2] addresses, which make the roster --> [3] prepare: tables --> [4] run

A mirror that is started later takes all four steps on a thread of its own, because the keeper may not wait. It is on
another node than its server where there is a place, and never on one that is being drained or in doubt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from heterps.config import Job
from heterps.errors import HeterpsError, PeerLost
from heterps.launch.ray.actor import Actor, wait_ended
from heterps.launch.ray.leaving import LeavingNodes
from heterps.launch.ray.nodes import is_elsewhere
from heterps.launch.ray.reservations import NoPlace, Reservations, ReservedBundle, node_of
from heterps.launch.ray.roles import ServerRole
from heterps.launch.run_servers import START_S
from heterps.launch.running_servers import RunningServers, kept_servers, stop_all
from heterps.launch.server_keeper import ServerProcess
from heterps.launch.servers import first_roster
from heterps.ps.protocol.roster import Roster
from heterps.training.coordinator.failures import PeerDied
from heterps.training.run.observer import Observer
from heterps.wire.keys import Keys

PLACE_S = 5.0
"""Seconds to wait for a place for a mirror on another node, and then on any."""


@contextmanager
def ray_servers(
    job: Job,
    count: int,
    resource: str,
    start: Mapping[str, Any],
    reservations: Reservations,
    observer: Observer,
    nodes: LeavingNodes,
    *,
    replicas: int = 0,
) -> Iterator[RunningServers]:
    """`count` servers on reserved bundles of `resource`, with `replicas` each with a mirror, while the context lasts.

    start  values that every role is given
    nodes  that servers with mirrors leave
    """
    servers = RayServers(count, resource, start, reservations, observer, nodes, replicas=replicas)
    try:
        with kept_servers(
            job,
            servers.processes,
            servers.start,
            first=servers.roster,
            serve=lambda _: servers.wait_until_ready(),  # actors make their tables by the job
            keys=Keys(**start["keys"]),
            is_watched=start["emulated"][0] is None,
        ) as running:
            yield running
    finally:
        servers.close()


class RayServers:
    """Starts the servers of ray_servers."""

    def __init__(
        self,
        count: int,
        resource: str,
        start: Mapping[str, Any],
        reservations: Reservations,
        observer: Observer,
        nodes: LeavingNodes,
        *,
        replicas: int,
    ) -> None:
        self._resource, self._start, self._reservations, self._observer = resource, start, reservations, observer
        self._nodes = nodes
        self._threads: list[threading.Thread] = []
        self._first: Roster | None = None
        self._preparing: dict[str, Any] = {}
        self._servers = [self._listening(f"server-{number}", number, self._place()) for number in range(count)]
        self._mirrors = [
            self._listening(f"server-{number}.1", number, self._place(self._servers[number]))
            for number in range(count if replicas else 0)
        ]
        self._all = {server.name: server for server in (*self._servers, *self._mirrors)}
        self.processes: dict[str, ServerProcess] = {**self._all}

    def roster(self) -> Roster:
        """[2] The first roster, once all listen. A server that dies before that is started again, once."""
        if self._first is None:
            addresses, mirrors = ([self._address(s) for s in some] for some in (self._servers, self._mirrors))
            self._first = first_roster(addresses, mirrors)
            for server in self._all.values():  # [3]
                self._preparing[server.name] = server.prepare(self._first)
        return self._first

    def wait_until_ready(self) -> None:
        self.roster()
        for name, asked in self._preparing.items():
            self._all[name].actor.answer(asked, START_S, "makes its tables")
            self._all[name].actor.run()  # [4]
        self._preparing = {}

    def start(self, name: str, number: int, roster: Roster) -> RayServer:
        """Starts a server for the mirror of the one with a number. It says later where it listens."""
        server = self._all[name] = RayServer(name, number, self._reservations, self._nodes)
        thread = threading.Thread(target=self._begin, args=(server, roster), name=f"start of {name}", daemon=True)
        self._threads.append(thread)
        thread.start()
        return server

    def close(self) -> None:
        """Ends all servers."""
        stop_all(self.processes)
        for thread in self._threads:
            thread.join()

    def _begin(self, server: RayServer, roster: Roster) -> None:
        """[1] to [4] for a mirror."""
        try:
            of = self._all[roster.servers[server.number].name]
            server.listen(self._place(of), self._start)
            address = server.answer_address()
            server.actor.answer(server.prepare(roster), START_S, "makes its tables")
            server.actor.run()
            server.address = address
        except HeterpsError as error:
            server.failed(error)
        except Exception as error:  # of Ray
            server.failed(PeerLost(f"{server.name} could not be started: {type(error).__name__}: {error}"))

    def _listening(self, name: str, number: int, reserved: ReservedBundle) -> RayServer:
        server = RayServer(name, number, self._reservations, self._nodes)
        server.listen(reserved, self._start)  # [1]
        return server

    def _place(self, of: RayServer | None = None) -> ReservedBundle:
        """A place for a server, or for the mirror `of` one: on another node than that, if possible."""
        node = node_of(of.actor.reserved) if of is not None else ""
        if is_elsewhere(self._resource, node):
            try:
                return self._reservations.take([self._resource], PLACE_S, avoid=node)[0]
            except NoPlace:
                if not node:
                    raise
        return self._reservations.take([self._resource], PLACE_S)[0]

    def _address(self, server: RayServer) -> str:
        try:
            server.address = server.answer_address()
        except PeerLost as error:
            if not server.actor.is_dead:
                raise
            self._observer.warned(f"{error}. It is started again")
            server.end()
            server.listen(self._place(), self._start)
            server.address = server.answer_address()
        return server.address


class RayServer:
    """A server as an actor, which knows the tables of server `number`; it is a ServerProcess."""

    actor: Actor

    def __init__(self, name: str, number: int, reservations: Reservations, nodes: LeavingNodes) -> None:
        self.name, self.number, self.address = name, number, ""
        self._reservations, self._nodes = reservations, nodes
        self._failure: PeerDied | None = None
        self._lock = threading.Lock()
        self._actors: list[Actor] = []  # none, or the one
        self._is_wanted = True

    def listen(self, reserved: ReservedBundle, start: Mapping[str, Any]) -> None:
        """[1] Start the actor, and open its socket."""
        with self._lock:
            if not self._is_wanted:
                self._reservations.give_back(reserved)
                raise PeerLost(f"{self.name} is not wanted any more")
            self.actor = Actor(self.name, ServerRole, reserved)
            self._actors = [self.actor]
        values = {**start, "name": self.name, "emulated": start["emulated"][self.number]}
        self._listening = self.actor.ask("listen", values)

    def answer_address(self) -> str:
        return str(self.actor.answer(self._listening, START_S, "starts"))

    def prepare(self, roster: Roster) -> Any:
        """[3] Make its tables: as a mirror, if it is not one of the servers of the roster."""
        mirrors = self.number if roster.number(self.name) < 0 else None
        return self.actor.ask("prepare", msgspec.to_builtins(roster), mirrors)

    def failed(self, error: HeterpsError) -> None:
        self._failure = _died(self.name, error)

    @property
    def loss(self) -> PeerDied | None:
        how = self._actors[0].ended if self._actors else None
        return self._failure or (None if how is None else _died(self.name, how))

    @property
    def has_to_leave(self) -> bool:
        """Whether its node is being drained."""
        return any(self._nodes.has(actor, time.monotonic()) for actor in self._actors)

    @property
    def has_place(self) -> bool:
        """Whether there is a place elsewhere for another."""
        return any(self._reservations.find([actor.reserved.resource]) for actor in self._actors)

    def release(self) -> None:
        for actor in self._actors:
            actor.release()

    def stop(self, deadline_s: float) -> None:
        wait_ended(self._actors, deadline_s)
        self._is_wanted = False
        self.end()

    def close(self) -> None:
        self._is_wanted = False
        for actor in self._actors:
            actor.leave_in_doubt(self._reservations)
        self.end()

    def end(self) -> None:
        """Kill it, and give its place back."""
        with self._lock:
            for actor in self._actors:
                actor.kill()
                self._reservations.give_back(actor.reserved)
            self._actors = []


def _died(name: str, how: HeterpsError) -> PeerDied:
    return PeerDied(name, str(how), None if isinstance(how, PeerLost) else how)
