"""The cost model again, written from its definition with no thought of speed, and searched by trying everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from hypothesis import assume
from hypothesis import strategies as st

from heterps.config import Cluster, Resource
from heterps.errors import ConfigError
from heterps.planning.cost import Problem
from heterps.planning.plan import Plan
from heterps.profiling.profile import Cost, LayerProfile, Profile

TOLERANCE = 1e-9

Drawn = tuple[Profile, Cluster, float]


def split(schedule: Sequence[str]) -> list[tuple[int, int, str]]:
    stages: list[tuple[int, int, str]] = []
    for layer, resource in enumerate(schedule):
        if stages and stages[-1][2] == resource:
            stages[-1] = (stages[-1][0], layer, resource)
        else:
            stages.append((layer, layer, resource))
    return stages


def stage_seconds(profile: Profile, first: int, last: int, resource: str, count: int) -> float:
    costs = [layer.costs[resource] for layer in profile.layers[first : last + 1]]
    compute = sum(c.compute_s * (1 - c.alpha + c.alpha / count) for c in costs)
    communication = sum(c.sync_s * (1 - c.beta + c.beta / count) for c in costs)
    communication += costs[0].input_s * (1 - costs[0].beta + costs[0].beta / count)
    return max(compute, communication)


def bill(
    profile: Profile, cluster: Cluster, stages: Sequence[tuple[int, int, str, int]], servers: int, num_samples: float
) -> tuple[float, float]:
    """(throughput, usd)"""
    times = [stage_seconds(profile, *stage) for stage in stages]
    server_s = sum(layer.server_s for layer in profile.layers)
    if server_s:
        times.append(server_s / servers)
    throughput = profile.batch_size / max(times)
    rate = sum(cluster.resources[resource].usd_per_hour * count for *_, resource, count in stages)
    rate += cluster.resources[cluster.server_resource].usd_per_hour * servers
    return throughput, num_samples / throughput / 3600 * rate


def all_counts(profile: Profile, cluster: Cluster, schedule: Sequence[str]) -> Iterator[tuple[list[int], int]]:
    """Every vector of counts within the limits, with every number of servers."""
    stages = split(schedule)
    needs_servers = any(layer.server_s for layer in profile.layers)
    limits = {name: resource.limit for name, resource in cluster.resources.items()}
    ranges = [range(1, limits[resource] + 1) for *_, resource in stages]
    ranges.append(range(1, limits[cluster.server_resource] + 1) if needs_servers else range(1))
    for *counts, servers in itertools.product(*ranges):
        used = dict.fromkeys(limits, 0)
        used[cluster.server_resource] += servers
        for (*_, resource), count in zip(stages, counts, strict=True):
            used[resource] += count
        if all(used[name] <= limits[name] for name in limits):
            yield counts, servers


def all_plans(profile: Profile, cluster: Cluster, num_samples: float) -> list[tuple[float, float]]:
    """(throughput, usd) of every plan within the limits."""
    found = []
    for schedule in itertools.product(cluster.resources, repeat=len(profile.layers)):
        if all(name in layer.costs for layer, name in zip(profile.layers, schedule, strict=True)):
            for counts, servers in all_counts(profile, cluster, schedule):
                stages = [(*stage, count) for stage, count in zip(split(schedule), counts, strict=True)]
                found.append(bill(profile, cluster, stages, servers, num_samples))
    return found


def cheapest_usd(
    profile: Profile, cluster: Cluster, schedule: Sequence[str], floor: float, num_samples: float
) -> float:
    if any(resource not in layer.costs for layer, resource in zip(profile.layers, schedule, strict=True)):
        return math.inf
    best = math.inf
    for counts, servers in all_counts(profile, cluster, schedule):
        stages = [(*stage, count) for stage, count in zip(split(schedule), counts, strict=True)]
        throughput, usd = bill(profile, cluster, stages, servers, num_samples)
        if throughput >= floor * (1 - TOLERANCE):
            best = min(best, usd)
    return best


def check_plan(plan: Plan, profile: Profile, cluster: Cluster, floor: float, num_samples: float) -> None:
    """The plan covers the layers, keeps the limits and the floor, and its bill is right."""
    layers = [layer for stage in plan.stages for layer in range(stage.first, stage.last + 1)]
    assert layers == list(range(len(profile.layers)))
    assert all(a.resource != b.resource for a, b in itertools.pairwise(plan.stages))
    for name, resource in cluster.resources.items():
        used = sum(stage.count for stage in plan.stages if stage.resource == name)
        used += plan.servers.count if plan.servers.resource == name else 0
        assert used <= resource.limit
    stages = [(stage.first, stage.last, stage.resource, stage.count) for stage in plan.stages]
    throughput, usd = bill(profile, cluster, stages, plan.servers.count, num_samples)
    assert math.isclose(plan.throughput, throughput, rel_tol=TOLERANCE)
    assert math.isclose(plan.usd, usd, rel_tol=TOLERANCE)
    assert math.isclose(plan.hours, num_samples / throughput / 3600, rel_tol=TOLERANCE)
    assert plan.throughput >= floor


# --- random problems -------------------------------------------------------------------------------------------------

# Few round values among the free ones: equal costs, exact ties and stations that are exactly busy are then common.
SECONDS = st.sampled_from([0.0, 0.25, 1.0, 3.0]) | st.floats(0.001, 5.0)
SHARES = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0.0, 1.0)
PRICES = st.sampled_from([0.0, 1.0, 1.0, 2.5]) | st.floats(0.01, 10.0)

COSTS = st.builds(Cost, compute_s=SECONDS, sync_s=SECONDS, input_s=SECONDS, alpha=SHARES, beta=SHARES)


@st.composite
def problems(
    draw: st.DrawFn, max_layers: int = 5, max_resources: int = 3, max_limit: int = 6
) -> tuple[Profile, Cluster, float]:
    """(profile, cluster, floor): tight limits, missing costs, free layers and resources, no servers among them."""
    names = ["cpu", "gpu", "xpu"][: draw(st.integers(1, max_resources))]
    layers = []
    for i in range(draw(st.integers(1, max_layers))):
        able = draw(st.sets(st.sampled_from(names), min_size=1)) if draw(st.booleans()) else set(names)
        costs = {name: draw(COSTS) for name in names if name in able}
        layers.append(LayerProfile(name=f"layer{i}", server_s=draw(st.just(0.0) | SECONDS), costs=costs))
    resources = {
        name: Resource(device="cpu" if name == "cpu" else "cuda", usd_per_hour=draw(PRICES), limit=limit)
        for name in names
        if (limit := draw(st.integers(1, max_limit)))
    }
    profile = Profile(model="random", batch_size=draw(st.sampled_from([1, 100])), layers=tuple(layers))
    floor = profile.batch_size / draw(st.sampled_from([0.5, 1.0, 4.0, 20.0]) | st.floats(0.05, 50.0))
    return profile, Cluster(resources=resources, server_resource=draw(st.sampled_from(names))), floor


def make_problem(drawn: Drawn) -> Problem:
    """The problem drawn, unless its profile and cluster do not fit each other."""
    try:
        return Problem(*drawn, samples=1)
    except ConfigError:
        assume(False)
        raise


def small_problem() -> Problem:
    """An embedding that is best on cpus, and a dense layer that is best on v100s; a billion samples at 20,000/s."""
    costs = {
        "embedding": {"cpu": (0.3, 0.2), "v100": (0.2, 1.1)},
        "fc": {"cpu": (9.0, 0.02), "v100": (0.1, 0.02)},
    }
    layers = tuple(
        LayerProfile(
            name=name,
            server_s=0.04,
            costs={
                resource: Cost(compute_s=compute_s, sync_s=sync_s, input_s=0.003, alpha=0.97, beta=0.93)
                for resource, (compute_s, sync_s) in of.items()
            },
        )
        for name, of in costs.items()
    )
    resources = {
        "cpu": Resource(device="cpu", usd_per_hour=0.04, limit=400),
        "v100": Resource(device="cuda", usd_per_hour=2.42, limit=32),
    }
    cluster = Cluster(resources=resources, server_resource="cpu")
    return Problem(Profile(model="small", batch_size=4096, layers=layers), cluster, 20_000.0, 1e9)
