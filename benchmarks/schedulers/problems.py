"""The problems that schedulers are compared on: four models, 2 to 64 resources, with and without limits that bind.

Two steps, so that either can be replaced: `base_profile` says what the layers of a model take on the paper's two
resources, `with_resources` derives further resources from whatever profile and cluster it is given. No file and no
machine is asked: the same arguments give the same problem everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heterps.config import PAPER_CLUSTER, Cluster, Resource
from heterps.planning.cost import Problem
from heterps.profiling.profile import Cost, LayerProfile, Profile

BATCH_SIZE = 4096
FLOAT_BYTES = 4
SAMPLES = 1e9
FLOORS = {"match_net": 100_000.0, "ctr_dnn": 100_000.0, "two_emb": 300_000.0, "nce": 300_000.0}
"""Where a plan needs both resources: below, CPUs alone are cheapest."""
TIGHT_FLOORS = {"match_net": 200_000.0, "ctr_dnn": 400_000.0, "two_emb": 800_000.0, "nce": 800_000.0}
SOLD_OUT = 0.05
"""What is left of the limits of derived resources in a tight case."""
NUM_RESOURCES = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Unit:
    """What one unit can do; a unit's link is its share of its server's 100 Gb/s."""

    flops: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    launch_s: float


UNITS = {
    "cpu": Unit(flops=70e9, memory_bytes_per_s=4.7e9, link_bytes_per_s=12.5e9 / 48, launch_s=2e-6),
    "v100": Unit(flops=11.8e12, memory_bytes_per_s=720e9, link_bytes_per_s=12.5e9 / 8, launch_s=5e-6),
}


@dataclass(frozen=True)
class Shape:
    """A layer by its sizes for one sample. Weights that are not looked up are dense: all of them move, every batch."""

    name: str
    kind: str
    inputs: int  # numbers that cross a stage border before this layer
    outputs: int
    flops: float = 0.0  # forward
    weights: int = 0
    looked_up: int = 0


def embedding(name: str, slots: int, ids: int, dim: int, num_rows: int, carried: int = 0) -> Shape:
    """`ids` of 64 bits a slot, whose rows are added up."""
    looked_up = slots * ids * dim
    return Shape(
        name,
        "embedding",
        inputs=slots * ids * 2 + carried,
        outputs=slots * dim,
        flops=float(looked_up),
        weights=num_rows * dim,
        looked_up=looked_up,
    )


def linear(name: str, inputs: int, outputs: int, carried: int = 0) -> Shape:
    """`carried` numbers are needed by later layers only, and cross a border before this one too."""
    return Shape(name, "linear", inputs + carried, outputs, flops=2.0 * inputs * outputs, weights=inputs * outputs)


def light(name: str, kind: str, inputs: int, outputs: int, carried: int = 0) -> Shape:
    return Shape(name, kind, inputs + carried, outputs, flops=2.0 * inputs)


def ctr_dnn() -> list[Shape]:
    """26 slots and 13 dense columns, one tower."""
    shapes = [embedding("embedding", 26, 10, 16, 10_000_000, carried=13), light("concat", "concat", 429, 429)]
    width = 429
    for i, hidden in enumerate((2048, 2048, 1024, 400, 400, 400)):
        shapes += [linear(f"fc{i}", width, hidden), light(f"relu{i}", "activation", hidden, hidden)]
        width = hidden
    return [*shapes, linear("logits", width, 2), light("softmax", "activation", 2, 2)]


def match_net() -> list[Shape]:
    """Towers of user, item and negative item over embeddings, their cosines, a hinge between the two."""
    shapes: list[Shape] = []
    towers = (("user", 20, 20, 5_000_000), ("item", 8, 4, 2_000_000), ("negative", 8, 4, 2_000_000))
    for i, (tower, slots, ids, num_rows) in enumerate(towers):
        carried = i * 256 + (2 - i) * 8 * 4 * 2  # towers that are done, and the ids of those to come
        shapes += [
            embedding(f"{tower}_embedding", slots, ids, 32, num_rows, carried),
            linear(f"{tower}_fc0", 32 * slots, 2048, carried),
            light(f"{tower}_relu", "activation", 2048, 2048, carried),
            linear(f"{tower}_fc1", 2048, 256, carried),
        ]
    return [
        *shapes,
        light("cosine", "interaction", 512, 1, 256),
        light("negative_cosine", "interaction", 512, 1, 1),
        light("margin", "elementwise", 2, 1),
        light("hinge", "activation", 1, 1),
    ]


def two_emb() -> list[Shape]:
    """One big embedding that belongs on CPUs and one tiny one that does not mind."""
    return [
        embedding("big_embedding", 26, 10, 10, 1_000_001, carried=10),
        linear("fc0", 260, 400, 10),
        linear("fc1", 400, 400, 10),
        linear("fc2", 400, 50, 10),
        embedding("tiny_embedding", 5, 1, 10, 100, carried=50),
        linear("fc3", 50, 128, 50),
        light("concat", "concat", 178, 178),
        linear("fc4", 178, 128),
        linear("logits", 128, 2),
        light("softmax", "activation", 2, 2),
    ]


def nce() -> list[Shape]:
    """Skip-gram with a context of 10 words and 256 negatives shared by a batch of words."""
    return [
        embedding("word_embedding", 1, 10, 300, 3_000_000, carried=2),
        embedding("output_embedding", 1, 1, 300, 3_000_000, carried=300),
        embedding("bias_embedding", 1, 1, 1, 3_000_000, carried=600),
        Shape("scores", "interaction", 601, 2048, flops=2.0 * 300 * 2048),
        light("loss", "reduction", 2048, 1),
    ]


MODELS: dict[str, Callable[[], list[Shape]]] = {
    "match_net": match_net,
    "ctr_dnn": ctr_dnn,
    "two_emb": two_emb,
    "nce": nce,
}


def base_profile(model: str) -> Profile:
    """A stand-in for a measured profile: a roofline of the model's layers on a CPU core and a V100."""
    return Profile(model=model, batch_size=BATCH_SIZE, layers=tuple(map(_layer, MODELS[model]())))


def _layer(shape: Shape) -> LayerProfile:
    moved = BATCH_SIZE * shape.looked_up or shape.weights  # numbers that come from the servers and go back
    return LayerProfile(
        name=shape.name,
        kind=shape.kind,
        input_bytes=BATCH_SIZE * shape.inputs * FLOAT_BYTES,
        weight_bytes=shape.weights * FLOAT_BYTES,
        output_bytes=BATCH_SIZE * shape.outputs * FLOAT_BYTES,
        server_s=2 * moved * FLOAT_BYTES / UNITS["cpu"].memory_bytes_per_s,
        costs={name: _cost(shape, moved, unit) for name, unit in UNITS.items()},
    )


def _cost(shape: Shape, moved: int, unit: Unit) -> Cost:
    touched = BATCH_SIZE * (shape.inputs + shape.looked_up + shape.outputs) * FLOAT_BYTES
    return Cost(
        compute_s=3 * max(BATCH_SIZE * shape.flops / unit.flops, touched / unit.memory_bytes_per_s) + 3 * unit.launch_s,
        sync_s=2 * moved * FLOAT_BYTES / unit.link_bytes_per_s,
        input_s=2 * BATCH_SIZE * shape.inputs * FLOAT_BYTES / unit.link_bytes_per_s,
        alpha=0.98 if shape.kind == "linear" else 0.95,
        beta=0.97 if shape.looked_up else 0.9,
    )


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
        profile, cluster = with_resources(base_profile(self.model), PAPER_CLUSTER, self.num_resources)
        if not self.tight:
            return Problem(profile, cluster, FLOORS[self.model], SAMPLES)
        left = {
            name: max(1, round(resource.limit * (1.0 if name in PAPER_CLUSTER.resources else SOLD_OUT)))
            for name, resource in cluster.resources.items()
        }
        fewer = {name: cluster.resources[name].model_copy(update={"limit": limit}) for name, limit in left.items()}
        tight = cluster.model_copy(update={"resources": fewer})
        return Problem(profile, tight, TIGHT_FLOORS[self.model], SAMPLES)


CASES = tuple(Case(model, num, tight) for tight in (False, True) for model in MODELS for num in NUM_RESOURCES)
