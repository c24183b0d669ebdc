"""Learning rates by samples seen: the curves, and tables that follow them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.config import ConstantRate, CosineRate, ExponentialRate, LinearRate, StepRate
from heterps.errors import ConfigError
from heterps.ps import SGD, SparseTable
from heterps.ps.table.dense import DenseTable
from heterps.ps.table.schedules import rate_at


@pytest.mark.parametrize(
    ("schedule", "curve"),
    [
        (ConstantRate(), {0: 1, 10**12: 1}),
        (LinearRate(warmup=99), {0: 0.01, 49: 0.5, 99: 1, 10**9: 1}),
        (LinearRate(warmup=100, until=300, floor=0.2), {100: 1, 200: 0.6, 300: 0.2, 999: 0.2}),
        (LinearRate(until=100), {0: 1, 25: 0.75, 100: 0}),
        (CosineRate(until=100, floor=0.5), {0: 1, 50: 0.75, 100: 0.5, 200: 0.5}),
        (CosineRate(warmup=10, until=30), {10: 1, 20: 0.5, 30: 0}),
        (StepRate(every=10, factor=0.5), {0: 1, 9: 1, 10: 0.5, 35: 0.125}),
        (StepRate(every=10, factor=0.5, warmup=4), {0: 0.2, 4: 1, 13: 1, 14: 0.5}),
        (ConstantRate(warmup=9), {0: 0.1, 4: 0.5, 9: 1, 10**9: 1}),
        (ExponentialRate(every=10, factor=0.25, floor=0.1), {0: 1, 5: 0.5, 10: 0.25, 100: 0.1}),
        (ExponentialRate(every=10, factor=0.25, warmup=100), {100: 1, 105: 0.5, 120: 1 / 16}),
    ],
)
def test_curves_go_through_their_points(schedule, curve):
    for samples, rate in curve.items():
        assert rate_at(schedule, samples) == pytest.approx(rate)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.floats(0, 1), st.integers(0, 10**7))
def test_ramps_stay_between_nothing_and_the_whole_rate(warmup, length, floor, samples):
    for kind in (LinearRate, CosineRate):
        rate = rate_at(kind(warmup=warmup, until=warmup + length, floor=floor), samples)
        assert 0 <= rate <= 1
        assert samples < warmup or rate >= floor - 1e-9


def test_tables_step_at_the_rate_of_their_samples():
    schedule = StepRate(every=100, factor=0.5)
    sparse, dense = SparseTable(2, SGD(lr=1.0), init_scale=0.0, schedule=schedule), DenseTable(2, SGD(lr=1.0), schedule)
    for samples in (0, 100, 250):
        sparse.push([7, 7], -np.ones((2, 2)), samples=samples)
        dense.push(-np.full(2, 2, np.float32), samples=samples)
    np.testing.assert_array_equal(sparse.pull([7])[0], np.float32([3.5, 3.5]))
    np.testing.assert_array_equal(dense.values, np.float32([3.5, 3.5]))


@pytest.mark.parametrize("schedule", [LinearRate(warmup=5), ConstantRate(warmup=5)])
def test_a_push_without_samples_is_refused_by_a_schedule_and_changes_nothing(schedule):
    sparse, dense = SparseTable(1, schedule=schedule), DenseTable(1, SGD(), schedule)
    with pytest.raises(ValueError, match=rf"follows a {schedule.kind} schedule by samples: tell each push .*samples="):
        sparse.push([1], np.ones((1, 1)))
    with pytest.raises(ValueError, match=f"{schedule.kind} schedule"):
        dense.push(np.ones(1, np.float32))
    assert (len(sparse), sparse.num_pushes, dense.num_pushes) == (0, 0, 0)


@pytest.mark.parametrize("kind", [LinearRate, CosineRate])
def test_a_ramp_that_ends_before_it_is_up_is_refused(kind):
    with pytest.raises(ConfigError, match=r"until \(1,000\) must come after warmup \(1,000\)"):
        kind(warmup=1000, until=1000)


@pytest.mark.parametrize("table", ["sparse", "dense"])
def test_a_schedule_by_updates_follows_the_table_whatever_the_samples(table):
    schedule = StepRate(every=2, factor=0.5, unit="updates")
    steps = []
    if table == "sparse":
        rows = SparseTable(1, SGD(lr=1.0), init_scale=0.0, schedule=schedule)
        for samples in (None, 900, 1, 7, None):
            rows.push([5], np.ones((1, 1), np.float32), samples=samples)
            steps.append(float(rows.pull([5])[0, 0]))
    else:
        values = DenseTable(1, SGD(lr=1.0), schedule)
        for samples in (None, 900, 1, 7, None):
            values.push(np.ones(1, np.float32), samples=samples)
            steps.append(float(values.values[0]))
    np.testing.assert_allclose(np.diff([0.0, *steps]), [-1, -1, -0.5, -0.5, -0.25])
