"""What does each policy do with unequal, jittery and passingly slow workers? See README.md beside this file.

Everything but the last table is played on a simulated clock: the same on every machine.
"""

from __future__ import annotations

import argparse
import os
import time

from heterps.sim import Scenario, SimResult, simulate

AS_IN_THE_PAPER = "dssp:3:12+fastest+lower"
POLICIES = (
    "bsp", "bsp+backup:1", "ssp:3", "dssp:3:12", "dssp:3:12+elapsed", AS_IN_THE_PAPER, "ssp:15", "asp",
    "dssp:3:12+literal",
)  # fmt: skip
PAUSES = [
    {"worker": worker, "from_s": at_s, "to_s": at_s + 15.0, "factor": 10.0}
    for worker, at_s in (("w1", 100.0), ("w4", 300.0), ("w6", 500.0))
]
SCENARIOS = {
    "two speeds": Scenario(workers="1.0,2.3", horizon_s=1000.0),
    "one slow for good": Scenario(workers="15x1.0,3.0", jitter=0.1, horizon_s=1000.0),
    "jitter": Scenario(workers="16x1.0", jitter=0.3, horizon_s=1000.0),
    "passing slowness": Scenario(workers="8x1.0", jitter=0.1, slowdowns=PAUSES, horizon_s=1000.0),
}
RULES = ("ssp:3", AS_IN_THE_PAPER, "dssp:3:12+lower", "dssp:3:12+fastest", "dssp:3:12", "dssp:3:12+elapsed", "ssp:15")
HEADS = ("policy", "pushes", "waits", "wait s", "largest lead", "mean staleness", "dropped")


def row(result: SimResult) -> str:
    cells = (f"{result.pushes:,}", f"{result.waits:,}", f"{result.wait_s:,.0f}", f"{result.max_lead}")
    return " | ".join((result.policy, *cells, f"{result.mean_staleness:.2f}", f"{result.dropped:,}"))


def compare() -> None:
    for name, scenario in SCENARIOS.items():
        print(f"\n### {name}\n\n| {' | '.join(HEADS)} |\n|---|{'--:|' * (len(HEADS) - 1)}")
        for policy in POLICIES:
            print(f"| {row(simulate(scenario, policy))} |")


def in_turn(num_workers: int) -> Scenario:
    """Equal workers, of which one after the other is four times slower for 30 s of every 100."""
    slow = [
        {"worker": f"w{i % num_workers}", "from_s": 100.0 * i + 20, "to_s": 100.0 * i + 50, "factor": 4.0}
        for i in range(20)
    ]
    return Scenario(workers=f"{num_workers}x1.0", jitter=0.1, slowdowns=slow, horizon_s=2000.0)


def compare_rules() -> None:
    """The rules of DSSP, by their pushes as a share of ASP's, who never waits."""
    scenarios = {
        "1.0 and 2.5 s for good": Scenario(workers="1.0,2.5", jitter=0.1, horizon_s=2000.0),
        "4 equal, slow in turn": in_turn(4),
        "8 equal, slow in turn": in_turn(8),
        "4 equal, jitter 50 %": Scenario(workers="4x1.0", jitter=0.5, horizon_s=2000.0),
    }
    print(f"\n### rules of DSSP\n\n| workers | {' | '.join(RULES)} |\n|---|{'--:|' * len(RULES)}")
    for name, scenario in scenarios.items():
        most = simulate(scenario, "asp").pushes
        print(f"| {name} | {' | '.join(f'{simulate(scenario, rule).pushes / most:.3f}' for rule in RULES)} |")


def measure(num_workers: int, num_iterations: int) -> None:
    print(f"\n### {num_workers:,} workers, {num_iterations:,} iterations each\n")
    print("| policy | CPU s | pushes/s |\n|---|--:|--:|")
    scenario = Scenario(workers=f"{num_workers}x1.0", jitter=0.2, iterations=num_iterations)
    for policy in ("bsp", "asp", "ssp:3", "dssp:3:12"):
        start = time.process_time()
        result = simulate(scenario, policy)
        seconds = time.process_time() - start
        print(f"| {policy} | {seconds:.1f} | {result.pushes / seconds:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    quick = parser.parse_args().quick
    compare()
    compare_rules()
    measure(*((50, 20) if quick else (1000, 1000)))
    print(f"\nload {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
