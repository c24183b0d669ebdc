"""The clocks of the workers: how many iterations each has pushed, and who is slowest and fastest.

clock   7: b          workers stand in buckets by their clock
        8: a d        a push moves one of them by one, so that the lowest clock rises by one at most:
       11: c          least and most are kept up in O(1), for any number of workers
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Clocks:
    """`least` never falls, not even while nobody is there; who joins starts from it."""

    __slots__ = ("_buckets", "least", "most", "of")

    def __init__(self, workers: Iterable[str]) -> None:
        self.least = self.most = 0
        self.of: dict[str, int] = {}
        """Each worker's clock; to be read, not to be written."""
        self._buckets: dict[int, dict[str, None]] = {}  # of dicts and not of sets, which have no order of their own
        for worker in workers:
            self.add(worker)

    def lead(self, worker: str) -> int:
        return self.of[worker] - self.least

    def at_least(self) -> Iterator[str]:
        """Those whose clock is the lowest, by when they reached it."""
        return iter(self._buckets.get(self.least, ()))

    def add(self, worker: str, clock: int = 0) -> None:
        """A new worker, with the lowest clock of all or with `clock`, whichever is higher."""
        clock = max(clock, self.least)
        self.least = self.least if self.of else clock
        self.most = max(self.most, clock)
        self.of[worker] = clock
        self._buckets.setdefault(clock, {})[worker] = None

    def advance(self, worker: str, to: int | None = None) -> None:
        """The worker's clock rises by one, or to `to`."""
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
        """Move the two ends to where somebody is. Each step of `least` is paid for by a push, as it never falls."""
        if not self.of:
            self.most = self.least
            return
        while self.least not in self._buckets:
            self.least += 1
        while self.most not in self._buckets:
            self.most -= 1
