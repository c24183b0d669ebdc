"""The paper's plain algorithm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from realistic import ctr_problem

from heterps.planning.cost import Problem, Schedules
from heterps.planning.provisioners.base import Bills
from heterps.planning.provisioners.exact import exact
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.exact import Exact
from heterps.planning.schedulers.paper import BATCH, PENALTY, PaperReinforce

PROBLEM = ctr_problem(8, (400, 32))


def test_it_learns_a_plan_near_the_optimum_and_ends_when_it_draws_only_one() -> None:
    found = search(PROBLEM, PaperReinforce(PROBLEM, seed=0), SearchBudget(evaluations=10_000))
    optimum = search(PROBLEM, Exact(PROBLEM, seed=0), SearchBudget())
    assert found.finished
    assert found.usd == pytest.approx(optimum.usd, rel=0.05)


def test_the_draws_become_cheaper() -> None:
    means: list[float] = []

    def note(problem: Problem, schedules: Schedules) -> Bills:
        bills = exact(problem, schedules)
        means.append(float(np.log(bills.usd).mean()))
        return bills

    search(PROBLEM, PaperReinforce(PROBLEM, seed=1), SearchBudget(evaluations=40 * BATCH), provisioner=note)
    assert np.mean(means[-5:]) < np.mean(means[:5]) - 0.5


def test_a_layer_is_never_proposed_where_it_has_no_cost_and_torchs_own_draws_are_left_alone() -> None:
    layers = list(PROBLEM.profile.layers)
    layers[2] = layers[2].model_copy(update={"costs": {"cpu": layers[2].costs["cpu"]}})
    profile = PROBLEM.profile.model_copy(update={"layers": tuple(layers)})
    problem = Problem(profile, PROBLEM.cluster, PROBLEM.throughput, samples=1e9)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    drawn = PaperReinforce(problem, seed=0).propose()
    assert torch.equal(torch.rand(3), expected)
    assert drawn is not None
    assert (drawn[:, 2] == 0).all()
    assert set(np.unique(drawn).tolist()) == {0, 1}


def test_a_plan_further_from_feasible_is_worse_and_any_infeasible_one_worse_than_twenty_times_the_cost() -> None:
    usd = np.array([2.0, 40.0, np.inf, np.inf])
    bills = Bills(usd, np.ones(4), np.zeros((4, 9), np.int64), np.array([0.0, 0.0, 0.1, 10.0]))
    rewards = PaperReinforce(PROBLEM, seed=0)._rewards(bills)
    assert rewards[0] == 0.0
    assert rewards[1] == pytest.approx(-np.log(20.0))
    assert -PENALTY > rewards[2] > rewards[3]
    assert rewards[1] > rewards[2]
