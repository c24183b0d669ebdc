"""The profile: how long each layer takes on each resource, and the file that holds it (`profile.json`).

All seconds are for one profiling batch of `batch_size` samples, forward and backward, on one unit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from heterps.config import Cluster
from heterps.yamlfile import read_model

Share = Annotated[float, Field(ge=0, le=1)]


class Value(BaseModel):
    """A frozen value read from a file that tools write: fields that a newer tool adds are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Cost(Value):
    """One layer on one unit of one resource."""

    compute_s: NonNegativeFloat = Field(description="Forward and backward.")
    sync_s: NonNegativeFloat = Field(description="Moving parameters and gradients between worker and servers.")
    input_s: NonNegativeFloat = Field(description="Moving the input across a stage border; layer 0: reading the data.")
    alpha: Share = Field(description="Share of compute that more units divide.")
    beta: Share = Field(description="Share of communication that more units divide.")
    spread: NonNegativeFloat = Field(0.0, description="Half the interquartile range of compute_s, over its median.")
    estimated: bool = Field(False, description="From the roofline of a catalogue device, not measured.")


class LayerProfile(Value):
    name: str
    kind: str = "other"
    input_bytes: NonNegativeInt = 0
    weight_bytes: NonNegativeInt = 0
    output_bytes: NonNegativeInt = 0
    server_s: NonNegativeFloat = Field(0.0, description="What one server unit spends on the layer's parameters.")
    costs: dict[str, Cost] = Field(min_length=1)


class Profile(Value):
    version: Literal[1] = 1
    model: str
    batch_size: PositiveInt
    layers: tuple[LayerProfile, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [layer.name for layer in self.layers]
        doubled = sorted({n for n in names if names.count(n) > 1})
        if doubled:
            raise ValueError(f"layer names must differ; given twice: {', '.join(doubled)}")
        return self

    @property
    def resources(self) -> tuple[str, ...]:
        """Every resource that some layer has a cost on, in order of first sight."""
        return tuple(dict.fromkeys(name for layer in self.layers for name in layer.costs))

    def on(self, cluster: Cluster) -> Profile:
        """This profile with costs for the cluster's resources too, wherever what they are was profiled.

        A resource that has no costs under its own name takes those of its kind: `v100-spot` those of `v100`.
        """
        taken = {name: source for name in cluster.resources if (source := self._source(cluster, name))}
        if not taken:
            return self
        layers = []
        for layer in self.layers:
            costs = {name: layer.costs[source] for name, source in taken.items() if source in layer.costs}
            layers.append(layer.model_copy(update={"costs": layer.costs | costs}))
        return self.model_copy(update={"layers": tuple(layers)})

    def _source(self, cluster: Cluster, name: str) -> str | None:
        """Whose costs a resource of the cluster takes; None where it has its own, or nothing is known of it."""
        offer, profiled = cluster.offer(name), self.resources
        if name in profiled or offer is None:
            return None
        return next((source for source in (offer.name, offer.device) if source in profiled), None)

    def estimated(self, resource: str) -> bool:
        return any(layer.costs[resource].estimated for layer in self.layers if resource in layer.costs)

    def write(self, path: str | Path) -> None:
        Path(path).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


def load_profile(path: str | Path) -> Profile:
    return read_model(path, Profile, what="profile")
