"""The bill of real machines again, written from its definition with no thought of speed: every schedule, every count,
every way to rent the units.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from hypothesis import assume
from hypothesis import strategies as st
from planning_oracle import COSTS, PRICES, SECONDS, split

from heterps.config import Cluster, Machine, Resource, Spot
from heterps.planning.real import Conditions
from heterps.profiling.profile import LayerProfile, Overhead, Profile

GB = 1e9
LATENCY_S = 30e-6


def paid(usd: float, seconds: float, startup_s: float, billing_s: float, minimum_s: float) -> float:
    """USD of one unit or machine for a job of these seconds."""
    seconds = max(seconds + startup_s, minimum_s)
    if billing_s:
        seconds = math.ceil(seconds / billing_s - 1e-9) * billing_s
    return usd * seconds / 3600


def _is_sold_alone(cluster: Cluster, name: str) -> bool:
    is_in_machine = any(name in machine.units for machine in cluster.machines.values())
    return cluster.resources[name].device == "cpu" or not is_in_machine


def sent_usd(
    profile: Profile,
    cluster: Cluster,
    conditions: Conditions,
    stages: Sequence[tuple[int, int, str, int]],
    batches: float,
) -> float:
    """USD for all bytes that pass from a zone to another, message by message."""

    def price(size: float, source: str, target: str) -> float:
        a, b = (cluster.resources[name].zone for name in (source, target))
        prices = cluster.egress_usd_per_gb
        each = prices.get(str(a), {}).get(str(b), 0.0) if isinstance(prices, dict) else prices
        return 0.0 if a == b else size / GB * each

    usd = 0.0
    server, has_servers = cluster.server_resource, any(layer.server_s for layer in profile.layers)
    for number, (first, last, name, count) in enumerate(stages):
        if number > 0:
            before = stages[number - 1][2]
            usd += price(profile.layers[first].input_bytes, before, name)  # activations
            usd += price(profile.layers[first].input_bytes, name, before)  # gradients
        for layer in profile.layers[first : last + 1] if has_servers else ():
            pulls = count if conditions.in_rounds else 1
            usd += price((layer.row_bytes or 0) / 2 + pulls * (layer.dense_bytes or 0), server, name)
            usd += price((layer.row_bytes or 0) / 2 + pulls * (layer.dense_bytes or 0), name, server)
    return usd * batches


def rented(cluster: Cluster, needed: Mapping[str, int], seconds: float, sent: float = 0.0) -> float:
    """Least USD of what has the needed units, by trying every number of every machine and of spot units.

    An interruption repeats work, and with it what is `sent` and what disks cost.
    """
    choices: list[tuple[dict[str, int], float, int, float]] = []  # units, usd, limit, risk
    for name, resource in cluster.resources.items():
        times = (resource.startup_s, resource.billing_s, resource.minimum_s)
        if _is_sold_alone(cluster, name):
            choices.append(({name: 1}, paid(resource.usd_per_hour, seconds, *times), resource.limit, 0.0))
        if (spot := resource.spot) is not None:
            risk = spot.interruptions_per_hour * spot.lost_s / 3600
            price = spot.usd_per_hour + spot.usd_per_hour * spot.interruptions_per_hour * resource.startup_s / 3600
            choices.append(({name: 1}, paid(price, seconds, *times), spot.limit, risk))
    for machine in cluster.machines.values():
        times = (machine.startup_s, machine.billing_s, machine.minimum_s)
        choices.append((dict(machine.units), paid(machine.usd_per_hour, seconds, *times), machine.limit, 0.0))
    best = math.inf
    for counts in itertools.product(*(range(min(limit, sum(needed.values())) + 1) for *_, limit, _ in choices)):
        has = dict.fromkeys(needed, 0)
        for count, (units, *_) in zip(counts, choices, strict=True):
            for name, number in units.items():
                has[name] = has.get(name, 0) + count * number
        if all(has[name] >= number for name, number in needed.items()):
            usd = sent + sum(count * price for count, (_, price, *_) in zip(counts, choices, strict=True))
            best = min(
                best, usd * math.exp(sum(count * risk for count, (*_, risk) in zip(counts, choices, strict=True)))
            )
    return best


def station_s(profile: Profile, cluster: Cluster, conditions: Conditions, stage: tuple[int, int, str, int]) -> float:
    """Seconds of a stage for a batch; infinite if it does not fit into the memory of its units."""
    first, last, name, count = stage
    layers = profile.layers[first : last + 1]
    whole = conditions.takes_whole_batches
    resource = cluster.resources[name]
    weights = sum(2 * (layer.dense_bytes or 0) for layer in layers)
    kept = sum(layer.activation_bytes or 0 for layer in layers)
    held = 2 * (weights + kept) if whole else weights + kept / count
    if resource.memory_gb is not None and held > resource.memory_gb * GB * (1 + 1e-12):
        return math.inf
    port = resource.port_gbps * GB / 8 if resource.port_gbps is not None else None
    compute = comm = 0.0

    def shared(seconds: float, share: float) -> float:
        return seconds / count if whole else seconds * (1 - share + share / count)

    for number, layer in enumerate(layers, first):
        cost = layer.costs[name]
        compute += shared(cost.compute_s, cost.alpha)
        moved = (layer.row_bytes or 0) + 2 * (layer.dense_bytes or 0)
        sync_s = cost.sync_s if port is None else moved / port + 2 * LATENCY_S if moved else 0.0
        comm += shared(sync_s, cost.beta)
        if number == first:
            border = cost.input_s
            if port is not None:
                border = cost.input_s + layer.input_bytes / port if first == 0 else 0.0
                border += 2 * (layer.input_bytes / port + LATENCY_S) if first > 0 else 0.0
            comm += shared(border, cost.beta)
        if number == last and last + 1 < len(profile.layers) and port is not None:
            after = profile.layers[last + 1]
            comm += shared(2 * (after.input_bytes / port + LATENCY_S), cost.beta)
    if profile.overheads and conditions.takes_whole_batches:
        compute += profile.overheads["local"].batch_s / count
    return max(compute, comm)


def round_s(
    profile: Profile,
    cluster: Cluster,
    lanes: int,
    stages: Sequence[tuple[int, int, str, int]],
    servers: int,
) -> float:
    """Seconds of a round of `lanes` micro-batches, as a pipeline of stages; infinite if something does not fit."""
    one, others, served = 0.0, 0.0, 0.0
    server_port = cluster.resources[cluster.server_resource].port_gbps
    for first, last, name, count in stages:
        resource, layers = cluster.resources[name], profile.layers[first : last + 1]
        weights = sum(2 * (layer.dense_bytes or 0) for layer in layers)
        kept = sum(layer.activation_bytes or 0 for layer in layers)
        samples = math.ceil(lanes / count) * math.ceil(profile.batch_size / lanes)
        held = weights + kept * samples / profile.batch_size
        full = resource.memory_gb is not None and held > resource.memory_gb * GB * (1 + 1e-12)
        if full or count > lanes:
            return math.inf
        port = resource.port_gbps * GB / 8 if resource.port_gbps is not None else None
        micro = comm = 0.0
        for number, layer in enumerate(layers, first):
            cost = layer.costs[name]
            micro += cost.compute_s * (1 - cost.alpha + cost.alpha / lanes)
            moved = (layer.row_bytes or 0) + 2 * (layer.dense_bytes or 0)
            sync_s = cost.sync_s if port is None else moved / port + 2 * LATENCY_S if moved else 0.0
            comm += sync_s * (1 - cost.beta + cost.beta / count)
            if number == first == 0:
                read_s = cost.input_s + (layer.input_bytes / port if port is not None else 0.0)
                comm += read_s * (1 - cost.beta + cost.beta / count)
            elif number == first:
                border_s = cost.input_s if port is None else 2 * (layer.input_bytes / port + LATENCY_S)
                micro += border_s * (1 - cost.beta + cost.beta / lanes)
        one += micro
        others = max(others, (math.ceil(lanes / count) - 1) * micro + comm)
        for layer in layers:
            each = layer.server_fixed_s / 2
            if server_port is not None and layer.server_s:
                each = max(each, 2 * (layer.dense_bytes or 0) / (server_port * GB / 8))
            served += count * each
    rest = sum(layer.server_s - layer.server_fixed_s / 2 for layer in profile.layers)
    if server_port is not None and any(layer.server_s for layer in profile.layers):
        rest = max(rest, sum(layer.row_bytes or 0 for layer in profile.layers) / (server_port * GB / 8))
    overhead = profile.overheads["local"].batch_s if profile.overheads else 0.0
    return overhead + one + others + ((rest + served) / servers if servers else 0.0)


def plans(
    profile: Profile, cluster: Cluster, conditions: Conditions, samples: float
) -> Iterator[tuple[float, float, list[tuple[int, int, str, int]], int]]:
    """(throughput, usd, stages, servers) of every plan that fits."""
    server = cluster.resources[cluster.server_resource]
    server_s = sum(layer.server_s for layer in profile.layers)
    if server.port_gbps is not None and server_s:
        moved = sum((layer.row_bytes or 0) + 2 * (layer.dense_bytes or 0) for layer in profile.layers)
        server_s = max(server_s, moved / (server.port_gbps * GB / 8))
    in_memory = (conditions.rows or 0) * conditions.rows_in_memory
    on_disk = (conditions.rows or 0) - in_memory
    held = in_memory * 160 + on_disk * 12.5 + 3 * sum(layer.dense_bytes or 0 for layer in profile.layers)
    least = 1 if server.memory_gb is None else max(math.ceil(held / (server.memory_gb * GB)), 1)
    if server.disk_gb is not None:
        least = max(least, math.ceil(on_disk * 160 / (server.disk_gb * GB)))
    has_servers = any(layer.server_s for layer in profile.layers)
    disk_usd_per_s = on_disk * 160 / GB * server.disk_usd_per_gb_hour / 3600 if has_servers else 0.0
    most = {
        name: (resource.limit if _is_sold_alone(cluster, name) else 0)
        + (resource.spot.limit if resource.spot else 0)
        + sum(machine.limit * machine.units.get(name, 0) for machine in cluster.machines.values())
        for name, resource in cluster.resources.items()
    }
    for schedule in itertools.product(cluster.resources, repeat=len(profile.layers)):
        if any(name not in layer.costs for layer, name in zip(profile.layers, schedule, strict=True)):
            continue
        stages = split(schedule)
        ranges = [range(1, most[name] + 1) for *_, name in stages]
        ranges.append(range(least, most[cluster.server_resource] + 1) if server_s else range(1))
        for *counts, servers in itertools.product(*ranges):
            counted = [(*stage, count) for stage, count in zip(stages, counts, strict=True)]
            if (
                conditions.most_workers is not None
                and not conditions.in_rounds
                and max(counts) > conditions.most_workers
            ):
                continue
            if conditions.in_rounds:
                assert conditions.lanes is not None
                slowest = min(round_s(profile, cluster, lanes, counted, servers) for lanes in conditions.lanes)
            else:
                times = [station_s(profile, cluster, conditions, stage) for stage in counted]
                slowest = max([*times, *([server_s / servers] if server_s else [])])
            if math.isinf(slowest) or slowest == 0:
                continue
            needed = dict.fromkeys(cluster.resources, 0)
            needed[cluster.server_resource] += servers
            for *_, name, count in counted:
                needed[name] += count
            if any(not _within(cluster, name, number) for name, number in needed.items()):
                continue
            batches = samples / profile.batch_size
            sent = sent_usd(profile, cluster, conditions, counted, batches)
            usd = rented(cluster, needed, batches * slowest, sent + disk_usd_per_s * batches * slowest)
            if math.isfinite(usd):
                yield profile.batch_size / slowest, usd, counted, servers


def _within(cluster: Cluster, name: str, number: int) -> bool:
    """An accelerator of machines has the limit of its resource as well."""
    resource = cluster.resources[name]
    if _is_sold_alone(cluster, name):
        return True
    return number <= resource.limit + (resource.spot.limit if resource.spot else 0)


def cheapest(profile: Profile, cluster: Cluster, conditions: Conditions, floor: float, samples: float) -> float:
    found: Sequence[float] = [
        usd for throughput, usd, *_ in plans(profile, cluster, conditions, samples) if throughput >= floor * (1 - 1e-9)
    ]
    return min(found, default=math.inf)


# --- random problems -------------------------------------------------------------------------------------------------

FACTS = ("memory", "ports", "spot", "machines", "startup", "billing", "overhead", "zones", "disks")


@st.composite
def real_problems(
    draw: st.DrawFn, facts: Sequence[str] = FACTS, max_layers: int = 3, max_limit: int = 3
) -> tuple[Profile, Cluster, float]:
    """(profile, cluster, floor) with some of the facts about machines."""
    chosen = draw(st.sets(st.sampled_from(facts), min_size=1)) if len(facts) > 1 else set(facts)
    names = ["cpu", "gpu"]
    layers = []
    for number in range(draw(st.integers(1, max_layers))):
        sizes = st.sampled_from([0, 10**8, 10**9])
        layers.append(
            LayerProfile(
                name=f"layer{number}",
                server_s=(server_s := draw(st.just(0.0) | SECONDS)),
                server_fixed_s=server_s * draw(st.sampled_from([0.0, 0.5, 1.0])),
                input_bytes=draw(sizes),
                dense_bytes=draw(sizes),
                row_bytes=draw(sizes),
                activation_bytes=draw(sizes),
                costs={name: draw(COSTS) for name in names},
            )
        )
    resources = {}
    for name in names:
        more: dict[str, object] = {}
        if "memory" in chosen:
            more["memory_gb"] = draw(st.sampled_from([1.0, 3.0, 8.0]))
        if "ports" in chosen:
            more["port_gbps"] = draw(st.sampled_from([1.0, 8.0, 100.0]))
        if "startup" in chosen:
            more["startup_s"] = draw(st.sampled_from([0.0, 60.0, 600.0]))
        if "billing" in chosen:
            more["billing_s"] = draw(st.sampled_from([0.0, 60.0, 3600.0]))
            more["minimum_s"] = draw(st.sampled_from([0.0, 600.0]))
        if "spot" in chosen and draw(st.booleans()):
            more["spot"] = Spot(
                usd_per_hour=draw(PRICES),
                limit=draw(st.integers(0, 2)),
                interruptions_per_hour=draw(st.sampled_from([0.0, 0.5, 3.0])),
            )
        if "zones" in chosen:
            more["zone"] = draw(st.sampled_from(["a", "b"]))
        if "disks" in chosen:
            more["disk_gb"] = draw(st.sampled_from([None, 0.5, 2.0]))
            more["disk_usd_per_gb_hour"] = draw(st.sampled_from([0.0, 0.1, 5.0]))
        device = "cpu" if name == "cpu" else "cuda"
        resources[name] = Resource(
            device=device, usd_per_hour=draw(PRICES), limit=draw(st.integers(1, max_limit)), **more
        )
    machines = {}
    if "machines" in chosen:
        units = draw(st.sampled_from([{"gpu": 2}, {"gpu": 2, "cpu": 3}, {"gpu": 1, "cpu": 1}, {"cpu": 3}]))
        machines["box"] = Machine(units=units, usd_per_hour=draw(PRICES), limit=draw(st.integers(1, 2)))
    overheads = {"local": Overhead(batch_s=draw(SECONDS))} if "overhead" in chosen else None
    profile = Profile(version=2, model="random", batch_size=100, layers=tuple(layers), overheads=overheads)
    floor = profile.batch_size / draw(st.sampled_from([1.0, 4.0, 20.0]) | st.floats(0.5, 60.0))
    egress: float | dict[str, dict[str, float]] = 0.0
    if "zones" in chosen:
        zones = {str(resource.zone) for resource in resources.values()}
        for machine in machines.values():
            assume(len({resources[name].zone for name in machine.units}) == 1)
        prices = st.sampled_from([0.0, 0.01, 1.0, 30.0])
        by_pair = {a: {b: draw(prices) for b in zones if b != a} for a in sorted(zones)}
        egress = draw(prices) if draw(st.booleans()) else by_pair
    cluster = Cluster(resources=resources, server_resource="cpu", machines=machines, egress_usd_per_gb=egress)
    return profile, cluster, floor
