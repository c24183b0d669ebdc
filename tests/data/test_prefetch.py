import gc
import threading

import pytest

from heterps.data.prefetch import Prefetch


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert not prefetch_threads()


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_items_come_in_order_and_prepared(depth):
    with Prefetch(range(20), depth, prepare=lambda x: x * x) as items:
        assert list(items) == [x * x for x in range(20)]


def test_at_most_depth_items_are_made_ahead():
    made, full = [], threading.Event()

    def source():
        for i in range(10):
            made.append(i)
            if len(made) == 4:  # three wait in line and one is in the thread's hands
                full.set()
            yield i

    with Prefetch(source(), 3) as items:
        assert full.wait(10)
        assert len(made) == 4
        assert list(items) == list(range(10))


def test_an_exception_of_the_source_comes_after_the_items_before_it():
    def source():
        yield 1
        yield 2
        raise RuntimeError("broken file")

    with Prefetch(source(), 5) as items:
        assert next(items) == 1
        assert next(items) == 2
        for _ in range(2):
            with pytest.raises(RuntimeError, match="broken file"):
                next(items)


def test_an_exception_of_prepare_reaches_the_consumer():
    with Prefetch([0], 1, prepare=lambda x: 1 // x) as items, pytest.raises(ZeroDivisionError):
        next(items)


def test_closing_early_ends_the_thread_and_closes_the_source():
    closed = threading.Event()

    def source():
        try:
            while True:
                yield 1
        finally:
            closed.set()

    items = Prefetch(source(), 2)
    assert next(items) == 1
    items.close()
    items.close()
    assert closed.is_set()
    assert not prefetch_threads()
    assert list(items) == []


def test_dropping_the_object_ends_the_thread():
    items = Prefetch(iter(int, 1), 2)
    assert next(items) == 0
    del items
    gc.collect()
    assert not prefetch_threads()


def test_an_error_in_the_with_block_ends_the_thread():
    with pytest.raises(KeyError), Prefetch(iter(int, 1), 2):
        raise KeyError


def test_depth_zero_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        Prefetch([], 0)


class Source:
    """An iterator that somebody else holds too, so that nothing but a call closes it."""

    def __init__(self, num):
        self.left, self.num_closed = list(range(num)), 0

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    def close(self):
        self.num_closed += 1


@pytest.mark.parametrize("num_taken", [0, 1, 3])
def test_a_source_that_can_be_closed_is_closed_once_whether_or_not_it_was_used_up(num_taken):
    source = Source(3)
    with Prefetch(source, 1) as items:
        assert [next(items) for _ in range(num_taken)] == list(range(num_taken))
    assert source.num_closed == 1
