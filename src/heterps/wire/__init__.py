"""Messaging: typed headers and raw frames over channels in memory, over ZeroMQ and over shared memory.

message     a typed header and raw frames           arrays     arrays as frames (halves: in 16 bits)
channel     the contract of channels, and memory    address    where a server may listen
zmq_channel channels between processes (zmq_socket: one socket)
shared      large frames through shared memory (arena)
simulated   a network on a simulated clock          ports      network ports of emulated machines
stack       the layers over a channel: checked (checksums), resent (nothing is lost), faults (on purpose)
keys        the key of a job                        gatekeeper only clients that hold it may connect
counters    messages and bytes

Read first: message.py, then channel.py.
"""

from heterps.wire.arrays import Packed, PackedKeys, pack_keys, pack_values, unpack_keys, unpack_values
from heterps.wire.channel import BackPressure, Channel, MemoryNetwork, Received, receive_within
from heterps.wire.checked import Checked
from heterps.wire.counters import Counters
from heterps.wire.faults import Faulty
from heterps.wire.keys import Keys, create_keys, load_keys
from heterps.wire.message import BadMagic, BadVersion, Codec, Frame, Limits, Malformed, TooLarge, WireError
from heterps.wire.shared import Shared, SharedOptions
from heterps.wire.simulated import SimulatedNetwork
from heterps.wire.zmq_channel import ClientChannel, ServerChannel
from heterps.wire.zmq_socket import SocketOptions

__all__ = [
    "BackPressure",
    "BadMagic",
    "BadVersion",
    "Channel",
    "Checked",
    "ClientChannel",
    "Codec",
    "Counters",
    "Faulty",
    "Frame",
    "Keys",
    "Limits",
    "Malformed",
    "MemoryNetwork",
    "Packed",
    "PackedKeys",
    "Received",
    "ServerChannel",
    "Shared",
    "SharedOptions",
    "SimulatedNetwork",
    "SocketOptions",
    "TooLarge",
    "WireError",
    "create_keys",
    "load_keys",
    "pack_keys",
    "pack_values",
    "receive_within",
    "unpack_keys",
    "unpack_values",
]
