"""The catalogue, its prices, and clusters that take from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.catalogue import CATALOGUE, LOCAL, V100, find_device
from heterps.config import PAPER_CLUSTER, Cluster, Job, Resource, load_job
from heterps.errors import ConfigError
from heterps.offers import LISTED, OFFERS, device_of, find_offer
from heterps.yamlfile import dump_yaml, parse, validate


def cluster(text: str) -> Cluster:
    data, lines = parse(f"resources:\n  {text}\nserver_resource: x\n", where="c.yaml", what="cluster file")
    return validate(data, Cluster, where="c.yaml", lines=lines)


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        cluster(text)
    return str(error.value)


def test_every_catalogue_entry_is_possible() -> None:
    for name, device in CATALOGUE.items():
        assert device.name == name
        assert device.peak_flops > device.memory_bytes_per_s > 0, "a device computes faster than it reads"
        assert 0 < device.compute_efficiency <= 1
        assert 0 < device.memory_efficiency <= 1


def test_an_unknown_device_lists_the_catalogue() -> None:
    assert find_device("v100") is V100
    with pytest.raises(ConfigError, match=r"Did you mean 'v100'\? There are: cpu, v100, a100, h100"):
        find_device("v10")


def test_every_device_has_an_offer_of_its_name_and_spot_is_cheaper() -> None:
    assert set(LISTED) == {LOCAL, *CATALOGUE}, "the devices of the catalogue have a line each"
    for name, offer in OFFERS.items():
        assert offer.spot == name.endswith("-spot")
        assert offer.usd_per_hour > 0
        if offer.spot:
            assert offer.device == name.removesuffix("-spot")
            assert offer.usd_per_hour < OFFERS[offer.device].usd_per_hour
        else:
            assert offer.device == name


def test_list_prices_are_those_of_the_papers_cluster() -> None:
    for name, resource in PAPER_CLUSTER.resources.items():
        assert OFFERS[name].usd_per_hour == resource.usd_per_hour
        assert OFFERS[name].torch_device == resource.device


def test_an_unknown_offer_names_the_nearest_and_the_command_that_lists_them() -> None:
    assert device_of(find_offer("v100-spot")) is V100
    assert device_of(find_offer("cpu")) is None
    with pytest.raises(ConfigError, match=r"did you mean 'v100-spot'\? `heterps prices`"):
        find_offer("v100-sport")


def test_what_is_left_out_comes_from_the_offer_of_the_name_or_kind() -> None:
    found = cluster("v100-spot: {limit: 3}\n  x: {kind: t4-spot, limit: 2}").resources
    assert (found["v100-spot"].device, found["v100-spot"].usd_per_hour) == ("cuda", OFFERS["v100-spot"].usd_per_hour)
    assert (found["x"].device, found["x"].usd_per_hour) == ("cuda", OFFERS["t4-spot"].usd_per_hour)


def test_what_is_written_comes_before_the_offer_and_a_kind_before_the_name() -> None:
    found = cluster(
        "v100: {kind: t4, limit: 1}\n  x: {kind: v100, device: 'cuda:1', usd_per_hour: 9, limit: 2}"
    ).resources
    assert found["v100"].usd_per_hour == OFFERS["t4"].usd_per_hour
    assert (found["x"].device, found["x"].usd_per_hour) == ("cuda:1", 9)


def test_a_resource_made_in_python_is_filled_from_its_kind() -> None:
    assert Resource.model_validate({"kind": "h100", "limit": 1}).device == "cuda"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x: {limit: 3}", "c.yaml:2: resources.x: usd_per_hour is missing, and there is no offer to take it from"),
        ("x: {limit: 3}", "`heterps prices` lists them"),
        ("x: {kind: v10, limit: 3}", "kind 'v10' is not an offer of the catalogue: did you mean 'v100'?"),
        ("x: {kind: 3, limit: 3}", "resources.x.kind: must be text (got 3)"),
        ("x: {usd_per_huor: 1, limit: 3}", "Did you mean 'usd_per_hour'?"),
        (
            "x: {kind: v100, device: cpu, limit: 3}",
            "resources.x: device 'cpu' contradicts the offer 'v100', which is a",
        ),
        ("v100: {device: cpu, limit: 3}", "device 'cpu' contradicts the offer 'v100', which is a cuda device"),
        ("v100: {limt: 3}", "resources.v100.limt is not a field. Did you mean 'limit'?"),
    ],
)
def test_a_resource_that_its_offer_cannot_fill_says_why(text: str, expected: str) -> None:
    assert expected in complaint(text)


@given(st.dictionaries(st.sampled_from(sorted(OFFERS)), st.integers(1, 9), min_size=1))
def test_a_filled_cluster_is_written_whole_and_reads_back_equal(limits: dict[str, int]) -> None:
    resources = {name: {"limit": limit} for name, limit in limits.items()}
    made = Cluster.model_validate({"resources": resources, "server_resource": next(iter(limits))})
    data, lines = parse(dump_yaml(made), where="c.yaml", what="cluster file")
    assert validate(data, Cluster, where="c.yaml", lines=lines) == made
    assert all(resource["usd_per_hour"] is not None for resource in data["resources"].values())


def test_a_job_with_offers_is_written_whole_and_loads_again(tmp_path: Path) -> None:
    resources = {"cpu": {"limit": 8}, "v100-spot": {"limit": 2}, "night": {"kind": "t4-spot", "limit": 3}}
    job = Job.model_validate({"data": {"train": "x"}, "cluster": {"resources": resources, "server_resource": "cpu"}})
    path = tmp_path / "job.yaml"
    path.write_text(dump_yaml(job))
    assert load_job(path) == job
