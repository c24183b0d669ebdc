"""The plan of a job without one, on workers."""

import pytest

from heterps.config import Cluster, Resource
from heterps.errors import ConfigError
from heterps.planning.local import local_plan
from heterps.profiling.profile import Cost, LayerProfile, Profile

LAYERS = ["first", "second"]
CLUSTER = Cluster(
    resources={
        "cpu": Resource(device="cpu", usd_per_hour=0.04, limit=8),
        "v100": Resource(device="cuda", usd_per_hour=2.42, limit=2),
        "store": Resource(device="cpu", usd_per_hour=0.5, limit=0),
    },
    server_resource="store",
)


def profile(server_s=0.0, names=LAYERS, resource="cpu", estimated=False):
    cost = Cost(compute_s=0.5, sync_s=0.1, input_s=0.0, alpha=1.0, beta=1.0, estimated=estimated)
    layers = (LayerProfile(name=name, server_s=server_s, costs={resource: cost}) for name in names)
    return Profile(model="m", batch_size=100, layers=tuple(layers))


def plan(of, num_workers=2, batch_size=100, cluster=CLUSTER):
    return local_plan(LAYERS, cluster, of, num_workers=num_workers, batch_size=batch_size, samples=3600)


def test_it_is_one_stage_on_the_cheapest_cores_and_one_server():
    (stage,), servers = plan(None).stages, plan(None).servers
    assert (stage.first, stage.last, stage.resource, stage.count) == (0, 1, "cpu", 2)
    assert (servers.resource, servers.count) == ("store", 1)


@pytest.mark.parametrize(
    "of", [None, profile(resource="v100"), profile(names=["first", "other"]), profile(names=["first"])]
)
def test_without_costs_of_its_layers_on_its_resource_nothing_is_predicted(of):
    made = plan(of)
    assert not made.is_predicted
    assert (made.hours, made.usd, made.bottleneck) == (0.0, 0.0, "not predicted")


def test_it_is_billed_as_any_plan_its_server_included():
    made = plan(profile())
    assert made.throughput == pytest.approx(200.0)  # two layers of 0.5 s for 100 samples, on two cores
    assert made.hours == pytest.approx(3600 / 200 / 3600)
    assert made.usd == pytest.approx(made.hours * (2 * 0.04 + 0.5))
    assert made.bottleneck == "first..second on cpu (compute)"
    assert made.estimated == ()


def test_the_server_may_be_the_bottleneck():
    made = plan(profile(server_s=2.0))
    assert made.throughput == pytest.approx(25.0)
    assert made.bottleneck == "servers on store"


def test_the_profile_is_taken_to_the_batch_size_of_the_job():
    assert plan(profile(), batch_size=10).throughput == pytest.approx(200.0)
    assert plan(profile(), batch_size=10).batch_size == 10


def test_estimates_are_called_so():
    assert plan(profile(estimated=True)).estimated == ("cpu",)


def test_a_cluster_without_cores_is_refused():
    cluster = Cluster(resources={"v100": Resource(device="cuda", usd_per_hour=2.42, limit=2)}, server_resource="v100")
    with pytest.raises(ConfigError, match="no resource with device: cpu"):
        plan(None, cluster=cluster)
