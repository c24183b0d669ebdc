"""Silence: who has not been heard of for too long, worker by worker.

A worker is heard of when it tells something: that it pushed, or, where it only waits, that it is alive. It is silent
while it computes. So only a worker that something is owed by can be silent for too long, and the time counts from when
it had its go-ahead, if that was later.
"""

from __future__ import annotations

from collections.abc import Iterable

from heterps.errors import last_heard


class Silence:
    """`deadline_s`: for so long a worker that something is owed by may be silent."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._heard: dict[str, float] = {}

    def broken(self, workers: Iterable[str], now: float) -> None:
        """Record that workers told something, or were told to begin."""
        self._heard |= dict.fromkeys(workers, now)

    def longest_s(self, workers: Iterable[str], now: float) -> float:
        """Seconds since the one of these workers told something that has been silent longest; 0 where none has yet."""
        return max((now - self._heard[worker] for worker in workers if worker in self._heard), default=0.0)

    def last_word(self, worker: str, now: float) -> str:
        """A clause that says when a worker that is lost was heard of last; "" where it never was."""
        return last_heard(now - self._heard[worker]) if worker in self._heard else ""

    def too_long(self, owing: Iterable[str], now: float, *, is_idle: bool) -> list[str]:
        """Return those by whom something is owed and who have been silent for longer than the deadline.

        A coordinator that is not idle may have news that it has not looked at, and waits twice as long.
        """
        patience_s = self.deadline_s if is_idle else 2 * self.deadline_s
        return [worker for worker in owing if now - self._heard.setdefault(worker, now) > patience_s]
