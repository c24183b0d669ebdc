"""A problem with the shape of a CTR model on the paper's cluster: what a small fixed profile of the zoo looks like."""

from __future__ import annotations

import numpy as np

from heterps.config import Cluster, Resource
from heterps.planning.cost import Problem
from heterps.profiling.profile import Cost, LayerProfile, Profile


def ctr_problem(num_layers: int, limits: tuple[int, int], *, floor: float = 20_000, seed: int = 0) -> Problem:
    """Every eighth layer is an embedding, cheap to compute and dear to move; the others are dense, slow on a core and
    fast on a V100. Each figure is drawn within a third of its usual value.
    """
    rng = np.random.default_rng(seed)

    def cost(compute_s: float, sync_s: float, input_s: float) -> Cost:
        near = rng.uniform(0.7, 1.4, 3)
        return Cost(
            compute_s=compute_s * near[0],
            sync_s=sync_s * near[1],
            input_s=input_s * near[2],
            alpha=rng.uniform(0.9, 0.99),
            beta=rng.uniform(0.8, 0.95),
        )

    layers = []
    for i in range(num_layers):
        if i % 8 == 0:
            costs = {"cpu": cost(0.012, 0.020, 0.003), "v100": cost(0.010, 0.110, 0.004)}
            layers.append(LayerProfile(name=f"embedding{i}", kind="embedding", server_s=0.004, costs=costs))
        else:
            costs = {"cpu": cost(0.150, 0.002, 0.005), "v100": cost(0.004, 0.002, 0.005)}
            layers.append(LayerProfile(name=f"fc{i}", kind="linear", server_s=0.0005, costs=costs))
    resources = {
        "cpu": Resource(device="cpu", usd_per_hour=0.04, limit=limits[0]),
        "v100": Resource(device="cuda", usd_per_hour=2.42, limit=limits[1]),
    }
    profile = Profile(model="ctr", batch_size=4096, layers=tuple(layers))
    return Problem(profile, Cluster(resources=resources, server_resource="cpu"), floor, samples=1e9)
