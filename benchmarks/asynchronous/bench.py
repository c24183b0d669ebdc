"""What asynchronous training costs in AUC: workers, lanes, batches and policies beside one process, on real processes.

python benchmarks/asynchronous/bench.py run --folder /tmp/asynchronous --rounds 1     adds to results.jsonl
python benchmarks/asynchronous/bench.py table --folder /tmp/asynchronous              all results so far
python benchmarks/asynchronous/bench.py models --folder /tmp/asynchronous             other models, in one process

A round trains every case once, those of one data set and batch size one after another.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from commands import heterps

JOB = """
name: ctr
model: {{factory: ctr_dnn, args: {{embedding_dim: 16, hidden: [512, 256, 128]}}}}
data: {{train: data-{seed}/train, test: data-{seed}/test, batch_size: {batch_size}}}
optimizers:
  sparse: {{kind: adagrad, lr: 0.05, sample_gradient: {start}}}
  dense: {{kind: adam, lr: 0.001}}
workers: {{lanes: {lanes}}}
seed: {job_seed}
"""


MODELS = {"ctr_dnn": "click", "match_net": "match", "nce": "words"}
EXAMPLES = Path(__file__).parents[2] / "examples"


class Case(NamedTuple):
    """One way to train: `start` is the sample_gradient from which Adagrad's rows start, null for 0."""

    launcher: str
    sync: str
    workers: int
    lanes: int | None = None
    start: str = "null"


CASES = [
    Case("inline", "bsp", 2),
    Case("local", "bsp", 2),
    Case("local", "asp", 2),
    Case("local", "ssp:3", 2),
    Case("local", "dssp:3:12", 2),
    Case("local", "asp", 2, lanes=4),
    Case("local", "asp", 4),
    Case("inline", "bsp", 2, start="0.3"),
    Case("local", "asp", 2, start="0.3"),
    Case("local", "asp", 2, lanes=4, start="0.3"),
]


def run(folder: Path, rows: int, seeds: Sequence[int], batch_sizes: Sequence[int], rounds: int) -> None:
    """Train every case `rounds` times, each with another seed of initial values and order."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        if not (folder / f"data-{seed}").exists():
            heterps(folder, "data", "synth", f"data-{seed}", "--rows", rows, "--test-rows", rows // 10, "--seed", seed)
    for number in range(rounds):
        for seed in seeds:
            for batch_size in batch_sizes:
                for case in CASES:
                    line = _train(folder, case, seed, batch_size, number)
                    with (folder / "results.jsonl").open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    print(json.dumps(line), flush=True)


def _train(folder: Path, case: Case, seed: int, batch_size: int, number: int) -> dict[str, Any]:
    lanes = case.lanes or "null"
    job = JOB.format(seed=seed, batch_size=batch_size, start=case.start, lanes=lanes, job_seed=number)
    (folder / "job.yaml").write_text(job)
    words = ["--launcher", case.launcher, "--sync", case.sync]
    words += ["--workers", str(case.workers)] if case.launcher == "local" else []
    name = f"run-{len(list(folder.glob('run-*')))}"
    summary = json.loads(heterps(folder, "train", "job.yaml", "--run", name, "--json", *words))
    told = {"auc": summary["auc"], "staleness": summary.get("staleness") or 0.0}
    told |= {"samples_per_s": summary["measured_throughput"]}
    return {**case._asdict(), "data": seed, "batch_size": batch_size, "seed": number, **told}


def table(folder: Path) -> None:
    """Print a line for each case, data set and batch size: the median AUC, and how far it is from one process."""
    lines = [json.loads(text) for text in (folder / "results.jsonl").read_text().splitlines()]
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        case = Case(*(line[name] for name in Case._fields))
        found.setdefault((line["data"], line["batch_size"], case), []).append(line)
    print("| data | batch | training | sample_gradient | AUC | against one process | staleness | samples/s | runs |")
    print("|--:|--:|---|---|--:|--:|--:|--:|--:|")
    for (data, batch_size, case), runs in found.items():
        auc = statistics.median(line["auc"] for line in runs)
        alone = found.get((data, batch_size, CASES[0]._replace(start=case.start)), [])
        behind = auc - statistics.median(line["auc"] for line in alone) if alone and case.launcher != "inline" else None
        stale = statistics.median(line["staleness"] for line in runs)
        speed = statistics.median(line["samples_per_s"] for line in runs)
        lanes = f", {case.lanes} lanes" if case.lanes else ""
        name = "one process" if case.launcher == "inline" else f"{case.sync}, {case.workers} workers{lanes}"
        start = "0" if case.start == "null" else case.start
        far = "" if behind is None else f"{behind:+.4f}"
        figures = f"{auc:.4f} | {far} | {stale:.2f} | {speed:,.0f} | {len(runs)}"
        print(f"| {data} | {batch_size:,} | {name} | {start} | {figures} |")


def models(folder: Path, rows: int) -> None:
    """Train models of other kinds in one process, and print what the start of rows does to each."""
    folder.mkdir(parents=True, exist_ok=True)
    for model, task in MODELS.items():
        if not (folder / task).exists():
            heterps(folder, "data", "synth", task, "--task", task, "--rows", rows, "--test-rows", rows // 10)
        job = yaml.safe_load((EXAMPLES / f"{model}.yaml").read_text())
        job["data"] |= {"train": f"{task}/train", "test": f"{task}/test"}
        del job["cluster"]
        for start in (None, 0.3):
            job["optimizers"] = {"sparse": {"kind": "adagrad", "lr": 0.05, "sample_gradient": start}}
            (folder / "model.yaml").write_text(yaml.safe_dump(job))
            name = f"model-{len(list(folder.glob('model-*')))}"
            summary = json.loads(heterps(folder, "train", "model.yaml", "--run", name, "--json"))
            print(f"| {model} | {start or 0} | {summary['auc']:.4f} |", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table", "models"])
    parser.add_argument("--folder", type=Path, required=True, help="for data, runs and results.jsonl")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 7], help="of the data")
    parser.add_argument("--batch-sizes", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args(words)
    if asked.what == "table":
        table(asked.folder)
    elif asked.what == "models":
        models(asked.folder, asked.rows)
    else:
        run(asked.folder, asked.rows, asked.seeds, asked.batch_sizes, asked.rounds)


if __name__ == "__main__":
    main()
