"""The provisioners that are not exact: they keep floor and limits, bill right, and are never cheaper than exact."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from planning_oracle import TOLERANCE, bill, problems, split
from realistic import ctr_problem

from heterps.config import Cluster, Resource
from heterps.errors import ConfigError
from heterps.planning.cost import Floats, Problem, Schedules
from heterps.planning.infeasible import highest_throughput
from heterps.planning.provisioners import PROVISIONERS, find_provisioner, kernels
from heterps.planning.provisioners.base import Bills
from heterps.planning.provisioners.exact import exact
from heterps.planning.provisioners.newton import newton
from heterps.planning.provisioners.ratio import CPU_UNITS_PER_GPU, WORKERS_PER_SERVER, sta_ps_ratio, sta_ratio
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.exact import Exact
from heterps.profiling.profile import Cost, LayerProfile, Profile

SAMPLES = 3600.0
Drawn = tuple[Profile, Cluster, float]


def make(drawn: Drawn) -> Problem:
    try:
        return Problem(*drawn, samples=SAMPLES)
    except ConfigError:
        assume(False)
        raise


def all_schedules(problem: Problem) -> Schedules:
    every = itertools.product(range(len(problem.resources)), repeat=problem.num_layers)
    return np.array(list(every), np.int16)


def check_bill(problem: Problem, schedule: Sequence[int], bills: Bills, n: int) -> None:
    """Bill n keeps the floor and the limits and is what the definition says, or is infeasible in every field."""
    counts = bills.counts[n].tolist()
    assert (bills.violation[n] == 0) == math.isfinite(bills.usd[n])
    if math.isinf(bills.usd[n]):
        assert bills.throughput[n] == 0
        assert not any(counts)
        return
    stages = split([problem.resources[t] for t in schedule])
    counted = [(*stage, count) for stage, count in zip(stages, counts, strict=False)]
    num_servers = counts[len(stages)]
    assert (num_servers > 0) == (problem.server_s > 0)
    assert not any(counts[len(stages) + 1 :])
    throughput, usd = bill(problem.profile, problem.cluster, counted, num_servers, SAMPLES)
    assert bills.usd[n] == pytest.approx(usd, rel=TOLERANCE)
    assert bills.throughput[n] == pytest.approx(throughput, rel=TOLERANCE)
    assert throughput >= problem.throughput * (1 - TOLERANCE)
    for name, resource in problem.cluster.resources.items():
        used = sum(count for *_, on, count in counted if on == name)
        used += num_servers if name == problem.cluster.server_resource else 0
        assert used <= resource.limit


@pytest.mark.parametrize("name", ["newton", "sta-ratio", "sta-ps-ratio"])
@settings(max_examples=150)
@given(drawn=problems(max_layers=4, max_limit=8) | problems(max_layers=3, max_limit=300))
def test_every_provisioner_keeps_floor_and_limits_bills_right_and_is_never_cheaper_than_exact(
    name: str, drawn: Drawn
) -> None:
    problem = make(drawn)
    schedules = all_schedules(problem)
    bills, least = PROVISIONERS[name](problem, schedules), exact(problem, schedules)
    for n, schedule in enumerate(schedules.tolist()):
        check_bill(problem, schedule, bills, n)
    assert np.all(bills.usd >= least.usd * (1 - TOLERANCE))


@settings(max_examples=300)
@given(problems(max_layers=4, max_limit=8) | problems(max_layers=3, max_limit=300))
def test_newton_is_feasible_exactly_where_exact_is(drawn: Drawn) -> None:
    problem = make(drawn)
    schedules = all_schedules(problem)
    np.testing.assert_array_equal(
        np.isfinite(newton(problem, schedules).usd), np.isfinite(exact(problem, schedules).usd)
    )


@pytest.mark.parametrize("limits", [(480, 32), (60, 6)])
@pytest.mark.parametrize("share", [0.01, 0.03, 0.1, 0.3, 0.6, 0.9, 0.99])
def test_newton_is_within_2_percent_of_exact_on_realistic_problems(limits: tuple[int, int], share: float) -> None:
    problem = ctr_problem(16, limits)
    fastest, _ = highest_throughput(problem)
    assert fastest is not None
    problem = Problem(problem.profile, problem.cluster, fastest.throughput * share, samples=1e9)
    optimum = search(problem, Exact(problem, seed=0), SearchBudget()).schedule
    assert optimum is not None
    schedules = np.vstack([few_stages(problem.num_layers, np.random.default_rng(0)), optimum])
    dearer, least = newton(problem, schedules).usd, exact(problem, schedules).usd
    feasible = np.isfinite(least)
    assert np.all(dearer[feasible] <= least[feasible] * 1.02)


def few_stages(num_layers: int, rng: np.random.Generator) -> Schedules:
    """Every schedule of one to three stages on two resources, and random ones of up to seven."""
    cuts = [*itertools.combinations_with_replacement(range(num_layers + 1), 2)]
    cuts += [tuple(sorted(rng.integers(0, num_layers, 6).tolist())) for _ in range(200)]
    schedules = [[sum(layer >= cut for cut in some) % 2 for layer in range(num_layers)] for some in cuts]
    return np.array(schedules + [[1 - t for t in s] for s in schedules], np.int16)


STATIONS = st.lists(
    st.tuples(*[st.floats(0.0, 5.0)] * 4).filter(lambda station: station[0] + station[2] > 0.01), min_size=1, max_size=4
)


@settings(max_examples=200)
@given(STATIONS, st.lists(st.floats(0.01, 10.0), min_size=4, max_size=4), st.floats(1.01, 20.0))
@example([(5e-06, 1.0, 1.0, 0.0)], [1.0] * 4, 2.0)  # the least cost lies beside the pole, where the slope is steepest
@example([(0.0, 0.0, 0.03125, 2.0)], [1.0] * 4, 1.25)
@example([(1.0, 0.0, 5.96e-08, 4.0)], [1.0] * 4, 1.0625)  # a jump beside the pole: steep left of it
@example([(1e-12, 3.0, 1.0, 0.0)], [1.0] * 4, 1.0117)
def test_newtons_method_finds_the_least_real_valued_cost(
    drawn: list[tuple[float, float, float, float]], prices: list[float], slack: float
) -> None:
    stations = np.array(drawn)
    fastest = float(stations[:, [1, 3]].max())
    tau_max = max(fastest * slack, 0.1)

    def cost(tau: Floats) -> Floats:
        p, a, q, d = stations.T[:, :, None]
        counts = np.maximum(1.0, np.maximum(p / (tau - a), q / (tau - d)))
        return tau * (np.array(prices[: len(stations)])[:, None] * counts).sum(axis=0)

    resource = np.arange(len(stations))
    found = kernels.real_minimum(stations, resource, len(stations), np.array(prices), tau_max)
    assert fastest < found <= tau_max
    grid = fastest + (tau_max - fastest) * np.linspace(1e-4, 1.0, 5_000)
    assert cost(np.array([found]))[0] <= cost(grid).min() * (1 + 1e-6)


@pytest.mark.parametrize("name", ["newton", "sta-ratio", "sta-ps-ratio"])
def test_exact_scheduling_ends_by_itself_and_bounds_the_optimum_with_every_provisioner(name: str) -> None:
    problem = ctr_problem(16, (480, 32))
    found = search(problem, Exact(problem, seed=0), SearchBudget(evaluations=10_000), PROVISIONERS[name])
    optimum = search(problem, Exact(problem, seed=0), SearchBudget())
    assert found.finished
    assert found.bound_usd == pytest.approx(optimum.usd, rel=TOLERANCE)
    assert found.usd >= optimum.usd * (1 - TOLERANCE)


def even_problem(*, cpus: int, gpus: int, floor: float, server_s: float = 0.0) -> Problem:
    """An embedding of 8 s on the cpu and an fc of 3 s on the gpu, for one sample, which more units divide wholly."""

    def cost(compute_s: float) -> Cost:
        return Cost(compute_s=compute_s, sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0)

    layers = (
        LayerProfile(name="embedding", server_s=server_s, costs={"cpu": cost(8.0)}),
        LayerProfile(name="fc", costs={"gpu": cost(3.0)}),
    )
    resources = {
        "cpu": Resource(device="cpu", usd_per_hour=0.1, limit=cpus),
        "gpu": Resource(device="cuda", usd_per_hour=2.0, limit=gpus),
    }
    cluster = Cluster(resources=resources, server_resource="cpu")
    return Problem(Profile(model="m", batch_size=1, layers=layers), cluster, floor, samples=SAMPLES)


BOTH = np.array([[0, 1]], np.int16)


def test_a_static_ratio_is_scaled_by_the_stage_that_needs_the_most_of_its_share() -> None:
    bills = sta_ratio(even_problem(cpus=99, gpus=9, floor=1.0), BOTH)  # 8 cpus and 3 gpus are needed
    assert bills.counts[0].tolist() == [3 * CPU_UNITS_PER_GPU, 3, 0]
    slow_embedding = sta_ratio(even_problem(cpus=99, gpus=9, floor=1 / 3), BOTH)  # 3 and 1
    assert slow_embedding.counts[0].tolist() == [CPU_UNITS_PER_GPU, 1, 0]


def test_servers_keep_up_with_the_stages_or_get_a_share_of_the_ratio() -> None:
    problem = even_problem(cpus=99, gpus=9, floor=1.0, server_s=2.0)  # gpus need 1 s with 3 units, so servers 2
    assert sta_ratio(problem, BOTH).counts[0].tolist() == [18, 3, 2]
    assert sta_ps_ratio(problem, BOTH).counts[0].tolist() == [18, 3, math.ceil((18 + 3) / WORKERS_PER_SERVER)]


def test_servers_keep_up_with_stages_that_the_ratio_makes_faster_than_the_floor() -> None:
    """The gpu takes 3 s. One server, in 3.8 s, would do for the floor and hold it up; the limit may leave no second."""
    roomy, tight = (even_problem(cpus=cpus, gpus=9, floor=0.26, server_s=3.8) for cpus in (99, 7))
    assert sta_ratio(roomy, BOTH).counts[0].tolist() == [6, 1, 2]
    assert sta_ratio(tight, BOTH).counts[0].tolist() == [6, 1, 1]


def test_too_few_servers_scale_the_stages_where_their_ratio_is_fixed() -> None:
    bills = sta_ps_ratio(even_problem(cpus=99, gpus=9, floor=1.0, server_s=7.0), BOTH)
    assert bills.counts[0].tolist() == [24, 4, 7]


def test_a_static_ratio_beyond_a_limit_is_infeasible_and_further_so_the_further_beyond() -> None:
    violations = [
        sta_ratio(even_problem(cpus=cpus, gpus=9, floor=1.0), BOTH).violation[0].item() for cpus in (8, 12, 17, 18)
    ]
    assert violations == sorted(violations, reverse=True)
    assert violations[-2] > 0
    assert violations[-1] == 0


@pytest.mark.parametrize("name", PROVISIONERS)
def test_servers_that_cannot_be_rented_make_every_schedule_infeasible(name: str) -> None:
    cost = Cost(compute_s=1.0, sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0)
    layers = (LayerProfile(name="fc", server_s=1.0, costs={"gpu": cost}),)
    resources = {"cpu": Resource(usd_per_hour=1.0, limit=0), "gpu": Resource(usd_per_hour=1.0, limit=9)}
    cluster = Cluster(resources=resources, server_resource="cpu")
    problem = Problem(Profile(model="m", batch_size=1, layers=layers), cluster, 1.0, samples=SAMPLES)
    bills = PROVISIONERS[name](problem, np.zeros((1, 1), np.int16))
    assert math.isinf(bills.usd[0])
    assert bills.violation[0] > 0


def test_an_unknown_provisioner_is_answered_with_the_nearest_and_all() -> None:
    with pytest.raises(ConfigError, match=r"'newtn'.*'newton'.*exact, newton, sta-ratio, sta-ps-ratio"):
        find_provisioner("newtn")
