from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from planning_oracle import problems
from realistic import ctr_problem

from heterps.config import Cluster
from heterps.errors import ConfigError
from heterps.planning.cost import Problem, Schedules
from heterps.planning.provisioners.base import Bills
from heterps.planning.provisioners.exact import exact
from heterps.planning.schedulers import genetic
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.brute import Brute
from heterps.planning.schedulers.exact import Exact
from heterps.planning.schedulers.genetic import PATIENCE, POPULATION, Genetic
from heterps.profiling.profile import Profile


class Watched(Genetic):
    """Keeps what it proposed."""

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(problem, seed)
        self.proposed: list[bytes] = []

    def feedback(self, schedules: Schedules, bills: Bills) -> None:
        self.proposed += [schedule.tobytes() for schedule in schedules]
        super().feedback(schedules, bills)


@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
@given(problems(max_layers=6))
def test_nothing_is_billed_twice_and_no_layer_is_put_where_it_cannot_run(drawn: tuple[Profile, Cluster, float]) -> None:
    try:
        problem = Problem(*drawn, samples=1.0)
    except ConfigError:
        assume(False)
        raise
    scheduler = Watched(problem, seed=0)
    search(problem, scheduler, SearchBudget(evaluations=1_000))
    assert len(set(scheduler.proposed)) == len(scheduler.proposed)
    for key in scheduler.proposed:
        for layer, t in zip(problem.profile.layers, np.frombuffer(key, np.int16), strict=True):
            assert problem.resources[t] in layer.costs


@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_of_six_layers_is_found(seed: int) -> None:
    problem = ctr_problem(6, (480, 32))
    found = search(problem, Genetic(problem, seed), SearchBudget())
    assert found.finished
    assert found.usd == pytest.approx(search(problem, Brute(problem, seed=0), SearchBudget()).usd, rel=1e-9)


def test_the_optimum_of_sixteen_layers_is_found_by_a_small_share_of_all_schedules() -> None:
    problem = ctr_problem(16, (480, 32))
    found = search(problem, Genetic(problem, seed=0), SearchBudget())
    assert found.usd == pytest.approx(search(problem, Exact(problem, seed=0), SearchBudget()).usd, rel=1e-9)
    assert found.evaluations < 2**16 / 10


def test_a_space_smaller_than_the_population_is_seen_whole_and_then_it_ends() -> None:
    problem = ctr_problem(4, (480, 32))
    found = search(problem, Genetic(problem, seed=0), SearchBudget())
    assert found.finished
    assert found.evaluations == 2**4


def test_the_same_seed_has_the_same_trace_and_another_seed_another() -> None:
    problem = ctr_problem(16, (480, 32))

    def trace(seed: int) -> list[tuple[int, float]]:
        found = search(problem, Genetic(problem, seed), SearchBudget(evaluations=500))
        return [(point.evaluations, point.usd) for point in found.trace]

    assert trace(7) == trace(7)
    assert trace(7) != trace(8)


def test_the_cheapest_survive_and_infeasible_ones_rank_by_how_far_they_are() -> None:
    problem = ctr_problem(16, (20, 2), floor=100_000)
    scheduler = Genetic(problem, seed=0)
    for _ in range(4):
        schedules = scheduler.propose()
        assert schedules is not None
        scheduler.feedback(schedules, exact(problem, schedules))
    assert len(scheduler._population) == POPULATION
    bills = exact(problem, scheduler._population)
    order = list(zip(bills.usd.tolist(), bills.violation.tolist(), strict=True))
    assert order == sorted(order)
    assert any(violation > 0 for _, violation in order)


def test_it_ends_after_so_many_generations_without_a_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genetic, "POPULATION", 4)
    problem = ctr_problem(16, (480, 32))
    scheduler = Genetic(problem, seed=0)
    generations = 0
    while (schedules := scheduler.propose()) is not None:
        generations += 1
        same = np.ones(len(schedules))
        scheduler.feedback(schedules, Bills(same, same, np.zeros((len(same), 17), np.int64), np.zeros(len(same))))
    assert generations == PATIENCE + 1


def bills_of(usd: np.ndarray) -> Bills:
    return Bills(usd, np.ones(len(usd)), np.zeros((len(usd), 17), np.int64), np.zeros(len(usd)))


def test_the_cheapest_of_parents_and_children_survive_whichever_generation_they_are_of() -> None:
    scheduler = Genetic(ctr_problem(16, (480, 32)), seed=0)
    rng, costs = np.random.default_rng(0), dict[bytes, float]()
    for _ in range(4):
        schedules = scheduler.propose()
        assert schedules is not None
        usd = rng.permutation(len(schedules)).astype(float)
        costs |= {schedule.tobytes(): cost for schedule, cost in zip(schedules, usd.tolist(), strict=True)}
        scheduler.feedback(schedules, bills_of(usd))
        assert scheduler._usd.tolist() == sorted(costs.values())[:POPULATION]
        assert [costs[schedule.tobytes()] for schedule in scheduler._population] == scheduler._usd.tolist()


def test_parents_are_drawn_from_the_cheaper_ones_more_often() -> None:
    """The better of two drawn at random is in the cheaper half three times out of four, and may be any but rarely the
    dearest."""
    scheduler = Genetic(ctr_problem(16, (480, 32)), seed=0)
    schedules = scheduler.propose()
    assert schedules is not None
    scheduler.feedback(schedules, bills_of(np.arange(len(schedules))[::-1].astype(float)))
    parents = np.concatenate([scheduler._parents() for _ in range(100)])
    cheaper = (parents < POPULATION // 2).mean()
    assert 0.72 < cheaper < 0.78
    assert set(parents.tolist()) >= set(range(POPULATION - 4)), "one that is dear is drawn as well"


def test_children_of_cheap_parents_are_cheaper_than_founders() -> None:
    """Costs are the layers that are not on resource 0: without selection children would cost what founders cost."""
    scheduler = Genetic(ctr_problem(16, (480, 32)), seed=0)
    means = []
    for _ in range(8):
        schedules = scheduler.propose()
        assert schedules is not None
        usd = 1.0 + (schedules != 0).sum(axis=1)
        means.append(usd.mean())
        scheduler.feedback(schedules, bills_of(usd))
    assert means[-1] < means[0] - 3


def test_children_have_layers_of_both_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of parents that differ in all 16 layers a child with at least 4 of each is no mutant, which differ in few."""
    monkeypatch.setattr(genetic, "RUN_MUTATION_CHANCE", 0.0)
    scheduler = Genetic(ctr_problem(16, (480, 32)), seed=0)
    scheduler.feedback(np.array([[0] * 16, [1] * 16], np.int16), bills_of(np.ones(2)))
    children = np.concatenate([scheduler._children() for _ in range(10)])
    from_one = (children == 0).sum(axis=1)
    mixed = (from_one >= 4) & (from_one <= 12)
    assert 0.2 < mixed.mean() < 0.6
