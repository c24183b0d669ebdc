"""The exact scheduler of plans in rounds (BSP): the cheapest plan with proof, or with a bound if it is stopped early.

Best-first branch and bound over (lanes, range of z); round_kernels.py says what z is. Counts only change where z passes
a breakpoint, so ranges are of the sorted breakpoints Z, and a range of one is exact:

    Z  |..|.|....|.||...|..|      1. take the range i..j with the lowest bound; at best: proven
          i         j             2. its bound: the counts for Z[j], in rounds that take Z[i] (least_end)
                                  3. a wide range is halved at once, each half with a bound of its own
                                  4. labels in a narrow one: no plan of it costs less than the lightest of them, and
                                     those near it are billed; what is left is halved

Labels that found no slot leave their bound behind; a range of one that is not decided so is set aside with it.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from heterps.planning import round_kernels as kernels
from heterps.planning.cost import ROUNDING, Floats, KernelInputs, Problem, Schedules
from heterps.planning.labels import Labels
from heterps.planning.provisioners.base import Bills
from heterps.planning.provisioners.exact import exact
from heterps.planning.round_labels import FILL, MOVED, TRAFFIC, RoundLabels, round_labels
from heterps.planning.round_labels import compile_all as compile_labels

WIDTHS = (16, 64, 256)
"""Largest number of labels per state, by effort."""
MOST_BILLED = 8
"""Number of the lightest labels whose schedules are billed."""
NARROW = 0.2
"""Width of a range, in terms of its shortest round, up to which labels are worth their time."""
MU_STEP = 1.7


class Range(NamedTuple):
    """Breakpoints first to last of one number of lanes: no plan with such a z weighs less than `bound`."""

    bound: float
    order: int  # ranges of equal bounds are taken in the order in which they came
    lanes: int
    first: int
    last: int
    mu: float
    effort: int = 0


class ExactRounds:
    """The scheduler of method `exact` for policies in rounds."""

    def __init__(self, problem: Problem, seed: int) -> None:  # noqa: ARG002 - nothing here is random
        kernels.compile_all()
        compile_labels()
        self._problem, self._given = problem, problem.kernel_inputs
        self._scale = problem.hours_per_tau
        self._best = np.inf
        self._aside = np.inf
        self._nothing: Schedules = np.empty((0, problem.num_layers), np.int16)
        self._waiting: list[Range] = []
        self._num_ranges = 0
        self._z = {lanes: _breakpoints(problem, lanes) for lanes in problem.lanes_of.tolist()}
        self._looked = False
        for lanes, z in self._z.items():
            if len(z):
                self._wait(0.0, lanes, 0, len(z) - 1, self._first_mu())

    def propose(self) -> Schedules | None:
        if not self._waiting or self.bound_usd() >= self._best * self._scale * (1 - ROUNDING):  # [1]
            return None
        if not self._looked:
            self._looked = True
            return self._look_ahead()
        taken = heapq.heappop(self._waiting)
        z = self._z[taken.lanes]
        lo, hi = float(z[taken.first]), float(z[taken.last])
        if taken.first < taken.last and hi - lo > NARROW * (lo + self._problem.overhead_s):  # [3]
            self._split(taken, taken.bound)
            return self._nothing
        to_go = ToGo(self._given, taken.lanes, hi, taken.mu)
        labels = _Labels(WIDTHS[taken.effort], self._problem)
        bound, schedules = labels.search(self._given, to_go, lo, self._problem.overhead_s, self._best)  # [4]
        bound = max(bound, taken.bound)
        if bound < self._best * (1 - ROUNDING):
            self._split(taken, bound)
        return schedules

    def feedback(self, schedules: Schedules, bills: Bills) -> None:  # noqa: ARG002 - the search is over exact counts
        if len(schedules):
            self._best = min(self._best, float(exact(self._problem, schedules).usd.min()) / self._scale)

    def bound_usd(self) -> float:
        known = self._waiting[0].bound if self._waiting else np.inf
        return min(self._best, self._aside, known) * self._scale

    def _split(self, taken: Range, bound: float) -> None:
        if taken.first < taken.last:
            z = self._z[taken.lanes]
            half = (float(z[taken.first]) + float(z[taken.last])) / 2
            middle = int(np.searchsorted(z, half, side="right")) - 1
            middle = min(max(middle, taken.first), taken.last - 1)
            self._wait(bound, taken.lanes, taken.first, middle, taken.mu)
            self._wait(bound, taken.lanes, middle + 1, taken.last, taken.mu)
        elif taken.effort + 1 < len(WIDTHS):
            self._wait(bound, taken.lanes, taken.first, taken.last, taken.mu, taken.effort + 1)
        else:
            self._aside = min(self._aside, bound)

    def _wait(self, bound: float, lanes: int, first: int, last: int, mu: float, effort: int = 0) -> None:  # [2]
        """Put a range to the others, with the highest bound that a few mixes near `mu` give."""
        z = self._z[lanes]
        lo, hi = float(z[first]) + self._problem.overhead_s, float(z[last])
        for step in (1.0, MU_STEP, 1 / MU_STEP):
            better = ToGo(self._given, lanes, hi, mu * step).bound(self._given, lo)
            if better > bound:
                bound, mu = better, mu * step
        if bound < self._best * (1 - ROUNDING):
            self._num_ranges += 1
            heapq.heappush(self._waiting, Range(bound, self._num_ranges, lanes, first, last, mu, effort))

    def _first_mu(self) -> float:
        """A mix in which the fastest allowed round and the price of all units weigh the same."""
        rate = float(self._given.prices @ self._given.limits)
        return float(np.sqrt(max(rate, 1e-12) / self._problem.tau_max)) / 10

    def _look_ahead(self) -> Schedules:
        """Propose single resources, so that there is something to compare with."""
        able = np.isfinite(self._given.terms[:, :, 1]).all(axis=1)
        return np.array([[t] * self._problem.num_layers for t in np.flatnonzero(able)], np.int16).reshape(
            -1, self._problem.num_layers
        )


def _breakpoints(problem: Problem, lanes: int) -> Floats:
    given = problem.kernel_inputs
    out = np.empty(4096)
    while (num := kernels.breakpoints(given, lanes, out)) > len(out):
        out = np.empty(num)
    z = np.unique(out[:num])
    return z[np.isfinite(z) & (z <= problem.tau_max)]


class ToGo:
    """What the layers from each one on need at least, with the counts for z: see round_kernels.least_to_go."""

    def __init__(self, given: KernelInputs, lanes: int, z: float, mu: float) -> None:
        self.lanes, self.z, self.mu = lanes, z, mu
        self.rate, self.fill, self.mixed = (np.empty(given.terms.shape[1] + 1) for _ in range(3))
        kernels.least_to_go(given, lanes, z, mu, self.rate, self.fill, self.mixed)

    def bound(self, given: KernelInputs, busy_s: float) -> float:
        """Lower bound on the weight of all plans with rounds of `busy_s` besides micro-batches and servers."""
        needed = (float(self.rate[0]), float(self.fill[0]), float(self.mixed[0]))
        return float(kernels.least_end(given, busy_s, 0.0, given.server_s, self.mu, *needed))


class _Labels(Labels):
    """Labels of plans in rounds: see round_labels.py."""

    def __init__(self, width: int, problem: Problem) -> None:
        num_resources = len(problem.resources)
        super().__init__(width, problem.num_layers, num_resources)
        units = np.empty((self.total, num_resources), np.int64)
        self._arrays = RoundLabels(np.empty((self.total, 4)), units, np.empty(self.total), self.before, self.num)

    def search(
        self, given: KernelInputs, to_go: ToGo, lo: float, overhead_s: float, best: float
    ) -> tuple[float, Schedules]:
        """Return a lower bound on the weight of plans with a z in [lo, to_go.z], and the schedules of light labels.

        A schedule is worth a bill only where the bound is below `best`.
        """
        dropped = round_labels(
            given, to_go.lanes, lo, to_go.z, overhead_s, best, to_go.mu, to_go.rate, to_go.fill, to_go.mixed,
            self._arrays,
        )  # fmt: skip
        ends = {label: self._weight(given, label, lo + overhead_s) for label in self.ends()}
        lightest = sorted(ends, key=ends.__getitem__)[:MOST_BILLED]
        found = [self.schedule(label) for label in lightest if ends[label] < best]
        bound = min([dropped, *(ends[label] for label in lightest[:1])])
        nothing = np.empty((0, given.terms.shape[1]), np.int16)
        return float(bound), np.unique(found, axis=0) if found else nothing

    def _weight(self, given: KernelInputs, label: int, busy_s: float) -> float:
        """Return the weight of a label that covers all layers, with its cheapest number of servers."""
        sums, units = self._arrays.sums[label], self._arrays.units[label]
        weight, _, _ = kernels.cheapest_servers(
            given, units, busy_s + float(sums[FILL]), given.server_s + float(sums[MOVED]), float(sums[TRAFFIC]), np.inf
        )
        return float(weight)
