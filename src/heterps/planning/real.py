"""What real machines and policies add to the cost model: ports, memory, overheads, and how a policy divides work.

Everything ends up in the same arrays that the paper's model fills (cost.py), so that one search serves both:

    seconds of cores    layers as in whole steps, messages, and reading, for which CPU workers have the same core
    seconds on a port   rows by distinct keys, all weights, activations in and gradients back; at both ends of a border
    bytes held          W of each unit whatever its share (weights and gradients), S of a whole batch (activations)
    servers             seconds of their cores or of their ports, whichever is more; at least enough for the tables,
                        in memory and on disks, which may be paid besides

A policy says what k units of a stage do with a batch:

    none            as the paper has it: they divide every batch, by the profile's alpha and beta
    asp ssp dssp    each takes whole batches: nothing is divided, so k units are k times as fast; each pays the
                    launcher's overhead for its own batches, and all that share a machine slow each other down
    bsp             they divide every batch into micro-batches, and the next batch begins when it is applied: see
                    round_kernels.py. The workers of each machine decode all data, and share that among themselves
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heterps.catalogue import NETWORK
from heterps.config import Cluster, PolicyConfig
from heterps.devices import is_cpu
from heterps.errors import ConfigError
from heterps.offers import LISTED
from heterps.planning.lanes import LANES_HELD
from heterps.profiling.profile import Cost, Dense, LayerProfile, Overhead, Profile, ProfiledJob

Floats = npt.NDArray[np.float64]

GB = 1e9
LANES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of micro-batches of a batch that are considered in rounds."""
COPIES = 2
"""Copies of its weights that a worker holds: the values and their gradients."""
OF_OPTIMIZER = 2
"""Values of an optimizer's state for each weight, at most."""


@dataclass(frozen=True)
class Conditions:
    """What a real bill depends on besides profile and cluster.

    sync      the policy; None: a batch is divided as the paper has it
    rows      rows expected in all tables; None: as the profile expects, if it looked at the data
    rows_in_memory  share of the rows that servers keep in memory, the others being on their disks; None: all, or as
                    many as `tiers_bytes` allows
    tiers_bytes     memory of each server for rows and their indexes, by the tiers of the job; None: no bound
    lanes     numbers of micro-batches of a batch to choose from, in rounds; None: LANES, as far as a batch goes
    max_staleness  largest expected staleness, in updates, without rounds; None: any
    most_workers   largest number of workers of a stage, without rounds; None: any
    all_reduce     whether the workers of each stage add up gradients of weights among themselves, in rounds only
    replaces       whether workers that are lost are replaced while the others go on
    mirrored       whether servers have mirrors that go on for them
    """

    sync: PolicyConfig | None = None
    rows: float | None = None
    rows_in_memory: float | None = None
    tiers_bytes: float | None = None
    lanes: tuple[int, ...] | None = None
    max_staleness: int | None = None
    most_workers: int | None = None
    all_reduce: bool = False
    replaces: bool = True
    mirrored: bool = False

    @property
    def takes_whole_batches(self) -> bool:
        return self.sync is not None and not self.sync.in_rounds

    @property
    def in_rounds(self) -> bool:
        return self.sync is not None and self.sync.in_rounds


def conditions_of(
    job: ProfiledJob | None, sync: PolicyConfig | None, dense: Dense | None = None, **more: Any
) -> Conditions:
    """Return the conditions of a job with the policy `sync`: `job` is what is known of it, None if nothing is.

    dense  how weights are kept in step; None: in rounds as in the job
    more   other fields of Conditions
    """
    known = job or ProfiledJob()
    kept = dense or (known.dense if sync is not None and sync.in_rounds else "servers")
    return Conditions(
        sync,
        all_reduce=kept == "all_reduce",
        replaces=known.replacements > 0,
        mirrored=known.replicas > 0,
        tiers_bytes=known.tiers_bytes,
        **more,
    )


def port_bytes_per_s(cluster: Cluster, name: str) -> float | None:
    """Bytes per second of one unit's share of a network port, each way; None if nothing is said of it."""
    own = cluster.resources[name].port_gbps
    if own is not None:
        return own * GB / 8
    shares = [
        machine.port_gbps / sum(machine.units.values())
        for machine in cluster.machines.values()
        if name in machine.units and machine.port_gbps is not None
    ]
    return min(shares) * GB / 8 if shares else None


def memory_bytes(cluster: Cluster, name: str) -> float:
    """Bytes of memory of one unit; infinite if nothing is said of it. Cores of a machine divide its memory."""
    resource = cluster.resources[name]
    if resource.memory_gb is not None:
        return resource.memory_gb * GB
    if not is_cpu(resource.device) or cluster.sold_alone(name):
        return math.inf
    shares = [
        machine.memory_gb / machine.units[name]
        for machine in cluster.machines.values()
        if name in machine.units and machine.memory_gb is not None
    ]
    return min(shares) * GB if shares else math.inf


def dense_bytes(layer: LayerProfile) -> int:
    """Bytes of a layer's weights that are not rows; a profile of version 1 has them in weight_bytes."""
    if layer.dense_bytes is not None:
        return layer.dense_bytes
    return 0 if layer.kind == "embedding" else layer.weight_bytes


def row_bytes(layer: LayerProfile) -> int:
    """Bytes of keys and rows that a batch pulls and pushes; with version 1 at most those of all rows of the batch."""
    if layer.row_bytes is not None:
        return layer.row_bytes
    return 2 * min(layer.weight_bytes, layer.output_bytes) if layer.kind == "embedding" else 0


def real_terms(profile: Profile, cluster: Cluster, resources: Sequence[str], conditions: Conditions) -> Floats:
    """Return the array [T, N, 14] of cost.Problem.terms, without what traffic costs."""
    terms = np.array([_resource_terms(profile, cluster, name, conditions) for name in resources])
    return terms.reshape(len(resources), len(profile.layers), 14)


def _resource_terms(profile: Profile, cluster: Cluster, name: str, conditions: Conditions) -> list[tuple[float, ...]]:
    port = port_bytes_per_s(cluster, name)
    slowed = (profile.contention or {}).get(name, 1.0) if conditions.takes_whole_batches else 1.0
    on_cores, whole = is_cpu(cluster.resources[name].device), whole_ratio(profile, name)
    of_server = whole_ratio(profile, cluster.server_resource)
    rows = []
    for number, layer in enumerate(profile.layers):
        cost, is_first = layer.costs.get(name), number == 0
        if cost is None:
            rows.append((0.0, math.inf, *[0.0] * 12))
            continue
        after = profile.layers[number + 1] if number + 1 < len(profile.layers) else None
        alpha, beta = (1.0, 1.0) if conditions.takes_whole_batches else (cost.alpha, cost.beta)
        longer = whole if on_cores and not cost.corrected else 1.0
        compute_s = cost.compute_s * slowed * longer
        reduced_s, moves = 0.0, conditions.in_rounds and not conditions.all_reduce
        sync_s, input_s, output_s = _moved_s(layer, after, cost, port, is_first=is_first)
        if conditions.all_reduce and (synced := row_bytes(layer) + 2 * dense_bytes(layer)):
            reduced_s = 2 * dense_bytes(layer) / port if port is not None else sync_s * 2 * dense_bytes(layer) / synced
            sync_s -= reduced_s if row_bytes(layer) else sync_s
        input_divided, input_fixed = beta * input_s, (1 - beta) * input_s
        begin_divided, begin_fixed = _begin_s(overhead_of(profile), conditions, is_first=is_first)
        if is_first:
            read_s, share = cost.input_s * longer, beta
            if conditions.in_rounds:  # each machine decodes every block, and its workers share the work
                share *= 1 - 1 / units_beside(cluster, name)
            if conditions.in_rounds or not on_cores:
                input_divided, input_fixed = input_divided + share * read_s, input_fixed + (1 - share) * read_s
            else:  # it takes the core from the layers
                begin_divided, begin_fixed = begin_divided + share * read_s, begin_fixed + (1 - share) * read_s
        held, divided = _held_bytes(layer, conditions)
        rows.append(
            (
                alpha * compute_s, (1 - alpha) * compute_s, beta * sync_s, (1 - beta) * sync_s,
                input_divided, input_fixed, beta * output_s, (1 - beta) * output_s,
                begin_divided, held, divided, moves_s(layer, cluster, of_server) if moves else 0.0, begin_fixed,
                reduced_s,
            )
        )  # fmt: skip
    return rows


def overhead_of(profile: Profile) -> Overhead:
    """Return the overhead of workers beside the layers; nothing where the profile does not say.

    It is that of the launcher `local`, the only one with workers whose overhead is measured: those of a cluster run
    the same code, and a run in one process follows no plan.
    """
    return (profile.overheads or {}).get("local", Overhead())


def whole_ratio(profile: Profile, name: str) -> float:
    """Seconds of a real step on a core of this resource over what its layers, tables and reading add up to.

    Without what an empty step takes, where the launcher's overhead, which has that, is charged besides.
    """
    ratio = profile.whole_step(1)
    if ratio is None:
        return 1.0
    costs, known = [layer.costs.get(name) for layer in profile.layers], profile.overheads or {}
    if "local" not in known or "inline" not in known:
        return ratio
    sum_s = math.fsum(cost.compute_s for cost in costs if cost is not None)
    sum_s += math.fsum(layer.server_s for layer in profile.layers) + (costs[0].input_s if costs[0] is not None else 0.0)
    without = ratio - known["inline"].batch_s / sum_s if None not in costs and sum_s > 0 else ratio
    return max(without, min(ratio, 1.0))


def units_beside(cluster: Cluster, name: str) -> int:
    """Smallest number of units of a resource on one machine, as the cluster says or as the offer is sold."""
    offer = cluster.offer(name)
    is_alone = cluster.sold_alone(name) or cluster.resources[name].spot is not None
    alone = [LISTED[offer.device].units if offer is not None else 1] if is_alone else []
    of_machines = [machine.units[name] for machine in cluster.machines.values() if name in machine.units]
    return min([*alone, *of_machines], default=1)


def _begin_s(overhead: Overhead, conditions: Conditions, *, is_first: bool) -> tuple[float, float]:
    """Seconds of the launcher for each batch of a stage that begins here: those that its workers divide, and others.

    In rounds for each micro-batch, on its way from the stage before and back; the rest is part of the round.
    """
    num_messages = 0 if is_first else 2
    if conditions.in_rounds:
        return 0.0, num_messages * overhead.message_s
    if not conditions.takes_whole_batches:
        return 0.0, 0.0
    divided_s, fixed_s = overhead.free_divided_s, overhead.free_fixed_s
    if not divided_s + fixed_s:
        divided_s = overhead.batch_s
    return divided_s + num_messages * overhead.free_message_s, fixed_s


def _moved_s(
    layer: LayerProfile, after: LayerProfile | None, cost: Cost, port: float | None, *, is_first: bool
) -> tuple[float, float, float]:
    """Seconds to move a layer's parameters, its input if it begins a stage, and its output if it ends one.

    The first layer's input is read, which is not part of this but for the bytes that pass a port.
    """
    if port is None:
        return cost.sync_s, 0.0 if is_first else cost.input_s, 0.0
    latency_s = NETWORK.latency_s
    synced = row_bytes(layer) + 2 * dense_bytes(layer)
    sync_s = synced / port + 2 * latency_s if synced else 0.0
    border_s = 2 * (layer.input_bytes / port + latency_s)  # activations, and their gradients back
    input_s = layer.input_bytes / port if is_first else border_s
    output_s = 2 * (after.input_bytes / port + latency_s) if after is not None else 0.0
    return sync_s, input_s, output_s


def _held_bytes(layer: LayerProfile, conditions: Conditions) -> tuple[float, float]:
    """Bytes of a layer that each unit holds whatever its share of a batch, and those of a whole batch."""
    weights = (COPIES + OF_OPTIMIZER * conditions.all_reduce) * dense_bytes(layer)
    kept = layer.activation_bytes if layer.activation_bytes is not None else layer.input_bytes + layer.output_bytes
    if conditions.takes_whole_batches:
        return LANES_HELD * (weights + kept), 0.0
    return weights, kept


def moves_s(layer: LayerProfile, cluster: Cluster, longer: float = 1.0) -> float:
    """Seconds of one server unit to hand one worker all weights of a layer and to take their gradients.

    longer  ratio of whole steps to what their parts add up to
    """
    core_s = _core_moves_s(layer) * longer
    port = port_bytes_per_s(cluster, cluster.server_resource)
    return core_s if port is None or layer.server_s == 0 else max(core_s, 2 * dense_bytes(layer) / port)


def _core_moves_s(layer: LayerProfile) -> float:
    """Seconds of a server's core for one worker's weights; half of its fixed part, if the profile does not say."""
    return layer.server_moves_s if layer.server_moves_s is not None else layer.server_fixed_s / 2


def served_s(layer: LayerProfile, conditions: Conditions) -> float:
    """Seconds of one server unit for a layer's parameters; only for its rows where workers keep the weights."""
    if not conditions.all_reduce or not dense_bytes(layer):
        return layer.server_s
    return layer.server_s - layer.server_fixed_s if row_bytes(layer) else 0.0


def server_seconds(profile: Profile, cluster: Cluster, conditions: Conditions) -> float:
    """Seconds that one server unit spends on a batch: on its core or on its port, whichever is more.

    In rounds without the weights that it hands to each worker, of which there are as many as the plan has.
    """
    longer = whole_ratio(profile, cluster.server_resource)
    core_s = math.fsum(served_s(layer, conditions) for layer in profile.layers) * longer
    port = port_bytes_per_s(cluster, cluster.server_resource)
    if conditions.in_rounds:
        moved_s = 0.0 if conditions.all_reduce else math.fsum(map(_core_moves_s, profile.layers)) * longer
        rest_s = max(core_s - moved_s, 0.0)
        return rest_s if port is None else max(rest_s, sum(map(row_bytes, profile.layers)) / port if core_s else 0.0)
    if port is None or core_s == 0:
        return core_s
    return max(core_s, sum(row_bytes(layer) + 2 * dense_bytes(layer) for layer in profile.layers) / port)


def least_for_memory(held: float, divided: float, memory: float) -> float:
    """Return the least count with which `held` bytes of each unit and their shares of `divided` fit; maybe infinite."""
    if held + divided <= memory:
        return 1.0
    return math.ceil(divided / (memory - held)) if divided > 0 and held < memory else math.inf


def lanes_to_try(conditions: Conditions, batch_size: int) -> tuple[int, ...]:
    """Numbers of micro-batches of a batch that are considered."""
    return tuple(n for n in conditions.lanes or LANES if n <= batch_size) or (1,)


def check_conditions(conditions: Conditions) -> None:
    """Raise ConfigError for values that no job has."""
    if conditions.rows is not None and not (math.isfinite(conditions.rows) and conditions.rows >= 0):
        raise ConfigError(f"rows must be a number from 0 on (got {conditions.rows}).")
    if conditions.rows_in_memory is not None and not 0 <= conditions.rows_in_memory <= 1:
        raise ConfigError(f"rows_in_memory is a share of the rows, from 0 to 1 (got {conditions.rows_in_memory}).")
    if conditions.all_reduce and not conditions.in_rounds:
        raise ConfigError("workers add up gradients among themselves (all_reduce) only in step: plan with --sync bsp.")
    if conditions.max_staleness is not None and conditions.sync is None:
        raise ConfigError("a largest staleness needs the policy of the job: say it with sync, such as ssp:3.")
    if conditions.takes_whole_batches and conditions.max_staleness is not None and conditions.max_staleness < 1:
        raise ConfigError(
            "a largest staleness of 0 is possible in rounds only: otherwise a worker has two batches under way, and "
            "the update of one comes between the pull and the push of the other. Allow 1 or more, or use sync bsp."
        )
