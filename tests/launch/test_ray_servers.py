"""Servers on a real Ray of two nodes: with a mirror one that is lost loses nothing; one that hangs is noticed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from ends import assert_same_tables, uses_of_rows
from ray_cluster import labelled_cluster, wait_gone
from test_ray import Watcher
from tiny import JOB, write_tiny

import heterps.launch.ray.servers as ray_servers
from heterps.checkpoint import load_latest
from heterps.config import Job, load_job
from heterps.launch import train
from heterps.launch.ray.servers import RayServers

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning:ray")
NUM_ROWS, BATCH, EPOCHS = 160, 16, 6
SLOW_S, MISSING_S = 0.1, 0.8
"""What a step takes before a loss, and while a server has no mirror: on a busy machine one takes long to start."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Any, dict[str, str]]]:
    with labelled_cluster({"cpu": 3}, {"cpu": 4}) as made:
        yield made


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Two workers in one stage. Slot t has another id in every row, so that its uses say how often that was trained."""
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "train.parquet", NUM_ROWS, t=list(range(1000, 1000 + NUM_ROWS)))
    write_tiny(tmp_path / "test.parquet", 20)
    (tmp_path / "job.yaml").write_text(JOB)
    return changed(load_job("job.yaml"), threads=2, servers={"replicas": 1, "count": 1})


def changed(job: Job, **fields: Any) -> Job:
    data = job.data.model_dump() | {"epochs": EPOCHS}
    return Job.model_validate(job.model_dump() | {"data": data} | fields)


def on_ray(job: Job, cluster: Any, **fields: Any) -> Job:
    return changed(job, launcher="ray", ray_address=cluster[0].address, **fields)


def clean(job: Job) -> dict[str, Any]:
    """The same job on threads, in the folder `clean`."""
    done = train(changed(job, launcher="local", workers={"channel": "memory"}, servers={"count": 1}), "clean")
    return done.summary


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[RayServers]:
    """The servers of each fleet of a run, the newest last; they note where all of them were."""
    found: list[RayServers] = []

    class Noted(RayServers):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            found.append(self)

        def close(self) -> None:
            for name in self._all:
                place([self], name)
            super().close()

    monkeypatch.setattr(ray_servers, "RayServers", Noted)
    return found


def place(made: list[RayServers], name: str) -> Any:
    actor = made[-1]._all[name].actor
    return actor._place or actor.place


class Losses(Watcher):
    """Slow until there is a loss, and until every server has a mirror again."""

    def stepped(self, *args: Any) -> None:
        time.sleep(SLOW_S if not self.warnings_of_loss else 0.0)
        super().stepped(*args)
        is_mirrored_again = any("has a mirror again" in change for change in self.changes)
        if any("mirror" in warning for warning in self.warnings_of_loss) and not is_mirrored_again:
            time.sleep(MISSING_S)

    def changed(self, what: str) -> None:
        self.changes.append(what)

    @property
    def warnings_of_loss(self) -> list[str]:
        return [warning for warning in self.warnings if "token" not in warning]


@pytest.mark.parametrize("victim", ["server-0", pytest.param("server-0.1", marks=pytest.mark.slow)])
def test_a_server_actor_that_is_killed_loses_nothing_and_nobody_goes_back(
    cluster: Any, tmp_path: Path, job: Job, made: list[RayServers], victim: str
) -> None:
    nodes: dict[str, str] = {}

    def kill() -> None:
        nodes.update({name: place(made, name).node for name in ("server-0", "server-0.1")})
        os.kill(place(made, victim).pid, signal.SIGKILL)

    losses = Losses(at=12, act=kill)
    done = train(on_ray(job, cluster), "run", observer=losses).summary
    (warning,) = losses.warnings_of_loss
    assert warning.startswith(f"{victim} (process ")
    assert "has a mirror again after" in losses.changes[-1]
    assert nodes["server-0"] != nodes["server-0.1"]
    assert place(made, "server-0.2").node == nodes[victim], "not where the other is"
    assert (done["status"], done["samples"]) == ("completed", EPOCHS * NUM_ROWS)
    assert (done["restarts"], done["recoveries"], done["repeated_samples"]) == (0, 1, 0)
    assert len(made) == 1, "one fleet, so Ray was not left"
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS
    expected = clean(job)
    assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))
    assert (done["log_loss"], done["auc"]) == (expected["log_loss"], expected["auc"])
    wait_gone([place(made, name).pid for name in made[-1]._all])


@pytest.mark.slow
def test_a_server_actor_that_hangs_is_named_and_the_run_goes_on_from_its_last_checkpoint(
    cluster: Any, job: Job, made: list[RayServers]
) -> None:
    hangs = Losses(at=8, act=lambda: os.kill(place(made, "server-0").pid, signal.SIGSTOP))
    fields = {"checkpoint": {"every_samples": 3 * BATCH}, "workers": {"restarts": 1}}
    hung = on_ray(job, cluster, servers={"count": 1, "silence_s": 5.0}, **fields)
    done = train(hung, "run", observer=hangs).summary
    (warning,) = hangs.warnings_of_loss
    assert warning.startswith("server-0 has not answered for 5 s. The job goes on from its last checkpoint, at 96")
    assert (done["samples"], done["restarts"], len(made)) == (EPOCHS * NUM_ROWS, 1, 2)
    clean(job)
    assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))


@pytest.mark.slow
def test_the_next_mirror_is_not_where_a_server_did_not_answer(job: Job, made: list[RayServers]) -> None:
    """Its node may be out of reach, and Ray not know."""
    nodes: dict[str, str] = {}

    def hang() -> None:
        nodes.update({name: place(made, name).node for name in ("server-0", "server-0.1")})
        os.kill(place(made, "server-0").pid, signal.SIGSTOP)

    losses = Losses(at=12, act=hang)
    with labelled_cluster({"cpu": 3}, {"cpu": 4}) as cluster:
        servers = {"replicas": 1, "count": 1, "silence_s": 5.0}
        done = train(on_ray(job, cluster, servers=servers), "run", observer=losses).summary
    (warning,) = losses.warnings_of_loss
    assert warning.startswith("server-0 has not answered for 5 s. Its mirror server-0.1 takes over")
    assert "has a mirror again after" in losses.changes[-1]
    assert nodes["server-0"] != nodes["server-0.1"] == place(made, "server-0.2").node, "rather where the other is"
    assert (done["samples"], done["restarts"]) == (EPOCHS * NUM_ROWS, 0)
    clean(job)
    assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))
