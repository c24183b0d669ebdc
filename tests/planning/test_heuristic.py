from __future__ import annotations

import pytest

from heterps.config import Cluster, Resource
from heterps.errors import PlanInfeasible
from heterps.planning.cost import Problem
from heterps.planning.schedulers.heuristic import AIBox
from heterps.profiling.profile import Cost, LayerProfile, Profile

DEVICES = {"cpu": "cpu", "old_cpu": "cpu", "v100": "cuda", "xpu": "xpu"}


def cost(compute_s: float, sync_s: float) -> Cost:
    return Cost(compute_s=compute_s, sync_s=sync_s, input_s=0.0, alpha=0.9, beta=0.9)


def layer(name: str, kind: str, *, on: tuple[str, ...], compute_s: float, sync_s: float) -> LayerProfile:
    return LayerProfile(name=name, kind=kind, costs=dict.fromkeys(on, cost(compute_s, sync_s)))


def schedules(on: tuple[str, ...], *layers: LayerProfile) -> list[list[str]]:
    resources = {name: Resource(device=DEVICES[name], usd_per_hour=1.0, limit=9) for name in on}
    cluster = Cluster(resources=resources, server_resource=on[0])
    problem = Problem(Profile(model="m", batch_size=100, layers=layers), cluster, 1.0, samples=1.0)
    proposed = AIBox(problem, seed=0).propose()
    assert proposed is not None
    return [[problem.resources[t] for t in schedule] for schedule in proposed.tolist()]


def test_embeddings_and_layers_that_move_longer_than_they_compute_go_to_the_cpu() -> None:
    both = ("cpu", "v100")
    found = schedules(
        both,
        layer("embedding", "embedding", on=both, compute_s=2.0, sync_s=1.0),
        layer("fc1", "linear", on=both, compute_s=2.0, sync_s=1.0),
        layer("wide", "linear", on=both, compute_s=1.0, sync_s=2.0),
        layer("fc2", "linear", on=both, compute_s=1.0, sync_s=1.0),
    )
    assert found == [["cpu", "v100", "cpu", "v100"]]


def test_a_layer_that_cannot_run_where_it_belongs_goes_to_the_other() -> None:
    found = schedules(
        ("cpu", "v100"),
        layer("embedding", "embedding", on=("v100",), compute_s=1.0, sync_s=1.0),
        layer("fc", "linear", on=("cpu",), compute_s=2.0, sync_s=1.0),
    )
    assert found == [["v100", "cpu"]]


def test_every_pair_of_a_cpu_and_a_gpu_is_tried() -> None:
    every = tuple(DEVICES)
    found = schedules(
        every,
        layer("embedding", "embedding", on=every, compute_s=1.0, sync_s=1.0),
        layer("fc", "linear", on=every, compute_s=2.0, sync_s=1.0),
    )
    assert found == [["cpu", "v100"], ["cpu", "xpu"], ["old_cpu", "v100"], ["old_cpu", "xpu"]]


@pytest.mark.parametrize("only", ["cpu", "v100"])
def test_a_cluster_without_such_a_pair_is_told_what_it_has(only: str) -> None:
    with pytest.raises(PlanInfeasible, match=rf"method heuristic.*rents {only} \({DEVICES[only]}\).*Add the other"):
        schedules((only,), layer("fc", "linear", on=(only,), compute_s=2.0, sync_s=1.0))
