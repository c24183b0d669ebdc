"""What does a plan on spot units cost when they are taken back as they really were?

    git clone https://github.com/skypilot-org/spot-traces
    python benchmarks/spot/run.py --traces spot-traces [--seeds 200]

Prints how V100s came and went in the public traces of "Can't Be Late" (NSDI 2024), on which AWAY_S of
heterps.sim.spot_traces rests; then one plan over generated traces and over the public ones of 16 units. Without
--traces only over generated ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import groupby, pairwise
from pathlib import Path
from statistics import mean, median

import numpy as np

from heterps import plan
from heterps.config import Cluster
from heterps.planning.plan import Plan
from heterps.profiling.profile import load_profile
from heterps.sim.spot import SpotRun, play, spot_units
from heterps.sim.spot_traces import from_second, generated, read_trace

PROFILE = Path(__file__).parents[1] / "profiles" / "two_emb.json"
FLOOR, SAMPLES = 1e6, 5e10
CLUSTER = {
    "resources": {
        "cpu": {"device": "cpu", "usd_per_hour": 0.085, "limit": 480, "memory_gb": 4, "port_gbps": 10, "startup_s": 60},
        "v100": {
            "device": "cuda", "usd_per_hour": 3.06, "limit": 16, "memory_gb": 16, "port_gbps": 10, "startup_s": 180,
            "spot": {"usd_per_hour": 0.92, "limit": 16, "interruptions_per_hour": 0.2},
        },
    },
    "server_resource": "cpu",
}  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--traces", type=Path, help="a clone of skypilot-org/spot-traces")
    options.add_argument("--seeds", type=int, default=200)
    options.add_argument("--sync", help="the policy of the job, which decides what an interruption costs; none: 375 s")
    given = options.parse_args()
    public = sorted(given.traces.glob("availability/16-node/*/*_v100_1.json")) if given.traces else []
    if given.traces:
        print("| zone | units | all there | hours away, mean | hours there, mean | share of units that go at once |")
        print("|---|---:|---:|---:|---:|---:|")
        single = sorted(given.traces.glob("availability/1-node/aws-02-15-2023/*.json"))
        away = [describe(path) for path in [*single, *public]][: len(single)]
        print(f"\nHours away: {median(away):.2f}, the median over the {len(away)} zones of single units.\n")
    cluster = Cluster.model_validate(CLUSTER)
    made = plan(load_profile(PROFILE), cluster, throughput=FLOOR, samples=SAMPLES, sync=given.sync)
    print(f"Plan: {made.rented}, predicted {made.hours:.1f} hours and {made.usd:.2f} USD.\n")
    print("| trace | hours | USD | 5 % | 95 % | over the plan | interruptions | on demand, unit hours |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    units = spot_units(made, cluster)
    for word, together in (("independent", False), ("generated", True)):
        traces = (generated(units, cluster, seed, together=together) for seed in range(given.seeds))
        report(word, made, [play(made, cluster, trace) for trace in traces])
    for path in public:
        rows = read_trace(path, units)
        starts = np.random.default_rng(0).uniform(0, rows[-1].time_s - made.hours * 3600, given.seeds)
        report(path.stem, made, [play(made, cluster, from_second(rows, float(start))) for start in starts])


def describe(path: Path) -> float:
    """Print how a public trace comes and goes; return the mean hours during which not all units were there."""
    trace = json.loads(path.read_text())
    gap_h, units = trace["metadata"]["gap_seconds"] / 3600, trace["data"]
    most = max(units)
    spells = [(whole, gap_h * len(list(some))) for whole, some in groupby(units, lambda count: count == most)]
    away = mean(hours for whole, hours in spells if not whole)
    there = mean(hours for whole, hours in spells if whole)
    falls = mean((before - after) / before for before, after in pairwise(units) if after < before)
    all_there = sum(count == most for count in units) / len(units)
    print(f"| {path.stem.split('_')[0]} | {most} | {all_there:.0%} | {away:.2f} | {there:.2f} | {falls:.0%} |")
    return away


def report(name: str, made: Plan, runs: Iterable[SpotRun]) -> None:
    """Print the mean and the spread over runs of one plan."""
    runs = list(runs)
    paid = [run.usd for run in runs]
    low, high = np.quantile(paid, (0.05, 0.95))
    print(
        f"| {name} | {mean(run.hours for run in runs):.1f} | {mean(paid):.2f} | {low:.2f} | {high:.2f} "
        f"| {mean(paid) / made.usd - 1:+.1%} | {mean(run.interruptions for run in runs):.1f} "
        f"| {mean(run.replaced_hours for run in runs):.1f} |"
    )


if __name__ == "__main__":
    main()
