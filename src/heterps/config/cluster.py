"""The cluster: the resources that may be rented, their prices and limits, and the facts that a real bill depends on.

Prices and limits are all that the cost model of the paper knows. Memory, ports, machines, spot capacity, start-up,
billing and traffic between zones are optional; a cluster that has any of them is billed by it (planning/real.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator, model_validator

from heterps.config.base import Frozen, Name
from heterps.devices import is_cpu, kind_of
from heterps.errors import ConfigError
from heterps.offers import MACHINES, OFFERS, Offer, find_offer


def _is_none(value: object) -> bool:
    return value is None


def _is_zero(value: float) -> bool:
    return value == 0


def _is_empty(value: Any) -> bool:
    return not value


class Spot(Frozen):
    """Units of a resource that the provider may take back. They share stages with units on demand."""

    usd_per_hour: NonNegativeFloat = Field(description="Price of one unit for an hour.")
    limit: Annotated[int, Field(ge=0)] = Field(description="Largest number of spot units, besides those on demand.")
    interruptions_per_hour: NonNegativeFloat = Field(0.0, description="How often one unit is taken back, on average.")
    lost_s: NonNegativeFloat | None = Field(
        None,
        description="Seconds of the whole job that an interruption costs. Null: by the policy and by what the job does "
        "when a worker or a server is lost, from 1.3 to 375 (docs/how-to/plan.md).",
    )


class Rented(Frozen):
    """What is paid by the hour, and for which seconds."""

    startup_s: NonNegativeFloat = Field(
        0.0, description="Seconds from the order until it works. They are paid.", exclude_if=_is_zero
    )
    billing_s: NonNegativeFloat = Field(
        0.0, description="Paid time is rounded up to whole steps of these seconds; 0: it is not.", exclude_if=_is_zero
    )
    minimum_s: NonNegativeFloat = Field(0.0, description="Least paid time in seconds.", exclude_if=_is_zero)


class Resource(Rented):
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
    memory_gb: PositiveFloat | None = Field(
        None, description="Memory of one unit in GB (10^9 bytes). Null: not limited.", exclude_if=_is_none
    )
    port_gbps: PositiveFloat | None = Field(
        None,
        description="Network port of one unit in Gb/s, each way. Null: that of its machine, divided among its units; "
        "without one, the seconds of the profile.",
        exclude_if=_is_none,
    )
    disk_gb: PositiveFloat | None = Field(
        None,
        description="Disk of one unit in GB (10^9 bytes) for rows that servers do not keep in memory (tiers). Null: "
        "not limited.",
        exclude_if=_is_none,
    )
    disk_usd_per_gb_hour: NonNegativeFloat = Field(
        0.0,
        description="Price of a GB on that disk for an hour; 0: it comes with the unit.",
        exclude_if=_is_zero,
    )
    alone: bool | None = Field(
        None,
        description="Whether units are rented one by one. Null: yes, unless the resource is an accelerator that a "
        "machine of the cluster has.",
        exclude_if=_is_none,
    )
    spot: Spot | None = Field(None, description="Spot capacity of the same units.", exclude_if=_is_none)
    zone: Name | None = Field(
        None,
        description="The zone of its units, by any name. Units of one kind in two zones are two resources.",
        exclude_if=_is_none,
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


class Machine(Rented):
    """A machine as it is sold: units of one or several resources that are rented together."""

    units: Annotated[dict[Name, Annotated[int, Field(ge=1)]], Field(min_length=1)] = Field(
        description="Number of units of each resource."
    )
    usd_per_hour: NonNegativeFloat = Field(description="Price of the machine for an hour.")
    limit: Annotated[int, Field(ge=0)] = Field(description="Largest number of such machines.")
    memory_gb: PositiveFloat | None = Field(
        None,
        description="Main memory in GB (10^9 bytes), which its CPU units divide among themselves. Null: not limited.",
        exclude_if=_is_none,
    )
    port_gbps: PositiveFloat | None = Field(
        None,
        description="Network port in Gb/s, each way, which all its units share. Null: that of its units.",
        exclude_if=_is_none,
    )


class Cluster(Frozen):
    """The resources that may be rented, with their prices and limits."""

    resources: dict[Name, Resource] = Field(description="Device, price and limit of each resource, by name.")
    server_resource: Name = Field(description="The resource that parameter servers run on.")
    machines: dict[Name, Machine] = Field(
        {},
        description="Machines in which units are sold, where not one by one. One with the name of a machine of "
        "`heterps prices` and without a price needs a limit only.",
        exclude_if=_is_empty,
    )
    egress_usd_per_gb: NonNegativeFloat | dict[Name, dict[Name, NonNegativeFloat]] = Field(
        0.0,
        description="Price of traffic that leaves a zone for another, in USD per GB (10^9 bytes): one for all zones, "
        "or by the zone that it leaves and the one that it enters, where zones that are not named are free.",
        exclude_if=_is_empty,
    )

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

    @field_validator("machines", mode="before")
    @classmethod
    def _fill_machines(cls, machines: Any) -> Any:
        """Fill in what a machine with the name of one of the catalogue does not say, unless it has its own price."""
        if not isinstance(machines, dict):
            return machines
        return {
            name: MACHINES[name].fields() | machine
            if isinstance(machine, dict) and name in MACHINES and "usd_per_hour" not in machine
            else machine
            for name, machine in machines.items()
        }

    @property
    def has_facts(self) -> bool:
        """Whether it says more than prices and limits, so that its bill is not that of the paper."""
        plain = {"kind", "device", "usd_per_hour", "limit", "zone"}
        return bool(self.machines or self.egress_usd_per_gb) or any(
            getattr(resource, name) != field.default
            for resource in self.resources.values()
            for name, field in Resource.model_fields.items()
            if name not in plain
        )

    def sold_alone(self, name: str) -> bool:
        """Whether units of the resource `name` are rented one by one."""
        resource = self.resources[name]
        if resource.alone is not None:
            return resource.alone
        return is_cpu(resource.device) or not any(name in machine.units for machine in self.machines.values())

    def most_units(self, name: str) -> int:
        """Largest number of units of the resource `name` that may be rented: one by one, as spot units, in machines."""
        resource = self.resources[name]
        others = resource.spot.limit if resource.spot is not None else 0
        others += sum(machine.limit * machine.units.get(name, 0) for machine in self.machines.values())
        if self.sold_alone(name):
            return resource.limit + others
        return min(others, resource.limit + (resource.spot.limit if resource.spot is not None else 0))

    def egress_price(self, source: str, target: str) -> float:
        """USD per GB of traffic from a unit of the resource `source` to one of `target`."""
        left, entered = self.resources[source].zone, self.resources[target].zone
        if left is None or entered is None or left == entered:
            return 0.0
        if isinstance(self.egress_usd_per_gb, dict):
            return self.egress_usd_per_gb.get(left, {}).get(entered, 0.0)
        return self.egress_usd_per_gb

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
        for name, machine in self.machines.items():
            if strange := [unit for unit in machine.units if unit not in self.resources]:
                raise ValueError(
                    f"machine {name!r} has units of {', '.join(map(repr, strange))}, and the resources are "
                    f"{', '.join(self.resources)}"
                )
            if name in self.resources:
                raise ValueError(f"{name!r} is the name of a machine and of a resource: give one of them another name")
            zones = {self.resources[unit].zone for unit in machine.units}
            if len(zones) > 1:
                raise ValueError(
                    f"machine {name!r} has units in the zones {', '.join(sorted(map(str, zones)))}, and a machine is "
                    "in one: give each zone resources and machines of its own"
                )
        self._check_zones()
        return self

    def _check_zones(self) -> None:
        """Raise ValueError where traffic has a price and it is not clear between which zones it goes."""
        if not self.egress_usd_per_gb:
            return
        if nowhere := [name for name, resource in self.resources.items() if resource.zone is None]:
            raise ValueError(
                f"egress_usd_per_gb is the price of traffic between zones, and {', '.join(map(repr, nowhere))} "
                f"{'has' if len(nowhere) == 1 else 'have'} none: say the `zone` of every resource"
            )
        if not isinstance(self.egress_usd_per_gb, dict):
            return
        named = {*self.egress_usd_per_gb, *(zone for row in self.egress_usd_per_gb.values() for zone in row)}
        zones = {str(resource.zone) for resource in self.resources.values()}
        if strange := sorted(named - zones):
            raise ValueError(
                f"egress_usd_per_gb names {', '.join(map(repr, strange))}, and the zones of the resources are "
                f"{', '.join(sorted(zones))}"
            )


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
