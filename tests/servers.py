"""Servers for tests: on threads with a memory network, or in one thread on a simulated network."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np

from heterps.config import SGD, Adagrad, Faults, Optimizer
from heterps.ps.client.remote import RemoteClient
from heterps.ps.client.session import Options, Session
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.keys.placement import slots_of
from heterps.ps.ops.dense import PushDenseCall
from heterps.ps.ops.rows import PullRowsCall, PushRowsCall
from heterps.ps.protocol.messages import EXACT, Round
from heterps.ps.protocol.roster import Roster, Seat
from heterps.ps.protocol.specs import DenseSpec, TableSpec, TableSpecs
from heterps.ps.server.serve import serve
from heterps.ps.server.server import Server
from heterps.ps.shard.transfer import PieceManifest, ShardTransfer, make_transfer
from heterps.wire import MemoryNetwork, SimulatedNetwork

DIM = 4


def make_tables(
    optimizer: Optimizer = Adagrad(lr=0.1), dense: Optimizer = SGD(lr=0.1), dense_size: int = 10
) -> TableSpecs:
    sparse = TableSpec("rows", DIM, optimizer, 3, 0.1), TableSpec("wide", 1, optimizer, 4, 0.1)
    return TableSpecs(sparse, (DenseSpec("dense", dense_size, dense),))


def make_roster(num_servers: int) -> Roster:
    return Roster(tuple(Seat(f"server-{number}") for number in range(num_servers)))


@contextmanager
def threaded_servers(
    roster: Roster,
    tables: TableSpecs,
    network: MemoryNetwork,
    names: Sequence[str] | None = None,
    *,
    joining: bool = False,
) -> Iterator[list[Server]]:
    """Every server of the roster, or those of these names, on a thread of its own."""
    seats = [seat for seat in roster.servers if names is None or seat.name in names]
    servers = [Server(seat.name, roster, tables, joining=joining) for seat in seats]
    channels = [network.channel(server.name) for server in servers]
    stop = threading.Event()
    threads = [
        threading.Thread(target=serve, args=(server, channel, stop.is_set, 0.01))
        for server, channel in zip(servers, channels, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield servers
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for channel in channels:
            channel.close()


@contextmanager
def remote_client(num_servers: int, tables: TableSpecs, options: Options = Options()) -> Iterator[RemoteClient]:
    network, roster = MemoryNetwork(), make_roster(num_servers)
    with threaded_servers(roster, tables, network):
        client = RemoteClient("worker", network.channel("worker"), roster, tables, options=options)
        try:
            yield client
        finally:
            client.close()


STORM = Faults(drop=0.2, double=0.2, delay_s=0.05, reorder=0.5, reorder_s=3.0, cut=0.02, cut_s=3.0)


class SimulatedJob:
    """Servers and sessions in one thread on a simulated network, which loses, doubles and reorders by a seed."""

    def __init__(self, seed: int, tables: TableSpecs, num_servers: int, faults: Faults = STORM) -> None:
        self.network = SimulatedNetwork(seed, faults=faults)
        self.random = random.Random(seed)
        self.tables = tables
        self.roster = make_roster(num_servers)
        self.servers: dict[str, Server] = {}
        self.sessions: dict[str, Session] = {}
        for seat in self.roster.servers:
            self.add_server(Server(seat.name, self.roster, tables))

    @property
    def now(self) -> float:
        return self.network.now_s

    def add_server(self, server: Server) -> None:
        self.servers[server.name] = server
        self.network.attach(server.name, lambda now, sender, parts: server.handle(sender, parts, now))

    def add_session(self, session: Session) -> None:
        def receive(now: float, sender: str, parts: list[memoryview]) -> tuple[()]:
            session.receive(sender, parts, now)
            return ()

        self.sessions[session.worker] = session
        self.network.attach(session.worker, receive)

    def step(self) -> bool:
        """Send what sessions want to send and go on to what happens next; False if nothing will."""
        for name, session in self.sessions.items():
            for peer, parts in session.outgoing(self.now):
                self.network.send(name, peer, parts)
            settle(session)
        times = [self.network.next_time_s, *(session.next_time() for session in self.sessions.values())]
        known = [time for time in times if time is not None]
        if known:
            self.network.step(max(min(known), self.now + 0.001))
        return bool(known)

    def finish(self, futures: list[Future[Any]], max_steps: int = 200_000) -> None:
        """Go on until all futures are done."""
        for session in self.sessions.values():
            session.flush()
        for _ in range(max_steps):
            if all(future.done() for future in futures):
                return
            self.step()
        raise AssertionError(f"{sum(not f.done() for f in futures)} calls unanswered after {max_steps} steps")

    def deliver_leftovers(self) -> None:
        """Whatever is still under way arrives after all."""
        while (time := self.network.next_time_s) is not None:
            self.network.step(time)


def settle(session: Session) -> None:
    for future, value in session.finished():
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)


OPTIONS = Options(deadline_s=1e6, first_retry_s=1.0, longest_retry_s=4.0, max_requests=3)


class Worker:
    """Makes calls of a session and keeps what they are to give."""

    def __init__(self, job: SimulatedJob, name: str, options: Options = OPTIONS) -> None:
        self.session = Session(name, 1, job.roster, job.tables.digest, options)
        self.job = job
        self.pushes = {"rows": 0, "dense": 0}
        self.futures: list[Future[Any]] = []
        job.add_session(self.session)

    def call(self, call) -> Future[Any]:
        future: Future[Any] = Future()
        self.session.submit(call, future, self.pushes[call.table], self.job.now)
        self.futures.append(future)
        return future

    def push(self, keys: np.ndarray, grads: np.ndarray, round: Round | None = None, samples: int | None = None) -> None:
        """Gradients of distinct keys."""
        self.pushes["rows"] += 1
        lookup = make_lookup(keys, self.session.roster.num_shards)
        sequence = self.pushes["rows"]
        self.call(PushRowsCall("rows", lookup, grads[lookup.sources], sequence, EXACT, samples, round))

    def pull(self, keys: np.ndarray) -> Future[Any]:
        lookup = make_lookup(keys, self.session.roster.num_shards)
        return self.call(PullRowsCall("rows", lookup, DIM, after=self.pushes["rows"], create=True, coding=EXACT))

    def push_dense(self, grads: np.ndarray, round: Round | None = None, samples: int | None = None) -> None:
        self.pushes["dense"] += 1
        self.call(PushDenseCall("dense", grads, self.pushes["dense"], EXACT, samples, round))


def save_shard(server: Server) -> ShardTransfer:
    """A copy of all tables of a server and of what has been applied to them."""
    return server.shard.copy(server.shard.slots, server.shard.ranges, server.workers)


def restore_shard(server: Server, saved: Sequence[ShardTransfer]) -> None:
    """Fill the empty tables of a server from what others, of whatever number, had at one moment."""
    slots, ranges = server.shard.slots, server.shard.ranges
    server.shard.empty()
    for transfer in saved:
        mine = [[slot for slot in piece.slots if slots[slot]] for piece in transfer.manifest.pieces]
        pieces = [PieceManifest(s, p.ledger) for s, p in zip(mine, transfer.manifest.pieces, strict=True) if s]
        rows = {name: rows.select(slots[slots_of(rows.keys)]) for name, rows in transfer.rows.items()}
        cut = {
            name: [each._replace(part=each.part.cut(ranges[name])) for each in parts]
            for name, parts in transfer.dense.items()
        }
        dense = {name: [each for each in parts if len(each.part.values)] for name, parts in cut.items()}
        server._load(make_transfer(pieces, transfer.manifest.workers, rows, dense))


def sorted_rows(parts: list[Any]) -> list[np.ndarray]:
    """Rows of all shards of a table by key."""
    fields = [np.concatenate(field) for field in zip(*parts, strict=True)]
    order = np.argsort(fields[0])
    return [field[order] for field in fields]
