"""The cluster: the resources that may be rented, their prices and limits."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeFloat, field_validator, model_validator

from heterps.config.base import Frozen, Name
from heterps.devices import kind_of
from heterps.errors import ConfigError
from heterps.offers import OFFERS, Offer, find_offer


class Resource(Frozen):
    """A kind of compute unit that can be rented."""

    kind: Name | None = Field(
        None,
        description="The offer of `heterps prices` that this resource is. It fills in device and price where they are "
        "left out, and says whose costs in a profile apply. None: the offer with the resource's name, if there is one.",
    )
    device: Name = Field(
        "cpu", description="Torch device of one unit: cpu, cuda, xpu, mps. Default: the offer's, or cpu without one."
    )
    usd_per_hour: NonNegativeFloat = Field(
        description="Price of one unit for an hour. Default: the list price, if the resource is an offer."
    )
    limit: Annotated[int, Field(ge=0)] = Field(
        description="Largest number of units that may be rented; 0 excludes the resource."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Fill in missing fields from the offer. Unknown fields are left to pydantic, whose error names the nearest."""
        if not isinstance(data, dict) or not set(data) <= set(cls.model_fields):
            return data
        kind = data.get("kind")
        if isinstance(kind, str):
            return _offered(kind, data)
        if kind is None and "usd_per_hour" not in data:
            raise ValueError(
                "usd_per_hour is missing, and there is no offer to take it from: write it, or say with `kind` which "
                "offer this is; `heterps prices` lists them"
            )
        return data


class Cluster(Frozen):
    """The resources that may be rented, with their prices and limits."""

    resources: dict[Name, Resource] = Field(description="Device, price and limit of each resource, by name.")
    server_resource: Name = Field(description="The resource that parameter servers run on.")

    @field_validator("resources", mode="before")
    @classmethod
    def _fill(cls, resources: Any) -> Any:
        """Treat a resource that has the name of an offer and no `kind` as that offer."""
        if not isinstance(resources, dict):
            return resources
        return {
            name: _offered(name, resource)
            if isinstance(resource, dict) and name in OFFERS and resource.get("kind") is None
            else resource
            for name, resource in resources.items()
        }

    def offer(self, name: str) -> Offer | None:
        """The offer behind the resource `name`, by its kind or its name; None if it is not an offer."""
        return OFFERS.get(self.resources[name].kind or name)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.resources:
            raise ValueError(
                "a cluster needs at least one resource, for example cpu: {device: cpu, usd_per_hour: 0.04, limit: 8}"
            )
        if all(resource.limit == 0 for resource in self.resources.values()):
            raise ValueError("every resource has limit 0, so nothing can be rented: raise a limit")
        if self.server_resource not in self.resources:
            raise ValueError(
                f"server_resource {self.server_resource!r} is not one of the resources: {', '.join(self.resources)}"
            )
        return self


def _offered(kind: str, written: dict[str, Any]) -> dict[str, Any]:
    """Fill in the missing fields of a resource from the offer `kind`; ValueError if its device is not the offer's."""
    try:
        offer = find_offer(kind)
    except ConfigError as error:
        raise ValueError(f"kind {error}") from None
    device = written.get("device", offer.torch_device)
    if isinstance(device, str) and kind_of(device) != offer.torch_device:
        raise ValueError(
            f"device {device!r} contradicts the offer {kind!r}, which is a {offer.torch_device} device: leave device "
            "out, or name another kind; what is no offer needs a name of its own"
        )
    return {"device": offer.torch_device, "usd_per_hour": offer.usd_per_hour} | written


PAPER_CLUSTER = Cluster(
    resources={
        "cpu": Resource(device="cpu", usd_per_hour=0.04, limit=480),
        "v100": Resource(device="cuda", usd_per_hour=2.42, limit=32),
    },
    server_resource="cpu",
)
"""The cluster of the HeterPS paper: 10 CPU servers with 48 cores and 4 GPU servers with 8 V100s, at its prices."""
