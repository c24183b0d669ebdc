"""Runs whose workers and servers are processes of this machine: what is predicted of them, and their default plan.

    [1] a real step in one process:     |layers|tables, reading, metrics|
    [2] in rounds:                      |layers of a part|tables, ...|the launcher's overhead, and more for each worker|
    [3] else, k workers at once:        1/k of |layers|tables, ...|overhead that workers divide|  and |what they do not|
    [4] several stages:                 and a message each way for every micro-batch, or batch, that crosses a border
    [5] behind ports:                   and what the slowest port takes, while fewer workers want the cores

[2] and [3] take the layers of a stage as its workers divide them, and the stages as they follow or overlap each other;
but no more workers compute at once than there are cores. The overhead is that of a job with an empty model, which [1]
contains once already; or trials of the job itself have shown what there is besides its layers (launch/overheads.py).

The first batches of a run take longer than the others. What they take more is the start, which trials show as well.

The default plan is one stage on CPU cores, and one server. Without costs of its layers in a profile it predicts
nothing: throughput, hours and usd are 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from heterps.catalogue import NETWORK
from heterps.config import Cluster
from heterps.devices import is_cpu
from heterps.planning.bill import bill
from heterps.planning.cost import Problem
from heterps.planning.inline import cpu_resource, inline_prediction
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.planning.prediction import DRIFT, UNTESTED, Prediction, combined
from heterps.planning.real import dense_bytes, port_bytes_per_s, row_bytes
from heterps.profiling.profile import Cost, Overhead, Profile

NOT_PREDICTED = "not predicted"
OF_JOB = "local, this job"
"""Name of the overhead that trials or runs of the job itself have shown: all seconds of a batch besides its layers."""


@dataclass(frozen=True)
class ThisMachine:
    """The machine whose processes are the workers and servers of a job, and how the policy lets them work."""

    num_cores: int
    in_rounds: bool
    has_ports: bool = False
    """Whether workers and servers are on hosts behind the ports that the cluster says; these share the cores."""
    num_beside: int = 0
    """Number of workers on the host of a server, whose messages pass no port."""


def local_prediction(
    profile: Profile, cluster: Cluster, stages: Sequence[Stage], num_lanes: int, here: ThisMachine
) -> Prediction:
    """Predict a run by these stages with a server as processes of this machine, for the profile's batch size.

    num_lanes  number of micro-batches of a batch in rounds; not used otherwise
    """
    profile = profile.on(cluster)
    known = profile.overheads or {}
    empty_job = known.get("local", Overhead())
    of_job = known.get(OF_JOB)
    launcher = of_job or empty_job
    beside_s = 0.0 if of_job else _beside_s(profile, cluster)
    num_workers = sum(stage.count for stage in stages)
    at_once = min(num_workers, here.num_cores)
    layers_s, way_s = _layers_s(profile, cluster, stages, num_lanes, here)
    border_s = sum(_costs(profile, stage)[0].input_s for stage in stages[1:])
    num_messages = 2 * (len(stages) - 1)  # of each micro-batch, or batch
    worker_port_s, server_port_s = _ports_s(profile, cluster, stages, here) if here.has_ports else (0.0, 0.0)
    if here.in_rounds:  # [2]
        rest_s = beside_s + launcher.batch_s + launcher.worker_s * (num_workers - 1)
        rest_s += num_messages * num_lanes * (launcher.message_s or empty_job.message_s) + border_s  # [4]
        moved_s = max(worker_port_s, server_port_s)
        hidden_s = launcher.worker_s * (num_workers - at_once)
        seconds = max(layers_s + rest_s, way_s + rest_s - hidden_s + moved_s)  # [5]
    else:  # [3]
        divided_s = beside_s + launcher.free_divided_s
        rest_s = divided_s / at_once + launcher.free_fixed_s
        message_s = num_messages * (launcher.free_message_s or empty_job.free_message_s)
        rest_s += message_s * min(len(stages), at_once) / at_once + border_s  # [4]
        turn_s = way_s + (divided_s + launcher.free_fixed_s + worker_port_s) / num_workers
        moved_s = max(server_port_s, worker_port_s / num_workers)
        seconds = max(layers_s + rest_s, turn_s, server_port_s) if here.has_ports else layers_s + rest_s  # [5]
    servers_s = min(sum(layer.server_s for layer in profile.layers), rest_s)
    synced_s = sum(cost.sync_s for stage in stages for cost in _costs(profile, stage))
    network_s = moved_s if here.has_ports else min(synced_s + border_s, rest_s - servers_s)
    is_tested = of_job is not None or ("local" in known and profile.whole_steps is not None)
    basis = "real steps and an empty model" if known else "the sum of the layers"
    return Prediction(
        compute_s=layers_s,
        servers_s=servers_s,
        network_s=network_s,
        overhead_s=seconds - layers_s - servers_s - network_s,
        start_s=launcher.start_s,
        error=combined(profile.whole_steps_error or 0.0, DRIFT, launcher.error if is_tested else UNTESTED),
        basis="short trials of this job" if of_job else basis,
    )


def _ports_s(profile: Profile, cluster: Cluster, stages: Sequence[Stage], here: ThisMachine) -> tuple[float, float]:
    """Seconds of a batch on the port of a worker, and on that of the server, as far as messages pass them.

    Pulls come before and pushes after the layers, so that both directions add up.
    """
    worker_s, served = 0.0, 0.0
    server_port = port_bytes_per_s(cluster, cluster.server_resource)
    num_beside = here.num_beside  # in the first stage, which has the embeddings
    for stage in stages:
        layers, port = profile.layers[stage.first : stage.last + 1], port_bytes_per_s(cluster, stage.resource)
        parts = stage.count if here.in_rounds else 1
        moved = sum(map(row_bytes, layers)) / parts + 2 * sum(map(dense_bytes, layers))
        remote = max(stage.count - num_beside, 0)
        served += moved * (remote if here.in_rounds else remote / stage.count)
        crossed = 2 * layers[0].input_bytes / parts if stage.first else 0.0
        if port is not None and remote:
            worker_s = max(worker_s, (moved + crossed) / port + 2 * NETWORK.latency_s)
        num_beside = 0
    return worker_s, served / server_port if server_port is not None else 0.0


def _layers_s(
    profile: Profile, cluster: Cluster, stages: Sequence[Stage], num_lanes: int, here: ThisMachine
) -> tuple[float, float]:
    """Seconds of layers between two batches as the cores allow, and as they would be with a core for each worker."""
    parts = num_lanes if here.in_rounds else 1
    micro_s = [_part_s(_costs(profile, stage), parts) for stage in stages]
    if here.in_rounds:
        way_s = sum(micro_s) + max((math.ceil(parts / s.count) - 1) * t for t, s in zip(micro_s, stages, strict=True))
    else:
        way_s = max(seconds / stage.count for seconds, stage in zip(micro_s, stages, strict=True))
    on_cores = [is_cpu(cluster.resources[stage.resource].device) for stage in stages]
    return max(way_s, parts * sum(compress(micro_s, on_cores)) / here.num_cores), way_s


def _beside_s(profile: Profile, cluster: Cluster) -> float:
    """Seconds of a real step in one process besides its layers and what an empty model takes. [1]"""
    costs = [layer.costs.get(cpu_resource(cluster)) for layer in profile.layers]
    if None in costs:
        return sum(layer.server_s for layer in profile.layers)
    empty = (profile.overheads or {}).get("inline", Overhead())
    step_s = inline_prediction(profile, cluster, 1).seconds
    return max(step_s - empty.batch_s - _part_s([cost for cost in costs if cost is not None], 1), 0.0)


def fit_overhead(
    profile: Profile,
    cluster: Cluster,
    in_rounds: Sequence[float],
    free: Sequence[float],
    error: float,
    lanes: int = 0,
    start_s: float = 0.0,
) -> Overhead:
    """Fit an overhead OF_JOB to the seconds of a batch, in rounds and not waiting for others.

    It is the inverse of `local_prediction`, as far as no overhead is below 0. Both have the seconds with one and with
    two workers, and if there are `lanes` in rounds, those of the two stages of `two_stages`.
    """
    costs = [layer.costs[cpu_resource(cluster)] for layer in profile.on(cluster).layers]
    whole_s = _part_s(costs, 1)
    batch_s = max(in_rounds[0] - whole_s, 0.0)
    divided_s = max(2 * (free[0] - free[1]) - whole_s, 0.0)
    fixed_s = [seconds - (whole_s + divided_s) / k for k, seconds in enumerate(free[:2], 1)]
    fitted = Overhead(
        batch_s=batch_s,
        worker_s=max(in_rounds[1] - _part_s(costs, 2) - batch_s, 0.0),
        free_divided_s=divided_s,
        free_fixed_s=max(sum(fixed_s) / 2, 0.0),
        start_s=start_s,
        error=error,
    )
    if not lanes:
        return fitted
    without = profile.model_copy(update={"overheads": {OF_JOB: fitted}})
    staged = [
        local_prediction(
            without, cluster, two_stages(len(costs), cluster), lanes, ThisMachine(2, in_rounds=one)
        ).seconds
        for one in (True, False)
    ]
    return fitted.model_copy(
        update={
            "message_s": max(in_rounds[2] - staged[0], 0.0) / (2 * lanes),
            "free_message_s": max(free[2] - staged[1], 0.0) / 2,
        }
    )


def _costs(profile: Profile, stage: Stage) -> list[Cost]:
    return [layer.costs[stage.resource] for layer in profile.layers[stage.first : stage.last + 1]]


def _part_s(costs: Sequence[Cost], num_parts: int) -> float:
    """Seconds of layers for one of several equal parts of a batch."""
    return sum(cost.compute_s * (1 - cost.alpha + cost.alpha / num_parts) for cost in costs)


def one_stage(num_layers: int, cluster: Cluster, num_workers: int) -> Stage:
    """All layers in one stage on CPU cores."""
    return Stage(first=0, last=num_layers - 1, resource=cpu_resource(cluster), count=num_workers)


def two_stages(num_layers: int, cluster: Cluster) -> list[Stage]:
    """The first layer and all others in a stage each, of one worker on a CPU core."""
    first = one_stage(1, cluster, 1)
    return [first, first.model_copy(update={"first": 1, "last": num_layers - 1})]


def local_plan(
    layers: Sequence[str],
    cluster: Cluster,
    profile: Profile | None,
    *,
    num_workers: int,
    batch_size: int,
    samples: float,
    here: ThisMachine | None = None,
) -> Plan:
    """Make the plan for `samples` samples in total of a model with these layers, with a bill if there is a profile.

    here  the machines on which all processes run; None: they are not known, or units are emulated
    """
    stage = one_stage(len(layers), cluster, num_workers)
    servers = PlannedServers(resource=cluster.server_resource, count=1)
    plan = Plan(
        method="local",
        stages=(stage,),
        servers=servers,
        throughput=0.0,
        hours=0.0,
        usd=0.0,
        bottleneck=NOT_PREDICTED,
        batch_size=batch_size,
        layers=tuple(layers),
    )
    if profile is None or not has_costs(profile, layers, cluster, stage.resource):
        return plan
    used = {name: cluster.resources[name] for name in dict.fromkeys([stage.resource, servers.resource])}
    rented = {name: resource.model_copy(update={"limit": max(resource.limit, 1)}) for name, resource in used.items()}
    of_plan = cluster.model_copy(update={"resources": rented})  # others need no costs, and limits are not asked for
    scaled = profile.at_batch_size(batch_size)
    costs = [layer.costs[stage.resource] for layer in scaled.on(cluster).layers]
    predicted: dict[str, Any] = {
        "evaluations": 1,
        "model": profile.model,
        "estimated": (stage.resource,) if any(cost.estimated for cost in costs) else (),
    }
    if here is None:
        billed = bill(Problem(scaled, of_plan, throughput=1, samples=samples), plan.stages, servers.count)
        predicted |= {"throughput": billed.throughput, "hours": billed.hours, "bottleneck": billed.bottleneck}
    else:
        prediction = local_prediction(scaled, cluster, plan.stages, num_workers, here)
        throughput = batch_size / prediction.over(samples / batch_size).seconds
        predicted |= {"throughput": throughput, "hours": samples / throughput / 3600, "prediction": prediction}
        of_hosts = "ports" if prediction.network_s > prediction.compute_s else "cores of the hosts"
        predicted |= {"bottleneck": of_hosts if here.has_ports else "this machine"}
    hours = predicted["hours"]
    usd = plan.usd_per_hour(cluster) * hours  # the server runs, whether or not a layer needs it
    return plan.model_copy(update={**predicted, "usd": usd})


def has_costs(profile: Profile, layers: Sequence[str], cluster: Cluster, resource: str) -> bool:
    """Tell whether the profile is of these layers and has costs on the resource for each."""
    known = profile.on(cluster).layers
    return [layer.name for layer in known] == list(layers) and all(resource in layer.costs for layer in known)
