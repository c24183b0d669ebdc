"""A Ray of our own that is slow to come up is tried again; what an attempt left is gone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heterps.launch.ray import cluster
from heterps.launch.ray.cluster import KeptRay, NoRay, open_ray
from heterps.training.run.observer import Observer


class Heard(Observer):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warned(self, message: str) -> None:
        self.warnings.append(message)


class SlowRay:
    """Comes up at attempt number `up_at`."""

    def __init__(self, up_at: int) -> None:
        self.up_at, self.folders = up_at, []
        self.num_shutdowns = 0
        self.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def is_initialized(self) -> bool:
        return False

    def init(self, **how: Any) -> None:
        self.folders.append(Path(how["_temp_dir"]).parent)
        if len(self.folders) < self.up_at:
            raise TimeoutError("the node did not register in time")

    def shutdown(self) -> None:
        self.num_shutdowns += 1

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeManagerAddress": "127.0.0.1", "Alive": True}]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch):
    def started(up_at: int) -> SlowRay:
        ray = SlowRay(up_at)
        monkeypatch.setattr(cluster, "import_ray", lambda: ray)
        monkeypatch.setattr(cluster, "_set", lambda _: None)
        monkeypatch.setattr(cluster, "_asks_for_token", lambda: True)
        return ray

    return started


def test_a_ray_that_is_slow_is_tried_again(started) -> None:
    ray, heard = started(3), Heard()
    with open_ray(None, {"cpu": 2.0}, heard) as found:
        assert found.is_ours
        assert [folder.exists() for folder in ray.folders] == [False, False, True]
    assert ray.num_shutdowns == 3
    assert not ray.folders[-1].exists()
    assert [text.endswith("It is tried again") for text in heard.warnings] == [True, True]


def test_a_ray_that_never_comes_up_is_an_error_after_three_attempts(started) -> None:
    ray = started(99)
    with pytest.raises(NoRay, match="Ray at local: the node did not register in time"), open_ray(None, {}, Heard()):
        pass
    assert (len(ray.folders), ray.num_shutdowns) == (3, 3)


def test_a_run_keeps_its_ray_over_restarts_until_that_is_gone_or_needs_other_labels(started) -> None:
    ray = started(1)
    with KeptRay() as kept:
        first = kept.open(None, {"cpu": 2.0}, Heard())
        assert kept.open(None, {"cpu": 2.0}, Heard()) is first
        assert ray.num_shutdowns == 0
        kept.open(None, {"cpu": 3.0}, Heard())
        assert ray.num_shutdowns == 1
        ray.nodes = list  # nobody is there any more
        kept.open(None, {"cpu": 3.0}, Heard())
        assert (len(ray.folders), ray.num_shutdowns) == (3, 2)
    assert ray.num_shutdowns == 3
