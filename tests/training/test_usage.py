"""Meter: each second counts for what is done in it, the innermost where things are inside each other."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.training.protocol.messages import Spans, Usage
from heterps.training.worker.usage import MOST_SPANS, Meter, metered


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def fail_after(self, seconds: float) -> None:
        self.now += seconds
        raise KeyError


def test_seconds_count_for_what_is_done_and_else_for_waiting():
    clock = Clock()
    meter = Meter(clock)
    clock.now += 1
    with meter.doing("compute"):
        clock.now += 2
        with meter.doing("communicate"):
            clock.now += 4
        clock.now += 8
    clock.now += 16
    assert meter.usage(queue=3, late_s=0.5) == Usage(10.0, 4.0, 17.0, 3, 0.5)


def test_usage_in_the_middle_of_something_counts_up_to_this_moment():
    clock = Clock()
    meter = Meter(clock)
    with meter.doing("compute"):
        clock.now += 2
        assert meter.usage().compute_s == 2
        clock.now += 3
    assert meter.usage().compute_s == 5


def test_after_an_error_time_counts_for_what_was_done_before():
    clock = Clock()
    meter = Meter(clock)
    with pytest.raises(KeyError), meter.doing("compute"):
        clock.fail_after(1)
    clock.now += 2
    assert meter.usage() == Usage(1.0, 0.0, 2.0)


@given(st.lists(st.tuples(st.sampled_from(["compute", "communicate", "wait"]), st.integers(0, 9)), max_size=12))
def test_all_seconds_count_once(steps):
    clock = Clock()
    meter = Meter(clock)
    began = clock.now

    def nest(rest) -> None:
        if rest:
            with meter.doing(rest[0][0]):
                clock.now += rest[0][1]
                nest(rest[1:])
                clock.now += 1

    nest(steps)
    usage = meter.usage()
    assert usage.compute_s + usage.communicate_s + usage.wait_s == clock.now - began


def test_waiting_for_rows_is_communication_even_inside_a_layer():
    clock = Clock()
    meter = Meter(clock)

    class Slow(Future[np.ndarray]):
        def result(self, timeout: float | None = None) -> np.ndarray:
            clock.now += 3
            return np.ones((1, 2), np.float32)

    fetch = metered(Slow, meter)
    with meter.doing("compute"):
        clock.now += 1
        assert not fetch().done()
        assert fetch().result().shape == (1, 2)
        clock.now += 1
    assert meter.usage() == Usage(2.0, 3.0, 0.0)


def test_rows_that_have_come_are_handed_out_as_they_are():
    came: Future[np.ndarray] = Future()
    came.set_result(np.ones((1, 2), np.float32))
    assert metered(lambda: came, Meter())() is came


def test_spans_follow_each_other_and_add_up_to_the_time_since_the_last_ones():
    clock = Clock()
    meter = Meter(clock)
    assert meter.take_spans() is None, "before anybody asks for them none are kept"
    meter.keep_spans()
    clock.now += 1
    with meter.doing("compute"):
        clock.now += 2
        with meter.doing("communicate"):
            clock.now += 0.5
        meter.usage()  # in the middle of something: it stays one span
        clock.now += 4
    assert meter.take_spans() == Spans(100.0, "wcmc", (1_000_000, 2_000_000, 500_000, 4_000_000))
    clock.now += 3
    assert meter.take_spans() == Spans(107.5, "w", (3_000_000,))


def test_a_span_that_nobody_could_see_counts_for_the_one_before():
    clock = Clock()
    meter = Meter(clock)
    meter.keep_spans()
    clock.now += 1
    with meter.doing("compute"):
        clock.now += 5e-6
    clock.now += 1
    assert meter.take_spans() == Spans(100.0, "w", (2_000_005,))


def test_the_number_of_spans_between_two_pushes_is_bounded():
    clock = Clock()
    meter = Meter(clock)
    meter.keep_spans()
    for _ in range(10 * MOST_SPANS):
        clock.now += 0.001
        with meter.doing("compute"):
            clock.now += 0.001
    spans = meter.take_spans()
    assert len(spans.doings) == len(spans.lasted_us) == MOST_SPANS
    assert sum(spans.lasted_us) == 1000 * MOST_SPANS, "what came after them is left out, and lengthens none"
    clock.now += 1
    assert meter.take_spans() == Spans(pytest.approx(100 + 0.02 * MOST_SPANS), "w", (1_000_000,))
