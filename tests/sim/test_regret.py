"""Real gradients on the simulated clock: stochastic subgradient descent on a convex problem has bounded regret.

By Ho et al. (2013), and with lower + spread for s by Zhao et al. (2019), regret after T updates of P workers is at most
4 F L sqrt(2 (s + 1) P T), where gradients are at most L, half the square of any two weights' distance is at most F^2,
and the t-th step is F / (L sqrt(2 (s + 1) P t)).
"""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.sim import Hooks, Scenario, simulate

F, L = 3.0, 1.0


class Median(Hooks):
    """Each iteration has a target a, and the loss |w - a|: its subgradient is the sign of w - a."""

    def __init__(self, steps: float, seed: int) -> None:
        self.weight, self.steps = 1.5, steps
        self.seen: dict[str, tuple[float, float]] = {}
        self.losses: list[float] = []
        self.targets: list[float] = []
        self.weights: list[float] = [self.weight]
        self.draw = random.Random(seed)

    def start(self, worker: str, now: float) -> None:
        self.seen[worker] = self.weight, self.draw.uniform(-1.0, 1.0)

    def push(self, worker: str, now: float) -> None:
        weight, target = self.seen.pop(worker)
        self.losses.append(abs(weight - target))
        self.targets.append(target)
        self.weight -= self.steps / math.sqrt(len(self.losses)) * math.copysign(1.0, weight - target)
        self.weights.append(self.weight)

    @property
    def regret(self) -> float:
        best = statistics.median(self.targets)
        return sum(self.losses) - sum(abs(best - target) for target in self.targets)


def train(policy: str, s: int, scenario: Scenario, seed: int) -> Median:
    problem = Median(F / (L * math.sqrt(2 * (s + 1) * len(scenario.workers))), seed)
    simulate(scenario, policy, hooks=problem)
    return problem


@pytest.mark.parametrize(("policy", "s"), [("ssp:0", 0), ("ssp:3", 3), ("dssp:3:12", 15), ("dssp:0:4+elapsed", 4)])
@settings(max_examples=25)
@given(
    speeds=st.lists(st.floats(0.2, 3.0), min_size=2, max_size=8).map(tuple),
    jitter=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1000),
)
def test_regret_is_bounded(policy: str, s: int, speeds: tuple[float, ...], jitter: float, seed: int) -> None:
    scenario = Scenario(workers=speeds, jitter=jitter, horizon_s=150.0, seed=seed)
    problem = train(policy, s, scenario, seed)
    num_updates = len(problem.losses)
    assert num_updates > 50
    assert (max(problem.weights) - min(problem.weights)) ** 2 / 2 <= F**2, "the theorem does not apply"
    assert problem.regret <= 4 * F * L * math.sqrt(2 * (s + 1) * len(speeds) * num_updates)


def test_the_weights_are_those_of_the_start_and_not_of_the_push() -> None:
    """Two equal workers under ASP: each gradient is of the weights before the other's last update."""
    problem = train("asp", 0, Scenario(workers="2x1.0", iterations=3), 0)
    assert len(problem.losses) == 6
    losses = [
        abs(weight - target)
        for weight, target in zip(problem.weights[:1] + problem.weights, problem.targets, strict=False)
    ]
    assert problem.losses == losses


def test_regret_grows_more_slowly_than_time() -> None:
    mean = {}
    for horizon_s in (50.0, 800.0):
        problem = train("dssp:3:12", 15, Scenario(workers="4x1.0,2.3", jitter=0.2, horizon_s=horizon_s), 1)
        mean[horizon_s] = problem.regret / len(problem.losses)
    assert mean[800.0] < mean[50.0] / 2
