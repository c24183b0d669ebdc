"""Policies at their best rates: two image sets, workers that are slow for good or in turn, 2, 4 and 8 of them.

python benchmarks/dssp/grid.py run --out /tmp/grid.jsonl                 adds a line for each case that is not there
python benchmarks/dssp/grid.py table --out benchmarks/dssp/grid.jsonl    each policy at its best rate
python benchmarks/dssp/grid.py against --out benchmarks/dssp/grid.jsonl  pairs of policies
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
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
RATES = {
    "bsp": (0.1, 0.3, 1.0, 3.0, 10.0),
    "bsp+fitted": (0.1, 0.3, 1.0, 3.0, 10.0),
    "asp": (0.03, 0.1, 0.3, 1.0),
    "ssp:3": (0.03, 0.1, 0.3, 1.0),
    "ssp:15": (0.03, 0.1, 0.3, 1.0),
    "dssp:3:12": (0.03, 0.1, 0.3, 1.0),
    "dssp:3:12+fastest+lower": (0.03, 0.1, 0.3, 1.0),
    "dssp:3:12+literal": (0.03, 0.1, 0.3, 1.0),
    "asp+damped": (0.1, 0.3, 1.0, 3.0),
}
"""Learning rates of each policy: larger ones where a round applies a mean, or where stale gradients have less."""
PAIRS = (
    ("dssp:3:12", "bsp"),
    ("dssp:3:12", "ssp:3"),
    ("dssp:3:12", "ssp:15"),
    ("dssp:3:12", "asp"),
    ("dssp:3:12", "dssp:3:12+fastest+lower"),
    ("dssp:3:12+fastest+lower", "ssp:3"),
    ("dssp:3:12+literal", "asp"),
    ("dssp:3:12", "bsp+fitted"),
    ("asp+damped", "asp"),
)
"""Policies that are compared place by place."""
SEEDS = 5
BATCH, EPOCHS, POINTS = 23, 8, 40
SLOW = 2.5


class Case(NamedTuple):
    images: str
    kind: str  # of slowness
    workers: int
    policy: str
    rate: float


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


def run(out: Path, images: Sequence[str], seeds: int) -> None:
    """Train every case of these image sets that is not in `out` with each seed, and add a line for it."""
    there = {Case(*line[:5]) for line in _lines(out)} if out.exists() else set()
    grid = itertools.product(images, KINDS, WORKERS, RATES.items())
    cases = [Case(*place, policy, rate) for *place, (policy, rates) in grid for rate in rates]
    with tempfile.TemporaryDirectory() as folder, out.open("a") as file:
        for case in cases:
            if case in there:
                continue
            job, scenario = make_job(case.images, case.rate, Path(folder)), make_scenario(case.kind, case.workers)
            seconds = [_seconds(case, job, scenario, seed) for seed in range(seeds)]
            file.write(json.dumps([*case, seconds], separators=(",", ":")) + "\n")
            file.flush()


def _seconds(case: Case, job: Job, scenario: Scenario, seed: int) -> float | None:
    """Simulated seconds to the accuracy that counts."""
    job, scenario = job.model_copy(update={"seed": seed}), scenario.model_copy(update={"seed": seed})
    variant = parse_variant(case.policy)
    if variant.by_rounds:
        job, scenario = as_in_paper(job, scenario)
    found = train_virtually(job, scenario, variant, Course(points=POINTS), as_job=False)
    reached = found.reaches(SETS[case.images])
    return round(reached.now_s, 1) if reached else None


def _lines(out: Path) -> Iterator[list[Any]]:
    return map(json.loads, out.read_text().splitlines())


def table(out: Path) -> str:
    """A table for each image set and kind of slowness: seconds of each policy to the accuracy, at its best rate."""
    found = _best_rates(out)
    words = []
    for images, kind in itertools.product(SETS, KINDS):
        if not any(place[:2] == (images, kind) for place in found):
            continue
        words += [f"\n### {images} to {SETS[images]:g}, workers slow {kind}\n"]
        words += [f"| policy | {' | '.join(f'{n} workers' for n in WORKERS)} |", f"|---|{'--:|' * len(WORKERS)}"]
        for policy in RATES:
            cells = [_cell(found.get((images, kind, n, policy))) for n in WORKERS]
            words.append(f"| {policy} | {' | '.join(cells)} |")
    return "\n".join(words)


def against(out: Path) -> str:
    """A line for each pair of policies: over all places, the ratio of their median times, and who is surely sooner.

    One is surely sooner in a place where its slowest seed is sooner than the other's fastest one.
    """
    found = _best_rates(out)
    words = ["| policy | beside | slow | its time as a share | sooner | surely | surely later |"]
    words.append("|---|---|---|--:|--:|--:|--:|")
    for policy, other in PAIRS:
        for kind in KINDS:
            places = itertools.product(SETS, [kind], WORKERS)
            both = [(found.get((*place, policy)), found.get((*place, other))) for place in places]
            pairs = [(one, two) for one, two in both if one and two]
            if not pairs:
                continue
            shares = [one.median / two.median for one, two in pairs]
            sooner = sum(share < 1 for share in shares)
            surely = sum(max(one.seconds) < min(two.seconds) for one, two in pairs)
            later = sum(min(one.seconds) > max(two.seconds) for one, two in pairs)
            figures = f"{min(shares):.2f} to {max(shares):.2f} | {sooner} of {len(pairs)} | {surely} | {later}"
            words.append(f"| {policy} | {other} | {kind} | {figures} |")
    return "\n".join(words)


class _Best(NamedTuple):
    """A policy's best rate in one place, and the seconds of each seed with it; infinite where it did not get there."""

    median: float
    rate: float
    seconds: list[float]


def _best_rates(out: Path) -> dict[tuple[Any, ...], _Best]:
    found: dict[tuple[Any, ...], _Best] = {}
    for *place, rate, by_seed in _lines(out):
        seconds = [math.inf if each is None else each for each in by_seed]
        this = _Best(statistics.median(seconds), rate, seconds)
        found[tuple(place)] = min(this, found.get(tuple(place), this))
    return found


def _cell(best: _Best | None) -> str:
    """The median over seeds, with the fastest and slowest seed, and the rate."""
    if best is None:
        return ""
    if best.median == math.inf:
        return "not reached"
    missing = best.seconds.count(math.inf)
    slowest = f"{missing} never" if missing else f"{max(best.seconds):,.0f}"
    return f"{best.median:,.0f} ({min(best.seconds):,.0f}-{slowest}) at {best.rate:g}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table", "against"])
    parser.add_argument("--out", type=Path, required=True, help="a line for each case")
    parser.add_argument("--images", choices=SETS, nargs="*", default=list(SETS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    if asked.what == "run":
        run(asked.out, asked.images, asked.seeds)
    print(against(asked.out) if asked.what == "against" else table(asked.out))


if __name__ == "__main__":
    main()
