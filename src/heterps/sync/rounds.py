"""BSP: rounds in which all workers take part, with backup workers so that rounds need not wait for a few stragglers.

a  |==== wait |====  wait|         round 0 ends when all have pushed (1); with `backup: 1` when all but one have:
b  |==========|==========|           a  |====wait |====
c  |======    |=======   |           b  |=========x====     x: b's gradient is too late and dropped (2);
   0          1          2           c  |======== |====        b continues in the current round
"""

from __future__ import annotations

from collections.abc import Iterable

from heterps.config.sync import BSP
from heterps.errors import ConfigError
from heterps.sync.policy import OnEvent, Policy


class Rounds(Policy):
    """The BSP policy: all workers of a round read the same version of the weights; a round is one update.

    With backup workers, a worker's clock counts the rounds that are over for it: a late worker skips those it missed.
    """

    def __init__(
        self, config: BSP, workers: Iterable[str], *, now: float = 0.0, on_event: OnEvent | None = None
    ) -> None:
        super().__init__(config, workers, now=now, on_event=on_event)
        self._backup = config.backup
        if self._backup and self._backup >= len(self.clocks.of):
            raise ConfigError(
                f"policy {config.label}: with {len(self.clocks.of)} workers there can be at most "
                f"{max(len(self.clocks.of) - 1, 0)} backup workers: nobody would be waited for."
            )

    def takes(self, worker: str) -> bool:
        return self.clocks.of[worker] >= self.rounds

    def _pushed(self, worker: str, now: float) -> list[str]:
        if not self.takes(worker):  # (2)
            self.dropped += 1
            self.clocks.advance(worker, to=self.rounds)
            self._emit("dropped", worker, now)
            return [self._go(worker, now)]
        self.clocks.advance(worker)
        self._emit("pushed", worker, now)
        if len(self._waiting) + 1 < self._needed():
            self._wait(worker, now)
            return []
        return self._end_round([worker, *self._waiting], now)

    def _moved(self, before: int, now: float) -> list[str]:  # noqa: ARG002
        if self._waiting and len(self._waiting) >= self._needed():
            return self._end_round(self.waiting, now)
        return []

    def _needed(self) -> int:
        return max(1, len(self.clocks.of) - self._backup)

    def _end_round(self, workers: list[str], now: float) -> list[str]:  # (1)
        self.rounds += 1
        return [self._go(worker, now) for worker in workers]
