"""LaneFlow: every lane takes batches of its own when the policies of all stages say so; every batch is done once."""

from __future__ import annotations

import pytest
from flow_play import NO_USAGE, Play, make_layout, stages, take_no_batch, take_push
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.config import ASP, DSSP, SSP
from heterps.data.leases import Leases
from heterps.training.coordinator.lane_flow import LaneFlow
from heterps.training.protocol.layout import Layout, StageLayout
from heterps.training.protocol.messages import Go, NoBatch, Pushed


def a_flow(counts=(1,), num_lanes: int = 2, sync=ASP(), num_batches: int | None = 4, epochs: int = 1) -> LaneFlow:
    groups = [(number,) for number in range(len(counts))]
    return LaneFlow(make_layout(counts, num_lanes), groups, sync, Leases(epochs, num_batches))


def pushed(worker: str, lane: int, iteration: int, loss: float = 0.0) -> Pushed:
    return Pushed(worker, lane, iteration, 8, NO_USAGE, loss)


def test_each_lane_starts_with_a_batch_of_its_own():
    flow = a_flow()
    assert flow.start(0.0) == [("worker-1.0", Go(0, 1, 0, 0, 0)), ("worker-1.0", Go(1, 1, 0, 0, 1))]


def test_a_lane_goes_on_alone_and_its_staleness_is_what_others_pushed_meanwhile():
    flow = a_flow()
    flow.start(0.0)
    assert take_push(flow, pushed("worker-1.0", 0, 1), None, 1.0) == [("worker-1.0", Go(0, 2, 8, 0, 2, lead=1))]
    take_push(flow, pushed("worker-1.0", 0, 2), None, 2.0)
    take_push(flow, pushed("worker-1.0", 1, 1), None, 3.0)
    assert [step.staleness for step in flow.steps] == [0, 0, 2]


def test_a_batch_is_done_when_all_stages_have_pushed_it_and_only_then_does_its_lane_go_on():
    flow = a_flow((1, 1), num_lanes=1)
    flow.start(0.0)
    assert take_push(flow, pushed("worker-2.0", 0, 1, loss=0.5), None, 1.0) == []
    assert not flow.steps
    assert flow.waited_for == ["worker-1.0"]
    assert take_push(flow, pushed("worker-1.0", 0, 1), None, 2.0) == [("worker-1.0", Go(0, 2, 8, 0, 1))]
    assert flow.steps[0].loss == 0.5


def test_ssp_lets_a_lane_wait_for_the_slowest():
    flow = a_flow(num_lanes=2, sync=SSP(lower=0))
    flow.start(0.0)
    assert take_push(flow, pushed("worker-1.0", 0, 1), None, 1.0) == []
    assert flow.waited_for == ["worker-1.0"]
    assert {go.lane for _, go in take_push(flow, pushed("worker-1.0", 1, 1), None, 2.0)} == {0, 1}
    assert flow.leads == {"0": 0}


def test_a_lane_without_a_batch_leaves_so_that_nobody_waits_for_it():
    flow = a_flow(num_lanes=3, sync=SSP(lower=0), num_batches=4)
    assert len(flow.start(0.0)) == 3
    for lane in range(3):
        messages = take_push(flow, pushed("worker-1.0", lane, 1), None, 1.0)
    assert len(messages) == 1
    assert not flow.is_over
    take_push(flow, pushed("worker-1.0", messages[0][1].lane, 2), None, 2.0)
    assert flow.is_over


@pytest.mark.parametrize(("lane", "iteration"), [(0, 2), (1, 1)])
def test_a_push_out_of_turn_is_a_mistake(lane: int, iteration: int):
    flow = a_flow((1, 1), num_lanes=2)
    flow.start(0.0)
    take_push(flow, pushed("worker-2.0", 1, 1), None, 0.0)
    with pytest.raises(ValueError, match="out of turn"):
        take_push(flow, pushed("worker-2.0", lane, iteration), None, 0.0)


def test_an_iteration_that_found_no_batch_was_none():
    """The lane begins the iteration of that number with the next batch there is."""
    flow = a_flow(num_lanes=1, num_batches=None, epochs=2)
    flow.start(0.0)
    assert take_push(flow, pushed("worker-1.0", 0, 1), None, 1.0) == [("worker-1.0", Go(0, 2, 8, 0, 1))]
    messages = take_no_batch(flow, NoBatch("worker-1.0", 0, 2, 0, 1), 2.0)
    assert messages == [("worker-1.0", Go(0, 2, 8, 1, 0))]


def test_the_rest_of_a_run_whose_worker_has_left_goes_to_the_next_that_comes():
    leases = Leases(1, 18, run=6)
    flow = LaneFlow(make_layout((2,), 2), [(0,)], ASP(), leases)
    assert [go.batch for _, go in flow.start(0.0)] == [0, 6]
    flow.hold()
    for worker, lane in (("worker-1.0", 0), ("worker-1.1", 1)):
        assert take_push(flow, pushed(worker, lane, 1), None, 1.0) == []
    stage = StageLayout(0, 0, "cpu", ("worker-1.0", "worker-1.2"))
    flow.change(Layout((stage,), 2, 2), 2.0)
    assert [(worker, go.batch) for worker, go in flow.start(3.0)] == [("worker-1.0", 1), ("worker-1.2", 7)]


def test_a_worker_is_told_where_the_run_begins_that_it_goes_on_with():
    flow = LaneFlow(make_layout((2,), 2), [(0,)], ASP(), Leases(1, 12, run=2))
    assert [(go.batch, go.next_run) for _, go in flow.start(0.0)] == [(0, 2), (4, 6)]


BOUNDS = {"asp": None, "ssp:0": 0, "ssp:2": 2, "dssp:1:3": 4, "dssp:0:2+elapsed": 2}


@given(
    shape=stages(),
    num_lanes=st.integers(1, 5),
    sync=st.sampled_from(sorted(BOUNDS)),
    epochs=st.integers(1, 3),
    num_batches=st.integers(1, 7),
    is_known=st.booleans(),
    run=st.integers(1, 4),
    hold=st.sampled_from([0.0, 0.1]),
    favourite=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=200)
def test_in_any_order_with_cuts_at_any_moment_every_batch_is_done_once_within_the_bounds(
    shape, num_lanes, sync, epochs, num_batches, is_known, run, hold, favourite, seed
):
    counts, groups = shape
    num_lanes = max(num_lanes, *counts)
    leases = Leases(epochs, num_batches if is_known else None, run=run)
    play = Play(LaneFlow, sync, make_layout(counts, num_lanes), groups, leases, seed)
    flow, random = play.flow, play.random
    todo: dict[int, tuple[Go, list[int]]] = {}  # by lane, with the stages that have not pushed
    done: list[tuple[int, int]] = []

    def deliver(messages) -> None:
        for worker, go in messages:
            assert go.lane not in todo, "a lane was sent for two batches at once"
            assert worker == flow.layout.worker_of(go.lane, 0)
            todo[go.lane] = go, list(range(len(counts)))

    deliver(flow.start(0.0))
    for _ in range(10_000):
        if flow.is_over:
            break
        if random.random() < hold:
            flow.hold()
        if flow.is_held and flow.is_quiet:
            assert not todo
            if random.random() < 0.6:
                counts = [random.randint(1, 3) for _ in counts]
                layout = make_layout(counts, max(random.randint(1, 5), *counts), flow.layout.epoch + 1)
                flow.change(layout, play.tick())
            deliver(flow.start(play.tick()))
            continue
        assert todo, "nobody has anything to do, and it is not over"
        lane = max(todo) if favourite and random.random() < 0.8 else random.choice(sorted(todo))
        go, left = todo[lane]
        held = flow.is_held
        if go.batch >= num_batches:
            del todo[lane]
            worker = flow.layout.worker_of(lane, 0)
            messages = take_no_batch(flow, NoBatch(worker, lane, go.iteration, go.epoch, num_batches), play.tick())
        else:
            stage = left.pop(random.randrange(len(left)))
            if not left:
                del todo[lane]
                done.append((go.epoch, go.batch))
            message = Pushed(flow.layout.worker_of(lane, stage), lane, go.iteration, 1, NO_USAGE)
            messages = take_push(flow, message, None, play.tick())
        assert not (held and messages), "a lane was started while it was held back"
        deliver(messages)
        assert set(flow.waited_for) <= set(flow.layout.workers)
    assert flow.is_over
    assert sorted(done) == [(epoch, number) for epoch in range(epochs) for number in range(num_batches)]
    assert len(flow.steps) == flow.samples == len(done)
    if BOUNDS[sync] is not None:
        assert max(flow.leads.values()) <= BOUNDS[sync]
    play.check_traces()


def test_the_largest_leads_are_told_by_group():
    flow = LaneFlow(make_layout((1, 1, 1), 2), [(0, 2), (1,)], DSSP(), Leases(1, 1))
    assert flow.leads == {"0-2": 0, "1": 0}
