"""Nodes of a real Ray that are drained while a job runs on them: who is there leaves, and that is no failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from ends import assert_same_tables
from ray_cluster import add_node, labelled_cluster, staged_job, wait_gone
from test_ray import Recorded, job_file, recorded, undisturbed
from test_ray_servers import EPOCHS, NUM_ROWS, Losses, changed, job, made, on_ray, place
from test_ray_servers import clean as clean_servers

from heterps.checkpoint import load_latest
from heterps.config import Job
from heterps.launch import train
from heterps.launch.ray.nodes import own_node
from heterps.launch.ray.servers import RayServers

__all__ = ["job", "job_file", "made", "recorded"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning:ray")]


def drain(address: str, node: str) -> None:
    """As a site does that is told of it by a cloud."""
    ray = Path(sys.executable).parent / "ray"
    words = [
        f"--address={address}", f"--node-id={node}", "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot",
        "--deadline-remaining-seconds=120",
    ]  # fmt: skip
    subprocess.run([ray, "drain-node", *words], check=True, timeout=60, capture_output=True, env=os.environ)


class Slow(Losses):
    """Slow until somebody is back."""

    def stepped(self, *args: Any) -> None:
        self.changes += ["has a mirror again"] if any("is back after" in change for change in self.changes) else []
        super().stepped(*args)


def test_a_worker_whose_node_is_drained_goes_elsewhere_and_that_is_no_failure(
    job_file: Path, recorded: type[Recorded]
) -> None:
    with labelled_cluster({"cpu": 4}, {"doomed": 1}) as (cluster, _):
        add_node(cluster, {"doomed": 1})
        left: list[str] = []

        def leave() -> None:
            left.append(recorded.last.actors["worker-2.0"].place.node)
            drain(cluster.address, left[0])

        watcher = Slow(at=6, act=leave)
        workers = {"replacements": 1, "backoff_s": 1000.0}
        job = staged_job(job_file, ["cpu", "doomed"], [2], cluster.address, workers=workers)
        done = train(job, "ray", observer=watcher).summary
        (warning,) = watcher.warnings_of_loss
        assert warning.startswith("worker-2.0 (process ")
        assert "has left, because its node is being drained. It is replaced" in warning
        assert any("worker-2.0 is back after" in change for change in watcher.changes)
        assert recorded.last.places["worker-2.0"]["node"] != left[0]
        assert (done["samples"], done["restarts"], done["recoveries"]) == (320, 0, 1)
        undisturbed(job)
        assert_same_tables(load_latest("ray/checkpoints"), load_latest("whole/checkpoints"))
        wait_gone(recorded.last.pids)


@pytest.mark.parametrize("victim", ["server-0", "server-0.1"])
def test_a_server_or_mirror_whose_node_is_drained_goes_elsewhere(job: Job, made: list[RayServers], victim: str) -> None:
    with labelled_cluster({"head": 1}, {"cpu": 3}, {"cpu": 3}) as (cluster, _):  # the command is with the head
        add_node(cluster, {"cpu": 3})
        left: list[str] = []

        def leave() -> None:
            left.append(place(made, victim).node)
            drain(cluster.address, left[0])

        losses = Losses(at=12, act=leave)
        done = train(on_ray(job, (cluster, {})), "run", observer=losses).summary
        assert any(
            f"{victim} leaves, because its process was told to end, or its machine" in text for text in losses.warnings
        )
        assert "has a mirror again after" in "".join(losses.changes)
        assert place(made, "server-0.2").node != left[0]
        assert (done["samples"], done["restarts"]) == (EPOCHS * NUM_ROWS, 0)
        clean_servers(job)
        assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))


def test_a_server_without_a_mirror_is_saved_and_the_job_goes_on_with_another_elsewhere(
    job: Job, made: list[RayServers]
) -> None:
    with labelled_cluster({"head": 1}, {"cpu": 3}) as (cluster, _):
        left: list[str] = []

        def leave() -> None:
            left.append(place(made, "server-0").node)
            drain(cluster.address, left[0])
            add_node(cluster, {"cpu": 3})

        losses = Losses(at=12, act=leave)
        job = changed(on_ray(job, (cluster, {})), servers={"count": 1})
        done = train(job, "run", observer=losses).summary
        assert any("server-0 has to leave, because" in text for text in losses.warnings)
        assert len(made) == 2, "it went on with other processes, once"
        assert place(made, "server-0").node != left[0]
        assert (done["status"], done["samples"]) == ("completed", EPOCHS * NUM_ROWS)
        clean_servers(job)
        assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))


def test_a_run_whose_own_node_is_drained_saves_and_ends(job: Job) -> None:
    with labelled_cluster({"head": 1}, {"cpu": 4}) as (cluster, _):
        losses = Losses(at=12, act=lambda: drain(cluster.address, own_node()))
        done = train(on_ray(job, (cluster, {})), "run", observer=losses).summary
        assert any("the node of this process is being drained" in text for text in losses.warnings)
        assert done["status"] == "stopped by SIGTERM"
        assert load_latest("run/checkpoints").samples == done["samples"] < EPOCHS * NUM_ROWS
