"""The plan of an inline run: what one machine is predicted to do, and the plan of which nothing is predicted."""

from __future__ import annotations

import pytest

from heterps.config import Cluster, Resource
from heterps.errors import ConfigError
from heterps.planning.inline import cpu_resource, inline_plan, inline_prediction, unpredicted_plan
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.profiling.profile import Cost, LayerProfile, Profile

CLUSTER = Cluster(
    resources={
        "big": Resource(device="cpu", usd_per_hour=0.09, limit=4),
        "core": Resource(device="cpu", usd_per_hour=0.04, limit=4),
        "v100": Resource(device="cuda", usd_per_hour=0.01, limit=4),
    },
    server_resource="big",
)


def layer(name: str, *, resource: str = "core", input_s: float = 0.0) -> LayerProfile:
    cost = Cost(compute_s=0.008, sync_s=50.0, input_s=input_s, alpha=0.75, beta=0.5)
    return LayerProfile(name=name, server_s=0.002, costs={resource: cost})


PROFILE = Profile(model="m", batch_size=100, layers=(layer("one", input_s=0.004), layer("two", input_s=70.0)))


def test_the_cheapest_cpu_is_what_an_inline_run_is_billed_as():
    assert cpu_resource(CLUSTER) == "core"


@pytest.mark.parametrize(
    ("num_cores", "seconds"),
    [
        (1, 2 * 0.008 + 2 * 0.002 + 0.004),  # compute, servers, reading: no network, and layer 1 crosses no border
        (4, 2 * 0.008 * (0.25 + 0.75 / 4) + (2 * 0.002 + 0.004) / 4),
    ],
)
def test_times_add_up_and_cores_divide_what_can_be_divided(num_cores, seconds):
    plan = inline_plan(PROFILE, CLUSTER, num_cores=num_cores, samples=3600 * 100)
    assert plan.throughput == pytest.approx(100 / seconds)
    assert plan.hours == pytest.approx(seconds)
    assert plan.usd == pytest.approx(seconds * num_cores * 0.04)
    assert plan.stages == (Stage(first=0, last=1, resource="core", count=num_cores),)
    assert plan.servers.count == 0
    assert plan.is_predicted


def test_real_steps_correct_the_sum_of_the_layers_and_the_rest_is_overhead():
    sum_s = 2 * 0.008 + 2 * 0.002 + 0.004
    stepped = PROFILE.model_copy(update={"whole_steps": {1: 1.5, 4: 3.0}, "whole_steps_error": 0.02})
    prediction = inline_prediction(stepped, CLUSTER, 1)
    assert prediction.seconds == pytest.approx(1.5 * sum_s)
    assert (prediction.compute_s, prediction.servers_s) == pytest.approx((0.016, 0.004))
    assert prediction.overhead_s == pytest.approx(0.004 + 0.5 * sum_s)
    assert inline_plan(stepped, CLUSTER, num_cores=1, samples=1).throughput == pytest.approx(100 / 1.5 / sum_s)
    near_4 = inline_prediction(stepped, CLUSTER, 3).seconds / inline_prediction(PROFILE, CLUSTER, 3).seconds
    assert near_4 == pytest.approx(3.0), "3 threads are nearer to 4 than to 1"


def test_a_prediction_is_an_interval_that_real_steps_narrow():
    stepped = PROFILE.model_copy(update={"whole_steps": {1: 1.0}, "whole_steps_error": 0.0})
    widths = []
    for profile in (PROFILE, stepped):
        expected, low, high = inline_prediction(profile, CLUSTER, 1).throughput(100)
        assert low < expected < high
        assert low * high == pytest.approx(expected**2), "as many times slower as faster"
        widths.append(high / low)
    assert widths[0] > widths[1] > 1.1


def test_a_layer_without_a_cost_on_the_cpu_is_refused():
    partly = Profile(model="m", batch_size=100, layers=(layer("one"), layer("two", resource="v100")))
    with pytest.raises(ConfigError, match="no cost for every layer on 'core'; profile that resource first"):
        inline_plan(partly, CLUSTER, num_cores=1, samples=1)


def test_a_plan_without_a_prediction_still_has_a_price():
    plan = unpredicted_plan(CLUSTER, num_cores=3)
    assert not plan.is_predicted
    assert plan.usd_per_hour(CLUSTER) == pytest.approx(0.12)


def test_the_price_of_a_plan_is_that_of_all_its_units():
    stages = (Stage(first=0, last=0, resource="core", count=5), Stage(first=1, last=1, resource="v100", count=2))
    plan = Plan(
        method="exact", stages=stages, servers=PlannedServers(resource="big", count=3),
        throughput=1.0, hours=1.0, usd=1.0, bottleneck="stage 1",
    )  # fmt: skip
    assert plan.usd_per_hour(CLUSTER) == pytest.approx(5 * 0.04 + 2 * 0.01 + 3 * 0.09)
