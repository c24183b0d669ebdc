import json
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from heterps.data.leases import Leases
from heterps.errors import DataError

WORKERS = ("a", "b", "c", "d")


class EveryBatchIsAcknowledgedOnce(RuleBasedStateMachine):
    """Workers take, acknowledge, leave and come back; the coordinator stops and goes on from its state."""

    @initialize(
        epochs=st.integers(1, 3),
        num_batches=st.integers(1, 12),
        told=st.booleans(),
        run=st.integers(1, 5),
        ordered=st.booleans(),
    )
    def start(self, epochs, num_batches, told, run, ordered):
        self.epochs, self.num_batches, self.options = epochs, num_batches, {"run": run, "ordered": ordered}
        self.leases = Leases(epochs, num_batches if told else None, **self.options)
        self.held: dict[tuple[int, int], str] = {}
        self.handed_out: set[tuple[int, int]] = set()
        self.acknowledged: Counter[tuple[int, int]] = Counter()

    @rule(worker=st.sampled_from(WORKERS))
    def take(self, worker):
        lease = self.leases.take(worker)
        if lease is None:
            assert len(self.held) + len(self.acknowledged) == self.epochs * self.num_batches
            return
        epoch, number = lease
        assert lease not in self.held, "two workers have it"
        assert lease not in self.acknowledged, "it was trained already"
        if epoch:
            before = {(epoch - 1, n) for n in range(self.num_batches)}
            assert before <= self.handed_out, "the epoch before was not handed out whole"
        if number >= self.num_batches:
            assert self.leases.num_batches is None
            self.leases.end_of_epoch(epoch, self.num_batches)
            self.held = {(e, n): holder for (e, n), holder in self.held.items() if n < self.num_batches}
        else:
            self.held[lease] = worker
            self.handed_out.add(lease)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def done(self, data):
        lease = data.draw(st.sampled_from(sorted(self.held)))
        assert self.leases.done(self.held.pop(lease), *lease)
        self.acknowledged[lease] += 1

    @rule(worker=st.sampled_from(WORKERS), epoch=st.integers(0, 3), number=st.integers(0, 13))
    def done_without_a_lease(self, worker, epoch, number):
        if self.held.get((epoch, number)) != worker:
            assert not self.leases.done(worker, epoch, number)

    @rule(worker=st.sampled_from(WORKERS))
    def give_back(self, worker):
        returned = sorted(lease for lease, holder in self.held.items() if holder == worker)
        assert self.leases.give_back(worker) == returned
        for lease in returned:
            del self.held[lease]

    @precondition(lambda self: self.handed_out)
    @rule()
    def a_reader_finds_the_end(self):
        self.leases.end_of_epoch(max(self.handed_out)[0], self.num_batches)

    @rule(run=st.integers(1, 5))
    def stop_and_go_on(self, run):
        state = json.loads(json.dumps(self.leases.state()))
        self.leases = Leases.from_state(state, self.epochs, **{**self.options, "run": run})
        assert self.leases.state() == state
        self.held.clear()

    @invariant()
    def counts_agree(self):
        assert self.leases.held == self.held
        assert self.leases.is_over == (
            len(self.acknowledged) == self.epochs * self.num_batches and self.leases.num_batches is not None
        )
        if self.leases.num_batches is not None:
            everything = [(e, n) for e in range(self.epochs) for n in range(self.num_batches)]
            open_ones = [lease for lease in everything if lease not in self.acknowledged]
            assert self.leases.first == (open_ones[0] if open_ones else (self.epochs, 0))

    def teardown(self):
        if not hasattr(self, "leases"):
            return
        self.give_back("a")
        for _ in range(2 * self.epochs * self.num_batches + 2):  # one for every batch, and those beyond the end
            self.take("b")
            for lease in [lease for lease, holder in self.held.items() if holder == "b"]:
                assert self.leases.done("b", *lease)
                self.acknowledged[lease] += 1
                del self.held[lease]
        for worker in WORKERS:
            self.give_back(worker)
        while (lease := self.leases.take("c")) is not None:
            assert self.leases.done("c", *lease)
            self.acknowledged[lease] += 1
        assert self.leases.is_over
        assert self.acknowledged == {(e, n): 1 for e in range(self.epochs) for n in range(self.num_batches)}


TestEveryBatchIsAcknowledgedOnce = EveryBatchIsAcknowledgedOnce.TestCase
TestEveryBatchIsAcknowledgedOnce.settings = settings(max_examples=150, stateful_step_count=40)


def take(leases, workers):
    return [leases.take(worker) for worker in workers]


def numbers(leases, workers):
    return [number for _, number in take(leases, workers)]


def test_a_worker_goes_on_in_its_run():
    leases = Leases(1, 12, run=4)
    assert numbers(leases, "abababab") == [0, 4, 1, 5, 2, 6, 3, 7]
    assert numbers(leases, "ba") == [8, 9]  # the last run is b's, and a shares it


def test_with_the_half_of_its_run_a_worker_has_the_next_and_can_be_told_where_it_begins():
    leases = Leases(1, 16, run=4)
    assert numbers(leases, "aba") == [0, 4, 1]
    assert [leases.next_run("a", 0, 1), leases.next_run("b", 0, 4)] == [8, 0]
    assert numbers(leases, "baa") == [5, 2, 3]
    assert [leases.next_run("a", 0, 3), leases.next_run("b", 0, 5)] == [8, 12]
    assert numbers(leases, "acc") == [8, 12, 13], "a second run that nobody has begun goes to who has none"
    assert [leases.next_run(worker, 0, number) for worker, number in (("a", 8), ("b", 5), ("nobody", 0))] == [0, 0, 0]


def test_of_a_lease_beyond_the_end_nobody_knows_what_comes_next():
    leases = Leases(1, None, run=4)
    assert numbers(leases, "aaab") == [0, 1, 2, 8]
    leases.end_of_epoch(0, 2)
    assert [leases.next_run("a", 0, 1), leases.next_run("b", 0, 8)] == [0, 0]
    assert leases.done("a", 0, 0)
    assert leases.done("a", 0, 1)
    assert leases.is_over
    assert leases.next_run("b", 0, 8) == 0, "as when its lane is repeated because a worker has died"


def test_near_the_end_a_worker_takes_from_another_that_has_most_left():
    leases = Leases(1, 12, run=4)
    assert numbers(leases, "aabbbc") == [0, 1, 8, 9, 10, 4]  # the last is of the second run of a
    assert numbers(leases, "dddddd") == [5, 2, 6, 3, 7, 11]  # of equal ones the lowest
    assert leases.take("d") is None


def test_a_run_ends_with_its_block_though_it_starts_in_the_middle():
    leases = Leases(1, 12, run=4, start=(0, 2))
    assert numbers(leases, "aba") == [2, 8, 3]  # 4 to 7 are the next run of a
    assert leases.first == (0, 2)


def test_batches_of_a_worker_that_left_are_handed_out_first_and_its_run_before_fresh_ones():
    leases = Leases(1, 12, run=4)
    assert numbers(leases, "aab") == [0, 1, 8]
    assert leases.give_back("a") == [(0, 0), (0, 1)]
    assert numbers(leases, "bbcccb") == [0, 1, 2, 3, 4, 9]
    assert leases.give_back("nobody") == []


@pytest.mark.parametrize("leaving", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_batches_that_came_back_are_handed_out_lowest_first_whoever_left_first(leaving):
    leases = Leases(1, 12, run=4)
    assert numbers(leases, "aabbcc") == [0, 1, 8, 9, 4, 5]
    for worker in leaving:
        leases.give_back(worker)
    assert numbers(leases, "d" * 12) == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]


def test_in_order_every_batch_follows_the_one_before_whoever_asks():
    leases = Leases(2, 3, run=4, ordered=True)
    assert take(leases, "abbac") == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    leases.give_back("b")
    assert take(leases, "aaaa") == [(0, 1), (0, 2), (1, 2), None]


def test_an_epoch_overlaps_the_tail_of_the_one_before():
    leases = Leases(2, 2, run=2)
    assert take(leases, "aba") == [(0, 0), (0, 1), (1, 0)]
    assert leases.done("a", 1, 0)
    assert leases.first == (0, 0)
    assert not leases.is_over


def test_an_acknowledgement_that_comes_after_the_lease_came_back_does_not_count():
    leases = Leases(1, 1)
    assert take(leases, "a") == [(0, 0)]
    leases.give_back("a")
    assert not leases.done("a", 0, 0)
    assert take(leases, "b") == [(0, 0)]
    assert not leases.done("a", 0, 0)
    assert leases.done("b", 0, 0)
    assert leases.is_over


def test_where_the_end_is_not_known_leases_beyond_it_vanish_once_it_is():
    leases = Leases(2, None, run=3)
    assert numbers(leases, "abc") == [0, 3, 6]
    leases.give_back("c")
    leases.end_of_epoch(0, 2)
    assert leases.held == {(0, 0): "a"}
    assert not leases.done("b", 0, 3)
    assert take(leases, "bb") == [(0, 1), (1, 0)]
    leases.end_of_epoch(1, 2)


def test_the_state_is_small_though_one_batch_is_never_acknowledged():
    leases = Leases(3, 10_000, run=8)
    assert leases.take("slow") == (0, 0)
    for _ in range(25_000):
        assert leases.done("fast", *leases.take("fast"))
    state = leases.state()
    assert state == {"num_batches": 10_000, "epoch": 0, "done": [[[1, 10_000]], [[0, 10_000]], [[0, 5_001]]]}
    assert take(Leases.from_state(state, 3, run=8), "aa") == [(0, 0), (2, 5_001)]


def test_going_on_hands_out_what_is_missing_in_runs_of_the_new_length():
    state = {"num_batches": 20, "epoch": 4, "done": [[[0, 3], [9, 12]]]}
    leases = Leases.from_state(state, 6, run=4)
    assert numbers(leases, "abcd") == [3, 4, 8, 12]
    assert Leases.from_state(state, 4).is_over  # epochs may be fewer than before


def test_a_start_behind_the_last_batch_is_the_start_of_the_next_epoch():
    leases = Leases(2, 4, start=(0, 4))
    assert leases.first == (1, 0)
    assert take(leases, "a") == [(1, 0)]
    assert Leases(1, 4, start=(0, 4)).is_over


def test_holes_are_batches_acknowledged_behind_one_that_is_not():
    leases = Leases(2, 2)
    assert take(leases, "abc") == [(0, 0), (0, 1), (1, 0)]
    assert not leases.has_holes
    leases.done("a", 0, 0)
    assert not leases.has_holes, "all that is acknowledged lies before the first that is not"
    leases.done("c", 1, 0)
    assert leases.has_holes, "in the next epoch"
    leases.done("b", 0, 1)
    assert not leases.has_holes
    assert take(leases, "a") == [(1, 1)]
    leases.done("a", 1, 1)
    assert leases.is_over
    assert not leases.has_holes
    leases = Leases(1, 3)
    assert take(leases, "ab") == [(0, 0), (0, 1)]
    leases.done("b", 0, 1)
    assert leases.has_holes, "in the same epoch"


def test_a_state_does_not_change_with_what_is_acknowledged_after_it():
    leases = Leases(1, 4)
    leases.done("a", *leases.take("a"))
    state = leases.state()
    going_on = Leases.from_state(state, 1)
    for one in (leases, going_on):
        one.done("a", *one.take("a"))
        assert state == {"num_batches": 4, "epoch": 0, "done": [[[0, 1]]]}


@pytest.mark.parametrize("num_batches", [0, 3, 5])
def test_readers_that_disagree_on_the_end_are_refused(num_batches):
    leases = Leases(1, 4)
    with pytest.raises(DataError, match=rf"found {num_batches} batches in epoch 0, but there are 4 .* changed"):
        leases.end_of_epoch(0, num_batches)


def test_an_end_before_a_batch_that_was_trained_is_refused():
    leases = Leases(1, None)
    for _ in range(3):
        leases.done("a", *leases.take("a"))
    with pytest.raises(DataError, match="found 2 batches"):
        leases.end_of_epoch(0, 2)
    leases.end_of_epoch(0, 3)
    assert leases.is_over


@pytest.mark.parametrize("options", [{"run": 0}, {"num_batches": 0}, {"start": (0, 5)}])
def test_numbers_that_cannot_be_are_refused(options):
    with pytest.raises(ValueError, match="batch"):
        Leases(**{"epochs": 1, "num_batches": 4, **options})


def test_a_batch_that_was_held_before_can_be_claimed_and_no_other_gets_it():
    leases = Leases(2, 6, run=3, start=(0, 2))
    leases.claim("a", 0, 4)
    leases.claim("a", 1, 1)
    assert leases.held == {(0, 4): "a", (1, 1): "a"}
    assert [leases.take("b") for _ in range(8)] == [(0, 2), (0, 3), (0, 5), (1, 0), (1, 2), (1, 3), (1, 4), (1, 5)]
    assert leases.done("a", 0, 4)
    for epoch, number in [(0, 1), (0, 4), (1, 1), (1, 9)]:
        with pytest.raises(ValueError, match=f"batch {number} of epoch {epoch} is held or acknowledged already"):
            leases.claim("c", epoch, number)
