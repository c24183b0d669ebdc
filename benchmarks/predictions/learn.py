"""Does a run, or a trial, make the next prediction better? Real processes on this machine, nothing emulated.

python benchmarks/predictions/learn.py --folder /tmp/learning      some four minutes; prints two tables in Markdown
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from commands import heterps

JOB = """
name: learning
model: {{factory: ctr_dnn, args: {{embedding_dim: 8, hidden: [64]}}}}
data: {{train: data/train, batch_size: 1024}}
cluster: cluster.yaml
checkpoint: {{every_minutes: null}}
threads: {threads}
sync: {sync}
"""
CLUSTER = """
resources:
  cpu: {device: cpu, usd_per_hour: 0.04, limit: 3}
server_resource: cpu
"""
CASES = [("inline", 1, "bsp"), ("local", 1, "bsp"), ("local", 2, "asp")]
"""Launcher, threads of the process or workers, and policy."""


def learn(folder: Path, launcher: str, count: int, sync: str) -> list[dict[str, Any]]:
    """Run a job twice by a profile of its layers alone; the first run corrects it. Summaries of both."""
    (folder / "job.yaml").write_text(JOB.format(threads=count, sync=sync))
    shutil.copy(folder / "profile.json", folder / "learned.json")
    words = ["--launcher", launcher, "--profile", "learned.json", "--json"]
    return [_train(folder, *words, *more) for more in (["--learn"], [])]


def plan_twice(folder: Path, floor: float, seconds: float) -> list[dict[str, Any]]:
    """Run plans by the profile of the layers, and by the one that trials of plans corrected. Summaries of both."""
    (folder / "job.yaml").write_text(JOB.format(threads=1, sync="asp"))
    asked = ["--throughput", floor, "--samples", 1e8]
    trials = ["--measure", "job.yaml", "--launcher", "local", "--trials", 3, "--trial-seconds", seconds]
    heterps(folder, "plan", "profile.json", "cluster.yaml", *asked, *trials, "--profile-out", "measured.json")
    summaries = []
    for profile in ("profile.json", "measured.json"):
        heterps(folder, "plan", profile, "cluster.yaml", *asked, "--out", "plan.json")
        words = ["--plan", "plan.json", "--launcher", "local", "--profile", profile, "--json"]
        summaries.append(_train(folder, *words))
    return summaries


def _train(folder: Path, *words: object) -> dict[str, Any]:
    shutil.rmtree(folder / "run", ignore_errors=True)
    summary: dict[str, Any] = json.loads(heterps(folder, "train", "job.yaml", "--run", "run", *words))
    return summary


def _cells(predicted: float, measured: float) -> str:
    return f"{predicted:,.0f} | {measured:,.0f} | {predicted / measured - 1:+.1%}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for data, profiles and runs")
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--floor", type=float, default=20_000, help="samples a second that plans are asked for")
    parser.add_argument("--trial-seconds", type=float, default=5.0)
    asked = parser.parse_args(words)
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "data").exists():
        heterps(folder, "data", "synth", "data", "--rows", asked.rows, "--test-rows", 0)
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "job.yaml").write_text(JOB.format(threads=1, sync="asp"))
    if not (folder / "profile.json").exists():
        heterps(folder, "profile", "job.yaml", "--resources", "cpu", "--units", "parts", "--out", "profile.json")
    print("| launcher | units | policy | predicted | measured | error | after `--learn` | measured | error |")
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|")
    for launcher, count, sync in CASES:
        both = learn(folder, launcher, count, sync)
        cells = " | ".join(_cells(one["predicted_throughput"], one["measured_throughput"]) for one in both)
        print(f"| {launcher} | {count} | {sync} | {cells} |", flush=True)
    before, after = plan_twice(folder, asked.floor, asked.trial_seconds)
    print("\n| plan from | promised | measured | error |")
    print("|---|---:|---:|---:|")
    for title, one in (("the profile", before), ("`plan --measure`", after)):
        print(f"| {title} | {_cells(one['plan']['throughput'], one['measured_throughput'])} |")


if __name__ == "__main__":
    main()
