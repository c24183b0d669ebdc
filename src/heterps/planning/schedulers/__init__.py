"""Schedulers by the name of their method. A new one is a class that keeps base.Scheduler's contract, and a line."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from heterps.errors import ConfigError
from heterps.planning.cost import Problem
from heterps.planning.schedulers.base import Scheduler
from heterps.planning.schedulers.brute import Brute
from heterps.planning.schedulers.exact import Exact
from heterps.planning.schedulers.greedy import Greedy
from heterps.planning.schedulers.single import Single

METHODS: dict[str, Callable[[Problem, int], Scheduler]] = {
    "exact": Exact,
    "brute": Brute,
    "greedy": Greedy,
    "cpu": lambda problem, _seed: Single(problem, on_cpu=True),
    "gpu": lambda problem, _seed: Single(problem, on_cpu=False),
}


def make_scheduler(method: str, problem: Problem, seed: int) -> Scheduler:
    if method not in METHODS:
        near = get_close_matches(method, METHODS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"there is no method {method!r}.{hint} Methods: {', '.join(METHODS)}.")
    return METHODS[method](problem, seed)
