"""Plans with facts about machines: found by the search, and by trying everything from the definition."""

from __future__ import annotations

import math

import pytest
from drawn_problems import FACTS, real_problems
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from real_oracle import cheapest

from heterps.config import Cluster, Machine, Resource, Spot
from heterps.config.policy_words import parse_policy
from heterps.errors import ConfigError
from heterps.planning.cost import Problem, runs
from heterps.planning.lanes import kept_full
from heterps.planning.real import Conditions
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.brute import Brute
from heterps.planning.schedulers.exact import exact_scheduler
from heterps.profiling.profile import Cost, LayerProfile, Profile

SAMPLES = 36_000.0
Drawn = tuple[Profile, Cluster, float]
BSP = parse_policy("bsp")
CONDITIONS = st.builds(
    lambda sync, all_reduce, **more: Conditions(sync, all_reduce=all_reduce and sync is BSP, **more),
    sync=st.sampled_from([None, parse_policy("asp"), BSP]),
    all_reduce=st.booleans(),
    rows=st.sampled_from([None, 0.0, 3e6, 2e7]),
    rows_in_memory=st.sampled_from([None, 1.0, 0.2, 0.0]),
    tiers_bytes=st.sampled_from([None, 10**8, 10**9]),
    lanes=st.sampled_from([(1,), (1, 2, 4), (3, 6)]),
    most_workers=st.sampled_from([None, 1, 2]),
)
RELAXED = {"suppress_health_check": [HealthCheck.filter_too_much, HealthCheck.too_slow]}


def check(drawn: Drawn, conditions: Conditions) -> None:
    try:
        problem = Problem(*drawn, samples=SAMPLES, conditions=conditions)
    except ConfigError:
        assume(False)
        raise
    exact = search(problem, exact_scheduler(problem), SearchBudget())
    brute = search(problem, Brute(problem, seed=0), SearchBudget())
    expected = cheapest(*drawn[:2], conditions, drawn[2], SAMPLES)
    if problem.holds_whole_batches:  # a pipeline may lack the memory to be kept full, which the oracle does not know
        assert min(exact.usd, brute.usd) >= expected * (1 - 1e-9), "the oracle"
        assert exact.bound_usd <= expected * (1 + 1e-9) or math.isinf(expected), "the bound"
        for made in (exact, brute):
            if made.schedule is not None and made.counts is not None:
                counts = made.counts.tolist()
                assert kept_full(problem, runs(made.schedule.tolist()), counts) == counts, (
                    "memory holds what keeps it full"
                )
        return
    assert brute.usd == pytest.approx(expected, rel=1e-9), "the provisioner"
    in_steps = any(resource.billing_s or resource.minimum_s for resource in drawn[1].resources.values())
    close = 1e-3 if in_steps else 1e-9
    assert exact.usd == pytest.approx(expected, rel=close), "the search"
    if math.isfinite(expected):
        assert exact.bound_usd <= expected * (1 + 1e-9), "the bound"
        assert exact.bound_usd >= exact.usd * (1 - close - 1e-9), "the proof"


@pytest.mark.parametrize("fact", FACTS)
def test_the_cheapest_plan_with_one_kind_of_facts(fact: str) -> None:
    @settings(max_examples=15, **RELAXED)
    @given(real_problems(facts=(fact,)), CONDITIONS)
    def run(drawn: Drawn, conditions: Conditions) -> None:
        check(drawn, conditions)

    run()


@settings(max_examples=30, **RELAXED)
@given(real_problems(), CONDITIONS)
def test_the_cheapest_plan_with_all_kinds_of_facts(drawn: Drawn, conditions: Conditions) -> None:
    check(drawn, conditions)


def test_units_that_are_free_up_to_a_limit_do_not_make_others_free() -> None:
    def cost(compute_s: float) -> Cost:
        return Cost(compute_s=compute_s, sync_s=0.1, input_s=0.2, alpha=0.9, beta=0.5)

    layers = tuple(
        LayerProfile(name=f"layer{i}", costs={"cpu": cost(cpu_s), "gpu": cost(gpu_s)})
        for i, (cpu_s, gpu_s) in enumerate([(3.0, 0.03), (1.0, 3.0), (0.25, 1.9)])
    )
    profile = Profile(model="three layers", batch_size=100, layers=layers)
    cluster = Cluster(
        resources={
            "cpu": Resource(usd_per_hour=0.0, limit=1),
            "gpu": Resource(device="cuda", usd_per_hour=0.1, limit=3, spot=Spot(usd_per_hour=0.0, limit=1)),
        },
        machines={"box": Machine(units={"cpu": 3}, usd_per_hour=2.5, limit=1)},
        server_resource="cpu",
    )
    for floor in (25.0, 60.0, 70.0, 80.0, 90.0, 100.0, 110.0, 120.0):
        check((profile, cluster, floor), Conditions(sync=parse_policy("asp")))
        check((profile, cluster, floor), Conditions(sync=parse_policy("bsp"), lanes=(1, 2, 4)))


@pytest.mark.slow
@settings(max_examples=1500, **RELAXED)
@given(real_problems(), CONDITIONS)
def test_the_cheapest_plan_of_many_problems(drawn: Drawn, conditions: Conditions) -> None:
    check(drawn, conditions)
