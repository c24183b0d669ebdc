"""A RemoteClient over ZeroMQ."""

from __future__ import annotations

from heterps.config import Faults
from heterps.ps.client.remote import RemoteClient
from heterps.ps.client.session import Options
from heterps.ps.protocol.roster import Roster
from heterps.ps.protocol.specs import Tables
from heterps.wire.keys import Keys
from heterps.wire.ports import Port
from heterps.wire.stack import layered
from heterps.wire.zmq_channel import ClientChannel


def connect(
    worker: str,
    roster: Roster,
    tables: Tables,
    *,
    incarnation: int = 1,
    keys: Keys | None = None,
    options: Options = Options(),
    faults: Faults = Faults(),
    seed: int = 0,
    start_s: float | None = None,
    port: Port | None = None,
) -> RemoteClient:
    """Return a client of the servers of `roster`, at their addresses. PeerLost where one cannot be reached in time.

    What it sends meets `faults`, by `seed`.

    start_s  to wait for servers that are still being started; none: the deadline of the options
    port     of the emulated machine that the client is on
    """
    channel = ClientChannel(f"{worker}.{incarnation}", {}, keys=keys)
    reached: dict[str, str] = {}

    def reach(newest: Roster) -> None:
        for seat in newest.servers:
            if reached.get(seat.name) != seat.address:
                channel.connect(seat.name, seat.address)
                reached[seat.name] = seat.address

    try:
        reach(roster)
        for seat in roster.servers:
            channel.wait_connected(seat.name, options.deadline_s if start_s is None else start_s)
    except BaseException:
        channel.close()
        raise
    return RemoteClient(
        worker,
        layered(channel, faults, seed, port),
        roster,
        tables,
        incarnation=incarnation,
        options=options,
        connect=reach,
    )
