"""The exact scheduler of plans in rounds (BSP): its boxes, their bounds, and what becomes of what it cannot decide."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from drawn_problems import real_problems
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from real_oracle import plans
from test_real_plans import SAMPLES, Drawn, check

from heterps.config.policy_words import parse_policy
from heterps.errors import ConfigError
from heterps.planning.cost import Problem
from heterps.planning.kernels import traffic_of
from heterps.planning.real import Conditions
from heterps.planning.round_bounds import Bounds, Multipliers, needs_servers
from heterps.planning.round_boxes import Box, halves_of_rented, halves_of_seconds, halves_of_servers, halves_of_units
from heterps.planning.round_kernels import SUMS, add_layer, least_beside_units, least_to_hold, slow_s
from heterps.planning.round_stages import Stages
from heterps.planning.schedulers import exact_rounds
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.exact_rounds import ExactRounds

RELAXED = {"suppress_health_check": [HealthCheck.filter_too_much, HealthCheck.too_slow]}
BSP = parse_policy("bsp")
IN_ROUNDS = st.builds(
    Conditions,
    sync=st.just(BSP),
    rows=st.sampled_from([None, 3e6, 2e7]),
    rows_in_memory=st.sampled_from([None, 1.0, 0.2]),
    tiers_bytes=st.sampled_from([None, 10**9]),
    lanes=st.sampled_from([(1,), (1, 2, 4), (3, 6)]),
    all_reduce=st.booleans(),
)


def make(drawn: Drawn, conditions: Conditions) -> Problem:
    try:
        return Problem(*drawn, samples=SAMPLES, conditions=conditions)
    except ConfigError:
        assume(False)
        raise


@settings(max_examples=60, **RELAXED)
@given(real_problems(max_limit=6), IN_ROUNDS)
def test_the_search_by_labels_finds_what_trying_everything_finds(drawn: Drawn, conditions: Conditions) -> None:
    check(drawn, conditions)


def test_the_search_by_multipliers_finds_what_trying_everything_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_rounds, "SMALL", 0)

    @settings(max_examples=60, **RELAXED)
    @given(real_problems(max_limit=6), IN_ROUNDS)
    def run(drawn: Drawn, conditions: Conditions) -> None:
        check(drawn, conditions)

    run()


def test_what_labels_cannot_decide_is_kept_in_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_rounds, "WIDTHS", (1,))
    monkeypatch.setattr(exact_rounds, "LEAST_LOOSE", 0.5)  # boxes are set aside that could be split

    @settings(max_examples=40, **RELAXED)
    @given(real_problems(), IN_ROUNDS)
    def run(drawn: Drawn, conditions: Conditions) -> None:
        problem = make(drawn, conditions)
        found = search(problem, ExactRounds(problem, seed=0), SearchBudget())
        least = min((usd for _, usd, *_ in feasible(drawn, conditions)), default=math.inf)
        assert found.usd >= least * (1 - 1e-9)
        assert found.bound_usd <= least * (1 + 1e-9)

    run()


@settings(max_examples=40, **RELAXED)
@given(real_problems(), IN_ROUNDS)
def test_the_bound_never_exceeds_the_optimum_on_the_way_and_never_falls(drawn: Drawn, conditions: Conditions) -> None:
    problem = make(drawn, conditions)
    least = min((usd for _, usd, *_ in feasible(drawn, conditions)), default=math.inf)
    scheduler = ExactRounds(problem, seed=0)
    before = 0.0
    while (schedules := scheduler.propose()) is not None:
        assert before * (1 - 1e-9) <= scheduler.bound_usd() <= least * (1 + 1e-9)
        before = scheduler.bound_usd()
        scheduler.feedback(schedules, None)  # type: ignore[arg-type] - it bills them itself


def feasible(drawn: Drawn, conditions: Conditions) -> list[tuple[float, float, int]]:
    """(seconds of a round, usd, servers) of every plan that meets the floor."""
    profile, cluster, floor = drawn
    return [
        (profile.batch_size / throughput, usd, servers)
        for throughput, usd, _, servers in plans(profile, cluster, conditions, SAMPLES)
        if throughput >= floor * (1 - 1e-9)
    ]


@settings(max_examples=120, **RELAXED)
@given(real_problems(), st.sampled_from([1, 2, 4]), st.data())
def test_no_plan_of_a_box_costs_less_than_its_bound_whatever_the_multipliers(
    drawn: Drawn, lanes: int, data: st.DataObject
) -> None:
    conditions = Conditions(sync=BSP, lanes=(lanes,))
    problem = make(drawn, conditions)
    everything = feasible(drawn, conditions)
    assume(everything)
    shares = st.floats(0.0, 1.0)
    shortest, longest = min(s for s, *_ in everything), max(s for s, *_ in everything)
    ends = sorted(shortest + data.draw(shares) * (longest - shortest) for _ in range(2))
    servers = (1, 1)
    if needs_servers(problem):
        counts = sorted({n for *_, n in everything})
        servers = tuple(sorted(data.draw(st.sampled_from(counts)) for _ in range(2)))  # type: ignore[assignment]
    first = Stages(problem.kernel_inputs, lanes, 0.0)
    stages = Stages(problem.kernel_inputs, lanes, problem.tau_max)
    offers = problem.market.offers
    box = Box(
        lanes,
        (first.below if first.below >= 0 else first.above, stages.below),
        (ends[0], ends[1]),
        servers,
        (np.zeros_like(offers.limits), offers.limits),
        (np.zeros_like(problem.limits), problem.limits),
    )
    prices = np.array([data.draw(shares) * 20 for _ in problem.resources])
    ranges = np.array([data.draw(shares) * 9 for _ in problem.resources])
    second = data.draw(shares) * 50
    found = Bounds(problem).bound(box, stages, Multipliers(prices, ranges, second), 0.0, math.inf)
    for seconds, usd, number in everything:
        if ends[0] <= seconds <= ends[1] and (not needs_servers(problem) or servers[0] <= number <= servers[1]):
            assert found.weight * problem.hours_per_tau <= usd * (1 + 1e-9)


@settings(max_examples=60, **RELAXED)
@given(real_problems(facts=("memory", "ports")), st.sampled_from([1, 3, 6]), st.floats(0.0, 40.0))
def test_a_table_of_stages_knows_the_breakpoints_beside_its_z(drawn: Drawn, lanes: int, z: float) -> None:
    problem = make(drawn, Conditions(sync=BSP, lanes=(lanes,)))
    inputs, sums = problem.kernel_inputs, np.empty(SUMS)
    breakpoints = set()
    for t, first in itertools.product(range(len(problem.resources)), range(problem.num_layers)):
        for last in range(first, problem.num_layers):
            add_layer(sums, inputs.terms[t, last], last == first, last == 0)
            most = min(int(problem.limits[t]), lanes)
            held = least_to_hold(sums, lanes, inputs.batch_size, inputs.memory[t], int(problem.limits[t]))
            breakpoints |= {float(slow_s(sums, lanes, count)) for count in range(held, most + 1)}
    stages = Stages(inputs, lanes, z)
    assert stages.below == pytest.approx(max((b for b in breakpoints if b <= z), default=-math.inf), rel=1e-9)
    above = min((b for b in breakpoints if b > z * (1 + 1e-9)), default=math.inf)
    assert stages.above <= above * (1 + 1e-9), "no breakpoint is passed over"
    assert stages.above > z


@settings(max_examples=40, **RELAXED)
@given(real_problems(), st.data())
def test_what_a_table_says_that_a_chain_needs_is_what_its_lightest_chain_weighs(
    drawn: Drawn, data: st.DataObject
) -> None:
    problem = make(drawn, Conditions(sync=BSP, lanes=(4,)))
    stages = Stages(problem.kernel_inputs, 4, problem.tau_max)
    prices = np.array([data.draw(st.floats(0.0, 9.0)) for _ in problem.resources])
    per_s, per_moved_s, per_traffic = (data.draw(st.floats(0.0, 9.0)) for _ in range(3))
    weight, schedule, _ = stages.lightest(prices, per_s, per_moved_s, per_traffic, problem.limits)
    assume(schedule is not None)
    assert schedule is not None
    needs = stages.needs(schedule)
    assert needs is not None
    paid = float(prices @ needs.units) + per_s * needs.fill_s + per_moved_s * needs.moved_s
    assert weight == pytest.approx(paid + per_traffic * needs.traffic, rel=1e-9, abs=1e-12)
    assert needs.traffic >= float(traffic_of(problem.kernel_inputs, schedule)) * (1 - 1e-9)


def test_the_halves_of_a_box_hold_all_that_it_holds() -> None:
    limits = np.array([3, 5])
    box = Box(4, (1.0, 2.0), (1.0, 4.0), (1, 7), (np.zeros_like(limits), limits), (np.zeros_like(limits), limits))
    slow, fast = halves_of_seconds(box)
    assert (slow.seconds, fast.seconds) == ((1.0, 2.0), (2.0, 4.0))
    few, many = halves_of_servers(box)
    assert (few.servers, many.servers) == ((1, 2), (3, 7))
    least, most = halves_of_rented(box, 1)
    assert (least.rented[1].tolist(), most.rented[0].tolist()) == ([3, 2], [0, 3])
    least, most = halves_of_units(box, 0, 1)
    assert (least.units[1].tolist(), most.units[0].tolist()) == ([1, 5], [2, 0])
    assert [one.servers for one in halves_of_servers(box._replace(servers=(6, 7)))] == [(6, 6), (7, 7)]


def test_a_stage_that_takes_longer_than_a_round_belongs_to_no_box() -> None:
    @settings(max_examples=40, **RELAXED)
    @given(real_problems(), st.floats(0.01, 1.0))
    def run(drawn: Drawn, share: float) -> None:
        problem = make(drawn, Conditions(sync=BSP, lanes=(4,)))
        scheduler = ExactRounds(problem, seed=0)
        for root in scheduler._roots():
            longest = root.seconds[1] * share
            found = scheduler._narrowed(root._replace(seconds=(0.0, longest)))
            stages = Stages(problem.kernel_inputs, 4, root.z[1])
            others_s = problem.overhead_s + stages.least_fill_s + problem.server_s / root.servers[1]
            if found is None:
                assert others_s + root.z[0] > longest
                continue
            assert found.seconds == (others_s + root.z[0], longest)
            assert found.z[0] == root.z[0]
            assert found.z[1] <= max(longest * (1 + 1e-6), root.z[0])
            above = Stages(problem.kernel_inputs, 4, found.z[1]).above
            assert found.z[1] == root.z[1] or above > longest - others_s, "no breakpoint of a plan is lost"

    run()


@given(st.data())
def test_what_offers_cost_beside_their_units_is_least_over_all_numbers_of_them(data: st.DataObject) -> None:
    num_offers, num_resources = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))

    def draw(kind: st.SearchStrategy[float], *shape: int) -> np.ndarray:
        return np.array([data.draw(kind) for _ in range(math.prod(shape))]).reshape(shape)

    whole, usd = st.integers(0, 4), st.floats(0.0, 9.0)
    units, prices, rented = draw(whole, num_offers, num_resources), draw(usd, num_offers), draw(usd, num_resources)
    ranges = draw(st.floats(-9.0, 9.0), num_resources)
    (least, more), (fewest, most) = ((draw(whole, n), draw(whole, n)) for n in (num_offers, num_resources))
    more, most = least + more, fewest + most
    found = least_beside_units(units, prices, rented, ranges, (least, more), (fewest, most))
    over = prices - units @ rented
    tried = np.minimum(over * least, over * more).sum() + np.minimum(-ranges * fewest, -ranges * most).sum()
    assert found == pytest.approx(tried, rel=1e-9, abs=1e-9)
    assert found <= tried + 1e-12
