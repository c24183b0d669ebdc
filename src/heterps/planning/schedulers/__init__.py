"""Schedulers by the name of their method. To add one, write a class with base.Scheduler's contract and a line here.

base       the contract, and the loop that runs all of them
exact      the cheapest plan, with proof (exact_rounds: in BSP)      brute      every schedule, on small problems
simple     greedy, heuristic (AIBox), single (all on one resource)
searching  changes (random changes of the elites), random_plans, genetic, bayes
learned    rl (by a policy), with policy (the network), learner (its training), features (its input), opening (its
           first bills); paper (as published)

From outside heterps, call `heterps.register_scheduler`. Read first: base.py, then greedy.py and exact.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from heterps.errors import ConfigError
from heterps.planning.cost import Problem
from heterps.planning.schedulers.base import Scheduler
from heterps.planning.schedulers.bayes import Bayes
from heterps.planning.schedulers.brute import Brute
from heterps.planning.schedulers.changes import Changes
from heterps.planning.schedulers.exact import exact_scheduler
from heterps.planning.schedulers.genetic import Genetic
from heterps.planning.schedulers.greedy import Greedy
from heterps.planning.schedulers.heuristic import AIBox
from heterps.planning.schedulers.single import Single
from heterps.plugins import Registry


@dataclass(frozen=True)
class Method:
    """A planning method: how to make its scheduler, and whether it is fast."""

    make: Callable[[Problem, int], Scheduler]  # takes (problem, seed)
    quick: bool  # takes moments, so that its plan can always be shown for comparison


def _learned(cell: Literal["lstm", "elman"], *, is_pretrained: bool) -> Callable[[Problem, int], Scheduler]:
    def make(problem: Problem, seed: int) -> Scheduler:
        from heterps.planning.schedulers.rl import Reinforce  # here, because torch takes a second to load

        return Reinforce(problem, seed, cell, is_pretrained=is_pretrained)

    return make


def _as_in_the_paper(problem: Problem, seed: int) -> Scheduler:
    from heterps.planning.schedulers.paper import PaperReinforce

    return PaperReinforce(problem, seed)


_BUILT_IN = {
    "exact": Method(exact_scheduler, quick=True),
    "rl": Method(_learned("lstm", is_pretrained=True), quick=False),
    "rl-scratch": Method(_learned("lstm", is_pretrained=False), quick=False),
    "rl-rnn": Method(_learned("elman", is_pretrained=False), quick=False),
    "rl-paper": Method(_as_in_the_paper, quick=False),
    "changes": Method(Changes, quick=False),
    "brute": Method(Brute, quick=False),
    "greedy": Method(Greedy, quick=True),
    "genetic": Method(Genetic, quick=False),
    "bayes": Method(Bayes, quick=False),
    "heuristic": Method(AIBox, quick=True),
    "cpu": Method(lambda problem, _seed: Single(problem, on_cpu=True), quick=True),
    "gpu": Method(lambda problem, _seed: Single(problem, on_cpu=False), quick=True),
}
METHODS: Registry[Method] = Registry("method", _BUILT_IN)


def register_scheduler(name: str, make: Callable[[Problem, int], Scheduler], *, quick: bool = False) -> None:
    """Add a planning method: `make` is called with a problem and a seed, and returns its scheduler.

    The plan of a `quick` method, which takes moments, is always shown beside that of the method asked for.
    """
    METHODS.add(name, Method(make, quick))


def make_scheduler(method: str, problem: Problem, seed: int) -> Scheduler:
    found = METHODS.find(method)
    if seed < 0:
        raise ConfigError(f"a seed is a whole number of at least 0 (got {seed}).")
    return found.make(problem, seed)
