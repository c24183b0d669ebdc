"""Workers on Ray that hang, or are away for long: the coordinator replaces them, and neighbours wait for that."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
from ends import assert_same_tables
from ray_cluster import add_node, staged_job
from test_ray import Recorded, Watcher, cluster, job_file, recorded, undisturbed

from heterps.checkpoint import load_latest
from heterps.launch import train

__all__ = ["cluster", "job_file", "recorded"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning:ray")]


def test_a_worker_that_hangs_is_replaced_on_another_node(
    cluster: Any, job_file: Path, recorded: type[Recorded]
) -> None:
    """Its own may be out of reach, and Ray not know."""
    nodes = [add_node(cluster[0], {"doomed": 1}) for _ in range(2)]
    hung: list[str] = []

    def hang() -> None:
        if not hung:
            place = recorded.last.places["worker-2.0"]
            hung.append(place["node"])
            os.kill(place["pid"], signal.SIGSTOP)

    watcher = Watcher(at=10, act=hang)
    workers = {"deadline_s": 4.0}
    job = staged_job(job_file, ["cpu", "doomed"], [2], cluster[0].address, workers=workers)
    try:
        done = train(job, "ray", observer=watcher).summary
    finally:
        for node in nodes:
            cluster[0].remove_node(node)
    (lost,) = [warning for warning in watcher.warnings if "is replaced" in warning]
    assert lost.startswith("the coordinator has waited 4 s for worker-2.0")
    assert recorded.last.places["worker-2.0"]["node"] in {node.node_id for node in nodes} - {*hung}
    assert (done["samples"], done["restarts"], done["recoveries"]) == (320, 0, 1)
    undisturbed(job)
    assert_same_tables(load_latest("ray/checkpoints"), load_latest("whole/checkpoints"))


def test_neighbours_wait_for_a_worker_that_is_back_only_after_their_deadline(
    cluster: Any, job_file: Path, recorded: type[Recorded]
) -> None:
    """Its messages may be under way to the process that died: these are given up, and nobody ends because of them."""
    killed: list[int] = []

    def kill() -> None:
        pid = recorded.last.places["worker-2.0"]["pid"]
        if len(killed) < 2 and pid not in killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    watcher = Watcher(at=10, act=kill)  # again when it is back, and then it is started after a while only
    workers = {"deadline_s": 2.0, "backoff_s": 10.0}
    job = staged_job(job_file, ["cpu", "big"], [2], cluster[0].address, workers=workers)
    done = train(job, "ray", observer=watcher).summary
    lost = [warning for warning in watcher.warnings if "is replaced" in warning]
    assert [warning.split()[0] for warning in lost] == ["worker-2.0"] * 2
    assert (done["samples"], done["restarts"], done["recoveries"]) == (320, 0, 2)
    undisturbed(job)
    assert_same_tables(load_latest("ray/checkpoints"), load_latest("whole/checkpoints"))
