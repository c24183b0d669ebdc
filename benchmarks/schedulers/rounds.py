"""How tight the bound of the exact scheduler is for large problems with all facts about machines, by policy."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator

import numpy as np

from heterps.config import Cluster, Machine, Resource, Spot
from heterps.config.policy_words import parse_policy
from heterps.planning.bill import bill_parts
from heterps.planning.cost import Problem
from heterps.planning.explain import stations
from heterps.planning.provisioners.base import to_plan
from heterps.planning.real import Conditions
from heterps.planning.schedulers.base import Search, SearchBudget, search
from heterps.planning.schedulers.exact import exact_scheduler
from heterps.profiling.profile import Cost, LayerProfile, Overhead, Profile

EGRESS = 0.02
WHOLE_STEP = 1.3
"""Seconds of a real step over what its layers add up to, which is paid on CPU cores."""
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
    whole_step: float = WHOLE_STEP,
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
        whole_steps={1: whole_step},
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
    parser.add_argument("--resources", type=int, nargs="+", default=[2, 8], help="numbers of them")
    parser.add_argument("--egress", type=float, default=EGRESS, help="USD per GB between the two zones")
    parser.add_argument("--whole-step", type=float, nargs="+", default=[WHOLE_STEP], help="of the profiles: 1.3")
    parser.add_argument("--explain", action="store_true", help="print where the seconds and the USD of each plan go")
    args = parser.parse_args()
    if args.explain:
        for case, problem, found in searches(args):
            explain(case, problem, found)
        return
    print("| policy | layers | resources | limits | floor | seed | USD | gap to its bound | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case, _, found in searches(args):
        gap = f"{found.usd / found.bound_usd - 1:.2%}" if found.schedule is not None else ""
        usd = f"{found.usd:.2f}" if found.schedule is not None else no_plan(found)
        print(f"| {case} | {usd} | {gap} | {found.seconds:.1f} |", flush=True)


def searches(args: argparse.Namespace) -> Iterator[tuple[str, Problem, Search]]:
    """Search each problem that was asked for; yields its cells in the table, the problem and what was found."""
    for sync, (num_layers, num_resources, limits) in itertools.product(args.sync, CASES):
        if num_layers not in args.layers or num_resources not in args.resources:
            continue
        for floor, seed, ratio in itertools.product(args.floors, range(args.seeds), args.whole_step):
            problem = make_problem(num_layers, num_resources, limits, floor, seed, args.egress, sync, ratio)
            found = search(problem, exact_scheduler(problem), SearchBudget(seconds=args.seconds))
            named = f"{sync} | {num_layers} | {num_resources} | {limits[0]}, {limits[1]} | {floor:,.0f} | {seed}"
            yield named, problem, found


def explain(case: str, problem: Problem, found: Search) -> None:
    """Print what one unit of each resource takes for all layers, what a plan has of it, and what its USD are for."""
    (ratio,) = (problem.profile.whole_steps or {1: 1.0}).values()
    usd = no_plan(found) if found.schedule is None else f"{found.usd:.2f} USD"
    print(f"\n**{case}, whole step {ratio:g}**: {usd}\n")
    print("| seconds of all layers on a unit | compute | of which not divided | communication | of which not divided |")
    print("|---|---:|---:|---:|---:|")
    for t, name in enumerate(problem.resources):
        divided, fixed, moved, moved_fixed = problem.terms[t, :, :4].sum(axis=0)
        figures = (divided + fixed, fixed, moved + moved_fixed, moved_fixed)
        print(f"| {name} | {' | '.join(f'{figure:.4f}' for figure in figures)} |")
    if found.schedule is None or found.counts is None:
        return
    plan = to_plan(problem, found.schedule, found.counts, "exact")
    print(f"\n| stage | units | layers | compute | communication | micro-batches of a unit, of {plan.lanes} |")
    print("|---|---:|---|---:|---:|---:|")
    for station, stage in itertools.zip_longest(stations(problem, plan), plan.stages):
        layers = f"{stage.first} to {stage.last}" if stage is not None else "servers"
        share = f"{math.ceil((plan.lanes or 1) / stage.count)}" if stage is not None else ""
        seconds = f"{station.compute_s:.4f} | {station.comm_s:.4f}"
        print(f"| {station.resource} | {station.count} | {layers} | {seconds} | {share} |")
    print("\n| paid for | number | USD |\n|---|---:|---:|")
    for part in bill_parts(problem, plan):
        print(f"| {part.name} | {'' if part.count is None else part.count} | {part.usd:.2f} |")


def no_plan(found: Search) -> str:
    return "none, proven" if math.isinf(found.bound_usd) else f"none found, bound {found.bound_usd:.2f}"


if __name__ == "__main__":
    main()
