"""What to expect of a plan for rented machines: the interval of its throughput, and the terms it rests on."""

from __future__ import annotations

from typing import Any

import pytest

from heterps.config import Cluster
from heterps.planning import compare, plan
from heterps.planning.api import make_problem
from heterps.planning.explain import bottleneck, stations
from heterps.profiling.profile import Cost, LayerProfile, Profile

CLUSTER = Cluster.model_validate(
    {
        "resources": {
            "cpu": {"device": "cpu", "usd_per_hour": 0.04, "limit": 64},
            "v100": {"device": "cuda", "usd_per_hour": 2.42, "limit": 8},
        },
        "server_resource": "cpu",
    }
)


def profile(*, estimated: bool = False, error: float | None = None, **more: Any) -> Profile:
    """Two layers of 10 ms for 100 samples on a core; a V100 is ten times as fast."""
    layers = []
    for name in ("rows", "dense"):
        costs = {
            "cpu": Cost(compute_s=0.01, sync_s=0.002, input_s=0.001, alpha=1.0, beta=1.0, error=error),
            "v100": Cost(compute_s=0.001, sync_s=0.002, input_s=0.001, alpha=1.0, beta=1.0, estimated=estimated),
        }
        layers.append(LayerProfile(name=name, costs=costs, server_s=0.001))
    return Profile(model="two", batch_size=100, layers=tuple(layers), version=2, **more)


def expected(profile: Profile, sync: str = "asp", throughput: float = 10_000.0, cluster: Cluster = CLUSTER) -> Any:
    found = plan(profile, cluster, throughput=throughput, samples=1e6, sync=sync)
    assert found.prediction is not None
    return found, found.prediction


@pytest.mark.parametrize("sync", ["asp", "ssp:3", "bsp"])
def test_the_terms_add_up_to_the_throughput_of_the_plan_which_is_in_its_interval(sync: str) -> None:
    found, told = expected(profile(), sync)
    middle, low, high = told.throughput(100)
    assert middle == pytest.approx(found.throughput)
    assert low < found.throughput < high
    assert told.compute_s + told.servers_s + told.network_s + told.overhead_s == pytest.approx(100 / found.throughput)


def test_rounds_wait_and_others_overlap() -> None:
    assert expected(profile(), "bsp")[1].overhead_s > 0
    assert expected(profile(), "asp")[1].overhead_s <= 0


def test_the_paper_bill_promises_no_interval() -> None:
    found = plan(profile(), CLUSTER, throughput=10_000, samples=1e6)
    assert found.prediction is None
    assert "prediction" not in found.model_dump_json()


def test_the_interval_is_as_wide_as_what_it_rests_on() -> None:
    plain = expected(profile())[1]
    assert plain.basis == "the sum of the layers, which no run has tested"
    tested = expected(profile(reached=0.9, reached_for="asp"))[1]
    assert (tested.basis, tested.error < plain.error) == ("trials of such plans", True)
    only_gpu = CLUSTER.model_copy(
        update={"resources": CLUSTER.resources | {"cpu": CLUSTER.resources["cpu"].model_copy(update={"limit": 2})}}
    )
    guessed = expected(profile(estimated=True), cluster=only_gpu)[1]
    assert guessed.error > plain.error
    assert guessed.basis.endswith(", and estimates for v100")
    noisy = expected(profile(error=0.4))
    assert {stage.resource for stage in noisy[0].stages} == {"cpu"}
    assert noisy[1].error > plain.error


def test_where_servers_are_the_bottleneck_their_seconds_are_the_term() -> None:
    slow = profile().model_copy(
        update={"layers": tuple(layer.model_copy(update={"server_s": 0.5}) for layer in profile().layers)}
    )
    few = CLUSTER.model_copy(update={"server_resource": "v100"})
    found, told = expected(slow, throughput=700.0, cluster=few)
    assert found.bottleneck == "servers on v100"
    assert told.compute_s == 0.0
    assert told.servers_s == pytest.approx(100 / found.throughput, rel=0.1)


@pytest.mark.parametrize("sync", ["asp", "bsp"])
def test_the_terms_are_those_of_the_station_that_the_bill_names(sync: str) -> None:
    """In rounds a stage before the busiest may be what a batch waits for longest."""
    for throughput in (2_000.0, 10_000.0, 20_000.0):
        problem = make_problem(profile(), CLUSTER, throughput, 1e6, sync=sync)
        found = compare(problem, others="none").chosen
        slowest = bottleneck(stations(problem, found), found)
        assert found.bottleneck.partition(" (")[0] == f"{slowest.name} on {slowest.resource}"
