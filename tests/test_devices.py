"""A device's name means the same for the cluster file, the planner, the profiler and Ray."""

from __future__ import annotations

import pytest
import torch

from heterps.config import Cluster, Resource
from heterps.devices import KINDS, DeviceKind, find_model, is_available, is_cpu, kind_of, ray_resource, register_device
from heterps.errors import ConfigError
from heterps.planning.inline import cpu_resource


@pytest.mark.parametrize(
    ("device", "kind", "on_ray"),
    [
        ("cpu", "cpu", None),
        ("cuda", "cuda", "GPU"),
        ("cuda:7", "cuda", "GPU"),
        ("xpu:0", "xpu", "GPU"),
        ("mps", "mps", None),
        ("cpuid", "cpuid", None),
    ],
)
def test_a_number_does_not_change_the_kind_of_a_device(device: str, kind: str, on_ray: str | None) -> None:
    assert kind_of(device) == kind
    assert is_cpu(device) == (kind == "cpu")
    assert ray_resource(device) == on_ray


def test_a_numbered_device_may_be_an_offer_and_is_no_cpu() -> None:
    resources = {"v100": {"device": "cuda:7", "limit": 1}, "cpu": {"device": "cpu", "limit": 1}}
    cluster = Cluster.model_validate({"resources": resources, "server_resource": "cpu"})
    assert cluster.resources["v100"].usd_per_hour == 2.42
    assert cpu_resource(cluster) == "cpu"


def test_a_kind_that_only_begins_like_cpu_is_not_one() -> None:
    other = Cluster(resources={"a": Resource(device="cpuid", usd_per_hour=1, limit=1)}, server_resource="a")
    with pytest.raises(ConfigError, match="no resource with device: cpu"):
        cpu_resource(other)


def test_the_profiler_measures_on_the_device_of_the_right_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: ("Tesla T4", "Tesla V100-SXM2-16GB")[number])
    assert find_model("cuda", "V100") == torch.device("cuda:1")
    assert find_model("cuda", "H100") is None
    assert find_model("cpu", "") is None
    assert find_model("abacus", "") is None


def test_a_kind_of_device_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KINDS, "_entries", dict(KINDS))
    register_device(DeviceKind("hpu", ray_resource="HPU"))
    register_device(DeviceKind("hpu", ray_resource="HPU"))
    assert ray_resource("hpu:3") == "HPU"
    assert not is_available("hpu")  # this build of torch does not have it
    assert find_model("hpu", "Gaudi") is None
    with pytest.raises(ConfigError, match="there is already a device 'hpu'"):
        register_device(DeviceKind("hpu"))
    with pytest.raises(ConfigError, match="has no number"):
        register_device(DeviceKind("hpu:1"))
