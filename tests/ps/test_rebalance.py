"""Servers join and leave while workers push, on a network that loses and doubles: not a gradient is lost or doubled."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mover import Mover, join
from servers import DIM, SimulatedJob, Worker, make_roster, make_tables, sorted_rows, threaded_servers

from heterps.config import SGD, Adam, Faults
from heterps.errors import PeerLost
from heterps.ps.client.ask import ask
from heterps.ps.client.session import Options, Session
from heterps.ps.keys.placement import owners, slots_of
from heterps.ps.ops.metadata import CountRows
from heterps.ps.ops.moves import Agreed, ForgetMoved, Switch
from heterps.ps.ops.requests import FromServer, OpReply, OpRequest, ToServer, client_codec, server_codec
from heterps.ps.ops.rows import PushRows
from heterps.ps.ops.tables import ExportCall, ExportedPart, Gathered
from heterps.ps.protocol import parts as parts_module
from heterps.ps.protocol.messages import AskRoster, AskStats, Hello, Refused, StatsReply, Welcome
from heterps.ps.protocol.parts import split
from heterps.ps.protocol.roster import Seat, dense_move, moves
from heterps.ps.protocol.specs import DenseSpec, TableSpec, TableSpecs
from heterps.ps.server.server import Server
from heterps.ps.table.sparse import SparseTable
from heterps.wire import MemoryNetwork, Packed, PackedKeys
from heterps.wire.message import contiguous

KEYS = np.arange(300, dtype=np.uint64)
SIZE = 23  # of the dense table: no number of servers divides it
WHOLE = SGD(lr=1.0)
CHANGES = st.lists(st.sampled_from("++-"), min_size=1, max_size=4).map("".join)


def push_something(worker: Worker, rng: np.random.Generator) -> None:
    """Gradients are whole numbers: with SGD their sum does not depend on whose came first."""
    keys = rng.permutation(KEYS)[: rng.integers(1, 200)]
    worker.push(keys, rng.integers(-9, 9, (len(keys), DIM)).astype(np.float32))
    worker.push_dense(rng.integers(-9, 9, SIZE).astype(np.float32))


def run(seed: int, tables: TableSpecs, num_workers: int, plan: str) -> list[np.ndarray]:
    """Workers push without waiting while the rosters of `plan` (+ joins, - leaves) follow each other."""
    job = SimulatedJob(seed, tables, 2)
    workers = [Worker(job, f"worker-{i}") for i in range(num_workers)]
    rng = np.random.default_rng(seed)
    roster = job.roster
    for change in [*plan, ""]:
        mover = None
        if change == "+" or (change == "-" and roster.num_shards > 1):
            new = join(job, roster) if change == "+" else roster.drop_last()
            mover, roster = Mover(job, roster, new), new
        for _ in range(6):
            for worker in workers:
                push_something(worker, rng)
                worker.session.flush()
                for _ in range(job.random.randrange(6)):
                    job.step()
        if mover:
            mover.finish()
    job.finish([future for worker in workers for future in worker.futures])
    job.finish([workers[0].pull(KEYS)])
    assert {worker.session.roster for worker in workers} == {roster}
    return state_of([job.servers[seat.name] for seat in roster.servers])


def run_calm(seed: int, tables: TableSpecs, num_workers: int, num_changes: int) -> list[np.ndarray]:
    """The same pushes on servers that stay, over a network without faults."""
    job = SimulatedJob(seed, tables, 2, Faults())
    worker = Worker(job, "worker-0")
    rng = np.random.default_rng(seed)
    for _ in range(6 * (num_changes + 1) * num_workers):
        push_something(worker, rng)
    job.finish(worker.futures)
    job.finish([worker.pull(KEYS)])
    return state_of(list(job.servers.values()))


def state_of(servers: list[Server]) -> list[np.ndarray]:
    """All rows by key, then the dense table; each server must hold its own share and be in one piece again."""
    for number, server in enumerate(servers):
        held = slots_of(server.shard.sparse["rows"].export_rows().keys)
        assert (owners(len(servers))[held] == number).all()
        assert len(server.shard.pieces) == 1
        assert len(server.shard.dense["dense"].pieces) == 1
    ranges = [server.shard.dense["dense"] for server in servers]
    assert len({dense.num_steps for dense in ranges}) == 1
    dense = np.hstack([np.vstack([dense.values(), dense.state()]) for dense in ranges])
    return [*sorted_rows([server.shard.sparse["rows"].export_rows() for server in servers]), dense]


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), plan=CHANGES)
def test_moves_under_faults_leave_what_a_run_without_moves_leaves(seed: int, plan: str) -> None:
    """Adam's steps depend on their number and order: every row and value must see exactly its own."""
    tables = make_tables(Adam(lr=0.1), Adam(lr=0.1), SIZE)
    moved = run(seed, tables, 1, plan)
    for expected, got in zip(run_calm(seed, tables, 1, len(plan)), moved, strict=True):
        np.testing.assert_array_equal(got, expected)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), plan=CHANGES, num_workers=st.integers(2, 4))
def test_moves_lose_and_double_no_push_of_several_workers(seed: int, plan: str, num_workers: int) -> None:
    sparse = TableSpec("rows", DIM, WHOLE, seed=3, init_scale=0.0)
    tables = TableSpecs((sparse,), (DenseSpec("dense", SIZE, WHOLE),))
    *moved, uses, clocks, dense = run(seed, tables, num_workers, plan)
    *expected, calm_uses, calm_clocks, calm_dense = run_calm(seed, tables, num_workers, len(plan))
    for calm, got in zip([*expected, calm_dense], [*moved, dense], strict=True):
        np.testing.assert_array_equal(got, calm)  # uses and clocks depend on whose push came first
    assert uses.shape == calm_uses.shape
    assert clocks.shape == calm_clocks.shape


def test_one_more_server_moves_its_share_and_no_slot_between_the_others() -> None:
    old = make_roster(3)
    new = old.add(Seat("server-3"))
    found = [move for move in moves(old, new) if len(move.slots)]
    assert {move.target for move in found} == {3}
    assert sum(len(move.slots) for move in found) == (owners(4) == 3).sum()
    back = [move for move in moves(new, new.drop_last()) if len(move.slots)]
    assert {(move.target, move.source) for move in back} == {(move.source, move.target) for move in found}


@given(num_servers=st.integers(1, 12), size=st.integers(0, 200), is_drop=st.booleans())
def test_every_value_of_a_dense_table_stays_or_moves_to_where_it_is_looked_for(
    num_servers: int, size: int, is_drop: bool
) -> None:
    old = make_roster(num_servers + is_drop)
    new = old.drop_last() if is_drop else old.add(Seat("another"))
    homes = np.full(size, -1)
    for number in range(old.num_shards):
        homes[old.dense_range(size, number)] = number
    for move in moves(old, new):
        part = dense_move(size, old, new, move)
        assert (homes[part] == move.source).all()
        homes[part] = move.target
    for number in range(new.num_shards):
        assert (homes[new.dense_range(size, number)] == number).all()


def test_rosters_that_do_not_follow_each_other_are_refused() -> None:
    old = make_roster(2)
    with pytest.raises(ValueError, match="roster 1 does not follow roster 1"):
        moves(old, old)
    with pytest.raises(ValueError, match="server server-0 is the only one and cannot leave"):
        old.drop_last().drop_last()
    with pytest.raises(ValueError, match="roster 1 of 2 servers is the first of its job"):
        old.before_add()
    with pytest.raises(ValueError, match="every name once"):
        old.add(Seat("server-0"))


def test_tables_travel_in_parcels_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "PART_BYTES", 100)
    test_moves_lose_and_double_no_push_of_several_workers.hypothesis.inner_test(5, "+-", 3)
    test_moves_under_faults_leave_what_a_run_without_moves_leaves.hypothesis.inner_test(6, "+-")
    rows = SparseTable(DIM, WHOLE, seed=0)
    rows.pull(KEYS)
    parts = list(split(rows.export_rows()))
    assert len(parts) == 100  # three rows of 8 + 16 + 4 + 4 bytes each
    np.testing.assert_array_equal(np.concatenate([part.keys for part in parts]), rows.export_rows().keys)


@pytest.mark.parametrize("plan", ["+", "-"])
def test_a_move_that_broke_off_is_ended_by_running_it_again(plan: str) -> None:
    tables = make_tables(Adam(lr=0.1), Adam(lr=0.1), SIZE)
    job = SimulatedJob(1, tables, 2, Faults())
    worker = Worker(job, "worker-0")
    rng = np.random.default_rng(0)
    push_something(worker, rng)
    job.finish(worker.futures)
    old = job.roster
    new = join(job, old) if plan == "+" else old.drop_last()
    for num_steps in (2, 5, 9, 100):
        mover = Mover(job, old, new)
        for _ in range(num_steps):
            job.step()
        job.network.detach(mover.name)
    assert mover.is_done
    push_something(worker, rng)
    job.finish(worker.futures)
    calm = SimulatedJob(1, tables, 2, Faults())
    worker, rng = Worker(calm, "worker-0"), np.random.default_rng(0)
    for _ in range(2):
        push_something(worker, rng)
    calm.finish(worker.futures)
    servers = [job.servers[seat.name] for seat in new.servers]
    for expected, got in zip(state_of(list(calm.servers.values())), state_of(servers), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_server_that_is_being_filled_tells_how_it_is() -> None:
    job = SimulatedJob(1, make_tables(), 2, Faults())
    new = join(job, job.roster)
    server = job.servers["server-2"]
    (roster,) = say(server, AskRoster(1))
    assert isinstance(roster, Welcome)
    assert roster.roster == new
    (stats,) = say(server, AskStats(2))
    assert isinstance(stats, StatsReply)
    assert server.stats().waits_for == ["server-0", "server-1"]
    (answer,) = say(server, Hello(3, "worker", 1, make_tables().digest))
    assert isinstance(answer, Welcome)
    (later,) = say(server, OpRequest(4, "worker", 1, 2, (CountRows("rows", 0),)))
    assert isinstance(later, Refused)
    assert (later.code, later.text) == ("later", "server server-2 waits for what moves to it from server-0, server-1")
    Mover(job, job.roster, new).finish()
    assert server.stats().waits_for == []


def test_a_server_that_is_not_ready_yet_is_asked_again_until_the_deadline() -> None:
    """The first rebalance was left half done, so that its server cannot follow the next before it is."""
    network, tables, old = MemoryNetwork(), make_tables(), make_roster(1)
    new = old.add(Seat("server-1"))
    with threaded_servers(old, tables, network):
        channel = network.channel("asker")
        ask(channel, "server-0", Switch(1, new))
        with pytest.raises(PeerLost, match=r"server-0 .* within 0.3 s: it has not finished the move to epoch 2"):
            ask(channel, "server-0", Switch(2, new.add(Seat("server-2"))), deadline_s=0.3)
        later = threading.Timer(0.2, lambda: ask(network.channel("other"), "server-0", ForgetMoved(3, 2, 1)))
        later.start()
        answer, _ = ask(channel, "server-0", Switch(4, new.add(Seat("server-2"))), deadline_s=30.0)
        later.join()
        assert isinstance(answer, Agreed)


def test_a_push_that_waits_in_the_old_epoch_is_let_go_at_its_end() -> None:
    """It was made for the old homes of its keys; its worker sends it again by the new roster."""
    tables, old = make_tables(), make_roster(1)
    server = Server("server-0", old, tables)
    keys, grads = KEYS[:3], np.ones((3, DIM), np.float32)
    say(server, Hello(1, "worker", 1, tables.digest))
    second = PushRows("rows", 2, PackedKeys(3), Packed((3, DIM), "fp32"))
    assert say(server, OpRequest(2, "worker", 1, 1, (second,)), [keys, grads]) == []
    say(server, Switch(3, old.add(Seat("server-1"))))
    home = KEYS[owners(2)[slots_of(KEYS)] == 0][:3]
    first = PushRows("rows", 1, PackedKeys(3), Packed((3, DIM), "fp32"))
    (answer,) = say(server, OpRequest(4, "worker", 1, 2, (first,)), [home, grads])
    assert isinstance(answer, OpReply)
    assert server.shard.sparse["rows"].num_pushes == 1


def say(server: Server, header: ToServer, frames: Sequence[np.ndarray] = ()) -> list[FromServer]:
    parts = [contiguous(part) for part in server_codec().encode(header, frames)]
    return [client_codec().decode(answer)[0] for _, answer in server.handle("peer", parts, 0.0)]


def test_a_request_for_a_server_that_has_left_is_answered_with_the_roster_by_its_namesake() -> None:
    """A worker that has missed both changes must not take the new server for the old one that lost its memory."""
    old = make_roster(2).drop_last()
    new = old.add(Seat("server-1", incarnation=3))
    server = Server("server-1", new, make_tables(), joining=True)
    (answer,) = say(server, OpRequest(1, "worker", 1, 1, (CountRows("rows", 0),)))
    assert isinstance(answer, Refused)
    assert (answer.code, answer.roster) == ("stale_epoch", old), "the one in force: the others may not follow yet"
    say(server, Switch(2, new))
    (answer,) = say(server, OpRequest(3, "worker", 1, 1, (CountRows("rows", 0),)))
    assert isinstance(answer, Refused)
    assert (answer.code, answer.roster) == ("stale_epoch", new)


def test_a_server_begins_no_move_before_the_last_is_over() -> None:
    tables, old = make_tables(), make_roster(2)
    server = Server("server-0", old, tables)
    new = old.add(Seat("server-2"))
    for roster, kind in ((new, Agreed), (new, Agreed), (new.add(Seat("server-3")), Refused)):
        (answer,) = say(server, Switch(1, roster))
        assert isinstance(answer, kind)


def test_a_call_that_concerns_no_server_of_the_new_roster_is_answered():
    roster, questions, answers = make_roster(2), server_codec(), client_codec()
    session, future = Session("worker", 1, roster, "tables", Options()), Future()
    page = ExportedPart(0, 2), None
    session.submit(ExportCall("rows", 0, 1, part=1, first=Gathered(roster.epoch, {0: page, 1: page})), future, 0, 0.0)
    session.flush()
    new = roster.add(Seat("server-2"))
    for answer in (partial(Welcome, roster=roster), partial(Refused, code="stale_epoch", text="", roster=new)):
        for peer, parts in session.outgoing(0.0):
            header, _ = questions.decode(parts)
            session.receive(peer, [memoryview(part) for part in answers.encode(answer(header.id))], 0.0)
    assert session.roster == new
    [(settled, gathered)] = session.finished()
    assert settled is future
    assert gathered.pages == {}, "the export begins again"
