from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning_oracle import SECONDS, cheapest_usd, problems

from heterps.config import Cluster, Resource
from heterps.errors import ConfigError
from heterps.planning import kernels
from heterps.planning.cost import Problem
from heterps.planning.provisioners.base import to_plan
from heterps.planning.provisioners.exact import exact
from heterps.profiling.profile import Cost, LayerProfile, Profile

SAMPLES = 3600.0


def make(problem: tuple[Profile, Cluster, float]) -> Problem:
    try:
        return Problem(*problem, samples=SAMPLES)
    except ConfigError:
        assume(False)
        raise


@settings(max_examples=300)
@given(problems(max_layers=3, max_resources=2, max_limit=5))
def test_counts_are_as_cheap_as_the_best_of_all_count_vectors(drawn: tuple[Profile, Cluster, float]) -> None:
    problem = make(drawn)
    schedules = list(itertools.product(range(len(problem.resources)), repeat=problem.num_layers))
    bills = exact(problem, np.array(schedules, np.int16))
    for schedule, usd in zip(schedules, bills.usd, strict=True):
        names = [problem.resources[t] for t in schedule]
        assert usd == pytest.approx(cheapest_usd(*drawn[:2], names, drawn[2], SAMPLES), rel=1e-9), names


@settings(max_examples=500)
@given(SECONDS, SECONDS, SECONDS, SECONDS, st.integers(1, 10**6))
def test_the_seconds_of_a_count_give_that_count_back(p: float, a: float, q: float, d: float, count: int) -> None:
    tau = float(max(a + p / count, d + q / count))
    least = kernels.least_count(p, a, q, d, tau, 10**6)
    assert least <= count
    assert max(a + p / least, d + q / least) <= tau
    if least > 1:
        assert max(a + p / (least - 1), d + q / (least - 1)) > tau


def one_layer(cost: Cost, *, limit: int, batch_size: int, floor: float) -> Problem:
    profile = Profile(model="m", batch_size=batch_size, layers=(LayerProfile(name="fc", costs={"cpu": cost}),))
    cluster = Cluster(resources={"cpu": Resource(usd_per_hour=1.0, limit=limit)}, server_resource="cpu")
    return Problem(profile, cluster, floor, samples=SAMPLES)


def test_the_communication_bound_of_the_printed_example_takes_29_units() -> None:
    cost = Cost(compute_s=4.0, sync_s=6.0, input_s=0.0, alpha=0.97, beta=0.95)
    problem = one_layer(cost, limit=100, batch_size=1024, floor=2048)
    terms = problem.terms[0, 0]
    assert terms[2] / (0.5 - terms[3]) == pytest.approx(28.5)
    counts = [kernels.least_count(*terms[:4].tolist(), problem.tau_max, 100)]
    assert counts == [29]


def test_a_plan_without_fixed_parts_costs_the_same_at_any_count_and_is_found_at_once() -> None:
    cost = Cost(compute_s=1.0, sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0)
    problem = one_layer(cost, limit=10**9, batch_size=1, floor=1.0)
    bills = exact(problem, np.zeros((1, 1), np.int16))
    assert bills.usd[0] == pytest.approx(SAMPLES / 3600)


def test_a_faster_plan_is_taken_where_it_is_cheaper() -> None:
    """A station held at one unit is paid for longer when the other is slow."""
    costs = {
        "embedding": {"cpu": Cost(compute_s=8.0, sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0)},
        "fc": {"gpu": Cost(compute_s=1.0, sync_s=0.0, input_s=0.0, alpha=0.9, beta=1.0)},
    }
    profile = Profile(
        model="m", batch_size=1, layers=tuple(LayerProfile(name=name, costs=cost) for name, cost in costs.items())
    )
    resources = {"cpu": Resource(usd_per_hour=0.1, limit=20), "gpu": Resource(usd_per_hour=10.0, limit=4)}
    problem = Problem(profile, Cluster(resources=resources, server_resource="cpu"), 0.125, samples=SAMPLES)
    bills = exact(problem, np.array([[0, 1]], np.int16))
    plan = to_plan(problem, np.array([0, 1], np.int16), bills.counts[0], "given")
    assert [stage.count for stage in plan.stages] == [8, 1]
    assert plan.throughput == pytest.approx(1.0)
    assert plan.usd == pytest.approx(10.8)


def test_stages_and_servers_share_the_limit_of_their_resource() -> None:
    cost = Cost(compute_s=1.0, sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0)
    layers = (LayerProfile(name="fc", server_s=1.0, costs={"cpu": cost}),)
    profile = Profile(model="m", batch_size=1, layers=layers)
    for limit, feasible in ((4, True), (3, False)):
        cluster = Cluster(resources={"cpu": Resource(usd_per_hour=1.0, limit=limit)}, server_resource="cpu")
        bills = exact(Problem(profile, cluster, 2.0, samples=SAMPLES), np.zeros((1, 1), np.int16))
        assert math.isfinite(bills.usd[0]) is feasible
        assert bills.counts[0].tolist() == ([2, 2] if feasible else [0, 0])


def test_no_schedules_give_no_bills() -> None:
    cost = Cost(compute_s=1.0, sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0)
    bills = exact(one_layer(cost, limit=1, batch_size=1, floor=1.0), np.empty((0, 1), np.int16))
    assert len(bills.usd) == 0


def test_violation_is_0_where_feasible_and_grows_with_the_distance_from_it() -> None:
    cost = Cost(compute_s=8.0, sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0)
    far_to_near = [one_layer(cost, limit=limit, batch_size=1, floor=1.0) for limit in (1, 2, 4, 8)]
    violations = [exact(problem, np.zeros((1, 1), np.int16)).violation[0] for problem in far_to_near]
    assert violations == sorted(violations, reverse=True)
    assert violations[-2] > 0
    assert violations[-1] == 0


def test_a_station_too_slow_with_any_number_of_units_violates_by_how_slow_it_is() -> None:
    def violation(compute_s: float) -> float:
        cost = Cost(compute_s=compute_s, sync_s=0.0, input_s=0.0, alpha=0.0, beta=1.0)
        problem = one_layer(cost, limit=9, batch_size=1, floor=1.0)
        return float(exact(problem, np.zeros((1, 1), np.int16)).violation[0])

    assert 0 < violation(2.0) < violation(4.0) < np.inf
