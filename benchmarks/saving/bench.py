"""What does a checkpoint cost a job that goes on training while it is written?

Every round trains every arm from its start, in turn:

    none     no checkpoint
    still    checkpoints for which training stands still until they are on the disk
    while    checkpoints that are written while training goes on, as `heterps train` does

    python benchmarks/saving/bench.py [--rows 500000] [--dim 64] [--every 65536] [--rounds 3]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from heterps import background
from heterps.config import Checkpoint, Data, Job, Model
from heterps.data.generate import generate
from heterps.launch import train
from heterps.training.run.observer import Observer

ARMS = ("none", "still", "while")
BATCH = 4096


class Watch(Observer):
    """Notes when training begins and ends, and how long each checkpoint takes to be on the disk."""

    def __init__(self) -> None:
        self.began_s = self.ended_s = 0.0
        self.saves_s: list[float] = []

    def started(self, *_: Any) -> None:
        self.began_s = time.perf_counter()

    def stepped(self, *_: Any) -> None:
        self.ended_s = time.perf_counter()

    def saved(self, _: str, seconds: float) -> None:
        self.saves_s.append(seconds)
        self.ended_s = time.perf_counter()


def at_once(work: Callable[[], Any], name: str) -> Future[Any]:  # noqa: ARG001
    """Instead of `background.start`: the caller waits."""
    done: Future[Any] = Future()
    done.set_result(work())
    return done


def measure(folder: Path, arm: str, how: dict[str, Any], dim: int, every: int) -> tuple[float, float]:
    """Samples a second from the first to the last checkpoint, and the mean seconds that a checkpoint takes."""
    job = Job(
        name="saving",
        model=Model(factory="ctr_dnn", args={"embedding_dim": dim, "hidden": [256, 128]}),
        data=Data(train=str(folder / "train"), batch_size=BATCH),
        checkpoint=Checkpoint(every_samples=None if arm == "none" else every, every_minutes=None),
        **how,
    )
    run, watch = folder / "run", Watch()
    shutil.rmtree(run, ignore_errors=True)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        if arm == "still":
            with patch.object(background, "start", at_once):
                done = train(job, run, observer=watch)
        else:
            done = train(job, run, observer=watch)
    # The last checkpoint, at the end, is waited for in every arm: it is left out.
    seconds = watch.ended_s - watch.began_s - watch.saves_s[-1]
    return done.summary["samples"] / seconds, statistics.mean(watch.saves_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--every", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    places: dict[str, dict[str, Any]] = {
        "inline": {},
        "local, 1 server, 2 workers, ssp:3": {
            "launcher": "local",
            "sync": "ssp:3",
            "threads": 2,
            "servers": {"count": 1},
        },
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        generate(folder, options.rows, 1000)
        print("| job | checkpoints | samples/s | of none | a checkpoint takes |\n|---|---|---:|---:|---:|")
        for name, how in places.items():
            found: dict[str, list[tuple[float, float]]] = {arm: [] for arm in ARMS}
            for _ in range(options.rounds):
                for arm in ARMS:
                    found[arm].append(measure(folder, arm, how, options.dim, options.every))
            for arm in ARMS:
                ratio = statistics.median(
                    mine[0] / none[0] for mine, none in zip(found[arm], found["none"], strict=True)
                )
                speed = statistics.median(one[0] for one in found[arm])
                takes = statistics.median(one[1] for one in found[arm])
                print(f"| {name} | {arm} | {speed:,.0f} | {ratio:.2f} | {takes:.2f} s |", flush=True)


if __name__ == "__main__":
    main()
