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

from heterps.ps.client.local import FloatArray, RowClient
from heterps.ps.keys.dedup import Lookup
from heterps.ps.protocol.messages import Round
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

    def result(self, timeout: float | None = None) -> FloatArray:
        with self._meter.doing("communicate"):
            return self._rows.result(timeout)


class MeteredRows:
    """The rows of `client`; waiting for them is communication."""

    def __init__(self, client: RowClient, meter: Meter) -> None:
        self._client, self._meter = client, meter

    @property
    def num_shards(self) -> int:
        return self._client.num_shards

    def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future[FloatArray]:
        return _Metered(self._client.pull(table, lookup, create=create), self._meter)

    def push(self, table: str, lookup: Lookup, grads: FloatArray, round: Round | None = None) -> Future[None]:
        return self._client.push(table, lookup, grads, round)
