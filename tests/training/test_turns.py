"""Turns: gradients before values, in rounds by lane, never more in flight than there is credit; and nobody blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from flow_play import make_layout
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.training.protocol.layout import Layout
from heterps.training.worker.turns import Due, Key, Turns


def all_turns(turns: Turns) -> list[Due]:
    found = []
    while (turn := turns.next()) is not None:
        found.append(turn)
    return found


def test_gradients_go_before_values():
    turns = Turns(4)
    turns.values_came((1, 0))
    assert turns.next() == Due("forward", (1, 0))
    turns.values_came((1, 1))
    turns.gradients_came((1, 0))
    assert all_turns(turns) == [Due("backward", (1, 0)), Due("forward", (1, 1))]


def test_no_more_go_forward_than_may_be_in_flight():
    turns = Turns(2)
    for lane in range(3):
        turns.values_came((1, lane))
    assert all_turns(turns) == [Due("forward", (1, 0)), Due("forward", (1, 1))]
    assert turns.num_waiting == 1
    assert turns.out == {(1, 0), (1, 1)}
    turns.gradients_came((1, 1))
    assert turns.out == {(1, 0)}, "gradients that came are not waited for"
    assert all_turns(turns) == [Due("backward", (1, 1)), Due("forward", (1, 2))]


def test_in_a_round_what_comes_early_waits_for_its_turn():
    turns = Turns(4)
    turns.begin_round([(1, 0), (1, 2)])
    turns.values_came((1, 2))
    assert turns.next() is None
    turns.values_came((1, 0))
    assert all_turns(turns) == [Due("forward", (1, 0)), Due("forward", (1, 2))]
    turns.gradients_came((1, 2))
    assert turns.next() is None
    turns.gradients_came((1, 0))
    assert all_turns(turns) == [Due("backward", (1, 0)), Due("backward", (1, 2))]


def test_the_last_stage_has_its_credit_back_at_once():
    turns = Turns(1)
    turns.begin_round([(1, 0), (1, 1)])
    for lane in (0, 1):
        turns.values_came((1, lane))
        assert turns.next() == Due("forward", (1, lane))
        turns.came_back((1, lane))
    assert turns.out == set()


def test_what_is_forgotten_does_not_come_again():
    turns = Turns(1)
    turns.begin_round([(1, 0)])
    turns.values_came((1, 0))
    turns.next()
    turns.values_came((1, 1))
    turns.forget()
    assert (turns.next(), turns.num_waiting, turns.out) == (None, 0, set())
    turns.values_came((2, 5))
    assert turns.next() == Due("forward", (2, 5)), "without a round the order is that of coming"


class Pipeline:
    """Workers with their turns, and a queue from each to each, which is late as it likes but keeps its order."""

    def __init__(self, layout: Layout, in_flight: int, random: Random) -> None:
        self.layout, self.random, self.in_flight = layout, random, in_flight
        self.last = len(layout.stages) - 1
        self.turns = {worker: Turns(in_flight) for worker in layout.workers}
        self.mailbox: dict[tuple[str, str], deque[tuple[str, Key]]] = {}
        self.out: dict[str, set[Key]] = {worker: set() for worker in layout.workers}
        self.did: dict[str, list[Due]] = {worker: [] for worker in layout.workers}
        self.home: list[Key] = []  # back at stage 0

    def send(self, sender: str, lane: int, stage: int, what: str, key: Key) -> None:
        self.mailbox.setdefault((sender, self.layout.worker_of(lane, stage)), deque()).append((what, key))

    def receive(self, way: tuple[str, str]) -> tuple[str, Key]:
        return self.mailbox[way].popleft()

    def work(self, worker: str, turn: Due) -> None:
        stage, (_, lane) = self.layout.stage_of(worker), turn.key
        self.did[worker].append(turn)
        if turn.does == "forward" and stage < self.last:
            self.out[worker].add(turn.key)
            assert len(self.out[worker]) <= self.in_flight
            self.send(worker, lane, stage + 1, "values", turn.key)
            return
        if turn.does == "forward":
            self.turns[worker].came_back(turn.key)
        self.out[worker].discard(turn.key)
        if stage > 0:
            self.send(worker, lane, stage - 1, "gradients", turn.key)
        else:
            self.home.append(turn.key)

    def hand_over(self, worker: str, what: str, key: Key) -> None:
        (self.turns[worker].values_came if what == "values" else self.turns[worker].gradients_came)(key)

    def choose(self, does: list[tuple[str, Any]], workers: Sequence[str]) -> tuple[str, Any, Due | None]:
        """One of the things that can be done, or the turn of a worker that has one."""
        could = [*does, *(("work", worker) for worker in workers)]
        self.random.shuffle(could)
        for what, who in could:
            turn = self.turns[who].next() if what == "work" else None
            if what != "work" or turn is not None:
                return what, who, turn
        raise AssertionError("the pipeline blocks")

    def ways(self) -> list[tuple[str, str]]:
        return sorted(way for way, letters in self.mailbox.items() if letters)


layouts = st.builds(
    lambda counts, more: make_layout(counts, max(counts) + more),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(0, 5),
)


@given(layout=layouts, in_flight=st.integers(1, 4), num_rounds=st.integers(1, 3), seed=st.integers(0, 2**32))
@settings(max_examples=150)
def test_rounds_through_any_pipeline_come_home_in_the_order_of_lanes(layout, in_flight, num_rounds, seed):
    random = Random(seed)
    pipeline = Pipeline(layout, in_flight, random)
    for number in range(1, num_rounds + 1):
        waiting = set(layout.workers)  # for their go-ahead
        early: dict[str, list[Key]] = {worker: [] for worker in layout.workers}
        pipeline.home.clear()
        for did in pipeline.did.values():
            did.clear()
        while len(pipeline.home) < layout.num_lanes:
            does = [("begin", w) for w in sorted(waiting)] + [("deliver", way) for way in pipeline.ways()]
            what, who, turn = pipeline.choose(does, [w for w in layout.workers if w not in waiting])
            if what == "begin":
                waiting.discard(who)
                keys = [(number, lane) for lane in layout.lanes_of(who)]
                pipeline.turns[who].begin_round(keys)
                for key in keys if layout.stage_of(who) == 0 else early[who]:
                    pipeline.hand_over(who, "values", key)
            elif what == "deliver":
                kind, key = pipeline.receive(who)
                if who[1] in waiting:
                    early[who[1]].append(key)
                else:
                    pipeline.hand_over(who[1], kind, key)
            else:
                pipeline.work(who, turn)
        for worker in layout.workers:
            lanes = [(number, lane) for lane in layout.lanes_of(worker)]
            assert [turn.key for turn in pipeline.did[worker] if turn.does == "forward"] == lanes
            if layout.stage_of(worker) < pipeline.last:
                assert [turn.key for turn in pipeline.did[worker] if turn.does == "backward"] == lanes
            assert pipeline.turns[worker].out == set()


@given(layout=layouts, in_flight=st.integers(1, 4), batches=st.integers(1, 4), seed=st.integers(0, 2**32))
@settings(max_examples=150)
def test_lanes_with_batches_of_their_own_all_come_home(layout, in_flight, batches, seed):
    random = Random(seed)
    pipeline = Pipeline(layout, in_flight, random)
    left = {lane: list(range(2, batches + 1)) for lane in range(layout.num_lanes)}
    for lane in left:
        pipeline.hand_over(layout.worker_of(lane, 0), "values", (1, lane))
    while len(pipeline.home) < layout.num_lanes * batches:
        what, who, turn = pipeline.choose([("deliver", way) for way in pipeline.ways()], layout.workers)
        if what == "deliver":
            pipeline.hand_over(who[1], *pipeline.receive(who))
            continue
        pipeline.work(who, turn)
        if pipeline.home and (done := pipeline.home[-1]) and left[done[1]] and left[done[1]][0] == done[0] + 1:
            pipeline.hand_over(layout.worker_of(done[1], 0), "values", (left[done[1]].pop(0), done[1]))
    assert sorted(pipeline.home) == [(n, lane) for n in range(1, batches + 1) for lane in range(layout.num_lanes)]
