"""The clocks of the workers: how many iterations each has pushed, and who is slowest and fastest.

clock   7: b          workers are in buckets by their clock
        8: a d        a push moves one worker by one, so the lowest clock rises by one at most:
       11: c          least and most are updated in O(1), for any number of workers
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Clocks:
    """The clock of each worker, with the lowest and the highest. `least` never falls, and new workers start from it."""

    __slots__ = ("_buckets", "least", "most", "of")

    def __init__(self, workers: Iterable[str]) -> None:
        self.least = self.most = 0
        self.of: dict[str, int] = {}
        """Clock of each worker, by name. Read-only for callers."""
        self._buckets: dict[int, dict[str, None]] = {}  # dicts keep the order of insertion, sets do not
        for worker in workers:
            self.add(worker)

    def lead(self, worker: str) -> int:
        return self.of[worker] - self.least

    def at_least(self) -> Iterator[str]:
        """Iterate over the workers with the lowest clock, in the order in which they reached it."""
        return iter(self._buckets.get(self.least, ()))

    def add(self, worker: str, clock: int = 0) -> None:
        """Add a worker; its clock is the lowest clock of all or `clock`, whichever is higher."""
        clock = max(clock, self.least)
        self.least = self.least if self.of else clock
        self.most = max(self.most, clock)
        self.of[worker] = clock
        self._buckets.setdefault(clock, {})[worker] = None

    def advance(self, worker: str, to: int | None = None) -> None:
        """Raise the worker's clock by one, or to `to`."""
        old, buckets = self.of[worker], self._buckets
        self.of[worker] = new = old + 1 if to is None else to
        bucket = buckets[old]
        del bucket[worker]
        if new in buckets:
            buckets[new][worker] = None
        else:
            buckets[new] = {worker: None}
        if new > self.most:
            self.most = new
        if not bucket:
            del buckets[old]
            if old == self.least:
                self._settle()

    def remove(self, worker: str) -> None:
        old = self.of.pop(worker)
        bucket = self._buckets[old]
        del bucket[worker]
        if not bucket:
            del self._buckets[old]
            self._settle()

    def _settle(self) -> None:
        """Move `least` and `most` to clocks that some worker has. `least` never falls, so this is O(1) per push."""
        if not self.of:
            self.most = self.least
            return
        while self.least not in self._buckets:
            self.least += 1
        while self.most not in self._buckets:
            self.most -= 1
