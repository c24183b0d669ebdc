"""Requests are joined in order, wait no longer than they may, and are refused rather than piled up."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.serving.batching import Batcher, Pending, QueueFull, RequestQueue, TooLate

DEADLINE_S = 10.0


def queue(max_rows: int = 100, max_wait_s: float = 0.002, max_waiting: int = 8) -> RequestQueue[str, str]:
    return RequestQueue(max_rows, max_wait_s, max_waiting)


def pending(name: str, rows: int = 1, arrived_s: float = 0.0, deadline_s: float = DEADLINE_S) -> Pending[str, str]:
    return Pending(name, rows, arrived_s, deadline_s)


def names(requests: Sequence[Pending[str, str]]) -> str:
    return "".join(request.question for request in requests)


def test_an_empty_queue_is_never_due() -> None:
    assert queue().due_at() == math.inf


def test_a_lone_request_is_due_at_once() -> None:
    waiting = queue()
    waiting.offer(pending("a"))
    assert waiting.due_at() <= 0.0


def test_after_a_batch_of_three_a_request_waits_for_two_more_or_for_its_time() -> None:
    waiting = queue()
    for name in "abc":
        waiting.offer(pending(name))
    assert names(waiting.take(0.0)[0]) == "abc"
    waiting.offer(pending("d", arrived_s=1.0))
    waiting.offer(pending("e", arrived_s=1.001))
    assert waiting.due_at() == pytest.approx(1.002)
    waiting.offer(pending("f", arrived_s=1.0015))
    assert waiting.due_at() <= 1.0015
    assert names(waiting.take(1.0015)[0]) == "def"


def test_when_callers_leave_the_wait_ends_with_them() -> None:
    waiting = queue()
    for name in "abc":
        waiting.offer(pending(name))
    waiting.take(0.0)
    waiting.offer(pending("d", arrived_s=1.0))
    assert names(waiting.take(1.002)[0]) == "d"
    waiting.offer(pending("e", arrived_s=2.0))
    assert waiting.due_at() <= 2.0


def test_enough_rows_are_due_at_once_and_no_batch_is_larger() -> None:
    waiting = queue(max_rows=10)
    for name in "ab":
        waiting.offer(pending(name))
    waiting.take(0.0)  # two callers
    waiting.offer(pending("c", rows=6, arrived_s=1.0))
    assert waiting.due_at() > 1.0
    waiting.offer(pending("d", rows=6, arrived_s=1.0))
    assert waiting.due_at() <= 1.0
    assert names(waiting.take(1.0)[0]) == "c"
    assert names(waiting.take(1.0)[0]) == "d"


def test_a_request_that_is_larger_than_a_batch_is_one_by_itself() -> None:
    waiting = queue(max_rows=10)
    for name, rows in (("a", 25), ("b", 1)):
        waiting.offer(pending(name, rows))
    assert names(waiting.take(0.0)[0]) == "a"
    assert names(waiting.take(0.0)[0]) == "b"


def test_a_full_queue_refuses() -> None:
    waiting = queue(max_waiting=2)
    waiting.offer(pending("a"))
    waiting.offer(pending("b"))
    assert waiting.is_full
    with pytest.raises(QueueFull, match="2 requests"):
        waiting.offer(pending("c"))
    waiting.take(0.0)
    waiting.offer(pending("c"))


def test_late_requests_are_apart_from_the_batch() -> None:
    waiting = queue()
    waiting.offer(pending("a", deadline_s=1.0))
    waiting.offer(pending("b", deadline_s=3.0))
    batch, late = waiting.take(2.0)
    assert (names(batch), names(late)) == ("b", "a")


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0, 0.004), st.floats(0.001, 0.1)), max_size=40),
    st.integers(1, 20),
    st.integers(1, 10),
)
def test_whatever_comes_each_request_leaves_once_in_order_and_in_time(
    arrivals: list[tuple[int, float, float]], max_rows: int, max_waiting: int
) -> None:
    """Requests come at any times; a batch is taken as soon as one is due."""
    waiting = RequestQueue[str, str](max_rows, 0.002, max_waiting)
    now, taken, refused = 0.0, [], []
    for number, (rows, pause_s, patience_s) in enumerate([*arrivals, (1, 1.0, 1.0)]):
        after = now + pause_s
        while (due := waiting.due_at()) <= after:
            now = max(now, due)
            batch, late = waiting.take(now)
            assert batch or late
            assert sum(request.num_rows for request in batch) <= max_rows or len(batch) == 1
            assert all(now < request.deadline_s and now - request.arrived_s <= 0.002 + 1e-9 for request in batch)
            assert all(now >= request.deadline_s for request in late)
            taken += [int(request.question) for request in sorted([*batch, *late], key=lambda one: int(one.question))]
        now = after
        try:
            waiting.offer(Pending(str(number), rows, now, now + patience_s))
        except QueueFull:
            refused.append(number)
            assert len(waiting) == max_waiting
    taken += [int(request.question) for part in waiting.take(now) for request in part]
    assert taken == sorted(taken)
    assert sorted(taken + refused) == list(range(len(arrivals) + 1))


# --- the thread ------------------------------------------------------------------------------------------------------


class Computer:
    """Answers in capitals, once it is let. It notes the batches."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.has_begun = threading.Event()
        self.batches: list[list[str]] = []

    def __call__(self, questions: Sequence[str]) -> list[str | Exception]:
        self.batches.append(list(questions))
        self.has_begun.set()
        assert self.may_go.wait(DEADLINE_S)
        if "all" in questions:
            raise RuntimeError("all fail")
        return [ValueError("bad") if question == "bad" else question.upper() for question in questions]


@pytest.fixture
def computer() -> Computer:
    return Computer()


@pytest.fixture
def batcher(computer: Computer) -> Iterator[Batcher[str, str]]:
    made = Batcher(computer, queue(max_waiting=3), clock=lambda: 0.0)
    yield made
    computer.may_go.set()
    made.close()


def answer(future: Future[str]) -> str:
    return future.result(DEADLINE_S)


def test_requests_that_come_while_one_is_computed_are_joined(computer: Computer, batcher: Batcher[str, str]) -> None:
    first = batcher.submit("a", 1, 1.0)
    assert computer.has_begun.wait(DEADLINE_S)
    others = [batcher.submit(name, 1, 1.0) for name in ("b", "bad", "c")]
    assert batcher.num_waiting == 3
    with pytest.raises(QueueFull):
        batcher.submit("d", 1, 1.0)
    computer.may_go.set()
    assert [answer(first), answer(others[0]), answer(others[2])] == ["A", "B", "C"]
    with pytest.raises(ValueError, match="bad"):
        answer(others[1])
    assert computer.batches == [["a"], ["b", "bad", "c"]]


def test_a_fault_reaches_all_of_its_batch_and_the_thread_goes_on(
    computer: Computer, batcher: Batcher[str, str]
) -> None:
    computer.may_go.set()
    with pytest.raises(RuntimeError, match="all fail"):
        answer(batcher.submit("all", 1, 1.0))
    assert answer(batcher.submit("a", 1, 1.0)) == "A"


def test_late_and_cancelled_requests_are_not_computed(computer: Computer, batcher: Batcher[str, str]) -> None:
    first = batcher.submit("a", 1, 1.0)
    assert computer.has_begun.wait(DEADLINE_S)
    late, given_up, last = batcher.submit("l", 1, -1.0), batcher.submit("g", 1, 1.0), batcher.submit("b", 1, 1.0)
    assert given_up.cancel()
    computer.may_go.set()
    assert answer(first) == "A"
    with pytest.raises(TooLate):
        answer(late)
    assert answer(last) == "B"
    assert computer.batches == [["a"], ["b"]]


def test_closing_answers_what_waits_and_refuses_what_comes(computer: Computer) -> None:
    batcher = Batcher(computer, queue(), clock=lambda: 0.0)
    first = batcher.submit("a", 1, 1.0)
    assert computer.has_begun.wait(DEADLINE_S)
    second = batcher.submit("b", 1, 1.0)
    computer.may_go.set()
    batcher.close()
    assert (answer(first), answer(second)) == ("A", "B")
    assert batcher.is_full
    with pytest.raises(QueueFull, match="stopping"):
        batcher.submit("c", 1, 1.0)


def test_closing_waits_no_longer_than_it_is_told(computer: Computer) -> None:
    batcher = Batcher(computer, queue(), clock=lambda: 0.0)
    first = batcher.submit("a", 1, 1.0)
    assert computer.has_begun.wait(DEADLINE_S)
    batcher.close(0.01)
    assert not first.done()
    computer.may_go.set()
    assert answer(first) == "A"
