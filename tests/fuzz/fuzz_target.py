"""What a peer may send, and what must hold whatever it is: for the fuzzer, and for the inputs that it found.

input   mode | length, bytes | length, bytes | ...
mode 0  the pieces are the parts of a message, as they are
mode 1  the first piece is a header, the others are frames: a prefix that fits them is put before, so that mutations
        reach what is behind it
mode 2  as 1, at a server that is still being filled
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from heterps.config import SGD, Adam
from heterps.ps.client.session import Options, Session
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.ops.requests import client_codec, server_codec
from heterps.ps.ops.rows import PullRowsCall
from heterps.ps.protocol.messages import EXACT, AskStats, Hello, Refused, StatsReply
from heterps.ps.protocol.roster import Roster, Seat
from heterps.ps.protocol.specs import DenseSpec, TableSpec, TableSpecs
from heterps.ps.server.server import Server
from heterps.wire import Frame, Limits, WireError
from heterps.wire.message import contiguous

LIMITS = Limits(header_bytes=64 * 1024, frames=64, message_bytes=2**20)
TABLES = TableSpecs(
    (TableSpec("rows", 4, Adam(), 3, 0.1), TableSpec("wide", 1, SGD(lr=0.1), 4, 0.1)), (DenseSpec("dense", 10, Adam()),)
)
ROSTER = Roster((Seat("server-0"), Seat("server-1")))
REQUESTS, ANSWERS = server_codec(LIMITS), client_codec(LIMITS)


def cut(data: bytes) -> tuple[int, list[memoryview]]:
    """The mode and the parts of the message that an input stands for."""
    mode, pieces, at = data[0] % 3 if data else 0, [], 1
    while at + 2 <= len(data):
        (size,) = struct.unpack_from("<H", data, at)
        pieces.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    if mode and pieces:
        header, frames = pieces[0], pieces[1:]
        sizes = struct.pack(f"<{len(frames)}Q", *map(len, frames))
        pieces = [b"HPSW" + struct.pack("<BBHI", 1, 0, len(frames) % 2**16, len(header)) + sizes + header, *frames]
    return mode, [memoryview(piece) for piece in pieces]


def as_input(mode: int, parts: Sequence[Frame]) -> bytes:
    """The input that `cut` makes this message of."""
    pieces = [bytes(contiguous(part)) for part in parts]
    if mode:
        pieces[0] = pieces[0][12 + 8 * (len(pieces) - 1) :]
    return bytes([mode]) + b"".join(struct.pack("<H", len(piece)) + piece for piece in pieces)


def run(data: bytes) -> None:
    """A server and a session that get the message live on, and say of it what they must."""
    mode, parts = cut(data)
    check_server(make_server(is_joining=mode == 2), parts, len(data))
    check_session(parts)


def make_server(*, is_joining: bool = False) -> Server:
    if is_joining:
        return Server("server-1", Roster(ROSTER.servers, epoch=2), TABLES, joining=True, limits=LIMITS)
    server = Server("server-0", ROSTER, TABLES, limits=LIMITS)
    hello = REQUESTS.encode(Hello(1, "worker", 1, TABLES.digest))
    server.handle("peer", [contiguous(part) for part in hello], 0.0)
    return server


def check_server(server: Server, parts: list[memoryview], num_bytes: int) -> None:
    answers = server.handle("peer", parts, 0.0)
    decoded = [ANSWERS.decode([contiguous(part) for part in answer])[0] for _, answer in answers]
    num_refused = sum(isinstance(answer, Refused) for answer in decoded)
    num_unanswered = 0 if answers or server.stats().held else 1
    assert sum(server.counts.dropped.values()) == num_refused + num_unanswered, "what was not done is counted"
    num_rows = sum(len(table) for table in server.shard.sparse.values())
    assert num_rows <= num_bytes, f"{num_bytes} bytes made {num_rows} rows"
    server.tick(100.0)
    (answer,) = server.handle("peer", [contiguous(part) for part in REQUESTS.encode(AskStats(9))], 100.0)
    assert isinstance(ANSWERS.decode([contiguous(part) for part in answer[1]])[0], StatsReply)


def check_session(parts: list[memoryview]) -> None:
    session = Session("worker", 1, ROSTER, TABLES.digest, Options(), LIMITS)
    lookup = make_lookup(np.arange(20), 2)
    future: Future[object] = Future()
    session.submit(PullRowsCall("rows", lookup, 4, after=0, create=True, coding=EXACT), future, 0, 0.0)
    session.flush()
    for line in session._lines:
        line.greeted = True
    session.outgoing(0.0)
    session.receive("server-0", parts, 0.0)
    session.outgoing(0.5)
    try:
        ANSWERS.decode(parts)
    except WireError:
        assert session.dropped == 1
