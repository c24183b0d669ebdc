"""The stack of channel layers that every process of a job uses, over any carrier.

    Shared     large frames in shared memory     between processes of one machine; other frames use the socket
    Checked    a checksum over each message      a flipped bit is detected, and the message is requested again
    Faulty     injected faults                   where the job asks for them, below the checksum that detects them
    socket, or memory

Both ends stack the same layers, so that no two processes have to agree on them first. The checksum is below the shared
memory: it covers what the carrier moves, including the place of each shared frame, but not the shared memory itself. A
pass over that at both ends would take as long as everything else that is done with it.
"""

from __future__ import annotations

from heterps.config import Faults
from heterps.wire.channel import Channel
from heterps.wire.checked import Checked
from heterps.wire.faults import Faulty
from heterps.wire.shared import Shared


def layered(channel: Channel, faults: Faults = Faults(), seed: int = 0) -> Shared:
    """Wrap `channel` in the layers that every process of a job uses. `seed` decides which messages meet a fault."""
    return Shared(Checked(channel if faults == Faults() else Faulty(channel, faults, seed)))
