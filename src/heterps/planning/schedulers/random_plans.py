"""Sensible schedules at random: runs of layers on one resource, the likelier the less the run would cost there.

whole:    all layers on one resource                a a a a a a a a
          then up to MOST_CHANGES runs on others    a a b b b a a c
changed:  a given schedule with one run on another  a a b b d d d c
"""

from __future__ import annotations

import numpy as np

from heterps.planning.cost import Ints, Schedules
from heterps.planning.schedulers.features import Features, likeliness

MOST_CHANGES = 3


class RandomPlans:
    def __init__(self, features: Features, rng: np.random.Generator) -> None:
        self._rng = rng
        self._runs = features.runs
        # A layer that cannot run there is put elsewhere, so it does not speak against a resource for the others.
        least = np.where(features.runs, features.usd, np.inf).min(axis=1, keepdims=True)
        usd = np.where(features.runs, features.usd, least)
        nothing = np.zeros(usd.shape[1])
        self._usd = np.vstack([nothing, usd.cumsum(axis=0)])  # [N + 1, T], of all layers before
        self._able = np.vstack([nothing, features.runs.cumsum(axis=0)])  # how many of them can run there

    def whole(self, num: int) -> Schedules:
        """[num, N]"""
        num_layers = len(self._runs)
        schedules = np.zeros((num, num_layers), np.int16)
        first, last = np.zeros(num, np.int64), np.full(num, num_layers - 1)
        schedules = self._put(schedules, first, last)
        changes = self._rng.integers(MOST_CHANGES + 1, size=num)
        for i in range(MOST_CHANGES):
            schedules[changes > i] = self.changed(schedules[changes > i])
        return schedules

    def changed(self, schedules: Schedules) -> Schedules:
        """[n, N], each of the given ones with one run of layers put on another resource, or the same again."""
        ends = np.sort(self._rng.integers(len(self._runs), size=(len(schedules), 2)), axis=1)
        return self._put(schedules, ends[:, 0], ends[:, 1])

    def _put(self, schedules: Schedules, first: Ints, last: Ints) -> Schedules:
        num, num_layers = schedules.shape
        likely = likeliness(self._usd[last + 1] - self._usd[first])
        likely *= self._rng.random((num, 1))  # some by cost, others hardly: the costs of a run alone can mislead
        likely[self._able[last + 1] == self._able[first]] = -np.inf
        resource = (likely + self._rng.gumbel(size=likely.shape)).argmax(axis=1)
        layers = np.arange(num_layers)
        inside = (layers >= first[:, None]) & (layers <= last[:, None])
        put = np.where(inside, resource[:, None], schedules)
        others = np.where(self._runs, self._rng.random((num, *self._runs.shape)), -1.0).argmax(axis=2)
        return np.where(self._runs[layers, put], put, others).astype(np.int16)
