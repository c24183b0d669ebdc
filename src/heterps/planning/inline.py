"""The plan of the inline launcher: one machine alone, with everything in one process.

    a unit is a core; k cores do the layers' compute, the servers' work and the reading in turn, so times add up:

        seconds for a batch = sum of compute_s (1 - alpha + alpha / k)  +  (sum of server_s + input_s of layer 0) / k

times what real steps took of such a sum when the profile was made (`whole_steps`): the sum does not know that one
thread hands out the work of the others, that a reader works ahead, or that a small batch is not divided. The same steps
show by how much the first ones of a run are slower.

Nothing crosses a network, so no layer pays sync_s. A model that cannot be traced into layers is still trained, as one
layer, with a plan that predicts nothing.
"""

from __future__ import annotations

from heterps.config import Cluster
from heterps.devices import is_cpu
from heterps.errors import ConfigError
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.planning.prediction import DRIFT, UNTESTED, Prediction, combined, layers_error
from heterps.profiling.profile import Cost, Overhead, Profile

INLINE_JOB = "inline, this job"
"""Name of the overhead that has the start of a run of the job itself in one process."""


def cpu_resource(cluster: Cluster) -> str:
    """Return the cluster's cheapest CPU resource, as which an inline run is billed."""
    cpus = {name: r.usd_per_hour for name, r in cluster.resources.items() if is_cpu(r.device)}
    if not cpus:
        raise ConfigError(
            "the inline launcher runs on CPU cores, and the cluster has no resource with device: cpu. "
            "Add one to say what a core costs."
        )
    return min(cpus, key=lambda name: cpus[name])


def inline_prediction(profile: Profile, cluster: Cluster, num_cores: int) -> Prediction:
    """Predict an inline run with this many threads. Raises ConfigError if a layer has no cost on the CPU resource."""
    layers = layer_seconds(profile, cluster, num_cores)
    ratio = profile.whole_step(num_cores)
    if ratio is None:
        error = combined(layers_error(_costs(profile, cluster)[0]), UNTESTED, DRIFT)
        return layers.model_copy(update={"error": error, "basis": "the sum of the layers"})
    return layers.model_copy(
        update={
            "overhead_s": layers.overhead_s + (ratio - 1) * layers.seconds,
            "start_s": (profile.overheads or {}).get(INLINE_JOB, Overhead()).start_s,
            "error": combined(profile.whole_steps_error or 0.0, DRIFT),
            "basis": "real steps on this machine",
        }
    )


def layer_seconds(profile: Profile, cluster: Cluster, num_cores: int) -> Prediction:
    """Add up the seconds of all layers, their tables and the reading of a batch, in one process with `num_cores`."""
    costs, _ = _costs(profile, cluster)
    return Prediction(
        compute_s=sum(cost.compute_s * (1 - cost.alpha + cost.alpha / num_cores) for cost in costs),
        servers_s=sum(layer.server_s for layer in profile.layers) / num_cores,
        overhead_s=costs[0].input_s / num_cores,
        error=0.0,
    )


def _costs(profile: Profile, cluster: Cluster) -> tuple[list[Cost], str]:
    resource = cpu_resource(cluster)
    costs = [layer.costs[resource] for layer in profile.on(cluster).layers if resource in layer.costs]
    if len(costs) < len(profile.layers):
        raise ConfigError(f"the profile has no cost for every layer on {resource!r}; profile that resource first.")
    return costs, resource


def inline_plan(profile: Profile, cluster: Cluster, *, num_cores: int, samples: float) -> Plan:
    """Make the plan of an inline run over `samples` samples in total, with its bill."""
    costs, resource = _costs(profile, cluster)
    prediction = inline_prediction(profile, cluster, num_cores)
    throughput = profile.batch_size / prediction.over(samples / profile.batch_size).seconds
    hours = samples / throughput / 3600
    return Plan(
        method="inline",
        stages=(Stage(first=0, last=len(costs) - 1, resource=resource, count=num_cores),),
        servers=PlannedServers(resource=cluster.server_resource, count=0),
        throughput=throughput,
        hours=hours,
        usd=hours * num_cores * cluster.resources[resource].usd_per_hour,
        bottleneck="this machine",
        evaluations=1,
        batch_size=profile.batch_size,
        model=profile.model,
        layers=tuple(layer.name for layer in profile.layers),
        estimated=(resource,) if any(cost.estimated for cost in costs) else (),
        prediction=prediction,
    )


def unpredicted_plan(cluster: Cluster, *, num_cores: int) -> Plan:
    """Make the plan of an inline run without a prediction: throughput, hours, usd and evaluations are 0."""
    return Plan(
        method="inline",
        stages=(Stage(first=0, last=0, resource=cpu_resource(cluster), count=num_cores),),
        servers=PlannedServers(resource=cluster.server_resource, count=0),
        throughput=0.0,
        hours=0.0,
        usd=0.0,
        bottleneck="not predicted",
    )
