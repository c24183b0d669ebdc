"""What workers and servers as processes cost, and whether a plan does what was predicted. See README.md.

real      samples/s of inline on one thread, and of local with 1 and 2 workers, in turns; median of the rounds
emulated  plans of up to 3 stages and 8 workers: predicted against measured samples/s, in emulated seconds
ray       the same plan by local and by ray, in turns
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from heterps.config import Job
from heterps.data.generate import generate
from heterps.launch import train
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


def run(job: Job) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return train(job, Path(folder) / "run").summary


def in_turns(jobs: dict[str, Job], rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds):
        for name, job in jobs.items():
            found[name].append(run(job)["samples_per_s"])
            print(f"  round {number + 1}  {name:<28} {found[name][-1]:>10,.0f} samples/s", flush=True)
    return found


def show_ratios(found: dict[str, list[float]], first: str) -> list[dict[str, Any]]:
    """Medians, and the median over rounds of each against the first of the same round."""
    rows = []
    for name, rates in found.items():
        ratio = statistics.median(a / b for a, b in zip(rates, found[first], strict=True))
        rows.append({"name": name, "samples_per_s": round(statistics.median(rates)), "ratio": round(ratio, 3)})
        print(f"{name:<30} {statistics.median(rates):>10,.0f} samples/s   {ratio:6.2f} of {first}")
    return rows


def real(folder: Path, batch_size: int, rounds: int) -> list[dict[str, Any]]:
    local = {"launcher": "local"}
    jobs = {
        "inline, 1 thread": job_of(folder, batch_size),
        "local, 1 worker": job_of(folder, batch_size, **local),
        "local, 2 workers": job_of(folder, batch_size, **local | {"threads": 2}),
        "local, 2 workers, ssp:3": job_of(folder, batch_size, **local | {"threads": 2, "sync": "ssp:3"}),
        "local, 2 workers, all-reduce": job_of(
            folder, batch_size, **local | {"threads": 2, "workers": {"dense": "all_reduce"}}
        ),
    }
    return show_ratios(in_turns(jobs, rounds), "inline, 1 thread")


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


def on_ray(folder: Path, batch_size: int, rounds: int) -> list[dict[str, Any]]:
    jobs = {
        "local, 1 worker": job_of(folder, batch_size, launcher="local"),
        "ray, 1 worker": job_of(folder, batch_size, launcher="ray"),
    }
    return show_ratios(in_turns(jobs, rounds), "local, 1 worker")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["real", "emulated", "ray"])
    parser.add_argument("--rows", type=int, default=400_000, help="of the runs on real units")
    parser.add_argument("--seconds", type=float, default=20.0, help="of every emulated plan, on this machine's clock")
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--policies", default="bsp,asp")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    results["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    with tempfile.TemporaryDirectory(prefix="scaling-") as temporary:
        folder = Path(temporary)
        for name, rows in (("real", options.rows), ("small", 160_000)):
            generate(folder / name, rows=rows, test_rows=1000)
        if "real" in options.what:
            results["real"] = real(folder / "real", options.batch_size, options.rounds)
        if "emulated" in options.what:
            job = job_of(folder / "small", options.batch_size)
            layers = len(trace(build_model(job.model, job.data.columns, 0)).layers)
            print(f"{layers} layers; profiling", file=sys.stderr)
            profile = profile_job(job, ["cpu", "v100"], budget_s=6.0)
            policies = options.policies.split(",")
            results["emulated"] = emulated(folder / "small", options.batch_size, profile, policies, options.seconds)
        if "ray" in options.what:
            results["ray"] = on_ray(folder / "real", options.batch_size, options.rounds)
    options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
