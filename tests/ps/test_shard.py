"""What servers saved is loaded by any number of others, and they know what was applied."""

from __future__ import annotations

from concurrent.futures import Future

import msgspec
import numpy as np
import pytest
from servers import DIM, SimulatedJob, Worker, make_roster, make_tables, restore_shard, save_shard, sorted_rows

from heterps.config import SGD, Adam, Faults
from heterps.ps.keys.placement import NUM_SLOTS
from heterps.ps.ops.requests import client_codec, server_codec
from heterps.ps.protocol import parts as parts_module
from heterps.ps.protocol.messages import Hello, Refused, Round
from heterps.ps.protocol.parts import ValuePart
from heterps.ps.protocol.specs import DenseSpec, TableSpecs
from heterps.ps.server.server import Server
from heterps.ps.shard.ledger import Ledger, PushSource, PushState
from heterps.ps.shard.pieces import PieceSet
from heterps.ps.shard.rounds import Contribution
from heterps.ps.shard.shard import Shard, SlotPiece
from heterps.ps.shard.transfer import Chunk, from_chunks, to_chunks
from heterps.wire import Malformed
from heterps.wire.message import contiguous

TABLES = make_tables(Adam(lr=0.1), Adam(lr=0.1), dense_size=11)
KEYS = np.arange(200, dtype=np.uint64)


def pushed(num_servers: int, num_pushes: int) -> SimulatedJob:
    job = SimulatedJob(0, TABLES, num_servers, Faults())
    worker = Worker(job, "worker")
    for number in range(num_pushes):
        push(worker, number)
    job.finish(worker.futures)
    return job


def push(worker: Worker, number: int) -> None:
    worker.push(KEYS[number:], np.full((200 - number, DIM), number + 1, np.float32))
    worker.push_dense(np.full(11, number + 1, np.float32))


def state_of(job: SimulatedJob) -> list[np.ndarray]:
    shards = [server.shard for server in job.servers.values()]
    dense = np.hstack([np.vstack([s.dense["dense"].values(), s.dense["dense"].state()]) for s in shards])
    return [*sorted_rows([shard.sparse["rows"].export_rows() for shard in shards]), dense]


@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_saved_tables_go_on_at_any_number_of_servers_as_if_nothing_had_happened(num_servers: int) -> None:
    """The worker asks again for its last push, which was saved, and then makes another."""
    saved = [save_shard(server) for server in pushed(2, 3).servers.values()]
    job = SimulatedJob(0, TABLES, num_servers, Faults())
    for server in job.servers.values():
        restore_shard(server, [from_chunks(to_chunks(transfer)) for transfer in saved])
        assert len(server.shard.pieces) == len(server.shard.dense["dense"].pieces) == 1
    worker = Worker(job, "worker")
    worker.pushes = {"rows": 2, "dense": 2}
    for number in (2, 3):
        push(worker, number)
    job.finish(worker.futures)
    assert all(server.counts.repeats == 2 for server in job.servers.values())  # of the rows and the dense table
    for expected, got in zip(state_of(pushed(2, 4)), state_of(job), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_fill_after_a_restore_changes_nothing() -> None:
    job = SimulatedJob(0, TABLES, 1, Faults())
    server = job.servers["server-0"]
    server.shard.dense["dense"].fill(np.arange(11, dtype=np.float32))
    again = Server("server-0", make_roster(1), TABLES)
    restore_shard(again, [from_chunks(to_chunks(save_shard(server)))])
    again.shard.dense["dense"].fill(np.zeros(11, np.float32))
    np.testing.assert_array_equal(again.shard.dense["dense"].values(), np.arange(11))


def test_what_is_saved_does_not_change_with_the_tables() -> None:
    job = pushed(1, 1)
    server = job.servers["server-0"]
    saved = save_shard(server)
    ((part, _, _),) = saved.dense["dense"]
    before = saved.rows["rows"].values.copy(), part.values.copy(), part.state.copy()
    worker = Worker(job, "other")
    worker.push(KEYS, np.ones((200, DIM), np.float32))
    worker.push_dense(np.ones(11, np.float32))
    futures: list[Future] = worker.futures
    job.finish(futures)
    assert server.shard.dense["dense"].num_steps == 2
    for expected, got in zip(before, (saved.rows["rows"].values, part.values, part.state), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert saved.manifest.pieces[0].ledger.num_pushes == {"rows": 1}
    assert [manifest.ledger.num_pushes for manifest in saved.manifest.ranges] == [{"dense": 1}]


def test_rows_that_do_not_fit_are_refused_and_change_nothing() -> None:
    transfer = save_shard(pushed(1, 1).servers["server-0"])
    server = Server("server-0", make_roster(1), TABLES)
    restore_shard(server, [transfer])
    with pytest.raises(ValueError, match="200 of 200 rows to put have keys that are in the table"):
        server.shard.load(transfer)
    assert len(server.shard.sparse["rows"]) == 200
    empty = transfer.rows["rows"].select(np.zeros(200, np.bool_))
    with pytest.raises(ValueError, match="value 0 of table dense came twice"):
        server.shard.load(msgspec.structs.replace(transfer, rows={"rows": empty}))
    assert server.shard.dense["dense"].num_steps == 1
    transfer.rows["other"] = transfer.rows.pop("rows")
    with pytest.raises(ValueError, match="there are no tables other here"):
        server.shard.load(transfer)


@pytest.mark.parametrize("misfit", ["one", "two"])
def test_a_cargo_of_which_one_table_does_not_fit_leaves_none_of_it(misfit: str) -> None:
    """The rows, and the table before it, are put in first, and taken out again."""
    sparse, two = (make_tables().sparse[0],), (DenseSpec("one", 5, SGD(lr=1.0)), DenseSpec("two", 5, SGD(lr=1.0)))
    shard = Server("server-0", make_roster(1), TableSpecs(sparse, two)).shard
    shard.sparse["rows"].pull(KEYS)
    transfer = shard.copy(shard.slots, shard.ranges, {})
    shard.sparse["rows"].take(KEYS)
    for name in {"one", "two"} - {misfit}:
        shard.dense[name].cut(slice(0, 5))
    with pytest.raises(ValueError, match=f"value 0 of table {misfit} came twice"):
        shard.load(transfer)
    assert len(shard.sparse["rows"]) == 0
    assert {name: len(dense.pieces) for name, dense in shard.dense.items()} == {"one": 0, "two": 0} | {misfit: 1}


def test_a_part_of_a_table_that_cannot_be_put_in_changes_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Server("server-0", make_roster(1), TABLES).shard
    other = TABLES.sparse[0].make_shard()
    other.pull(KEYS)

    def refuse(_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(shard.sparse["rows"], "put", refuse)
    with pytest.raises(MemoryError):
        shard.put(PushSource("worker", 1), "rows", 1, other.export_rows(), 7, is_first=True)
    assert (shard.sparse["rows"].num_pushes, shard.pieces.num_pushes("rows")) == (0, 0)
    assert shard.pieces.state(PushSource("worker", 1), "rows", 1) is PushState.NEXT, "it may be tried again"


def two_pieces() -> Shard:
    """A shard whose left half of the dense table has taken part 0 of a round of one, and whose right half has not."""
    shard = Server("server-0", make_roster(1), make_tables(SGD(lr=1.0), SGD(lr=1.0))).shard
    behind = shard.dense["dense"].cut(slice(5, 10))
    ones = Contribution(None, np.ones(10, np.float32), None)
    shard.dense["dense"].push(PushSource("worker", 1), 1, ones, Round(1, 0, 1))
    shard.dense["dense"].load(behind)
    assert len(shard.dense["dense"].pieces) == 2
    return shard


def test_a_contribution_that_one_of_two_pieces_has_fits_its_round_still() -> None:
    shard, source = two_pieces(), PushSource("worker", 1)
    pieces = shard.dense["dense"].pieces
    assert pieces.state(source, "dense", 1) is PushState.NEXT
    assert pieces.round_error(source, "dense", 1, Round(1, 0, 1)) is None
    assert pieces.round_error(source, "dense", 2, Round(1, 0, 1)) is not None, "another push to a round that is over"


def test_a_push_that_one_of_two_pieces_has_begun_is_in_doubt_as_a_whole() -> None:
    shard, source = two_pieces(), PushSource("worker", 1)
    list(shard.dense["dense"].pieces)[1].ledger.begin(source, "dense")
    assert shard.dense["dense"].pieces.state(source, "dense", 1) is PushState.APPLYING
    behind, ahead = Ledger(), Ledger()
    ahead.begin(source, "rows")
    for pieces in ([behind, ahead], [ahead, behind]):
        shard.pieces = PieceSet(SlotPiece(shard.slots, ledger) for ledger in pieces)
        assert shard.pieces.state(source, "rows", 1) is PushState.APPLYING
        assert shard.pieces.state(source, "rows", 2) is PushState.EARLY


def test_a_change_of_the_roster_lets_go_of_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their parts are of other slots than the server has from then on."""
    monkeypatch.setattr(parts_module, "PART_BYTES", 100)
    shard = pushed(1, 1).servers["server-0"].shard
    assert shard.export(PushSource("worker", 1), "rows", 1, 0).num_parts > 1
    assert len(shard.exports) == 1
    shard.follow(make_roster(1), 0)
    assert len(shard.exports) == 0
    assert shard.export(PushSource("worker", 1), "rows", 1, 1).num_parts == 0


def test_what_servers_saved_does_not_bring_back_an_old_life_of_a_worker() -> None:
    """One of two servers had not heard of the worker's second life yet."""
    first, second = (save_shard(server) for server in pushed(2, 1).servers.values())
    first.manifest.workers["worker"], second.manifest.workers["worker"] = 2, 1
    server = Server("server-0", make_roster(1), TABLES)
    restore_shard(server, [first, second])
    hello = server_codec().encode(Hello(1, "worker", 1, TABLES.digest), [])
    ((_, answer),) = server.handle("peer", [contiguous(part) for part in hello], 0.0)
    refused = client_codec().decode(answer)[0]
    assert isinstance(refused, Refused)
    assert refused.code == "stale_incarnation"


def test_a_label_with_a_slot_that_does_not_exist_is_refused() -> None:
    for slot in (-1, NUM_SLOTS):
        transfer = save_shard(pushed(1, 1).servers["server-0"])
        transfer.manifest.pieces[0].slots.append(slot)
        with pytest.raises(Malformed, match="names a slot beyond"):
            from_chunks(to_chunks(transfer))


def test_a_label_that_cannot_be_read_is_refused() -> None:
    chunks = to_chunks(save_shard(pushed(1, 1).servers["server-0"]))
    chunks[0].manifest = b"nonsense"
    with pytest.raises(Malformed, match="the manifest of a transfer cannot be read"):
        from_chunks(chunks)


def test_parts_of_a_dense_table_that_do_not_fit_together_are_refused() -> None:
    chunks = to_chunks(save_shard(pushed(1, 1).servers["server-0"]))
    part = chunks[-1].part
    assert isinstance(part, ValuePart)
    chunks[-1].part = part._replace(values=part.values[1:])
    with pytest.raises(Malformed, match="the parts of 11 values of table dense do not follow each other"):
        from_chunks(chunks)
    halves = [ValuePart(at, part.values[at:][:6], part.state[:, at:][:, :6]) for at in (0, 5)]
    twice = [*chunks[:-1], *(Chunk(False, table="dense", part=half) for half in (halves[0], halves[1]))]
    with pytest.raises(Malformed, match="do not follow each other"):
        from_chunks(twice)
    gap = [part._replace(values=part.values[:5], state=part.state[:, :5]), halves[1]._replace(first=6)]
    with pytest.raises(Malformed, match="do not follow each other"):
        from_chunks([*chunks[:-1], *(Chunk(False, table="dense", part=each) for each in gap)])
    chunks[-1].part = part._replace(values=part.values[:5], state=part.state[:, :5])
    chunks.append(Chunk(True, table="dense", part=ValuePart(5, part.values[5:], part.state[:1, 5:])))
    with pytest.raises(Malformed, match="the parts of table dense have state of different sizes"):
        from_chunks(chunks)


def test_tables_have_a_digest_that_does_not_depend_on_their_order() -> None:
    turned = TableSpecs(TABLES.sparse[::-1], TABLES.dense)
    assert turned.digest == TABLES.digest != make_tables().digest
    with pytest.raises(ValueError, match="every table needs a name of its own"):
        TableSpecs((*TABLES.sparse, TABLES.sparse[0]))
