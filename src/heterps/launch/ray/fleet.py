"""RayFleet: workers as Ray actors, as the coordinator sees them.

start --> an actor on a reserved bundle of the stage's resource --> its run() --> messages by our own sockets
                                                           |
check --> the call has ended? --> [1] before a word of it: it has done nothing yet, so it is started again, once
                                  [2] later: PeerLost, which says who, where, and what Ray knows of it
                                  [3] on a node that is being drained (leaving.py): the same, but no failure
stop  --> one that was silent or out of reach, or is not wanted any more. Where it did not end, its node is in doubt
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from heterps.errors import HeterpsError, PeerLost
from heterps.launch.ray.actor import Actor, first_dead, wait_ended
from heterps.launch.ray.leaving import Leaving, LeavingNodes
from heterps.launch.ray.reservations import PLACE_S, NoPlace, Reservations, ReservedBundle
from heterps.launch.ray.roles import WorkerRole
from heterps.launch.running_servers import RunningServers
from heterps.ps.client.interface import JobClient
from heterps.ps.client.keeper import News
from heterps.ps.protocol.specs import TableSpecs
from heterps.training.coordinator.fleet import WorkerLost
from heterps.training.coordinator.reconfiguration import STOP_S
from heterps.training.run.observer import Observer
from heterps.training.worker.mailbox import Mailbox
from heterps.training.worker.worker import COORDINATOR, WorkerStart
from heterps.wire import Channel, Frame, Received

CHECK_S = 0.2
TOLD_S = 2.0
"""Seconds to wait for the message in which a failed worker tells the coordinator why: its error has the right kind."""
SCALE_S = 5.0
"""Seconds to wait for places of more workers, while the job waits: nodes must be started before it is scaled."""


class RayFleet:
    """Workers as Ray actors. Workers of stage s take reservations of `resources[s]`.

    start      values that every role is given
    received   signals that were sent to the run; gets one when the node of this process has to leave
    is_shared  whether other runs use the servers too, so that this run's workers need names of their own there
    """

    refuses_changes = place = None

    def __init__(
        self,
        channel: Channel,
        resources: Sequence[str],
        start: Mapping[str, Any],
        reservations: Reservations,
        servers: RunningServers,
        observer: Observer,
        nodes: LeavingNodes,
        received: list[str],
        *,
        is_shared: bool = False,
    ) -> None:
        self._heard = _Heard(channel)
        self.mailbox = Mailbox(self._heard)
        self._resources, self._start_of_all, self._reservations, self._observer = (
            resources,
            start,
            reservations,
            observer,
        )
        self._servers = servers
        self._received = received
        self._leaving = Leaving(nodes, reservations, observer)
        self._life = f"-{secrets.token_hex(3)}" if is_shared else ""
        self._starts: dict[str, WorkerStart] = {}
        self._actors: dict[str, Actor] = {}
        self._incarnations: dict[str, int] = {}
        self._restarted: set[str] = set()
        self._noticed: dict[str, float] = {}  # when workers failed that still have a process
        self._waiting: dict[str, tuple[WorkerStart, float]] = {}  # for a place, in that of one that died, since when
        self._checked = 0.0

    @property
    def actors(self) -> Mapping[str, Actor]:
        """The actors of the workers, by worker name."""
        return self._actors

    def start(self, workers: Sequence[WorkerStart]) -> None:
        """Starts all workers. Raises ConfigError, and starts none, where the cluster has no room for all of them.

        Those in the place of workers that were lost start when there is room, while the others go on: see `check`.
        """
        if all(worker.attempt for worker in workers):
            self._waiting |= {worker.name: (worker, time.monotonic()) for worker in workers}
            return
        places = self._reservations.take([self._resources[worker.stage] for worker in workers], SCALE_S)
        for worker in workers:
            self._starts[worker.name] = worker
            of_resource = next(place for place in places if place.resource == self._resources[worker.stage])
            places.remove(of_resource)
            self._actors[worker.name] = self._make(worker, of_resource)
        for worker in workers:
            self._run(worker.name)

    def stop(self, worker: str, deadline_s: float = STOP_S) -> None:
        if self._waiting.pop(worker, None) is not None:
            return
        actor = self._actors.pop(worker)
        self._heard.peers.discard(worker)
        actor.release()
        wait_ended([actor], deadline_s)
        actor.leave_in_doubt(self._reservations)
        actor.kill()
        self._reservations.give_back(actor.reserved)

    def connect(self, tables: TableSpecs) -> JobClient:
        return self._servers.connect(COORDINATOR, tables)

    def take_news(self) -> list[News]:
        return self._servers.take_news()

    def check(self) -> None:
        now = time.monotonic()
        if now - self._checked < CHECK_S:
            return
        self._checked = now
        if not self._received and self._leaving.nodes.has_own(now):
            self._observer.warned("the node of this process is being drained: the run saves and ends, as at SIGTERM")
            self._received.append("SIGTERM")
        self._servers.check()
        self._leaving.look([actor for name, actor in self._actors.items() if name in self._heard.peers], now)
        for actor in list(self._actors.values()):
            if self._leaving.has_left(actor, now):  # [3]
                text = f"{actor.called} has left, because its node is being drained"
                raise WorkerLost(actor.name, text, is_preempted=True)
            if (how := actor.ended) is not None:
                self._start_again(actor, how)
        self._place(now)

    def dead(self, deadline_s: float) -> HeterpsError | None:
        """The error of a worker that died, if Ray notices within this time that one has."""
        return first_dead(self._actors.values(), deadline_s)

    def close(self) -> None:
        for actor in self._actors.values():
            actor.release()
        wait_ended(self._actors.values(), STOP_S)
        for actor in self._actors.values():
            actor.kill()
        self._actors = {}

    def _make(self, worker: WorkerStart, reserved: ReservedBundle) -> Actor:
        self._incarnations[worker.name] = self._incarnations.get(worker.name, 0) + 1
        return Actor(worker.name, WorkerRole, reserved)

    def _run(self, name: str) -> None:
        self._actors[name].run(
            {
                **self._start_of_all,
                "name": name,
                "worker": msgspec.to_builtins(self._starts[name]),
                "servers": msgspec.to_builtins(self._servers.roster()),
                "client": f"{name}{self._life}",
                "incarnation": self._incarnations[name],
            }
        )

    def _start_again(self, actor: Actor, how: HeterpsError) -> None:
        name, now = actor.name, time.monotonic()
        is_new = name not in self._heard.peers and name not in self._restarted
        if not actor.is_dead and now - self._noticed.setdefault(name, now) < TOLD_S:
            return
        if not (is_new and actor.is_dead):
            cause, is_preempted = None if isinstance(how, PeerLost) else how, self._leaving.nodes.has(actor, now)
            raise WorkerLost(name, str(how), cause, is_preempted=is_preempted)  # [2]
        self._observer.warned(f"{how}. It had not begun, and is started again")  # [1]
        self._restarted.add(name)
        del self._actors[name]
        actor.kill()
        self._reservations.give_back(actor.reserved)
        self._waiting[name] = self._starts[name], now

    def _place(self, now: float) -> None:
        """Start the workers that wait for a place, as far as there are places. PeerLost where one waits for too long.

        Nobody else is held up: an autoscaler needs minutes.
        """
        resources = {name: self._resources[worker.stage] for name, (worker, _) in self._waiting.items()}
        free = Counter(self._reservations.find(list(resources.values())) if resources else [])
        for name, resource in resources.items():
            worker, since = self._waiting[name]
            is_late = now - since > PLACE_S
            if not free[resource] and not is_late:
                continue
            try:
                (reserved,) = self._reservations.take([resource], 0.0)
            except NoPlace as error:
                if is_late:
                    raise PeerLost(f"{name} was lost, and there is no place for another: {error}") from error
                continue
            free[resource] -= 1
            del self._waiting[name]
            self._starts[name] = worker
            self._actors[name] = self._make(worker, reserved)
            self._run(name)


class _Heard:
    """A channel that remembers which peers have sent something."""

    def __init__(self, channel: Channel) -> None:
        self.name, self.counters = channel.name, channel.counters
        self.peers: set[str] = set()
        self._channel = channel

    def send(self, peer: str, parts: Sequence[Frame], deadline_s: float | None = None) -> None:
        self._channel.send(peer, parts, deadline_s)

    def receive(self, timeout_s: float) -> Received | None:
        if (received := self._channel.receive(timeout_s)) is not None:
            self.peers.add(received[0])
        return received

    def close(self) -> None:
        self._channel.close()
