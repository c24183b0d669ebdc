"""How tight the bound of the exact scheduler is for large problems with all facts about machines, by policy."""

from __future__ import annotations

import argparse
import itertools
import math

import numpy as np

from heterps.config import Cluster, Machine, Resource, Spot
from heterps.config.policy_words import parse_policy
from heterps.planning.cost import Problem
from heterps.planning.real import Conditions
from heterps.planning.schedulers.base import Search, SearchBudget, search
from heterps.planning.schedulers.exact import exact_scheduler
from heterps.profiling.profile import Cost, LayerProfile, Overhead, Profile

EGRESS = 0.02
OVERHEAD = Overhead(
    batch_s=0.001, worker_s=2e-4, message_s=1e-4, free_message_s=1e-4, free_fixed_s=5e-4, free_divided_s=1e-3, start_s=5
)
LIMITS = ((480, 32), (100, 8), (40, 4), (20, 4))
CASES = [(16, 2, LIMITS[0]), (16, 8, LIMITS[0])] + [(100, 8, limits) for limits in LIMITS]


def make_problem(
    num_layers: int,
    num_resources: int,
    limits: tuple[int, int],
    floor: float,
    seed: int = 0,
    egress: float = EGRESS,
    sync: str = "bsp",
) -> Problem:
    """Every eighth layer is an embedding. Resources of even number are cores, those of odd number accelerators.

    Accelerators have spot units, take 3 minutes to start, or are sold by eight with 32 cores; the second half of the
    resources is in another zone. Everything varies by 30 to 40 %.
    """
    rng = np.random.default_rng(seed)
    layers, resources = [], {}
    for i in range(num_layers):
        costs = {}
        for t in range(num_resources):
            compute_s, sync_s = (0.012, 0.02) if i % 8 == 0 else (0.15 if t % 2 == 0 else 0.004, 0.002)
            jitter, shares = rng.uniform(0.7, 1.4, 3), rng.uniform([0.9, 0.8], [0.99, 0.95])
            costs[f"r{t}"] = Cost(
                compute_s=compute_s * jitter[0],
                sync_s=sync_s * jitter[1],
                input_s=0.003 * jitter[2],
                alpha=shares[0],
                beta=shares[1],
            )
        is_rows = i % 8 == 0
        layers.append(
            LayerProfile(
                name=f"layer{i}",
                kind="embedding" if is_rows else "linear",
                server_s=0.004 if is_rows else 0.0005,
                server_fixed_s=0.0 if is_rows else 0.0004,
                input_bytes=4096 * 400 * 4,
                dense_bytes=0 if is_rows else 400 * 400 * 4,
                row_bytes=7_000_000 if is_rows else 0,
                activation_bytes=4096 * 400 * 4,
                costs=costs,
            )
        )
    for t in range(num_resources):
        price = (0.04 if t % 2 == 0 else 2.42) * rng.uniform(0.7, 1.4)
        spot = Spot(usd_per_hour=price * 0.4, limit=limits[1] // 2, interruptions_per_hour=0.05)
        resources[f"r{t}"] = Resource(
            device="cpu" if t % 2 == 0 else "cuda",
            usd_per_hour=price,
            limit=limits[t % 2],
            memory_gb=4 if t % 2 == 0 else 16,
            port_gbps=10,
            startup_s=60 if t % 2 == 0 else 180,
            billing_s=1,
            zone="a" if t < num_resources / 2 else "b",
            spot=spot if t % 4 == 1 else None,
        )
    machines = {}
    if num_resources > 3:
        machines["box"] = Machine(units={"r3": 8, "r2": 32}, usd_per_hour=19.0, limit=max(limits[1] // 8, 1))
    profile = Profile(
        version=2,
        model="large",
        batch_size=4096,
        layers=tuple(layers),
        overheads={"local": OVERHEAD},
        whole_steps={1: 1.3},
    )
    cluster = Cluster(resources=resources, machines=machines, server_resource="r0", egress_usd_per_gb=egress)
    return Problem(profile, cluster, floor, samples=1e9, conditions=Conditions(parse_policy(sync), rows=1e8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="longest search")
    parser.add_argument("--floors", type=float, nargs="+", default=[5_000, 20_000], help="samples per second")
    parser.add_argument("--seeds", type=int, default=1, help="number of problems of each kind")
    parser.add_argument("--sync", nargs="+", default=["bsp"], help="policies, such as bsp asp ssp:3")
    parser.add_argument("--layers", type=int, nargs="+", default=[16, 100], help="of the models")
    parser.add_argument("--egress", type=float, default=EGRESS, help="USD per GB between the two zones")
    args = parser.parse_args()
    print("| policy | layers | resources | limits | floor | seed | USD | gap to its bound | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for sync, (num_layers, num_resources, limits) in itertools.product(args.sync, CASES):
        for floor, seed in itertools.product(args.floors, range(args.seeds)) if num_layers in args.layers else ():
            problem = make_problem(num_layers, num_resources, limits, floor, seed, args.egress, sync)
            found = search(problem, exact_scheduler(problem), SearchBudget(seconds=args.seconds))
            gap = f"{found.usd / found.bound_usd - 1:.2%}" if found.schedule is not None else ""
            usd = f"{found.usd:.2f}" if found.schedule is not None else no_plan(found)
            named = f"{sync} | {num_layers} | {num_resources} | {limits[0]}, {limits[1]} | {floor:,.0f} | {seed}"
            print(f"| {named} | {usd} | {gap} | {found.seconds:.1f} |", flush=True)


def no_plan(found: Search) -> str:
    return "none, proven" if math.isinf(found.bound_usd) else f"none found, bound {found.bound_usd:.2f}"


if __name__ == "__main__":
    main()
