"""What-if questions about a run: which plan would be the cheapest at other prices, limits, memory, ports or speed?

    files of the run         fields of the page          the exact planner
      job: cluster             price.cpu=0.06     -->      problem  -->  plan and its bill, at once
      profile                  deadline=12                          -->  the next plans
      plan: floor, samples                                          -->  the frontier

A field that has the text it had in the run is unchanged, so that nothing is lost by writing a number. The run stays as
it is: `heterps replan` changes a job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps.config import Cluster, load_job
from heterps.errors import ConfigError
from heterps.planning.plan import Plan, load_plan
from heterps.profiling.profile import Profile, load_profile
from heterps.training.run.folder import PROFILE
from heterps.yamlfile import validate

if TYPE_CHECKING:
    from heterps.config import Spot
    from heterps.planning.cost import Problem

RESOURCE_FIELDS = {"price": "usd_per_hour", "limit": "limit", "memory": "memory_gb", "port": "port_gbps"}
"""Fields of a resource or a machine, as `price.cpu` names them."""
SPOT_FIELDS = {"spot": "usd_per_hour", "spots": "limit", "interruptions": "interruptions_per_hour"}
"""Fields of the spot units of a resource: their price, their limit, how often one is taken back; all blank: none."""
LONGEST_S, METHOD_S = 5.0, 2.0
"""Longest search for a plan, and of each method where all are compared."""
MOST, LEAST = 1e15, 1e-9
"""Numbers out of this range are refused, but for 0: sums of them would have no digits left."""
MOST_UNITS = {"resources": 1_000_000, "machines": 1000}
"""Largest limits. The planner tries every number of machines, so that more of them would take it minutes."""
SAMPLES, FLOOR = 1e9, 1000.0
"""What is asked for at first where the plan of the run predicts nothing."""


@dataclass(frozen=True)
class Basis:
    """What a run says: the cluster, the profile, and the plan that it was trained by."""

    cluster: Cluster
    profile: Profile
    plan: Plan

    @property
    def fields(self) -> dict[str, str]:
        """The text of every field that a question may change.

        Those of memory, port, spot units, deadline and policy may be blank.
        """
        offered = {**self.cluster.resources, **self.cluster.machines}
        found = {
            f"{short}.{name}": _text(getattr(one, field))
            for name, one in offered.items()
            for short, field in RESOURCE_FIELDS.items()
        }
        found |= {
            f"{short}.{name}": _text(getattr(one.spot, field, None))
            for name, one in self.cluster.resources.items()
            for short, field in SPOT_FIELDS.items()
        }
        plan = self.plan
        floor = _round_down(plan.throughput) if plan.is_predicted else FLOOR
        samples = plan.samples or round(plan.hours * plan.throughput * 3600) or SAMPLES
        asked = {"throughput": _text(floor), "samples": _text(samples), "deadline": "", "sync": plan.sync or ""}
        return found | asked


@dataclass(frozen=True)
class Question:
    """What the planner is asked. The throughput is in samples a second, the deadline in hours."""

    cluster: Cluster
    throughput: float | None
    samples: float
    deadline: float | None
    sync: str | None


def read_basis(folder: Path) -> Basis:
    """Read what a run says. Resources that its profile has no times on are not to be had, until a limit is given.

    Raises ConfigError where the run has no profile.
    """
    job = load_job(folder / "job.yaml")
    if not (folder / PROFILE).is_file():
        raise ConfigError("the run has no profile, and plans are made from one: give its job a `profile`.")
    profile = load_profile(folder / PROFILE).at_batch_size(job.data.batch_size)
    return Basis(profile.offered(job.cluster), profile, load_plan(folder / "plan.json"))


def parse_question(basis: Basis, asked: Mapping[str, str]) -> Question:
    """Return the question that the texts of fields ask; those that are missing are as in the run.

    Raises ConfigError with a sentence about a field that has no meaning.
    """
    given = basis.fields
    if strange := [name for name in asked if name not in given]:
        raise ConfigError(f"there is no field {strange[0]!r}.")
    texts = {name: asked.get(name, text).strip() for name, text in given.items()}
    values = basis.cluster.model_dump()
    for name, text in texts.items():
        short, _, offer = name.partition(".")
        if short in RESOURCE_FIELDS and text != given[name]:
            kind = "resources" if offer in basis.cluster.resources else "machines"
            values[kind][offer][RESOURCE_FIELDS[short]] = _value(name, text, MOST_UNITS[kind])
    for offer in basis.cluster.resources:
        if any(texts[f"{short}.{offer}"] != given[f"{short}.{offer}"] for short in SPOT_FIELDS):
            values["resources"][offer]["spot"] = _spot(offer, texts, basis.cluster.resources[offer].spot)
    samples = _number("samples", texts["samples"])
    return Question(
        cluster=validate(values, Cluster, where="the changed cluster"),
        throughput=_number("throughput", texts["throughput"]) if texts["throughput"] else None,
        samples=samples,
        deadline=_number("deadline", texts["deadline"]) if texts["deadline"] else None,
        sync=texts["sync"] or None,
    )


def plan_part(basis: Basis, asked: Mapping[str, str]) -> str:
    """Return the HTML of the cheapest plan and its bill. Raises ConfigError, PlanInfeasible."""
    from heterps.report.page.planned import render_planned, render_rivals

    solved = _solve(basis, asked)
    return render_planned(solved.problem, solved.plan) + render_rivals(solved.rivals)


def next_part(basis: Basis, asked: Mapping[str, str]) -> str:
    """Return the HTML of the plans next to the cheapest. Raises ConfigError, PlanInfeasible."""
    from heterps.planning.explain import neighbours
    from heterps.report.page.planned import render_next_plans

    solved = _solve(basis, asked)
    beside = neighbours(solved.problem, solved.plan)
    return render_next_plans(solved.problem, solved.plan, beside)


def frontier_part(basis: Basis, asked: Mapping[str, str], is_over: Callable[[], bool] = lambda: False) -> str:
    """Return the HTML of the frontier. It gives up, with a ConfigError, once nobody waits for it: `is_over`."""
    from heterps.planning.frontier import frontier
    from heterps.report.page.planned import render_alternatives

    solved, watch = _solve(basis, asked), _unless(is_over)
    return render_alternatives(solved.problem, solved.plan, frontier(solved.problem, on_point=watch))


def searches_part(basis: Basis, asked: Mapping[str, str], is_over: Callable[[], bool] = lambda: False) -> str:
    """Return the HTML of every method's plan and search. It gives up between two of them once nobody waits for it."""
    from heterps.planning.api import compare
    from heterps.report.page.planned import render_searches

    solved, watch = _solve(basis, asked), _unless(is_over)
    return render_searches(compare(solved.problem, others="all", seconds=METHOD_S, on_start=watch))


def _unless(is_over: Callable[[], bool]) -> Callable[[object], None]:
    """Return what raises ConfigError once a search is over, whatever it is told."""

    def watch(_: object) -> None:
        if is_over():
            raise ConfigError("nobody waits for this search any more.")

    return watch


@dataclass(frozen=True)
class _Solved:
    """The problem with the floor of its deadline, its cheapest plan, and a row for each policy that `any` has."""

    problem: Problem
    plan: Plan
    rivals: list[dict[str, Any]]


def _solve(basis: Basis, asked: Mapping[str, str]) -> _Solved:
    from heterps.planning.api import compare, make_problem
    from heterps.planning.variants import ANY, POLICIES, cheapest_variant

    one = parse_question(basis, asked)
    problems = [
        make_problem(
            basis.profile, one.cluster, one.throughput, one.samples, deadline=one.deadline,
            **(basis.plan.asked | {"sync": sync}), cost="real" if basis.plan.rented is not None else "auto",
        )
        for sync in (POLICIES if one.sync == ANY else (one.sync,))
    ]  # fmt: skip
    problem, found, rivals = cheapest_variant(
        problems, one.deadline, lambda p: compare(p, others="none", seconds=LONGEST_S)
    )
    return _Solved(problem, found.chosen, rivals)


def _spot(offer: str, texts: Mapping[str, str], before: Spot | None) -> dict[str, Any] | None:
    """Return the spot units of a resource; None where price and limit are blank."""
    told = {short: texts[f"{short}.{offer}"] for short in SPOT_FIELDS}
    if not told["spot"] and not told["spots"]:
        return None
    numbers = {SPOT_FIELDS[short]: _value(f"{short}.{offer}", text, 1_000_000) for short, text in told.items() if text}
    return ({} if before is None else before.model_dump()) | numbers


def _value(name: str, text: str, most_units: int) -> float | int | None:
    """Return the value of a field of a resource; memory and port may be blank, and a limit is `most_units` or less."""
    if not text and name.startswith(("memory.", "port.")):
        return None
    number = _number(name, text)
    is_limit = name.startswith(("limit.", "spots."))
    if is_limit and number > most_units:
        raise ConfigError(f"{name}: give {most_units:,} or less (got {text}).")
    return int(number) if is_limit and number.is_integer() else number


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name}: give a number (got {text!r}).")
    if abs(number) > MOST or 0 < abs(number) < LEAST:
        raise ConfigError(f"{name}: give a number from {LEAST:g} to {MOST:g} (got {text}).")
    return number


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if float(value).is_integer() else repr(value)


def _round_down(value: float) -> float:
    """The number with three digits that matter, not above `value`."""
    size = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / size + 1e-9) * size:.3g}")
