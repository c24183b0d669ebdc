"""The problems that schedulers are compared on: four models, 2 to 64 resources, with and without limits that bind.

The profiles in benchmarks/profiles were made by `heterps profile --model NAME --resources cpu,v100`;
`with_resources` derives further resources from them. The same arguments give the same problem everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heterps.config import PAPER_CLUSTER, Cluster, Resource
from heterps.planning.cost import Problem
from heterps.planning.infeasible import highest_throughput
from heterps.profiling.profile import Cost, Profile, load_profile

MODELS = ("match_net", "ctr_dnn", "two_emb", "nce")
NUM_RESOURCES = (2, 4, 8, 16, 32, 64)
SAMPLES = 1e9
EASY, HARD = 0.25, 0.7
"""The floor, as a share of the highest throughput that the paper's cluster alone can reach."""
SOLD_OUT = 0.05
"""What is left of the limits of derived resources in a tight case."""


def base_profile(model: str) -> Profile:
    """What the layers take on the paper's two resources: a CPU core, measured, and a V100, estimated."""
    return load_profile(Path(__file__).parents[1] / "profiles" / f"{model}.json")


# --- more resources --------------------------------------------------------------------------------------------------


def with_resources(profile: Profile, cluster: Cluster, num: int, seed: int = 0) -> tuple[Profile, Cluster]:
    """`num` resources: the cluster's own, then relatives of each in turn, named cpu-2, v100-2, cpu-3 ...

    A relative is faster or slower by a factor of up to 4, in compute and in its link apart, and its price follows its
    speed but not exactly: some are bargains. Its limit is a share of the original's. With fewer than the cluster has,
    the first ones are kept.
    """
    rng = np.random.default_rng(seed)
    own = list(cluster.resources)
    resources = {name: cluster.resources[name] for name in own[:num]}
    costs = [{name: layer.costs[name] for name in own[:num] if name in layer.costs} for layer in profile.layers]
    for i in range(len(own), num):
        parent = own[i % len(own)]
        name = f"{parent}-{i // len(own) + 1}"
        speed, link = 2.0 ** rng.uniform(-2, 2, size=2)
        bargain = 2.0 ** rng.uniform(-0.4, 0.6)
        taste = 2.0 ** rng.uniform(-0.3, 0.3, size=len(profile.layers))  # no device is as good at every layer
        share = rng.uniform(0.1, 1.0)
        base = cluster.resources[parent]
        resources[name] = Resource(
            device=base.device,
            usd_per_hour=base.usd_per_hour * math.sqrt(speed * link) * bargain,
            limit=max(1, round(base.limit * share / speed)),
        )
        for layer_costs, factor in zip(costs, taste, strict=True):
            if parent in layer_costs:
                layer_costs[name] = _faster(layer_costs[parent], speed * factor, link)
    layers = tuple(
        layer.model_copy(update={"costs": own_costs}) for layer, own_costs in zip(profile.layers, costs, strict=True)
    )
    return profile.model_copy(update={"layers": layers}), Cluster(
        resources=resources, server_resource=cluster.server_resource
    )


def _faster(cost: Cost, speed: float, link: float) -> Cost:
    return cost.model_copy(
        update={
            "compute_s": cost.compute_s / speed,
            "sync_s": cost.sync_s / link,
            "input_s": cost.input_s / link,
        }
    )


@dataclass(frozen=True)
class Case:
    """One problem of the benchmark. In a tight one the floor is high and most resources are nearly sold out."""

    model: str
    num_resources: int
    tight: bool = False

    @property
    def name(self) -> str:
        return f"{self.model} x {self.num_resources}{' tight' if self.tight else ''}"

    def problem(self) -> Problem:
        base = base_profile(self.model)
        fastest, _ = highest_throughput(Problem(base, PAPER_CLUSTER, 1.0, SAMPLES))
        assert fastest is not None, "the paper's cluster can train every model"
        profile, cluster = with_resources(base, PAPER_CLUSTER, self.num_resources)
        if not self.tight:
            return Problem(profile, cluster, EASY * fastest.throughput, SAMPLES)
        left = {
            name: max(1, round(resource.limit * (1.0 if name in PAPER_CLUSTER.resources else SOLD_OUT)))
            for name, resource in cluster.resources.items()
        }
        fewer = {name: cluster.resources[name].model_copy(update={"limit": limit}) for name, limit in left.items()}
        tight = cluster.model_copy(update={"resources": fewer})
        return Problem(profile, tight, HARD * fastest.throughput, SAMPLES)


CASES = tuple(Case(model, num, tight) for tight in (False, True) for model in MODELS for num in NUM_RESOURCES)
