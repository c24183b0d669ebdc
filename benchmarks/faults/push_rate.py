"""Pushes a second to a server with a mirror, against one without: what it costs that nothing can be lost.

python benchmarks/faults/push_rate.py --folder /tmp/push-rate --tries 3

One client pushes gradients of ROWS rows of 16 values, drawn from a table of KEYS rows that are there already, up to
eight at a time. The server and its mirror are processes of this machine, as `local` starts them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import heterps
from heterps.launch.run_servers import run_servers
from heterps.launch.running_servers import RunningServers
from heterps.ps.client.interface import JobClient
from heterps.ps.keys.dedup import Lookup, make_lookup
from heterps.training.protocol.stage_tables import job_tables

ROWS, KEYS, DIM, IN_FLIGHT = 11_500, 200_000, 16, 8


def make_job(replicas: int) -> heterps.Job:
    return heterps.Job.model_validate(
        {
            "name": "pushes",
            "model": {"factory": "ctr_dnn", "args": {"embedding_dim": DIM, "hidden": [8]}},
            "data": {"train": "none.parquet", "batch_size": 512, "columns": {"dense": ["a"], "slots": ["s", "t"]}},
            "launcher": "local",
            "cluster": {
                "resources": {"cpu": {"device": "cpu", "usd_per_hour": 1.0, "limit": 9}}, "server_resource": "cpu"
            },
            "servers": {"replicas": replicas},
        }
    )  # fmt: skip


def rates(folder: Path, replicas: int, seconds: float) -> tuple[float, float]:
    """Pushes a second, up to IN_FLIGHT at a time; and when each is waited for."""
    job = make_job(replicas)
    (folder / "job.yaml").write_text(job.model_dump_json(exclude_none=True))
    random = np.random.default_rng(0)
    batches = [
        (
            make_lookup(random.choice(KEYS, ROWS, replace=False).astype(np.uint64)),
            random.normal(size=(ROWS, DIM)).astype(np.float32),
        )
        for _ in range(16)
    ]
    with run_servers(job, folder / "job.yaml") as running:
        tables = job_tables(job)
        client, table = running.connect("worker", tables), tables.sparse[0].name
        for first in range(0, KEYS, ROWS):
            client.pull(table, make_lookup(np.arange(first, min(first + ROWS, KEYS), dtype=np.uint64))).result()
        wait_for_mirror(running)
        try:
            push_for(client, table, batches, 1.0, IN_FLIGHT)  # warm
            return push_for(client, table, batches, seconds, IN_FLIGHT), push_for(client, table, batches, seconds, 1)
        finally:
            client.close()


def push_for(
    client: JobClient, table: str, batches: Sequence[tuple[Lookup, np.ndarray]], seconds: float, in_flight: int
) -> float:
    began, num, under_way = time.perf_counter(), 0, []
    while time.perf_counter() - began < seconds:
        under_way.append(client.push(table, *batches[num % len(batches)]))
        client.flush()
        num += 1
        if len(under_way) >= in_flight:
            under_way.pop(0).result()
    for push in under_way:
        push.result()
    return num / (time.perf_counter() - began)


def wait_for_mirror(running: RunningServers) -> None:
    keeper = running.keeper()
    while keeper is not None and not keeper.is_complete:
        time.sleep(0.05)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/push-rate"))
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args(words)
    options.folder.mkdir(parents=True, exist_ok=True)
    found: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
    for _ in range(options.tries):
        for replicas in found:
            found[replicas].append(rates(options.folder, replicas, options.seconds))
    print("| pushes | without, 1/s | with a mirror, 1/s | ratio |\n|---|--:|--:|--:|")
    for at, name in enumerate((f"{IN_FLIGHT} at a time", "one at a time")):
        alone, mirrored = (statistics.median(each[at] for each in found[replicas]) for replicas in found)
        print(f"| {name} | {alone:,.0f} | {mirrored:,.0f} | {mirrored / alone:.2f} |")


if __name__ == "__main__":
    main()
