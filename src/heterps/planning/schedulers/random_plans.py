"""Draw sensible random schedules: runs of layers on one resource, which is more likely the less the run costs there.

whole:    all layers on one resource                         a a a a a a a a
          then up to MOST_CHANGES runs on others             a a b b b a a c
changed:  a given schedule with a run on another resource:   a a b b d d d c
          any run, or just a stage,                          a a d d d a a c
          a border moved: a stage grows over a neighbour,    a a a b b a a c
          or the run as another schedule has it              a a b e e f a c
"""

from __future__ import annotations

import numpy as np

from heterps.planning.cost import Ints, Schedules
from heterps.planning.schedulers.features import Features, cost_logits

MOST_CHANGES = 3
STAGES = 0.5  # share of changed runs that are a stage, or a part of one that begins at its border
TIMES = (0.5, 0.3, 0.2)  # shares of changed schedules with one, two and three changed runs
GROWN, CROSSED = 0.25, 0.25  # shares of changed runs that take a neighbour's resource, or another schedule's resources


class RandomPlans:
    """Draws random schedules, and random changes of given schedules."""

    def __init__(self, features: Features, rng: np.random.Generator) -> None:
        self._rng = rng
        self._runs = features.runs
        # A layer that cannot run on a resource is put elsewhere, so it does not make the resource less likely.
        least = np.where(features.runs, features.usd, np.inf).min(axis=1, keepdims=True)
        usd = np.where(features.runs, features.usd, least)
        nothing = np.zeros(usd.shape[1])
        self._usd = np.vstack([nothing, usd.cumsum(axis=0)])  # [N + 1, T]: cost of all layers before
        self._able = np.vstack([nothing, features.runs.cumsum(axis=0)])  # number of these layers that can run there

    def whole(self, num: int) -> Schedules:
        """Draw schedules [num, N]."""
        num_layers = len(self._runs)
        schedules = np.zeros((num, num_layers), np.int16)
        first, last = np.zeros(num, np.int64), np.full(num, num_layers - 1)
        schedules = self._put(schedules, first, last)
        changes = self._rng.integers(MOST_CHANGES + 1, size=num)
        for i in range(MOST_CHANGES):
            schedules[changes > i] = self._changed_once(schedules[changes > i])
        return schedules

    def changed(self, schedules: Schedules) -> Schedules:
        """Move one or several runs of layers of each schedule [n, N] to other resources.

        Several, because two stations may both have to become faster before either change pays.
        """
        schedules = schedules.copy()
        times = 1 + self._rng.choice(len(TIMES), size=len(schedules), p=TIMES)
        for i in range(len(TIMES)):
            schedules[times > i] = self._changed_once(schedules[times > i])
        return schedules

    def _changed_once(self, schedules: Schedules) -> Schedules:
        """Move one run of layers of each schedule [n, N] to other resources; some may stay the same."""
        num, num_layers = schedules.shape
        first, last = pick_runs(schedules, self._rng)
        layers = np.arange(num_layers)
        inside = (layers >= first[:, None]) & (layers <= last[:, None])
        beside = np.where(self._rng.random(num) < 0.5, first - 1, last + 1)
        neighbour = schedules[np.arange(num), np.clip(beside, 0, num_layers - 1)][:, None]
        grown = np.where(inside & self._runs[layers, neighbour], neighbour, schedules)
        crossed = np.where(inside, self._rng.permutation(schedules), schedules)
        how = self._rng.random((num, 1))
        return np.where(how < GROWN, grown, np.where(how < GROWN + CROSSED, crossed, self._put(schedules, first, last)))

    def _put(self, schedules: Schedules, first: Ints, last: Ints) -> Schedules:
        num, num_layers = schedules.shape
        likely = cost_logits(self._usd[last + 1] - self._usd[first])
        likely *= self._rng.random((num, 1))  # some by cost, others hardly: the costs of a run alone can mislead
        likely[self._able[last + 1] == self._able[first]] = -np.inf
        resource = (likely + self._rng.gumbel(size=likely.shape)).argmax(axis=1)
        layers = np.arange(num_layers)
        inside = (layers >= first[:, None]) & (layers <= last[:, None])
        put = np.where(inside, resource[:, None], schedules)
        others = np.where(self._runs, self._rng.random((num, *self._runs.shape)), -1.0).argmax(axis=2)
        return np.where(self._runs[layers, put], put, others).astype(np.int16)


def pick_runs(schedules: Schedules, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Draw a run of layers (first, last) [n] for each schedule [n, N]: any run, or one that begins or ends a stage."""
    num, num_layers = schedules.shape
    ends = np.sort(rng.integers(num_layers, size=(num, 2)), axis=1)
    any_first, any_last = ends[:, 0], ends[:, 1]
    rows, layers = np.arange(num), np.arange(num_layers)
    border = schedules[:, 1:] != schedules[:, :-1]
    starts = np.maximum.accumulate(np.where(np.pad(border, ((0, 0), (1, 0))), layers, 0), axis=1)
    stops = np.minimum.accumulate(np.where(np.pad(border, ((0, 0), (0, 1))), layers, num_layers - 1)[:, ::-1], axis=1)
    start, stop = starts[rows, any_first], stops[:, ::-1][rows, any_first]
    inner = rng.integers(start, stop + 1)
    part = rng.integers(3, size=num)  # the whole stage, its beginning, its end
    first, last = np.where(part == 2, inner, start), np.where(part == 1, inner, stop)
    stage = rng.random(num) < STAGES
    return np.where(stage, first, any_first), np.where(stage, last, any_last)
