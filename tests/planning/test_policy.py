"""The policy network of the learned scheduler, and the weights that it is shipped with."""

from __future__ import annotations

import itertools
from importlib.resources import files

import numpy as np
import pytest
import torch
from realistic import ctr_problem

from heterps.config import Cluster
from heterps.planning.cost import Problem
from heterps.planning.schedulers.features import features_of, pair_features
from heterps.planning.schedulers.policy import (
    PRETRAINED,
    STAY,
    Chances,
    SchedulePolicy,
    as_tensors,
    load_pretrained,
)

LAYERS, RESOURCES = 4, 3
EVERYTHING = torch.tensor(list(itertools.product(range(RESOURCES), repeat=LAYERS)))


def random_chances() -> Chances:
    generator = torch.Generator().manual_seed(0)
    return Chances(*torch.randn(2, LAYERS, RESOURCES, generator=generator))


def chance(chances: Chances, schedule: list[int]) -> float:
    """The probability of a schedule, layer by layer, from the definition."""
    p = 1.0
    for layer, resource in enumerate(schedule):
        weights = chances.score[layer].exp()
        if layer > 0:
            weights[schedule[layer - 1]] *= float(chances.stay[layer, schedule[layer - 1]].exp())
        p *= float(weights[resource] / weights.sum())
    return p


def pretrained() -> SchedulePolicy:
    policy = SchedulePolicy()
    policy.load_state_dict(load_pretrained())
    return policy


def test_the_probabilities_are_those_of_the_definition_and_sum_to_one() -> None:
    chances = random_chances()
    log_p = chances.log_p(EVERYTHING).gather(2, EVERYTHING[..., None])[..., 0].sum(dim=1)
    expected = [chance(chances, schedule) for schedule in EVERYTHING.tolist()]
    assert log_p.exp().tolist() == pytest.approx(expected, rel=1e-5)
    assert sum(expected) == pytest.approx(1.0)


def test_the_most_likely_schedule_is_that_of_highest_probability() -> None:
    chances = random_chances()
    best = max(EVERYTHING.tolist(), key=lambda schedule: chance(chances, schedule))
    assert chances.most_likely().tolist() == best


def test_draws_are_as_frequent_as_they_are_probable_and_keep_what_they_must() -> None:
    chances, num = random_chances(), 20_000
    generator = torch.Generator().manual_seed(1)
    drawn = chances.sample(torch.full((num, LAYERS), -1), torch.ones(num), generator)
    for schedule in EVERYTHING[::8]:
        share = float((drawn == schedule).all(dim=1).float().mean())
        assert share == pytest.approx(chance(chances, schedule.tolist()), abs=0.01)
    kept = torch.tensor([[-1, 2, -1, 0]]).repeat(50, 1)
    drawn = chances.sample(kept, torch.ones(50), generator)
    assert (drawn[:, 1] == 2).all()
    assert (drawn[:, 3] == 0).all()
    assert drawn[:, 0].unique().numel() > 1


def test_a_policy_that_has_learned_nothing_guesses_by_cost_and_stays_with_given_odds() -> None:
    features = features_of(ctr_problem(6, (400, 32)), 0.1)
    chances = SchedulePolicy()(*as_tensors(features))
    assert torch.allclose(chances.score, torch.as_tensor(features.cheap, dtype=torch.float32))
    equal = Chances(torch.zeros_like(chances.score), chances.stay)
    stays = equal.log_p(torch.zeros(1, 6, dtype=torch.long))[0, 3, 0].exp().detach()
    assert float(stays / (1 - stays)) == pytest.approx(np.exp(STAY), rel=1e-5)


def test_resources_in_another_order_get_the_same_scores() -> None:
    problem = ctr_problem(6, (400, 32))
    swapped = Cluster(resources=dict(reversed(problem.cluster.resources.items())), server_resource="cpu")
    other = Problem(problem.profile, swapped, problem.throughput, problem.samples)
    scores = [pretrained()(*as_tensors(features_of(p, 0.1))).score for p in (problem, other)]
    assert torch.allclose(scores[0], scores[1].flip(1), atol=1e-4)


@pytest.mark.parametrize("num_layers", [1, 7, 40])
def test_the_shipped_weights_fit_any_number_of_layers(num_layers: int) -> None:
    features = features_of(ctr_problem(num_layers, (400, 32)), 0.1)
    assert pretrained()(*as_tensors(features)).score.shape == (num_layers, 2)


def test_the_shipped_weights_are_small() -> None:
    assert len((files("heterps.planning.schedulers") / PRETRAINED).read_bytes()) < 300_000


def test_features_do_not_depend_on_the_units_of_money_and_time() -> None:
    problem = ctr_problem(6, (400, 32))
    terms, prices, limits = problem.terms, problem.prices, problem.limits
    here = pair_features(terms, prices, limits, np.array([0.3, 0.0]), 0.1)[0]
    there = pair_features(terms * 60, prices * 7, limits, np.array([0.3, 0.0]), 6.0)[0]
    assert np.allclose(here, there)
