"""What does following a run cost its training? Trains a job alone and followed, and tells the versions it wrote."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heterps.checkpoint.finished import read_manifest
from heterps.config import Job, load_job
from heterps.launch import train
from heterps.serving.follow import Stream, follow
from heterps.training.coordinator.publishing import Publisher
from heterps.training.run.observer import Observer


class Watch(Observer):
    """Seconds from the first step to the last, with everything in between, and when each clock was reached."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.samples: list[int] = []

    def stepped(self, samples: int, *_: object) -> None:
        self.times.append(time.monotonic())
        self.samples.append(samples)

    @property
    def rate(self) -> float:
        return (self.samples[-1] - self.samples[0]) / (self.times[-1] - self.times[0])


@dataclass
class Versions:
    """Versions of a followed run: bytes and seconds of each, and how long after its cut a follower had it."""

    full: list[int] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    full_s: list[float] = field(default_factory=list)
    changes_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)


def followed(job: Job, folder: Path, every_s: float) -> tuple[Watch, Versions]:
    """Train a job with a follower that reads every version, on a thread of this process."""
    watch, versions, cut_at = Watch(), Versions(), {}
    publish, ended = Publisher.publish, threading.Event()

    def timed(self: Publisher, clock: int, samples: int) -> str | None:
        began = time.monotonic()
        failure = publish(self, clock, samples)
        took = time.monotonic() - began
        cut_at[clock] = began
        index = read_manifest(folder / "stream" / f"{clock:010d}")
        (versions.full if index.parent is None else versions.changes).append(index.num_bytes)
        (versions.full_s if index.parent is None else versions.changes_s).append(took)
        return failure

    def read() -> None:
        while not (folder / "job.yaml").exists():
            time.sleep(0.01)
        with follow(folder, every_s) as stream:
            while not ended.wait(0.1):
                take(stream)

    def take(stream: Stream) -> None:
        for version in stream.poll():
            versions.read_s.append(time.monotonic() - cut_at.get(version.clock, time.monotonic()))

    reader = threading.Thread(target=read)
    Publisher.publish = timed  # type: ignore[method-assign]
    reader.start()
    try:
        train(job, folder, observer=watch)
    finally:
        Publisher.publish = publish  # type: ignore[method-assign]
        ended.set()
        reader.join()
    return watch, versions


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("job", type=Path)
    options.add_argument("--every-s", type=float, default=2.0)
    options.add_argument("--epochs", type=int, default=1)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--launcher", choices=["inline", "local"], default="inline")
    told = options.parse_args()
    job = load_job(told.job)
    fields = {**job.model_dump(), "launcher": told.launcher, "data": {**job.data.model_dump(), "epochs": told.epochs}}
    job = Job.model_validate(fields)
    print("| run | samples/s | versions | full MB | full s | changes MB | changes s | read after s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for number in range(told.rounds):
        with tempfile.TemporaryDirectory(prefix="heterps-follow-", dir=".") as place:
            alone = Watch()
            train(job, Path(place) / "alone", observer=alone)
            print(f"| {number + 1} alone | {alone.rate:,.0f} | | | | | | |", flush=True)
            watch, versions = followed(job, Path(place) / "followed", told.every_s)
        count = f"{len(versions.full)} full, {len(versions.changes)} changes"
        figures = [
            f"{middle(versions.full) / 1e6:.1f}", f"{middle(versions.full_s):.3f}",
            f"{middle(versions.changes) / 1e6:.1f}", f"{middle(versions.changes_s):.3f}",
            f"{middle(versions.read_s):.2f}",
        ]  # fmt: skip
        print(f"| {number + 1} followed | {watch.rate:,.0f} | {count} | {' | '.join(figures)} |", flush=True)


def middle(figures: list[Any]) -> float:
    return float(statistics.median(figures)) if figures else 0.0


if __name__ == "__main__":
    main()
