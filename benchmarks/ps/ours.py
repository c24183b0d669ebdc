"""heterps: servers of each channel, and the client that training uses."""

from __future__ import annotations

import sys
import threading

from load import SPEC, TABLES, Case, Load, Wait

from heterps.ps.client.connect import connect
from heterps.ps.client.local import LocalClient
from heterps.ps.client.remote import RemoteClient
from heterps.ps.client.session import Options
from heterps.ps.protocol.messages import Coding
from heterps.ps.protocol.roster import Roster, Seat
from heterps.ps.server.serve import serve
from heterps.ps.server.server import Server
from heterps.wire import Checked, ClientChannel, MemoryNetwork, ServerChannel, SocketOptions
from heterps.wire.stack import layered

OPEN = SocketOptions(open_loopback=True)  # tcp without keys
# memory: servers on threads of the client's process; ipc, tcp: sockets with checksums, as between machines;
# shm: what processes of one machine get from `connect`.
CHANNELS = ("memory", "ipc", "tcp", "shm")


def roster_of(addresses: list[str]) -> Roster:
    return Roster(tuple(Seat(f"server-{n}", address) for n, address in enumerate(addresses)), len(addresses))


def run_server(channel: str, number: int, num_servers: int, address: str) -> None:
    """Serve until stdin is closed. The address bound is the first line of stdout."""
    roster = roster_of([f"{address}-{n}" for n in range(num_servers)])
    server = Server(f"server-{number}", roster, TABLES)
    bound = ServerChannel(server.name, address, options=OPEN)
    print(bound.address, flush=True)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    outer = layered(bound) if channel == "shm" else Checked(bound)
    serve(server, outer, ended.is_set)
    outer.close()


class MemoryServers:
    """Servers on threads of this process; they keep their tables from turn to turn."""

    def __init__(self, num_servers: int) -> None:
        self.network = MemoryNetwork()
        self.roster = roster_of([""] * num_servers)
        self._ended = threading.Event()
        for seat in self.roster.servers:
            server, channel = Server(seat.name, self.roster, TABLES), self.network.channel(seat.name)
            threading.Thread(target=serve, args=(server, channel, self._ended.is_set), daemon=True).start()


class Remote:
    """RemoteClient at the servers of a case."""

    def __init__(self, load: Load, client: RemoteClient, *, is_alone: bool) -> None:
        self._load, self._client, self._is_alone = load, client, is_alone

    def pull(self, number: int) -> Wait:
        return self._begin(self._client.pull("rows", self._load.lookups[number]).result)

    def push(self, number: int) -> Wait:
        return self._begin(self._client.push("rows", self._load.lookups[number], self._load.grads).result)

    def _begin(self, wait: Wait) -> Wait:
        if not self._is_alone:  # waiting sends, too
            self._client.flush()
        return wait

    def close(self) -> None:
        self._client.close()


def make_remote(load: Load, case: Case, addresses: list[str], memory: MemoryServers | None, worker: str) -> Remote:
    options = Options(codings={"rows": Coding(case.values)})  # type: ignore[arg-type]
    if memory is not None:
        client = RemoteClient(worker, memory.network.channel(worker), memory.roster, TABLES, options=options)
    elif case.kind == "shm":
        client = connect(worker, roster_of(addresses), TABLES, options=options)
    else:
        roster = roster_of(addresses)
        channel = Checked(ClientChannel(worker, {seat.name: seat.address for seat in roster.servers}, options=OPEN))
        client = RemoteClient(worker, channel, roster, TABLES, options=options)
    return Remote(load, client, is_alone=case.in_flight == 1)


class InProcess:
    """The same table without servers: LocalClient."""

    def __init__(self, load: Load) -> None:
        self._load, self._client = load, LocalClient([SPEC], {})

    def pull(self, number: int) -> Wait:
        return self._client.pull("rows", self._load.lookups[number]).result

    def push(self, number: int) -> Wait:
        return self._client.push("rows", self._load.lookups[number], self._load.grads).result

    def close(self) -> None:
        self._client.close()
