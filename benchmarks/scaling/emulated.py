"""Do plans of up to three stages and eight workers, on emulated units, do what the cost model predicts? See README.md.

python benchmarks/scaling/emulated.py                  # fourteen trials of 20 s; --seconds, --policies
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heterps.config import Job
from heterps.data.generate import generate
from heterps.launch.by_plan import throughput_in_rounds
from heterps.launch.trials import run_trial, trial_job
from heterps.model.build import build_model
from heterps.model.trace import trace
from heterps.planning.bill import bill
from heterps.planning.cost import Problem
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.profiling.job import profile_job
from heterps.profiling.profile import Profile

CLUSTER = {
    "resources": {
        "cpu": {"device": "cpu", "usd_per_hour": 0.04, "limit": 64},
        "v100": {"device": "cuda", "usd_per_hour": 2.42, "limit": 16},
    },
    "server_resource": "cpu",
}
EMULATED = (  # first layers and counts of stages on cpu, v100, cpu; servers
    ((0,), (1,), 1),
    ((0,), (4,), 1),
    ((0,), (8,), 2),
    ((0, 2), (2, 1), 1),
    ((0, 2), (6, 1), 2),
    ((0, 2, 6), (4, 1, 1), 2),
    ((0, 2, 6), (5, 1, 2), 2),
)


def job_of(folder: Path, batch_size: int, **more: Any) -> Job:
    return Job.model_validate(
        {
            "name": "scaling",
            "model": {"factory": "ctr_dnn", "args": {"embedding_dim": 16, "hidden": [512, 256, 128]}},
            "data": {"train": str(folder / "train"), "batch_size": batch_size},
            "checkpoint": {"every_minutes": None},
            "cluster": CLUSTER,
            "threads": 1,
            **more,
        }
    )


def plan_of(profile: Profile, job: Job, firsts: tuple[int, ...], counts: tuple[int, ...], servers: int) -> Plan:
    """With the bill that the cost model makes of it."""
    last = [first - 1 for first in firsts[1:]] + [len(profile.layers) - 1]
    stages = tuple(
        Stage(first=first, last=end, resource=("cpu", "v100")[number % 2], count=count)
        for number, (first, end, count) in enumerate(zip(firsts, last, counts, strict=True))
    )
    made = bill(Problem(profile, job.cluster, 1.0, 1e9), stages, servers)
    return Plan(
        method="given",
        stages=stages,
        servers=PlannedServers(resource="cpu", count=servers),
        throughput=made.throughput,
        hours=made.hours,
        usd=made.usd,
        bottleneck=made.bottleneck,
        batch_size=profile.batch_size,
    )


def emulated(
    folder: Path, batch_size: int, profile: Profile, policies: list[str], seconds: float
) -> list[dict[str, Any]]:
    """Each plan once a policy, for so many real seconds after a warm-up. In BSP a plan is also predicted in rounds."""
    print(f"{'plan':<34} sync {'predicted/s':>11} {'measured/s':>11}  error  in rounds  batches  bottleneck")
    profile.write(folder / "profile.json")
    more = {
        "launcher": "local",
        "emulation": {},
        "profile": str(folder / "profile.json"),
        "workers": {"channel": "ipc"},
    }
    rows = []
    for (firsts, counts, servers), sync in itertools.product(EMULATED, policies):
        job = job_of(folder, batch_size, sync=sync, **more)
        plan = plan_of(profile, job, firsts, counts, servers)
        trial = run_trial(trial_job(job), plan, seconds=seconds)
        in_rounds = throughput_in_rounds(job, plan)
        row = {
            "plan": " > ".join(f"{stage.count} {stage.resource}" for stage in plan.stages) + f", {servers} servers",
            "sync": sync,
            "predicted": plan.throughput,
            "measured": trial.throughput,
            "error": round(trial.throughput / plan.throughput - 1, 4),
            "error_in_rounds": round(trial.throughput / in_rounds - 1, 4) if in_rounds else None,
            "batches": trial.num_batches,
            "late": trial.late,
        }
        rows.append(row)
        rounds = "-" if in_rounds is None else f"{row['error_in_rounds']:.1%}"
        late = f"  (late {trial.late:.1%})" if trial.late > 0.01 else ""
        print(
            f"{row['plan']:<34} {sync:<4} {plan.throughput:>11,.0f} {trial.throughput:>11,.0f} {row['error']:>6.1%}"
            f" {rounds:>10}  {trial.num_batches:>7}  {plan.bottleneck}{late}",
            flush=True,
        )
    return rows


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=160_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of every plan, on this machine's clock")
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--policies", default="bsp,asp")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="scaling-") as temporary:
        folder = Path(temporary)
        generate(folder, rows=asked.rows, test_rows=1000)
        job = job_of(folder, asked.batch_size)
        layers = len(trace(build_model(job.model, job.data.columns, 0)).layers)
        print(f"{layers} layers; profiling", file=sys.stderr)
        profile = profile_job(job, ["cpu", "v100"], budget_s=6.0)
        emulated(folder, asked.batch_size, profile, asked.policies.split(","), asked.seconds)


if __name__ == "__main__":
    main()
