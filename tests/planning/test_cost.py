from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning_oracle import problems, stage_seconds

from heterps.config import Cluster, Resource
from heterps.errors import ConfigError
from heterps.planning.bill import bill
from heterps.planning.cost import Problem, runs, stage_terms
from heterps.planning.plan import Stage
from heterps.profiling.profile import Cost, LayerProfile, Profile

CPU = Resource(device="cpu", usd_per_hour=0.04, limit=480)
V100 = Resource(device="cuda", usd_per_hour=2.42, limit=32)


def cost(compute_s: float = 1.0, sync_s: float = 0.0, input_s: float = 0.0) -> Cost:
    return Cost(compute_s=compute_s, sync_s=sync_s, input_s=input_s, alpha=0.5, beta=0.5)


def profile(*costs: dict[str, Cost], server_s: float = 0.0) -> Profile:
    layers = tuple(LayerProfile(name=f"fc{i}", server_s=server_s, costs=c) for i, c in enumerate(costs))
    return Profile(model="mlp", batch_size=100, layers=layers)


def cluster(**resources: Resource) -> Cluster:
    return Cluster(resources=resources, server_resource=next(iter(resources)))


@settings(max_examples=200)
@given(problems(), st.data())
def test_a_stage_is_busy_as_long_as_its_definition_says(
    drawn: tuple[Profile, Cluster, float], data: st.DataObject
) -> None:
    try:
        problem = Problem(*drawn, samples=1)
    except ConfigError:
        assume(False)
        raise
    first = data.draw(st.integers(0, problem.num_layers - 1))
    last = data.draw(st.integers(first, problem.num_layers - 1))
    t = data.draw(st.integers(0, len(problem.resources) - 1))
    count = data.draw(st.integers(1, 50))
    busy_s = stage_terms(problem, first, last, t).busy_s(count)
    layers = problem.profile.layers[first : last + 1]
    if all(problem.resources[t] in layer.costs for layer in layers):
        assert busy_s == pytest.approx(stage_seconds(problem.profile, first, last, problem.resources[t], count))
    else:
        assert busy_s == math.inf


def test_a_slow_layer_does_not_blur_the_seconds_of_a_fast_one_behind_it() -> None:
    problem = Problem(profile({"cpu": cost(1e9)}, {"cpu": cost(1e-9)}), cluster(cpu=CPU), 1, 1)
    assert stage_terms(problem, 1, 1, 0).busy_s(1) == 1e-9


def test_only_the_first_layer_of_a_stage_pays_its_input() -> None:
    problem = Problem(profile(*[{"cpu": cost(0.0, 1.0, 4.0)}] * 3), cluster(cpu=CPU), 1, 1)
    assert stage_terms(problem, 0, 2, 0).comm_s(1) == 3.0 + 4.0


def test_the_bill_names_the_slowest_station_and_counts_servers() -> None:
    both = {"cpu": cost(1.0), "v100": cost(0.5, 2.0)}
    problem = Problem(profile(both, both, server_s=1.0), cluster(cpu=CPU, v100=V100), 10, samples=3600, epochs=2)
    stages = [Stage(first=0, last=0, resource="cpu", count=1), Stage(first=1, last=1, resource="v100", count=1)]
    billed = bill(problem, stages, num_servers=4)
    assert billed.throughput == 50.0  # fc1 on v100: 2 s of communication for 100 samples
    assert billed.bottleneck == "fc1 on v100 (communication)"
    assert billed.hours == pytest.approx(2 * 3600 / 50 / 3600)
    assert billed.usd == pytest.approx(billed.hours * (0.04 + 2.42 + 4 * 0.04))
    slow_servers = Problem(profile(both, both, server_s=3.0), cluster(cpu=CPU, v100=V100), 10, samples=3600)
    assert bill(slow_servers, stages, num_servers=1).bottleneck == "servers on cpu"


def test_of_stations_that_are_equally_slow_the_servers_are_called_the_bottleneck_then_the_first_stage() -> None:
    """Which one is named must not depend on the order of stages, or the report would change from plan to plan."""
    both = {"cpu": cost(2.0), "v100": cost(2.0)}
    rented = cluster(cpu=CPU, v100=V100)
    stages = [Stage(first=0, last=0, resource="v100", count=1), Stage(first=1, last=1, resource="cpu", count=1)]

    def bottleneck(server_s: float) -> str:
        return bill(Problem(profile(both, both, server_s=server_s), rented, 1, 1), stages, 1).bottleneck

    assert bottleneck(server_s=1.0) == "servers on cpu"  # two layers: 2 s, as long as either stage
    assert bottleneck(server_s=0.99) == "fc0 on v100 (compute)"
    assert bottleneck(server_s=1.01) == "servers on cpu"


@pytest.mark.parametrize(
    ("sync_s", "side"),
    [(math.nextafter(1.0, 0), "compute"), (1.0, "compute"), (math.nextafter(1.0, 2), "communication")],
)
def test_a_stage_that_computes_as_long_as_it_communicates_is_called_bound_by_compute(sync_s: float, side: str) -> None:
    problem = Problem(profile({"cpu": cost(1.0, sync_s)}), cluster(cpu=CPU), 1, 1)
    assert bill(problem, [Stage(first=0, last=0, resource="cpu", count=1)], 0).bottleneck == f"fc0 on cpu ({side})"


def test_a_throughput_that_rounding_puts_below_the_floor_is_reported_as_the_floor() -> None:
    floor = 100.0 * (1 + 1e-13)
    problem = Problem(profile({"cpu": cost(1.0)}), cluster(cpu=CPU), floor, 1)
    assert bill(problem, [Stage(first=0, last=0, resource="cpu", count=1)], 0).throughput == floor


def test_runs_are_maximal() -> None:
    assert runs([0, 0, 1, 0]) == [(0, 1, 0), (2, 2, 1), (3, 3, 0)]
    assert runs([2]) == [(0, 0, 2)]


def test_a_resource_with_limit_0_is_left_out() -> None:
    out = Resource(device="cuda", usd_per_hour=1.0, limit=0)
    problem = Problem(profile({"cpu": cost()}), cluster(cpu=CPU, v100=out), 1, 1)
    assert problem.resources == ("cpu",)
    assert problem.terms.shape[:2] == (1, 1)
    assert np.array_equal(problem.limits, [480])


@pytest.mark.parametrize("name", ["throughput", "samples", "epochs"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_asked_for_must_be_a_number_above_0(name: str, value: float) -> None:
    asked = {"throughput": 1.0, "samples": 1.0, "epochs": 1.0, name: value}
    with pytest.raises(ConfigError, match=name):
        Problem(profile({"cpu": cost()}), cluster(cpu=CPU), **asked)


def test_a_resource_that_the_profile_lacks_is_named_with_those_it_has() -> None:
    with pytest.raises(ConfigError, match=r"'h100'.*'mlp' has costs for 'cpu' only"):
        Problem(profile({"cpu": cost()}), cluster(cpu=CPU, h100=V100), 1, 1)


def test_a_layer_that_no_rented_resource_can_run_is_named() -> None:
    with pytest.raises(ConfigError, match=r"layer 'fc1' can run on 'v100' only.*rents 'cpu'"):
        Problem(profile({"cpu": cost()}, {"v100": cost()}), cluster(cpu=CPU), 1, 1)


def test_a_profile_in_which_nothing_takes_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="no layer takes any time"):
        Problem(profile({"cpu": cost(0.0)}), cluster(cpu=CPU), 1, 1)


def test_spot_takes_the_costs_of_its_device_at_a_price_and_limit_of_its_own() -> None:
    rented = Cluster.model_validate(
        {"resources": {"cpu": {"limit": 4}, "v100": {"limit": 1}, "v100-spot": {"limit": 3}}, "server_resource": "cpu"}
    )
    problem = Problem(profile({"cpu": cost(9.0), "v100": cost(2.0)}), rented, 1, 1)
    assert problem.resources == ("cpu", "v100", "v100-spot")
    assert np.array_equal(problem.terms[2], problem.terms[1])
    assert problem.prices[2] < problem.prices[1]
    assert problem.limits.tolist() == [4, 1, 3]
