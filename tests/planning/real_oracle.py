"""The bill of real machines again, written from its definition with no thought of speed: every schedule, every count,
every way to rent the units.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from planning_oracle import split

from heterps.config import Cluster
from heterps.planning.real import Conditions
from heterps.profiling.profile import Profile
from heterps.ps.keys.placement import owners

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
            pulls = 0 if conditions.all_reduce else count if conditions.in_rounds else 1
            usd += price((layer.row_bytes or 0) / 2 + pulls * (layer.dense_bytes or 0), server, name)
            usd += price((layer.row_bytes or 0) / 2 + pulls * (layer.dense_bytes or 0), name, server)
    return usd * batches


def rented(
    cluster: Cluster,
    needed: Mapping[str, int],
    seconds: float,
    conditions: Conditions,
    sent: float = 0.0,
    start_s: float = 0.0,
) -> float:
    """Least USD of what has the needed units, by trying every number of every machine and of spot units.

    All of it is paid for the slow first batches as well. An interruption repeats work, and with it what is `sent` and
    what disks cost.
    """
    choices: list[tuple[dict[str, int], float, int, float]] = []  # units, usd, limit, risk
    for name, resource in cluster.resources.items():
        times = (resource.startup_s + start_s, resource.billing_s, resource.minimum_s)
        if _is_sold_alone(cluster, name):
            choices.append(({name: 1}, paid(resource.usd_per_hour, seconds, *times), resource.limit, 0.0))
        if (spot := resource.spot) is not None:
            lost_s = spot.lost_s
            goes_back = conditions.sync is None or conditions.all_reduce or name == cluster.server_resource
            if lost_s is None and goes_back:
                lost_s = 375.0
            elif lost_s is None:
                lost_s = 15 + resource.startup_s + 7 if conditions.in_rounds else 1.3
            risk = spot.interruptions_per_hour * lost_s / 3600
            price = spot.usd_per_hour + spot.usd_per_hour * spot.interruptions_per_hour * resource.startup_s / 3600
            choices.append(({name: 1}, paid(price, seconds, *times), spot.limit, risk))
    for machine in cluster.machines.values():
        times = (machine.startup_s + start_s, machine.billing_s, machine.minimum_s)
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


def longer(profile: Profile, cluster: Cluster, name: str) -> float:
    """How many times as long a real step takes on a core as its parts do, but for an empty step; 1 on other devices."""
    if not profile.whole_steps or cluster.resources[name].device != "cpu":
        return 1.0
    ratio = profile.whole_steps[1]
    if profile.overheads and "inline" in profile.overheads:
        parts_s = sum(layer.costs[name].compute_s + layer.server_s for layer in profile.layers)
        parts_s += profile.layers[0].costs[name].input_s
        if parts_s:
            ratio = max(ratio - profile.overheads["inline"].batch_s / parts_s, min(ratio, 1.0))
    return ratio


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
        core_s = 1.0 if cost.corrected else longer(profile, cluster, name)
        compute += shared(cost.compute_s * core_s, cost.alpha)
        moved = (layer.row_bytes or 0) + 2 * (layer.dense_bytes or 0)
        sync_s = cost.sync_s if port is None else moved / port + 2 * LATENCY_S if moved else 0.0
        comm += shared(sync_s, cost.beta)
        if number == first == 0:
            comm += shared(layer.input_bytes / port if port is not None else 0.0, cost.beta)
            if resource.device == "cpu":  # the core that computes reads
                compute += shared(cost.input_s * core_s, cost.beta)
            else:
                comm += shared(cost.input_s, cost.beta)
        elif number == first:
            border = cost.input_s if port is None else 2 * (layer.input_bytes / port + LATENCY_S)
            comm += shared(border, cost.beta)
        if number == last and last + 1 < len(profile.layers) and port is not None:
            after = profile.layers[last + 1]
            comm += shared(2 * (after.input_bytes / port + LATENCY_S), cost.beta)
    if profile.overheads and conditions.takes_whole_batches:
        overhead = profile.overheads["local"]
        if overhead.free_divided_s or overhead.free_fixed_s:
            compute += overhead.free_divided_s / count + overhead.free_fixed_s
        else:
            compute += overhead.batch_s / count
        compute += 2 * overhead.free_message_s / count if first > 0 else 0.0
    return max(compute, comm)


def served(profile: Profile) -> float:
    """Seconds of one server for rows, where workers keep the weights."""
    return sum(
        layer.server_s - (layer.server_fixed_s if layer.dense_bytes else 0.0)
        for layer in profile.layers
        if layer.row_bytes or not layer.dense_bytes
    )


def round_s(
    profile: Profile,
    cluster: Cluster,
    lanes: int,
    stages: Sequence[tuple[int, int, str, int]],
    servers: int,
    *,
    all_reduce: bool = False,
) -> float:
    """Seconds of a round of `lanes` micro-batches, as a pipeline of stages; infinite if something does not fit."""
    one, others, moved_s, reduced = 0.0, 0.0, 0.0, 0.0
    overhead = profile.overheads["local"] if profile.overheads else None
    server_port = cluster.resources[cluster.server_resource].port_gbps
    for first, last, name, count in stages:
        resource, layers = cluster.resources[name], profile.layers[first : last + 1]
        weights = sum((4 if all_reduce else 2) * (layer.dense_bytes or 0) for layer in layers)
        kept = sum(layer.activation_bytes or 0 for layer in layers)
        samples = math.ceil(lanes / count) * math.ceil(profile.batch_size / lanes)
        held = weights + kept * samples / profile.batch_size
        full = resource.memory_gb is not None and held > resource.memory_gb * GB * (1 + 1e-12)
        if full or count > lanes:
            return math.inf
        port = resource.port_gbps * GB / 8 if resource.port_gbps is not None else None
        micro, comm = 0.0, 0.0
        for number, layer in enumerate(layers, first):
            cost = layer.costs[name]
            core_s = 1.0 if cost.corrected else longer(profile, cluster, name)
            micro += core_s * cost.compute_s * (1 - cost.alpha + cost.alpha / lanes)
            moved = (layer.row_bytes or 0) + 2 * (layer.dense_bytes or 0)
            sync_s = cost.sync_s if port is None else moved / port + 2 * LATENCY_S if moved else 0.0
            if all_reduce and moved:  # a ring: each worker sends its part of the weights on, twice around
                weights_s = sync_s * 2 * (layer.dense_bytes or 0) / moved
                weights_s = 2 * (layer.dense_bytes or 0) / port if port is not None else weights_s
                reduced += weights_s * (count - 1) / count
                sync_s = sync_s - weights_s if layer.row_bytes else 0.0
            comm += sync_s * (1 - cost.beta + cost.beta / count)
            if number == first == 0:
                received_s = layer.input_bytes / port if port is not None else 0.0
                comm += received_s * (1 - cost.beta + cost.beta / count)
                sizes = [machine.units[name] for machine in cluster.machines.values() if name in machine.units]
                if _is_sold_alone(cluster, name) or resource.spot is not None:
                    sizes.append(48 if name == "cpu" else 1)  # the paper's servers have 48 cores
                once = 1 / min(sizes)  # each machine decodes everything
                comm += core_s * cost.input_s * (1 - cost.beta + cost.beta * (once + (1 - once) / count))
            elif number == first:
                border_s = cost.input_s if port is None else 2 * (layer.input_bytes / port + LATENCY_S)
                micro += border_s * (1 - cost.beta + cost.beta / lanes)
        if overhead is not None and first > 0:
            micro += 2 * overhead.message_s
        one += micro
        others = max(others, (math.ceil(lanes / count) - 1) * micro + comm)
        for layer in () if all_reduce else layers:
            each = layer.server_fixed_s / 2 * longer(profile, cluster, cluster.server_resource)
            if server_port is not None and layer.server_s:
                each = max(each, 2 * (layer.dense_bytes or 0) / (server_port * GB / 8))
            moved_s += count * each
    rest = sum(layer.server_s - layer.server_fixed_s / 2 for layer in profile.layers)
    if all_reduce:
        rest = served(profile)
    rest *= longer(profile, cluster, cluster.server_resource)
    if server_port is not None and (rest if all_reduce else any(layer.server_s for layer in profile.layers)):
        rest = max(rest, sum(layer.row_bytes or 0 for layer in profile.layers) / (server_port * GB / 8))
    launched = 0.0
    if overhead is not None:
        launched = overhead.batch_s + overhead.worker_s * (sum(count for *_, count in stages) - 1)
    return launched + reduced + one + others + ((rest + moved_s) / servers if servers else 0.0)


def split_rows(conditions: Conditions, rows: float) -> tuple[float, float]:
    """(in memory, on disk) of the rows of a server, of 160 bytes each; what is on disk takes 12.5 bytes of memory."""
    if conditions.rows_in_memory is not None:
        return rows * conditions.rows_in_memory, rows * (1 - conditions.rows_in_memory)
    if conditions.tiers_bytes is None or rows * 160 <= conditions.tiers_bytes:
        return rows, 0.0
    hot = (conditions.tiers_bytes - 12.5 * rows) / (160 - 12.5)
    return max(hot, 0.0), rows - max(hot, 0.0)


def tables_fit(cluster: Cluster, conditions: Conditions, weights: float, servers: int) -> bool:
    """Whether the server with the most slots has memory and disk for its rows, and for a few more by chance."""
    server, rows = cluster.resources[cluster.server_resource], conditions.rows or 0
    share = max(Counter(owners(servers).tolist()).values()) / len(owners(servers))
    hot, cold = split_rows(conditions, rows * share + 5 * math.sqrt(rows * share * (1 - share)))
    of_rows, on_disk = hot * 160 + cold * 12.5, cold * 160
    if server.memory_gb is not None and of_rows + weights / servers > server.memory_gb * GB:
        return False
    if conditions.rows_in_memory is None and of_rows > (conditions.tiers_bytes or math.inf) * (1 + 1e-9):
        return False
    return server.disk_gb is None or on_disk <= server.disk_gb * GB


def plans(
    profile: Profile, cluster: Cluster, conditions: Conditions, samples: float
) -> Iterator[tuple[float, float, list[tuple[int, int, str, int]], int]]:
    """(throughput, usd, stages, servers) of every plan that fits."""
    server = cluster.resources[cluster.server_resource]
    server_s = served(profile) if conditions.all_reduce else sum(layer.server_s for layer in profile.layers)
    server_s *= longer(profile, cluster, cluster.server_resource)
    if server.port_gbps is not None and server_s:
        moved = sum((layer.row_bytes or 0) + 2 * (layer.dense_bytes or 0) for layer in profile.layers)
        server_s = max(server_s, moved / (server.port_gbps * GB / 8))
    weights = 0 if conditions.all_reduce else 3 * sum(layer.dense_bytes or 0 for layer in profile.layers)
    has_servers = server_s > 0
    most = {
        name: (resource.limit if _is_sold_alone(cluster, name) else 0)
        + (resource.spot.limit if resource.spot else 0)
        + sum(machine.limit * machine.units.get(name, 0) for machine in cluster.machines.values())
        for name, resource in cluster.resources.items()
    }
    numbers = [n for n in range(1, most[cluster.server_resource] + 1) if tables_fit(cluster, conditions, weights, n)]
    on_disk = split_rows(conditions, (conditions.rows or 0) / numbers[0])[1] * numbers[0] if numbers else 0.0
    disk_usd_per_s = on_disk * 160 / GB * server.disk_usd_per_gb_hour / 3600 if has_servers else 0.0
    for schedule in itertools.product(cluster.resources, repeat=len(profile.layers)):
        if any(name not in layer.costs for layer, name in zip(profile.layers, schedule, strict=True)):
            continue
        stages = split(schedule)
        ranges: list[Sequence[int]] = [range(1, most[name] + 1) for *_, name in stages]
        ranges.append(numbers if server_s else [0])
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
                slowest = min(
                    round_s(profile, cluster, lanes, counted, servers, all_reduce=conditions.all_reduce)
                    for lanes in conditions.lanes
                )
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
            besides, start_s = sent + disk_usd_per_s * batches * slowest, 0.0
            if profile.overheads:
                start_s = profile.overheads["local"].start_s
            usd = rented(cluster, needed, batches * slowest, conditions, besides, start_s)
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
