"""A Ray cluster of several nodes on this machine, differently labelled, and a job for it."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heterps.config import Job, load_job
from heterps.model import build_model
from heterps.model.trace import trace
from heterps.planning.plan import Plan, PlannedServers, Stage

STORE_BYTES = 80 << 20
GONE_S = 30.0


@contextmanager
def labelled_cluster(*nodes: dict[str, int]) -> Iterator[tuple[Any, dict[str, str]]]:
    """A node for each set of labels, the first with the head; and which node, by Ray's name, has a label."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets need a short path
    Path("/tmp/ray").mkdir(exist_ok=True)  # where Ray notes the address of a cluster, whatever its folder
    cluster = Cluster()
    try:
        names = {}
        for labels in nodes:
            node = add_node(cluster, labels, temp_dir=folder)
            names |= dict.fromkeys(labels, node.node_id)
        yield cluster, names
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def add_node(cluster: Any, labels: dict[str, int], **more: Any) -> Any:
    return cluster.add_node(
        num_cpus=4, resources=labels, object_store_memory=STORE_BYTES, include_dashboard=False, **more
    )


def staged_job(job_file: Path, resources: list[str], cuts: list[int], address: str | None, **more: Any) -> Job:
    """The job in the file by a plan of one worker for each of `resources`, on the Ray cluster at `address`."""
    job = load_job(job_file)
    last = len(trace(build_model(job.model, job.data.columns, 0)).layers) - 1
    firsts, lasts = [0, *cuts], [*(cut - 1 for cut in cuts), last]
    stages = tuple(
        Stage(first=f, last=t, resource=name, count=1) for f, t, name in zip(firsts, lasts, resources, strict=True)
    )
    plan = Plan(
        method="test", stages=stages, servers=PlannedServers(resource="cpu", count=1),
        throughput=0, hours=0, usd=0, bottleneck="",
    )  # fmt: skip
    plan.write("plan.json")
    fields = job.model_dump()
    names = dict.fromkeys(["cpu", *resources])
    cluster = {
        "resources": {name: {"device": "cpu", "usd_per_hour": 1.0, "limit": 9} for name in names},
        "server_resource": "cpu",
    }
    return Job.model_validate(
        {**fields, "cluster": cluster, "plan": "plan.json", "launcher": "ray", "ray_address": address, **more}
    )


def losses(folder: str) -> list[float]:
    lines = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [line["log_loss"] if "log_loss" in line else line["loss"] for line in lines]


def wait_gone(pids: list[int]) -> None:
    """TimeoutError where one of these processes still runs after a while."""
    deadline = time.monotonic() + GONE_S
    while left := [pid for pid in pids if _runs(pid)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"still running: {left}")
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> set[int]:
    """Processes that descend from this one."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # gone meanwhile
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found
