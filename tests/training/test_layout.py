"""Layouts: every lane has a worker of every stage, and every worker its share of the lanes."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.training.protocol.layout import (
    MIN_MICRO_BATCHES,
    Layout,
    StageLayout,
    enough_lanes,
    make_layout,
    worker_name,
)

counts_of_stages = st.lists(st.integers(1, 9), min_size=1, max_size=4)


def a_plan(*counts: int) -> Plan:
    """Stages of two layers each."""
    stages = tuple(Stage(first=2 * i, last=2 * i + 1, resource=f"r{i}", count=n) for i, n in enumerate(counts))
    return Plan(
        method="exact", stages=stages, servers=PlannedServers(resource="cpu", count=1), throughput=1.0, hours=1.0,
        usd=1.0, bottleneck="stage 1",
    )  # fmt: skip


def test_a_layout_has_the_stages_of_its_plan_with_workers_named_from_stage_one_on() -> None:
    layout = make_layout(a_plan(2, 1), in_rounds=True, batch_size=64)
    assert layout.stages == (
        StageLayout(0, 1, "r0", ("worker-1.0", "worker-1.1")),
        StageLayout(2, 3, "r1", ("worker-2.0",)),
    )
    assert layout.workers == ("worker-1.0", "worker-1.1", "worker-2.0")
    assert layout.boundaries == [2]
    assert layout.epoch == 1


def test_lanes_pass_through_the_workers_of_a_stage_in_turn() -> None:
    layout = make_layout(a_plan(2, 1, 3), in_rounds=True, batch_size=64, num_lanes=6)
    assert [layout.worker_of(lane, 0) for lane in range(4)] == ["worker-1.0", "worker-1.1"] * 2
    assert {layout.worker_of(lane, 1) for lane in range(6)} == {"worker-2.0"}
    assert list(layout.lanes_of("worker-3.1")) == [1, 4]
    assert layout.stage_of("worker-3.1") == 2


@given(counts_of_stages, st.integers(1, 40))
def test_workers_and_lanes_agree_on_who_serves_whom(counts: list[int], num_lanes: int) -> None:
    layout = make_layout(a_plan(*counts), in_rounds=True, batch_size=64, num_lanes=num_lanes)
    for stage in range(len(counts)):
        served = [lane for worker in layout.stages[stage].workers for lane in layout.lanes_of(worker)]
        assert sorted(served) == list(range(num_lanes)), "each lane has one worker in each stage"
    for worker in layout.workers:
        assert list(layout.lanes_of(worker)) == sorted(layout.lanes_of(worker))
        assert all(layout.worker_of(lane, layout.stage_of(worker)) == worker for lane in layout.lanes_of(worker))


@given(counts_of_stages, st.integers(1, 5000))
def test_rounds_give_the_workers_of_a_stage_equally_many_samples_if_there_are_enough(
    counts: list[int], batch_size: int
) -> None:
    lanes = enough_lanes(counts, in_rounds=True, batch_size=batch_size)
    assert lanes >= max(counts), "no worker is idle"
    if lanes > max(counts):
        assert lanes <= batch_size
        assert all(lanes % count == 0 for count in counts)
        several = MIN_MICRO_BATCHES * max(len(counts), *counts)
        assert len(counts) == 1 or lanes >= several or lanes + math.lcm(*counts) > batch_size


@pytest.mark.parametrize(
    ("counts", "batch_size", "lanes"),
    [
        ([1], 64, 1),
        ([3], 64, 3),
        ([1, 1], 64, 8),
        ([2, 3], 64, 12),
        ([2, 3], 11, 6),
        ([2, 3], 5, 3),
        ([6, 1], 64, 24),
        ([7, 9], 62, 9),
        ([4], 2, 4),
    ],
)
def test_lanes_of_rounds(counts: list[int], batch_size: int, lanes: int) -> None:
    assert enough_lanes(counts, in_rounds=True, batch_size=batch_size) == lanes


@pytest.mark.parametrize(
    ("counts", "lanes"), [([1], 1), ([4], 4), ([1, 1], 2), ([2, 3], 6), ([5, 1], 10), ([5, 4], 10)]
)
def test_without_rounds_there_is_a_batch_for_every_worker(counts: list[int], lanes: int) -> None:
    assert enough_lanes(counts, in_rounds=False, batch_size=1) == lanes


def test_a_layout_travels_and_a_broken_one_is_refused() -> None:
    layout = make_layout(a_plan(2, 1), in_rounds=False, batch_size=8)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(layout), type=Layout) == layout
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"stages": [], "num_lanes": 1}, Layout)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(msgspec.to_builtins(layout) | {"num_lanes": 0}, Layout)


def test_names_of_workers_count_stages_from_one() -> None:
    assert worker_name(0, 3) == "worker-1.3"


@given(counts_of_stages)
def test_without_rounds_no_worker_of_the_largest_stage_has_more_lanes_than_another(counts: list[int]) -> None:
    lanes = enough_lanes(counts, in_rounds=False, batch_size=1)
    assert lanes % max(counts) == 0
    assert sum(counts) <= lanes < sum(counts) + max(counts)
