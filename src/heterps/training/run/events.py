"""events.jsonl of a run: what went wrong, and how its workers changed, each with its moment."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from heterps.errors import StorageError
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer

FILE = "events.jsonl"
MOST_EVENTS = 1000
"""Events that a process writes down at most: a run that is in trouble for weeks fills no disk."""


class EventLog(Observer):
    """Writes down what its run is told of while it trains. `now` is the time in seconds since 1970.

    Training does not depend on it: an event that cannot be written is left out.
    """

    def __init__(self, run: Run, now: Callable[[], float] = time.time) -> None:
        self._run, self._now = run, now
        self._samples: int | None = None  # None: training has not started, and the folder may not be there
        self._seconds = 0.0
        self._num_events = 0

    def started(self, samples: int, total: int, resumed: bool) -> None:
        self._samples = samples
        if resumed:
            self._write("resumed", f"went on from {samples:,} of {total:,} samples")

    def stepped(self, samples: int, seconds: float, *_: Any) -> None:
        self._samples, self._seconds = samples, seconds

    def changed(self, what: str) -> None:
        self._write("changed", what)

    def warned(self, message: str) -> None:
        self._write("warned", message)

    def _write(self, kind: str, text: str) -> None:
        if self._samples is None or self._num_events == MOST_EVENTS:
            return
        self._num_events += 1
        moment = {"at": round(self._now(), 3), "samples": self._samples, "seconds": round(self._seconds, 3)}
        with suppress(StorageError):
            self._run.add_line(FILE, moment | {"event": kind, "text": text})


def read_events(run: Run) -> list[dict[str, Any]]:
    """The events of a run, the first first; lines that are not whole are left out."""
    path = run.folder / FILE
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and event.keys() >= {"at", "samples", "seconds", "event", "text"}:
                found.append(event)
    return found
