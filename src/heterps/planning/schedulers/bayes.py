"""Bayesian optimisation: optuna's tree-structured Parzen estimator, with one categorical parameter per layer.

    ask a batch  -->  schedules  -->  bills  -->  tell: log(usd), or a penalty that grows with the violation

The estimator uses only the ranks of values, so the logarithm only keeps every feasible value below every penalty. Once
it has converged it proposes the same schedule repeatedly; such schedules are answered from memory, not billed.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np

from heterps.planning.cost import Problem, Schedules
from heterps.planning.provisioners.base import Bills
from heterps.planning.schedulers.base import Unproven

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution

BATCH = 8
STARTUP_TRIALS = 24
"""Number of random trials before the estimator is used."""
MOST_TRIALS = 320
MOST_DRAWS = 16 * MOST_TRIALS
"""Largest number of trials times layers. A draw takes longer with every trial, so that all take some seconds."""
PATIENCE = 5
"""Number of batches without a new schedule after which the search ends."""
SEEDS = 1 << 32
"""Number of different seeds that optuna accepts."""
INFEASIBLE = 1000.0
"""Penalty of an infeasible schedule, above the logarithm of any float."""


class Bayes(Unproven):
    """The scheduler of method `bayes`."""

    def __init__(self, problem: Problem, seed: int) -> None:
        from optuna.distributions import CategoricalDistribution

        able = np.isfinite(problem.terms[:, :, 1])
        self._space: dict[str, BaseDistribution] = {
            f"{layer}": CategoricalDistribution(np.flatnonzero(able[:, layer]).tolist())
            for layer in range(problem.num_layers)
        }
        self._study = _quiet_study(seed)
        self._most_trials = max(min(MOST_TRIALS, MOST_DRAWS // problem.num_layers), STARTUP_TRIALS)
        self._num_trials = 0
        self._patience = PATIENCE
        self._told: dict[bytes, float] = {}
        self._waiting: list[tuple[Trial, bytes]] = []

    def propose(self) -> Schedules | None:
        """Return the schedules of the next batch that were not billed before; None when the search has ended."""
        if self._num_trials >= self._most_trials or self._patience == 0:
            return None
        schedules: dict[bytes, Schedules] = {}
        self._waiting = []
        for _ in range(min(BATCH, self._most_trials - self._num_trials)):
            trial = self._study.ask(self._space)
            schedule = np.array([trial.params[name] for name in self._space], np.int16)
            key = schedule.tobytes()
            self._num_trials += 1
            if key in self._told:
                self._study.tell(trial, self._told[key])
            else:
                schedules[key] = schedule
                self._waiting.append((trial, key))
        self._patience = PATIENCE if schedules else self._patience - 1
        return np.array(list(schedules.values()), np.int16).reshape(-1, len(self._space))

    def feedback(self, schedules: Schedules, bills: Bills) -> None:
        for schedule, usd, violation in zip(schedules, bills.usd.tolist(), bills.violation.tolist(), strict=True):
            value = math.log(max(usd, np.finfo(float).tiny)) if math.isfinite(usd) else INFEASIBLE + violation
            self._told[schedule.tobytes()] = value
        for trial, key in self._waiting:
            if key in self._told:  # not where the budget cut the batch short
                self._study.tell(trial, self._told[key])


def _quiet_study(seed: int) -> Study:
    """Create a study in memory, without optuna's log message and its warning about experimental options."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                n_startup_trials=STARTUP_TRIALS, multivariate=True, constant_liar=True, seed=seed % SEEDS
            )
            return optuna.create_study(sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)
