"""The servers of a run: started or found, reached by a client, and gone when the run is over."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from heterps.checkpoint import RowFolder
from heterps.config import Faults, Job, Servers
from heterps.config.launchers import LAUNCHERS
from heterps.errors import ConfigError, HeterpsError, PeerLost
from heterps.launch.running_servers import Connect, RunningServers, kept_servers, stop_all
from heterps.launch.server_keeper import ServerProcess
from heterps.launch.servers import client_options, first_roster
from heterps.processes import Adopted, Child, ChildFailed
from heterps.ps.client.connect import connect
from heterps.ps.client.interface import JobClient
from heterps.ps.client.remote import RemoteClient
from heterps.ps.protocol.roster import Roster, Seat
from heterps.ps.protocol.specs import TableSpecs
from heterps.ps.server.serve import serve
from heterps.ps.server.server import Server
from heterps.report.figures import plural
from heterps.temporary import owned_folder
from heterps.training.coordinator.failures import PeerDied, error_of, most_telling
from heterps.training.coordinator.journal import Head
from heterps.training.protocol.emulated_units import EmulatedServer
from heterps.training.protocol.pacing import ServerPace
from heterps.wire import Channel, Checked, Faulty, MemoryNetwork
from heterps.wire.address import server_process, socket_folder
from heterps.wire.keys import load_keys
from heterps.wire.ports import Limited, Port

START_S = 180.0
"""Seconds that a server gets to import its modules, compile kernels for the first time, and make the tables."""
WAIT_S = 60.0
"""Seconds for which servers wait for another coordinator where the job does not say it."""


def lost_child(children: Mapping[Child | Adopted, str]) -> PeerDied | None:
    """The process, of these with what they do, whose end best explains why others ended; None: all run."""
    ended = [lost for child, what in children.items() if (lost := _loss_of(child, what)) is not None]
    if not ended:
        return None
    culprit = most_telling(ended)
    return next(lost for lost in ended if culprit in (lost, lost.cause))


def _loss_of(child: Child | Adopted, what: str) -> PeerDied | None:
    """The error with which a process ended; None while it runs, or where it was told to stop."""
    if (how := child.ended) is None or "stopped" in child.last_answer:
        return None
    if "kind" in child.last_answer:
        cause = error_of(child.last_answer["kind"], f"{child.name}: {child.last_answer['error']}")
        return PeerDied(child.name, str(cause), cause)
    who = f"{child.name} ({what}{', ' if what else ''}process {child.pid})"
    if child.was_told_to_leave:
        return PeerDied(child.name, f"{who} was told to leave (SIGTERM)")
    return PeerDied(child.name, f"{who} {how}")


@contextmanager
def run_servers(
    job: Job,
    job_file: Path,
    waiting: Callable[[str], None] = lambda _: None,
    *,
    count: int | None = None,
    emulated: Callable[[int], EmulatedServer] | None = None,
    logs: Path | None = None,
    left: Head | None = None,
) -> Iterator[RunningServers]:
    """The servers of the job that is written in `job_file`, while the context lasts.

    waiting  is told what takes long
    count    number of servers, where the job does not say it
    emulated what the server with a number can do, if servers are emulated
    logs     folder for the output of processes
    left     what a coordinator that was killed has left, with servers that wait; None: they are started

    Where a server ends on its own, its error is raised at once, instead of the errors that workers meet because of it.
    """
    servers = job.servers or Servers()
    if servers.addresses:
        waiting(f"looking for {plural(servers.num, 'server')} at {', '.join(servers.addresses)}")
        yield RunningServers(_found(servers, job.seed), lambda: first_roster(servers.addresses))
        return
    number = servers.count or count or 1
    if servers.channel == "memory" or (job.has_workers and job.workers.channel == "memory"):
        row_files = RowFolder(job_file.parent)
        with _threads(servers, number, job.seed, emulated, row_files) as running:
            yield running
    else:
        waiting(f"starting {plural(number, 'server')}" if left is None else "taking the servers over")
        with _processes(job, number, job_file, emulated, logs, left) as running:
            yield running


def _found(servers: Servers, seed: int) -> Connect:
    roster = first_roster(servers.addresses)
    keys = load_keys(servers.key) if servers.key is not None else None
    life = secrets.token_hex(3)  # nobody else's: a newer life of a running job's worker would end it
    lock = threading.Lock()
    checked: list[bool] = []

    def reach(worker: str, tables: TableSpecs, port: Port | None = None) -> JobClient:
        client = connect(
            f"{worker}-{life}",
            roster,
            tables,
            keys=keys,
            port=port,
            options=client_options(servers, tables, port),
            faults=servers.faults,
            seed=seed,
        )
        try:
            with lock:
                if not checked:
                    _refuse_used(client, tables, servers.addresses)
                    checked.append(True)
        except BaseException:
            client.close()
            raise
        return client

    return reach


def _refuse_used(client: JobClient, tables: TableSpecs, addresses: Sequence[str]) -> None:
    """Raises ConfigError if another run has trained on these servers."""
    rows = [spec.name for spec in tables.sparse if client.num_rows(spec.name)]
    values = [spec.name for spec in tables.dense if client.export_dense(spec.name)[2]]
    if used := rows or values:
        raise ConfigError(
            f"the servers at {', '.join(addresses)} hold {'rows' if rows else 'values'} of an earlier run already "
            f"(table {used[0]}): start them anew; a run that is resumed brings its tables from its checkpoint"
        )


@contextmanager
def _threads(
    servers: Servers,
    count: int,
    seed: int,
    emulated: Callable[[int], EmulatedServer] | None,
    row_files: RowFolder,
) -> Iterator[RunningServers]:
    """Servers as threads of this process, made when the tables are known; they end with the context."""
    network, stop, lock = MemoryNetwork(), threading.Event(), threading.Lock()
    roster = Roster(tuple(Seat(f"server-{number}") for number in range(count)))
    started: list[threading.Thread] = []
    failures: list[HeterpsError] = []
    clients: list[JobClient] = []

    def run(server: Server, socket: Channel, pace: ServerPace | None) -> None:
        try:
            serve(server, socket, stop.is_set, pace=pace)
        except HeterpsError as error:
            failures.append(error)
            for client in clients:  # nobody should wait for an answer until its deadline
                client.close()

    def channel(name: str, port: Port | None = None) -> Channel:
        plain: Channel = network.channel(name)
        if port is not None:
            plain = Limited(plain, port)
        return plain if servers.faults == Faults() else Checked(Faulty(plain, servers.faults, seed))

    def end(thread: threading.Thread) -> None:
        stop.set()
        thread.join()

    with ExitStack() as opened:

        def start(tables: TableSpecs) -> None:
            shares = tables.share_memory(count)
            for number, seat in enumerate(roster.servers):
                server = Server(seat.name, roster, shares, row_files=row_files)
                can = emulated(number) if emulated else None
                socket = channel(seat.name, can.port if can else None)
                opened.callback(socket.close)
                paced = ServerPace(can) if can else None
                thread = threading.Thread(target=run, args=(server, socket, paced), name=seat.name, daemon=True)
                thread.start()
                started.append(thread)
                opened.callback(end, thread)

        def reach(worker: str, tables: TableSpecs, port: Port | None = None) -> JobClient:
            with lock:
                if not started:
                    start(tables)
            name = f"{worker}/client"  # the worker's own end of the network has the worker's name
            options = client_options(servers, tables, port)
            clients.append(RemoteClient(worker, channel(name, port), roster, tables, options=options))
            return clients[-1]

        running = RunningServers(reach, lambda: roster, network=network, failures=failures)
        try:
            yield running
        except PeerLost:
            running.check()
            raise


@contextmanager
def _processes(
    job: Job,
    count: int,
    job_file: Path,
    emulated: Callable[[int], EmulatedServer] | None,
    logs: Path | None,
    left: Head | None,
) -> Iterator[RunningServers]:
    """Servers as processes of this machine, in a folder for their sockets that only this user may enter."""
    servers = job.servers or Servers()
    wait_s = 0.0
    if LAUNCHERS[job.launcher].keeps_servers:
        wait_s = WAIT_S if servers.wait_s is None else servers.wait_s
    with ExitStack() as opened:
        processes: dict[str, ServerProcess] = {}
        if left is None:
            folder, life = opened.enter_context(socket_folder()), 1
            addresses = [f"ipc://{folder}/server-{number}" for number in range(count)]
            roster = first_roster(addresses, [f"{address}.1" for address in addresses if servers.replicas])
        else:
            folder, life = opened.enter_context(owned_folder(Path(left.servers.folder))), left.life
            roster = msgspec.convert(left.servers.roster, Roster)
            processes |= {seat.name: LocalServer(adopt(seat), seat.address) for seat in roster.seats}
        opened.callback(stop_all, processes)
        told_tables: list[dict[str, Any]] = []  # what servers are told of the tables, once these are known

        def begin(name: str, address: str, number: int, roster: Roster) -> Child:
            child = Child(name, "heterps.launch.server_process", log=logs / f"{name}.log" if logs else None)
            child.send(
                {
                    "job": str(job_file),
                    "roster": msgspec.to_builtins(roster),
                    "name": name,
                    "address": address,
                    "mirrors": number if roster.number(name) < 0 else None,
                    "can": msgspec.to_builtins(emulated(number)) if emulated else None,
                    "wait_s": wait_s,
                }
            )
            for known in told_tables:
                child.send(known)
            return child

        def start(name: str, number: int, roster: Roster) -> LocalServer:
            address = f"ipc://{folder}/{name}"
            return LocalServer(begin(name, address, number, roster), address)

        waited_for: list[Child] = []
        for seat in roster.seats if left is None else ():
            child = begin(seat.name, seat.address, max(roster.number(seat.name), roster.mirrored_by(seat.name)), roster)
            processes[seat.name] = LocalServer(child, seat.address)
            waited_for.append(child)

        def wait_until_ready(tables: TableSpecs) -> None:
            if not told_tables:
                told_tables.append({"tables": tables.to_plain()})
                for child in waited_for:
                    child.send(told_tables[0])
            while waited_for:
                try:
                    waited_for[0].answer(START_S, "makes its tables")
                except ChildFailed as error:
                    raise error_of(error.kind, str(error)) from None
                del waited_for[0]

        with kept_servers(
            job, processes, start, first=lambda: roster, serve=wait_until_ready, incarnation=life,
            folder=str(folder) if wait_s else "", is_watched=emulated is None,
        ) as running:  # fmt: skip
            yield running


@dataclass
class LocalServer:
    """A server as a process of this machine, which listens at this address as soon as it runs."""

    child: Child | Adopted
    address: str
    has_to_leave, has_place = False, True

    @property
    def loss(self) -> PeerDied | None:
        return _loss_of(self.child, "")

    def release(self) -> None:
        self.child.dismiss()

    def stop(self, deadline_s: float) -> None:
        self.child.stop(deadline_s)

    def close(self) -> None:
        self.child.close()


def adopt(seat: Seat) -> Adopted:
    """The process of a server that waits at its address. PeerLost where none does any more."""
    process = server_process(seat.address)
    if process is None:
        raise PeerLost(f"server {seat.name} does not wait at {seat.address} any more")
    return Adopted(seat.name, process)
