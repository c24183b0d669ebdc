"""What a worker spends its time on: computing, communicating, waiting. Each second counts for one of them.

compute |=======|         |====|           a row that is pulled inside a layer is communication:
comm            |==| |===|                 the code that waits for it notes that, and computing goes on
wait               |=|         |====

The sums travel with every push (`usage`), and so do the spans since the push before (`take_spans`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import pairwise

from heterps.arrays import FloatArray
from heterps.training.protocol.doings import LETTERS, Doing
from heterps.training.protocol.messages import Spans, Usage

LEAST_S = 20e-6
"""A span that is shorter counts for the one before it: nobody could see it."""
MOST_SPANS = 256
"""Largest number of spans between two pushes; what comes after them is left out, so that no message grows large."""


class Meter:
    """Sums of seconds by what is done, from the start on; spans of them once they are asked for (`keep_spans`)."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._seconds: dict[Doing, float] = {"compute": 0.0, "communicate": 0.0, "wait": 0.0}
        self._doing: Doing = "wait"
        self._since = clock()
        self._spans: list[tuple[Doing, float]] | None = None  # what was done, and until when
        self._spans_since = self._since

    @contextmanager
    def doing(self, what: Doing) -> Iterator[None]:
        before = self._switch(what)
        try:
            yield
        finally:
            self._switch(before)

    def usage(self, queue: int = 0, late_s: float = 0.0) -> Usage:
        """Return the seconds so far, by what was done."""
        self._switch(self._doing)
        return Usage(self._seconds["compute"], self._seconds["communicate"], self._seconds["wait"], queue, late_s)

    def keep_spans(self) -> None:
        """Keep spans from now on; those that are kept already stay."""
        if self._spans is None:
            self._switch(self._doing)
            self._spans, self._spans_since = [], self._since

    def take_spans(self) -> Spans | None:
        """What was done since the last call, one span after the other; None where nothing is kept."""
        self._switch(self._doing)
        spans, start = self._spans, self._spans_since
        if not spans:
            return None
        self._spans, self._spans_since = [], self._since
        ends = [round(1e6 * (end - start)) for _, end in spans]
        lasted = (max(end - before, 0) for before, end in pairwise([0, *ends]))
        return Spans(start, "".join(LETTERS[doing] for doing, _ in spans), tuple(lasted))

    def _switch(self, what: Doing) -> Doing:
        now, before = self.clock(), self._doing
        self._seconds[before] += now - self._since
        if self._spans is not None:
            self._note(self._spans, before, now)
        self._doing, self._since = what, now
        return before

    def _note(self, spans: list[tuple[Doing, float]], doing: Doing, now: float) -> None:
        """Add the span that ends now, as a part of the one before where it is of the same kind, or very short."""
        if spans and (spans[-1][0] == doing or now - self._since < LEAST_S):
            if len(spans) < MOST_SPANS:  # the last one has ended where what follows is left out
                spans[-1] = spans[-1][0], now
        elif len(spans) < MOST_SPANS:
            spans.append((doing, now))


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
    """Return the same rows, whose fetching counts as communication; rows that have come take no time."""

    def fetch() -> Future[FloatArray]:
        found = rows()
        return found if found.done() else _Metered(found, meter)

    return fetch
