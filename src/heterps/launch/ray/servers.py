"""The servers of a run as Ray actors.

[1] listen, all of them --> [2] addresses, which make the roster --> [3] prepare: tables --> [4] run
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heterps.config import Job, Servers
from heterps.errors import PeerLost
from heterps.launch.ray.actor import Actor, wait_ended
from heterps.launch.ray.reservations import Reservations
from heterps.launch.ray.roles import ServerRole
from heterps.launch.run_servers import START_S
from heterps.launch.running_servers import STOP_S
from heterps.launch.servers import client_options, first_roster
from heterps.ps.client.connect import connect
from heterps.ps.client.local import JobClient
from heterps.ps.protocol.roster import Roster
from heterps.ps.protocol.specs import TableSpecs
from heterps.training.coordinator.failures import PeerDied
from heterps.training.run.observer import Observer
from heterps.wire.keys import Keys


class RayServers:
    """The servers of a run as Ray actors on reservations of `resource`.

    start  values that every role is given
    """

    def __init__(
        self,
        job: Job,
        count: int,
        resource: str,
        start: Mapping[str, Any],
        reservations: Reservations,
        observer: Observer,
    ) -> None:
        self._job, self._resource, self._reservations, self._observer = job, resource, reservations, observer
        self._keys = Keys(**start["keys"])
        self._starts = [
            {**start, "name": f"server-{number}", "emulated": start["emulated"][number]} for number in range(count)
        ]
        self.actors = [self._make(start["name"]) for start in self._starts]
        self._listening = [self._listen(number) for number in range(count)]  # [1]
        self._addresses: list[str] = []
        self._preparing: list[Any] = []

    @property
    def addresses(self) -> list[str]:
        """[2] The addresses of all servers, once all listen. A server that dies before that is started again, once."""
        if not self._addresses:
            found = [self._address(number) for number in range(len(self.actors))]
            self._preparing = [actor.ask("prepare", found) for actor in self.actors]  # [3]
            self._addresses = found
        return self._addresses

    def roster(self) -> Roster:
        return first_roster(self.addresses)

    def connect(self, worker: str, tables: TableSpecs) -> JobClient:
        roster = self.roster()
        for actor, asked in zip(self.actors, self._preparing, strict=False):
            actor.answer(asked, START_S, "makes its tables")
            actor.run()  # [4]
        self._preparing = []
        servers = self._job.servers or Servers()
        return connect(
            worker,
            roster,
            tables,
            keys=self._keys,
            options=client_options(servers, tables),
            faults=servers.faults,
            seed=self._job.seed,
        )

    def check(self) -> None:
        """Raises the error of a server that has ended: its own error, or else a PeerLost."""
        for actor in self.actors:
            if (how := actor.ended) is not None:
                raise how if not isinstance(how, PeerLost) else PeerDied(actor.name, str(how))

    def close(self) -> None:
        for actor in self.actors:
            actor.release()
        wait_ended(self.actors, STOP_S)
        for actor in self.actors:
            actor.kill()

    def _address(self, number: int) -> str:
        try:
            return self._ask_address(number)
        except PeerLost as error:
            if not self.actors[number].is_dead:
                raise
            self._observer.warned(f"{error}. It is started again")
        self.actors[number].kill()
        self._reservations.give_back(self.actors[number].reserved)
        self.actors[number] = self._make(self._starts[number]["name"])
        self._listening[number] = self._listen(number)
        return self._ask_address(number)

    def _ask_address(self, number: int) -> str:
        return str(self.actors[number].answer(self._listening[number], START_S, "starts"))

    def _make(self, name: str) -> Actor:
        return Actor(name, ServerRole, self._reservations.take(self._resource))

    def _listen(self, number: int) -> Any:
        return self.actors[number].ask("listen", self._starts[number])
