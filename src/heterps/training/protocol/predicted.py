"""What the cost model (planning/cost.py) says of a layout: seconds of its stages, its servers and a whole batch.

batch_seconds   stages and servers work at once, on batches of their own: the slowest decides

round_seconds   in BSP all work on one batch, and the next begins when the servers have it:

    stage 1  |F F F F . B B B B|                the slowest stage has all its micro-batches one after the other;
    stage 2  | FB FB FB FB     |                every other stage one, for the pipeline fills and drains;
    servers                    |######|         the servers have the pushes when all is computed
"""

from __future__ import annotations

import math

from heterps.config import Cluster
from heterps.errors import ConfigError
from heterps.planning.cost import Problem, stage_terms
from heterps.profiling.profile import Profile
from heterps.training.protocol.layout import Layout


def server_seconds(profile: Profile, num_servers: int, batch_size: int) -> float:
    """V / count: what each server spends on a batch. 0 without servers."""
    layers = profile.at_batch_size(batch_size).layers
    return math.fsum(layer.server_s for layer in layers) / num_servers if num_servers else 0.0


def batch_seconds(profile: Profile, cluster: Cluster, layout: Layout, num_servers: int, batch_size: int) -> float:
    """tau: seconds between two batches, by the slowest station."""
    stages = busy_seconds(profile, cluster, layout, batch_size)
    return max(*stages, server_seconds(profile, num_servers, batch_size))


def round_seconds(profile: Profile, cluster: Cluster, layout: Layout, num_servers: int, batch_size: int) -> float:
    """Seconds between two batches in BSP, by the lanes that `layout` has."""
    stages = busy_seconds(profile, cluster, layout, batch_size)
    slowest = stages.index(max(stages))
    filling_s = math.fsum(
        busy_s * len(stage.workers) / layout.num_lanes
        for number, (stage, busy_s) in enumerate(zip(layout.stages, stages, strict=True))
        if number != slowest
    )
    return stages[slowest] + filling_s + server_seconds(profile, num_servers, batch_size)


def busy_seconds(profile: Profile, cluster: Cluster, layout: Layout, batch_size: int) -> list[float]:
    """ET(k) of each stage."""
    _check_costs(profile.on(cluster), layout)
    used = {stage.resource: cluster.resources[stage.resource] for stage in layout.stages}
    rented = {name: resource.model_copy(update={"limit": max(resource.limit, 1)}) for name, resource in used.items()}
    of_layout = cluster.model_copy(update={"resources": rented})  # others need no costs, and limits are not asked for
    problem = Problem(profile.at_batch_size(batch_size), of_layout, throughput=1, samples=1)
    return [
        stage_terms(problem, stage.first, stage.last, problem.resources.index(stage.resource)).busy_s(
            len(stage.workers)
        )
        for stage in layout.stages
    ]


def _check_costs(profile: Profile, layout: Layout) -> None:
    remedy = "Make it with `heterps profile JOB --out profile.json`, and name the file in the job: `profile`."
    if (num_layers := layout.stages[-1].last + 1) != len(profile.layers):
        raise ConfigError(
            f"the profile of {profile.model!r} has {len(profile.layers)} layers and the stages have {num_layers}: "
            f"emulation needs a profile of the job's model. {remedy}"
        )
    for stage in layout.stages:
        for layer in profile.layers[stage.first : stage.last + 1]:
            if stage.resource not in layer.costs:
                raise ConfigError(
                    f"the profile of {profile.model!r} has no cost for layer {layer.name!r} on {stage.resource!r}, so "
                    f"that a unit of it cannot be emulated. {remedy}"
                )
