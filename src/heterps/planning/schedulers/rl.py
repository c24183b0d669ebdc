"""The learned scheduler: policies trained by REINFORCE to propose cheap schedules (`rl`: LSTM, `rl-rnn`: Elman cell).

    pre-training, by the cost model                                      on-line, by measured trials
    life 1 -----> life 2 -----> ... -----> last life ------------------> start_trials ------->
    random plans  a new policy   until a few   starts with the          the same policy, from a few
    and draws     with other     in a row find  elites of all            schedules at a time
                  tastes         nothing better lives

A life ends when its best has not improved for a while. A single policy settles in the first good valley; lives that
begin with other tastes look into others, and the last one combines what they found. No schedule is billed twice.
"""

from __future__ import annotations

import numpy as np

from heterps.planning.cost import Floats, Problem, Schedules
from heterps.planning.provisioners.base import Bills
from heterps.planning.schedulers.base import Heuristic
from heterps.planning.schedulers.features import features_of
from heterps.planning.schedulers.learner import Learner, Settings
from heterps.planning.schedulers.policy import Cell

BATCH = 32
RANDOM = 16  # plans of a life's first batch that are drawn at random
MOST_STAGES = 4  # of a plan drawn at random
PATIENCE = 8  # batches without a better schedule that end a life
LIVES = 3  # in a row without a better schedule that end the search
DOUBT = 1.5
SPARE, ROUNDS, WARMER = (
    3,
    3,
    2.0,
)  # draws for each schedule wanted; further rounds when too few are new; warmer each time
INFEASIBLE = -1e3
"""Score of an infeasible schedule with no violation: below that of any cost, which is a logarithm."""


class Reinforce(Heuristic):
    def __init__(self, problem: Problem, seed: int, cell: Cell = "lstm", settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._cell: Cell = cell
        self._features = features_of(problem)
        self._rng = np.random.default_rng(seed)
        self._batch = BATCH
        self._seen: set[bytes] = set()
        self._life = self._new_life(doubt=0.0)
        self._past = self._new_life(doubt=0.0)  # remembers the elites of all lives, and never learns
        self._queue: Schedules = self._random(RANDOM)
        self._stale = 0
        self._failures = 0
        self._last = False
        self._done = False

    def propose(self) -> Schedules | None:
        if self._done:
            return None
        if self._stale >= PATIENCE:
            return self._end_life()
        schedules = self._new(self._queue)[: self._batch]
        self._queue = self._queue[:0]
        if len(self._life.elites):
            schedules = self._new(np.concatenate([schedules, self._life.most_likely()]))
        warmth = 1.0
        for _ in range(ROUNDS):
            if len(schedules) >= self._batch:
                break
            drawn = self._life.draw(SPARE * self._batch, warmth)
            schedules = self._new(np.concatenate([schedules, drawn]))
            warmth *= WARMER
        return schedules[: self._batch] if len(schedules) else self._end_life()

    def feedback(self, schedules: Schedules, bills: Bills) -> None:
        scores = _scores(bills)
        self._seen.update(row.tobytes() for row in schedules)
        best = self._best(self._life)
        self._life.remember(schedules, scores)
        self._stale = 0 if self._best(self._life) > best else self._stale + 1
        self._life.learn(schedules, scores)

    def start_trials(self, batch: int) -> None:
        """Go on from what was learned, with bills of another kind, `batch` at a time.

        Call it between two searches. Bills seen so far are forgotten; the best schedules by them are proposed first.
        """
        self._batch = batch
        self._seen.clear()
        self._stale, self._last, self._done = 0, True, False
        self._queue = self._life.elites
        self._life.forget()

    def _end_life(self) -> Schedules:
        if self._last:
            self._done = True
            return self._new(self._life.most_likely())
        self._failures = (
            0 if self._best(self._life) > self._best(self._past) or self._past is self._life else self._failures + 1
        )
        if self._past is not self._life:
            self._past.remember(self._life.elites, self._life.scores)
        self._stale = 0
        if self._failures >= LIVES:
            self._last = True
            self._life = self._new_life(doubt=0.0)
            self._life.remember(self._past.elites, self._past.scores)
            return self._nothing()
        self._life = self._new_life(doubt=DOUBT)
        self._queue = self._random(RANDOM)
        return self._nothing()

    def _nothing(self) -> Schedules:
        return self._queue[:0]

    def _new_life(self, doubt: float) -> Learner:
        return Learner(self._features, self._cell, self._settings, int(self._rng.integers(1 << 31)), doubt)

    @staticmethod
    def _best(life: Learner) -> float:
        return float(life.scores[0]) if len(life.scores) else -np.inf

    def _new(self, schedules: Schedules) -> Schedules:
        """Those not billed yet, each once, in order."""
        new = {row.tobytes(): row for row in schedules}
        rows = [row for key, row in new.items() if key not in self._seen]
        return np.array(rows, np.int16).reshape(-1, schedules.shape[1])

    def _random(self, num: int) -> Schedules:
        """Plans [num, N] of 1 to about MOST_STAGES stages on random resources; a layer that cannot run there runs on
        another.
        """
        runs = self._features.runs
        num_layers, num_resources = runs.shape
        borders = self._rng.random((num, num_layers)) < self._rng.uniform(0, MOST_STAGES / num_layers, size=(num, 1))
        of_stage = self._rng.integers(num_resources, size=(num, num_layers + 1))
        schedules = np.take_along_axis(of_stage, borders.cumsum(axis=1), axis=1)
        others = np.where(runs, self._rng.random((num, *runs.shape)), -1.0).argmax(axis=2)
        return np.where(runs[np.arange(num_layers), schedules], schedules, others).astype(np.int16)


def _scores(bills: Bills) -> Floats:
    """Higher is better: -log USD, and below all of these, by how much it is violated, what is infeasible."""
    feasible = np.isfinite(bills.usd)
    usd = np.where(feasible, np.maximum(bills.usd, np.finfo(float).tiny), 1.0)
    return np.where(feasible, -np.log(usd), INFEASIBLE - bills.violation)
