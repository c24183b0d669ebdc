"""A RemoteClient over ZeroMQ."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from heterps.config import Faults
from heterps.errors import PeerLost
from heterps.ps.client.ask import ask
from heterps.ps.client.remote import RemoteClient
from heterps.ps.client.session import Options
from heterps.ps.protocol.messages import AskRoster, Welcome
from heterps.ps.protocol.roster import Roster
from heterps.ps.protocol.specs import TableSpecs
from heterps.wire import Channel
from heterps.wire.keys import Keys
from heterps.wire.ports import Port
from heterps.wire.stack import layered
from heterps.wire.zmq_channel import ClientChannel

LOOK_S = 2.0
"""Seconds to wait for a server, or for the answer of its mirror, before the other is asked."""


def connect(
    worker: str,
    roster: Roster,
    tables: TableSpecs,
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
    stacked = layered(channel, faults, seed, port)
    reached: dict[str, str] = {}

    def reach(newest: Roster) -> None:
        wanted = {seat.name: seat.address for seat in newest.seats}
        for name in [name for name in reached if name not in wanted]:
            channel.disconnect(name)
            del reached[name]
        for name, address in wanted.items():
            if reached.get(name) != address:
                channel.connect(name, address)
                reached[name] = address

    try:
        roster = _reached(stacked, channel, roster, reach, options.deadline_s if start_s is None else start_s)
    except BaseException:
        channel.close()
        raise
    return RemoteClient(
        worker,
        stacked,
        roster,
        tables,
        incarnation=incarnation,
        options=options,
        connect=reach,
    )


def _reached(
    stacked: Channel, channel: ClientChannel, roster: Roster, reach: Callable[[Roster], None], deadline_s: float
) -> Roster:
    """Wait until all servers are connected; return their roster, which is newer where a mirror has taken over."""
    deadline = time.monotonic() + deadline_s
    reach(roster)
    number = 0
    while number < roster.num_shards:
        mirror, left_s = roster.mirror(number), max(deadline - time.monotonic(), 0.0)
        try:
            channel.wait_connected(roster.servers[number].name, left_s if mirror is None else min(left_s, LOOK_S))
            number += 1
        except PeerLost:
            if mirror is None or time.monotonic() >= deadline:
                raise
            with suppress(PeerLost):
                answer, _ = ask(stacked, mirror.name, AskRoster(1), deadline_s=LOOK_S)
                if isinstance(answer, Welcome) and answer.roster.epoch > roster.epoch:
                    roster, number = answer.roster, 0
                    reach(roster)
    return roster
