"""Random changes of the best schedules so far: method `changes`, and the search that the learned scheduler builds on.

    search, by the cost model                                                online, by measured trials
    restarts at other paces --> restarts without ... --> last restart -----> start_trials ------>
    which draw by costs as      something that the       has all resources,  the search continues,
    of a faster plan            best relies on,          and begins with     a few schedules at a time
                                until none is better     the elites of all

A restart begins with random schedules, changes the best of them at random (random_plans.py), and ends when its best has
not improved for a while: it is in a local optimum. So each restart sees another version of the problem: first the costs
of layers in a plan that is two, four or more times as fast; then, at a pace slightly faster than the best so far,
without something that the best relies on: all GPUs, all CPUs, or one of its resources. No schedule is billed twice.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from heterps.devices import kind_of
from heterps.planning.cost import Floats, Problem, Schedules
from heterps.planning.provisioners.base import Bills
from heterps.planning.schedulers.base import Unproven
from heterps.planning.schedulers.elites import Elites, score
from heterps.planning.schedulers.features import Features, fastest_s, features_of
from heterps.planning.schedulers.random_plans import RandomPlans

BATCH = 32
RANDOM = 16  # number of random plans in the first batch of a restart
PACES = (0.6, 0.36, 0.2, 0.12)  # tau of the restarts after the first, relative to tau_max
PATIENCE = 6  # number of batches without a better schedule after which a restart ends
FASTER = 0.7  # tau of restarts without some resources, relative to that of the best schedule
LEAST_PACE = 1.02  # smallest tau, relative to the lower bound on the seconds per batch
MOST_RESTARTS = 5  # largest number in a row without a better schedule, before the last restart
SPARE = 3  # number of draws per wanted schedule, since some were billed before
ROUNDS, TEMPERATURE_STEP = 3, 2.0  # rounds of draws until enough are new; each multiplies the temperature by the step


class Changes(Unproven):
    """The scheduler of method `changes`. A subclass may draw some schedules otherwise (_draw), and learn (_learn)."""

    _elites: Elites
    _plans: RandomPlans
    _queue: Schedules  # to be billed before anything is drawn
    _stale: int  # number of batches without a better schedule

    def __init__(self, problem: Problem, seed: int) -> None:
        self._problem = problem
        self._paces = [
            pace * problem.tau_max for pace in PACES if pace * problem.tau_max > LEAST_PACE * fastest_s(problem)
        ]
        self._tau = problem.tau_max  # seconds per batch of the best schedule
        self._rng = np.random.default_rng(seed)
        self._devices = [kind_of(problem.cluster.resources[name].device) for name in problem.resources]
        self._batch = BATCH
        self._seen: set[bytes] = set()
        self._past: list[Elites] = []  # of earlier restarts
        self._best = -np.inf
        self._is_better = False  # than when it was last decided what to withhold
        self._to_withhold: list[list[int]] = []
        self._last = False
        self._done = False
        self._restart(features_of(problem, problem.tau_max))

    def propose(self) -> Schedules | None:
        if self._done:
            return None
        if self._stale >= PATIENCE:
            return self._end_restart()
        schedules = self._new(self._queue)[: self._batch]
        self._queue = self._queue[self._batch :]
        temperature = 1.0
        for _ in range(ROUNDS):
            if len(schedules) >= self._batch:
                break
            schedules = self._new(np.concatenate([schedules, self._draw(SPARE * self._batch, temperature)]))
            temperature *= TEMPERATURE_STEP
        return schedules[: self._batch] if len(schedules) else self._end_restart()

    def feedback(self, schedules: Schedules, bills: Bills) -> None:
        scores = score(bills)
        self._seen.update(row.tobytes() for row in schedules)
        before = self._elites.best
        self._elites.remember(schedules, scores)
        self._stale = 0 if self._elites.best > before else self._stale + 1
        if scores.max() > self._best:
            self._best = float(scores.max())
            self._is_better = True
            if (throughput := bills.throughput[scores.argmax()]) > 0:
                self._tau = self._problem.profile.batch_size / float(throughput)
        self._learn(schedules, scores)

    def start_trials(self, batch: int) -> None:
        """Continue with measured bills, `batch` at a time.

        Call it between two searches. Bills seen so far are forgotten; the best schedules by them are proposed first.
        """
        if not self._last and self._past:  # the search ended early, maybe in a restart without some resources
            self._restart_with([*self._past, self._elites])
        self._batch = batch
        self._seen.clear()
        self._stale, self._last, self._done = 0, True, False
        self._queue = self._elites.schedules
        self._elites = Elites(self._problem.num_layers)

    def _draw(self, num: int, temperature: float) -> Schedules:  # noqa: ARG002 - of policies
        """Draw schedules [num, N] that may be worth a bill."""
        if not len(self._elites):
            return self._plans.whole(num)
        return self._plans.changed(self._elites.some(num, self._rng))

    def _learn(self, schedules: Schedules, scores: Floats) -> None:
        """Learn the scores of schedules; the elites know them already."""

    def _likely(self) -> Schedules:
        """Return what a restart proposes at its end: nothing unless there is a policy."""
        return self._elites.schedules[:0]

    def _restart(self, features: Features) -> None:
        self._elites = Elites(self._problem.num_layers)
        self._plans = RandomPlans(features, self._rng)
        self._queue = self._plans.whole(RANDOM)
        self._stale = 0

    def _restart_with(self, past: Iterable[Elites]) -> None:
        """Restart at the pace of the best schedule, with all resources and the elites of earlier restarts."""
        self._restart(features_of(self._problem, self._tau))
        for elites in past:
            self._elites.remember(elites.schedules, elites.scores)

    def _end_restart(self) -> Schedules:
        """Return the schedules of this restart that are still to be billed; begin the next unless it is the last."""
        final = self._new(self._likely())
        if self._last:
            self._done = True
            return final
        self._past.append(self._elites)
        if self._paces:
            self._restart(features_of(self._problem, self._paces.pop(0)))
            return final
        if self._is_better:
            self._is_better = False
            best = max(self._past, key=lambda elites: elites.best)
            self._to_withhold = self._relied_on(best.schedules[0])[:MOST_RESTARTS]
        self._last = not self._to_withhold
        if self._last:
            self._restart_with(self._past)
        else:
            tau = max(FASTER * self._tau, LEAST_PACE * fastest_s(self._problem))
            self._restart(features_of(self._problem, tau).without(self._to_withhold.pop(0)))
        return final

    def _relied_on(self, schedule: Schedules) -> list[list[int]]:
        """Return the sets of resources that a schedule [N] relies on, those of most layers first.

        First all resources of each of its devices, then each of its resources alone.
        """
        used, layers = np.unique(schedule, return_counts=True)
        singles = [int(t) for t in used[np.argsort(-layers, kind="stable")]]
        devices = dict.fromkeys(self._devices[t] for t in singles)
        alike = [[t for t, device in enumerate(self._devices) if device == name] for name in devices]
        return [*alike, *([t] for t in singles if [t] not in alike)]

    def _new(self, schedules: Schedules) -> Schedules:
        """Return the schedules that were not billed yet, each once, in order."""
        new = {row.tobytes(): row for row in schedules}
        rows = [row for key, row in new.items() if key not in self._seen]
        return np.array(rows, np.int16).reshape(-1, schedules.shape[1])
