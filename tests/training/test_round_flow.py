"""RoundFlow: rounds end when all workers have pushed, whatever the order; every batch is one round, once."""

from __future__ import annotations

import numpy as np
import pytest
from flow_play import NO_USAGE, Play, make_layout, sent_to, stages, take_no_batch, take_push
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.config import BSP
from heterps.data.leases import Leases
from heterps.training.coordinator.effects import DropRound, EndRound, Note, TellEnded
from heterps.training.coordinator.flow import EndedRound, SkippedBatch
from heterps.training.coordinator.follow_ups import after_rounds, go_aheads
from heterps.training.coordinator.round_flow import RoundFlow
from heterps.training.protocol.messages import ALL_LANES, Go, NoBatch, Pushed, Send
from heterps.training.run.progress import Scores


def a_flow(counts=(1, 1), num_batches: int | None = 3, epochs: int = 1, samples: int = 0) -> RoundFlow:
    groups = [(number,) for number in range(len(counts))]
    leases = Leases(epochs, num_batches, ordered=True)
    return RoundFlow(make_layout(counts, 4), groups, BSP(), leases, samples=samples)


def pushed(worker: str, number: int, num_samples: int = 8, loss: float = 0.0) -> Pushed:
    return Pushed(worker, ALL_LANES, number, num_samples, NO_USAGE, loss)


def test_a_round_is_over_when_all_have_pushed_and_then_all_go_on_with_the_next_batch():
    flow = a_flow((2, 1), samples=100)
    first = Go(ALL_LANES, 1, 100, 0, 0)
    assert flow.start(0.0) == [(worker, first) for worker in ("worker-1.0", "worker-1.1", "worker-2.0")]
    assert take_push(flow, pushed("worker-2.0", 1, loss=0.5), None, 1.0) == []
    assert take_push(flow, pushed("worker-1.1", 1), None, 1.5) == []
    assert flow.waited_for == ["worker-1.0"]
    assert not flow.steps
    messages = take_push(flow, pushed("worker-1.0", 1), None, 2.0)
    assert sorted(sent_to(messages)) == ["worker-1.0", "worker-1.1", "worker-2.0"]
    assert {message for _, message in messages} == {Go(ALL_LANES, 2, 108, 0, 1)}
    (step,) = flow.steps
    assert (step.num_samples, step.loss, step.staleness) == (8, 0.5, 0)


def test_the_losses_of_the_workers_of_the_last_stage_add_up_and_their_scores_are_in_order():
    flow = a_flow((1, 2))
    flow.start(0.0)
    scores = [Scores(np.array([float(k)], np.float32), np.zeros(1, np.float32)) for k in range(2)]
    take_push(flow, pushed("worker-2.1", 1, loss=0.25), scores[1], 0.0)
    take_push(flow, pushed("worker-2.0", 1, loss=0.5), scores[0], 0.0)
    take_push(flow, pushed("worker-1.0", 1), None, 0.0)
    assert flow.steps[0].loss == 0.75
    assert [s.logits[0] for s in flow.steps[0].scores] == [0.0, 1.0]


@pytest.mark.parametrize("number", [1, 3])
def test_a_push_out_of_turn_is_a_mistake(number: int):
    flow = a_flow()
    flow.start(0.0)
    take_push(flow, pushed("worker-1.0", 1), None, 0.0)
    with pytest.raises(ValueError, match="out of turn"):
        take_push(flow, pushed("worker-1.0", number), None, 0.0)


@pytest.mark.parametrize("number", [0, 2])
def test_a_push_of_another_round_is_a_mistake_even_of_a_worker_that_is_awaited(number: int):
    flow = a_flow()
    flow.start(0.0)
    with pytest.raises(ValueError, match=f"worker-1.0 pushed round {number} out of turn; this is 1"):
        take_push(flow, pushed("worker-1.0", number), None, 0.0)
    assert flow.waited_for == ["worker-1.0", "worker-2.0"]


def test_held_back_a_round_ends_and_no_other_begins_until_it_is_started_again():
    flow = a_flow((1,), num_batches=2)
    flow.start(0.0)
    flow.hold()
    assert not flow.is_quiet
    assert take_push(flow, pushed("worker-1.0", 1), None, 0.0) == []
    assert flow.is_quiet
    assert not flow.is_over
    assert flow.waited_for == []
    assert flow.start(1.0) == [("worker-1.0", Go(ALL_LANES, 2, 8, 0, 1))]


def test_a_flow_holds_itself_at_the_batch_that_makes_a_checkpoint_due():
    flow = a_flow((1,), num_batches=5, samples=100)
    flow.hold_at = 116
    flow.start(0.0)
    assert take_push(flow, pushed("worker-1.0", 1), None, 0.0), "108 samples: not yet"
    assert take_push(flow, pushed("worker-1.0", 2), None, 0.0) == []
    assert flow.is_held
    assert flow.is_quiet
    assert flow.samples == 116


def test_where_an_epoch_has_no_such_batch_the_round_begins_with_the_first_of_the_next():
    flow = a_flow((2, 1), num_batches=None, epochs=2)
    flow.start(0.0)
    for worker in flow.layout.workers:
        take_push(flow, pushed(worker, 1), None, 0.0)
    assert flow.lease == (0, 1)
    assert take_no_batch(flow, NoBatch("worker-1.1", ALL_LANES, 2, 0, 1), 1.0) == [
        ("worker-1.1", Go(ALL_LANES, 2, 8, 1, 0))
    ]
    assert take_no_batch(flow, NoBatch("worker-1.0", ALL_LANES, 2, 0, 1), 1.0) == [
        ("worker-1.0", Go(ALL_LANES, 2, 8, 1, 0))
    ]
    for worker in flow.layout.workers:
        take_push(flow, pushed(worker, 2), None, 2.0)
    assert flow.is_over


def test_who_pushed_before_a_reader_found_the_end_of_its_epoch_goes_on_too():
    flow = a_flow((1, 1), num_batches=None, epochs=3)
    flow.start(0.0)
    for worker in flow.layout.workers:
        take_push(flow, pushed(worker, 1), None, 0.0)
    take_push(flow, pushed("worker-2.0", 2), None, 1.0)
    take_no_batch(flow, NoBatch("worker-1.0", ALL_LANES, 2, 0, 1), 1.0)
    assert sorted(sent_to(take_push(flow, pushed("worker-1.0", 2), None, 2.0))) == ["worker-1.0", "worker-2.0"]


def test_the_end_of_the_last_epoch_is_the_end():
    flow = a_flow((1, 1), num_batches=None)
    flow.start(0.0)
    for worker in flow.layout.workers:
        take_push(flow, pushed(worker, 1), None, 0.0)
    assert not flow.is_over
    assert take_no_batch(flow, NoBatch("worker-1.0", ALL_LANES, 2, 0, 1), 1.0) == []
    assert flow.is_over


@given(
    shape=stages(),
    epochs=st.integers(1, 3),
    num_batches=st.integers(1, 5),
    is_known=st.booleans(),
    hold=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=120)
def test_in_any_order_with_cuts_at_any_moment_every_batch_is_a_round_once(
    shape, epochs, num_batches, is_known, hold, seed
):
    counts, groups = shape
    leases = Leases(epochs, num_batches if is_known else None, ordered=True)
    play = Play(RoundFlow, "bsp", make_layout(counts, 4), groups, leases, seed)
    flow, random = play.flow, play.random
    todo: dict[str, Go] = {}
    rounds: list[tuple[int, int]] = []

    def deliver(messages) -> None:
        todo.update(messages)

    deliver(flow.start(0.0))
    for _ in range(10_000):
        if flow.is_over:
            break
        if random.random() < hold:
            flow.hold()
        if flow.is_held and flow.is_quiet:
            if random.random() < 0.5:
                counts = [random.randint(1, 3) for _ in counts]
                flow.change(make_layout(counts, 4, flow.layout.epoch + 1), play.tick())
            todo.clear()
            deliver(flow.start(play.tick()))
            assert flow.is_over or set(todo) == set(flow.layout.workers)
            continue
        readers = [worker for worker in flow.layout.stages[0].workers if worker in todo]
        missing = [worker for worker in readers if todo[worker].batch >= num_batches]
        assert todo, "nobody has anything to do, and it is not over"
        if missing:
            worker = random.choice(missing)
            go = todo.pop(worker)
            deliver(take_no_batch(flow, NoBatch(worker, ALL_LANES, go.iteration, go.epoch, num_batches), play.tick()))
            continue
        batches = {(todo[w].epoch, todo[w].batch) for w in readers}
        assert len(batches) <= 1, "workers were sent for different batches of one round"
        worker = random.choice(sorted(todo))
        go = todo.pop(worker)
        assert go.lane == ALL_LANES
        if not todo:
            assert flow.lease is not None
            rounds.append(flow.lease)
        before = flow.is_held
        messages = take_push(flow, pushed(worker, go.iteration, num_samples=1), None, play.tick())
        assert not (before and messages), "a round began while it was held back"
        deliver(messages)
    assert flow.is_over
    assert rounds == [(epoch, number) for epoch in range(epochs) for number in range(num_batches)]
    assert len(flow.steps) == flow.samples == len(rounds)
    assert set(flow.leads.values()) == {0}
    play.check_traces()


def test_a_round_that_was_begun_for_nothing_is_no_cut_until_its_workers_were_sent_again():
    flow = a_flow((1,), None, epochs=2)
    flow.start(0.0)
    flow.pushed(pushed("worker-1.0", 1), None, 0.0)
    flow.go_on(0.0)
    flow.hold()
    flow.no_batch(NoBatch("worker-1.0", ALL_LANES, 2, 0, 1))
    assert not flow.is_quiet, "the worker waits for another batch of the same round"
    assert flow.go_on(1.0) == [("worker-1.0", Go(ALL_LANES, 2, 8, 1, 0))]


def test_a_round_that_one_worker_found_not_finite_is_void_and_the_next_batch_has_its_number():
    flow = a_flow((2, 1))
    flow.start(0.0)
    bad = Pushed("worker-1.1", ALL_LANES, 1, 8, NO_USAGE, not_finite="the loss is nan")
    for message in (pushed("worker-2.0", 1, loss=0.5), bad):
        assert take_push(flow, message, None, 1.0) == []
    messages = take_push(flow, pushed("worker-1.0", 1), None, 2.0)
    assert {message for _, message in messages} == {Go(ALL_LANES, 1, 8, 0, 1)}
    (step,) = flow.steps
    assert step.skipped == SkippedBatch(0, 0, "the loss is nan")
    assert after_rounds(flow.take_ended(), flow.layout) == [DropRound(1)]


def test_a_lone_worker_has_pushed_nothing_of_a_void_round_unless_one_before_it_died():
    alone = make_layout((1,), 1)
    assert after_rounds([EndedRound(3, is_void=True)], alone) == []
    assert after_rounds([EndedRound(3, is_void=True, is_repeated=True)], alone) == [DropRound(3)]
    assert after_rounds([EndedRound(3, is_void=False)], alone) == [EndRound(3, are_several=False)]


@pytest.mark.parametrize("journals", [True, False])
def test_servers_hear_of_the_end_of_a_round_before_workers_and_never_before_the_journal(journals: bool):
    go = Go(ALL_LANES, 2, 8, 0, 1)
    several = go_aheads([("worker-1.0", go), ("worker-1.1", go)], journals=journals)
    assert several == [*[Note(go)] * journals, TellEnded(), Send("worker-1.0", go), Send("worker-1.1", go)]
    assert TellEnded() not in go_aheads([("worker-1.0", go)], journals=journals), "a round of one is applied at once"
    lanes = [("worker-1.0", Go(0, 2, 8, 0, 1)), ("worker-1.1", Go(1, 2, 8, 0, 2))]
    assert TellEnded() not in go_aheads(lanes, journals=journals), "lanes have no rounds"
