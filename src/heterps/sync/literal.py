"""DSSP as it was published, to show that it bounds nothing. Do not train with it.

on_push(p):
  (1) r_p > 0: r_p -= 1, release p                            (b) so a grant of r* gives r* + 1 iterations
  (2) else if the lead is at most s_L: release p
  (3) else if p is the fastest: r_p = controller(p);          (a) however far ahead it is
      if r_p > 0: release p
  (4) wait until the lead is at most s_L, release p           (c) also after (3): a second release
"""

from __future__ import annotations

from collections.abc import Iterable

from heterps.config.sync import DSSP
from heterps.sync.dynamic import Dynamic
from heterps.sync.policy import OnEvent


class LiteralDynamic(Dynamic):
    """DSSP without the corrections a, b and c of `dynamic`. `doubled` counts releases of workers that already run.

    A second release stays pending until the worker's next push. The worker then goes on although the policy believes
    that it waits, so a push of a waiting worker is accepted.
    """

    doubled = 0

    def on_push(self, worker: str, now: float) -> list[str]:
        self._check(worker, now)
        self._waiting.pop(worker, None)
        return self._pushed(worker, now)

    def _may_go(self, worker: str, now: float) -> bool:
        if self._extra.get(worker, 0) > 0:  # (1)
            self._extra[worker] -= 1
            return True
        if self.clocks.lead(worker) <= self._lower:  # (2)
            return True
        if self.clocks.of[worker] == self.clocks.most:  # (3)
            grant = self._extra[worker] = self._grant(worker, now, self._spread)  # (a), (b)
            if grant > 0:
                self._emit("granted", worker, now, grant)
                self._queues.setdefault(self._released_by(worker), []).append(worker)  # (4), (c)
                return True
        return False

    def _released_by(self, worker: str) -> int:
        return self.clocks.of[worker] - self._lower

    def _moved(self, before: int, now: float) -> list[str]:
        released = []
        for least in range(before + 1, self.clocks.least + 1):
            for worker in self._queues.pop(least, ()):
                if worker in self._waiting:
                    released.append(self._go(worker, now))
                else:  # (c)
                    self.doubled += 1
                    self._emit("released", worker, now)
                    released.append(worker)
        return released


def make_dynamic(config: DSSP, workers: Iterable[str], *, now: float = 0.0, on_event: OnEvent | None = None) -> Dynamic:
    """The DSSP policy: the bounded one, or the published one if the settings ask for it."""
    return (LiteralDynamic if config.literal else Dynamic)(config, workers, now=now, on_event=on_event)
