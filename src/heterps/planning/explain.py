"""Explain a plan: its stations, its neighbours, and how its cost depends on prices, limits and the floor.

    stations         how long each stage and the servers are busy per batch; the slowest is the bottleneck
    neighbours       the next cheaper plan, for a lower floor, and the next faster plan
    sensitivities    the cheapest plan if a price, a limit or the floor is a little higher or lower

Every answer is computed by the exact scheduler, never interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from heterps.errors import ConfigError
from heterps.planning.bill import bill
from heterps.planning.cost import Problem, stage_terms
from heterps.planning.frontier import NEXT, slowest_floor
from heterps.planning.optimum import cheapest, with_floor, with_limits, with_resources
from heterps.planning.plan import Plan, Stage

STEP = 0.1
"""Relative change of prices and of the floor."""
MOST_HALVINGS = 40


@dataclass(frozen=True)
class Station:
    """A stage or the servers, with its seconds for one profiling batch."""

    name: str
    resource: str
    count: int
    compute_s: float
    comm_s: float
    busy: float  # share of the time that the slowest station takes; 1 is the bottleneck

    @property
    def side(self) -> Literal["compute", "communication"]:
        return "compute" if self.compute_s >= self.comm_s else "communication"


@dataclass(frozen=True)
class LayerMove:
    """Layers `first` to `last` move from the resource `before` to `after`."""

    first: int
    last: int
    before: str
    after: str


@dataclass(frozen=True)
class NeighbourPlan:
    """Another plan, and its differences from the explained plan."""

    plan: Plan
    usd: float  # extra cost over the explained plan
    units: dict[str, int]  # extra units by resource, of stages and servers; only those that differ
    moves: tuple[LayerMove, ...]
    meets_floor: bool


@dataclass(frozen=True)
class Neighbours:
    """The plans next to a plan."""

    cheaper: NeighbourPlan | None  # None: no plan is cheaper, whatever the floor
    faster: NeighbourPlan | None  # None: no plan within the limits is faster


@dataclass(frozen=True)
class Sensitivity:
    """The change of the cheapest plan if one input is `after` instead of `before`."""

    of: Literal["price", "limit", "floor"]
    name: str  # name of the resource; "" for the floor
    before: float
    after: float
    usd: float | None  # extra cost over the cheapest plan for the given inputs; None: there is no plan then
    plan_changes: bool


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`. Sensitivities are those of the cheapest plan, which costs `optimal_usd`."""

    stations: tuple[Station, ...]
    bottleneck: Station
    cheaper: NeighbourPlan | None  # None: no plan is cheaper, whatever the floor
    faster: NeighbourPlan | None  # None: no plan within the limits is faster
    optimal_usd: float
    sensitivities: tuple[Sensitivity, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for JSON, with plans as in plan.json."""
        shown = asdict(self)
        for name, other in (("cheaper", self.cheaper), ("faster", self.faster)):
            if other is not None:
                shown[name]["plan"] = other.plan.model_dump(mode="json", exclude_none=True)
        return shown


def explain(problem: Problem, plan: Plan) -> Explanation:
    """Explain a plan of this problem, by about four searches per resource and dozens for the cheaper neighbour."""
    optimum = _optimum(problem, plan)
    found, beside = stations(problem, plan), _neighbours(problem, plan, optimum)
    return Explanation(
        stations=found,
        bottleneck=bottleneck(found, plan),
        cheaper=beside.cheaper,
        faster=beside.faster,
        optimal_usd=optimum.usd,
        sensitivities=(*_prices(problem, optimum), *_limits(problem, optimum), *_floors(problem, optimum)),
    )


def neighbours(problem: Problem, plan: Plan) -> Neighbours:
    """Find the plans next to a plan, as `explain` does, without what its cost depends on."""
    return _neighbours(problem, plan, _optimum(problem, plan))


def _optimum(problem: Problem, plan: Plan) -> Plan:
    """Return the cheapest plan, which is the explained one if another has the same cost."""
    optimum = cheapest(problem) or plan
    return plan if plan.usd <= optimum.usd * (1 + NEXT) else optimum


def _neighbours(problem: Problem, plan: Plan, optimum: Plan) -> Neighbours:
    return Neighbours(
        cheaper=difference(problem, plan, optimum if optimum is not plan else next_cheaper(problem, plan)),
        faster=difference(problem, plan, cheapest(with_floor(problem, plan.throughput * (1 + NEXT)))),
    )


def stations(problem: Problem, plan: Plan) -> tuple[Station, ...]:
    """Return the stages in order, then the servers if there are any."""
    rows = []
    for stage in plan.stages:
        terms = stage_terms(problem, stage.first, stage.last, problem.resources.index(stage.resource))
        name = problem.layer_names(stage.first, stage.last)
        rows.append((name, stage.resource, stage.count, terms.compute_s(stage.count), terms.comm_s(stage.count)))
    if problem.needs_servers:
        moved_s = sum(
            stage.count * float(problem.terms[problem.resources.index(stage.resource), number, 11])
            for stage in plan.stages
            for number in range(stage.first, stage.last + 1)
        )
        server_s = (problem.server_s + moved_s) / plan.servers.count
        rows.append(("servers", plan.servers.resource, plan.servers.count, server_s, 0.0))
    slowest_s = max(max(compute_s, comm_s) for *_, compute_s, comm_s in rows)
    return tuple(Station(*row, busy=max(row[3:]) / slowest_s) for row in rows)


def layer_times(problem: Problem, stage: Stage) -> list[tuple[float, float]]:
    """Return the seconds of compute and of communication of each layer of a stage, for one profiling batch.

    They add up to those of the stage: its first layer has its input and the launcher's overhead, its last its output.
    """
    rows = problem.terms[problem.resources.index(stage.resource), stage.first : stage.last + 1].tolist()
    found = [(row[1] + row[0] / stage.count, row[3] + row[2] / stage.count) for row in rows]
    compute_s, comm_s = found[0]
    found[0] = compute_s + rows[0][12] + rows[0][8] / stage.count, comm_s + rows[0][5] + rows[0][4] / stage.count
    compute_s, comm_s = found[-1]
    found[-1] = compute_s, comm_s + rows[-1][7] + rows[-1][6] / stage.count
    return found


def bottleneck(found: Sequence[Station], plan: Plan) -> Station:
    """Return the station that the plan's bill names, which in rounds need not be the busiest; else the busiest one.

    Ties go to the servers, else to the first stage, as in the bill.
    """
    named = plan.bottleneck.partition(" (")[0]
    for station in found:
        if named == f"{station.name} on {station.resource}":
            return station
    num_stages = len(plan.stages)
    return max((*found[num_stages:], *found[:num_stages]), key=lambda station: station.busy)


def next_cheaper(problem: Problem, plan: Plan) -> Plan | None:
    """Find the fastest of all plans that are cheaper than `plan`, which is the cheapest for its floor.

    Bisects between a floor with a cheaper plan and one without, until no step of the staircase is left between them.
    """
    below = cheapest(with_floor(problem, slowest_floor(problem)))
    if below is None or not _is_cheaper(below, plan):
        return None
    high = problem.throughput
    for _ in range(MOST_HALVINGS):
        low = below.throughput * (1 + NEXT)
        if low >= high:
            break
        # Try the floor right after the best so far first: if steps are wide, the best is already the last one.
        for floor in (low, math.sqrt(low * high)):
            candidate = cheapest(with_floor(problem, floor))
            if candidate is None or not _is_cheaper(candidate, plan):
                high = floor
                break
            below = max(below, candidate, key=lambda found: found.throughput)
    return below


def moves(before: Plan, after: Plan) -> tuple[LayerMove, ...]:
    """Return the runs of layers that are on another resource in `after`."""
    found: list[LayerMove] = []
    for layer, (old, new) in enumerate(zip(_by_layer(before.stages), _by_layer(after.stages), strict=True)):
        if old == new:
            continue
        if found and found[-1].last == layer - 1 and (found[-1].before, found[-1].after) == (old, new):
            found[-1] = LayerMove(found[-1].first, layer, old, new)
        else:
            found.append(LayerMove(layer, layer, old, new))
    return tuple(found)


def difference(problem: Problem, plan: Plan, other: Plan | None) -> NeighbourPlan | None:
    """Return another plan of the problem with its differences from `plan`; None for None."""
    if other is None:
        return None
    old, new = plan.units, other.units
    more = {name: new.get(name, 0) - old.get(name, 0) for name in problem.cluster.resources}
    return NeighbourPlan(
        plan=other,
        usd=other.usd - plan.usd,
        units={name: number for name, number in more.items() if number},
        moves=moves(plan, other),
        meets_floor=other.throughput >= problem.throughput,
    )


def _prices(problem: Problem, optimum: Plan) -> Iterator[Sensitivity]:
    used = optimum.units
    for name in problem.resources:
        resource = problem.cluster.resources[name]
        if resource.usd_per_hour == 0:
            continue
        for factor in (1 + STEP, 1 - STEP):
            price = resource.usd_per_hour * factor
            changed = with_resources(problem, {name: resource.model_copy(update={"usd_per_hour": price})})
            kept_usd = bill(changed, optimum.stages, optimum.servers.count).usd
            is_moot = factor > 1 and name not in used  # what is not rented may become dearer
            again = None if is_moot else cheapest(changed)
            yield _sensitivity("price", name, resource.usd_per_hour, price, optimum, kept_usd, again)


def _limits(problem: Problem, optimum: Plan) -> Iterator[Sensitivity]:
    used = optimum.units
    for name in problem.rentable:
        limit = problem.cluster.resources[name].limit
        more = cheapest(with_limits(problem, {name: limit + 1}))
        yield _sensitivity("limit", name, limit, limit + 1, optimum, optimum.usd, more)
        if limit == 0:
            continue
        if used.get(name, 0) < limit:  # what is left over can be done without
            yield _sensitivity("limit", name, limit, limit - 1, optimum, optimum.usd, None)
            continue
        try:
            fewer = cheapest(with_limits(problem, {name: limit - 1}))
        except ConfigError:  # the last unit of what a layer cannot run without
            fewer = None
        yield _sensitivity("limit", name, limit, limit - 1, optimum, None, fewer)


def _floors(problem: Problem, optimum: Plan) -> Iterator[Sensitivity]:
    for factor in (1 + STEP, 1 - STEP):
        floor = problem.throughput * factor
        kept_usd = optimum.usd if floor <= optimum.throughput else None
        again = cheapest(with_floor(problem, floor))
        yield _sensitivity("floor", "", problem.throughput, floor, optimum, kept_usd, again)


def _sensitivity(
    of: Literal["price", "limit", "floor"],
    name: str,
    before: float,
    after: float,
    optimum: Plan,
    kept_usd: float | None,
    again: Plan | None,
) -> Sensitivity:
    """Compare the cheapest plan after a change, `again`, with the cost of the kept optimum; None: it is invalid now."""
    if again is None or (kept_usd is not None and again.usd >= kept_usd * (1 - NEXT)):
        usd = None if kept_usd is None else kept_usd - optimum.usd
        return Sensitivity(of, name, before, after, usd, plan_changes=kept_usd is None)
    return Sensitivity(of, name, before, after, again.usd - optimum.usd, plan_changes=True)


def _is_cheaper(one: Plan, other: Plan) -> bool:
    return one.usd < other.usd * (1 - NEXT)


def _by_layer(stages: tuple[Stage, ...]) -> list[str]:
    return [stage.resource for stage in stages for _ in range(stage.first, stage.last + 1)]
