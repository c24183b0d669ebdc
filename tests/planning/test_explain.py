"""What is said about a plan against every plan there is."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from planning_oracle import Drawn, all_plans, make_problem, problems, small_problem

from heterps.planning.cost import Problem
from heterps.planning.explain import (
    STEP,
    Explanation,
    LayerMove,
    Sensitivity,
    bottleneck,
    explain,
    moves,
    next_cheaper,
    stations,
)
from heterps.planning.optimum import cheapest, with_floor, with_limits
from heterps.planning.plan import Plan, PlannedServers, Stage

SAME = 1e-7


def best(problem: Problem, prices: dict[str, float] | None = None, limits: dict[str, int] | None = None) -> float:
    """The least USD by trying everything; infinite when there is no plan."""
    resources = {
        name: resource.model_copy(
            update={
                "usd_per_hour": (prices or {}).get(name, resource.usd_per_hour),
                "limit": (limits or {}).get(name, resource.limit),
            }
        )
        for name, resource in problem.cluster.resources.items()
    }
    rented = problem.cluster.model_copy(update={"resources": resources})
    plans = all_plans(problem.profile, rented, problem.samples)
    return min((usd for reached, usd in plans if reached >= problem.throughput * (1 - 1e-9)), default=float("inf"))


def explained(drawn: Drawn) -> tuple[Problem, Plan, Explanation]:
    problem = make_problem(drawn)
    plan = cheapest(problem)
    assume(plan is not None and plan.usd > 0)
    assert plan is not None
    return problem, plan, explain(problem, plan)


def again(problem: Problem, changed: Sensitivity) -> float:
    if changed.of == "price":
        return best(problem, prices={changed.name: changed.after})
    if changed.of == "limit":
        return best(problem, limits={changed.name: int(changed.after)})
    return best(with_floor(problem, changed.after))


@settings(max_examples=40)
@given(problems(max_layers=3, max_resources=2, max_limit=3))
def test_every_sensitivity_is_what_planning_again_from_scratch_gives(drawn: Drawn) -> None:
    problem, plan, told = explained(drawn)
    assert told.optimal_usd == pytest.approx(plan.usd)
    for changed in told.sensitivities:
        usd = again(problem, changed)
        if changed.usd is None:
            assert usd == float("inf")
        else:
            assert plan.usd + changed.usd == pytest.approx(usd, rel=SAME)


@settings(max_examples=40)
@given(problems(max_layers=3, max_resources=2, max_limit=3))
def test_the_next_cheaper_plan_is_the_fastest_of_the_cheaper_ones(drawn: Drawn) -> None:
    problem, plan, told = explained(drawn)
    plans = all_plans(problem.profile, problem.cluster, problem.samples)
    assume(not any(plan.usd * (1 - 1e-6) < usd < plan.usd * (1 - 1e-10) for _, usd in plans))
    cheaper = [reached for reached, usd in plans if usd < plan.usd * (1 - 1e-8)]
    assert (told.cheaper is None) == (not cheaper)
    if told.cheaper is not None:
        assert told.cheaper.usd < 0
        assert not told.cheaper.meets_floor
        assert told.cheaper.plan.throughput == pytest.approx(max(cheaper), rel=SAME)


@settings(max_examples=40)
@given(problems(max_layers=3, max_resources=2, max_limit=3))
def test_the_next_faster_plan_is_the_cheapest_of_the_faster_ones(drawn: Drawn) -> None:
    problem, plan, told = explained(drawn)
    plans = all_plans(problem.profile, problem.cluster, problem.samples)
    near = [reached for reached, _ in plans if abs(reached / plan.throughput - 1) < 1e-8]
    assume(all(abs(reached / plan.throughput - 1) < 1e-11 for reached in near))
    faster = [usd for reached, usd in plans if reached > plan.throughput * (1 + 1e-10)]
    assert (told.faster is None) == (not faster)
    if told.faster is not None:
        assert told.faster.plan.usd == pytest.approx(min(faster), rel=SAME)
        assert told.faster.meets_floor


@settings(max_examples=60)
@given(problems(max_layers=4, max_resources=3, max_limit=4))
def test_the_bottleneck_decides_the_throughput_and_nobody_is_busier(drawn: Drawn) -> None:
    problem = make_problem(drawn)
    plan = cheapest(problem)
    assume(plan is not None)
    assert plan is not None
    rows = stations(problem, plan)
    slowest = bottleneck(rows, plan)
    assert slowest.busy == 1 == max(row.busy for row in rows)
    busy_s = max(slowest.compute_s, slowest.comm_s)
    assert problem.profile.batch_size / busy_s == pytest.approx(plan.throughput)
    assert f"{slowest.name} on {slowest.resource}" in plan.bottleneck


def test_a_limit_with_units_to_spare_costs_nothing_and_one_that_binds_costs_something() -> None:
    problem = small_problem()
    plan = cheapest(problem)
    assert plan is not None
    told = {(s.name, s.after): s for s in explain(problem, plan).sensitivities if s.of == "limit"}
    spare = told["cpu", 399]
    assert (spare.usd, spare.plan_changes) == (0.0, False)
    tight = with_limits(problem, {"cpu": plan.units["cpu"] - 1})
    dearer = cheapest(tight)
    assert dearer is not None
    relaxed = [s for s in explain(tight, dearer).sensitivities if s.of == "limit" and s.after > s.before]
    assert any(s.usd is not None and s.usd < 0 and s.plan_changes for s in relaxed)


def test_the_cost_of_a_plan_that_stays_moves_with_the_price_of_what_it_rents() -> None:
    problem = small_problem()
    plan = cheapest(problem)
    assert plan is not None
    share = plan.hours * sum(stage.count * 2.42 for stage in plan.stages if stage.resource == "v100")
    up = next(s for s in explain(problem, plan).sensitivities if (s.of, s.name) == ("price", "v100"))
    assert not up.plan_changes
    assert up.usd == pytest.approx(STEP * share)


def test_a_plan_dearer_than_need_be_is_told_the_cheapest_one_for_its_floor() -> None:
    problem = small_problem()
    optimum = cheapest(problem)
    assert optimum is not None
    dear = optimum.model_copy(update={"usd": optimum.usd * 2})
    told = explain(problem, dear)
    assert told.optimal_usd == optimum.usd
    assert told.cheaper is not None
    assert told.cheaper.meets_floor
    assert told.cheaper.usd == pytest.approx(-optimum.usd)


def test_the_cheapest_plan_of_all_has_no_cheaper_one() -> None:
    problem = with_floor(small_problem(), 1e-3)
    plan = cheapest(problem)
    assert plan is not None
    assert next_cheaper(problem, plan) is None


def test_moves_are_runs_of_layers() -> None:
    def plan(*resources: str) -> Plan:
        stages = [Stage(first=i, last=i, resource=name, count=1) for i, name in enumerate(resources)]
        servers = PlannedServers(resource="a", count=0)
        return Plan(method="m", stages=tuple(stages), servers=servers, throughput=1, hours=1, usd=1, bottleneck="")

    assert moves(plan("a", "a", "b", "a"), plan("b", "b", "c", "a")) == (
        LayerMove(0, 1, "a", "b"),
        LayerMove(2, 2, "b", "c"),
    )
