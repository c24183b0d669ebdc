"""What do checkpoints of changes save, and what do pulls, pushes and steps notice of a save?

    full       every checkpoint has all rows
    changes    the first has all rows, the others what changed since the one before (checkpoint.full_every)

    python benchmarks/saving/changes.py [--rows 1000000] [--dim 16] [--every 32768]

One process trains, with the rows on a server, a process of its own. Ids of the data have Zipf popularity. Bytes are
those of the second half of a run, when most rows are there.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from heterps.config import Job
from heterps.data.generate import generate
from heterps.launch import train
from heterps.ps.client.remote import RemoteClient
from heterps.training.run.observer import Observer

ARMS = {"full": 1, "changes": 100}
BATCH, WARM_STEPS = 1024, 20
Spans = list[tuple[float, float]]


class Watch(Observer):
    """Notes when steps end, when a checkpoint is written, and how large it is."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.saves: Spans = []
        self.bytes: list[int] = []

    def stepped(self, *_: Any) -> None:
        self.steps.append(time.perf_counter())

    def saved(self, path: str, seconds: float) -> None:
        now = time.perf_counter()
        self.saves.append((now - seconds, now))
        self.bytes.append(sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file()))


@contextmanager
def timed(name: str) -> Iterator[Spans]:
    """Note from when until when each call of a method of clients was under way."""
    ask, spans = getattr(RemoteClient, name), list[tuple[float, float]]()

    def noted(client: RemoteClient, *words: Any, **options: Any) -> Future[Any]:
        began = time.perf_counter()
        answer: Future[Any] = ask(client, *words, **options)
        answer.add_done_callback(lambda _: spans.append((began, time.perf_counter())))
        return answer

    with patch.object(RemoteClient, name, noted):
        yield spans


def measure(folder: Path, full_every: int, dim: int, every: int) -> tuple[Watch, dict[str, Spans]]:
    """Train once; what was seen, and the spans of all pulls and pushes of rows, and between steps."""
    job = Job.model_validate({
        "name": "changes", "model": {"factory": "ctr_dnn", "args": {"embedding_dim": dim, "hidden": [32]}},
        "data": {"train": str(folder / "train"), "batch_size": BATCH}, "servers": {"count": 1},
        "checkpoint": {"every_samples": every, "every_minutes": None, "full_every": full_every},
    })  # fmt: skip
    watch = Watch()
    shutil.rmtree(folder / "run", ignore_errors=True)
    with timed("pull") as pulls, timed("push") as pushes, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        train(job, folder / "run", observer=watch)
    return watch, {"pull": pulls, "push": pushes, "from step to step": list(pairwise(watch.steps))}


def split(spans: Spans, saves: Spans, began: float) -> tuple[list[float], list[float]]:
    """Milliseconds of spans since `began` without a save under way, and of those that met one."""
    alone, met = list[float](), list[float]()
    for start, end in spans:
        if start >= began:
            of = met if any(start < ended and begun < end for begun, ended in saves) else alone
            of.append(1000 * (end - start))
    return alone, met


def show(cells: Sequence[str], lengths: Sequence[float]) -> None:
    cuts = statistics.quantiles(lengths, n=100, method="inclusive") if len(lengths) > 1 else [math.nan] * 99
    figures = [f"{ms:.1f}" for ms in (cuts[49], cuts[89], cuts[98], max(lengths, default=math.nan))]
    print(f"| {' | '.join([*cells, f'{len(lengths):,}', *figures])} |")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--every", type=int, default=32_768)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        generate(folder, options.rows, 1000)
        found = {arm: measure(folder, full_every, options.dim, options.every) for arm, full_every in ARMS.items()}
    sizes = {arm: statistics.mean(watch.bytes[len(watch.bytes) // 2 :]) for arm, (watch, _) in found.items()}
    print(f"checkpoints a run: {', '.join(f'{arm} {len(watch.bytes)}' for arm, (watch, _) in found.items())}\n")
    print("| every checkpoint has | MB an interval | times fewer |\n|---|--:|--:|")
    mixed = {f"changes, all rows in 1 of {n}": (sizes["full"] + (n - 1) * sizes["changes"]) / n for n in (8, 32)}
    for arm, size in (sizes | mixed).items():
        print(f"| {arm} | {size / 1e6:.1f} | {sizes['full'] / size:.1f} |")
    print("\n| | checkpoints | a save under way | number | median, ms | 90 % | 99 % | longest |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    for arm, (watch, spans) in found.items():
        for name, lengths in spans.items():
            for is_met, some in zip(("no", "yes"), split(lengths, watch.saves, watch.steps[WARM_STEPS]), strict=True):
                show([name, arm, is_met], some)


if __name__ == "__main__":
    main()
