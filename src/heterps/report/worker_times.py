"""What each worker of a run did when, by traces/workers.jsonl: it computed, communicated or waited.

{"worker": "worker-1.0", "start": 3.1, "did": "wmc", "us": [120, 45, 2070]}  -->  worker-1.0  |wait|communicate|compute|
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from heterps.errors import RunError
from heterps.sim.result import Segment
from heterps.training.protocol.doings import LETTERS

DOINGS: dict[str, str] = {letter: doing for doing, letter in LETTERS.items()}
MOST_BYTES = 1_000_000
"""Bytes at the end of the newest file that are read for a report, of some thousand steps."""


class WorkerTimes(NamedTuple):
    """One worker: what it did, one segment after the other."""

    name: str
    segments: tuple[Segment, ...]
    left_s: float | None = None

    def seconds(self, doing: str) -> float:
        """Seconds in which it did this."""
        return sum(segment.end - segment.start for segment in self.segments if segment.kind == doing)


@dataclass(frozen=True)
class WorkersOverTime:
    """The workers of a run's last start, in seconds of training. `is_whole`: whether all that was written is here."""

    workers: tuple[WorkerTimes, ...]
    is_whole: bool

    @property
    def window(self) -> tuple[float, float] | None:
        """The time from the first segment to the last; None where nothing lasted."""
        kept = [worker.segments for worker in self.workers if worker.segments]
        first, last = min((one[0].start for one in kept), default=0.0), max((one[-1].end for one in kept), default=0.0)
        return (first, last) if last > first else None

    @property
    def end_s(self) -> float:
        """When the last segment ends."""
        return 0.0 if self.window is None else self.window[1]


def worker_files(run: Path) -> list[Path]:
    """The files of a run's workers, one a start, the first first."""
    found = [
        (int(match[1] or 0), path)
        for path in (run / "traces").glob("workers*.jsonl")
        if (match := re.fullmatch(r"workers(?:\.(\d+))?", path.stem))
    ]
    return [path for _, path in sorted(found)]


def read_workers(run: Path, most_bytes: int = MOST_BYTES) -> WorkersOverTime | None:
    """The workers of the run's last start; None where nothing was written. Raises RunError for a damaged file."""
    files = worker_files(run)
    return read_worker_file(files[-1], most_bytes) if files else None


def read_worker_file(path: Path, most_bytes: int | None = None) -> WorkersOverTime | None:
    """What a file tells, of a longer one than `most_bytes` its end; None where it tells nothing yet."""
    segments: dict[str, list[Segment]] = defaultdict(list)
    with path.open("rb") as file:
        skipped = 0 if most_bytes is None else max(0, file.seek(0, 2) - most_bytes)
        file.seek(skipped)
        if skipped:
            file.readline()  # a part of a line
        for line in file:
            if line.endswith(b"\n"):  # a run that goes on may be writing the last one
                _add(line, segments, path)
    names = sorted(segments, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
    found = WorkersOverTime(tuple(WorkerTimes(name, tuple(segments[name])) for name in names), not skipped)
    return found if found.window is not None else None


def _add(line: bytes, segments: dict[str, list[Segment]], path: Path) -> None:
    try:
        told = json.loads(line)
        segments[str(told["worker"])] += _segments(float(told["start"]), told["did"], told["us"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: not a line about a worker: {line[:80].decode(errors='replace')}") from error


def _segments(start: float, did: str, lasted_us: list[int]) -> Iterator[Segment]:
    for letter, us in zip(did, lasted_us, strict=True):
        end = start + us / 1e6
        if us:
            yield Segment(start, end, DOINGS[letter])
        start = end
