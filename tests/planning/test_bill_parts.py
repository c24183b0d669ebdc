"""The parts of a bill and the seconds of layers add up to the bill and to the stages."""

from __future__ import annotations

import math

import pytest
from drawn_problems import real_problems
from hypothesis import assume, given, settings
from planning_oracle import Drawn, make_problem, problems, small_problem

from heterps.config import Cluster, Machine, Resource, Spot
from heterps.errors import ConfigError
from heterps.planning.api import compare
from heterps.planning.bill import bill_parts
from heterps.planning.cost import Problem
from heterps.planning.explain import layer_times, neighbours, stations
from heterps.planning.optimum import cheapest
from heterps.planning.real import Conditions
from heterps.planning.variants import cheapest_variant


def check_sums(problem: Problem) -> None:
    plan = cheapest(problem)
    assume(plan is not None)
    assert plan is not None
    assert math.fsum(part.usd for part in bill_parts(problem, plan)) == pytest.approx(plan.usd, rel=1e-8, abs=1e-12)
    for stage, station in zip(plan.stages, stations(problem, plan), strict=False):
        times = layer_times(problem, stage)
        assert len(times) == stage.last - stage.first + 1
        assert math.fsum(compute_s for compute_s, _ in times) == pytest.approx(station.compute_s)
        assert math.fsum(comm_s for _, comm_s in times) == pytest.approx(station.comm_s)


@settings(max_examples=20)
@given(problems(max_layers=4, max_limit=4))
def test_parts_and_layers_add_up_in_the_paper_s_bill(drawn: Drawn) -> None:
    check_sums(make_problem(drawn))


@settings(max_examples=20)
@given(real_problems())
def test_parts_and_layers_add_up_with_facts_about_machines(drawn: Drawn) -> None:
    profile, cluster, floor = drawn
    try:
        problem = Problem(profile, cluster, floor, 1000.0, conditions=Conditions(None))
    except ConfigError:
        assume(False)
        raise
    check_sums(problem)


def test_what_is_rented_and_what_interruptions_add_are_parts_of_their_own() -> None:
    small = small_problem()
    spot = Spot(usd_per_hour=0.5, limit=32, interruptions_per_hour=0.5)
    cluster = Cluster(
        resources={
            "cpu": Resource(device="cpu", usd_per_hour=0.04, limit=8),
            "v100": Resource(device="cuda", usd_per_hour=2.42, limit=0, spot=spot),
        },
        machines={"box": Machine(units={"cpu": 64}, usd_per_hour=2.0, limit=9)},
        server_resource="cpu",
    )
    problem = Problem(small.profile, cluster, small.throughput, 1e9, conditions=Conditions(None))
    plan = cheapest(problem)
    assert plan is not None
    parts = {part.name: part for part in bill_parts(problem, plan)}
    assert {name: parts[name].count for name in plan.rented or {}} == plan.rented
    assert parts["interruptions"].count is None
    assert 0 < parts["interruptions"].usd < plan.usd


def test_a_plan_for_a_deadline_is_not_beaten_by_one_that_misses_it() -> None:
    start = {"startup_s": 7200.0}
    small = small_problem()
    resources = {name: one.model_copy(update=start) for name, one in small.cluster.resources.items()}
    cluster = small.cluster.model_copy(update={"resources": resources})
    first = cheapest(Problem(small.profile, cluster, small.throughput, 1e9, conditions=Conditions(None)))
    assert first is not None
    asked = Problem(small.profile, cluster, first.throughput, 1e9, conditions=Conditions(None))
    deadline = asked.samples / asked.throughput / 3600
    problem, compared, _ = cheapest_variant([asked], deadline, lambda one: compare(one, others="none"))
    plan = compared.chosen
    assert plan.hours <= deadline * (1 + 1e-9)
    assert problem.throughput > asked.throughput, "the start is part of the deadline"
    assert neighbours(asked, plan).cheaper is not None
    beside = neighbours(problem, plan).cheaper
    assert beside is None or beside.plan.hours > deadline
