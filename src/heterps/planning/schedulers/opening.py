"""The first bills of a search: what a pre-trained policy proposes at several paces, ever nearer to the best pace.

    tau   fastest |----x---------x---------x---------x---------x| tau_max      1. FIRST paces, evenly in log(tau)
                                      x    ^    x                              2. then the widest gap beside the best
                                           the cheapest so far                    pace is halved, one bill at a time

The policy knows what is cheap at a given pace. Which pace is best, only the bills tell.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from heterps.planning.cost import Floats, Schedules

FIRST = 5
BILLS = 10
WIDEST = 20.0  # ratio of the slowest to the fastest pace that is tried
NARROW = 1e-6  # paces nearer than this, relatively, are the same
MOST_PACES = 24  # of which some may lead to the same schedule


class Opening:
    """Proposes the schedules of up to BILLS paces; it is done when `propose` returns None."""

    def __init__(self, schedule_at: Callable[[float], Schedules], slowest_s: float, fastest_s: float) -> None:
        self._schedule_at = schedule_at
        self._scores: dict[float, float] = {}  # by tau
        self._known: dict[bytes, float] = {}  # by schedule
        self._waiting: list[tuple[float, Schedules]] = []
        fastest_s = min(max(fastest_s, slowest_s / WIDEST), slowest_s)
        self._first = [float(tau) for tau in np.geomspace(slowest_s, fastest_s, FIRST)]

    def propose(self) -> Schedules | None:
        """Return the next schedules [n, N], none of which was proposed before; None when it is done."""
        paces, self._first = self._first, []
        while len(self._known) < BILLS and len(self._scores) < MOST_PACES:
            paces = paces or self._next_pace()
            if not paces:
                return None
            self._waiting = [(tau, self._schedule_at(tau)) for tau in paces]
            new = {row.tobytes(): row for _, row in self._waiting if row.tobytes() not in self._known}
            if new:
                return np.array(list(new.values()), np.int16)
            self._settle()
            paces = []
        return None

    def feedback(self, schedules: Schedules, scores: Floats) -> None:
        self._known.update({row.tobytes(): float(score) for row, score in zip(schedules, scores, strict=True)})
        self._settle()

    def _settle(self) -> None:
        for tau, row in self._waiting:
            self._scores[tau] = self._known.get(row.tobytes(), -np.inf)
        self._waiting = []

    def _next_pace(self) -> list[float]:
        """Return the middle of the widest gap beside the best pace; nothing if there is none."""
        taus = sorted(self._scores)
        best = taus.index(max(taus, key=lambda tau: self._scores[tau]))
        gaps = [(float(np.log(taus[i + 1] / taus[i])), i) for i in range(len(taus) - 1)]
        beside = [gap for gap in gaps if gap[1] in (best - 1, best) and gap[0] > NARROW]
        if not beside:
            return []
        i = max(beside)[1]
        return [float(np.sqrt(taus[i] * taus[i + 1]))]
