"""The servers of a run: started or found, reached by a client, and gone when the run is over."""

from __future__ import annotations

import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from heterps.config import Faults, Job, Servers
from heterps.errors import ConfigError, PeerLost
from heterps.launch.servers import first_roster
from heterps.processes import Child
from heterps.ps.client import JobClient
from heterps.ps.connect import connect
from heterps.ps.messages import Coding
from heterps.ps.remote import RemoteClient
from heterps.ps.roster import Roster, Seat
from heterps.ps.serve import serve
from heterps.ps.server import Server
from heterps.ps.session import Options
from heterps.ps.shard import Tables
from heterps.report.figures import plural
from heterps.wire import Channel, Checked, Faulty, MemoryNetwork
from heterps.wire.keys import load_keys

WORKER = "worker-0"
START_S = 180.0
"""For a server to import what it needs, compile kernels that no run has compiled yet, and make the model's tables."""
STOP_S = 10.0

Connect = Callable[[Tables], JobClient]


@contextmanager
def run_servers(job: Job, job_file: Path, waiting: Callable[[str], None] = lambda _: None) -> Iterator[Connect | None]:
    """How the job that is written in `job_file` reaches its servers, while the context lasts; None if it has none.
    `waiting` is told what takes a while.

    An error of a server that ended on its own says so, whatever the worker met because of it.
    """
    servers = job.servers
    if servers is None:
        yield None
    elif servers.addresses:
        waiting(f"looking for {plural(servers.num, 'server')} at {', '.join(servers.addresses)}")
        yield _found(servers, job.seed)
    elif servers.channel == "memory":
        with _threads(servers, job.seed) as reach:
            yield reach
    else:
        waiting(f"starting {plural(servers.num, 'server')}")
        with _processes(servers, job.seed, job_file) as reach:
            yield reach


def _found(servers: Servers, seed: int) -> Connect:
    roster = first_roster(servers.addresses)
    keys = load_keys(servers.key) if servers.key is not None else None

    def reach(tables: Tables) -> JobClient:
        client = connect(
            f"{WORKER}-{secrets.token_hex(3)}",  # nobody else's: a newer life of a running job's worker would end it
            roster,
            tables,
            keys=keys,
            options=_options(servers, tables),
            faults=servers.faults,
            seed=seed,
        )
        try:
            _refuse_used(client, tables, servers.addresses)
        except BaseException:
            client.close()
            raise
        return client

    return reach


def _refuse_used(client: JobClient, tables: Tables, addresses: Sequence[str]) -> None:
    """ConfigError if another run has trained on these servers."""
    rows = [spec.name for spec in tables.sparse if client.num_rows(spec.name)]
    values = [spec.name for spec in tables.dense if client.export_dense(spec.name)[2]]
    if used := rows or values:
        raise ConfigError(
            f"the servers at {', '.join(addresses)} hold {'rows' if rows else 'values'} of an earlier run already "
            f"(table {used[0]}): start them anew; a run that is resumed brings its tables from its checkpoint"
        )


@contextmanager
def _threads(servers: Servers, seed: int) -> Iterator[Connect]:
    """Servers on threads of this process. They are made when the tables are known, and end with the context."""
    network, stop = MemoryNetwork(), threading.Event()
    roster = Roster(tuple(Seat(f"server-{number}") for number in range(servers.num)))

    def channel(name: str) -> Channel:
        plain: Channel = network.channel(name)
        return plain if servers.faults == Faults() else Checked(Faulty(plain, servers.faults, seed))

    def end(thread: threading.Thread) -> None:
        stop.set()
        thread.join()

    with ExitStack() as opened:

        def reach(tables: Tables) -> JobClient:
            shares = tables.share_memory(servers.num)
            for seat in roster.servers:
                server, socket = Server(seat.name, roster, shares), channel(seat.name)
                opened.callback(socket.close)
                thread = threading.Thread(target=serve, args=(server, socket, stop.is_set), name=seat.name, daemon=True)
                thread.start()
                opened.callback(end, thread)
            return RemoteClient(WORKER, channel(WORKER), roster, tables, options=_options(servers, tables))

        yield reach


@contextmanager
def _processes(servers: Servers, seed: int, job_file: Path) -> Iterator[Connect]:
    """Servers as processes of this machine, in a folder for their sockets that only this user may enter."""
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="heterps-"))
        addresses = [f"ipc://{folder}/{number}" for number in range(servers.num)]
        children = []
        for shard in range(servers.num):
            child = Child(f"server-{shard}", "heterps.launch.server_process")
            opened.callback(child.stop, STOP_S)
            child.send({"job": str(job_file), "addresses": addresses, "shard": shard})
            children.append(child)
        for child in children:
            child.answer(START_S, "makes its tables")
        roster = first_roster(addresses)

        def reach(tables: Tables) -> JobClient:
            options = _options(servers, tables)
            return connect(WORKER, roster, tables, options=options, faults=servers.faults, seed=seed)

        try:
            yield reach
        except PeerLost as error:
            if gone := [f"{child.name} (process {child.pid}) {how}" for child in children if (how := child.ended)]:
                raise PeerLost(f"{error}. {'; '.join(gone)}") from error
            raise


def _options(servers: Servers, tables: Tables) -> Options:
    names = [spec.name for spec in tables.sparse] + [spec.name for spec in tables.dense]
    if unknown := sorted(set(servers.codings) - set(names)):
        raise ConfigError(f"servers.codings: the job has no table {unknown[0]!r}; it has {', '.join(names)}")
    chosen = {name: servers.codings.get(name, servers.coding) for name in names}
    return Options(
        deadline_s=servers.deadline_s,
        first_retry_s=servers.retry_s,
        codings={name: Coding(c.values, c.compression, c.least_bytes) for name, c in chosen.items()},
    )
