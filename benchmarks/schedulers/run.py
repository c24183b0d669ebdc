"""Search every problem with every method, and keep what was found when. See README.md; show.py makes the tables."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heterps.errors import HeterpsError
from heterps.planning.schedulers import METHODS, make_scheduler
from heterps.planning.schedulers.base import SearchBudget, search

sys.path.insert(0, str(Path(__file__).parent))
from problems import MODELS, NUM_RESOURCES, Case

RANDOM = ("rl", "rl-scratch", "rl-rnn", "rl-paper", "changes", "genetic", "bayes")


def find(case: Case, method: str, seed: int, seconds: float) -> dict[str, Any]:
    """One search. Seconds are the processor's, so that other programs do not count."""
    problem = case.problem()
    about = {"model": case.model, "resources": case.num_resources, "tight": case.tight, "method": method, "seed": seed}
    try:
        scheduler = make_scheduler(method, problem, seed)
        found = search(problem, scheduler, SearchBudget(seconds=seconds), clock=time.process_time)
    except HeterpsError as error:
        return about | {"usd": None, "why": str(error)}
    return about | {
        "usd": found.usd if found.schedule is not None else None,
        "proven": found.proven,
        "seconds": found.seconds,
        "evaluations": found.evaluations,
        "trace": [asdict(point) for point in found.trace],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--resources", default=",".join(map(str, NUM_RESOURCES)))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=3, help="searches by each method that draws at random")
    parser.add_argument("--seconds", type=float, default=10.0, help="longest search, of processor time")
    parser.add_argument("--tight", action="store_true", help="the cases whose floor is high and whose limits bind")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.json")
    arguments = parser.parse_args()
    results = []
    for model in arguments.models.split(","):
        for num_resources in map(int, arguments.resources.split(",")):
            case = Case(model, num_resources, arguments.tight)
            for method in arguments.methods.split(","):
                for seed in range(arguments.seeds if method in RANDOM else 1):
                    results.append(find(case, method, seed, arguments.seconds))
            print(case.name, flush=True)
            arguments.out.write_text(json.dumps(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
