"""A server as a process: its channel, and a clean end when told to stop. It computes no layers and needs no torch."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import numpy as np

from heterps.config import Servers
from heterps.errors import ConfigError
from heterps.ps.client.ask import ask, asker_channel
from heterps.ps.client.rebalance import run_rebalance
from heterps.ps.client.session import Options
from heterps.ps.protocol.messages import AskRoster, Coding, Welcome
from heterps.ps.protocol.roster import Roster, Seat
from heterps.ps.protocol.specs import DENSE, TableSpecs
from heterps.ps.server.serve import serve
from heterps.ps.server.server import Server
from heterps.training.protocol.emulated_units import EmulatedServer
from heterps.training.protocol.pacing import ServerPace
from heterps.wire.keys import Keys
from heterps.wire.ports import Port
from heterps.wire.stack import layered
from heterps.wire.zmq_channel import ServerChannel


def client_options(servers: Servers, tables: TableSpecs, port: Port | None = None) -> Options:
    """Options of the clients through which workers talk to the servers of a job.

    Behind an emulated port an answer may be long in coming, and a request that is sent again would fill the port.
    """
    retry_s = servers.retry_s if port is None else max(servers.retry_s, servers.deadline_s / 2)
    names = [spec.name for spec in tables.sparse] + [spec.name for spec in tables.dense]
    if unknown := sorted(set(servers.codings) - {*names, DENSE}):
        raise ConfigError(f"servers.codings: the job has no table {unknown[0]!r}; it has {', '.join(names)}")
    of_dense = servers.codings.get(DENSE, servers.coding)  # those of stages too, whatever their names
    chosen = {spec.name: servers.codings.get(spec.name, servers.coding) for spec in tables.sparse}
    chosen |= {spec.name: servers.codings.get(spec.name, of_dense) for spec in tables.dense}
    return Options(
        deadline_s=servers.deadline_s,
        first_retry_s=retry_s,
        longest_retry_s=max(retry_s, Options.longest_retry_s),
        codings={name: Coding(c.values, c.compression, c.least_bytes) for name, c in chosen.items()},
    )


def first_roster(addresses: Sequence[str], mirrors: Sequence[str] = ()) -> Roster:
    """The roster that a job begins with: one server per address, and its mirror if there is an address for it."""
    if len({*addresses, *mirrors}) < len(addresses) + len(mirrors):
        raise ConfigError(f"every server needs an address of its own, got {', '.join([*addresses, *mirrors])}")
    return Roster(
        tuple(Seat(f"server-{number}", address) for number, address in enumerate(addresses)),
        mirrors=tuple(Seat(f"server-{number}.1", address) for number, address in enumerate(mirrors)),
    )


def joined_roster(running: str, address: str, keys: Keys | None) -> Roster:
    """The roster of the job that the server at `running` is in, with one more server at `address`."""
    roster = ask_roster(running, keys)
    return roster.add(Seat(f"server-{roster.num_shards}", address, incarnation=roster.epoch + 1))


def ask_roster(address: str, keys: Keys | None) -> Roster:
    """The roster that the server at `address` follows."""
    channel = asker_channel({address: address}, keys)
    try:
        answer, _ = ask(channel, address, AskRoster(1))
    finally:
        channel.close()
    assert isinstance(answer, Welcome)
    return answer.roster


def rebalance_servers(address: str, *, drop_last: bool, keys: Keys | None) -> tuple[Roster, int]:
    """Moves rows to the server that joins at `address`, or from the last one of its job. Returns the bytes moved."""
    known = ask_roster(address, keys)
    try:
        old, new = (known, known.drop_last()) if drop_last else (known.before_add(), known)
    except ValueError as error:
        raise ConfigError(f"{address}: {error}; start a server with --join before") from None
    seats = (*old.servers, *new.servers)
    channel = asker_channel({seat.name: seat.address for seat in seats}, keys)
    try:
        return new, run_rebalance(channel, old, new)
    finally:
        channel.close()


def run_server(
    server: Server,
    address: str,
    *,
    keys: Keys | None,
    ready: Callable[[str], None],
    servers: Servers | None = None,
    seed: int = 0,
    ended: Callable[[], bool] = lambda: False,
    emulated: EmulatedServer | None = None,
    ticked: Callable[[], None] = lambda: None,
    grace_s: float = 0.0,
) -> None:
    """Serves at `address` until SIGTERM or SIGINT, or until `ended`; `ready` is told where the server listens.

    servers  the job's configuration of its servers, with their injected faults
    emulated what an emulated server can do
    ticked   is called about every second, between two messages
    grace_s  for so long it goes on after SIGTERM, and tells the keeper, which makes sure that it can be spared
    """
    warm_up_server(server)
    with _stop_signals() as received:

        def stopped() -> bool:
            if signal.SIGTERM not in received:
                return bool(received)
            server.mirroring.is_leaving = True
            return signal.SIGINT in received or time.monotonic() > received[signal.SIGTERM] + grace_s

        socket = ServerChannel(server.name, address, keys=keys)
        channel = layered(socket, (servers or Servers()).faults, seed, emulated.port if emulated else None)
        try:
            ready(socket.address)
            pace = ServerPace(emulated) if emulated else None
            serve(server, channel, lambda: stopped() or ended(), pace=pace, reach=socket.reach, ticked=ticked)
        finally:
            channel.close()


def warm_up_server(server: Server) -> None:
    """Compiles the kernels, or loads compiled ones, before the first worker waits: messages bring read-only arrays."""
    keys, grads = np.zeros(1, np.uint64), np.zeros((1, 1), np.float32)
    for optimizer in {spec.optimizer for spec in server.tables.sparse}:
        table = next(spec for spec in server.tables.sparse if spec.optimizer == optimizer).make_shard()
        grads = np.zeros((1, table.dim), np.float32)
        for writeable in (True, False):
            keys.flags.writeable = grads.flags.writeable = writeable
            table.pull(keys)
            table.push_unique(keys, grads, samples=0)
            table.put(table.take(keys))  # as when rows are loaded, which must not take long either
        keys.flags.writeable = True


@contextmanager
def _stop_signals() -> Iterator[dict[int, float]]:
    """When SIGTERM or SIGINT came first; outside the context both signals do what they did before."""
    received: dict[int, float] = {}

    def note(number: int, _: FrameType | None) -> None:
        received.setdefault(number, time.monotonic())

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
