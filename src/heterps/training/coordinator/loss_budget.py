"""LossBudget: how many processes may be lost within an hour, and how long to wait before each is started again."""

from __future__ import annotations

from collections import deque

HOUR_S = 3600.0
LONGEST_WAIT_S = 60.0
"""The longest time before a process is started again, however many were lost."""


class LossBudget:
    """`most` losses within an hour. The first is made good at once, the second after `backoff_s`, then twice as long
    each time."""

    def __init__(self, most: int, backoff_s: float) -> None:
        self.most, self._backoff_s = most, backoff_s
        self._losses: deque[float] = deque()  # when they were, in the last hour

    @property
    def num(self) -> int:
        """Number of losses within the last hour, as of the last one."""
        return len(self._losses)

    def is_spent(self, now: float) -> bool:
        while self._losses and now - self._losses[0] > HOUR_S:
            self._losses.popleft()
        return len(self._losses) >= self.most

    def lose(self, now: float) -> float:
        """Note a loss; return for how many seconds to wait."""
        wait_s = min(self._backoff_s * 2 ** (len(self._losses) - 1), LONGEST_WAIT_S) if self._losses else 0.0
        self._losses.append(now)
        return wait_s

    def next_start(self, now: float) -> float | None:
        """Note a loss; return when it may be made good, None where too many were lost."""
        return None if self.is_spent(now) else now + self.lose(now)
