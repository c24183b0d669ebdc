"""What an emulated unit can do, by what the profile measured of one unit and what the cluster says of its machine.

No formula of the planner is used: how k units together do is for the run to show (emulation.py).
"""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta, Struct

from heterps.config import Cluster
from heterps.devices import is_cpu
from heterps.profiling.profile import LayerProfile, Profile
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.predicted import check_costs
from heterps.wire.ports import Port

FORWARD_SHARE = 1 / 3
"""Share of forward in the compute of a batch: backward computes gradients of inputs and of weights, as much each."""


class StagePace(Struct, frozen=True):
    """What one unit of a stage can do, in emulated seconds."""

    forward_s: Annotated[float, Meta(ge=0)]  # a sample
    backward_s: Annotated[float, Meta(ge=0)]
    fixed_s: Annotated[float, Meta(ge=0)] = 0.0  # forward and backward of a micro-batch, besides its samples
    read_s: Annotated[float, Meta(ge=0)] = 0.0  # reading a sample, in the first stage
    memory_bytes: float | None = None  # none: not limited

    @property
    def sample_s(self) -> float:
        return self.forward_s + self.backward_s


def stage_seconds(profile: Profile, cluster: Cluster, layout: Layout) -> list[StagePace]:
    """The pace of one unit of each stage.

    Raises ConfigError where the profile is of other layers, or has no cost for a layer on the resource of its stage.
    """
    profile = profile.on(cluster)
    check_costs(profile, layout)
    paces = []
    for number, stage in enumerate(layout.stages):
        costs = [layer.costs[stage.resource] for layer in profile.layers[stage.first : stage.last + 1]]
        fixed_s = math.fsum(cost.compute_fixed_s for cost in costs)
        sample_s = (math.fsum(cost.compute_s for cost in costs) - fixed_s) / profile.batch_size
        read_s = costs[0].input_s / profile.batch_size if number == 0 else 0.0
        memory = memory_bytes(cluster, stage.resource)
        forward_s, backward_s = sample_s * FORWARD_SHARE, sample_s * (1 - FORWARD_SHARE)
        paces.append(StagePace(forward_s, backward_s, fixed_s, read_s, memory))
    return paces


def memory_bytes(cluster: Cluster, resource: str) -> float | None:
    """Memory of one unit: its own, or for a CPU its part of its machine's; None where it is not limited."""
    own = cluster.resources[resource]
    if own.memory_gb is not None:
        return own.memory_gb * 1e9
    machine = _machine_of(cluster, resource)
    if machine is None or not is_cpu(own.device) or (memory := cluster.machines[machine].memory_gb) is None:
        return None
    return memory * 1e9 / cluster.machines[machine].units[resource]


def unit_port(profile: Profile, cluster: Cluster, resource: str, number: int) -> tuple[str, float] | None:
    """The machine of unit `number` of a resource, and the bytes a second of that machine's port; None: no limit.

    Units that are sold in machines fill one machine after the other, and share its port.
    """
    machine = _machine_of(cluster, resource)
    if cluster.resources[resource].port_gbps is None and machine is not None:
        sold = cluster.machines[machine]
        if sold.port_gbps is not None:
            return f"{machine}-{number // sold.units[resource]}", sold.port_gbps * 1e9 / 8
    gbps = cluster.resources[resource].port_gbps
    bytes_per_s = gbps * 1e9 / 8 if gbps is not None else link_bytes_per_s(profile.on(cluster), resource)
    return None if bytes_per_s is None else (f"{resource}-{number}", bytes_per_s)


def link_bytes_per_s(profile: Profile, resource: str) -> float | None:
    """Bytes a second at which one unit moves parameters and inputs by the profile; None where that takes no time."""
    moved, seconds = 0.0, 0.0
    for number, layer in enumerate(profile.layers):
        if (cost := layer.costs.get(resource)) is not None:
            moved += moved_bytes(layer) + (2 * layer.input_bytes if number else 0)  # values and their gradients
            seconds += cost.sync_s + (cost.input_s if number else 0.0)
    return moved / seconds if moved and seconds else None


def moved_bytes(layer: LayerProfile) -> float:
    """Bytes of a layer's parameters and gradients that pass between a worker and the servers for a batch.

    Where the profile does not know them: rows and gradients as large as the layer's output, or all weights twice.
    """
    if layer.row_bytes is not None or layer.dense_bytes is not None:
        return (layer.row_bytes or 0) + 2 * (layer.dense_bytes or 0)
    return 2 * (layer.output_bytes if layer.kind == "embedding" else layer.weight_bytes)


def server_byte_s(profile: Profile) -> float:
    """Seconds that one server unit spends on a byte that it takes in or hands out; 0 where that is not known."""
    moved = sum(moved_bytes(layer) for layer in profile.layers)
    return math.fsum(layer.server_s for layer in profile.layers) / moved if moved else 0.0


def _machine_of(cluster: Cluster, resource: str) -> str | None:
    """The first machine of the cluster that has units of a resource, unless they are rented one by one."""
    if cluster.sold_alone(resource):
        return None
    return next((name for name, machine in cluster.machines.items() if resource in machine.units), None)


class EmulatedServer(Struct, frozen=True):
    """What an emulated server can do: emulated seconds per byte, and real seconds per emulated second."""

    byte_s: float
    scale: float
    memory_bytes: float | None = None  # none: not limited
    port: Port | None = None
