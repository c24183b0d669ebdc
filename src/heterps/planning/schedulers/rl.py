"""The learned scheduler: policies trained by REINFORCE to propose cheap schedules (`rl`: LSTM, `rl-rnn`: Elman cell).

    pre-training, by the cost model                                      on-line, by measured trials
    lives at other paces --> lives without ... ---> last life ---------> start_trials ------>
    a new policy each,       something that the     has all resources,   the same policy goes on,
    which sees costs as      best relies on,        and begins with the  a few schedules at a time
    of a faster plan         until none is better   elites of all lives

A life ends when its best has not improved for a while. A policy settles in the first good valley, so each further life
is shown another side of the problem: what layers cost if the plan is to be twice as fast, or four times; then, a bit
faster than the best so far, without something that this relies on: all GPUs, all CPUs, one of its resources. No
schedule is billed twice.
"""

from __future__ import annotations

import numpy as np

from heterps.planning.cost import Floats, Problem, Schedules
from heterps.planning.provisioners.base import Bills
from heterps.planning.schedulers.base import Unproven
from heterps.planning.schedulers.features import Features, fastest_s, features_of
from heterps.planning.schedulers.learner import Learner, Settings
from heterps.planning.schedulers.policy import Cell
from heterps.planning.schedulers.random_plans import RandomPlans

BATCH = 32
RANDOM = 16  # plans of a life's first batch that are drawn at random
CHANGED = 0.33  # of later draws: elites changed at random
PACES = (0.6, 0.36, 0.2, 0.12)  # of tau_max, that lives after the first look at costs by
PATIENCE = 6  # batches without a better schedule that end a life
FASTER = 0.7  # the pace of lives that must do without something, of that of the best
LEAST_PACE = 1.02  # of the seconds that no schedule is faster than
LIVES = 5  # at most in a row without a better schedule, before the last one begins
SPARE = 3  # draws for each schedule wanted, since some were billed before
ROUNDS, WARMER = 3, 2.0  # of draws, each warmer than the last, until enough are new
INFEASIBLE = -1e3
"""Score of an infeasible schedule with no violation: below that of any cost, which is a logarithm."""


class Reinforce(Unproven):
    _life: Learner
    _plans: RandomPlans

    def __init__(self, problem: Problem, seed: int, cell: Cell = "lstm", settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._cell: Cell = cell
        self._problem = problem
        self._paces = [
            pace * problem.tau_max for pace in PACES if pace * problem.tau_max > LEAST_PACE * fastest_s(problem)
        ]
        self._tau = problem.tau_max  # of the best schedule
        self._rng = np.random.default_rng(seed)
        self._devices = [problem.cluster.resources[name].device for name in problem.resources]
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
        self._begin_life(features_of(problem, problem.tau_max))

    def propose(self) -> Schedules | None:
        if self._done:
            return None
        if self._stale >= PATIENCE:
            return self._end_life()
        schedules = self._new(self._queue)[: self._batch]
        self._queue = self._queue[self._batch :]
        warmth = 1.0
        for _ in range(ROUNDS):
            if len(schedules) >= self._batch:
                break
            schedules = self._new(np.concatenate([schedules, self._draw(SPARE * self._batch, warmth)]))
            warmth *= WARMER
        return schedules[: self._batch] if len(schedules) else self._end_life()

    def feedback(self, schedules: Schedules, bills: Bills) -> None:
        scores = _scores(bills)
        self._seen.update(row.tobytes() for row in schedules)
        before = self._life.best
        self._life.remember(schedules, scores)
        self._stale = 0 if self._life.best > before else self._stale + 1
        if scores.max() > self._best:
            self._best = float(scores.max())
            self._is_better = True
            if (throughput := bills.throughput[scores.argmax()]) > 0:
                self._tau = self._problem.profile.batch_size / float(throughput)
        self._life.learn(schedules, scores)

    def start_trials(self, batch: int) -> None:
        """Go on from what was learned, with bills of another kind, `batch` at a time.

        Call it between two searches. Bills seen so far are forgotten; the best schedules by them are proposed first.
        """
        if not self._last and self._past:  # a search that was cut short, maybe in a life with resources withheld
            self._inherit(self._past[0], [*self._past[1:], self._life])
            features = features_of(self._problem, self._tau)
            self._life, self._plans = self._past[0], RandomPlans(features, self._rng)
        self._batch = batch
        self._seen.clear()
        self._stale, self._last, self._done = 0, True, False
        self._queue = self._life.elites
        self._life.forget()

    def _draw(self, num: int, warmth: float) -> Schedules:
        """[num, N]: from the policy, its most likely first, and elites changed at random."""
        elites = self._life.some_elites(round(num * CHANGED))
        drawn = np.concatenate([self._life.draw(num - len(elites), warmth), self._plans.changed(elites)])
        drawn[1:] = self._rng.permutation(drawn[1:])
        return drawn

    def _begin_life(self, features: Features) -> None:
        self._life = Learner(features, self._cell, self._settings, seed=int(self._rng.integers(1 << 31)))
        self._plans = RandomPlans(features, self._rng)
        self._queue = self._plans.whole(RANDOM)
        self._stale = 0

    def _end_life(self) -> Schedules:
        """What is still to be billed of this life; the next one has begun, unless it was the last."""
        final = self._new(self._life.most_likely())
        if self._last:
            self._done = True
            return final
        self._past.append(self._life)
        if self._paces:
            self._begin_life(features_of(self._problem, self._paces.pop(0)))
            return final
        if self._is_better:
            self._is_better = False
            best = max(self._past, key=lambda life: life.best)
            self._to_withhold = self._relied_on(best.elites[0])[:LIVES]
        self._last = not self._to_withhold
        if not self._last:
            tau = max(FASTER * self._tau, LEAST_PACE * fastest_s(self._problem))
            self._begin_life(features_of(self._problem, tau).without(self._to_withhold.pop(0)))
            return final
        self._begin_life(features_of(self._problem, self._tau))
        self._inherit(self._life, self._past)
        return final

    @staticmethod
    def _inherit(heir: Learner, lives: list[Learner]) -> None:
        for life in lives:
            heir.remember(life.elites, life.scores)

    def _relied_on(self, schedule: Schedules) -> list[list[int]]:
        """What a schedule [N] uses and others may do without: its devices, each with all resources of that device, then
        its resources; those of most layers first.
        """
        used, layers = np.unique(schedule, return_counts=True)
        singles = [int(t) for t in used[np.argsort(-layers, kind="stable")]]
        devices = dict.fromkeys(self._devices[t] for t in singles)
        alike = [[t for t, device in enumerate(self._devices) if device == name] for name in devices]
        return [*alike, *([t] for t in singles if [t] not in alike)]

    def _new(self, schedules: Schedules) -> Schedules:
        """Those not billed yet, each once, in order."""
        new = {row.tobytes(): row for row in schedules}
        rows = [row for key, row in new.items() if key not in self._seen]
        return np.array(rows, np.int16).reshape(-1, schedules.shape[1])


def _scores(bills: Bills) -> Floats:
    """Higher is better: -log USD, and below all of these, by how much it is violated, what is infeasible."""
    feasible = np.isfinite(bills.usd)
    usd = np.where(feasible, np.maximum(bills.usd, np.finfo(float).tiny), 1.0)
    return np.where(feasible, -np.log(usd), INFEASIBLE - bills.violation)
