"""A bound on staleness when planning: the lanes that a run by the plan has, less one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps import plan
from heterps.config import Cluster, Resource
from heterps.errors import ConfigError, PlanInfeasible
from heterps.planning.lanes import lanes_under_way
from heterps.planning.plan import Plan
from heterps.profiling.profile import Cost, LayerProfile, Profile


def cluster(*names: str) -> Cluster:
    one = Resource(device="cpu", usd_per_hour=1.0, limit=20)
    return Cluster(resources=dict.fromkeys((*names, "server"), one), server_resource="server")


def profile(*names: str) -> Profile:
    """One layer of a second for each name, which only that resource runs; a server serves six workers."""
    cost = Cost(compute_s=1.0, sync_s=0.0, input_s=0.0, alpha=0.5, beta=1.0)
    layers = [
        LayerProfile(name=f"layer{i}", costs={name: cost}, server_s=1 / 6 / len(names)) for i, name in enumerate(names)
    ]
    return Profile(version=1, model="any", batch_size=100, layers=tuple(layers))


def planned(*names: str, throughput: float = 100, **options: object) -> Plan:
    return plan(profile(*names), cluster(*names), throughput=throughput, samples=1e6, sync="asp", **options)  # type: ignore[arg-type]


def test_a_stage_has_as_many_workers_as_the_staleness_allows() -> None:
    free = planned("cpu")
    assert (free.stages[0].count, free.lanes) == (6, 12), "the server is busy with six"
    assert planned("cpu", max_staleness=11).usd == free.usd
    for most in (9, 10):
        bounded = planned("cpu", max_staleness=most)
        assert (bounded.stages[0].count, bounded.lanes, bounded.gap) == (5, 10, 0.0)
        assert bounded.usd == pytest.approx(free.usd / (6 + 1) * 6 / 5 * (5 + 1))


def test_the_lanes_of_several_stages_count_together_and_what_was_proven_remains_a_bound() -> None:
    free = planned("cpu", "gpu")
    assert [stage.count for stage in free.stages] == [6, 6]
    assert free.lanes == 6 * 3
    bounded = planned("cpu", "gpu", max_staleness=9)
    assert [stage.count for stage in bounded.stages] == [3, 3]
    assert bounded.lanes == 3 * 3
    assert bounded.gap is None
    assert bounded.bound_usd is not None
    assert free.usd <= bounded.bound_usd < bounded.usd


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(PlanInfeasible, match="no plan for 1,000 samples/s has a staleness of 10 or less: the cheapest"):
        planned("cpu", throughput=1000, max_staleness=10)
    with pytest.raises(PlanInfeasible, match="one worker for each of the 2 stages has 2 already"):
        planned("cpu", "gpu", max_staleness=1)
    with pytest.raises(PlanInfeasible, match="raise the limit of cpu from 20 to 30"):
        planned("cpu", throughput=3000, max_staleness=10)
    with pytest.raises(ConfigError, match="in rounds only"):
        planned("cpu", max_staleness=0)
    with pytest.raises(ConfigError, match="needs the policy"):
        plan(profile("cpu"), cluster("cpu"), throughput=100, samples=1e6, max_staleness=3)


def test_rounds_are_never_stale() -> None:
    asked = {"throughput": 100, "samples": 1e6, "sync": "bsp", "lanes": [4]}
    free = plan(profile("cpu"), cluster("cpu"), **asked)  # type: ignore[arg-type]
    bounded = plan(profile("cpu"), cluster("cpu"), **asked, max_staleness=0)  # type: ignore[arg-type]
    assert free.usd == bounded.usd


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_lanes_bound_the_workers_of_each_stage(counts: list[int]) -> None:
    assert lanes_under_way(counts) >= 2 * max(counts)
    assert lanes_under_way(counts) % max(counts) == 0
