"""What others call: `plan` for one method, `compare` for all of them side by side.

The kernels compile on first use, so they are imported when a plan is made and not when heterps is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heterps.config import Cluster
from heterps.errors import PlanInfeasible
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile

if TYPE_CHECKING:
    from heterps.planning.cost import Problem
    from heterps.planning.schedulers.base import Search

QUICK_S = 2.0
"""How long the exact optimum is looked for where another method was asked for, to show the gap."""
PROVEN = 1e-9
"""Relative. A plan whose bound is this close is optimal."""


@dataclass(frozen=True)
class Option:
    """One row of the table of options: the plan of a method, or why it has none."""

    method: str
    plan: Plan | None
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """The plan asked for, and what every method would have planned."""

    chosen: Plan
    options: tuple[Option, ...]


def plan(
    profile: Profile,
    cluster: Cluster,
    *,
    throughput: float,
    samples: float,
    epochs: float = 1,
    method: str = "exact",
    seed: int = 0,
    evaluations: int | None = None,
    seconds: float | None = None,
) -> Plan:
    """The cheapest plan that `method` finds for `samples` x `epochs` samples at no less than `throughput` samples/s.

    Stops after `evaluations` bills or `seconds`, if given, with the best plan so far. `optimal_usd` and `gap` are filled
    where the optimum could be proven quickly. Raises PlanInfeasible, which says what would relax it, and ConfigError.
    """
    from heterps.planning.cost import Problem
    from heterps.planning.explain import explain_infeasible
    from heterps.planning.schedulers.base import Budget

    problem = Problem(profile, cluster, throughput, samples, epochs)
    found = _search(problem, method, seed, Budget(evaluations, seconds))
    if found.schedule is None:
        raise explain_infeasible(problem, method)
    return _to_plan(problem, method, found, _optimal_usd(problem, found))


def compare(
    profile: Profile,
    cluster: Cluster,
    *,
    throughput: float,
    samples: float,
    epochs: float = 1,
    method: str = "exact",
    seed: int = 0,
) -> Comparison:
    """`plan` by `method`, and one option a method. A method that cannot serve here says why in its option."""
    from heterps.errors import HeterpsError
    from heterps.planning.cost import Problem
    from heterps.planning.schedulers import METHODS

    chosen = plan(
        profile, cluster, throughput=throughput, samples=samples, epochs=epochs, method=method, seed=seed
    )
    options = []
    for name in METHODS:
        try:
            other = chosen if name == method else _option(problem, name, seed, chosen.optimal_usd)
        except HeterpsError as error:
            options.append(Option(name, None, str(error)))
    return Comparison(chosen, tuple(options))
