"""The exact scheduler of plans in rounds (BSP): the cheapest plan with proof, or with a bound if it is stopped early.

Best-first branch and bound over boxes of plans; round_bounds.py says what a box is, and bounds it.

    z |   +----+                1. take the box with the lowest bound; at best: proven
      |   | 2a |                2. bill the chains that limit its bound, if they are cheaper than best
      |   +----+--+             3. narrow in z: labels. No plan of it costs less than the lightest, and those are billed
      |   |  2b   |             4. otherwise split the range that loosens the bound the most
      |   +-------+             5. both parts begin with the multipliers of the whole; better ones are looked for where
      +------------- T             these do not lift the bound above the best bill

Labels that found no slot leave their bound behind. A box that is not decided so, and cannot be split, is set aside with
it: its bound remains part of the proof.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from heterps.planning import round_kernels as kernels
from heterps.planning import round_stages
from heterps.planning.cost import ROUNDING, KernelInputs, Problem, Schedules
from heterps.planning.labels import Labels
from heterps.planning.market import all_paid_s, stretch
from heterps.planning.provisioners.base import Bills
from heterps.planning.provisioners.exact import exact
from heterps.planning.round_bounds import Bound, Bounds, Multipliers, needs_servers
from heterps.planning.round_boxes import (
    Box,
    Loose,
    halves_of_rented,
    halves_of_seconds,
    halves_of_servers,
    halves_of_units,
    loosest,
)
from heterps.planning.round_labels import FILL, MOVED, TRAFFIC, BoxOfLabels, RoundLabels, round_labels
from heterps.planning.round_labels import compile_all as compile_labels
from heterps.planning.round_stages import Stages

WIDTHS = (16, 64, 256)
"""Largest number of labels per state, by effort."""
SMALL = 200
"""Number of states up to which labels are faster than multipliers."""
MOST_BILLED = 8
"""Number of the lightest labels whose schedules are billed."""
NARROW = 0.2
"""Width of a range of z, in terms of the round, up to which labels are worth their time in a small problem."""
STEPS = 6
"""Number of linear programs for better multipliers of one box."""
LOOSE = 3e-3
"""Looseness of a box below which labels are worth their time in a large problem."""
LEAST_LOOSE = 1e-7
"""Looseness of a box below which it is not split."""
TABLE_BYTES = 1 << 27
"""Memory for tables of stages."""


class WaitingBox(NamedTuple):
    """A box with its bound."""

    box: Box
    bound: Bound
    effort: int = 0


class ExactRounds:
    """The scheduler of method `exact` for policies in rounds."""

    def __init__(self, problem: Problem, seed: int) -> None:  # noqa: ARG002 - nothing here is random
        kernels.compile_all()
        round_stages.compile_all()
        compile_labels()
        self._problem, self._given = problem, problem.kernel_inputs
        self._scale = problem.hours_per_tau
        self._bounds = Bounds(problem)
        self._is_small = (problem.num_layers + 1) * len(problem.resources) <= SMALL
        self._nothing: Schedules = np.empty((0, problem.num_layers), np.int16)
        self._best = np.inf
        self._heaviest = _heaviest(problem)
        self._aside = np.inf
        self._heap: list[tuple[float, int, WaitingBox]] = []  # boxes of equal bounds are taken in their order
        self._num_boxes = 0
        self._billed: set[bytes] = set()
        self._tables: OrderedDict[tuple[int, float], Stages] = OrderedDict()
        self._step = 0  # 0: nothing is billed yet, 1: there are no boxes yet, 2: the search

    def propose(self) -> Schedules | None:
        if self._step == 0:
            self._step += 1
            return self._look_ahead()
        if self._step == 1:
            self._step += 1
            multipliers = Multipliers(self._given.prices, np.zeros_like(self._given.prices), 0.0)
            for box in self._roots():
                self._wait(WaitingBox(box, Bound(0.0, multipliers, ())))
        if not self._heap or self.bound_usd() >= self._best * self._scale * (1 - ROUNDING):  # [1]
            return None
        waiting = heapq.heappop(self._heap)[2]
        if self._is_for_labels(waiting):  # [3]
            return self._by_labels(waiting)
        self._split(waiting)  # [4]
        return self._to_bill(self._cheaper(waiting))  # [2]

    def feedback(self, schedules: Schedules, bills: Bills) -> None:  # noqa: ARG002 - the search is over exact counts
        if len(schedules):
            self._best = min(self._best, float(exact(self._problem, schedules).usd.min()) / self._scale)

    def bound_usd(self) -> float:
        if self._step < 2:
            return 0.0
        known = self._heap[0][0] if self._heap else np.inf
        return min(self._best, self._aside, known) * self._scale

    @property
    def _cutoff(self) -> float:
        """The weight from which on boxes are of no interest: that of the best plan, or more than that of any."""
        return min(self._best, self._heaviest)

    def _roots(self) -> Iterator[Box]:
        """Yield one box for each number of lanes, which hold all plans together."""
        problem = self._problem
        servers = (1, 1)
        if needs_servers(problem):
            servers = (problem.least_servers, int(problem.limits[problem.server]) if problem.server >= 0 else 0)
        if servers[0] > servers[1]:
            return
        offers = problem.market.offers
        rented = (np.zeros_like(offers.limits), offers.limits)
        units = (np.zeros_like(problem.limits), problem.limits)
        for lanes in problem.lanes_of.tolist():
            first, slowest = self._stages(lanes, 0.0), self._stages(lanes, problem.tau_max).below
            fastest = first.below if first.below >= 0 else first.above
            if fastest <= slowest:
                yield Box(lanes, (fastest, slowest), (0.0, problem.tau_max), servers, rented, units)

    def _look_ahead(self) -> Schedules:
        """Propose single resources, so that there is something to compare with."""
        able = np.isfinite(self._given.terms[:, :, 1]).all(axis=1)
        return np.array([[t] * self._problem.num_layers for t in np.flatnonzero(able)], np.int16).reshape(
            -1, self._problem.num_layers
        )

    def _cheaper(self, waiting: WaitingBox) -> list[Schedules]:
        """Return those of the chains that limit a bound which are cheaper than the best with the counts of its box."""
        box, found = waiting.box, []
        stages, busy_s = self._stages(box.lanes, box.z[1]), self._problem.overhead_s + box.z[1]
        for schedule in self._unbilled([schedule for schedule, _ in waiting.bound.columns]):
            needs = stages.needs(schedule)
            if needs is None or (needs.units > self._given.limits).any():
                continue
            served_s = self._given.server_s + needs.moved_s
            weight, _, _ = kernels.cheapest_servers(
                self._given, needs.units, busy_s + needs.fill_s, served_s, needs.traffic, self._best
            )
            if weight < self._best:
                found.append(schedule)
        return found

    def _unbilled(self, schedules: list[Schedules]) -> list[Schedules]:
        """Return each schedule once, without those whose bills are known."""
        found = {schedule.tobytes(): schedule for schedule in schedules}
        return [schedule for key, schedule in found.items() if key not in self._billed]

    def _to_bill(self, schedules: list[Schedules]) -> Schedules:
        new = self._unbilled(schedules)
        self._billed.update(schedule.tobytes() for schedule in new)
        return np.array(new) if new else self._nothing

    def _stages(self, lanes: int, z: float) -> Stages:
        """Return the table of stages for z, which is made anew only if it has not been used for a while."""
        key = (lanes, z)
        if key not in self._tables:
            stages = self._tables[key] = Stages(self._given, lanes, z)
            while len(self._tables) > max(TABLE_BYTES // stages.arrays.counts.nbytes // 4, 4):
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return self._tables[key]

    def _wait(self, waiting: WaitingBox) -> None:  # [5]
        """Bound a box, and put it to the others if its plans may be cheaper than the best."""
        known, best = waiting.bound, self._cutoff
        box = self._narrowed(waiting.box)
        if box is None:
            return
        stages = self._stages(box.lanes, box.z[1])
        if self._is_small:
            found = self._bounds.steepest(box, stages, known, best)
        else:
            found = self._bounds.raised(box, stages, known, best, STEPS)
        if not found.weight > known.weight:
            found = found._replace(weight=known.weight)
        if found.weight < best * (1 - ROUNDING):
            self._push(waiting._replace(box=box, bound=found))

    def _narrowed(self, box: Box) -> Box | None:
        """Return the box without what its ranges of z and of seconds exclude of each other; None: nothing is left."""
        stages, longest = self._stages(box.lanes, box.z[1]), box.seconds[1]
        others_s = self._problem.overhead_s + float(stages.least_fill_s) + self._given.server_s / box.servers[1]
        shortest = max(box.seconds[0], others_s + box.z[0])
        if shortest > longest:
            return None
        longest_z = (longest - others_s) * (1 + 1e-9)  # a little more because of rounding errors
        if longest_z < box.z[1]:
            stages = self._stages(box.lanes, longest_z)
            box = box._replace(z=(box.z[0], max(box.z[0], stages.below)))
            self._tables[box.lanes, box.z[1]] = stages
        return box._replace(seconds=(shortest, longest))

    def _wait_all(self, waiting: WaitingBox, parts: list[Box]) -> None:
        for part in parts:
            self._wait(waiting._replace(box=part))

    def _push(self, waiting: WaitingBox) -> None:
        self._num_boxes += 1
        heapq.heappush(self._heap, (waiting.bound.weight, self._num_boxes, waiting))

    def _is_for_labels(self, waiting: WaitingBox) -> bool:
        box = waiting.box
        if self._is_small:
            return box.z[1] - box.z[0] <= NARROW * box.seconds[0]
        return self._loosest(waiting).share < LOOSE

    def _by_labels(self, waiting: WaitingBox) -> Schedules:
        """Search a box by labels, and put what they do not decide to the others again."""
        box = waiting.box
        stages = self._stages(box.lanes, box.z[1])
        labels = _Labels(WIDTHS[waiting.effort], self._problem)
        limits = self._bounds.for_labels(box, stages, waiting.bound, self._cutoff)
        bound, schedules = labels.search(self._given, stages, limits, box.z[0] + self._problem.overhead_s, self._cutoff)
        waiting = waiting._replace(bound=waiting.bound._replace(weight=max(bound, waiting.bound.weight)))
        if waiting.bound.weight < self._cutoff * (1 - ROUNDING):
            if box.z[0] < box.z[1]:  # no other range makes complete plans cheaper than they are
                self._wait_all(waiting, self._halves_of_z(box))
            elif waiting.effort + 1 < len(WIDTHS):
                self._push(waiting._replace(effort=waiting.effort + 1))
            else:
                self._split(waiting)
        return self._to_bill(list(schedules))

    def _split(self, waiting: WaitingBox) -> None:
        """Replace a box by two, or set it aside if nothing is gained by that."""
        box = waiting.box
        loose = self._loosest(waiting)
        if loose.share < LEAST_LOOSE and box.z[0] == box.z[1]:
            self._aside = min(self._aside, waiting.bound.weight)
            return
        if loose.range == "z" or loose.share < LEAST_LOOSE:
            parts = self._halves_of_z(box)
        elif loose.range == "seconds":
            parts = halves_of_seconds(box)
        elif loose.range == "servers":
            parts = halves_of_servers(box)
        elif loose.range == "rented":
            parts = halves_of_rented(box, loose.which)
        else:
            parts = halves_of_units(box, loose.which, loose.middle)
        self._wait_all(waiting, parts)

    def _loosest(self, waiting: WaitingBox) -> Loose:
        return loosest(waiting.box, waiting.bound.weight, waiting.bound.mixed, self._given.offers)

    def _halves_of_z(self, box: Box) -> list[Box]:
        lo, hi = box.z
        middle = self._stages(box.lanes, (lo + hi) / 2)
        if middle.below >= hi:  # but for rounding errors they are the same
            return [box._replace(z=(lo, lo)), box._replace(z=(hi, hi))]
        self._tables[box.lanes, middle.below] = middle
        return [box._replace(z=(lo, max(lo, middle.below))), box._replace(z=(min(middle.above, hi), hi))]


def _heaviest(problem: Problem) -> float:
    """Return a weight that is above that of every plan."""
    offers, limits = problem.market.offers, problem.limits[:, None]
    paid = all_paid_s(offers, problem.tau_max)
    sent = (problem.terms[:, :, 14] + limits * problem.terms[:, :, 15]).max(axis=0).sum()
    traffic = float(sent + problem.borders.max(axis=(1, 2)).sum())
    weight = float((offers.usd * paid) @ offers.limits) + traffic + problem.disk_usd * problem.tau_max
    return weight * stretch(float(offers.risk @ offers.limits)) * (1 + 1e-9) or 1.0


class _Labels(Labels):
    """Labels of plans in rounds: see round_labels.py."""

    def __init__(self, width: int, problem: Problem) -> None:
        num_resources = len(problem.resources)
        super().__init__(width, problem.num_layers, num_resources)
        units = np.empty((self.total, num_resources), np.int64)
        paid, bound = np.empty(self.total), np.empty(self.total)
        self._arrays = RoundLabels(np.empty((self.total, 3)), units, paid, bound, self.before, self.num)

    def search(
        self, given: KernelInputs, stages: Stages, box: BoxOfLabels, busy_s: float, best: float
    ) -> tuple[float, Schedules]:
        """Return a lower bound on the weight of plans of the box, and the schedules of light labels.

        `busy_s` are the seconds of a round besides micro-batches and servers. A schedule is worth a bill only where the
        bound is below `best`.
        """
        dropped = round_labels(given, stages.arrays, box, best, self._arrays)
        ends = {label: self._weight(given, label, busy_s) for label in self.ends()}
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
