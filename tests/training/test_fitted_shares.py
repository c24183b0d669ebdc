"""Shares of rounds that fit the workers: all are done at the same time, and what is learned stays the same."""

from __future__ import annotations

import pytest
from flow_play import make_layout
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from heterps.training.coordinator.fitted_shares import FIRST_WINDOW, FittedShares
from heterps.training.protocol.layout import Layout


def play(shares: FittedShares, layout: Layout, sample_s: list[float], batch_size: int, rounds: int) -> Layout:
    """Rounds of workers that take so long for a sample; shares are followed as soon as there are better ones."""
    for number in range(rounds):
        shares.went(layout.workers, 10.0 * number)
        for worker, seconds in zip(layout.workers, sample_s, strict=True):
            samples = sum(layout.num_of(lane, batch_size) for lane in layout.lanes_of(worker))
            shares.pushed(worker, 10.0 * number + 0.01 + seconds * samples)
        if shares.wants_cut(layout):
            layout = shares.take_layout(layout, None) or layout
    return layout


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    num_samples=st.integers(0, 50),
)
def test_every_sample_of_a_batch_is_in_one_lane(counts: list[int], num_samples: int) -> None:
    layout = structs.replace(make_layout((1,), len(counts)), shares=tuple(counts))
    for some in (layout, structs.replace(layout, shares=())):
        bounds = [some.bounds_of(lane, num_samples) for lane in range(len(counts))]
        assert [n for first, end in bounds for n in range(first, end)] == list(range(num_samples))
    if num_samples == sum(counts):
        assert [layout.num_of(lane, num_samples) for lane in range(len(counts))] == counts


def test_a_worker_that_is_three_times_slower_gets_about_a_third_and_it_is_found_in_one_window() -> None:
    shares, layout = FittedShares(128, is_on=True), make_layout((2,), 2)
    assert play(shares, layout, [0.001, 0.003], 128, FIRST_WINDOW - 1) is layout
    fitted = play(shares, layout, [0.001, 0.003], 128, 1)
    assert fitted.epoch == 2
    assert sum(fitted.shares) == 128
    assert 90 <= fitted.shares[0] <= 99
    settled = play(shares, fitted, [0.001, 0.003], 128, 200)
    assert settled.epoch <= 3, "it does not go back and forth"


@pytest.mark.parametrize("sample_s", [[0.001, 0.001, 0.001], [0.001, 0.00105, 0.0011]])
def test_workers_that_are_about_as_fast_keep_equal_shares(sample_s: list[float]) -> None:
    layout = make_layout((3,), 3)
    assert play(FittedShares(96, is_on=True), layout, sample_s, 96, 100) is layout


def test_who_is_slow_once_is_not_slow() -> None:
    shares, layout = FittedShares(64, is_on=True), make_layout((2,), 2)
    layout = play(shares, layout, [0.001, 0.001], 64, FIRST_WINDOW - 3)
    layout = play(shares, layout, [0.001, 0.100], 64, 3)
    assert layout.shares == ()


def test_lanes_of_a_worker_divide_its_share_and_a_speed_that_changes_is_followed() -> None:
    shares, layout = FittedShares(60, is_on=True), make_layout((2,), 4)
    layout = play(shares, layout, [0.004, 0.001], 60, FIRST_WINDOW)
    slow, fast = layout.shares[0] + layout.shares[2], layout.shares[1] + layout.shares[3]
    assert slow + fast == 60
    assert 11 <= slow <= 16
    assert abs(layout.shares[1] - layout.shares[3]) <= 1
    layout = play(shares, layout, [0.001, 0.004], 60, 200)
    assert layout.shares[0] + layout.shares[2] > 40


def test_nothing_is_fitted_unless_asked_for_nor_while_another_change_is_under_way_or_came_first() -> None:
    layout = make_layout((2,), 2)
    assert play(FittedShares(64, is_on=False), layout, [0.001, 0.009], 64, 50) is layout
    for other, epoch in (("scale", 1), (None, 2)):
        shares = FittedShares(64, is_on=True)
        for _ in range(FIRST_WINDOW):
            shares.went(layout.workers, 0.0)
            shares.pushed("worker-1.0", 1.0)
            shares.pushed("worker-1.1", 9.0)
        assert shares.wants_cut(layout)
        assert shares.take_layout(structs.replace(layout, epoch=epoch), other) is None
