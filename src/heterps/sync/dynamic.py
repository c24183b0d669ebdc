"""DSSP: SSP whose bound moves between `lower` and `lower + spread`, to where the fastest worker would wait least.

    fast  --|--|--|--|            pushes at now + r * busy, for r = 0, 1, 2, ...    (its own predicted iterations)
    slow  ----|------|------|     pushes at next + k * busy, for k = 0, 1, 2, ...
                     ^
                     r* = 3: here the two nearly meet, so a wait that begins here is short

on_push(p):                                                                       paper        here
  (1) a grant is left          use one of it, go                                  r_p          extra
  (2) lead <= lower            go                                                 s_L          lower
  (3) p is the fastest         ask the controller for a grant r*, go if r* > 0    r_max        spread
  (4) else                     wait until the lead is at most lower, less hysteresis

The printed algorithm is wrong in five ways that matter; here they are mended. It never looks at the lead when it grants
again, so nothing is bounded: here a grant ends at lower + spread (a). A grant of r* gives r* + 1 iterations: here the
one that starts now counts (b). After a grant it also waits (c). It knows push times only of who asks: here of all (d).
Its intervals contain the waits it imposed itself: here time runs from the go-ahead to the push (e).
`heterps.sync.literal` keeps a, b and c, to show what they do.
"""

from __future__ import annotations

from collections.abc import Iterable

from heterps.config.sync import DSSP
from heterps.sync.policy import OnEvent
from heterps.sync.predictors import PREDICTORS
from heterps.sync.stale import Stale


class Dynamic(Stale):
    """No iteration starts at a lead above `lower + spread`. With `spread` 0 it is SSP(lower).

    A push costs O(1); one that asks the controller O(spread + number of slowest workers).
    """

    def __init__(
        self, config: DSSP, workers: Iterable[str], *, now: float = 0.0, on_event: OnEvent | None = None
    ) -> None:
        self._lower, self._spread = config.lower, config.spread
        self._predictor = PREDICTORS[config.predictor]()
        self._extra: dict[str, int] = {}
        super().__init__(config, workers, bound=config.lower, now=now, on_event=on_event)
        self._ok_at = dict.fromkeys(self.clocks.of, now)
        self._resume = config.lower - config.hysteresis

    def _pushed(self, worker: str, now: float) -> list[str]:
        self._predictor.observe(worker, now - self._ok_at[worker])  # (d), (e)
        return super()._pushed(worker, now)

    def _may_go(self, worker: str, now: float) -> bool:
        if self._extra.get(worker, 0) > 0:  # (1)
            self._extra[worker] -= 1
            return True
        lead = self.clocks.lead(worker)
        if lead <= self._lower:  # (2)
            return True
        if self.clocks.of[worker] < self.clocks.most:
            return False  # (4)
        grant = self._grant(worker, now, min(self._spread, self._lower + self._spread + 1 - lead))  # (3), (a)
        if grant == 0:
            return False
        self._extra[worker] = grant - 1  # (b)
        self._tell("granted", worker, now, grant)
        return True  # (c)

    def _grant(self, worker: str, now: float, cap: int) -> int:
        """The controller: r* in 0..cap; 0 where nothing can be predicted yet."""
        mine = self._predictor.busy_s(worker)
        if cap <= 0 or mine is None:
            return 0
        slowest = -1.0, 0.0  # the longest busy time, then the latest start, of those with the lowest clock
        for slow in self.clocks.at_least():
            started = self._ok_at[slow]
            busy_s = self._predictor.running_s(slow, now - started)
            if busy_s is None:
                return 0
            slowest = max(slowest, (busy_s, started))
        busy_s, started = slowest
        return best_grant(now, mine, max(now, started + busy_s), busy_s, cap, self._spread)

    def _go(self, worker: str, now: float) -> str:
        self._ok_at[worker] = now
        return super()._go(worker, now)

    def _forget(self, worker: str) -> None:
        super()._forget(worker)
        self._predictor.forget(worker)
        self._extra.pop(worker, None)
        del self._ok_at[worker]


def best_grant(now: float, busy_s: float, slow_next: float, slow_busy_s: float, cap: int, spread: int) -> int:
    """The r in 0..cap for which some push of the slowest comes nearest to the fastest's r-th; of equals the smallest.

    The fastest pushes at `now + r * busy_s`, the slowest at `slow_next + k * slow_busy_s` for k in 0..spread. Both
    rows rise, so two pointers find the nearest pair in O(cap + spread): the earlier of the two moves on, since
    whatever comes later in the other row is farther from it.
    """
    best, nearest, r, k = 0, float("inf"), 0, 0
    while r <= cap and k <= spread:
        gap = (slow_next + k * slow_busy_s) - (now + r * busy_s)
        if abs(gap) < nearest:
            best, nearest = r, abs(gap)
        if gap >= 0:
            r += 1
        else:
            k += 1
    return best
