"""Train the policy that `rl` begins with, on random problems that the exact scheduler has solved. See README.md.

[1] solve    problems of the same size in groups, each with its optimum and the pace of that (tau)
[2] train    imitation: make the optimum likely, for features at its pace
             REINFORCE: make draws likely that cost less than the other draws for the same problem
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from heterps.planning.cost import Problem
from heterps.planning.provisioners.exact import exact
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.exact import Exact
from heterps.planning.schedulers.features import pair_features
from heterps.planning.schedulers.policy import Chances, SchedulePolicy

sys.path.insert(0, str(Path(__file__).parent))
from random_problems import random_problem


@dataclass(frozen=True)
class Group:
    """GROUP solved problems of one size, with what features need of them as arrays [GROUP, ...]."""

    problems: list[Problem]
    arrays: dict[str, npt.NDArray[Any]]  # terms, prices, limits, server, server_s; schedule, tau and usd of the optimum


GROUP = 32
INPUTS = ("terms", "prices", "limits", "server", "server_s")
LAYERS, RESOURCES = (3, 20), (2, 2, 3, 4, 4, 6, 8, 8, 12, 16)
HELD_OUT = 8  # groups that are not trained on
DRAWS = 8  # of each problem in a step of REINFORCE
FASTER, SLOWER = -0.05, 0.15  # how far the pace of the features may be from that of the optimum, as a logarithm
WORST, PER_VIOLATION = 2.0, 0.3  # largest logarithm of a cost over the optimum; an infeasible plan has more
ENTROPY = 0.003


def solve(seed: int, seconds: float) -> list[Group]:  # [1]
    rng = np.random.default_rng(seed)
    groups = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        size = int(rng.integers(LAYERS[0], LAYERS[1] + 1)), int(rng.choice(RESOURCES))
        problems: list[Problem] = []
        rows: list[dict[str, Any]] = []
        while len(rows) < GROUP:
            problem = random_problem(rng, *size)
            found = search(problem, Exact(problem, 0), SearchBudget(seconds=0.3))
            if found.schedule is None or not found.proven:
                continue
            tau = problem.profile.batch_size / exact(problem, found.schedule[None]).throughput[0]
            optimum = {"schedule": found.schedule, "tau": tau, "usd": found.usd}
            rows.append({name: getattr(problem, name) for name in INPUTS} | optimum)
            problems.append(problem)
        groups.append(Group(problems, {name: np.array([row[name] for row in rows]) for name in rows[0]}))
    return groups


def train(
    policy: SchedulePolicy, groups: Sequence[Group], seconds: float, lr: Sequence[float], reinforce: float, seed: int
) -> int:  # [2]
    """Train for `seconds`, with a learning rate that falls from lr[0] to lr[1], and return the number of steps.

    `reinforce` is the weight of REINFORCE, the rest is that of imitation.
    """
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr[0], weight_decay=1e-3)
    start, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        optimizer.param_groups[0]["lr"] = lr[0] * (lr[1] / lr[0]) ** (elapsed / seconds)
        group = groups[int(rng.integers(len(groups)))]
        pace = group.arrays["tau"] * np.exp(rng.uniform(FASTER, SLOWER, GROUP))
        chances = chances_of(policy, group, pace)
        optimum = torch.as_tensor(group.arrays["schedule"], dtype=torch.long)
        loss = -(1 - reinforce) * _taken(chances.log_p(optimum[None]), optimum[None]).mean()
        if reinforce > 0:
            drawn = chances.sample(torch.full((DRAWS, *optimum.shape), -1), torch.ones(DRAWS), generator)
            rewards = torch.as_tensor(-over_optimum(group, drawn.numpy()), dtype=torch.float32)
            better = (rewards - rewards.mean(dim=0)) / (rewards.std(dim=0) + 0.05)
            log_p = chances.log_p(drawn)
            entropy = -(log_p.exp() * log_p).sum(dim=-1).mean()
            loss = loss - reinforce * ((better * _taken(log_p, drawn)).mean() + ENTROPY * entropy)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        steps += 1
    return steps


def chances_of(policy: SchedulePolicy, group: Group, tau: npt.NDArray[np.float64]) -> Chances:
    terms, prices, limits, server, server_s = (group.arrays[name] for name in INPUTS)
    servers = np.zeros_like(prices)
    servers[np.arange(len(tau)), server] = server_s / tau
    pairs, _, runs = pair_features(terms, prices, limits, servers, tau)
    features = torch.as_tensor(pairs, dtype=torch.float32)
    chances: Chances = policy(features, torch.zeros(features.shape[:-1]), torch.as_tensor(runs))
    return chances


def over_optimum(group: Group, schedules: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the logarithms [n, B] of the costs of schedules [n, B, N], relative to the optimum."""
    columns = []
    for problem, usd, rows in zip(group.problems, group.arrays["usd"], np.moveaxis(schedules, 1, 0), strict=True):
        bills = exact(problem, rows.astype(np.int16))
        feasible = np.isfinite(bills.usd)
        cost = np.log(np.where(feasible, bills.usd, 1.0) / usd)
        penalty = WORST + PER_VIOLATION * np.minimum(np.log1p(bills.violation), 3.0)
        columns.append(np.where(feasible, np.minimum(cost, WORST), penalty))
    return np.stack(columns, axis=1)


def _taken(log_p: Tensor, schedules: Tensor) -> Tensor:
    """Return the log-probability per layer [n, B] of schedules [n, B, N]."""
    return log_p.gather(-1, schedules[..., None])[..., 0].mean(dim=-1)


@torch.no_grad()
def show(policy: SchedulePolicy, groups: Sequence[Group]) -> None:
    """Print how far the most likely schedule at the pace of the optimum is from it."""
    gaps: list[float] = []
    for group in groups:
        chances = chances_of(policy, group, group.arrays["tau"])
        likely = [Chances(*one).most_likely() for one in zip(chances.score, chances.stay, strict=True)]
        gaps += np.expm1(over_optimum(group, torch.stack(likely)[None].numpy())[0]).tolist()
    within = np.mean(np.array(gaps) <= 0.02)
    print(f"{len(gaps)} problems held out: median {np.median(gaps):.1%} over the optimum, {within:.0%} within 2 %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the weights go (.safetensors)")
    parser.add_argument("--start", type=Path, help="weights to continue from")
    parser.add_argument("--solve", type=float, default=170.0, help="seconds of making and solving problems")
    parser.add_argument("--seconds", type=float, default=170.0, help="of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, nargs=2, default=(3e-3, 1e-3))
    parser.add_argument("--reinforce", type=float, default=0.0, help="weight of REINFORCE, up to 1")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    groups = solve(arguments.seed, arguments.solve)
    torch.manual_seed(arguments.seed)
    policy = SchedulePolicy()
    if arguments.start is None:
        policy.trust.data.zero_()
        torch.nn.init.xavier_uniform_(policy.out.weight)
    else:
        policy.load_state_dict(load_file(arguments.start))
    policy.trust.requires_grad_(False)
    options = arguments.seconds, arguments.lr, arguments.reinforce, arguments.seed
    steps = train(policy, groups[HELD_OUT:], *options)
    save_file(policy.state_dict(), arguments.out)
    print(f"{steps:,} steps on {len(groups[HELD_OUT:]) * GROUP:,} problems")
    show(policy, groups[:HELD_OUT])


if __name__ == "__main__":
    main()
