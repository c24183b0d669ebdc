"""Servers for tests: on threads with a memory network, or in one thread on a network that a seed makes unreliable."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np

from heterps.config import SGD, Adagrad, Optimizer
from heterps.ps.calls import EXACT, PullRowsCall, PushDenseCall, PushRowsCall
from heterps.ps.client import TableSpec
from heterps.ps.dedup import make_lookup
from heterps.ps.remote import RemoteClient
from heterps.ps.roster import Roster, Seat
from heterps.ps.serve import serve
from heterps.ps.server import Server
from heterps.ps.session import Options, Session
from heterps.ps.shard import DenseSpec, Tables
from heterps.wire import MemoryNetwork
from heterps.wire.message import contiguous

DIM = 4


def make_tables(optimizer: Optimizer = Adagrad(lr=0.1), dense: Optimizer = SGD(lr=0.1), dense_size: int = 10) -> Tables:
    sparse = TableSpec("rows", DIM, optimizer, 3, 0.1), TableSpec("wide", 1, optimizer, 4, 0.1)
    return Tables(sparse, (DenseSpec("dense", dense_size, dense),))


def make_roster(num_servers: int) -> Roster:
    return Roster(tuple(Seat(f"server-{number}") for number in range(num_servers)), num_servers)


@contextmanager
def threaded_servers(roster: Roster, tables: Tables, network: MemoryNetwork) -> Iterator[list[Server]]:
    """Every server of the roster on a thread of its own."""
    servers = [Server(seat.name, roster, tables) for seat in roster.servers]
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
def remote_client(num_servers: int, tables: Tables, options: Options = Options()) -> Iterator[RemoteClient]:
    network, roster = MemoryNetwork(), make_roster(num_servers)
    with threaded_servers(roster, tables, network):
        client = RemoteClient("worker", network.channel("worker"), roster, tables, options=options)
        try:
            yield client
        finally:
            client.close()


class Storm:
    """A network in one thread on a simulated clock that drops, doubles, delays, reorders and cuts, by a seed."""

    def __init__(
        self, seed: int, drop: float = 0.2, double: float = 0.2, late_s: float = 3.0, cut: float = 0.02
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.servers: dict[str, Server] = {}
        self.sessions: dict[str, Session] = {}
        self.inboxes: dict[str, list[tuple[str, list[Any]]]] = {}  # of those that look for themselves
        self._rates = drop, double, late_s, cut
        self._under_way: list[tuple[float, int, str, str, list[Any]]] = []
        self._sent = 0
        self._cut_until: dict[frozenset[str], float] = {}

    def send(self, sender: str, peer: str, parts: list[Any]) -> None:
        drop, double, late_s, cut = self._rates
        pair = frozenset((sender, peer))
        if self.random.random() < cut:
            self._cut_until[pair] = self.now + self.random.random() * 2 * late_s
        if self.random.random() < drop or self.now < self._cut_until.get(pair, 0.0):
            return
        for _ in range(2 if self.random.random() < double else 1):
            self._sent += 1
            arrival = self.now + self.random.random() ** 3 * late_s
            self._under_way.append((arrival, self._sent, sender, peer, [contiguous(part) for part in parts]))

    def step(self) -> None:
        """Deliver the next message, or let time pass until somebody wants to do something."""
        for name, session in self.sessions.items():
            for peer, parts in session.outgoing(self.now):
                self.send(name, peer, parts)
            self._settle(session)
        times = [t for session in self.sessions.values() if (t := session.next_time()) is not None]
        first = min(self._under_way, default=None)
        if first is None or (times and min(times) < first[0]):
            self.now = max(self.now + 1e-6, min(times, default=self.now))
            return
        self._under_way.remove(first)
        self.now, _, sender, peer, parts = max(first[0], self.now), *first[1:]
        if peer in self.servers:
            for target, answer in self.servers[peer].handle(sender, parts, self.now):
                self.send(peer, target, answer)
        elif peer in self.inboxes:
            self.inboxes[peer].append((sender, parts))
        elif peer in self.sessions:
            self.sessions[peer].receive(sender, parts, self.now)
            self._settle(self.sessions[peer])

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
        while self._under_way:
            self.step()

    @staticmethod
    def _settle(session: Session) -> None:
        for future, value in session.finished():
            if isinstance(value, BaseException):
                future.set_exception(value)
            else:
                future.set_result(value)


OPTIONS = Options(deadline_s=1e6, first_retry_s=1.0, longest_retry_s=4.0, max_requests=3)


class Worker:
    """Makes calls of a session and keeps what they are to give."""

    def __init__(self, storm: Storm, name: str, tables: Tables, num_servers: int, options: Options = OPTIONS) -> None:
        self.session = storm.sessions[name] = Session(name, 1, make_roster(num_servers), tables.digest, options)
        self.storm = storm
        self.pushes = {"rows": 0, "dense": 0}
        self.futures: list[Future[Any]] = []

    def call(self, call) -> Future[Any]:
        future: Future[Any] = Future()
        self.session.submit(call, future, self.pushes[call.table], self.storm.now)
        self.futures.append(future)
        return future

    def push(self, keys: np.ndarray, grads: np.ndarray) -> None:
        """Gradients of distinct keys."""
        self.pushes["rows"] += 1
        lookup = make_lookup(keys, self.session.roster.num_shards)
        self.call(PushRowsCall("rows", lookup, grads[lookup.sources], self.pushes["rows"], EXACT))

    def pull(self, keys: np.ndarray) -> Future[Any]:
        lookup = make_lookup(keys, self.session.roster.num_shards)
        return self.call(PullRowsCall("rows", lookup, DIM, after=self.pushes["rows"], create=True, coding=EXACT))

    def push_dense(self, grads: np.ndarray) -> None:
        self.pushes["dense"] += 1
        self.call(PushDenseCall("dense", grads, self.pushes["dense"], EXACT))


def make_storm(seed: int, tables: Tables, num_servers: int, **rates: float) -> Storm:
    storm = Storm(seed, **rates)
    roster = make_roster(num_servers)
    storm.servers = {seat.name: Server(seat.name, roster, tables) for seat in roster.servers}
    return storm


def sorted_rows(parts: list[Any]) -> list[np.ndarray]:
    """Rows of all shards of a table by key."""
    fields = [np.concatenate(field) for field in zip(*parts, strict=True)]
    order = np.argsort(fields[0])
    return [field[order] for field in fields]
