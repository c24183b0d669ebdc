"""The channel that every process of a job speaks through, whatever carries it.

    Shared     large frames in shared memory     between processes of one machine; others go on over the socket
    Checked    a checksum over each message      a bit that flips on the way is noticed, and the message asked for again
    Faulty     faults on purpose                 where the job asks for them, below the checksum that finds them out
    socket, or memory

Both ends stack the same layers, so that no two processes have to agree on them first. The checksum is below the shared
memory: it covers what travels, where each shared frame lies included. What lies in memory does not travel, and a pass
over it at both ends would take as long as everything else that is done with it.
"""

from __future__ import annotations

from heterps.config import Faults
from heterps.wire.channel import Channel
from heterps.wire.checked import Checked
from heterps.wire.faults import Faulty
from heterps.wire.shared import Shared


def layered(channel: Channel, faults: Faults = Faults(), seed: int = 0) -> Shared:
    """`channel` with the layers of a job's processes. `seed` decides what meets a fault."""
    return Shared(Checked(channel if faults == Faults() else Faulty(channel, faults, seed)))
