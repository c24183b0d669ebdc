"""Server: whatever a peer sends, it lives, counts what it refused, and changes nothing by it."""

from __future__ import annotations

import io
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from servers import DIM, make_roster, make_tables

from heterps.config import SGD, AfterSightings, LinearRate, Tiers
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.keys.placement import shard_numbers
from heterps.ps.ops.base import Serving
from heterps.ps.ops.dense import PullDense
from heterps.ps.ops.metadata import CountRows
from heterps.ps.ops.requests import OpReply, OpRequest, client_codec, server_codec
from heterps.ps.ops.rows import PullRows, PushRows
from heterps.ps.ops.tables import Import
from heterps.ps.protocol.frames import ROW_DTYPES, ArrayInfo, Frames, PartInfo, pack_part
from heterps.ps.protocol.messages import EXACT, AskStats, Coding, Hello, Refused, StatsReply, Welcome
from heterps.ps.protocol.roster import Roster, Seat
from heterps.ps.protocol.specs import TableSpec, TableSpecs
from heterps.ps.server import server as server_module
from heterps.ps.server.server import Server
from heterps.ps.shard.ledger import PushSource
from heterps.ps.table.rows import Rows
from heterps.report.terminal.profile_table import size
from heterps.report.terminal.server_table import server_table
from heterps.wire import Limits, Packed, PackedKeys
from heterps.wire.message import contiguous

REQUESTS, ANSWERS = server_codec(), client_codec()
KEYS = np.arange(3, dtype=np.uint64)
GRADS = np.ones((3, DIM), np.float32)
ROWS = Rows(KEYS, GRADS, GRADS, np.ones(3, np.float32), np.ones(3, np.uint32))


def make_server(num_servers: int = 1) -> Server:
    server = Server("server-0", make_roster(num_servers), make_tables())
    assert isinstance(send(server, Hello(1, "worker", 1, make_tables().digest))[0], Welcome)
    return server


def send(server: Server, header, frames=(), now: float = 0.0, peer: str = "peer") -> list:
    """The headers of the answers."""
    answers = server.handle(peer, [contiguous(part) for part in REQUESTS.encode(header, frames)], now)
    return [ANSWERS.decode(parts)[0] for _, parts in answers]


def push(sequence: int, keys: np.ndarray = KEYS, table: str = "rows") -> PushRows:
    return PushRows(table, sequence, PackedKeys(len(keys)), Packed((len(keys), DIM), "fp32"))


def request(*ops, id: int = 5, worker: str = "worker", incarnation: int = 1, epoch: int = 1) -> OpRequest:
    return OpRequest(id, worker, incarnation, epoch, ops)


def import_of(part: PartInfo, table: str = "dense") -> Import:
    return Import(table, 1, 1, True, part)


def untouched(server: Server) -> bool:
    return len(server.shard.sparse["rows"]) == 0 and server.shard.sparse["rows"].num_pushes == 0


BAD = {
    "no such table": (request(push(1, table="nothing")), [KEYS, GRADS], "no sparse table 'nothing'"),
    "a dense op on a sparse table": (request(PullDense("rows", 0, EXACT)), [], "no dense table 'rows'"),
    "frames left over": (request(push(1)), [KEYS, GRADS, GRADS], "need 2 frames, and 3 came"),
    "frames missing": (request(push(1)), [KEYS], "need more than its 1 frames"),
    "fewer keys than announced": (request(push(1)), [KEYS[:2], GRADS], "3 keys should take 24 bytes, not 16"),
    "gradients of another dim": (
        request(PushRows("rows", 1, PackedKeys(3), Packed((3, 2), "fp32"))),
        [KEYS, GRADS[:, :2].copy()],
        r"table rows needs values \[3, 4\] here, got \[3, 2\]",
    ),
    "gradients of fewer keys": (
        request(PushRows("rows", 1, PackedKeys(3), Packed((2, DIM), "fp32"))),
        [KEYS, GRADS[:2]],
        r"needs values \[3, 4\] here, got \[2, 4\]",
    ),
    "dense state of another size": (
        request(import_of(PartInfo((ArrayInfo("<f4", (10,)), ArrayInfo("<f4", (1, 10))), first=0))),
        [np.zeros(10, np.float32), np.zeros((1, 10), np.float32)],
        "values 0 to 10 with 0 words of state each here, got 0 to 10 with 1",
    ),
    "dense values of another server": (
        request(import_of(PartInfo((ArrayInfo("<f4", (10,)), ArrayInfo("<f4", (0, 10))), first=1))),
        [np.zeros(10, np.float32), np.zeros((0, 10), np.float32)],
        "got 1 to 11 with 0",
    ),
    "dense values whose state does not fit": (
        request(import_of(PartInfo((ArrayInfo("<f4", (10,)), ArrayInfo("<f4", (0, 9))), first=0))),
        [np.zeros(10, np.float32), np.zeros((0, 9), np.float32)],
        r"do not fit: \[\[10\], \[0, 9\]\]",
    ),
    "dense values that are no float32": (
        request(import_of(PartInfo((ArrayInfo("<f8", (10,)), ArrayInfo("<f4", (0, 10))), first=0))),
        [np.zeros(10), np.zeros((0, 10), np.float32)],
        "a part of a table is arrays of <f4, <f4 here, not <f8, <f4",
    ),
    "rows for a dense table": (
        request(import_of(pack_part(ROWS)[0])),
        list(ROWS),
        "table dense is dense, and its part is not",
    ),
    "a good op before a bad one": (request(push(1), push(2, table="x")), [KEYS, GRADS] * 2, "no sparse table 'x'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_request_that_contradicts_itself_is_refused_as_a_whole(name: str) -> None:
    header, frames, text = BAD[name]
    server = make_server()
    (answer,) = send(server, header, frames)
    assert isinstance(answer, Refused)
    assert answer.code == "bad_request"
    assert re.search(text, answer.text)
    assert untouched(server)
    assert server.counts.dropped == {"bad_request": 1}


def test_keys_of_another_server_are_refused() -> None:
    lookup = make_lookup(np.arange(50), 2)
    server = make_server(2)
    (answer,) = send(server, request(push(1, lookup.unique)), [lookup.unique, np.ones((50, DIM), np.float32)])
    assert isinstance(answer, Refused)
    assert "have their home on another server" in answer.text
    assert untouched(server)


def test_rows_of_another_server_are_not_loaded() -> None:
    """They would be where nobody asks for them."""
    home = np.flatnonzero(shard_numbers(np.arange(50, dtype=np.uint64), 2))[:3].astype(np.uint64)
    part, frames = pack_part(ROWS._replace(keys=home))
    server = make_server(2)
    (answer,) = send(server, request(import_of(part, "rows")), frames)
    assert isinstance(answer, Refused)
    assert "have their home on another server" in answer.text
    assert untouched(server)


def test_who_did_not_say_hello_is_not_served() -> None:
    server = make_server()
    (stranger,) = send(server, request(push(1), worker="stranger"), [KEYS, GRADS])
    (newer,) = send(server, request(push(1), incarnation=2), [KEYS, GRADS])
    assert stranger.code == newer.code == "unknown_worker"
    assert untouched(server)


def test_another_epoch_is_refused_with_the_roster_or_asked_to_come_later() -> None:
    server = Server("server-0", Roster((Seat("server-0"),), epoch=3), make_tables())
    send(server, Hello(1, "worker", 1, make_tables().digest))
    (old,) = send(server, request(push(1), epoch=2), [KEYS, GRADS])
    assert (old.code, old.roster) == ("stale_epoch", server.roster)
    (early,) = send(server, request(push(1), epoch=4), [KEYS, GRADS])
    assert early.code == "later"
    assert untouched(server)


def test_a_push_before_its_predecessor_is_held_and_answered_after_it() -> None:
    server = make_server()
    assert send(server, request(push(2), CountRows("rows", 2), id=8), [KEYS, GRADS]) == []
    assert send(server, request(PullRows("rows", PackedKeys(3), 2, True, EXACT), id=9), [KEYS]) == []
    assert server.stats().held == 2
    assert untouched(server)
    answers = send(server, request(push(1), id=7), [KEYS, GRADS])
    assert [answer.id for answer in answers] == [7, 8, 9]
    assert server.shard.sparse["rows"].num_pushes == 2
    assert server.stats().held == 0


def test_a_repeat_of_what_is_held_is_held_once() -> None:
    server = make_server()
    for _ in range(3):
        assert send(server, request(push(2), id=8), [KEYS, GRADS]) == []
    assert server.stats().held == 1


def test_what_is_held_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_HELD", 2)
    server = make_server()
    for number in range(2):
        assert send(server, request(push(9), id=10 + number), [KEYS, GRADS]) == []
    (answer,) = send(server, request(push(9), id=20), [KEYS, GRADS])
    assert answer.code == "later"
    server.tick(now=server_module.HOLD_S + 1)
    assert server.stats().held == 0
    assert server.counts.dropped == {"later": 1, "held_too_long": 2}


def test_what_is_held_takes_no_more_bytes_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_HELD_BYTES", 2 * (KEYS.nbytes + GRADS.nbytes))
    server = make_server()
    for number in range(2):
        assert send(server, request(push(9), id=10 + number), [KEYS, GRADS]) == []
    (answer,) = send(server, request(push(9), id=20), [KEYS, GRADS])
    assert (answer.code, server.stats().held) == ("later", 2)
    assert send(server, request(push(9), id=11), [KEYS, GRADS]) == [], "a repeat takes the place of the first"


def test_a_repeat_beside_what_builds_on_a_later_push_is_answered() -> None:
    """The worker asks again for its first push, and in the same request for rows after its second."""
    server = make_server()
    for sequence in (1, 2):
        send(server, request(push(sequence), id=sequence), [KEYS, GRADS])
    pull = PullRows("rows", PackedKeys(3), 2, True, EXACT)
    (answer,) = send(server, request(push(1), pull, id=3), [KEYS, GRADS, KEYS])
    assert isinstance(answer, OpReply)
    assert server.stats().held == 0


def test_a_new_life_begins_to_count_anew_and_the_old_one_is_refused() -> None:
    server = make_server()
    send(server, request(push(1)), [KEYS, GRADS])
    assert send(server, request(push(3), id=6), [KEYS, GRADS]) == []
    assert isinstance(send(server, Hello(1, "worker", 2, make_tables().digest))[0], Welcome)
    assert server.stats().held == 0
    (fresh,) = send(server, request(push(1), incarnation=2), [KEYS, GRADS])
    assert isinstance(fresh, OpReply)
    (stale,) = send(server, request(push(2), incarnation=1), [KEYS, GRADS])
    (zombie,) = send(server, Hello(2, "worker", 1, make_tables().digest))
    assert stale.code == zombie.code == "stale_incarnation"
    assert server.shard.sparse["rows"].num_pushes == 2


def test_a_push_that_broke_off_is_in_doubt_and_never_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    table = server.shard.sparse["rows"]

    def broken(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(table, "push_unique", broken)
    (first,) = send(server, request(push(1)), [KEYS, GRADS])
    assert first.code == "failed"
    assert "failed at table rows: MemoryError: no room" in first.text
    monkeypatch.undo()
    (again,) = send(server, request(push(1)), [KEYS, GRADS])
    assert again.code == "failed"
    assert "was begun before and did not end" in again.text
    assert untouched(server)


@settings(max_examples=200)
@given(parts=st.lists(st.binary(max_size=60), max_size=4))
def test_bytes_that_are_no_message_are_counted_and_dropped(parts: list[bytes]) -> None:
    server = make_server()
    assert server.handle("peer", [memoryview(part) for part in parts], 0.0) == []
    assert sum(server.counts.dropped.values()) == 1


@settings(max_examples=300)
@given(data=st.data())
def test_a_message_with_changed_bytes_never_ends_the_server(data: st.DataObject) -> None:
    """Values and keys may change unseen, their shapes may not; a checksum is the business of the channel."""
    server = make_server()
    pull = PullRows("rows", PackedKeys(3), 0, True, EXACT)
    parts = [
        bytearray(memoryview(part).cast("B")) for part in REQUESTS.encode(request(push(1), pull), [KEYS, GRADS, KEYS])
    ]
    for _ in range(data.draw(st.integers(1, 4))):
        part = parts[data.draw(st.integers(0, len(parts) - 1))]
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    server.handle("peer", [memoryview(part) for part in parts], 0.0)
    (answer,) = send(server, AskStats(9))
    assert isinstance(answer, StatsReply)
    assert len(server.shard.sparse["rows"]) <= 6


def test_stats_say_what_is_held_and_what_was_done() -> None:
    server = make_server()
    send(server, request(push(1)), [KEYS, GRADS])
    send(server, request(push(1)), [KEYS, GRADS])
    send(server, request(PullRows("rows", PackedKeys(3), 1, True, EXACT), id=6), [KEYS])
    server.tick(0.0)
    send(server, request(PullRows("rows", PackedKeys(3), 1, True, EXACT), id=7), [KEYS])
    server.tick(2.0)
    stats = server.stats()
    rows = stats.tables["rows"]
    assert (rows.rows, rows.pulls, rows.pushes, rows.rows_pulled, rows.rows_pushed) == (3, 2, 1, 6, 3)
    assert (stats.requests, stats.repeats, stats.workers, stats.rows_per_s) == (4, 1, 1, 1.5)
    assert stats.tables["dense"].rows == 10


def test_stats_say_what_is_on_disk_and_what_was_not_admitted(tmp_path) -> None:
    spec = TableSpec("rows", DIM, SGD(lr=0.1), 0, 0.1, admission=AfterSightings(num=2))
    tiered = TableSpec("tiered", DIM, SGD(lr=0.1), 0, 0.1, tiers=Tiers(memory_bytes=120_000, folder=str(tmp_path)))
    server = Server("server-0", make_roster(1), TableSpecs((spec, tiered)))
    keys = np.arange(5_000, dtype=np.uint64)
    server.shard.sparse["rows"].push(KEYS, GRADS)
    server.shard.sparse["tiered"].pull(keys)
    stats = server.stats().tables
    assert (stats["rows"].refused, stats["rows"].rows, stats["rows"].tiers) == (3, 0, None)
    tiers = stats["tiered"].tiers
    assert tiers is not None
    assert tiers.memory_rows + tiers.disk_rows == stats["tiered"].rows == 5_000
    assert tiers.disk_rows > 0
    assert tiers.disk_bytes > 0
    assert tiers.memory_bytes <= 120_000
    printed = io.StringIO()
    Console(file=printed, width=120).print(server_table(server.stats()))
    shown = printed.getvalue()
    assert f"{tiers.disk_rows:,}" in shown
    assert size(tiers.disk_bytes) in shown
    assert re.search(r"rows +0 .* 0 +3\n", shown)


def test_a_table_that_cannot_grow_fails_the_request_and_not_the_server(tmp_path) -> None:
    spec = TableSpec("rows", DIM, SGD(lr=0.1), 0, 0.1, tiers=Tiers(memory_bytes=20_000, folder=str(tmp_path)))
    server = Server("server-0", make_roster(1), TableSpecs((spec,)))
    send(server, Hello(1, "worker", 1, server.tables.digest))
    keys = np.arange(50_000, dtype=np.uint64)
    (answer,) = send(server, request(PullRows("rows", PackedKeys(50_000), 0, True, EXACT)), [keys])
    assert (answer.code, "tiers.memory_bytes" in answer.text) == ("failed", True)
    assert isinstance(send(server, AskStats(2))[0], StatsReply)


def test_a_push_that_a_schedule_cannot_follow_is_refused_before_it_is_begun() -> None:
    spec = TableSpec("rows", DIM, SGD(lr=0.1), 0, 0.1, schedule=LinearRate(warmup=10, until=100))
    tables = TableSpecs((spec,))
    server = Server("server-0", make_roster(1), tables)
    send(server, Hello(1, "worker", 1, tables.digest))
    (answer,) = send(server, request(push(1)), [KEYS, GRADS])
    assert (answer.code, "tell each push how many" in answer.text) == ("bad_request", True)
    (answer,) = send(server, request(msgspec.structs.replace(push(1), samples=5)), [KEYS, GRADS])
    assert isinstance(answer, OpReply)


@pytest.mark.parametrize(
    ("coding", "is_used"), [(EXACT, True), (Coding("fp16"), False), (Coding("fp32", "zstd", 1), False)]
)
def test_rows_and_values_are_made_in_shared_memory_only_where_they_travel_as_they_are(
    coding: Coding, is_used: bool
) -> None:
    """Of rows that are coded on the way nobody would ever give the memory back."""
    taken: list[int] = []

    def room(num_bytes: int) -> None:
        taken.append(num_bytes)

    server = make_server()
    serving = Serving(PushSource("worker", 1), server.counts, room)
    pull = PullRows("rows", PackedKeys(3), 0, True, coding)
    pull.check(Frames([contiguous(KEYS[:3])]), server.shard, Limits())(serving)
    assert (3 * DIM * 4 in taken) == is_used
    PullDense("dense", 0, coding).check(Frames([]), server.shard, Limits())(serving)
    assert (4 * server.shard.dense["dense"].size in taken) == is_used


def test_a_server_must_be_in_its_roster() -> None:
    with pytest.raises(ValueError, match="server nobody is not in the roster: server-0"):
        Server("nobody", make_roster(1), make_tables())


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 2), (2, DIM), (2, DIM), (2,), (2,)],
        [(), (1, DIM), (1, DIM), (1,), (1,)],
        [(2,), (), (2, DIM), (2,), (2,)],
        [(2,), (1, DIM), (1, DIM), (2,), (2,)],
        [(2,), (2, DIM), (2, DIM), (2, 1), (2,)],
        [(2,), (2, DIM), (2, DIM), (2,), ()],
    ],
    ids=str,
)
def test_rows_whose_arrays_do_not_fit_each_other_are_refused(shapes: list[tuple[int, ...]]) -> None:
    server = make_server()
    arrays = [np.zeros(shape, dtype) for shape, dtype in zip(shapes, ROW_DTYPES, strict=True)]
    infos = tuple(ArrayInfo(dtype, shape) for shape, dtype in zip(shapes, ROW_DTYPES, strict=True))
    [refused] = send(server, request(import_of(PartInfo(infos), "rows")), [array.reshape(-1) for array in arrays])
    assert (refused.code, refused.text[:31]) == ("bad_request", "keys [n] and their rows do not ")
    assert untouched(server)
