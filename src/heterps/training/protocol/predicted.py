"""What the planner (planning/rounds.py) says of a layout in BSP, and whether a profile fits a layout at all."""

from __future__ import annotations

import math

from heterps.config import BSP, Cluster
from heterps.errors import ConfigError
from heterps.planning.cost import Problem
from heterps.planning.plan import Stage
from heterps.planning.real import conditions_of
from heterps.planning.rounds import evaluate
from heterps.profiling.profile import Profile, ProfiledJob
from heterps.training.protocol.layout import Layout


def round_seconds(
    profile: Profile,
    cluster: Cluster,
    layout: Layout,
    num_servers: int,
    batch_size: int,
    job: ProfiledJob | None = None,
) -> float:
    """Seconds between two batches in BSP, by the lanes that `layout` has; infinite if memory does not suffice.

    `job` is what is known of the job that runs; None: that of the profile.
    """
    check_costs(profile.on(cluster), layout)
    used = {name: cluster.resources[name] for name in (*(s.resource for s in layout.stages), cluster.server_resource)}
    rented = {name: resource.model_copy(update={"limit": max(resource.limit, 1)}) for name, resource in used.items()}
    of_layout = cluster.model_copy(update={"resources": rented})  # others need no costs, limits are not asked for
    problem = Problem(
        profile.at_batch_size(batch_size),
        of_layout,
        throughput=1,
        samples=1,
        conditions=conditions_of(job or profile.job, BSP()),
    )
    stages = [
        Stage(first=stage.first, last=stage.last, resource=stage.resource, count=len(stage.workers))
        for stage in layout.stages
    ]
    found = evaluate(problem, stages, num_servers, layout.num_lanes)
    return found.seconds if found is not None else math.inf


def check_costs(profile: Profile, layout: Layout) -> None:
    """Raise ConfigError where the profile is of other layers, or lacks a cost on the resource of a stage."""
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
