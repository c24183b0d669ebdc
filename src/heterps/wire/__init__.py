"""Messaging: typed headers and raw frames over channels in memory, over ZeroMQ and over shared memory."""

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
