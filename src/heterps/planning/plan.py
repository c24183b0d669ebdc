"""Plan and Bill: what is proposed, and what it is predicted to do and cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from heterps.config import Cluster
from heterps.errors import ConfigError
from heterps.profiling.profile import FiniteRecord
from heterps.yamlfile import read_model


class Stage(FiniteRecord):
    """A maximal run of consecutive layers on one resource, with a count of units."""

    first: NonNegativeInt = Field(description="Index of the first layer.")
    last: NonNegativeInt = Field(description="Index of the last layer, inclusive.")
    resource: str
    count: PositiveInt


class PlannedServers(FiniteRecord):
    resource: str
    count: NonNegativeInt


class Plan(FiniteRecord):
    """Stages and servers, with the bill they were chosen for: the object of `heterps plan --json` and of plan.json."""

    method: str
    stages: tuple[Stage, ...]
    servers: PlannedServers
    throughput: NonNegativeFloat = Field(description="Predicted samples a second, or those that `measured` says.")
    hours: NonNegativeFloat
    usd: NonNegativeFloat
    bottleneck: str = Field(description="The station that decides the throughput.")
    search_s: NonNegativeFloat = 0.0
    evaluations: NonNegativeInt = 0
    optimal_usd: NonNegativeFloat | None = Field(None, description="Cost of the exact optimum, where known.")
    bound_usd: NonNegativeFloat | None = Field(None, description="No plan is cheaper; given where the optimum is not.")
    gap: NonNegativeFloat | None = Field(None, description="usd / optimal_usd - 1; 0.0 is optimal.")

    provisioner: str = "exact"
    batch_size: PositiveInt | None = Field(None, description="Samples of the batches that it was planned for.")
    model: str | None = Field(None, description="The model's name in the profile.")
    layers: tuple[str, ...] | None = Field(None, description="Names of the layers that the stages count.")
    estimated: tuple[str, ...] = Field(
        (), description="Resources whose costs in this plan are estimates.", exclude_if=lambda names: not names
    )

    measured: Literal["trial", "emulated trial"] | None = Field(
        None, description="What throughput, hours and usd were measured in; none: they are predicted."
    )

    @property
    def is_predicted(self) -> bool:
        """False where the model could not be profiled: throughput, hours and usd are then 0 and mean nothing."""
        return self.throughput > 0

    @property
    def units(self) -> dict[str, int]:
        """How many units of each resource the plan rents, servers included."""
        used: dict[str, int] = {}
        for stage in self.stages:
            used[stage.resource] = used.get(stage.resource, 0) + stage.count
        if self.servers.count:
            used[self.servers.resource] = used.get(self.servers.resource, 0) + self.servers.count
        return used

    def usd_per_hour(self, cluster: Cluster) -> float:
        """What all units of the plan, servers included, cost while they are rented."""
        return sum(count * cluster.resources[name].usd_per_hour for name, count in self.units.items())

    def write(self, path: str | Path) -> None:
        Path(path).write_text(self.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")


def load_plan(path: str | Path) -> Plan:
    return read_model(path, Plan, what="plan")


def check_plan(plan: Plan, layers: Sequence[str], batch_size: int, cluster: Cluster, where: str) -> None:
    """Raises ConfigError, which names `where` the plan is from, unless it covers the `layers` of a model, by name where
    it tells their names, one after the other, is for batches of this size, and the cluster has its units.
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
        if count > (limit := cluster.resources[name].limit):
            raise ConfigError(
                f"{where}: the plan rents {count} units of {name!r}, and the job's cluster has a limit of {limit}. "
                "Raise the limit, or plan again for this cluster."
            )


def _check_layers(plan: Plan, layers: Sequence[str], where: str) -> None:
    """The stages cover as many layers, in order and each once, and the plan's names are those of the model."""
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
