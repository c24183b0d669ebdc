"""RunningServers: how the workers of a run reach its servers, and what keeps those that are processes.

a launcher starts processes --> they serve --> ServerKeeper leads them --> [1] a mirror takes over, another is started
                                                                           [2] nobody can: clients hang up, check raises
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from heterps.config import Job, Servers
from heterps.errors import HeterpsError, PeerLost
from heterps.launch.server_keeper import ServerKeeper, ServerProcess
from heterps.launch.servers import client_options
from heterps.ps.client.connect import connect
from heterps.ps.client.interface import JobClient
from heterps.ps.client.keeper import Keeper, News
from heterps.ps.protocol.roster import Roster
from heterps.ps.protocol.specs import TableSpecs
from heterps.training.coordinator.failures import PeerDied
from heterps.training.coordinator.journal import ServerPlace
from heterps.training.coordinator.loss_budget import LossBudget
from heterps.wire import MemoryNetwork
from heterps.wire.keys import Keys
from heterps.wire.ports import Port

STOP_S = 10.0


class Connect(Protocol):
    """Makes a client of the servers for the worker with this name, behind the port of its emulated machine."""

    def __call__(self, worker: str, tables: TableSpecs, port: Port | None = None) -> JobClient: ...


@dataclass
class RunningServers:
    """How the workers of a run reach its servers, wherever these run."""

    connect: Connect
    roster: Callable[[], Roster]  # the newest, for workers that are processes of their own
    network: MemoryNetwork | None = None  # for workers that are threads beside servers that are threads
    failures: Sequence[HeterpsError] = ()  # of servers that are threads
    keeper: Callable[[], ServerKeeper | None] = lambda: None  # of servers that are processes, once they serve
    folder: str = ""  # of their sockets, where they wait if this process dies; "": they do not

    @property
    def place(self) -> ServerPlace | None:
        """Where they wait if this process dies, and who they are now; None: they do not."""
        return ServerPlace(self.folder, msgspec.to_builtins(self.roster())) if self.folder else None

    def take_news(self) -> list[News]:
        """What has happened to servers with mirrors since the last call."""
        keeper = self.keeper()
        return [] if keeper is None else keeper.take_news()

    def check(self) -> None:
        """An error where a server that was started is lost: its own error, or else a PeerLost."""
        if self.failures:
            raise self.failures[0]
        if (keeper := self.keeper()) is not None and (failure := keeper.failure) is not None:
            raise failure


@contextmanager
def kept_servers(
    job: Job,
    processes: dict[str, ServerProcess],
    start: Callable[[str, int, Roster], ServerProcess],
    *,
    first: Callable[[], Roster],
    serve: Callable[[TableSpecs], None],
    keys: Keys | None = None,
    incarnation: int = 1,
    folder: str = "",
    is_watched: bool = True,
) -> Iterator[RunningServers]:
    """The servers in `processes`, by name, which a keeper leads from the time when the first client wants them.

    start       starts a server for the mirror of the one with a number, as ServerKeeper says
    first       waits until all servers listen, and returns their roster
    serve       waits until all of them serve these tables
    keys        of the servers
    incarnation of the clients of this process, and of the keeper
    folder      in which servers wait if this process dies; "": they do not
    is_watched  a server that is silent for `servers.silence_s` is lost; else only one whose process has ended
    """
    servers = job.servers or Servers()
    keepers: list[ServerKeeper] = []
    clients: list[JobClient] = []

    def hang_up() -> None:
        for client in list(clients):  # nobody should wait for an answer until its deadline
            client.close()

    def keep() -> ServerKeeper:
        keeper = Keeper(
            first(),
            silence_s=servers.longest_silence_s if is_watched else float("inf"),
            next_start=LossBudget(job.workers.replacements, job.workers.backoff_s).next_start,
            now=time.monotonic(),
            life=incarnation,
        )
        return ServerKeeper(keeper, processes, start, hang_up, keys)

    def newest() -> Roster:
        return keepers[0].roster if keepers else first()

    def reach(worker: str, tables: TableSpecs, port: Port | None = None) -> JobClient:
        serve(tables)
        if not keepers:
            keepers.append(keep())
            opened.callback(keepers[0].close)
        client = connect(
            worker, newest(), tables, options=client_options(servers, tables, port), faults=servers.faults,
            seed=job.seed, port=port, incarnation=incarnation, keys=keys,
        )  # fmt: skip
        clients.append(client)
        return client

    with ExitStack() as opened:
        running = RunningServers(reach, newest, keeper=lambda: keepers[0] if keepers else None, folder=folder)
        try:
            yield running
        except PeerLost as error:
            if not isinstance(error, PeerDied):  # then it may be because of a server
                running.check()
            raise


def stop_all(processes: Mapping[str, ServerProcess]) -> None:
    """End all servers."""
    for process in processes.values():
        process.release()
    for process in processes.values():
        process.stop(STOP_S)
