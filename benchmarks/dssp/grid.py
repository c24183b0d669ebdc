"""Policies at their best rates: two image sets, workers that are slow for good or in turn, 2, 4 and 8 of them.

python benchmarks/dssp/grid.py run --out /tmp/grid.jsonl    a line for each run; those that are there are kept
python benchmarks/dssp/grid.py table --out /tmp/grid.jsonl  each policy at the rate of its smallest median time
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from heterps.config import SGD, Data, Job, Model, Optimizers, Schema
from heterps.data.batch import Slots
from heterps.data.images import open_images, write_images
from heterps.data.images.records import Form, ImageSource, Records, Split
from heterps.model.zoo.images import Classifier, num_scores
from heterps.sim import Scenario
from heterps.sim.course import Course
from heterps.sim.scenario import ENDLESS
from heterps.sim.variants import parse_variant
from heterps.sim.virtual import train_virtually

sys.path.insert(0, str(Path(__file__).parent))
from questions import as_in_paper

SETS = {"digits": 0.95, "gratings": 0.85}
"""Image sets, each with the accuracy that counts."""
KINDS = ("for good", "in turn")
WORKERS = (2, 4, 8)
POLICIES = ("bsp", "asp", "ssp:3", "ssp:15", "dssp:3:12", "asp+damped")
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
SEEDS = 5
BATCH, EPOCHS, POINTS = 23, 8, 40
SLOW = 2.5


class Case(NamedTuple):
    images: str
    kind: str  # of slowness
    workers: int
    policy: str
    rate: float
    seed: int


class Perceptron(Classifier):
    """One hidden layer of 64 units: small enough for a thousand runs."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_scores(schema)))

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:  # noqa: ARG002
        return self.layers(dense)


class Gratings:
    """Stripes of ten directions, of any width and phase, in noise that hides half of them: unlike strokes of a pen."""

    kind = "gratings"
    form = Form(1, 8, 8, {"label": 10})

    def read(self, split: Split, most: int) -> Iterator[Records]:
        count = 1541 if split == "train" else 256
        random = np.random.default_rng(0 if split == "train" else 1)
        label = random.integers(0, 10, count)
        across, down = np.meshgrid(np.arange(8), np.arange(8))
        angle = (label * np.pi / 10)[:, None, None]
        waves = random.uniform(0.2, 0.3, count)[:, None, None] * (across * np.cos(angle) + down * np.sin(angle))
        pixels = np.sin(2 * np.pi * (waves + random.uniform(0, 1, count)[:, None, None]))
        pixels = np.clip(8 + 3 * pixels + random.normal(0, 3, pixels.shape), 0, 16).astype(np.uint8)
        for first in range(0, count, most):
            some = slice(first, first + most)
            yield Records(label[some, None].astype(np.uint8), pixels[some].reshape(-1, 64))


def make_job(images: str, rate: float, folder: Path) -> Job:
    source: ImageSource = Gratings() if images == "gratings" else open_images(images)
    if not (folder / images).exists():
        write_images(source, folder / images)
    columns = Schema(num_classes=10, dense=("image",), widths={"image": 64}, slots=())
    return Job(
        name=images,
        model=Model(factory=f"{__file__}:Perceptron"),
        data=Data(
            train=str(folder / images / "train"), test=str(folder / images / "test"), columns=columns, batch_size=BATCH,
            epochs=EPOCHS,
        ),
        optimizers=Optimizers(dense=SGD(lr=rate)),
    )  # fmt: skip


def make_scenario(kind: str, workers: int) -> Scenario:
    """Half of the workers take 2.5 times as long for good; or one after the other four times, for 30 s of every 100."""
    speeds = tuple(SLOW if kind == "for good" and number % 2 else 1.0 for number in range(workers))
    slowdowns = [
        {"worker": f"w{number % workers}", "from_s": 100 * number + 20, "to_s": 100 * number + 50, "factor": 4.0}
        for number in range(20 if kind == "in turn" else 0)
    ]
    return Scenario(workers=speeds, jitter=0.1, slowdowns=slowdowns, latency_s=0.1, server_s=0.03, iterations=ENDLESS)


def run(out: Path, cases: Sequence[Case]) -> None:
    """Train every case that is not in `out`, and add a line for it."""
    lines = out.read_text().splitlines() if out.exists() else []
    there = {Case(*(line[name] for name in Case._fields)) for line in map(json.loads, lines)}
    with tempfile.TemporaryDirectory() as folder, out.open("a") as file:
        for case in cases:
            if case in there:
                continue
            scenario = make_scenario(case.kind, case.workers).model_copy(update={"seed": case.seed})
            job = make_job(case.images, case.rate, Path(folder)).model_copy(update={"seed": case.seed})
            variant = parse_variant(case.policy)
            if variant.by_rounds:
                job, scenario = as_in_paper(job, scenario)
            found = train_virtually(job, scenario, variant, Course(points=POINTS), as_job=False)
            reached = found.reaches(SETS[case.images])
            line = case._asdict() | {"seconds": reached and reached.now_s, "best": found.best}
            file.write(json.dumps(line | {"staleness": found.sim.mean_staleness}) + "\n")
            file.flush()


def table(out: Path) -> str:
    """A table for each image set and kind of slowness: seconds of each policy to the accuracy, at its best rate."""
    found: dict[tuple[Any, ...], list[float | None]] = {}
    for line in map(json.loads, out.read_text().splitlines()):
        found.setdefault(tuple(line[name] for name in Case._fields[:-1]), []).append(line["seconds"])
    words = []
    for images, kind in itertools.product(SETS, KINDS):
        words += [f"\n### {images} to {SETS[images]:g}, workers slow {kind}\n"]
        words += [f"| policy | {' | '.join(f'{n} workers' for n in WORKERS)} |", f"|---|{'--:|' * len(WORKERS)}"]
        for policy in POLICIES:
            cells = [_best({r: found.get((images, kind, n, policy, r), []) for r in RATES}) for n in WORKERS]
            words.append(f"| {policy} | {' | '.join(cells)} |")
    return "\n".join(words)


def _best(by_rate: dict[float, list[float | None]]) -> str:
    """The median over seeds at the rate where it is smallest, with the fastest and slowest seed, and the rate."""
    medians = {
        rate: statistics.median(s if s is not None else float("inf") for s in seconds)
        for rate, seconds in by_rate.items()
        if seconds
    }
    if not medians or min(medians.values()) == float("inf"):
        return "not reached" if medians else ""
    rate = min(medians, key=lambda each: medians[each])
    reached = [s for s in by_rate[rate] if s is not None]
    missing = len(by_rate[rate]) - len(reached)
    slowest = f"{missing} never" if missing else f"{max(reached):,.0f}"
    return f"{medians[rate]:,.0f} ({min(reached):,.0f}-{slowest}) at {rate:g}"


def all_cases(seeds: int) -> list[Case]:
    """Every case, seed by seed. The largest rate is for bsp, which applies means, and the smallest for the others."""
    grid = itertools.product(range(seeds), SETS, KINDS, WORKERS, POLICIES, RATES)
    return [
        Case(images, kind, workers, policy, rate, seed)
        for seed, images, kind, workers, policy, rate in grid
        if rate != (RATES[0] if policy == "bsp" else RATES[-1])
    ]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--out", type=Path, required=True, help="a line for each run")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    if asked.what == "run":
        run(asked.out, all_cases(asked.seeds))
    print(table(asked.out))


if __name__ == "__main__":
    main()
