"""Servers join and leave while workers push, on a network that loses and doubles: not a gradient is lost or doubled."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import DIM, Storm, Worker, make_roster, make_storm, make_tables, sorted_rows

from heterps.config import SGD, Adam
from heterps.ps import cargo as cargo_module
from heterps.ps import messages as m
from heterps.ps.client import TableSpec
from heterps.ps.placement import owners, slots_of
from heterps.ps.rebalance import Question, rebalance
from heterps.ps.roster import Roster, Seat, moves
from heterps.ps.server import Server
from heterps.ps.shard import Tables
from heterps.wire import Packed, PackedKeys
from heterps.wire.message import contiguous

CLEAN = {"drop": 0.0, "double": 0.0, "late_s": 0.0, "cut": 0.0}
KEYS = np.arange(300, dtype=np.uint64)


class Mover:
    """Runs a rebalance in a storm: asks, and asks again, a step at a time."""

    def __init__(self, storm: Storm, old: Roster, new: Roster) -> None:
        self.storm = storm
        self.inbox = storm.inboxes.setdefault("mover", [])
        self.steps: Generator = rebalance(old, new)
        self.question: Question = next(self.steps)
        self.asked_at = -1e9
        self.is_done = False

    def step(self) -> None:
        if self.is_done:
            return
        if self.storm.now - self.asked_at > 1.0:
            self.asked_at = self.storm.now
            parts = m.server_codec().encode(self.question.header, self.question.frames)
            self.storm.send("mover", self.question.peer, parts)
        while self.inbox and not self.is_done:
            sender, parts = self.inbox.pop(0)
            answer = m.client_codec().decode(parts)
            if (sender, answer[0].id) == (self.question.peer, self.question.header.id):
                try:
                    self.question, self.asked_at = self.steps.send(answer), -1e9
                except StopIteration:
                    self.is_done = True

    def finish(self) -> None:
        while not self.is_done:
            self.step()
            self.storm.step()
            self.storm.now += 0.1


def join(storm: Storm, old: Roster, tables: Tables) -> Roster:
    """A new server, empty still."""
    new = old.add(Seat(f"server-{old.num_shards}"))
    name = new.servers[-1].name
    storm.servers[name] = Server(name, new, tables, joining=True)
    return new


def run(seed: int, tables: Tables, num_workers: int, plan: str, rates: dict[str, float]) -> list[np.ndarray]:
    """Workers push without waiting while the rosters of `plan` (+ joins, - leaves) follow each other."""
    storm = make_storm(seed, tables, 2, **rates)
    roster = make_roster(2)
    workers = [Worker(storm, f"worker-{i}", tables, 2) for i in range(num_workers)]
    rng = np.random.default_rng(seed)
    for change in [*plan, ""]:
        mover = None
        if change:
            new = join(storm, roster, tables) if change == "+" else roster.drop_last()
            mover, roster = Mover(storm, roster, new), new
        for _ in range(6):
            for worker in workers:
                keys = rng.permutation(KEYS)[: rng.integers(1, 200)]
                worker.push(keys, rng.integers(-9, 9, (len(keys), DIM)).astype(np.float32))
                worker.session.flush()
                for _ in range(storm.random.randrange(6)):
                    storm.step()
                    if mover:
                        mover.step()
        if mover:
            mover.finish()
    storm.finish([future for worker in workers for future in worker.futures])
    pulled = workers[0].pull(KEYS)
    storm.finish([pulled])
    for server in storm.servers.values():
        held = slots_of(server.shard.sparse["rows"].export_rows().keys)
        assert (owners(roster.num_shards)[held] == server.number).all()
        assert len(server.shard.pieces) <= 1
    assert {worker.session.roster for worker in workers} == {roster}
    return sorted_rows([server.shard.sparse["rows"].export_rows() for server in storm.servers.values()])


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), plan=st.sampled_from(["+", "++", "+-", "+-+"]))
def test_moves_under_faults_leave_what_a_run_without_moves_leaves(seed: int, plan: str) -> None:
    """Adam's steps depend on their number and order: every row must see exactly its own."""
    tables = make_tables(Adam(lr=0.1))
    moved = run(seed, tables, 1, plan, {"late_s": 2.0})
    for expected, got in zip(run_calm(seed, tables, 1, len(plan)), moved, strict=True):
        np.testing.assert_array_equal(got, expected)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), plan=st.sampled_from(["+", "+-"]))
def test_moves_lose_and_double_no_push_of_several_workers(seed: int, plan: str) -> None:
    """Gradients are whole numbers, so that their sum does not depend on whose came first."""
    tables = Tables((TableSpec("rows", DIM, SGD(lr=1.0), seed=3, init_scale=0.0),))
    moved = run(seed, tables, 3, plan, {"late_s": 2.0})[:3]  # when a row was used last depends on that, though
    for expected, got in zip(run_calm(seed, tables, 3, len(plan))[:3], moved, strict=True):
        np.testing.assert_array_equal(got, expected)


def run_calm(seed: int, tables: Tables, num_workers: int, num_changes: int) -> list[np.ndarray]:
    """The same pushes on servers that stay, over a network without faults."""
    storm = make_storm(seed, tables, 2, **CLEAN)
    worker = Worker(storm, "worker-0", tables, 2)
    rng = np.random.default_rng(seed)
    for _ in range(6 * (num_changes + 1) * num_workers):
        keys = rng.permutation(KEYS)[: rng.integers(1, 200)]
        worker.push(keys, rng.integers(-9, 9, (len(keys), DIM)).astype(np.float32))
    storm.finish(worker.futures)
    storm.finish([worker.pull(KEYS)])
    return sorted_rows([server.shard.sparse["rows"].export_rows() for server in storm.servers.values()])


def test_one_more_server_moves_its_share_and_nothing_between_the_others() -> None:
    old = make_roster(3)
    new = old.add(Seat("server-3"))
    found = moves(old, new)
    assert {move.target for move in found} == {3}
    assert sum(len(move.slots) for move in found) == (owners(4) == 3).sum()
    back = moves(new, new.drop_last())
    assert {(move.target, move.source) for move in back} == {(move.source, move.target) for move in found}


def test_rosters_that_do_not_follow_each_other_are_refused() -> None:
    old = make_roster(2)
    with pytest.raises(ValueError, match="roster 1 does not follow roster 1"):
        moves(old, old)
    with pytest.raises(ValueError, match="holds a range of the dense tables and cannot leave"):
        old.drop_last()
    with pytest.raises(ValueError, match="every name once"):
        old.add(Seat("server-0"))


def test_rows_travel_in_parcels_that_fit_into_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cargo_module, "PARCEL_ROWS", 7)
    test_moves_lose_and_double_no_push_of_several_workers.hypothesis.inner_test(5, "+-")


def test_a_move_that_broke_off_is_ended_by_running_it_again() -> None:
    tables = make_tables(Adam(lr=0.1))
    storm = make_storm(1, tables, 2, **CLEAN)
    worker = Worker(storm, "worker-0", tables, 2)
    worker.push(KEYS, np.ones((300, DIM), np.float32))
    storm.finish(worker.futures)
    old = make_roster(2)
    new = join(storm, old, tables)
    for num_steps in (1, 3, 5, 100):
        mover = Mover(storm, old, new)
        for _ in range(num_steps):
            mover.step()
            storm.step()
            storm.now += 0.1
    assert mover.is_done
    pulled = worker.pull(KEYS)
    storm.finish([pulled])
    expected = run_once()
    np.testing.assert_array_equal(np.sort(pulled.result(), axis=0), np.sort(expected, axis=0))


def run_once() -> np.ndarray:
    """Rows of one push, on servers that stay."""
    tables = make_tables(Adam(lr=0.1))
    storm = make_storm(1, tables, 2, **CLEAN)
    worker = Worker(storm, "worker-0", tables, 2)
    worker.push(KEYS, np.ones((300, DIM), np.float32))
    pulled = worker.pull(KEYS)
    storm.finish([pulled])
    rows: np.ndarray = pulled.result()
    return rows


def test_a_push_that_waits_in_the_old_epoch_is_let_go_at_its_end() -> None:
    """It was made for the old homes of its keys; its worker sends it again by the new roster."""
    tables, old = make_tables(), make_roster(1)
    server = Server("server-0", old, tables)
    keys, grads = KEYS[:3], np.ones((3, DIM), np.float32)
    say(server, m.Hello(1, "worker", 1, tables.digest))
    second = m.PushRows("rows", 2, PackedKeys(3), Packed((3, DIM), "fp32"))
    assert say(server, m.Request(2, "worker", 1, 1, (second,)), [keys, grads]) == []
    say(server, m.Switch(3, old.add(Seat("server-1"))))
    home = KEYS[owners(2)[slots_of(KEYS)] == 0][:3]
    first = m.PushRows("rows", 1, PackedKeys(3), Packed((3, DIM), "fp32"))
    (answer,) = say(server, m.Request(4, "worker", 1, 2, (first,)), [home, grads])
    assert isinstance(answer, m.Reply)
    assert server.shard.sparse["rows"].num_pushes == 1


def say(server: Server, header: m.ToServer, frames: Sequence[np.ndarray] = ()) -> list[m.FromServer]:
    parts = [contiguous(part) for part in m.server_codec().encode(header, frames)]
    return [m.client_codec().decode(answer)[0] for _, answer in server.handle("peer", parts, 0.0)]


def test_a_server_begins_no_move_before_the_last_is_over() -> None:
    tables, old = make_tables(), make_roster(2)
    server = Server("server-0", old, tables)
    new = old.add(Seat("server-2"))
    for roster, kind in ((new, m.Agreed), (new, m.Agreed), (new.add(Seat("server-3")), m.Refused)):
        (answer,) = say(server, m.Switch(1, roster))
        assert isinstance(answer, kind)
