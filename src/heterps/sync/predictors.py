"""How long a worker's iterations will take, from how long they took: from go-ahead to push, waits left out."""

from __future__ import annotations

EMA_WEIGHT = 0.3
"""What the newest iteration counts for in the moving average."""


class Last:
    """As long as the last one."""

    def __init__(self) -> None:
        self._busy_s: dict[str, float] = {}

    def observe(self, worker: str, busy_s: float) -> None:
        self._busy_s[worker] = busy_s

    def forget(self, worker: str) -> None:
        self._busy_s.pop(worker, None)

    def busy_s(self, worker: str) -> float | None:
        """Of a whole iteration; None before the worker's first push."""
        return self._busy_s.get(worker)

    def running_s(self, worker: str, elapsed_s: float) -> float | None:  # noqa: ARG002
        """Of an iteration that has taken `elapsed_s` so far, and of those after it."""
        return self._busy_s.get(worker)


class Ema(Last):
    """An exponential moving average: one odd iteration says little."""

    def observe(self, worker: str, busy_s: float) -> None:
        known = self._busy_s.get(worker)
        self._busy_s[worker] = busy_s if known is None else known + EMA_WEIGHT * (busy_s - known)


class Elapsed(Last):
    """As the last one; where the running one is late already, as late again: sees a slow-down while it lasts.

    By the others an iteration that is late is due at once, so that nothing is granted just when it would help most.
    """

    def running_s(self, worker: str, elapsed_s: float) -> float | None:
        known = self._busy_s.get(worker)
        return None if known is None else max(known, elapsed_s + (elapsed_s - known))


PREDICTORS = {"last": Last, "ema": Ema, "elapsed": Elapsed}
