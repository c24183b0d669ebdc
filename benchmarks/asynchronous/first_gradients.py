"""How large are the gradients of rows at first, times the batch size, beside a sample_gradient of 0.3?

python benchmarks/asynchronous/first_gradients.py --folder /tmp/first
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import yaml

from heterps.config import Job, Optimizers
from heterps.data.fit import fit_job
from heterps.data.reader import open_reader
from heterps.model import build_model
from heterps.ps.keys.dedup import sum_rows
from heterps.training.model.trainer import Gradients, Trainer

sys.path.insert(0, str(Path(__file__).parents[1]))
from commands import heterps

TASKS = {"ctr_dnn": "click", "match_net": "match", "nce": "words"}
EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 8


def make_job(folder: Path, model: str, batch_size: int) -> Job:
    """The example of a model on data of this folder; ctr_dnn has the layers of bench.py."""
    task = folder / TASKS[model]
    if not task.exists():
        heterps(folder, "data", "synth", task, "--task", task.name, "--rows", 100_000, "--test-rows", 0)
    job = yaml.safe_load((EXAMPLES / f"{model}.yaml").read_text())
    if model == "ctr_dnn":
        job["model"]["args"] = {"embedding_dim": 16, "hidden": [512, 256, 128]}
    del job["cluster"], job["data"]["test"]
    job["data"] |= {"train": str(task / "train"), "batch_size": batch_size}
    return fit_job(Job.model_validate(job))


def mean_sizes(gradients: Gradients) -> Iterator[tuple[str, float]]:
    """Each table with the mean absolute element of the gradients of its rows, those of a key added up."""
    for part in gradients.rows:
        summed = np.empty((len(part.lookup.unique), part.grads.shape[1]), np.float32)
        sum_rows(part.grads, part.lookup.sources, part.lookup.starts, 0, len(summed), summed)
        yield part.table, float(np.abs(summed).mean())


def measure(job: Job) -> dict[str, tuple[float, float]]:
    """By table, the mean size of its rows' gradients before the first step and after STEPS steps, times the batch."""
    batches = (batch for batch, _ in open_reader(job, seed=0).read())
    columns, size = job.data.columns, job.data.batch_size
    with Trainer(build_model(job.model, columns, 0), Optimizers(), columns=columns, seed=0) as trainer:
        first = dict(mean_sizes(trainer.gradients(next(batches))))
        for _ in range(STEPS):
            trainer.step(next(batches))
        later = dict(mean_sizes(trainer.gradients(next(batches))))
    return {table: (size * first[table], size * later[table]) for table in first}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for data")
    parser.add_argument("--batch-sizes", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--models", choices=TASKS, nargs="*", default=list(TASKS))
    asked = parser.parse_args(words)
    asked.folder.mkdir(parents=True, exist_ok=True)
    print(f"| model | batch | table | first | after {STEPS} steps | 0.3 is so many times the first |")
    print("|---|--:|---|--:|--:|--:|")
    for model in asked.models:
        for batch_size in asked.batch_sizes:
            for table, (first, later) in measure(make_job(asked.folder, model, batch_size)).items():
                print(f"| {model} | {batch_size:,} | {table} | {first:.4f} | {later:.4f} | {0.3 / first:,.0f} |")


if __name__ == "__main__":
    main()
