"""What do the provisioners cost over the exact one, and how fast are they? See README.md beside this file."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from heterps.config import PAPER_CLUSTER, Cluster, load_cluster
from heterps.errors import PlanInfeasible
from heterps.planning.cost import Floats, Problem, Schedules
from heterps.planning.infeasible import highest_throughput
from heterps.planning.provisioners import PROVISIONERS, find_provisioner
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.exact import Exact
from heterps.planning.schedulers.heuristic import AIBox
from heterps.profiling.profile import Profile, load_profile

sys.path.insert(0, str(Path(__file__).parents[1]))
from panels import Panel, draw

SHARES = (0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Floors, as shares of the highest throughput within the limits."""
SAMPLES, FLOOR = 1e9, 100_000
NUM_RANDOM, MOST_STAGES = 500, 6
PROFILES = Path(__file__).parents[1] / "profiles"
MODELS = ("ctr_dnn", "match_net", "two_emb", "nce")


@dataclass
class Figures:
    """Of one provisioner on one profile, over all floors."""

    over_optimum: list[float] = field(default_factory=list)  # a floor each: cost over exact for the exact schedule
    over_fixed: list[Floats] = field(
        default_factory=list
    )  # a floor each: for the fixed schedules that it can provision
    num_able: int = 0  # schedules, fixed and exact, that the exact provisioner can provision
    num_infeasible: int = 0  # those of them that this one cannot


def fixed_schedules(problem: Problem, rng: np.random.Generator) -> Schedules:
    """All layers on one resource each, the heuristic's, and random ones of a few stages."""
    num_resources, num_layers = len(problem.resources), problem.num_layers
    schedules = [np.full(num_layers, t) for t in range(num_resources)]
    with suppress(PlanInfeasible):  # a cluster without a CPU or without a GPU
        schedules += list(AIBox(problem, seed=0).propose())
    for _ in range(NUM_RANDOM):
        cuts = np.sort(rng.integers(0, num_layers + 1, rng.integers(1, MOST_STAGES)))
        on = rng.integers(0, num_resources, MOST_STAGES)
        schedules.append(on[np.searchsorted(cuts, np.arange(num_layers), side="right")])
    return np.unique(np.array(schedules, np.int16), axis=0)


def compare(profile: Profile, cluster: Cluster, shares: tuple[float, ...]) -> tuple[dict[str, Figures], float]:
    """The figures of every provisioner, and the highest throughput that the shares are of."""
    fastest, _ = highest_throughput(Problem(profile, cluster, 1.0, SAMPLES))
    assert fastest is not None, "the limits are too low for any plan"
    figures = {name: Figures() for name in PROVISIONERS}
    for share in shares:
        problem = Problem(profile, cluster, fastest.throughput * share, SAMPLES)
        optimum = search(problem, Exact(problem, seed=0), SearchBudget(seconds=30)).schedule
        assert optimum is not None
        schedules = np.vstack([optimum, fixed_schedules(problem, np.random.default_rng(0))])
        least = PROVISIONERS["exact"](problem, schedules).usd
        able = np.isfinite(least)
        for name, kept in figures.items():
            usd = PROVISIONERS[name](problem, schedules).usd
            over = np.full(len(usd), np.inf)
            over[able] = usd[able] / least[able] - 1
            kept.over_optimum.append(float(over[0]))
            kept.over_fixed.append(over[1:][np.isfinite(over[1:])])
            kept.num_able += int(able.sum())
            kept.num_infeasible += int(np.isinf(usd[able]).sum())
    return figures, fastest.throughput


def schedules_per_s(name: str, schedules: Schedules, rounds: int) -> float:
    """Provisioned and billed in a second of one core (of the thread's own time), median over the rounds."""
    problem = Problem(load_profile(PROFILES / "ctr_dnn.json"), PAPER_CLUSTER, FLOOR, SAMPLES)
    provisioner = find_provisioner(name)
    provisioner(problem, schedules[:1])
    seconds = []
    for _ in range(rounds):
        begin = time.thread_time()
        provisioner(problem, schedules)
        seconds.append(time.thread_time() - begin)
    return len(schedules) / statistics.median(seconds)


def percent(value: float) -> str:
    return f"{value * 100:.2f} %" if np.isfinite(value) else "none"


def report_cost(profile: Profile, figures: dict[str, Figures]) -> None:
    print(f"\n{profile.model}\n")
    print("| provisioner | exact schedules: median | worst | fixed: median | 99 % below | worst | infeasible |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, kept in figures.items():
        optimum = [over for over in kept.over_optimum if np.isfinite(over)] or [np.inf]
        fixed = np.concatenate(kept.over_fixed) if any(map(len, kept.over_fixed)) else np.array([np.inf])
        cells = (statistics.median(optimum), max(optimum), np.median(fixed), np.quantile(fixed, 0.99), fixed.max())
        infeasible = f"{kept.num_infeasible} of {kept.num_able}"
        print(f"| {name} | {' | '.join(percent(float(cell)) for cell in cells)} | {infeasible} |")


def report_speed(num_schedules: int, rounds: int) -> None:
    rng = np.random.default_rng(0)
    problem = Problem(load_profile(PROFILES / "ctr_dnn.json"), PAPER_CLUSTER, FLOOR, SAMPLES)
    anything = rng.integers(0, 2, (num_schedules, problem.num_layers)).astype(np.int16)
    few_stages = np.resize(fixed_schedules(problem, rng), anything.shape)
    print("\n16 layers, 2 resources, one core: schedules/s\n")
    print(f"| provisioner | random layers | at most {MOST_STAGES} stages |\n|---|---:|---:|")
    for name in PROVISIONERS:
        speeds = (schedules_per_s(name, schedules, rounds) for schedules in (anything, few_stages))
        print(f"| {name} | {' | '.join(f'{speed:,.0f}' for speed in speeds)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "profiles", nargs="*", type=Path, help="profile files; without any, those of the paper's four networks"
    )
    parser.add_argument("--cluster", type=Path, help="cluster file; without it, the paper's")
    parser.add_argument("--svg", type=Path, default=Path(__file__).parent / "cost.svg", help="where the plot goes")
    parser.add_argument("--quick", action="store_true", help="few floors and schedules, to see that it runs")
    arguments = parser.parse_args()
    profiles = [load_profile(path) for path in arguments.profiles or [PROFILES / f"{model}.json" for model in MODELS]]
    cluster = load_cluster(arguments.cluster) if arguments.cluster else PAPER_CLUSTER
    shares = SHARES[::8] if arguments.quick else SHARES
    print(f"Load of the machine before: {os.getloadavg()[0]:.2f}. {len(shares)} floors, {shares[0]} to {shares[-1]}")
    print("of the highest throughput. Cost over that of the exact provisioner for the same schedule.")
    panels = []
    for profile in profiles:
        figures, highest = compare(profile, cluster, shares)
        report_cost(profile, figures)
        lines = {name: kept.over_optimum for name, kept in figures.items() if name != "exact"}
        title = f"{profile.model}: {highest:,.0f} samples/s at most"
        panels.append(Panel(title, shares, "floor / highest throughput", (0.01, 0.1, 1.0), lines))
    report_speed(1_000 if arguments.quick else 20_000, rounds=1 if arguments.quick else 7)
    arguments.svg.write_text(draw(panels), encoding="utf-8")


if __name__ == "__main__":
    main()
