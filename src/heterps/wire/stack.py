"""The stack of channel layers that every process of a job uses, over any carrier.

    Shared     large frames in shared memory     between processes of one machine; other frames use the socket
    Resent     what was lost with a connection   is sent again: where messages have no answers, between machines
    Checked    a checksum over each message      a message with a flipped bit is dropped, as one that was lost
    Faulty     injected faults                   where the job asks for them, below the checksum that detects them
    Limited    ports of emulated machines        where units are emulated; nothing is then in shared memory
    socket, or memory

Both ends stack the same layers, so that no two processes have to agree on them first. The checksum is below the shared
memory: it covers what the carrier moves, including the place of each shared frame, but not the shared memory itself. A
pass over that at both ends would take as long as everything else that is done with it.
"""

from __future__ import annotations

import sys

from heterps.config import Faults
from heterps.wire.channel import Channel
from heterps.wire.checked import Checked
from heterps.wire.faults import Faulty
from heterps.wire.ports import Limited, Port
from heterps.wire.resent import Resent
from heterps.wire.shared import Shared, SharedOptions

NOT_SHARED = SharedOptions(least_bytes=sys.maxsize)


def layered(channel: Channel, faults: Faults = Faults(), seed: int = 0, port: Port | None = None) -> Shared:
    """Wrap `channel` in the layers that every process of a job uses. `seed` decides which messages meet a fault.

    With the `port` of an emulated machine all bytes go through it, and so through the carrier.
    """
    below = channel if port is None else Limited(channel, port)
    faulty = below if faults == Faults() else Faulty(below, faults, seed)
    return _shared(Checked(faulty), port)


def resending(channel: Channel, port: Port | None = None, deadline_s: float | None = None) -> Shared:
    """Wrap `channel` as `layered` does, for messages that nobody asks for again: they outlive their connection.

    deadline_s  seconds for which a peer may be out of reach; None: as long as it likes
    """
    below = channel if port is None else Limited(channel, port)
    return _shared(Resent(Checked(below), deadline_s), port)


def _shared(channel: Channel, port: Port | None) -> Shared:
    return Shared(channel, SharedOptions() if port is None else NOT_SHARED)
