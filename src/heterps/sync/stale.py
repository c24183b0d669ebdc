"""ASP and SSP: in ASP no worker waits; in SSP a worker waits if its lead over the slowest is above a bound.

clock  ....5....6....7....8....9....        SSP(3): a worker with clock 8 goes on, one with clock 9 waits (1) until
           |<---- bound 3 --->|  wait                the lowest clock is 6; then all workers at 9 are released (2)
         slowest
"""

from __future__ import annotations

from collections.abc import Iterable

from heterps.config.sync import PolicyConfig
from heterps.sync.policy import OnEvent, Policy


class Stale(Policy):
    """The ASP and SSP policies.

    A push costs O(1), and O(1) more for each worker that it releases.
    """

    def __init__(
        self, config: PolicyConfig, workers: Iterable[str], *, now: float = 0.0, on_event: OnEvent | None = None
    ) -> None:
        self._bound: int | None = getattr(config, "lower", None)  # largest lead at which an iteration may start
        self._queues: dict[int, list[str]] = {}  # lowest clock of all: the workers that it releases once it is reached
        super().__init__(config, workers, now=now, on_event=on_event)

    def _pushed(self, worker: str, now: float) -> list[str]:
        clocks = self.clocks
        before = clocks.least
        clocks.advance(worker)
        if self.on_event is not None:
            self._emit("pushed", worker, now)
        if self._may_go(worker, now):
            released = [self._go(worker, now)]
        else:
            self._wait(worker, now)  # (1)
            released = []
        if clocks.least > before:
            released += self._moved(before, now)
        return released

    def _may_go(self, worker: str, now: float) -> bool:  # noqa: ARG002
        return self._bound is None or self.clocks.lead(worker) <= self._bound

    def _wait(self, worker: str, now: float) -> None:
        super()._wait(worker, now)
        self._queues.setdefault(self._released_by(worker), []).append(worker)

    def _released_by(self, worker: str) -> int:
        """The lowest clock of all that releases a worker which begins to wait now."""
        return self.clocks.of[worker] - (self._bound or 0)

    def _moved(self, before: int, now: float) -> list[str]:
        """Release the workers that waited for the lowest clock of all to rise to what it is now."""
        if not self._queues:
            return []
        reached = range(before + 1, self.clocks.least + 1)  # (2)
        return [self._go(worker, now) for least in reached for worker in self._queues.pop(least, ())]

    def _forget(self, worker: str) -> None:
        """Remove a leaving worker from the queue in which it waits."""
        for least, queue in list(self._queues.items()):
            if worker in queue:
                self._queues[least] = [other for other in queue if other != worker]
