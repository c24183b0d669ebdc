"""Predict how long a worker's iterations take from earlier ones. Times run from release to push, without waits."""

from __future__ import annotations

EMA_WEIGHT = 0.3
"""Weight of the newest iteration in the moving average."""


class Last:
    """Predicts that an iteration takes as long as the worker's last one."""

    def __init__(self) -> None:
        self._busy_s: dict[str, float] = {}

    def observe(self, worker: str, busy_s: float) -> None:
        self._busy_s[worker] = busy_s

    def forget(self, worker: str) -> None:
        self._busy_s.pop(worker, None)

    def busy_s(self, worker: str) -> float | None:
        """Predicted seconds of a whole iteration; None before the worker's first push."""
        return self._busy_s.get(worker)

    def running_s(self, worker: str, elapsed_s: float) -> float | None:  # noqa: ARG002
        """Predicted seconds of an iteration that has run for `elapsed_s`, and of those after it."""
        return self._busy_s.get(worker)


class Ema(Last):
    """Predicts an exponential moving average, so that a single outlier changes little."""

    def observe(self, worker: str, busy_s: float) -> None:
        known = self._busy_s.get(worker)
        self._busy_s[worker] = busy_s if known is None else known + EMA_WEIGHT * (busy_s - known)


class Elapsed(Last):
    """Predicts the last iteration's time; if the running one is already late, it adds that delay once more.

    So it notices a slow-down while it lasts. The other predictors expect a late iteration to end at once, and grant
    nothing just when that would help most.
    """

    def running_s(self, worker: str, elapsed_s: float) -> float | None:
        known = self._busy_s.get(worker)
        return None if known is None else max(known, elapsed_s + (elapsed_s - known))


PREDICTORS = {"last": Last, "ema": Ema, "elapsed": Elapsed}
