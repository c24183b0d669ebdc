"""When an iteration that starts now will end: the worker's speed, its jitter, its slow-downs.

factor  5 |        +-----+
        1 |--------+     +--------     an iteration makes headway at 1/factor, also if a slow-down begins or ends
          +-----------------------     while it runs
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import count

from heterps.sim.scenario import Scenario

NUM_BLOCKS = 5
"""A block of measured seconds is this part of them: long enough for a slow-down, and several are drawn for a run."""


class Speed:
    """The duration of a worker's iterations. Each worker draws its own: the n-th takes as long under every policy."""

    __slots__ = ("_draw", "_factors", "_measured", "_places", "_seconds", "_sigma")

    def __init__(self, name: str, seconds: float, scenario: Scenario) -> None:
        self._seconds = seconds
        self._sigma = math.sqrt(math.log1p(scenario.jitter**2))
        self._draw = random.Random(f"{scenario.seed} {name}").gauss
        self._measured = _measured(name, scenario)
        mine = [slow for slow in scenario.slowdowns if slow.worker == name]
        self._places = sorted({place for slow in mine for place in (slow.from_s, slow.to_s)})
        self._factors = [
            math.prod(slow.factor for slow in mine if slow.from_s <= place < slow.to_s) for place in self._places
        ]

    def finish(self, start: float, part: float = 1.0) -> float:
        """When the next iteration ends, in seconds, if it starts at `start` and is this part of a whole one."""
        work = part * (self._seconds if self._measured is None else next(self._measured))
        if self._sigma:
            work *= math.exp(self._sigma * (self._draw(0.0, 1.0) - self._sigma / 2))  # its mean is 1
        return start + work if not self._places else self._through(start, work)

    def _through(self, now: float, work: float) -> float:
        place = bisect_right(self._places, now)
        while place < len(self._places):
            factor = self._factors[place - 1] if place else 1.0
            room = (self._places[place] - now) / factor
            if work <= room:
                return now + work * factor
            now, work = self._places[place], work - room
            place += 1
        return now + work


def _measured(name: str, scenario: Scenario) -> Iterator[float] | None:
    """Draw the measured seconds of a worker in blocks, which keep what was slow for a while together.

    Blocks begin at the same part of every worker's seconds: workers that were slow together are so again.
    """
    number = int(name.removeprefix("w"))
    if number >= len(scenario.measured):
        return None
    seconds, places = scenario.measured[number], random.Random(scenario.seed)
    length = max(len(seconds) // NUM_BLOCKS, 1)
    starts = (int(places.random() * len(seconds)) for _ in count())
    return (seconds[(start + i) % len(seconds)] for start in starts for i in range(length))
