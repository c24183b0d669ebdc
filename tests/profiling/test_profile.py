"""The profile as a value: on a cluster, merged with others, at another batch size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from heterps.config import Cluster
from heterps.errors import ConfigError
from heterps.planning.cost import Problem, stage_terms
from heterps.planning.optimum import with_floor, with_limits
from heterps.profiling.profile import Cost, LayerProfile, Profile


def cost(compute_s: float = 1.0, **fields: Any) -> Cost:
    return Cost.model_validate({"compute_s": compute_s, "sync_s": 0, "input_s": 0, "alpha": 1, "beta": 1} | fields)


def layer(name: str = "fc", costs: dict[str, Cost] | None = None, **fields: Any) -> LayerProfile:
    return LayerProfile.model_validate({"name": name, "costs": costs or {"cpu": cost()}} | fields)


def profile(*layers: LayerProfile, batch_size: int = 100) -> Profile:
    return Profile(model="mlp", batch_size=batch_size, layers=layers or (layer(),))


def cluster(**resources: dict[str, Any]) -> Cluster:
    return Cluster.model_validate({"resources": resources, "server_resource": next(iter(resources))})


# --- on a cluster ----------------------------------------------------------------------------------------------------


def test_a_resource_takes_its_own_costs_before_those_of_its_kind() -> None:
    costs = {"v100": cost(1.0), "mine": cost(2.0)}
    rented = cluster(**{n: {"kind": "v100-spot", "limit": 1} for n in ("mine", "other")}, v100={"limit": 1})
    found = profile(layer(costs=costs)).on(rented).layers[0].costs
    assert found == costs | {"other": cost(1.0)}


def test_a_written_kind_decides_the_costs_where_the_name_is_that_of_another_device() -> None:
    known = profile(layer(costs={"v100": cost(1.0), "t4": cost(2.0)}))
    swapped = cluster(v100={"kind": "t4", "limit": 1}, t4={"kind": "v100", "limit": 1})
    assert known.on(swapped).layers[0].costs == {"v100": cost(2.0), "t4": cost(1.0)}
    again = with_floor(with_limits(Problem(known, swapped, 10.0, 1e6), {"t4": 2}), 20.0)
    assert again.profile.layers[0].costs == {"v100": cost(2.0), "t4": cost(1.0)}, "swapped once, not once a change"
    only_v100 = profile(layer(costs={"v100": cost(), "cpu": cost()}))
    with pytest.raises(ConfigError, match="the cluster has resource 'v100', but the profile"):
        Problem(only_v100, cluster(cpu={"limit": 1}, v100={"kind": "t4", "limit": 1}), 1.0, 1.0)


def test_costs_under_the_name_of_the_offer_come_before_those_of_its_device() -> None:
    costs = {"v100": cost(1.0), "v100-spot": cost(2.0)}
    found = profile(layer(costs=costs)).on(cluster(cheap={"kind": "v100-spot", "limit": 1}))
    assert found.layers[0].costs["cheap"].compute_s == 2.0


def test_a_layer_that_the_kind_cannot_run_is_not_run_by_the_resource_either() -> None:
    found = profile(layer("a", {"v100": cost()}), layer("b", {"cpu": cost()})).on(
        cluster(**{"v100-spot": {"limit": 1}})
    )
    assert [set(each.costs) for each in found.layers] == [{"v100", "v100-spot"}, {"cpu"}]


def test_a_profile_that_knows_all_or_nothing_of_the_cluster_stays_as_it_is() -> None:
    known = profile()
    assert known.on(cluster(cpu={"limit": 1})) is known
    assert known.on(cluster(house={"usd_per_hour": 1, "limit": 1}, t4={"limit": 1})) is known


# --- merged ----------------------------------------------------------------------------------------------------------


def test_resources_of_two_machines_come_together_and_measured_replaces_estimated() -> None:
    guess, truth = cost(5.0, estimated=True), cost(3.0)
    here = profile(layer(costs={"cpu": cost(1.0), "v100": guess}, server_s=0.5))
    there = profile(layer(costs={"v100": truth, "t4": guess}, server_s=0.7))
    for merged in (here.merge(there), there.merge(here)):
        assert merged.layers[0].costs == {"cpu": cost(1.0), "v100": truth, "t4": guess}
    assert here.merge(there).layers[0].server_s == 0.5
    assert here.merge() is here


def test_the_first_of_two_estimates_is_kept() -> None:
    one, two = (profile(layer(costs={"v100": cost(s, estimated=True)})) for s in (1.0, 2.0))
    assert one.merge(two).layers[0].costs["v100"].compute_s == 1.0


def test_a_resource_measured_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'cpu' is measured in both.*other=cpu"):
        profile().merge(profile(layer(costs={"cpu": cost(2.0)})))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (profile(batch_size=50), "different batch sizes .* 100 and 50"),
        (profile(layer("fc"), layer("out")), "mlp has 1 layers, and mlp has 2"),
        (profile(layer("relu")), r"name of layer 0 \(fc\) is fc in one and relu in the other"),
        (profile(layer(weight_bytes=4)), r"weight_bytes of layer 0 \(fc\) is 0 in one and 4 in the other"),
    ],
)
def test_the_first_difference_of_profiles_that_do_not_fit_is_named(other: Profile, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        profile().merge(other)


# --- at another batch size -------------------------------------------------------------------------------------------

LATENT = cost(
    0.1, compute_fixed_s=0.04, alpha=0.5, sync_s=0.3, sync_fixed_s=0.2, input_s=0.2, input_fixed_s=0.1, beta=0.4
)


def test_fixed_seconds_stay_and_the_rest_grows_with_the_batch() -> None:
    start = profile(layer(costs={"cpu": LATENT}, server_s=0.6, server_fixed_s=0.5, input_bytes=10, weight_bytes=7))
    found = start.at_batch_size(200)
    (doubled,) = found.layers
    assert found.batch_size == 200
    assert doubled.costs["cpu"].compute_s == pytest.approx(0.16)
    assert doubled.costs["cpu"].alpha == pytest.approx(0.1 / 0.16), "units divide twice the 0.05 s of before"
    assert doubled.costs["cpu"].sync_s == pytest.approx(0.4)
    assert doubled.costs["cpu"].input_s == pytest.approx(0.3)
    assert doubled.server_s == pytest.approx(0.7)
    assert (doubled.input_bytes, doubled.weight_bytes) == (20, 7)


def test_small_batches_are_bound_by_communication_and_large_ones_by_compute() -> None:
    start = profile(layer(costs={"cpu": cost(1.0, sync_s=1.0, sync_fixed_s=0.9)}))

    def bound(batch_size: int) -> str:
        problem = Problem(start.at_batch_size(batch_size), cluster(cpu={"limit": 1}), 1, 1)
        terms = stage_terms(problem, 0, 0, 0)
        return "compute" if terms.compute_s(1) > terms.comm_s(1) else "communication"

    assert [bound(b) for b in (1, 10, 99, 101, 1000)] == ["communication"] * 3 + ["compute"] * 2


@given(st.integers(1, 10_000))
def test_what_more_units_divide_of_communication_is_the_same_for_each_sample(batch_size: int) -> None:
    found = profile(layer(costs={"cpu": LATENT})).at_batch_size(batch_size).layers[0].costs["cpu"]
    divided = found.beta * (found.sync_s + found.input_s)
    assert divided / batch_size == pytest.approx(0.4 * 0.5 / 100)


@given(st.integers(1, 10_000))
def test_there_and_back_is_the_same_profile(batch_size: int) -> None:
    start = profile(layer(costs={"cpu": LATENT}, server_s=0.6, server_fixed_s=0.5))
    back = start.at_batch_size(batch_size).at_batch_size(100).layers[0]
    assert back.server_s == pytest.approx(0.6)
    for name in ("compute_s", "sync_s", "input_s", "beta"):
        assert getattr(back.costs["cpu"], name) == pytest.approx(getattr(LATENT, name)), name


def test_without_fixed_seconds_throughput_does_not_depend_on_the_batch() -> None:
    found = profile(layer(costs={"cpu": cost(1.0, sync_s=0.5)})).at_batch_size(7).layers[0].costs["cpu"]
    assert (found.compute_s / 7, found.sync_s / 7) == (pytest.approx(0.01), pytest.approx(0.005))


def test_a_part_larger_than_its_whole_and_an_empty_batch_are_refused() -> None:
    with pytest.raises(ValidationError, match="sync_fixed_s is a part of sync_s"):
        cost(sync_s=1.0, sync_fixed_s=2.0)
    with pytest.raises(ValidationError, match="server_fixed_s is a part of server_s"):
        layer(server_fixed_s=1.0)
    with pytest.raises(ConfigError, match="at least one sample"):
        profile().at_batch_size(0)
