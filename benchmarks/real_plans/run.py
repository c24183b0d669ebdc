"""What do plans of the paper's cost model really cost, beside plans that know machines and policies?

    python benchmarks/real_plans/run.py [--quick] [--sync bsp]

For each network, cluster and floor: the plan that the paper's model calls optimal, with the USD that it tells; the same
plan billed by the facts about the machines; and the plan that is optimal with these facts.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from heterps.config import Cluster
from heterps.config.policy_words import parse_policy
from heterps.planning.bill import bill
from heterps.planning.cost import Problem
from heterps.planning.optimum import find_cheapest
from heterps.planning.plan import Plan
from heterps.planning.real import Conditions
from heterps.profiling.profile import Profile, load_profile

PROFILES = Path(__file__).parents[1] / "profiles"
NETWORKS = ("ctr_dnn", "match_net", "two_emb", "nce")
FLOORS = (2e4, 2e5, 1e6)
SAMPLES, ROWS = 1e9, 1e8
SECONDS = 20.0

# Facts as `heterps prices` shows them: c5.large cores, p3.16xlarge machines; start-up is an assumption.
AWS = {
    "resources": {
        "cpu": {"device": "cpu", "usd_per_hour": 0.085, "limit": 480, "memory_gb": 4, "port_gbps": 10, "startup_s": 60},
        "v100": {"device": "cuda", "usd_per_hour": 3.06, "limit": 32, "memory_gb": 16},
    },
    "machines": {
        "p3.16xlarge": {
            "units": {"v100": 8, "cpu": 32}, "usd_per_hour": 24.48, "limit": 4, "port_gbps": 25, "startup_s": 180,
        },
    },
    "server_resource": "cpu",
}  # fmt: skip
# The servers of the paper: 48 cores, 512 GB and 100 Gb/s; four of them have 8 V100s too.
PAPER = {
    "resources": {
        "cpu": {"device": "cpu", "usd_per_hour": 0.04, "limit": 480, "memory_gb": 10.7, "port_gbps": 2.08},
        "v100": {"device": "cuda", "usd_per_hour": 2.42, "limit": 32, "memory_gb": 16, "port_gbps": 12.5},
    },
    "server_resource": "cpu",
}
CLUSTERS = {"AWS-like": AWS, "the paper's": PAPER}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one network and floor: shows that it runs")
    parser.add_argument("--sync", help="the policy, such as bsp or asp; by default bsp, then asp")
    asked = parser.parse_args()
    for policy in [asked.sync] if asked.sync else ["bsp", "asp"]:
        print(f"\n**sync {policy}**\n")
        print(
            "| network | cluster | floor | paper's plan | told USD | its real USD | real samples/s | new plan | USD |"
        )
        print("|---|---|---:|---|---:|---:|---:|---|---:|")
        for name in NETWORKS[:1] if asked.quick else NETWORKS:
            profile = load_profile(PROFILES / f"{name}.json")
            for where, facts in CLUSTERS.items():
                for floor in FLOORS[:1] if asked.quick else FLOORS:
                    compare(name, where, profile, Cluster.model_validate(facts), floor, policy)


def compare(name: str, where: str, profile: Profile, cluster: Cluster, floor: float, policy: str) -> None:
    """Print a line about one network, cluster and floor."""
    conditions = Conditions(parse_policy(policy), rows=ROWS)
    old, _ = find_cheapest(Problem(profile, cluster, floor, SAMPLES), SECONDS)
    real = Problem(profile, cluster, floor, SAMPLES, conditions=conditions)
    new, proven = find_cheapest(real, SECONDS)
    cells = [name, where, f"{floor:,.0f}"]
    if old is None:
        cells += ["none", "-", "-", "-"]
    else:
        cells += [draw(old), f"{old.usd:.2f}", *really(real, old)]
    cells += ["none", "-"] if new is None else [draw(new), f"{new.usd:.2f}{'' if proven else ' ?'}"]
    print(f"| {' | '.join(cells)} |", flush=True)


def really(problem: Problem, plan: Plan) -> tuple[str, str]:
    """USD and samples/s of a plan by the facts; in words where it cannot run."""
    if plan.servers.count < problem.least_servers:
        return "tables do not fit", "-"
    billed = bill(problem, plan.stages, plan.servers.count)
    if not math.isfinite(billed.usd) or billed.throughput == 0:
        return "does not fit", "-"
    missed = " (below the floor)" if billed.throughput < problem.throughput * (1 - 1e-9) else ""
    return f"{billed.usd:.2f}", f"{billed.throughput:,.0f}{missed}"


def draw(plan: Plan) -> str:
    stages = " → ".join(f"{stage.resource}×{stage.count}" for stage in plan.stages)
    return f"{stages}, {plan.servers.count} servers"


if __name__ == "__main__":
    main()
