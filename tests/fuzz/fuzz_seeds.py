"""Inputs that the fuzzer begins with: good messages, one of every kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from fuzz_target import ANSWERS, REQUESTS, ROSTER, as_input, make_server

from heterps.ps.keys.placement import shard_numbers
from heterps.ps.ops.base import Op, Values
from heterps.ps.ops.dense import FillDense, PullDense, PushDense
from heterps.ps.ops.metadata import CountRows, ReadMetadata, Resume
from heterps.ps.ops.moves import Deliver, Fetch, ForgetMoved, Prepare, Switch
from heterps.ps.ops.requests import FromServer, OpReply, OpRequest, ToServer
from heterps.ps.ops.rounds import ApplyRound, RoundSquares, Squares
from heterps.ps.ops.rows import PullRows, PushRows
from heterps.ps.ops.tables import EndExport, Export, ExportedPart, Import
from heterps.ps.protocol.frames import pack_metadata, pack_part
from heterps.ps.protocol.messages import EXACT, AskRoster, AskStats, Coding, Hello, Refused, Round, Welcome
from heterps.ps.protocol.parts import ValuePart
from heterps.ps.protocol.roster import Roster, Seat
from heterps.ps.shard.transfer import to_chunks
from heterps.wire import Frame, Packed, PackedKeys, pack_keys, pack_values

EVERY = np.arange(40, dtype=np.uint64)
KEYS = EVERY[shard_numbers(EVERY, 2) == 0][:5]
GRADS = np.ones((5, 4), np.float32)


def requests() -> list[tuple[Op, list[Frame]]]:
    """Ops that need no folder and no mirror, each with its frames."""
    keys, keys_frame = pack_keys(KEYS)
    small, small_frame = pack_values(np.ones((5, 4), np.float32), "bf16", "zstd", 0)
    server = make_server()
    server.shard.sparse["rows"].push(KEYS, GRADS)
    rows, rows_frames = pack_part(server.shard.sparse["rows"].export_rows())
    values, values_frames = pack_part(ValuePart(0, np.ones(5, np.float32), np.ones((2, 5), np.float32)))
    metadata, metadata_frames = pack_metadata(server.shard.sparse["rows"].export_metadata())
    return [
        (PullRows("rows", keys, 0, True, EXACT), [keys_frame]),
        (PushRows("rows", 1, PackedKeys(5), Packed((5, 4), "fp32")), [KEYS, GRADS]),
        (PushRows("rows", 1, keys, small), [keys_frame, small_frame]),
        (PushRows("rows", 2, keys, small, 7), [keys_frame, small_frame]),
        (PushRows("rows", 1, keys, small, None, Round(1, 0, 1)), [keys_frame, small_frame]),
        (PushRows("rows", 1, keys, small, None, Round(2, 1, 3)), [keys_frame, small_frame]),
        (PullDense("dense", 0, Coding("fp16", "lz4", 0)), []),
        (PushDense("dense", 1, Packed((5,), "fp32")), [np.ones(5, np.float32)]),
        (PushDense("dense", 1, Packed((5,), "fp32"), 7, Round(1, 0, 2)), [np.ones(5, np.float32)]),
        (PushDense("dense", 1, Packed((5,), "fp32"), 7, Round(1, 0, 1, True)), [np.ones(5, np.float32)]),
        (RoundSquares("dense", 1), []),
        (ApplyRound("rows", 1, 1, 0.5), []),
        (FillDense("dense", Packed((5,), "fp32")), [np.ones(5, np.float32)]),
        (Export("rows", 0, 1, 0), []),
        (Export("dense", 0, 1, 1), []),
        (EndExport("rows", 1), []),
        (Import("rows", 1, 3, True, rows), rows_frames),
        (Import("dense", 1, 3, True, values), values_frames),
        (CountRows("wide", 0), []),
        (ReadMetadata("rows", 0), []),
        (Resume("rows", 1, 3, metadata), metadata_frames),
    ]


def deliveries() -> list[tuple[ToServer, list[Frame]]]:
    """A manifest and a part for a server that is being filled."""
    server = make_server()
    server.shard.sparse["rows"].push(KEYS, GRADS)
    manifest, first, *_ = to_chunks(server.shard.copy(server.shard.slots, server.shard.ranges, server.workers))
    assert first.part is not None
    part, frames = pack_part(first.part)
    return [
        (Deliver(1, 2, 0, 0, True, "", None), [manifest.manifest]),
        (Deliver(1, 2, 0, 0, False, "", None), [manifest.manifest]),
        (Deliver(1, 2, 0, 1, True, "rows", part), frames),
    ]


def seeds() -> dict[str, bytes]:
    made: dict[str, bytes] = {}

    def add(name: str, mode: int, parts: Sequence[Frame]) -> None:
        made[name] = as_input(mode, parts)

    for number, (op, frames) in enumerate(requests()):
        add(f"op-{number}", 1, REQUESTS.encode(OpRequest(5, "worker", 1, 1, (op,)), frames))
    first, second = requests()[1], requests()[0]
    both = OpRequest(5, "worker", 1, 1, (first[0], second[0]))
    add("two-ops", 0, REQUESTS.encode(both, [*first[1], *second[1]]))
    others: list[ToServer] = [
        Hello(1, "worker", 2, "other"),
        AskStats(1),
        AskRoster(1),
        Prepare(1, ROSTER.add(Seat("server-2"))),
        Switch(1, ROSTER.add(Seat("server-2"))),
        Switch(1, Roster(ROSTER.servers[:1], 2)),
        Fetch(1, 1, 1, 0),
        ForgetMoved(1, 1, 1),
    ]
    for number, header in enumerate(others):
        add(f"other-{number}", 1, REQUESTS.encode(header))
    for number, (header, frames) in enumerate(deliveries()):
        add(f"deliver-{number}", 2, REQUESTS.encode(header, frames))
    packed, frame = pack_values(np.ones((10, 4), np.float32))
    answers: list[tuple[FromServer, list[Frame]]] = [
        (Welcome(2, ROSTER), []),
        (OpReply(2, (Values(packed),)), [frame]),
        (OpReply(3, (ExportedPart(1, 1),)), []),
        (OpReply(4, (Squares(1.5),)), []),
        (Refused(2, "stale_epoch", "text", ROSTER.add(Seat("server-2"))), []),
        (Refused(2, "later", "text"), []),
    ]
    for number, (answer, answer_frames) in enumerate(answers):
        add(f"answer-{number}", 1, ANSWERS.encode(answer, answer_frames))
    return made
