"""The profile: the time of each layer on each resource, and the file that stores it (`profile.json`).

All seconds are for one profiling batch of `batch_size` samples, forward and backward, on one unit. A part of the
seconds may not grow with the batch (the latency of messages, weights that are sent whole). Where that part is known the
profile can be scaled to another batch size:

    sync_s(b) = sync_fixed_s + (sync_s - sync_fixed_s) * b / batch_size        the other seconds likewise

so that small batches are bound by communication and large ones by compute.

Version 2 adds what the bill of real machines needs (planning/real.py): bytes that pass a port or fill a memory, what a
launcher costs beside the layers, and how sure each figure is. A field that is null was not measured.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from heterps.config import Cluster, Job
from heterps.config.base import Record
from heterps.errors import ConfigError
from heterps.offers import OFFERS
from heterps.yamlfile import read_model

Share = Annotated[float, Field(ge=0, le=1)]
Dense = Literal["servers", "all_reduce"]


def _is_none(value: object) -> bool:
    return value is None


class FiniteRecord(Record):
    """Base of the models in profiles and plans: a Record without NaN or infinity."""

    model_config = ConfigDict(allow_inf_nan=False)


class Cost(FiniteRecord):
    """The cost of one layer on one unit of one resource."""

    compute_s: NonNegativeFloat = Field(description="Seconds of forward and backward.")
    sync_s: NonNegativeFloat = Field(description="Seconds to move parameters and gradients between worker and servers.")
    input_s: NonNegativeFloat = Field(
        description="Seconds to move the input across a stage border; for layer 0, to read the data."
    )
    alpha: Share = Field(description="Share of compute that more units divide.")
    beta: Share = Field(description="Share of communication that more units divide.")
    alpha_error: NonNegativeFloat | None = Field(
        None, description="Standard error of alpha; null: alpha is estimated.", exclude_if=_is_none
    )
    beta_error: NonNegativeFloat | None = Field(
        None, description="Standard error of beta; null: beta is computed from bytes.", exclude_if=_is_none
    )
    compute_fixed_s: NonNegativeFloat = Field(
        0.0, description="The part of compute_s that does not grow with the batch."
    )
    sync_fixed_s: NonNegativeFloat = Field(0.0, description="The part of sync_s that does not grow with the batch.")
    input_fixed_s: NonNegativeFloat = Field(0.0, description="The part of input_s that does not grow with the batch.")
    spread: NonNegativeFloat = Field(0.0, description="Half the interquartile range of compute_s, over its median.")
    error: NonNegativeFloat | None = Field(
        None, description="Relative standard error of compute_s.", exclude_if=_is_none
    )
    estimated: bool = Field(False, description="Whether it is estimated by a roofline, not measured.")
    corrected: bool = Field(
        False,
        description="Whether it was corrected by trials of whole plans.",
        exclude_if=lambda corrected: not corrected,
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for what in ("compute", "sync", "input"):
            if getattr(self, f"{what}_fixed_s") > getattr(self, f"{what}_s"):
                raise ValueError(f"{what}_fixed_s is a part of {what}_s, so it cannot be larger")
        return self

    def scaled(self, ratio: float) -> Cost:
        """The cost of a batch `ratio` times as large.

        More units divide the same seconds per sample as before, so alpha and beta fall where the fixed part grows.
        """
        compute_s = _scaled(self.compute_s, self.compute_fixed_s, ratio)
        sync_s = _scaled(self.sync_s, self.sync_fixed_s, ratio)
        input_s = _scaled(self.input_s, self.input_fixed_s, ratio)
        alpha = _scaled_share(self.alpha, self.compute_s, compute_s, ratio)
        beta = _scaled_share(self.beta, self.sync_s + self.input_s, sync_s + input_s, ratio)
        update = {"compute_s": compute_s, "sync_s": sync_s, "input_s": input_s, "alpha": alpha, "beta": beta}
        return self.model_copy(update=update)


class LayerProfile(FiniteRecord):
    """The sizes of one layer, and its costs on each resource."""

    name: str
    kind: str = "other"
    input_bytes: NonNegativeInt = 0
    weight_bytes: NonNegativeInt = 0
    output_bytes: NonNegativeInt = 0
    server_s: NonNegativeFloat = Field(0.0, description="Seconds of one server unit for the layer's parameters.")
    server_fixed_s: NonNegativeFloat = Field(0.0, description="The part of server_s that does not grow with the batch.")
    server_moves_s: NonNegativeFloat | None = Field(
        None,
        description="The part of server_fixed_s for handing out and taking in all weights once, without the step: each "
        "worker of a round costs it again.",
        exclude_if=_is_none,
    )
    dense_bytes: NonNegativeInt | None = Field(
        None,
        description="Bytes of the weights that are not rows of tables. Weights that layers share count once, in the "
        "first of them.",
        exclude_if=_is_none,
    )
    row_bytes: NonNegativeInt | None = Field(
        None,
        description="Bytes of the keys and rows that a batch pulls, and of the keys and gradients that it pushes.",
        exclude_if=_is_none,
    )
    activation_bytes: NonNegativeInt | None = Field(
        None, description="Bytes that forward keeps for backward.", exclude_if=_is_none
    )
    costs: dict[str, Cost] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.server_fixed_s > self.server_s:
            raise ValueError("server_fixed_s is a part of server_s, so it cannot be larger")
        return self

    def scaled(self, ratio: float) -> LayerProfile:
        update = {
            "input_bytes": round(self.input_bytes * ratio),
            "output_bytes": round(self.output_bytes * ratio),
            "server_s": _scaled(self.server_s, self.server_fixed_s, ratio),
            "row_bytes": None if self.row_bytes is None else round(self.row_bytes * ratio),
            "activation_bytes": None if self.activation_bytes is None else round(self.activation_bytes * ratio),
            "costs": {name: cost.scaled(ratio) for name, cost in self.costs.items()},
        }
        return self.model_copy(update=update)


def _scaled(seconds: float, fixed_s: float, ratio: float) -> float:
    return fixed_s + (seconds - fixed_s) * ratio


def _scaled_share(share: float, before_s: float, after_s: float, ratio: float) -> float:
    return min(share * before_s * ratio / after_s, 1.0) if after_s > 0 else share


ONE_SIDED = 1.645
"""Standard errors above the mean that 1 of 20 cases exceed."""


class TableGrowth(FiniteRecord):
    """The rows of a table after n samples: coefficient * n ** exponent (Heaps' law), fitted on the data."""

    name: str
    row_bytes: PositiveInt = Field(description="Bytes of a row on a server: values, optimizer state and index.")
    coefficient: NonNegativeFloat
    exponent: Share
    error: NonNegativeFloat = Field(
        0.0, description="Standard error of the logarithm of the rows, at the samples that were looked at."
    )
    exponent_error: NonNegativeFloat = Field(
        0.0, description="Standard error of the exponent: the error grows by it with each e-fold of the samples."
    )
    samples: NonNegativeInt = Field(0, description="Number of samples that were looked at.")

    def rows(self, samples: float) -> float:
        """Return the number of distinct ids expected among `samples` samples."""
        return min(self.coefficient * samples**self.exponent, math.inf) if samples > 0 else 0.0

    def most_rows(self, samples: float) -> float:
        """Return the number of distinct ids that is exceeded in 1 of 20 cases, by the errors of the fit."""
        looked_at = max(self.samples, 1)
        error = self.error + self.exponent_error * max(math.log(samples / looked_at), 0.0) if samples > 0 else 0.0
        return self.rows(samples) * math.exp(min(ONE_SIDED * error, 50.0))


class Overhead(FiniteRecord):
    """What a launcher spends besides the layers and the servers, measured with a model that computes nothing."""

    batch_s: NonNegativeFloat = Field(0.0, description="Seconds of a worker per batch.")
    worker_s: NonNegativeFloat = Field(0.0, description="Further seconds per batch and worker beyond the first.")
    message_s: NonNegativeFloat = Field(0.0, description="Seconds per message between stages, in rounds.")
    free_message_s: NonNegativeFloat = Field(
        0.0, description="Seconds per message between stages where workers do not wait for each other."
    )
    free_fixed_s: NonNegativeFloat = Field(
        0.0, description="Seconds per batch where workers do not wait for each other, however many they are."
    )
    free_divided_s: NonNegativeFloat = Field(
        0.0, description="Further seconds per batch there, which the workers divide among themselves."
    )
    start_s: NonNegativeFloat = Field(
        0.0, description="Further seconds that the first batches of a run take, until all processes are at full speed."
    )
    error: NonNegativeFloat = Field(0.0, description="Relative standard error.")


class ProfiledJob(FiniteRecord):
    """What plans take from the job that was profiled, where no option says otherwise."""

    sync: str = Field("bsp", description="Its policy.")
    dense: Dense = Field("servers", description="`workers.dense`: how weights are kept in step.")
    replacements: NonNegativeInt = Field(6, description="`workers.replacements`: lost workers replaced an hour.")
    replicas: NonNegativeInt = Field(0, description="`servers.replicas`: mirrors of each server.")
    tiers_bytes: PositiveInt | None = Field(
        None, description="`tiers.memory_bytes`: a server's memory for rows; null: no tiers.", exclude_if=_is_none
    )

    @classmethod
    def of(cls, job: Job) -> Self:
        """Return what plans take from this job."""
        workers = job.workers
        return cls(
            sync=job.sync.label,
            dense=workers.dense,
            replacements=workers.replacements,
            replicas=job.servers.replicas if job.servers is not None else 0,
            tiers_bytes=job.tiers.memory_bytes if job.tiers is not None else None,
        )


class Profile(FiniteRecord):
    """The costs of all layers of a model, for batches of `batch_size` samples."""

    version: Literal[1, 2] = 1
    model: str
    batch_size: PositiveInt
    layers: tuple[LayerProfile, ...] = Field(min_length=1)
    tables: tuple[TableGrowth, ...] | None = Field(
        None, description="Growth of the tables, if the data was looked at.", exclude_if=_is_none
    )
    overheads: dict[str, Overhead] | None = Field(
        None, description="Overhead of each launcher that was measured, by its name.", exclude_if=_is_none
    )
    whole_steps: dict[int, PositiveFloat] | None = Field(
        None,
        description="By the number of threads: seconds of a real step in one process on this machine, over what the "
        "layers add up to.",
        exclude_if=_is_none,
    )
    whole_steps_error: NonNegativeFloat | None = Field(
        None, description="Relative standard error of whole_steps.", exclude_if=_is_none
    )
    job: ProfiledJob | None = Field(
        None, description="What a plan with a real bill takes from the job that was profiled.", exclude_if=_is_none
    )
    reached: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="Share of the throughput of the slowest station that whole runs reached in trials of plans.",
        exclude_if=_is_none,
    )
    reached_for: str | None = Field(
        None,
        description="The policy that predictions of those trials were for; null: a batch was divided as in the paper.",
        exclude_if=_is_none,
    )
    contention: dict[str, Annotated[float, Field(ge=1)]] | None = Field(
        None,
        description="By resource: seconds of a unit while all units of its machine compute, over those of one alone.",
        exclude_if=_is_none,
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [layer.name for layer in self.layers]
        doubled = sorted({n for n in names if names.count(n) > 1})
        if doubled:
            raise ValueError(f"layer names must differ; given twice: {', '.join(doubled)}")
        return self

    @property
    def resources(self) -> tuple[str, ...]:
        """All resources on which some layer has a cost, in order of appearance."""
        return tuple(dict.fromkeys(name for layer in self.layers for name in layer.costs))

    def on(self, cluster: Cluster) -> Profile:
        """This profile with costs for the cluster's resources, as far as their devices were profiled.

        A resource without costs under its own name takes those of its kind: `v100-spot` takes those of `v100`. So does
        a resource with the name of another device: `v100: {kind: t4}` takes the costs of `t4`, and has none if only
        V100s were profiled.
        """
        sources = {name: self.source(cluster, name) for name in cluster.resources}
        changed = {n: source for n, source in sources.items() if source != n and (source or n in self.resources)}
        if not changed:
            return self
        layers = []
        for layer in self.layers:
            kept = {name: cost for name, cost in layer.costs.items() if name not in changed}
            taken = {name: layer.costs[source] for name, source in changed.items() if source in layer.costs}
            layers.append(layer.model_copy(update={"costs": kept | taken}))
        return self.model_copy(update={"layers": tuple(layers)})

    def source(self, cluster: Cluster, name: str) -> str | None:
        """The profiled resource whose costs a resource of the cluster takes; None if there is none."""
        offer, by_name = cluster.offer(name), OFFERS.get(name)
        if offer is None:
            return name if name in self.resources else None
        own = [name] if by_name is None or by_name.device == offer.device else []
        return next((source for source in (*own, offer.name, offer.device) if source in self.resources), None)

    def offered(self, cluster: Cluster) -> Cluster:
        """The cluster without those units that this profile has no costs of: their limit is 0.

        A run in one process, for example, is profiled on this machine's units alone. Servers need no costs of layers.
        """
        resources = {
            name: resource
            if name == cluster.server_resource or self.source(cluster, name) is not None
            else resource.model_copy(update={"limit": 0})
            for name, resource in cluster.resources.items()
        }
        return cluster.model_copy(update={"resources": resources})

    def at_batch_size(self, batch_size: int) -> Profile:
        """This profile, scaled to another batch size. Seconds that are not known to be fixed grow in proportion."""
        if batch_size < 1:
            raise ConfigError(f"a batch has at least one sample (got a batch size of {batch_size}).")
        layers = tuple(layer.scaled(batch_size / self.batch_size) for layer in self.layers)
        return self.model_copy(update={"batch_size": batch_size, "layers": layers})

    def merge(self, *others: Profile) -> Profile:
        """This profile with the resources of others, which have the same layers and batch on other machines.

        A measured cost replaces an estimated one; of several estimates the first is kept. Sizes, names and the
        servers' seconds are this profile's. Raises ConfigError, which names the first difference, if layers or batch
        sizes differ, or if two profiles have both measured a resource.
        """
        merged = self
        for other in others:
            _check_same(merged, other)
            layers = zip(merged.layers, other.layers, strict=True)
            both = tuple(one.model_copy(update={"costs": _merged(one, two)}) for one, two in layers)
            merged = merged.model_copy(update={"layers": both})
        return merged

    def estimated(self, resource: str) -> bool:
        return any(layer.costs[resource].estimated for layer in self.layers if resource in layer.costs)

    def whole_step(self, num_threads: int) -> float | None:
        """Seconds of a real step over the sum of its layers, measured with this or the nearest number of threads."""
        if not self.whole_steps:
            return None
        return self.whole_steps[min(self.whole_steps, key=lambda known: abs(math.log(known / num_threads)))]

    def write(self, path: str | Path) -> None:
        Path(path).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


SAME = ("name", "kind", "input_bytes", "weight_bytes", "output_bytes")
"""Fields that must be equal in two profiles of the same layer."""


def _check_same(one: Profile, other: Profile) -> None:
    if one.batch_size != other.batch_size:
        raise ConfigError(
            f"profiles of different batch sizes cannot be merged: {one.batch_size} and {other.batch_size}. "
            "Profile both with the same --batch-size."
        )
    if len(one.layers) != len(other.layers):
        raise ConfigError(
            f"profiles of different models cannot be merged: {one.model} has {len(one.layers)} layers, and "
            f"{other.model} has {len(other.layers)}."
        )
    for index, (first, second) in enumerate(zip(one.layers, other.layers, strict=True)):
        for field in SAME:
            ours, theirs = getattr(first, field), getattr(second, field)
            if ours != theirs:
                raise ConfigError(
                    f"profiles of different layers cannot be merged: {field} of layer {index} ({first.name}) is {ours} "
                    f"in one and {theirs} in the other. Profile the same model on the same batch: the same data, or "
                    "--synthetic in both."
                )


def _merged(one: LayerProfile, other: LayerProfile) -> dict[str, Cost]:
    costs = dict(one.costs)
    for resource, cost in other.costs.items():
        ours = costs.setdefault(resource, cost)
        if not ours.estimated and not cost.estimated and ours is not cost:
            raise ConfigError(
                f"resource {resource!r} is measured in both profiles, and one cannot stand for the other. Leave it out "
                f"of one with --resources, or give it a name of its own there: --resources other={resource}."
            )
        if ours.estimated and not cost.estimated:
            costs[resource] = cost
    return costs


def load_profile(path: str | Path) -> Profile:
    """Read the profile at `path`, of version 1 or 2. Raises ConfigError, which names the line and the field."""
    return read_model(path, Profile, what="profile")
