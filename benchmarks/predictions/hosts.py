"""Predicted against measured samples/s on hosts that are namespaces of this machine (tests/cluster/hosts.py), as root.

One worker on each of 1 to 4 hosts, and a server on the first, as Ray actors; links at 100 Mb/s, 1 Gb/s and unlimited.
The planner is told the ports, that all hosts share this machine's cores, and that one worker is on the server's host.
Half a minute to a minute for each of the 24 cases, and two for the profile, which --data keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "cluster"))
from commands import heterps
from hosts import Hosts, start_ray, why_not

from heterps.config import load_job
from heterps.data.generate import generate
from heterps.planning.local import ThisMachine, local_prediction, one_stage
from heterps.planning.plan import Plan, PlannedServers
from heterps.planning.prediction import TERMS
from heterps.profiling.profile import load_profile
from heterps.profiling.units import num_cores

GBPS = {"100mbit": 0.1, "1gbit": 1.0, "unlimited": None}
JOB = """
name: hosts
model: {{factory: ctr_dnn, args: {{embedding_dim: 16, hidden: [256, 128]}}}}
data: {{train: {data}/train, batch_size: 4096}}
checkpoint: {{every_minutes: null}}
profile: {data}/profile.json
threads: 1
sync: {sync}
cluster:
  resources:
    cpu: {{device: cpu, usd_per_hour: 0.04, limit: 8{port}}}
  server_resource: cpu
"""


def measure(hosts: Hosts, count: int, rate: str, sync: str, folder: Path) -> dict[str, Any]:
    """Train by a plan of `count` workers and a server; samples/s as predicted and as measured."""
    gbps = GBPS[rate]
    path = folder / "job.yaml"
    path.write_text(JOB.format(data=folder, sync=sync, port="" if gbps is None else f", port_gbps: {gbps}"))
    job = load_job(path)
    profile = load_profile(folder / "profile.json")
    stages = (one_stage(len(profile.layers), job.cluster, count),)
    here = ThisMachine(num_cores(), job.sync.in_rounds, has_ports=True, num_beside=1)
    predicted = local_prediction(profile, job.cluster, stages, count, here)
    plan = Plan(
        method="by hand", stages=stages, servers=PlannedServers(resource="cpu", count=1),
        throughput=0, hours=0, usd=0, bottleneck="",
    )  # fmt: skip
    plan.write(folder / "plan.json")
    for number in range(1, count + 1):
        hosts.limit(number, None if gbps is None else rate)
    run = folder / f"run-{count}-{rate}-{sync.replace(':', '')}"
    words = ["train", path, "--plan", folder / "plan.json", "--launcher", "ray", "--address", "auto", "--run", run]
    before = [hosts.num_bytes(number) for number in range(1, count + 1)]
    hosts.run(1, [sys.executable, "-m", "heterps", *words], timeout_s=220)
    sent = sum(hosts.num_bytes(n)[1] - before[n - 1][1] for n in range(1, count + 1))
    summary = json.loads((run / "summary.json").read_text())
    predicted = predicted.over(summary["samples"] / job.data.batch_size)
    expected, low, high = predicted.throughput(job.data.batch_size)
    return {
        "hosts": count,
        "link": rate,
        "sync": sync,
        "predicted": expected,
        "low": low,
        "high": high,
        "terms": {name: 1e3 * getattr(predicted, name) for name in TERMS},
        "measured": summary["samples_per_s"],
        "stages": summary["stages"],
        "sent_mb": sent / 1e6,
    }


def make_profile(folder: Path) -> None:
    """Profile the job on this machine, with real steps and short trials on local processes."""
    (folder / "job.yaml").write_text(JOB.format(data=folder, sync="bsp", port=""))
    heterps(folder, "profile", "job.yaml", "--resources", "cpu", "--launcher", "local", "--out", "profile.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="*", default=[1, 2, 3, 4])
    parser.add_argument("--links", nargs="*", default=list(GBPS), choices=list(GBPS))
    parser.add_argument("--sync", nargs="*", default=["bsp", "ssp:3"])
    parser.add_argument("--samples", type=int, default=120_000)
    parser.add_argument("--data", type=Path, help="keep data and profile here, for several calls")
    options = parser.parse_args()
    if reason := why_not():
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.data or Path(temporary)).resolve()
        if not (folder / "train").exists():
            generate(folder, options.samples, 1000, 0)
        os.chdir(folder)
        if not (folder / "profile.json").exists():
            make_profile(folder)
        heads = ["hosts", "link", "policy", "predicted samples/s", "interval", "measured", "error", "inside", "MB sent"]
        print(f"| {' | '.join([*heads, *(f'{name[:-2]}, ms' for name in TERMS)])} |")
        print("|---" * (len(heads) + len(TERMS)) + "|")
        rows = []
        for count in options.hosts:
            with Hosts(count) as hosts:
                start_ray(hosts, [{"cpu": 2}, *[{"cpu": 1}] * (count - 1)])
                for sync in options.sync:
                    for rate in options.links:
                        rows.append(measure(hosts, count, rate, sync, folder))
                        print(_row(rows[-1]), flush=True)
        errors, inside = [abs(_error(row)) for row in rows], sum(map(_is_inside, rows))
        print(
            f"\nMedian error {statistics.median(errors):.1%}, worst {max(errors):.1%}; {inside} of {len(rows)} runs "
            f"({inside / len(rows):.0%}) inside their interval."
        )


def _error(row: dict[str, Any]) -> float:
    """Predicted over measured, less one."""
    return float(row["predicted"] / row["measured"] - 1)


def _is_inside(row: dict[str, Any]) -> bool:
    return bool(row["low"] <= row["measured"] <= row["high"])


def _row(row: dict[str, Any]) -> str:
    error, inside = _error(row), "yes" if _is_inside(row) else "no"
    terms = " | ".join(f"{milliseconds:.1f}" for milliseconds in row["terms"].values())
    return (
        f"| {row['hosts']} | {row['link']} | {row['sync']} | {row['predicted']:,.0f} "
        f"| {row['low']:,.0f}-{row['high']:,.0f} | {row['measured']:,.0f} | {error:+.0%} | {inside} "
        f"| {row['sent_mb']:.0f} | {terms} |"
    )


if __name__ == "__main__":
    main()
