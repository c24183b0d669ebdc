"""DSSP as it was printed, to show what it does: nothing is bounded. Do not train with it.

on_push(p):
  (1) r_p > 0: r_p -= 1, send the go-ahead                            (b) so a grant of r* gives r* + 1 iterations
  (2) else if the lead is at most s_L: send the go-ahead
  (3) else if p is the fastest: r_p = controller(p);                  (a) however far ahead it is
      if r_p > 0: send the go-ahead
  (4) wait until the lead is at most s_L, send the go-ahead           (c) also after (3): a second one
"""

from __future__ import annotations

from heterps.sync.dynamic import Dynamic


class LiteralDynamic(Dynamic):
    """May release a worker that runs already, `doubled` times so far: the second go-ahead lies there until it pushes.

    A worker that finds such a go-ahead goes on although the policy believes that it waits, so it may push then.
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
                self._tell("granted", worker, now, grant)
                self._queues.setdefault(self.clocks.of[worker], []).append(worker)  # (4), (c)
                return True
        return False

    def _moved(self, before: int, now: float) -> list[str]:
        released = []
        for clock in range(before + self._lower + 1, self.clocks.least + self._lower + 1):
            for worker in self._queues.pop(clock, ()):
                if worker in self._waiting:
                    released.append(self._go(worker, now))
                else:  # (c)
                    self.doubled += 1
                    self._tell("released", worker, now)
                    released.append(worker)
        return released
