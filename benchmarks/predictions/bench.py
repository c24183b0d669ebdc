"""Do predictions hold? Predicted intervals against runs of real processes on this machine, nothing emulated.

python benchmarks/predictions/bench.py run --folder /tmp/predictions      two profiles, 16 runs and `make demo`; a table
python benchmarks/predictions/bench.py run --folder /tmp/predictions --models small --cases local-2-asp local-1+1-bsp
python benchmarks/predictions/bench.py table --folder /tmp/predictions    all results so far
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from commands import heterps

MODELS = {
    "small": {"embedding_dim": 8, "hidden": [32]},
    "large": {"embedding_dim": 16, "hidden": [512, 256, 128]},
}
EPOCHS = {"small": 4, "large": 1}
"""A run lasts for some seconds: of the small model an epoch takes less than one."""
JOB = """
name: {name}
model: {{factory: ctr_dnn, args: {args}}}
data: {{train: data/train, batch_size: {batch_size}, epochs: {epochs}}}
threads: {threads}
"""
DEMO, DEMO_ROWS = "demo", 2
"""The model of `make demo`, which has as many times the rows of the others."""
TABLE = [("inline", threads, "bsp") for threads in ("1", "2")]
TABLE += [("local", workers, sync) for workers in ("1", "2") for sync in ("bsp", "asp", "ssp:3")]
CASES = [*TABLE, *(("local", "1+1", sync) for sync in ("bsp", "asp", "ssp:3"))]
CASES += [("ray", workers, sync) for workers in ("1", "1+1") for sync in ("bsp", "asp")]
"""Launcher, threads of the process or workers of each stage, and policy. 1+1: embeddings in a stage of their own.
Those of TABLE are run unless others are asked for."""


def run(folder: Path, model: str, rows: int, batch_size: int, epochs: int, cases: Sequence[str]) -> None:
    """Profile the model once, run the cases, and add a line for each to results.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "data").exists():
        heterps(folder, "data", "synth", "data", "--rows", rows, "--test-rows", 0)
    profile = folder / f"{model}.json"
    _write_job(folder, model, 2, batch_size, epochs)
    if not profile.exists():
        heterps(folder, "profile", f"{model}.yaml", "--resources", "cpu", "--launcher", "local", "--out", profile.name)
    for launcher, count, sync in CASES:
        is_wanted = f"{launcher}-{count}-{sync}" in cases if cases else (launcher, count, sync) in TABLE
        if not is_wanted:
            continue
        _write_job(folder, model, 1 if "+" in count else int(count), batch_size, epochs)
        words = ["--launcher", launcher, "--sync", sync]
        words += ["--profile", profile.name] if launcher != "inline" else []  # an inline run makes its own
        words += ["--plan", _write_plan(folder, profile, count)] if "+" in count else []
        name = next(name for n in itertools.count(1) if not (folder / (name := f"{model}-{n}")).exists())
        summary = json.loads(heterps(folder, "train", f"{model}.yaml", "--run", name, "--json", *words))
        _keep(folder, {"model": model, "launcher": launcher, "count": count, "sync": sync}, summary)


def demo(folder: Path, rows: int) -> None:
    """Run `make demo` in the folder, with data and a profile of its own, and add a line for its training."""
    repository = Path(__file__).parents[2]
    (folder / DEMO).mkdir(parents=True, exist_ok=True)
    if not (folder / DEMO / "examples").exists():
        (folder / DEMO / "examples").symlink_to(repository / "examples")
    command = [sys.executable, "examples/demo.py", str(DEMO_ROWS * rows)]
    subprocess.run(command, cwd=folder / DEMO, stdout=subprocess.DEVNULL, check=True)
    newest = max((folder / DEMO / "runs").glob("*/summary.json"), key=lambda path: path.stat().st_mtime)
    summary = json.loads(newest.read_text())
    count = str(json.loads((newest.parent / "plan.json").read_text())["stages"][0]["count"])
    _keep(folder, {"model": DEMO, "launcher": "inline", "count": count, "sync": "bsp"}, summary)


def _keep(folder: Path, case: dict[str, Any], summary: dict[str, Any]) -> None:
    """Add a line to results.jsonl, and print it as a row."""
    line = case | {key: value for key, value in summary.items() if key.startswith(("predicted_", "measured_"))}
    with (folder / "results.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(_row(line), flush=True)


def table(folder: Path) -> None:
    """Print all results as a table in Markdown, and how far off they are: the median, the worst, and those inside."""
    lines = [json.loads(text) for text in (folder / "results.jsonl").read_text().splitlines()]
    print("| model | launcher | units | policy | predicted | interval | measured | error | inside |")
    print("|---|---|---:|---|---:|---:|---:|---:|---|")
    for line in lines:
        print(_row(line))
    errors = [abs(_error(line)) for line in lines]
    inside = sum(_is_inside(line) for line in lines)
    print(
        f"\nMedian error {statistics.median(errors):.1%}, worst {max(errors):.1%}; "
        f"{inside} of {len(lines)} runs ({inside / len(lines):.0%}) inside their interval."
    )


def _row(line: dict[str, Any]) -> str:
    low, expected, high = (line[f"predicted_throughput{end}"] for end in ("_low", "", "_high"))
    inside = "yes" if _is_inside(line) else "no"
    return (
        f"| {line['model']} | {line['launcher']} | {line['count']} | {line['sync']} | {expected:,.0f} | "
        f"{low:,.0f}-{high:,.0f} | {line['measured_throughput']:,.0f} | {_error(line):+.1%} | {inside} |"
    )


def _error(line: dict[str, Any]) -> float:
    """Predicted over measured, less one."""
    return float(line["predicted_throughput"] / line["measured_throughput"] - 1)


def _is_inside(line: dict[str, Any]) -> bool:
    return bool(line["predicted_throughput_low"] <= line["measured_throughput"] <= line["predicted_throughput_high"])


def _write_job(folder: Path, model: str, threads: int, batch_size: int, epochs: int) -> None:
    args = json.dumps(MODELS[model])
    text = JOB.format(name=model, args=args, threads=threads, batch_size=batch_size, epochs=epochs)
    (folder / f"{model}.yaml").write_text(text)


def _write_plan(folder: Path, profile: Path, counts: str) -> str:
    """Write a plan of two stages with so many workers and a server; it promises nothing."""
    last = len(json.loads(profile.read_text())["layers"]) - 1
    layers = [(0, 0), (1, last)]
    stages = [
        {"first": first, "last": last, "resource": "cpu", "count": int(count)}
        for (first, last), count in zip(layers, counts.split("+"), strict=True)
    ]
    plan = {"method": "by hand", "stages": stages, "servers": {"resource": "cpu", "count": 1}, "bottleneck": ""}
    (folder / "plan.json").write_text(json.dumps(plan | {"throughput": 0, "hours": 0, "usd": 0}))
    return "plan.json"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--folder", type=Path, required=True, help="for data, profiles, runs and results.jsonl")
    names = [*MODELS, DEMO]
    parser.add_argument("--models", nargs="*", choices=names, default=names)
    parser.add_argument("--cases", nargs="*", default=[], help="such as local-1+1-asp; by default those of the table")
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, help="of each run; by default 4 of the small model and 1 of the large")
    asked = parser.parse_args(words)
    folder = asked.folder.resolve()
    for model in asked.models if asked.what == "run" else ():
        if model == DEMO:
            demo(folder, asked.rows)
        else:
            run(folder, model, asked.rows, asked.batch_size, asked.epochs or EPOCHS[model], asked.cases)
    table(folder)


if __name__ == "__main__":
    main()
