"""How fast the exact scheduler is, and how tight its bound, as limits begin to bind."""

from __future__ import annotations

import argparse
import statistics

import numpy as np

from heterps.config import Cluster, Resource
from heterps.planning.cost import Problem
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.exact import Exact
from heterps.profiling.profile import Cost, LayerProfile, Profile

CASES = [(16, 2, (480, 32)), (16, 2, (8, 2)), (16, 64, (480, 32)), (16, 64, (4, 1))] + [
    (100, 8, limits) for limits in ((480, 32), (100, 8), (40, 4), (20, 2), (12, 2), (10, 1), (8, 1), (6, 1))
]


def make_problem(num_layers: int, num_resources: int, limits: tuple[int, int]) -> Problem:
    """Every eighth layer moves much and computes little, the others the reverse. Resources of even number are slow and
    cheap, those of odd number fast and dear, with 30 to 40 % of noise on everything.
    """
    rng = np.random.default_rng(0)
    layers, resources = [], {}
    for i in range(num_layers):
        costs = {}
        for t in range(num_resources):
            slow, wide = (0.15, 0.02) if t % 2 == 0 else (0.004, 0.11)
            compute_s, sync_s, input_s = (slow, 0.002, 0.005) if i % 8 else (0.012, wide, 0.003)
            jitter, shares = rng.uniform(0.7, 1.4, 3), rng.uniform([0.9, 0.8], [0.99, 0.95])
            costs[f"r{t}"] = Cost(
                compute_s=compute_s * jitter[0],
                sync_s=sync_s * jitter[1],
                input_s=input_s * jitter[2],
                alpha=shares[0],
                beta=shares[1],
            )
        layers.append(LayerProfile(name=f"layer{i}", server_s=0.0005, costs=costs))
    for t in range(num_resources):
        price = (0.04 if t % 2 == 0 else 2.42) * rng.uniform(0.7, 1.4)
        resources[f"r{t}"] = Resource(usd_per_hour=price, limit=limits[t % 2])
    profile = Profile(model="large", batch_size=4096, layers=tuple(layers))
    return Problem(profile, Cluster(resources=resources, server_resource="r0"), 20_000, samples=1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="longest search")
    parser.add_argument("--rounds", type=int, default=3, help="searches of each problem; the median time is shown")
    args = parser.parse_args()
    print("| layers | resources | limits | USD | gap to its bound | median s |\n|---|---|---|---|---|---|")
    for num_layers, num_resources, limits in CASES:
        problem = make_problem(num_layers, num_resources, limits)
        found = [search(problem, Exact(problem, 0), SearchBudget(seconds=args.seconds)) for _ in range(args.rounds)]
        seconds = statistics.median(f.seconds for f in found)
        last = found[-1]
        if last.schedule is None:
            verdict = "proven infeasible" if last.bound_usd == np.inf else "no plan found"
        else:
            verdict = f"{last.usd / last.bound_usd - 1:.2%}"
        cells = [num_layers, num_resources, f"{limits[0]}, {limits[1]}", f"{last.usd:.2f}", verdict, f"{seconds:.3f}"]
        print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
