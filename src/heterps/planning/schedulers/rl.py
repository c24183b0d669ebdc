"""The learned scheduler: random changes (changes.py), and a policy that is trained by REINFORCE on the bills.

    opening             what a pre-trained policy proposes at ten paces (opening.py); method `rl` only
    restarts            as of changes.py, each with a policy that sees the costs that the restart draws by

The policies of `rl` begin with weights that were trained on many random problems, those of `rl-scratch` and `rl-rnn`
(an Elman cell instead of an LSTM) with a guess by the costs. Two thirds of a restart's schedules are drawn from its
policy, one third are elites with random changes. A restart ends with the policy's most likely schedule.
"""

from __future__ import annotations

import numpy as np

from heterps.planning.cost import Floats, Problem, Schedules
from heterps.planning.schedulers.changes import LEAST_PACE, Changes
from heterps.planning.schedulers.features import Features, fastest_s, features_of
from heterps.planning.schedulers.learner import Learner, LearnerSettings
from heterps.planning.schedulers.opening import Opening
from heterps.planning.schedulers.policy import Cell, likely_schedule
from heterps.threads import torch_threads

PRETRAINED_LR = 1e-3  # small steps keep what was learned from other problems


class Reinforce(Changes):
    """The scheduler of the methods `rl`, `rl-scratch` and `rl-rnn`."""

    _learner: Learner

    def __init__(
        self,
        problem: Problem,
        seed: int,
        cell: Cell = "lstm",
        *,
        is_pretrained: bool = False,
        settings: LearnerSettings | None = None,
    ) -> None:
        self._cell: Cell = cell
        self._is_pretrained = is_pretrained
        self._settings = settings or LearnerSettings(lr=PRETRAINED_LR if is_pretrained else LearnerSettings.lr)
        self._opening: Opening | None = None
        super().__init__(problem, seed)
        if is_pretrained:
            self._opening = Opening(self._likely_at, problem.tau_max, LEAST_PACE * fastest_s(problem))

    def propose(self) -> Schedules | None:
        if self._opening is not None:
            schedules = self._opening.propose()
            if schedules is not None:
                return schedules
            self._opening = None
            self._restart_with([self._elites])
        return super().propose()

    def start_trials(self, batch: int) -> None:
        """Continue with the learned policy and measured bills, as `Changes.start_trials` says."""
        self._opening = None
        super().start_trials(batch)
        self._learner.forget()

    def _draw(self, num: int, temperature: float) -> Schedules:
        """Draw schedules [num, N]: from the policy, the most likely first, and elites with random changes."""
        num_changed = round(num * self._settings.changed) if len(self._elites) else 0
        drawn = self._learner.draw(num - num_changed, temperature, self._elites)
        if num_changed:
            drawn = np.concatenate([drawn, super()._draw(num_changed, temperature)])
        drawn[1:] = self._rng.permutation(drawn[1:])
        return drawn

    def _learn(self, schedules: Schedules, scores: Floats) -> None:
        if self._opening is not None:
            self._opening.feedback(schedules, scores)
        else:
            self._learner.learn(schedules, scores, self._elites)

    def _likely(self) -> Schedules:
        return self._learner.most_likely()

    def _likely_at(self, tau: float) -> Schedules:
        """Return the schedule [N] that a pre-trained policy proposes for batches in `tau` seconds."""
        with torch_threads(1):
            return likely_schedule(features_of(self._problem, tau)).numpy().astype(np.int16)

    def _restart(self, features: Features) -> None:
        super()._restart(features)
        seed = int(self._rng.integers(1 << 31))
        self._learner = Learner(features, self._cell, self._settings, seed, is_pretrained=self._is_pretrained)
