"""What asynchronous training costs in AUC: workers, lanes, batches and policies beside one process and TensorFlow.

python benchmarks/asynchronous/bench.py run --folder /tmp/asynchronous --rounds 3     adds to results.jsonl
python benchmarks/asynchronous/bench.py table --folder /tmp/asynchronous              all results so far
python benchmarks/asynchronous/bench.py models --folder /tmp/asynchronous             other models, in one process

A round trains every case once, with a seed of initial values and order of its own; runs that are there are not made
again. With `--tensorflow PYTHON`, an interpreter that has tensorflow-cpu and tf-keras, TensorFlow takes its turns.
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
from typing import Any, NamedTuple

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from commands import heterps

JOB = """
name: ctr
model: {{factory: ctr_dnn, args: {{embedding_dim: 16, hidden: [512, 256, 128]}}}}
data: {{train: {data}/train, test: {data}/test, batch_size: {batch_size}}}
optimizers:
  sparse: {{kind: adagrad, lr: 0.05, sample_gradient: {start}}}
  dense: {{kind: adam, lr: 0.001}}
workers: {{lanes: {lanes}}}
seed: {job_seed}
"""


MODELS = {"ctr_dnn": "click", "match_net": "match", "nce": "words"}
EXAMPLES = Path(__file__).parents[2] / "examples"


DATA = {
    "data-0": ("--seed", 0),
    "data-7": ("--seed", 7),
    "data-0-1.3": ("--seed", 0, "--skew", 1.3),
}
"""Data sets, and the options of `data synth` that make each."""


class Case(NamedTuple):
    """One way to train: `start` is the sample_gradient from which Adagrad's rows start, null for 0."""

    launcher: str
    sync: str
    workers: int
    lanes: int | None = None
    start: str = "null"

    @property
    def name(self) -> str:
        system = "TensorFlow, " if self.launcher == "tensorflow" else ""
        sync = "asynchronous" if system else self.sync
        lanes = f", {self.lanes} lanes" if self.lanes else ""
        start = f", sample_gradient {self.start}" if self.start != "null" else ""
        return f"{system}{f'{sync}, {self.workers} workers' if self.workers else 'one process'}{lanes}{start}"


CASES = [
    Case("inline", "bsp", 0),
    Case("local", "asp", 2),
    Case("tensorflow", "asp", 0),
    Case("tensorflow", "asp", 2),
    Case("inline", "bsp", 0, start="0.3"),
    Case("local", "asp", 2, start="0.3"),
    Case("local", "bsp", 2),
    Case("local", "ssp:3", 2),
    Case("local", "dssp:3:12", 2),
    Case("local", "asp", 2, lanes=4),
    Case("local", "asp", 2, lanes=4, start="0.3"),
    Case("local", "asp", 4),
    Case("local", "ssp:3", 4),
]


class Run(NamedTuple):
    """A case on a data set, with a seed of initial values and order."""

    case: Case
    data: str
    batch_size: int
    seed: int


def run(folder: Path, rows: int, wanted: Sequence[Run], tensorflow: str | None) -> None:
    """Train all of `wanted` that are not in results.jsonl, and add a line for each."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {each for each, _ in _results(folder)}
    for each in wanted:
        if each in there or (each.case.launcher == "tensorflow" and not tensorflow):
            continue
        if not (folder / each.data).exists():
            sizes = ("--rows", rows, "--test-rows", rows // 10)
            heterps(folder, "data", "synth", each.data, *DATA[each.data], *sizes)
        told = _train_tensorflow(folder, each, str(tensorflow)) if each.case.launcher == "tensorflow" else None
        line = {**each.case._asdict(), **each._asdict(), **(told or _train(folder, each))}
        del line["case"]
        with (folder / "results.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def _train(folder: Path, each: Run) -> dict[str, Any]:
    case = each.case
    lanes = case.lanes or "null"
    job = JOB.format(data=each.data, batch_size=each.batch_size, start=case.start, lanes=lanes, job_seed=each.seed)
    (folder / "job.yaml").write_text(job)
    words = ["--launcher", case.launcher, "--sync", case.sync]
    words += ["--workers", str(case.workers)] if case.workers else []
    name = f"run-{len(list(folder.glob('run-*')))}"
    summary = json.loads(heterps(folder, "train", "job.yaml", "--run", name, "--json", *words))
    told = {"auc": summary["auc"], "staleness": summary.get("staleness") or 0.0}
    return told | {"samples_per_s": summary["measured_throughput"]}


def _train_tensorflow(folder: Path, each: Run, python: str) -> dict[str, Any]:
    words = ["--batch-size", each.batch_size, "--workers", each.case.workers, "--seed", each.seed]
    peer = Path(__file__).with_name("tensorflow_ps.py")
    command = [python, str(peer), each.data, *map(str, words)]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return {"staleness": None} | json.loads(done.stdout.splitlines()[-1])


def _results(folder: Path) -> list[tuple[Run, dict[str, Any]]]:
    path = folder / "results.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    return [
        (Run(Case(*(line[n] for n in Case._fields)), line["data"], line["batch_size"], line["seed"]), line)
        for line in lines
    ]


def table(folder: Path) -> None:
    """Print a line for each case, data set and batch size: its AUC, and how far it is from one process, with spreads.

    The difference to one process, of the same system and start, is that of runs of one seed: they begin alike and see
    the same batches.
    """
    results = dict(_results(folder))
    print("| data | batch | training | AUC | against one process | staleness | runs |")
    print("|---|--:|---|--:|--:|--:|--:|")
    for data, batch_size, case in itertools.product(DATA, sorted({each.batch_size for each in results}), CASES):
        runs = {each: line for each, line in results.items() if each[:3] == (case, data, batch_size)}
        if not runs:
            continue
        single = Case("tensorflow", "asp", 0) if case.launcher == "tensorflow" else CASES[0]._replace(start=case.start)
        alone = [results.get(each._replace(case=single)) for each in runs]
        far = [line["auc"] - one["auc"] for line, one in zip(runs.values(), alone, strict=True) if one]
        behind = _spread(far, "+.4f") if far and case != single else ""
        stale = [line["staleness"] for line in runs.values() if line["staleness"] is not None]
        figures = f"{_spread([line['auc'] for line in runs.values()], '.4f')} | {behind}"
        late = f"{statistics.median(stale):.2f}" if stale else ""
        print(f"| {data} | {batch_size:,} | {case.name} | {figures} | {late} | {len(runs)} |")


def _spread(values: Sequence[float], form: str) -> str:
    """The median, and the least and the largest of several."""
    most = f" ({min(values):{form}} to {max(values):{form}})" if len(values) > 1 else ""
    return f"{statistics.median(values):{form}}{most}"


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
    parser.add_argument("--data", choices=DATA, nargs="*", default=list(DATA))
    parser.add_argument("--batch-sizes", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=3, help="seeds of initial values and order")
    parser.add_argument("--cases", nargs="*", help="names as in the table; all if left out")
    parser.add_argument("--tensorflow", metavar="PYTHON", help="an interpreter with tensorflow-cpu and tf-keras")
    asked = parser.parse_args(words)
    if asked.what == "table":
        table(asked.folder)
    elif asked.what == "models":
        models(asked.folder, asked.rows)
    else:
        cases = [case for case in CASES if not asked.cases or case.name in asked.cases]
        wanted = itertools.product(range(asked.rounds), asked.data, asked.batch_sizes, cases)
        run(asked.folder, asked.rows, [Run(case, *place, seed) for seed, *place, case in wanted], asked.tensorflow)


if __name__ == "__main__":
    main()
