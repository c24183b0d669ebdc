"""A genetic algorithm over schedule vectors.

    population, cheapest first                 child
      cpu cpu gpu gpu gpu                                       1. two parents, each the best of a few drawn at random
      cpu gpu gpu gpu cpu  --parents-->  cpu cpu gpu gpu cpu    2. crossover: layers from either, one by one or as a run
      gpu gpu cpu gpu gpu                cpu cpu gpu xpu cpu    3. mutation: each layer with chance 1/N, and sometimes
       ...                                                         a run of layers, or a stage, set to one resource
                                                                4. schedules that were billed before are dropped
    5. the best of population and children survive: the cheapest is never lost

Infeasible schedules rank behind all feasible ones, by how far they are from feasible.
"""

from __future__ import annotations

import numpy as np

from heterps.arrays import Mask
from heterps.planning.cost import Floats, Ints, Problem, Schedules
from heterps.planning.provisioners.base import Bills
from heterps.planning.schedulers.base import Unproven

POPULATION = 64
TOURNAMENT = 2
CROSSOVER_CHANCE = 0.9
RUN_MUTATION_CHANCE = 0.5
PATIENCE = 40
"""Number of generations without a cheaper plan after which the search ends."""
MOST_ATTEMPTS = 20
"""Number of attempts to make new children; if all were billed before, the search ends."""


class Genetic(Unproven):
    """The scheduler of method `genetic`."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._able: Mask = np.isfinite(problem.terms[:, :, 1])  # [T, N]
        self._num_able = self._able.sum(axis=0)
        # [T, N]: for each layer, the resources that are able to run it first
        self._choices: Schedules = np.argsort(~self._able, axis=0, kind="stable").astype(np.int16)
        self._num_layers = problem.num_layers
        self._seen: set[bytes] = set()
        self._population: Schedules = np.empty((0, problem.num_layers), np.int16)
        self._usd: Floats = np.empty(0)
        self._violation: Floats = np.empty(0)
        self._patience = PATIENCE

    def propose(self) -> Schedules | None:
        """Return the next generation; None after PATIENCE generations without a gain, or if no child is new."""
        if self._patience == 0:
            return None
        new: list[Schedules] = []
        for _ in range(MOST_ATTEMPTS):
            children = self._children() if len(self._population) else self._first_generation()
            new += [schedule for schedule in children if self._is_new(schedule)]
            if len(new) >= POPULATION:
                break
        return np.array(new) if new else None

    def feedback(self, schedules: Schedules, bills: Bills) -> None:
        before = self._best()
        population = np.concatenate([self._population, schedules])
        usd = np.concatenate([self._usd, bills.usd])
        violation = np.concatenate([self._violation, bills.violation])
        order = np.lexsort((violation, usd))[:POPULATION]  # [5]
        self._population, self._usd, self._violation = population[order], usd[order], violation[order]
        self._patience = PATIENCE if self._best() < before else self._patience - 1

    def _best(self) -> tuple[float, float]:
        return (float(self._usd[0]), float(self._violation[0])) if len(self._usd) else (np.inf, np.inf)

    def _is_new(self, schedule: Schedules) -> bool:  # [4]
        key = schedule.tobytes()
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _first_generation(self) -> Schedules:
        """Make random schedules, with random runs set to one resource, so that some have few stages and some many."""
        schedules = self._random_layers(POPULATION)
        for _ in range(3):
            self._assign_runs(schedules, chance=RUN_MUTATION_CHANCE)
        return schedules

    def _children(self) -> Schedules:
        rng, shape = self._rng, (POPULATION, self._num_layers)
        mother, father = (self._population[self._parents()] for _ in range(2))  # [1]
        one_by_one = rng.random(shape) < 0.5
        as_run = self._runs(POPULATION)
        from_father = np.where(rng.random((POPULATION, 1)) < 0.5, one_by_one, as_run)  # [2]
        from_father &= rng.random((POPULATION, 1)) < CROSSOVER_CHANCE
        children = np.where(from_father, father, mother)
        mutated = rng.random(shape) < 1 / self._num_layers  # [3]
        children = np.where(mutated, self._random_layers(POPULATION), children)
        self._assign_runs(children, RUN_MUTATION_CHANCE)
        return children

    def _parents(self) -> Ints:
        """Draw parents by tournaments. The population is sorted, so the winner is the smallest index drawn."""
        winners: Ints = self._rng.integers(len(self._population), size=(TOURNAMENT, POPULATION)).min(axis=0)
        return winners

    def _random_layers(self, num: int) -> Schedules:
        """Draw schedules [num, N] of random resources that can run each layer."""
        drawn = (self._rng.random((num, self._num_layers)) * self._num_able).astype(np.int64)
        layers: Schedules = self._choices[drawn, np.arange(self._num_layers)]
        return layers

    def _runs(self, num: int) -> Mask:
        """Draw masks [num, N] that are True on one random run of layers each."""
        cuts = np.sort(self._rng.integers(self._num_layers + 1, size=(2, num, 1)), axis=0)
        layers = np.arange(self._num_layers)
        within: Mask = (cuts[0] <= layers) & (layers < cuts[1])
        return within

    def _stages(self, schedules: Schedules) -> Mask:
        """Draw masks [num, N] that are True on one random stage of each schedule."""
        borders = np.diff(schedules, axis=1, prepend=schedules[:, :1]) != 0
        stages = borders.cumsum(axis=1)
        num = len(schedules)
        drawn: Mask = stages == stages[np.arange(num), self._rng.integers(self._num_layers, size=num)][:, None]
        return drawn

    def _assign_runs(self, schedules: Schedules, chance: float) -> None:
        """Set, with this probability, a run of layers or a stage to one resource that can run them.

        Half of the resources are taken from the schedule itself, so that stages grow, shrink and merge.
        """
        num = len(schedules)
        own = schedules[np.arange(num), self._rng.integers(self._num_layers, size=num)]
        other = self._rng.integers(len(self._able), size=num).astype(np.int16)
        resource = np.where(self._rng.random(num) < 0.5, own, other)
        run = np.where(self._rng.random((num, 1)) < 0.5, self._runs(num), self._stages(schedules))
        changed = run & self._able[resource] & (self._rng.random((num, 1)) < chance)
        np.copyto(schedules, resource[:, None], where=changed)
