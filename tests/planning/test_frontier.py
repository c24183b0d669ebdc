"""The frontier against every plan there is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given, settings
from planning_oracle import Drawn, all_plans, check_plan, make_problem, problems, small_problem

from heterps.planning import frontier as module
from heterps.planning.cost import Problem
from heterps.planning.frontier import frontier
from heterps.planning.optimum import cheapest, find_cheapest, with_floor, with_limits

SAME = 1e-7


def staircase(problem: Problem) -> list[tuple[float, float]]:
    """(throughput, usd) of the plans that none equals or beats in both, slowest first."""
    plans = all_plans(problem.profile, problem.cluster, problem.samples)
    steps: list[tuple[float, float]] = []
    for throughput, usd in sorted(plans, key=lambda plan: (-plan[0], plan[1])):
        if not steps or usd < steps[-1][1] * (1 - SAME):
            steps.append((throughput, usd))
    return steps[::-1]


def is_clear(steps: list[tuple[float, float]]) -> bool:
    """No two steps that differ by rounding alone."""
    return all(a[0] * (1 + SAME) < b[0] for a, b in itertools.pairwise(steps))


@settings(max_examples=50)
@given(problems(max_layers=3, max_resources=2, max_limit=3))
def test_a_short_frontier_is_the_whole_staircase(drawn: Drawn) -> None:
    problem = make_problem(drawn)
    steps = staircase(problem)
    assume(len(steps) <= 20 and is_clear(steps))
    found = frontier(problem)
    assert found.complete
    assert found.proven
    assert [(plan.throughput, plan.usd) for plan in found.plans] == [pytest.approx(step, rel=SAME) for step in steps]
    for plan in found.plans:
        check_plan(plan, problem.profile, problem.cluster, 0.0, problem.samples)


@pytest.mark.parametrize("floor", [1_000.0, 60_000.0, 150_000.0])
def test_a_long_frontier_is_a_part_of_the_staircase_with_its_ends_and_the_plan_asked_for(floor: float) -> None:
    problem = with_floor(with_limits(small_problem(), {"cpu": 40, "v100": 6}), floor)
    steps = staircase(problem)
    assert len(steps) > 6
    found = frontier(problem, most_points=4)
    assert not found.complete
    assert 3 <= len(found.plans) <= 5
    points = [(plan.throughput, plan.usd) for plan in found.plans]
    assert all(any(point == pytest.approx(step, rel=SAME) for step in steps) for point in points)
    assert points[0] == pytest.approx(steps[0], rel=SAME)
    assert points[-1] == pytest.approx(steps[-1], rel=SAME)
    asked = cheapest(problem)
    assert asked is not None
    assert any(usd == pytest.approx(asked.usd, rel=SAME) for _, usd in points)


@pytest.mark.parametrize("fewer", [1, 2, 5])
def test_a_frontier_has_as_many_points_as_wanted_where_there_are_as_many_steps(fewer: int) -> None:
    problem = with_limits(small_problem(), {"cpu": 40, "v100": 6})
    num_steps = len(staircase(problem))
    found = frontier(problem, most_points=num_steps - fewer)
    assert num_steps - fewer <= len(found.plans) <= num_steps - fewer + 1, "the plan asked for may come on top"


@pytest.mark.parametrize("fewer", [1, 2, 3])
def test_a_frontier_has_no_more_points_than_wanted_where_the_plan_asked_for_is_one_of_them(fewer: int) -> None:
    problem = with_limits(small_problem(), {"cpu": 40, "v100": 6})
    steps = staircase(problem)
    asked = with_floor(problem, steps[0][0] * (1 - SAME))
    assert len(frontier(asked, most_points=len(steps) - fewer).plans) == len(steps) - fewer


@pytest.mark.parametrize("step", [1, 3, 5])
def test_the_plan_asked_for_is_a_point_though_only_two_are_wanted(step: int) -> None:
    problem = with_limits(small_problem(), {"cpu": 40, "v100": 6})
    steps = staircase(problem)
    found = frontier(with_floor(problem, steps[step][0] * (1 - SAME)), most_points=2)
    expected = [steps[0][0], steps[step][0], steps[-1][0]]
    assert [plan.throughput for plan in found.plans] == [pytest.approx(x, rel=SAME) for x in expected]


def test_a_frontier_whose_end_was_not_proven_is_not_called_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the plan behind the last one found nothing, but did not prove that there is nothing."""
    problem = with_limits(small_problem(), {"cpu": 40, "v100": 6})
    steps = staircase(problem)
    found: list[object] = []

    def cut_short(asked: Problem) -> tuple[object, bool]:
        plan, _ = find_cheapest(asked)
        found.append(plan)
        return (plan, True) if len(found) <= 3 else (None, False)

    monkeypatch.setattr(module, "find_cheapest", cut_short)
    assert len(frontier(problem, most_points=len(steps)).plans) > 3, "the steps behind the gap are looked for as well"


def test_a_frontier_with_every_step_is_complete() -> None:
    problem = with_limits(small_problem(), {"cpu": 40, "v100": 6})
    steps = staircase(problem)
    found = frontier(problem, most_points=len(steps))
    assert found.complete
    assert [plan.throughput for plan in found.plans] == [pytest.approx(x, rel=SAME) for x, _ in steps]


@settings(max_examples=40)
@given(problems(max_layers=4, max_resources=3, max_limit=6))
def test_no_point_is_dearer_and_slower_than_another(drawn: Drawn) -> None:
    plans = frontier(make_problem(drawn), most_points=5).plans
    for slow, fast in itertools.pairwise(plans):
        assert slow.throughput < fast.throughput
        assert slow.usd < fast.usd


def test_points_are_told_as_they_are_found() -> None:
    heard: list[float] = []
    found = frontier(small_problem(), on_point=lambda plan: heard.append(plan.throughput))
    assert {plan.throughput for plan in found.plans} <= set(heard)
