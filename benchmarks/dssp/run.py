"""Does DSSP reach an accuracy sooner than BSP, ASP and SSP, and what else would? See README.md beside this file.

python benchmarks/dssp/run.py [--quick] [--seeds 3] [--cifar10 FILES] [--only WORDS] [--policies WORDS] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from heterps.config import Data, Schema
from heterps.data.images import open_images, write_images
from heterps.data.reader import Reader
from heterps.sim.compare import compare
from heterps.sim.course import Course, VirtualRun
from heterps.sim.runs import train_all
from heterps.sim.variants import parse_variant

sys.path.insert(0, str(Path(__file__).parent))
from questions import BATCHES, QUESTIONS, Clock, Question, as_in_paper, make_clocks, make_job, make_scenario

HEADS = ("policy", "s to {0:g}", "s to {1:g}", "best", "s in all", "updates", "stale", "wait")
POINTS = 60
HERE = Path(__file__).parent
FIRST, LAST = "<!-- figures -->", "<!-- end of figures -->"


def prepare(cifar10: Path | None, folder: Path) -> Data:
    """The data set as Parquet in `folder`."""
    kind = "digits" if cifar10 is None else "cifar10"
    info = write_images(open_images(kind, cifar10), folder)
    columns = Schema(num_classes=info.num_classes, dense=("image",), widths={"image": info.num_pixels}, slots=())
    return Data(train=str(folder / "train"), test=str(folder / "test"), columns=columns, batch_size=BATCHES[kind])


def ask(
    question: Question, data: Data, clock: Clock, *, epochs: int, seeds: int, points: int, processes: int
) -> list[VirtualRun]:
    rows = Reader(data.train, data.columns, batch_size=data.batch_size).num_rows
    job, scenario = make_job(question, data, rows, epochs), make_scenario(question, clock)
    runs: list[VirtualRun] = []
    for by_rounds in (True, False):
        variants = [variant for variant in map(parse_variant, question.policies) if variant.by_rounds == by_rounds]
        if variants:
            played = as_in_paper(job, scenario) if by_rounds else (job, scenario)
            course = Course(points=points)
            runs += train_all(
                *played, variants, num_seeds=seeds, course=course, num_processes=processes, as_job=False
            )  # fmt: skip
    return sorted(runs, key=lambda run: question.policies.index(run.variant.label))


def figures_of(question: Question, runs: list[VirtualRun]) -> dict[str, Any]:
    """What is kept of a question, and what its table is made of."""
    tables = [compare(runs, target) for target in question.network.targets]
    return {
        "title": question.title,
        "targets": question.network.targets,
        "rows": [
            {**low.as_json(), "seconds": [low.seconds, high.seconds]}
            for low, high in zip(*(table.rows for table in tables), strict=True)
        ],
        "curves": {row.label: curve([run for run in runs if run.variant.label == row.label]) for row in tables[0].rows},
    }


def curve(runs: list[VirtualRun]) -> list[list[float]]:
    """Seconds and accuracy of each evaluation, as means over the seeds."""
    points = zip(*(run.points for run in runs), strict=False)
    return [
        [round(statistics.fmean(p.now_s for p in some), 2), round(statistics.fmean(p.quality for p in some), 4)]
        for some in points
    ]


def show_clocks(clocks: dict[str, dict[str, float]]) -> str:
    rows = (
        f"| {name} | {' | '.join(f'{seconds:.3f}' for seconds in clock.values())} |" for name, clock in clocks.items()
    )
    return "\n".join(("| network | compute s | latency s | server s |", "|---|--:|--:|--:|", *rows))


def show_question(figures: dict[str, Any]) -> str:
    """The table of a question, as Markdown."""
    lines = [f"\n### {figures['title']}\n", f"| {' | '.join(HEADS).format(*figures['targets'])} |"]
    lines.append(f"|---|{'--:|' * (len(HEADS) - 1)}")
    for row in figures["rows"]:
        reached = [seconds(by_seed, row["failed"]) for by_seed in row["seconds"]]
        cells = (*reached, f"{statistics.median(row['best']):.4f}", f"{row['end_s']:,.0f}", f"{row['updates']:,.0f}")
        lines.append(f"| {' | '.join((row['label'], *cells))} | {row['staleness']:.2f} | {row['wait_share']:.0%} |")
    return "\n".join(lines)


def seconds(by_seed: Sequence[float | None], failed: str | None) -> str:
    """The median and, of several seeds, the fastest and the slowest; or how many seeds get there at all."""
    reached = [s for s in by_seed if s is not None]
    if failed:
        return "diverged"
    if len(reached) < len(by_seed):
        return f"{len(reached)} of {len(by_seed)} seeds" if reached else "never"
    spread = f" ({min(reached):,.0f}-{max(reached):,.0f})" if len(reached) > 1 else ""
    return f"{statistics.median(reached):,.0f}{spread}"


def merged(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The figures of now, and of before those of questions and policies that were not asked."""
    found = []
    for question in QUESTIONS:
        old, new = (
            next((q for q in figures["questions"] if q["title"] == question.title), {"rows": [], "curves": {}})
            for figures in (before, now)
        )
        rows = {row["label"]: row for row in (*old["rows"], *new["rows"])}
        labels = [parse_variant(word).label for word in question.policies]
        kept = [rows[label] for label in labels if label in rows]
        found.append({**old, **new, "rows": kept, "curves": {**old["curves"], **new["curves"]}})
    return {**now, "questions": [q for q in found if q["rows"]]}


def write(figures: dict[str, Any]) -> None:
    """Keep the figures, and put their tables into the README between its two marks."""
    (HERE / "figures.json").write_text(json.dumps(figures, separators=(",", ":")) + "\n", encoding="utf-8")
    readme = HERE / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(FIRST)
    _, _, after = rest.partition(LAST)
    tables = [show_clocks(figures["clocks"]), *map(show_question, figures["questions"])]
    body = "\n".join((FIRST, f"\n{figures['environment']}\n", *tables, "", LAST))
    readme.write_text(before + body + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="an epoch, a seed and every fourth policy: to see that it runs"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="instead of each network's own")
    parser.add_argument("--cifar10", type=Path, help="train on CIFAR-10 instead of digits: its binary version")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="questions with these words in their titles")
    parser.add_argument("--policies", help="of each question those in this list, as dssp:3:12,asp; all if left out")
    parser.add_argument("--write", action="store_true", help="write figures.json and the tables of the README")
    given = parser.parse_args()
    seeds = 1 if given.quick else given.seeds
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        data = prepare(given.cifar10, Path(folder) / "images")
        clocks = make_clocks(str(data.train), data.columns, data.batch_size)
        figures: dict[str, Any] = {"clocks": {name: asdict(clock) for name, clock in clocks.items()}, "questions": []}
        print(show_clocks(figures["clocks"]), flush=True)
        for question in QUESTIONS:
            if given.only not in question.title:
                continue
            if given.policies:
                asked = given.policies.split(",")
                question = replace(question, policies=tuple(word for word in question.policies if word in asked))
            if given.quick:
                question = replace(question, policies=question.policies[::4])
            epochs = 1 if given.quick else given.epochs or question.network.epochs
            points = 3 if given.quick else POINTS
            runs = ask(
                question, data, clocks[question.network.factory], epochs=epochs, seeds=seeds, points=points,
                processes=given.processes,
            )  # fmt: skip
            figures["questions"].append(figures_of(question, runs))
            print(show_question(figures["questions"][-1]), flush=True)
    figures["environment"] = (
        f"Seeds: {seeds}. {time.perf_counter() - start:,.0f} s with {given.processes} processes on {os.cpu_count()} "
        f"cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, torch {torch.__version__}. "
        "Only these seconds depend on the machine."
    )
    if given.only or given.policies:
        figures["environment"] += " The other figures are of earlier runs."
    print(f"\n{figures['environment']}")
    if given.write:
        write(merged(json.loads((HERE / "figures.json").read_text(encoding="utf-8")), figures))


if __name__ == "__main__":
    main()
