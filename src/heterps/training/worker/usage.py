"""What a worker spends its time on: computing, communicating, waiting. Each second counts for one of them.

compute |=======|         |====|           a row that is pulled inside a layer is communication:
comm            |==| |===|                 whoever waits for it says so, and computing goes on after it
wait               |=|         |====
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Literal

from heterps.ps.client.local import FloatArray
from heterps.training.protocol.messages import Usage

Doing = Literal["compute", "communicate", "wait"]


class Meter:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[Doing, float] = {"compute": 0.0, "communicate": 0.0, "wait": 0.0}
        self._doing: Doing = "wait"
        self._since = clock()

    @contextmanager
    def doing(self, what: Doing) -> Iterator[None]:
        before = self._switch(what)
        try:
            yield
        finally:
            self._switch(before)

    def usage(self, queue: int = 0, late_s: float = 0.0) -> Usage:
        """So far, by this moment."""
        self._switch(self._doing)
        return Usage(self._seconds["compute"], self._seconds["communicate"], self._seconds["wait"], queue, late_s)

    def _switch(self, what: Doing) -> Doing:
        now, before = self._clock(), self._doing
        self._seconds[before] += now - self._since
        self._doing, self._since = what, now
        return before


class _Metered(Future[FloatArray]):
    """A future that is fetched, and timed, when it is waited for."""

    def __init__(self, rows: Future[FloatArray], meter: Meter) -> None:
        super().__init__()
        self._rows, self._meter = rows, meter

    def done(self) -> bool:
        return self._rows.done()

    def result(self, timeout: float | None = None) -> FloatArray:
        with self._meter.doing("communicate"):
            return self._rows.result(timeout)


def metered(rows: Callable[[], Future[FloatArray]], meter: Meter) -> Callable[[], Future[FloatArray]]:
    """The same rows; waiting for them is communication. Those that have come are nobody's time."""

    def fetch() -> Future[FloatArray]:
        found = rows()
        return found if found.done() else _Metered(found, meter)

    return fetch
