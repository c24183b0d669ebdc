"""The plan: stages and servers, with their predicted throughput and cost, and the file that stores it (`plan.json`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from heterps.config import Cluster
from heterps.errors import ConfigError
from heterps.planning.prediction import Prediction
from heterps.profiling.profile import FiniteRecord, Share
from heterps.yamlfile import read_model

SPOT = "-spot"
"""What the name of an offer of spot units ends with."""


class Stage(FiniteRecord):
    """A maximal run of consecutive layers on one resource, with a count of units."""

    first: NonNegativeInt = Field(description="Index of the first layer.")
    last: NonNegativeInt = Field(description="Index of the last layer, inclusive.")
    resource: str
    count: PositiveInt


class PlannedServers(FiniteRecord):
    """The resource and the number of the parameter servers of a plan."""

    resource: str
    count: NonNegativeInt


class Plan(FiniteRecord):
    """Stages and servers, with the bill they were chosen for: the object of `heterps plan --json` and of plan.json."""

    method: str
    stages: tuple[Stage, ...]
    servers: PlannedServers
    throughput: NonNegativeFloat = Field(description="Samples per second, predicted or `measured`.")
    hours: NonNegativeFloat
    usd: NonNegativeFloat
    bottleneck: str = Field(description="The station that decides the throughput.")
    search_s: NonNegativeFloat = 0.0
    evaluations: NonNegativeInt = 0
    optimal_usd: NonNegativeFloat | None = Field(None, description="Cost of the exact optimum, where known.")
    bound_usd: NonNegativeFloat | None = Field(None, description="Lower bound on the cost, if the optimum is unknown.")
    gap: NonNegativeFloat | None = Field(None, description="usd / optimal_usd - 1; 0.0 is optimal.")

    provisioner: str = "exact"
    batch_size: PositiveInt | None = Field(None, description="Number of samples per batch.")
    samples: PositiveFloat | None = Field(
        None, description="Samples of the job, all epochs together, that `hours` and `usd` are for."
    )
    model: str | None = Field(None, description="The model's name in the profile.")
    layers: tuple[str, ...] | None = Field(None, description="Names of the layers, in order.")
    estimated: tuple[str, ...] = Field(
        (), description="Resources whose costs in this plan are estimates.", exclude_if=lambda names: not names
    )

    prediction: Prediction | None = Field(
        None, description="Seconds of a batch by term, and their error.", exclude_if=lambda value: value is None
    )
    sync: str | None = Field(None, description="The policy that the prediction is for; null: a batch is divided.")
    lanes: PositiveInt | None = Field(
        None, description="Number of micro-batches of a batch in rounds, else of batches under way."
    )
    rented: dict[str, PositiveInt] | None = Field(
        None, description="Number of each offer that is rented: machines, units and spot units. Null: single units."
    )
    egress_usd: NonNegativeFloat | None = Field(
        None,
        description="The part of `usd` for traffic between zones, but for what interruptions let it send again; absent "
        "where traffic is free.",
        exclude_if=lambda value: value is None,
    )

    rows: NonNegativeFloat | None = Field(
        None,
        description="Rows that servers were asked to have room for (`--rows`); absent: as the profile expects.",
        exclude_if=lambda value: value is None,
    )
    rows_in_memory: Share | None = Field(
        None,
        description="Share of the rows that was asked to be in memory (`--rows-in-memory`); absent: by job and data.",
        exclude_if=lambda value: value is None,
    )

    measured: Literal["trial", "emulated trial"] | None = Field(
        None, description="How throughput, hours and usd were measured; null: they are predicted."
    )

    @property
    def is_predicted(self) -> bool:
        """Whether there is a prediction. If not, the model could not be profiled: throughput, hours and usd are 0."""
        return self.throughput > 0

    @property
    def units(self) -> dict[str, int]:
        """Number of units of each resource that the plan rents, including servers."""
        used: dict[str, int] = {}
        for stage in self.stages:
            used[stage.resource] = used.get(stage.resource, 0) + stage.count
        if self.servers.count:
            used[self.servers.resource] = used.get(self.servers.resource, 0) + self.servers.count
        return used

    @property
    def asked(self) -> dict[str, Any]:
        """The options of `make_problem` by which this plan was made and is billed."""
        return {"sync": self.sync, "rows": self.rows, "rows_in_memory": self.rows_in_memory}

    def usd_per_hour(self, cluster: Cluster) -> float:
        """Price per hour of all units of the plan, including servers, as they are rented."""
        if self.rented is not None:
            return sum(count * offer_price(cluster, name) for name, count in self.rented.items())
        return sum(count * cluster.resources[name].usd_per_hour for name, count in self.units.items())

    def write(self, path: str | Path) -> None:
        Path(path).write_text(self.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")


def offer_price(cluster: Cluster, name: str) -> float:
    """Return the USD per hour of one of an offer: a machine, a unit or a spot unit."""
    if name in cluster.machines:
        return cluster.machines[name].usd_per_hour
    if name in cluster.resources:
        return cluster.resources[name].usd_per_hour
    spot = cluster.resources[name.removesuffix(SPOT)].spot
    assert spot is not None, "an offer is a machine, a unit or a spot unit"
    return spot.usd_per_hour


def load_plan(path: str | Path) -> Plan:
    return read_model(path, Plan, what="plan")


def check_plan(plan: Plan, layers: Sequence[str], batch_size: int, cluster: Cluster, where: str) -> None:
    """Raise ConfigError unless the plan fits the model's `layers`, the batch size and the cluster.

    Its stages must cover the layers in order, its layer names must match if it has them, and the cluster must allow its
    units. The message names `where` the plan is from.
    """
    if plan.batch_size not in (None, batch_size):
        raise ConfigError(
            f"{where}: the plan is for batches of {plan.batch_size:,} samples, and the job's data.batch_size is "
            f"{batch_size:,}. Plan again with --batch-size {batch_size}, or change the job."
        )
    _check_layers(plan, layers, where)
    if plan.servers.count and plan.servers.resource != cluster.server_resource:
        raise ConfigError(
            f"{where}: the plan's servers run on {plan.servers.resource!r}, and those of the job's cluster on "
            f"{cluster.server_resource!r}. Give the job the cluster that was planned for, or plan again for this one."
        )
    for name, count in plan.units.items():
        if name not in cluster.resources:
            raise ConfigError(
                f"{where}: the plan rents {name!r}, and the job's cluster has {', '.join(cluster.resources)} only. Give"
                " the job the cluster that was planned for."
            )
        if count > (limit := cluster.most_units(name)):
            raise ConfigError(
                f"{where}: the plan rents {count} units of {name!r}, and the job's cluster has a limit of {limit}. "
                "Raise the limit, or plan again for this cluster."
            )


def _check_layers(plan: Plan, layers: Sequence[str], where: str) -> None:
    """Raise ConfigError unless the stages cover all layers in order, each once, and the layer names match."""
    covered = 0
    for number, stage in enumerate(plan.stages, 1):
        if stage.first != covered or stage.last < stage.first:
            raise ConfigError(
                f"{where}: stage {number} is of layers {stage.first} to {stage.last}, but it must start at layer "
                f"{covered} and not end before that: stages cover the layers in order, each once. Plan again."
            )
        covered = stage.last + 1
    of = f" of {plan.model}" if plan.model is not None else ""
    remedy = "It is of another model, or of this one with other arguments: profile this one and plan again."
    if covered != len(layers):
        raise ConfigError(f"{where}: the plan{of} has {covered} layers, and the model has {len(layers)}. {remedy}")
    for index, (planned, traced) in enumerate(zip(plan.layers or layers, layers, strict=False)):
        if planned != traced:
            raise ConfigError(
                f"{where}: layer {index} is {planned!r} in the plan{of}, and {traced!r} in the job's model. {remedy}"
            )
