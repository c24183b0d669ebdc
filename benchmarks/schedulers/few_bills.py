"""How far from the optimum is each method, and each part of `rl` alone, after so many bills? See README.md."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from heterps.planning.cost import Problem, Schedules
from heterps.planning.optimum import cheapest
from heterps.planning.provisioners.base import Bills
from heterps.planning.provisioners.exact import exact
from heterps.planning.schedulers import make_scheduler
from heterps.planning.schedulers.base import Scheduler, SearchBudget, search
from heterps.planning.schedulers.learner import LearnerSettings
from heterps.planning.schedulers.rl import PRETRAINED_LR, Reinforce

sys.path.insert(0, str(Path(__file__).parent))
from problems import MODELS, Case
from random_problems import random_problem

AT = (10, 50, 200, 1000)
SIZES = {2: (8, 2), 8: (16, 8), 16: (16, 16)}  # layers and resources of random problems


def _rl(settings: LearnerSettings, *, is_pretrained: bool = False) -> Callable[[Problem, int], Scheduler]:
    return lambda problem, seed: Reinforce(problem, seed, is_pretrained=is_pretrained, settings=settings)


PARTS: dict[str, Callable[[Problem, int], Scheduler]] = {
    "rl-scratch no changes": _rl(LearnerSettings(changed=0.0)),
    "rl-scratch no REINFORCE": _rl(LearnerSettings(reinforce=0.0)),
    "rl-scratch no imitation": _rl(LearnerSettings(imitate=0.0)),
    "rl never trained further": _rl(LearnerSettings(lr=0.0), is_pretrained=True),
    "rl no changes": _rl(LearnerSettings(lr=PRETRAINED_LR, changed=0.0), is_pretrained=True),
}
"""What `rl` is without one of its parts."""
PLAIN = ("rl", "rl-scratch", "rl-rnn", "rl-paper", "changes", "genetic", "bayes", "greedy")
SEEDLESS = ("greedy", "exact")


def bills_of(
    seen: Problem, real: Problem, method: str, seed: int, noise: float, most: int
) -> tuple[list[float], list[float], float]:
    """Return the costs in the order in which `method` asked for them, as they are and as it was told, and the
    processor's seconds of the search.

    The method knows the costs of layers as of `seen`; its bills are those of `real`, off by a random factor each.
    `exact` learns from no bill: it has one, that of the plan which is the cheapest for the problem as it knows it.
    """
    rng = np.random.default_rng(seed)
    usd: list[float] = []
    told: list[float] = []

    def note(_: Problem, schedules: Schedules) -> Bills:
        bills = exact(real, schedules)
        noisy = bills.usd * np.exp(rng.normal(0, noise, len(bills.usd)))
        usd.extend(bills.usd.tolist())
        told.extend(noisy.tolist())
        return replace(bills, usd=noisy)

    start = time.process_time()
    scheduler = PARTS[method](seen, seed) if method in PARTS else make_scheduler(method, seen, seed)
    if method == "exact":
        found = search(seen, scheduler, SearchBudget(seconds=10))
        note(real, np.array([found.schedule], np.int16))
    else:
        search(seen, scheduler, SearchBudget(evaluations=most), provisioner=note)
    return usd, told, time.process_time() - start


def gap_after(usd: list[float], told: list[float], num: int, optimum: float) -> float:
    """Return how much dearer than the optimum the plan is whose bill was the lowest of the first `num`."""
    return usd[int(np.argmin(told[:num]))] / optimum - 1 if usd else np.inf


def blurred(problem: Problem, error: float, seed: int) -> Problem:
    """The problem as a wrong profile has it: each layer's seconds on each resource are off by a random factor."""
    rng = np.random.default_rng(seed)

    def wrong(cost: Any) -> Any:
        names = ("compute_s", "sync_s", "input_s")
        return cost.model_copy(update={name: getattr(cost, name) * np.exp(rng.normal(0, error)) for name in names})

    layers = tuple(
        layer.model_copy(update={"costs": {name: wrong(cost) for name, cost in layer.costs.items()}})
        for layer in problem.profile.layers
    )
    profile = problem.profile.model_copy(update={"layers": layers})
    return Problem(profile, problem.cluster, problem.throughput, problem.samples, problem.epochs)


def problems(kind: str, num_resources: int, num: int) -> list[tuple[str, Problem, float]]:
    """The problems of a kind, each with a name and its proven optimum in USD."""
    if kind == "random":
        rng = np.random.default_rng(10_000 + num_resources)  # not those that the policy was trained on
        drawn = ((f"random {i}", random_problem(rng, *SIZES[num_resources])) for i in range(2 * num))
    else:
        drawn = ((model, Case(model, num_resources, kind == "tight").problem()) for model in MODELS)
    solved = [(name, problem, plan) for name, problem in drawn if (plan := cheapest(problem)) is not None]
    return [(name, problem, plan.usd) for name, problem, plan in solved if plan.gap == 0.0][:num]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default=",".join([*PLAIN, "parts"]), help="parts: rl without each of its parts")
    parser.add_argument("--problems", default="zoo", choices=["zoo", "tight", "random"])
    parser.add_argument("--resources", default="2,8,16")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--num", type=int, default=20, help="of random problems, for each number of resources")
    parser.add_argument("--error", type=float, default=0.0, help="of the profile: standard deviation of log seconds")
    parser.add_argument("--noise", type=float, default=0.0, help="of bills: standard deviation of log USD")
    parser.add_argument("--most", type=int, default=max(AT), help="bills of a search")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; searches that it has are not made again")
    arguments = parser.parse_args()
    methods = [m for name in arguments.methods.split(",") for m in (PARTS if name == "parts" else [name])]
    known = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    done = {(found["resources"], found["problem"], found["method"], found["seed"]) for found in known}
    for num_resources in map(int, arguments.resources.split(",")):
        for name, problem, optimum in problems(arguments.problems, num_resources, arguments.num):
            for method in methods:
                is_sure = method in SEEDLESS and not arguments.error and not arguments.noise
                for seed in range(1 if is_sure else arguments.seeds):
                    if (num_resources, name, method, seed) in done:
                        continue
                    seen = blurred(problem, arguments.error, seed) if arguments.error else problem
                    usd, told, seconds = bills_of(seen, problem, method, seed, arguments.noise, arguments.most)
                    gaps = [gap_after(usd, told, n, optimum) for n in AT]
                    found = {"resources": num_resources, "problem": name, "method": method, "seed": seed}
                    known.append(found | {"gaps": gaps, "seconds": seconds, "bills": len(usd)})
                    with arguments.out.open("a") as file:
                        file.write(json.dumps(known[-1]) + "\n")
    show(known, methods)


def show(results: list[dict[str, Any]], methods: list[str]) -> None:
    """Print a row for each number of resources and method: medians over problems and seeds."""
    heads = " | ".join(f"{n:,} bills" for n in AT)
    print(f"| resources | method | {heads} | within 2 % at {AT[0]} | CPU s |\n|---:|---|" + "---:|" * (len(AT) + 2))
    for num_resources in sorted({found["resources"] for found in results}):
        for method in methods:
            rows = [found for found in results if (found["resources"], found["method"]) == (num_resources, method)]
            if not rows:
                continue
            cells = [_percent(statistics.median(found["gaps"][i] for found in rows)) for i in range(len(AT))]
            within = np.mean([found["gaps"][0] <= 0.02 for found in rows])
            seconds = statistics.mean(found["seconds"] for found in rows)
            print(f"| {num_resources} | {method} | {' | '.join(cells)} | {within:.0%} | {seconds:.2f} |")


def _percent(gap: float) -> str:
    return "none" if np.isinf(gap) else f"{gap * 100:.1f} %"


if __name__ == "__main__":
    main()
