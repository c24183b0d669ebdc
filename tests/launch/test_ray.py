"""The Ray launcher, on a real cluster of two nodes on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")
from ends import assert_same_tables
from followers import watch
from ray_cluster import add_node, labelled_cluster, losses, staged_job, wait_gone
from tiny import JOB, write_tiny

import heterps.launch.ray as launcher
from heterps.checkpoint import load_latest
from heterps.config import Job
from heterps.errors import ConfigError, PeerLost
from heterps.launch import train
from heterps.launch.ray import servers as ray_servers
from heterps.launch.ray.fleet import RayFleet
from heterps.training.run.commands import Follow
from heterps.training.run.control import ask
from heterps.training.run.observer import Observer

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning:ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Any, dict[str, str]]]:
    with labelled_cluster({"cpu": 4}, {"big": 2}) as made:
        yield made


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "train.parquet", 320)
    write_tiny(tmp_path / "test.parquet", 60)
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("metrics_every_samples: 64", "metrics_every_samples: 16"))
    return path


class RecordedServers(ray_servers.RayServers):
    last: RecordedServers

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        type(self).last = self


class Recorded(RayFleet):
    """Notes where its actors are: all of them by name, before they can work, since servers serve later."""

    last: Recorded

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        type(self).last = self
        self.places: dict[str, dict[str, Any]] = {}

    def start(self, workers: Any) -> None:
        super().start(workers)
        self._note(*(server.actor for server in RecordedServers.last._all.values()))

    def _run(self, name: str) -> None:
        super()._run(name)
        self._note(self._actors[name])

    def _note(self, *actors: Any) -> None:
        for actor in actors:
            with suppress(PeerLost):  # it was placed on a node that is gone
                self.places[actor.name] = actor.answer(actor._placed, 60.0, "starts")

    @property
    def pids(self) -> list[int]:
        return [place["pid"] for place in self.places.values()]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> type[Recorded]:
    monkeypatch.setattr(launcher, "RayFleet", Recorded)
    monkeypatch.setattr(ray_servers, "RayServers", RecordedServers)
    return Recorded


class Watcher(Observer):
    """Calls `act` once, at the given step, and remembers what it is told."""

    def __init__(self, at: int = 0, act: Callable[[], None] = lambda: None) -> None:
        self.steps, self.at, self.act = 0, at, act
        self.warnings: list[str] = []
        self.changes: list[str] = []

    def stepped(self, *_: Any) -> None:
        self.steps += 1
        if self.steps == self.at:
            self.act()

    def warned(self, message: str) -> None:
        self.warnings.append(message)
        if "goes on with the workers" in message:
            self.at = self.steps + 3

    def changed(self, what: str) -> None:
        self.changes.append(what)
        self.at = self.steps + 3


def inline_losses(job: Job) -> list[float]:
    fields = {**job.model_dump(), "plan": None, "launcher": "inline"}
    train(Job.model_validate(fields), "inline")
    return losses("inline")


def endless(job_file: Path, resources: list[str], address: str) -> Job:
    """A job that only ends because it is told to."""
    job = staged_job(job_file, resources, [2], address)
    return job.model_copy(update={"data": job.data.model_copy(update={"epochs": 100_000})})


def test_stages_run_on_the_nodes_with_their_labels_and_train_as_one_process(
    cluster: Any, job_file: Path, recorded: type[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has a label, features and validation as well, which mean the same here as in one process. And it is
    followed: every version equals the model of its moment.
    """
    columns = "columns: {labels: {label: mse}, dense: [a, b], slots: [s, t], features: {a: [log, standardise]}}"
    text = job_file.read_text().replace("columns: {dense: [a, b], slots: [s, t]}", columns)
    text = text.replace("  test: test.parquet\n", "  test: test.parquet\n  validation: {share: 0.2}\n")
    job_file.write_text(f"{text}validation: {{every_samples: 100}}\n")
    job = staged_job(job_file, ["cpu", "big"], [2], cluster[0].address)
    follower = watch(monkeypatch, "ray")
    asking = threading.Thread(target=lambda: ask(Path("ray"), Follow(0.001)))
    watcher = Watcher(at=1, act=asking.start)
    run = train(job, "ray", observer=watcher)
    asking.join()
    assert len(follower.versions) > 1
    follower.compare(load_latest("ray/checkpoints"))
    nodes = {name: place["node"] for name, place in recorded.last.places.items()}
    assert nodes == {"server-0": cluster[1]["cpu"], "worker-1.0": cluster[1]["cpu"], "worker-2.0": cluster[1]["big"]}
    assert losses("ray") == pytest.approx(inline_losses(job), rel=1e-6)
    expected = json.loads(Path("inline/summary.json").read_text())
    assert run.summary["validation"]["count"] == expected["validation"]["count"] > 1
    assert run.summary["validation"]["best"]["rmse"] == pytest.approx(expected["validation"]["best"]["rmse"], rel=1e-5)
    assert run.summary["rmse"] == pytest.approx(expected["rmse"], rel=1e-5)
    assert any("asks for no token" in warning for warning in watcher.warnings)
    wait_gone(recorded.last.pids)


OWN_SCRIPT = """
import sys

import numpy as np

import heterps
import heterps.launch.job
from heterps.config import Schema
from heterps.model.zoo.din import Din

SCHEMA = Schema(dense=("price",), slots=("user", "item", "history"), same_ids={"history": "item"})
CLUSTER = {"resources": {"cpu": {"device": "cpu", "usd_per_hour": 1.0, "limit": 4}}, "server_resource": "cpu"}


class Mine(Din):
    def __init__(self):
        super().__init__(SCHEMA, 4, "item", "history", 5, (6,), (8,), 0)


def run(name, **fields):
    random = np.random.default_rng(1)
    item = random.integers(0, 20, 240)
    data = {
        "price": random.normal(size=240), "user": random.integers(0, 9, 240), "item": item,
        "history": [random.integers(0, 20, length).tolist() for length in random.integers(0, 8, 240)],
        "click": item % 2,
    }
    roles = {"label": "click", "labels": {"click": "binary"}, "dense": ["price"], "slots": ["user", "item", "history"]}
    heterps.train(
        folder=name, model=Mine, data=data, test=data, batch_size=30, threads=1, metrics_every_samples=30,
        same_ids={"history": "item"}, cluster=CLUSTER, **roles, **fields
    )


if __name__ == "__main__":
    heterps.launch.job.QUICK_PROFILE_S = 0.0
    run("first")
    warm = {"start": "first", "optimizers": {"freeze": ["context", "attention.*"]}}
    run("inline", **warm)
    run("ray", launcher="ray", ray_address=sys.argv[1], **warm)
"""


@pytest.mark.slow
def test_a_sequence_model_of_a_script_starts_from_a_run_and_trains_as_in_one_process(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script defines a DIN, which begins with the rows and weights of another run, some of them frozen."""
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(OWN_SCRIPT)
    words = [sys.executable, "script.py", cluster[0].address]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert losses("ray") == pytest.approx(losses("inline"), rel=1e-6)
    first, ray = load_latest("first/checkpoints"), load_latest("ray/checkpoints")
    for name, values in first.dense.items():
        if name.startswith("model/"):
            assert np.array_equal(ray.dense[name], values) == ("attention" in name), name
    before, after = (snapshot.tables["context"].whole() for snapshot in (first, ray))
    assert dict(zip(after.keys.tolist(), after.values.tolist(), strict=True)) == dict(
        zip(before.keys.tolist(), before.values.tolist(), strict=True)
    )
    assert json.loads(Path("ray/summary.json").read_text())["start"]["model"].startswith("first/checkpoints/")


def test_a_label_that_no_node_has_is_named_with_the_command_that_gives_it(
    cluster: Any, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "PLACE_S", 1.0)
    job = staged_job(job_file, ["cpu", "v999"], [2], cluster[0].address)
    with pytest.raises(ConfigError, match=r"lacks 1 v999.*ray start .*--resources='\{\"v999\": 1\}'"):
        train(job, "ray")


@pytest.mark.slow
def test_a_worker_that_dies_before_its_first_word_is_started_again(
    cluster: Any, job_file: Path, recorded: type[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(recorded):
        def start(self, workers: Any) -> None:
            super().start(workers)
            os.kill(self.places["worker-2.0"]["pid"], signal.SIGKILL)

    monkeypatch.setattr(launcher, "RayFleet", Killed)
    job = staged_job(job_file, ["cpu", "big"], [2], cluster[0].address)
    watcher = Watcher()
    train(job, "ray", observer=watcher)
    assert any("worker-2.0" in warning and "started again" in warning for warning in watcher.warnings)
    assert losses("ray") == pytest.approx(inline_losses(job), rel=1e-6)
    wait_gone(Killed.last.pids)


@pytest.mark.slow
def test_a_node_that_dies_and_has_no_like_ends_the_job_with_the_worker_that_was_on_it_and_what_is_missing(
    cluster: Any, job_file: Path, recorded: type[Recorded]
) -> None:
    doomed = add_node(cluster[0], {"doomed": 1})
    job = endless(job_file, ["cpu", "doomed"], cluster[0].address)
    watcher = Watcher(at=5, act=lambda: cluster[0].remove_node(doomed, allow_graceful=False))
    with pytest.raises(PeerLost, match=r"worker-2\.0 .*(lacks|others hold) 1 doomed"):
        train(job, "ray", observer=watcher)
    assert watcher.steps >= 5
    assert any(re.match(r"worker-2\.0 \(process \d+ on Ray node ", warning) for warning in watcher.warnings)
    wait_gone(recorded.last.pids)


# --- losses ----------------------------------------------------------------------------------------------------------


def restarting(job_file: Path, resources: list[str], address: str, restarts: int = 2) -> Job:
    more = {"workers": {"restarts": restarts}, "checkpoint": {"every_samples": 96}}
    return staged_job(job_file, resources, [2], address, **more)


def undisturbed(job: Job) -> None:
    """The same job by the same plan on threads, in the folder `whole`."""
    fields = {**job.model_dump(), "launcher": "local", "ray_address": None, "workers": {"channel": "memory"}}
    train(Job.model_validate(fields), "whole")


def assert_replaced_and_whole(job: Job, watcher: Watcher, summary: dict[str, Any]) -> None:
    """The second worker was replaced while the first waited for it, and nobody went back."""
    (lost,) = [warning for warning in watcher.warnings if "is replaced" in warning]
    assert re.match(r"worker-2\.0 \(process \d+ on Ray node ", lost)
    assert [change for change in watcher.changes if change.startswith("worker-2.0 is back after ")]
    assert (summary["status"], summary["samples"]) == ("completed", 320)
    assert (summary["restarts"], summary["recoveries"]) == (0, 1)
    assert summary["repeated_samples"] <= 16
    undisturbed(job)
    assert_same_tables(load_latest("ray/checkpoints"), load_latest("whole/checkpoints"))


def test_a_worker_actor_that_is_killed_is_replaced_and_nobody_goes_back(
    cluster: Any, job_file: Path, recorded: type[Recorded]
) -> None:
    pids: list[int] = []

    def kill() -> None:
        if pids:
            return  # it was called for the worker that is back
        pids.extend(recorded.last.pids)
        os.kill(recorded.last.places["worker-2.0"]["pid"], signal.SIGKILL)

    watcher = Watcher(at=10, act=kill)
    job = restarting(job_file, ["cpu", "big"], cluster[0].address)
    done = train(job, "ray", observer=watcher)
    assert_replaced_and_whole(job, watcher, done.summary)
    assert recorded.last.places["worker-2.0"]["node"] == cluster[1]["big"]
    assert len({*pids, *recorded.last.pids}) == len(pids) + 1, "only that process was started again"
    wait_gone([*pids, *recorded.last.pids])


@pytest.mark.slow
def test_a_job_whose_server_is_killed_goes_on_by_itself_and_ends_as_if_it_had_not_been(
    cluster: Any, job_file: Path, recorded: type[Recorded]
) -> None:
    watcher = Watcher(at=10, act=lambda: os.kill(recorded.last.places["server-0"]["pid"], signal.SIGKILL))
    job = restarting(job_file, ["cpu", "big"], cluster[0].address)
    done = train(job, "ray", observer=watcher)
    (restart,) = [warning for warning in watcher.warnings if "restart" in warning]
    assert "server-0 (process " in restart
    assert restart.endswith("The job goes on from its last checkpoint, at 96 samples: restart 1 of 2")
    assert (done.summary["status"], done.summary["samples"], done.summary["restarts"]) == ("completed", 320, 1)
    undisturbed(job)
    assert_same_tables(load_latest("ray/checkpoints"), load_latest("whole/checkpoints"))
    wait_gone(recorded.last.pids)


@pytest.mark.slow
def test_a_job_whose_node_is_gone_goes_on_on_the_nodes_that_are_left(
    cluster: Any, job_file: Path, recorded: type[Recorded]
) -> None:
    nodes = {node.node_id: node for node in (add_node(cluster[0], {"doomed": 1}) for _ in range(2))}
    removed: list[str] = []

    def remove() -> None:
        if removed:
            return  # it was called for the worker that is back
        place = recorded.last.places["worker-2.0"]
        removed.append(place["node"])
        cluster[0].remove_node(nodes.pop(removed[0]), allow_graceful=False)
        wait_gone([place["pid"]])  # or the job, which is short, may end before

    watcher = Watcher(at=10, act=remove)
    job = restarting(job_file, ["cpu", "doomed"], cluster[0].address)
    try:
        done = train(job, "ray", observer=watcher)
    finally:
        for node in nodes.values():
            cluster[0].remove_node(node)
    assert_replaced_and_whole(job, watcher, done.summary)
    assert recorded.last.places["worker-2.0"]["node"] in nodes
    assert removed[0] not in nodes


@pytest.mark.slow
def test_a_node_for_which_there_is_no_other_ends_the_job_with_what_is_missing(
    cluster: Any, job_file: Path, recorded: type[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed = add_node(cluster[0], {"alone": 1})

    def remove() -> None:
        monkeypatch.setattr(launcher, "PLACE_S", 20.0)  # Ray takes a while to find out that a node is gone
        cluster[0].remove_node(doomed, allow_graceful=False)
        wait_gone([recorded.last.places["worker-2.0"]["pid"]])

    job = restarting(job_file, ["cpu", "alone"], cluster[0].address)
    lacks = r"worker-2\.0 .* It could not be replaced: .* (lacks|others hold) 1 alone"
    with pytest.raises(PeerLost, match=lacks):
        train(job, "ray", observer=Watcher(at=10, act=remove))
    wait_gone(recorded.last.pids)
