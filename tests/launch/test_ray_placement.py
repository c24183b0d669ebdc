"""What roles take of a Ray cluster, and what is said where it has not got it; no Ray is needed."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray_cluster import staged_job

from heterps.errors import ConfigError, PeerLost
from heterps.launch import train
from heterps.launch.ray.actor import summary_of
from heterps.launch.ray.cluster import open_ray
from heterps.launch.ray.placement import bundle_of, check_labels, explain, lacking, start_command
from heterps.launch.ray.roles import listen_address
from heterps.planning.plan import load_plan
from heterps.training.protocol.emulation import lacks_devices
from heterps.training.run.observer import Observer
from heterps.wire.address import check_address
from heterps.wire.keys import make_keys

AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "v100", "CPU", "GPU"]), st.integers(0, 5))


def test_a_unit_takes_its_label_a_core_and_the_accelerator_that_it_is() -> None:
    assert bundle_of("v100", "cuda", 1) == {"v100": 1, "CPU": 1, "GPU": 1}
    assert bundle_of("cpu", "cpu", 1) == {"cpu": 1, "CPU": 1}
    assert bundle_of("cpu", "cpu", 0) == {"cpu": 1}


def test_a_numbered_device_is_refused_because_ray_chooses_it() -> None:
    with pytest.raises(ConfigError, match=r"v100: Ray chooses .* `device: cuda:7` .* write `device: cuda`"):
        bundle_of("v100", "cuda:7", 1)


@pytest.mark.parametrize("name", ["CPU", "GPU", "memory", "object_store_memory"])
def test_a_name_that_ray_counts_by_itself_is_no_label(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*another name"):
        check_labels(["v100", name])
    check_labels(["cpu", "v100"])


@given(st.lists(AMOUNTS), AMOUNTS)
def test_what_is_lacking_would_be_exactly_enough(bundles: list[dict[str, int]], there: dict[str, int]) -> None:
    missing = lacking(bundles, there)
    assert all(amount > 0 for amount in missing.values())
    filled = {name: there.get(name, 0) + missing.get(name, 0) for name in {*there, *missing}}
    assert lacking(bundles, filled) == {}
    for name, amount in missing.items():
        assert filled[name] == sum(bundle.get(name, 0) for bundle in bundles), amount


@given(st.dictionaries(st.from_regex(r"[a-z]\w{0,8}", fullmatch=True), st.integers(1, 99), min_size=1))
def test_the_command_that_starts_a_node_has_the_labels_as_json(labels: dict[str, int]) -> None:
    written = re.search(r"--resources='(.*)'$", start_command(labels))
    assert written is not None
    assert json.loads(written[1]) == labels


def test_the_reason_tells_what_is_not_there_from_what_others_hold_and_from_what_is_apart() -> None:
    bundles = [{"v100": 1, "CPU": 1}, {"v100": 1, "CPU": 1}]
    assert "lacks 1 v100" in explain(bundles, {"v100": 1, "CPU": 9}, {}, 3)
    assert "others hold 1 CPU" in explain(bundles, {"v100": 2, "CPU": 9}, {"v100": 2, "CPU": 1}, 3)
    assert "not on the same nodes" in explain(bundles, {"v100": 2, "CPU": 2}, {"v100": 2, "CPU": 2}, 3)


def test_only_cores_that_lack_need_no_label() -> None:
    said = explain([{"v100": 1, "CPU": 1}], {"v100": 1}, {}, 3)
    assert "lacks 1 CPU" in said
    assert "--resources" not in said


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7", "fd00::7"])
def test_actors_listen_at_addresses_that_need_the_key_of_the_run(host: str) -> None:
    check_address(listen_address(host), make_keys())
    with pytest.raises(ConfigError, match="no key"):
        check_address(listen_address(host))


def test_a_death_is_told_in_a_line() -> None:
    assert summary_of("The node died.\nMore\nof it") == "The node died."
    assert summary_of("It died.\nTraceback (most):\n  x\nModuleNotFoundError: no m\n") == (
        "It died. ModuleNotFoundError: no m"
    )
    assert summary_of(" \n") == "Ray does not say why"


def test_without_ray_the_error_has_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'ray>="), open_ray(None, {}, Observer()):
        pass


def test_a_client_from_outside_the_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match="on a node"), open_ray("ray://head:10001", {}, Observer()):
        pass


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"workers": {"channel": "memory"}}, "memory of this process"),
        ({"servers": {"addresses": ["ipc:///tmp/there"]}}, "this machine only"),
    ],
)
def test_what_cannot_leave_this_machine_is_refused(tiny_job: Path, fields: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train(staged_job(tiny_job, ["cpu", "big"], [2], "auto", **fields), "run")


def test_devices_of_a_cluster_elsewhere_need_not_be_here(tiny_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps.training.protocol.emulation.is_available", lambda device: False)
    here, there = (staged_job(tiny_job, ["cpu", "big"], [2], address) for address in (None, "auto"))
    plan = load_plan("plan.json")
    resources = [stage.resource for stage in plan.stages]
    assert lacks_devices(here, resources) == ["cpu", "big"]
    assert lacks_devices(there, resources) == []


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.0.0.1:port", "no.such.host.invalid:6379", "127.0.0.1:99999999"]
)
def test_an_address_at_which_nobody_listens_is_told_at_once(address: str) -> None:
    begun = time.monotonic()
    with pytest.raises(PeerLost, match=rf"Ray at {address}: nobody .*ray status"), open_ray(address, {}, Observer()):
        pytest.fail("there is a cluster")
    assert time.monotonic() - begun < 60
