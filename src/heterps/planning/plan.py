"""Plan and Bill: what is proposed, and what it is predicted to do and cost."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from heterps.config import Cluster
from heterps.yamlfile import read_model


class Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Stage(Value):
    """A maximal run of consecutive layers on one resource, with a count of units."""

    first: NonNegativeInt = Field(description="Index of the first layer.")
    last: NonNegativeInt = Field(description="Index of the last layer, inclusive.")
    resource: str
    count: PositiveInt


class Servers(Value):
    resource: str
    count: NonNegativeInt


class Plan(Value):
    """Stages and servers, with the bill they were chosen for: the object of `heterps plan --json` and of plan.json."""

    method: str
    stages: tuple[Stage, ...]
    servers: Servers
    throughput: NonNegativeFloat = Field(description="Predicted samples a second.")
    hours: NonNegativeFloat
    usd: NonNegativeFloat
    bottleneck: str = Field(description="The station that decides the throughput.")
    search_s: NonNegativeFloat = 0.0
    evaluations: NonNegativeInt = 0
    optimal_usd: NonNegativeFloat | None = Field(None, description="Cost of the exact optimum, where known.")
    bound_usd: NonNegativeFloat | None = Field(None, description="No plan is cheaper; given where the optimum is not.")
    gap: NonNegativeFloat | None = Field(None, description="usd / optimal_usd - 1; 0.0 is optimal.")

    provisioner: str = "exact"

    @property
    def is_predicted(self) -> bool:
        """False where the model could not be profiled: throughput, hours and usd are then 0 and mean nothing."""
        return self.throughput > 0

    def usd_per_hour(self, cluster: Cluster) -> float:
        """What all units of the plan, servers included, cost while they are rented."""
        units = [(stage.resource, stage.count) for stage in self.stages]
        return sum(
            count * cluster.resources[name].usd_per_hour
            for name, count in [*units, (self.servers.resource, self.servers.count)]
        )

    def write(self, path: str | Path) -> None:
        Path(path).write_text(self.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")


def load_plan(path: str | Path) -> Plan:
    return read_model(path, Plan, what="plan")
