"""The learned scheduler: policies trained by REINFORCE to propose cheap schedules (`rl`: LSTM, `rl-rnn`: Elman cell).

    pre-training, by the cost model                                          online, by measured trials
    restarts at other paces --> restarts without ... --> last restart -----> start_trials ------>
    a new policy each,          something that the       has all resources,  the same policy continues,
    which sees costs as of      best relies on,          and begins with     a few schedules at a time
    a faster plan               until none is better     the elites of all

A restart ends when its best schedule has not improved for a while. A policy converges to a local optimum, so each
restart sees another version of the problem: first the costs of layers in a plan that is two, four or more times as
fast; then, at a pace slightly faster than the best so far, without something that the best relies on: all GPUs, all
CPUs, or one of its resources. No schedule is billed twice.
"""

from __future__ import annotations

import numpy as np

from heterps.devices import kind_of
from heterps.planning.cost import Floats, Problem, Schedules
from heterps.planning.provisioners.base import Bills
from heterps.planning.schedulers.base import Unproven
from heterps.planning.schedulers.features import Features, fastest_s, features_of
from heterps.planning.schedulers.learner import Learner, Settings
from heterps.planning.schedulers.policy import Cell
from heterps.planning.schedulers.random_plans import RandomPlans

BATCH = 32
RANDOM = 16  # number of random plans in the first batch of a restart
CHANGED = 0.33  # share of later draws that are elites with random changes
PACES = (0.6, 0.36, 0.2, 0.12)  # tau of the restarts after the first, relative to tau_max
PATIENCE = 6  # number of batches without a better schedule after which a restart ends
FASTER = 0.7  # tau of restarts without some resources, relative to that of the best schedule
LEAST_PACE = 1.02  # smallest tau, relative to the lower bound on the seconds per batch
MOST_RESTARTS = 5  # largest number in a row without a better schedule, before the last restart
SPARE = 3  # number of draws per wanted schedule, since some were billed before
ROUNDS, TEMPERATURE_STEP = 3, 2.0  # rounds of draws until enough are new; each multiplies the temperature by the step
INFEASIBLE = -1e3
"""Score of an infeasible schedule with no violation: below that of any cost, which is a logarithm."""


class Reinforce(Unproven):
    """The scheduler of the methods `rl` and `rl-rnn`."""

    _learner: Learner
    _plans: RandomPlans

    def __init__(self, problem: Problem, seed: int, cell: Cell = "lstm", settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._cell: Cell = cell
        self._problem = problem
        self._paces = [
            pace * problem.tau_max for pace in PACES if pace * problem.tau_max > LEAST_PACE * fastest_s(problem)
        ]
        self._tau = problem.tau_max  # seconds per batch of the best schedule
        self._rng = np.random.default_rng(seed)
        self._devices = [kind_of(problem.cluster.resources[name].device) for name in problem.resources]
        self._batch = BATCH
        self._seen: set[bytes] = set()
        self._past: list[Learner] = []
        self._best = -np.inf
        self._is_better = False  # than when it was last decided what to withhold
        self._to_withhold: list[list[int]] = []
        self._last = False
        self._done = False
        self._stale = 0
        self._queue: Schedules = np.empty((0, problem.num_layers), np.int16)
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
        scores = _scores(bills)
        self._seen.update(row.tobytes() for row in schedules)
        before = self._learner.best
        self._learner.remember(schedules, scores)
        self._stale = 0 if self._learner.best > before else self._stale + 1
        if scores.max() > self._best:
            self._best = float(scores.max())
            self._is_better = True
            if (throughput := bills.throughput[scores.argmax()]) > 0:
                self._tau = self._problem.profile.batch_size / float(throughput)
        self._learner.learn(schedules, scores)

    def start_trials(self, batch: int) -> None:
        """Continue with the learned policy and measured bills, `batch` at a time.

        Call it between two searches. Bills seen so far are forgotten; the best schedules by them are proposed first.
        """
        if not self._last and self._past:  # the search ended early, maybe in a restart without some resources
            self._inherit(self._past[0], [*self._past[1:], self._learner])
            features = features_of(self._problem, self._tau)
            self._learner, self._plans = self._past[0], RandomPlans(features, self._rng)
        self._batch = batch
        self._seen.clear()
        self._stale, self._last, self._done = 0, True, False
        self._queue = self._learner.elites
        self._learner.forget()

    def _draw(self, num: int, temperature: float) -> Schedules:
        """Draw schedules [num, N]: from the policy, the most likely first, and elites with random changes."""
        elites = self._learner.some_elites(round(num * CHANGED))
        drawn = np.concatenate([self._learner.draw(num - len(elites), temperature), self._plans.changed(elites)])
        drawn[1:] = self._rng.permutation(drawn[1:])
        return drawn

    def _restart(self, features: Features) -> None:
        self._learner = Learner(features, self._cell, self._settings, seed=int(self._rng.integers(1 << 31)))
        self._plans = RandomPlans(features, self._rng)
        self._queue = self._plans.whole(RANDOM)
        self._stale = 0

    def _end_restart(self) -> Schedules:
        """Return the schedules of this restart that are still to be billed; begin the next unless it is the last."""
        final = self._new(self._learner.most_likely())
        if self._last:
            self._done = True
            return final
        self._past.append(self._learner)
        if self._paces:
            self._restart(features_of(self._problem, self._paces.pop(0)))
            return final
        if self._is_better:
            self._is_better = False
            best = max(self._past, key=lambda learner: learner.best)
            self._to_withhold = self._relied_on(best.elites[0])[:MOST_RESTARTS]
        self._last = not self._to_withhold
        if not self._last:
            tau = max(FASTER * self._tau, LEAST_PACE * fastest_s(self._problem))
            self._restart(features_of(self._problem, tau).without(self._to_withhold.pop(0)))
            return final
        self._restart(features_of(self._problem, self._tau))
        self._inherit(self._learner, self._past)
        return final

    @staticmethod
    def _inherit(heir: Learner, learners: list[Learner]) -> None:
        for learner in learners:
            heir.remember(learner.elites, learner.scores)

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


def _scores(bills: Bills) -> Floats:
    """Score bills, higher is better: -log USD if feasible; infeasible ones are below all of these, by violation."""
    feasible = np.isfinite(bills.usd)
    usd = np.where(feasible, np.maximum(bills.usd, np.finfo(float).tiny), 1.0)
    return np.where(feasible, -np.log(usd), INFEASIBLE - bills.violation)
