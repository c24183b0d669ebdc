"""DSSP: SSP whose bound moves between `lower` and `lower + spread`, so that workers which are ahead wait least.

    fast  --|--|--|--|            pushes at now + r * busy, for r = 0, 1, 2, ...    (its own predicted iterations)
    slow  ----|------|------|     pushes at next + k * busy, for k = 0, 1, 2, ...
                     ^
                     r* = 3: here both push at nearly the same time, so a wait that begins here is short

on_push(p):                                                                       paper        here
  (1) a grant is left          use one of it, go                                  r_p          extra
  (2) lead <= lower            go                                                 s_L          lower
  (3) p may be granted more    ask the controller for a grant r*, go if r* > 0    r_max        spread
  (4) else                     wait until the lowest clock rises: the lead is within lower + spread again

The paper grants to the fastest worker only, and holds a waiting worker until its lead is back at lower. So a worker
repays all that it was granted, and DSSP has hardly more pushes than SSP(lower). `grant: fastest` and `release: lower`
do that.

The published algorithm has five errors that matter; they are corrected here:
  (a) It ignores the lead when it grants again, so nothing is bounded: here a grant ends at lower + spread.
  (b) A grant of r* gives r* + 1 iterations: here the iteration that starts now counts.
  (c) After a grant it also waits: here it does not.
  (d) It knows the push times of the asking worker only: here those of all workers.
  (e) Its intervals contain the waits that it imposed itself: here time runs from the release to the push.
`heterps.sync.literal` keeps a, b and c, to show their effect.
"""

from __future__ import annotations

from collections.abc import Iterable

from heterps.config.sync import DSSP
from heterps.sync.policy import OnEvent
from heterps.sync.predictors import PREDICTORS
from heterps.sync.stale import Stale


class Dynamic(Stale):
    """The DSSP policy: no iteration starts at a lead above `lower + spread`. With `spread` 0 it equals SSP(lower).

    A push costs O(1), and O(spread + number of slowest workers) if it asks the controller.
    """

    def __init__(
        self, config: DSSP, workers: Iterable[str], *, now: float = 0.0, on_event: OnEvent | None = None
    ) -> None:
        self._lower, self._spread = config.lower, config.spread
        self._predictor = PREDICTORS[config.predictor]()
        self._extra: dict[str, int] = {}
        super().__init__(config, workers, now=now, on_event=on_event)
        self._ok_at = dict.fromkeys(self.clocks.of, now)
        self._grants_all = config.grant == "all"
        self._resume = config.lower - config.hysteresis if config.release == "lower" else None

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
        if not self._grants_all and self.clocks.of[worker] < self.clocks.most:
            return False  # (4)
        grant = self._grant(worker, now, min(self._spread, self._lower + self._spread + 1 - lead))  # (3), (a)
        if grant == 0:
            return False
        self._extra[worker] = grant - 1  # (b)
        self._emit("granted", worker, now, grant)
        return True  # (c)

    def _grant(self, worker: str, now: float, cap: int) -> int:
        """Compute the number r* of granted iterations, 0..cap; 0 if there is nothing to predict from yet."""
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

    def _released_by(self, worker: str) -> int:
        if self._resume is None:
            return self.clocks.least + 1  # its lead is at most lower + spread + 1 now, so it is within the bound then
        return self.clocks.of[worker] - self._resume

    def _go(self, worker: str, now: float) -> str:
        self._ok_at[worker] = now
        return super()._go(worker, now)

    def _forget(self, worker: str) -> None:
        super()._forget(worker)
        self._predictor.forget(worker)
        self._extra.pop(worker, None)
        del self._ok_at[worker]


def best_grant(now: float, busy_s: float, slow_next: float, slow_busy_s: float, cap: int, spread: int) -> int:
    """Find the r in 0..cap at which the r-th push of a worker is nearest to any push of the slowest worker.

    The worker pushes at `now + r * busy_s`, the slowest at `slow_next + k * slow_busy_s` for k in 0..spread. Ties go to
    the smallest r. Both sequences rise, so two pointers find the nearest pair in O(cap + spread): the earlier of the
    two advances, since everything later in the other sequence is farther from it.
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
