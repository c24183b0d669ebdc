from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning_oracle import problems
from realistic import ctr_problem

from heterps.config import PAPER_CLUSTER, Cluster, Resource
from heterps.errors import ConfigError
from heterps.planning.cost import Problem, Schedules
from heterps.planning.provisioners.base import Bills
from heterps.planning.provisioners.exact import exact
from heterps.planning.schedulers import make_scheduler
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.changes import Changes
from heterps.planning.schedulers.exact import Exact
from heterps.planning.schedulers.features import Features, features_of
from heterps.planning.schedulers.policy import Cell
from heterps.planning.schedulers.random_plans import RandomPlans, pick_runs
from heterps.planning.schedulers.rl import Reinforce
from heterps.profiling.profile import Cost, LayerProfile, Profile

CELLS: tuple[Cell, ...] = ("lstm", "elman")


def pretrained(problem: Problem, seed: int) -> Changes:
    return Reinforce(problem, seed, is_pretrained=True)


Make = Callable[[Problem, int], Changes]
with_and_without_policy = pytest.mark.parametrize("make", [pretrained, Reinforce, Changes])


def mixed_problem(num_layers: int = 6, throughput: float = 100_000.0) -> Problem:
    """Every third layer moves much and computes little, so that it belongs on CPUs; the others belong on GPUs."""

    def layer(i: int) -> LayerProfile:
        sparse = i % 3 == 0
        return LayerProfile(
            name=f"layer{i}",
            kind="embedding" if sparse else "linear",
            input_bytes=1_000_000,
            weight_bytes=4_000_000 * (1 + i),
            server_s=0.001,
            costs={
                "cpu": Cost(compute_s=0.01 if sparse else 0.8, sync_s=0.2, input_s=0.02, alpha=0.99, beta=0.98),
                "v100": Cost(compute_s=0.002, sync_s=0.15 if sparse else 0.01, input_s=0.01, alpha=0.95, beta=0.9),
            },
        )

    return Problem(
        Profile(model="mixed", batch_size=4096, layers=tuple(map(layer, range(num_layers)))),
        PAPER_CLUSTER,
        throughput,
        samples=1e9,
    )


@pytest.mark.parametrize("cell", CELLS)
def test_it_finds_the_optimum_of_two_resources_and_ends_by_itself(cell: Cell) -> None:
    problem = mixed_problem(num_layers=8)
    optimum = search(problem, Exact(problem, seed=0), SearchBudget())
    for seed in range(2):
        found = search(problem, Reinforce(problem, seed, cell), SearchBudget(evaluations=3000))
        assert found.finished
        assert found.usd == pytest.approx(optimum.usd, rel=1e-9)


@with_and_without_policy
def test_the_same_seed_proposes_the_same_and_another_seed_does_not(make: Make) -> None:
    problem = mixed_problem(num_layers=10)

    def proposals(seed: int) -> list[list[int]]:
        scheduler = make(problem, seed)
        rows: list[list[int]] = []
        for _ in range(3):
            schedules = scheduler.propose()
            assert schedules is not None
            scheduler.feedback(schedules, exact(problem, schedules))
            rows += schedules.tolist()
        return rows

    assert proposals(1) == proposals(1)
    assert proposals(1) != proposals(2)


def test_a_pretrained_policy_is_near_the_optimum_after_its_first_ten_bills() -> None:
    gaps: dict[str, list[float]] = {"rl": [], "changes": []}
    for seed in range(4):
        problem = ctr_problem(10, (400, 32), seed=seed)
        optimum = search(problem, Exact(problem, seed=0), SearchBudget())
        for method, found in gaps.items():
            few = search(problem, make_scheduler(method, problem, seed), SearchBudget(evaluations=10))
            found.append(few.usd / optimum.usd - 1)
    assert np.median(gaps["rl"]) < 0.05
    assert np.mean(gaps["rl"]) < np.mean(gaps["changes"])


def test_the_random_state_and_the_threads_of_torch_are_left_alone() -> None:
    problem = mixed_problem()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    threads = torch.get_num_threads()
    search(problem, Reinforce(problem, seed=0), SearchBudget(evaluations=100))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.rand(3), expected)


@with_and_without_policy
def test_no_schedule_is_billed_twice(make: Make) -> None:
    problem = mixed_problem(num_layers=4)
    billed: list[bytes] = []

    def note(problem: Problem, schedules: Schedules) -> Bills:
        billed.extend(row.tobytes() for row in schedules)
        return exact(problem, schedules)

    found = search(problem, make(problem, 0), SearchBudget(evaluations=5000), provisioner=note)
    assert found.finished
    assert len(billed) == len(set(billed)) == found.evaluations <= 2**4


@with_and_without_policy
def test_a_layer_is_never_proposed_where_it_has_no_cost(make: Make) -> None:
    problem = mixed_problem()
    layers = list(problem.profile.layers)
    layers[2] = layers[2].model_copy(update={"costs": {"cpu": layers[2].costs["cpu"]}})
    layers[4] = layers[4].model_copy(update={"costs": {"v100": layers[4].costs["v100"]}})
    profile = problem.profile.model_copy(update={"layers": tuple(layers)})
    problem = Problem(profile, PAPER_CLUSTER, problem.throughput, samples=1e9)

    def check(problem: Problem, schedules: Schedules) -> Bills:
        assert (schedules[:, 2] == problem.resources.index("cpu")).all()
        assert (schedules[:, 4] == problem.resources.index("v100")).all()
        return exact(problem, schedules)

    assert search(problem, make(problem, 0), SearchBudget(evaluations=300), provisioner=check).schedule is not None


@with_and_without_policy
def test_an_infeasible_problem_ends_without_a_plan(make: Make) -> None:
    problem = mixed_problem(num_layers=3, throughput=1e12)
    found = search(problem, make(problem, 0), SearchBudget(evaluations=5000))
    assert found.finished
    assert found.schedule is None


@settings(max_examples=25)
@given(problems(max_layers=4, max_limit=8), st.sampled_from(["rl", "rl-scratch", "rl-rnn", "changes"]))
def test_any_problem_can_be_searched(drawn: tuple[Profile, Cluster, float], method: str) -> None:
    try:
        problem = Problem(*drawn, samples=3600.0)
    except ConfigError:
        assume(False)
    optimum = search(problem, Exact(problem, seed=0), SearchBudget())
    found = search(problem, make_scheduler(method, problem, 0), SearchBudget(evaluations=100))
    assert found.usd >= optimum.usd * (1 - 1e-9)


@with_and_without_policy
def test_free_resources_do_not_break_the_logarithms(make: Make) -> None:
    problem = mixed_problem()
    free = {
        name: Resource(device=r.device, usd_per_hour=0.0, limit=r.limit) for name, r in PAPER_CLUSTER.resources.items()
    }
    problem = Problem(problem.profile, Cluster(resources=free, server_resource="cpu"), 1000.0, samples=1e9)
    assert search(problem, make(problem, 0), SearchBudget(evaluations=100)).usd == 0.0


@with_and_without_policy
def test_on_line_it_moves_to_what_the_trials_prefer_within_few_trials(make: Make) -> None:
    problem = mixed_problem()
    scheduler = make(problem, 0)
    by_model = search(problem, scheduler, SearchBudget(evaluations=2000))
    assert by_model.schedule is not None
    model_best = by_model.schedule.copy()
    sizes: list[int] = []

    def trials(problem: Problem, schedules: Schedules) -> Bills:
        """The last stage of the model's plan turns out to be ten times as dear where the model wanted it."""
        sizes.append(len(schedules))
        bills = exact(problem, schedules)
        dear = (schedules[:, -1] == model_best[-1]) * 9.0 + 1.0
        return Bills(bills.usd * dear, bills.throughput, bills.counts, bills.violation)

    everything = np.array([[i >> j & 1 for j in range(6)] for i in range(2**6)], np.int16)
    cheapest = trials(problem, everything).usd.min()
    sizes.clear()
    scheduler.start_trials(batch=4)
    measured = search(problem, scheduler, SearchBudget(evaluations=40), provisioner=trials)
    assert max(sizes) == 4
    assert measured.usd == pytest.approx(cheapest, rel=0.02)
    assert measured.schedule is not None
    assert measured.schedule[-1] != model_best[-1]


@with_and_without_policy
def test_on_line_the_best_plans_of_the_model_are_tried_first(make: Make) -> None:
    problem = mixed_problem()
    scheduler = make(problem, 0)
    by_model = search(problem, scheduler, SearchBudget(evaluations=2000))
    scheduler.start_trials(batch=3)
    first = scheduler.propose()
    assert first is not None
    assert by_model.schedule is not None
    assert first[0].tolist() == by_model.schedule.tolist()


@with_and_without_policy
def test_trials_after_a_search_cut_short_have_all_resources_and_know_the_best(make: Make) -> None:
    problem = mixed_problem(num_layers=10)
    for evaluations in (40, 400, 600):
        scheduler = make(problem, 0)
        by_model = search(problem, scheduler, SearchBudget(evaluations=evaluations))
        scheduler.start_trials(batch=2)
        first = scheduler.propose()
        assert first is not None
        assert by_model.schedule is not None
        assert first[0].tolist() == by_model.schedule.tolist()
        used = [first]
        for _ in range(10):
            scheduler.feedback(used[-1], exact(problem, used[-1]))
            more = scheduler.propose()
            if more is None or len(more) == 0:
                break
            used.append(more)
        assert set(np.unique(np.concatenate(used)).tolist()) == {0, 1}


def features_at_floor(problem: Problem) -> Features:
    return features_of(problem, problem.tau_max)


def test_what_looks_cheap_depends_on_the_pace() -> None:
    problem = mixed_problem()
    assert (features_at_floor(problem).cheap != features_of(problem, problem.tau_max / 4).cheap).any()


def test_runs_to_change_lie_in_the_schedule_and_often_begin_or_end_with_a_stage() -> None:
    schedules = np.tile(np.array([0, 0, 0, 1, 1, 1, 1, 0], np.int16), (500, 1))
    first, last = pick_runs(schedules, np.random.default_rng(0))
    assert (first >= 0).all()
    assert (first <= last).all()
    assert (last < 8).all()
    assert (np.isin(first, [0, 3, 7]) | np.isin(last, [2, 6, 7])).mean() > 0.7
    assert ((first == 3) & (last == 6)).sum() > 20


def test_random_plans_run_where_they_can_and_change_three_runs_of_layers_at_most() -> None:
    features = features_at_floor(mixed_problem(num_layers=10))
    only_cpu = features.runs.copy()
    only_cpu[3, 1] = False
    plans = RandomPlans(replace(features, runs=only_cpu), np.random.default_rng(0))
    whole = plans.whole(200)
    assert (whole[:, 3] == 0).all()
    assert set(np.unique(whole).tolist()) == {0, 1}
    assert (np.diff(whole, axis=1) != 0).any()
    changed = plans.changed(np.zeros((200, 10), np.int16))
    borders = (np.diff(np.delete(changed, 3, axis=1), axis=1) != 0).sum(axis=1)
    assert 1 <= borders.max() <= 6


def test_random_plans_do_without_what_is_taken_out() -> None:
    features = features_at_floor(mixed_problem(num_layers=10))
    for resource in (0, 1):
        plans = RandomPlans(features.without([resource]), np.random.default_rng(0))
        assert (plans.whole(100) != resource).all()


def test_a_resource_taken_out_stays_where_a_layer_has_no_other() -> None:
    features = features_at_floor(mixed_problem())
    runs = features.runs.copy()
    runs[2, 0] = False
    left = replace(features, runs=runs).without([1]).runs
    assert left[2].tolist() == [False, True]
    assert not left[[0, 1, 3, 4, 5], 1].any()


def test_other_methods_do_not_load_torch() -> None:
    code = (
        "import sys; from heterps.planning.schedulers import METHODS, make_scheduler; "
        "print('rl' in METHODS, 'rl-rnn' in METHODS, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]
