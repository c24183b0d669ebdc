from __future__ import annotations

import numpy as np
import pytest

from heterps.config import Cluster, Resource
from heterps.planning.cost import Problem
from heterps.planning.provisioners.base import Bills
from heterps.planning.schedulers.greedy import Greedy
from heterps.profiling.profile import Cost, LayerProfile, Profile


def cost(compute_s: float, sync_s: float = 0.0) -> Cost:
    return Cost(compute_s=compute_s, sync_s=sync_s, input_s=0.0, alpha=0.9, beta=0.9)


def problem() -> Problem:
    """By time alone all layers would go to b, which costs three times as much; the last layer cannot run on a."""
    costs = (
        {"a": cost(2.0), "b": cost(1.0)},
        {"a": cost(4.0), "b": cost(1.0)},
        {"a": cost(0.1, sync_s=9.0), "b": cost(1.0)},
        {"b": cost(1.0)},
    )
    layers = tuple(LayerProfile(name=f"fc{i}", costs=of) for i, of in enumerate(costs))
    rented = Cluster(
        resources={"a": Resource(usd_per_hour=1.0, limit=9), "b": Resource(usd_per_hour=3.0, limit=9)},
        server_resource="a",
    )
    return Problem(Profile(model="m", batch_size=1, layers=layers), rented, 0.01, samples=1.0)


def bills(usd: list[float]) -> Bills:
    num = len(usd)
    return Bills(np.array(usd), np.ones(num), np.zeros((num, 5), np.int64), np.zeros(num))


def proposed(greedy: Greedy) -> list[list[int]]:
    schedules = greedy.propose()
    assert schedules is not None
    return schedules.tolist()


def test_every_layer_starts_where_it_alone_costs_least() -> None:
    assert proposed(Greedy(problem(), seed=0)) == [[0, 1, 1, 1], [1, 1, 1, 1]]


@pytest.mark.parametrize(("usd", "kept"), [([2.0, 1.0], 1), ([1.0, 2.0], 0), ([np.inf, 2.0], 1)])
def test_a_layer_stays_where_the_whole_plan_costs_least(usd: list[float], kept: int) -> None:
    greedy = Greedy(problem(), seed=0)
    schedules = greedy.propose()
    assert schedules is not None
    greedy.feedback(schedules, bills(usd))
    assert proposed(greedy) == [[kept, 0, 1, 1], [kept, 1, 1, 1]]


def test_where_no_plan_is_feasible_yet_a_layer_stays_where_it_is() -> None:
    greedy = Greedy(problem(), seed=0)
    for _ in range(4):
        schedules = greedy.propose()
        assert schedules is not None
        greedy.feedback(schedules, bills([np.inf, np.inf]))
        assert greedy._schedule.tolist() == [0, 1, 1, 1]
    assert greedy.propose() is None, "each layer is tried once"
