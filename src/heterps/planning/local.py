"""The default plan of a job on the launchers with workers: one stage on CPU cores, and one server.

If a profile of the model has costs for its resource, it is billed as any other plan. Otherwise it predicts nothing:
throughput, hours and usd are 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from heterps.config import Cluster
from heterps.planning.cost import Problem, bill
from heterps.planning.inline import cpu_resource
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.profiling.profile import Profile

NOT_PREDICTED = "not predicted"


def local_plan(
    layers: Sequence[str],
    cluster: Cluster,
    profile: Profile | None,
    *,
    num_workers: int,
    batch_size: int,
    samples: float,
) -> Plan:
    """Make the plan for `samples` samples in total of a model with these layers, with a bill if there is a profile."""
    stage = Stage(first=0, last=len(layers) - 1, resource=cpu_resource(cluster), count=num_workers)
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
    problem = Problem(profile.at_batch_size(batch_size), of_plan, throughput=1, samples=samples)
    billed = bill(problem, plan.stages, servers.count)
    costs = [layer.costs[stage.resource] for layer in problem.profile.layers]
    return plan.model_copy(
        update={
            "throughput": billed.throughput,
            "hours": billed.hours,
            "usd": plan.usd_per_hour(cluster) * billed.hours,  # the server runs, whether or not a layer needs it
            "bottleneck": billed.bottleneck,
            "evaluations": 1,
            "model": profile.model,
            "estimated": (stage.resource,) if any(cost.estimated for cost in costs) else (),
        }
    )


def has_costs(profile: Profile, layers: Sequence[str], cluster: Cluster, resource: str) -> bool:
    """Tell whether the profile is of these layers and has costs on the resource for each."""
    known = profile.on(cluster).layers
    return [layer.name for layer in known] == list(layers) and all(resource in layer.costs for layer in known)
