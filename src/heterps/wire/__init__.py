"""How messages travel: typed headers and raw frames over channels in memory, over ZeroMQ and over shared memory."""

from heterps.wire.arrays import Packed, PackedKeys, pack_keys, pack_values, unpack_keys, unpack_values
from heterps.wire.channel import BackPressure, Channel, MemoryNetwork, Received, receive_within
from heterps.wire.counters import Counters
from heterps.wire.message import BadMagic, BadVersion, Codec, Frame, Limits, Malformed, TooLarge, WireError

__all__ = [
    "BackPressure",
    "BadMagic",
    "BadVersion",
    "Channel",
    "Codec",
    "Counters",
    "Frame",
    "Limits",
    "Malformed",
    "MemoryNetwork",
    "Packed",
    "PackedKeys",
    "Received",
    "TooLarge",
    "WireError",
    "pack_keys",
    "pack_values",
    "receive_within",
    "unpack_keys",
    "unpack_values",
]
