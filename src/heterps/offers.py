"""Offers: the list price of one unit of each device. A cluster file overrides it with the price that you pay.

An on-demand offer has the name of its device; spot capacity, which the provider may take back, is `<device>-spot`.
The price of a GPU is that of an instance divided by its GPUs, including the host (except v100-spot). The price of a
core is that of an instance divided by its physical cores (one core is two vCPUs on AWS c5, c6i, c7i and c6a, and one
vCPU on c7a and c7g).
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from heterps.catalogue import CATALOGUE, LOCAL, DeviceSpec
from heterps.errors import ConfigError

SOURCE = (
    "AWS us-east-1 and Google Cloud us-central1, Linux, August 2026; cpu and v100 as in the HeterPS paper; v100-spot "
    "without its host"
)


@dataclass(frozen=True)
class Offer:
    """One unit of a device at a price."""

    name: str
    device: str  # name in the catalogue, or "cpu"
    usd_per_hour: float
    spot: bool = False

    @property
    def torch_device(self) -> str:
        return CATALOGUE[self.device].torch_device if self.device in CATALOGUE else LOCAL


@dataclass(frozen=True)
class Listing:
    """What a unit of a device costs, and the machine in which it is sold: the optional facts of a cluster file."""

    usd_per_hour: float  # on demand
    spot_usd_per_hour: float | None  # as spot capacity, where there is a market
    machine: str
    units: int  # of the device, in that machine
    memory_gb: float  # of one unit: a GPU's own, or a core's share of main memory
    port_gbps: float  # of the machine, at its peak

    @property
    def unit_port_gbps(self) -> float:
        return self.port_gbps / self.units


# Prices. AWS: us-east-1 on 2026-08-22, as the SkyPilot catalog collected it from AWS's price list; spot prices are
# medians over the region's zones. Google Cloud: us-central1 on 2026-08-18, from the same catalog.
# Memory of GPUs: NVIDIA's data sheets, in GB; Kunlun: Baidu at Hot Chips 32 (2020), 16 GB of HBM. Main memory of a
# core: AWS's instance pages, GiB as GB. Ports: AWS's instance pages, "up to", in Gb/s; sustained rates of the small
# ones are lower (c5.large: 0.75). The paper's cluster: 48 cores, 512 GB and 100 Gb/s a server, 8 V100s in some.
LISTED: dict[str, Listing] = {
    LOCAL: Listing(0.04, None, "HeterPS server", 48, 512 / 48, 100),  # HeterPS paper (arXiv 2111.10635): a CPU core
    "v100": Listing(2.42, 1.3569, "p3.16xlarge", 8, 16, 25),  # HeterPS paper; spot: Google Cloud V100, without its host
    "a100": Listing(2.745, 2.375, "p4d.24xlarge", 8, 40, 400),  # AWS p4d.24xlarge, 8 GPUs: 21.957642; spot 19.00
    "h100": Listing(6.88, 2.592, "p5.48xlarge", 8, 80, 3200),  # AWS p5.48xlarge, 8 GPUs: 55.04; spot 20.74
    "t4": Listing(0.526, 0.3599, "g4dn.xlarge", 1, 16, 25),  # AWS g4dn.xlarge, 1 GPU
    "l4": Listing(0.8048, 0.7959, "g6.xlarge", 1, 24, 10),  # AWS g6.xlarge, 1 GPU
    "a10g": Listing(1.006, 0.638, "g5.xlarge", 1, 24, 10),  # AWS g5.xlarge, 1 GPU
    # assumption: no public list price was found; write your own into the cluster file
    "kunlun": Listing(1.0, None, "assumption: one by one", 1, 16, 10),
    "cascade-lake": Listing(0.085, 0.0309, "c5.large", 1, 4, 10),  # AWS c5.large, 1 core
    "ice-lake": Listing(0.085, 0.0387, "c6i.large", 1, 4, 12.5),  # AWS c6i.large, 1 core
    "sapphire-rapids": Listing(0.08925, 0.0318, "c7i.large", 1, 4, 12.5),  # AWS c7i.large, 1 core
    "milan": Listing(0.0765, 0.0285, "c6a.large", 1, 4, 12.5),  # AWS c6a.large, 1 core
    "genoa": Listing(0.05132, 0.0125, "c7a.medium", 1, 2, 12.5),  # AWS c7a.medium, 1 core
    "graviton3": Listing(0.0363, 0.0138, "c7g.medium", 1, 2, 12.5),  # AWS c7g.medium, 1 core
}
"""Every device of the catalogue, and a core of this machine."""


# AWS, "Data Transfer" of the EC2 on-demand price list, us-east-1: between zones of a region 0.01 USD per GB at each
# end, so 0.02 in all (measured by lastweekinaws.com, "AWS cross-AZ data transfer costs more than AWS says"); to most
# other regions 0.02 at the sender. Within a zone it is free.
EGRESS_USD_PER_GB: dict[str, float] = {"zone": 0.02, "region": 0.02}
"""List price of a GB that leaves for another zone of the same region, and for another region."""


@dataclass(frozen=True)
class RentalTerms:
    """How an offer is started, billed and taken back: the optional facts of a cluster file."""

    startup_s: float
    billing_s: float
    minimum_s: float
    interruptions_per_hour: float  # of one spot unit


# Start-up: Mao and Humphrey, "A Performance Study on the VM Startup Time in the Cloud" (CLOUD 2012): 97 s for Linux on
# EC2. An upper figure: Hao et al. (arXiv 2107.03467) found AWS much quicker in 2021; what a job installs is not in it.
STARTUP_S = 97.0
# Billing: AWS, "Announcing Amazon EC2 per second billing" (2 October 2017): Linux on demand and spot, by the second, at
# least 60. Google Cloud, "VM instance pricing": by the second, at least 60.
BILLING_S, MINIMUM_S = 1.0, 60.0
# Interruptions of a core: the lowest band of the AWS Spot Instance Advisor, where such instances mostly are, is up to
# 5 % a month (730 hours). Of a V100: units came and stayed for 4.26 hours, the median over the nine zones of
# benchmarks/spot. Of other GPUs no trace is known; assumption: as V100s.
CORE_INTERRUPTIONS, GPU_INTERRUPTIONS = 0.05 / 730, 1 / 4.26


def terms_of(device: str) -> RentalTerms:
    """Return the terms of the offers of a device. Nothing is started or billed so on the machines of the paper."""
    if device in (LOCAL, "kunlun"):  # the paper's own servers, and a price that is an assumption
        return RentalTerms(0.0, 0.0, 0.0, 0.0)
    is_core = device in CATALOGUE and CATALOGUE[device].torch_device == LOCAL
    return RentalTerms(STARTUP_S, BILLING_S, MINIMUM_S, CORE_INTERRUPTIONS if is_core else GPU_INTERRUPTIONS)


@dataclass(frozen=True)
class MachineOffer:
    """A machine that is sold whole, at a price; its cores are those of the cluster file, if that says them."""

    device: str
    units: int
    usd_per_hour: float
    memory_gb: float  # main memory
    port_gbps: float

    def fields(self) -> dict[str, object]:
        """The fields of a machine in a cluster file."""
        terms = terms_of(self.device)
        return {
            "units": {self.device: self.units},
            "usd_per_hour": self.usd_per_hour,
            "memory_gb": self.memory_gb,
            "port_gbps": self.port_gbps,
            "startup_s": terms.startup_s,
            "billing_s": terms.billing_s,
            "minimum_s": terms.minimum_s,
        }


# Prices: as LISTED; p3.16xlarge: 24.48 USD, AWS us-east-1. Memory (GiB as GB) and ports: AWS's instance pages.
MACHINES: dict[str, MachineOffer] = {
    "p3.16xlarge": MachineOffer("v100", 8, 24.48, 488, 25),
    "p4d.24xlarge": MachineOffer("a100", 8, 21.957642, 1152, 400),
    "p5.48xlarge": MachineOffer("h100", 8, 55.04, 2048, 3200),
}
"""Machines in which accelerators are sold by eight."""


def _offers() -> dict[str, Offer]:
    offers = []
    for device, listing in LISTED.items():
        offers.append(Offer(device, device, listing.usd_per_hour))
        if listing.spot_usd_per_hour is not None:
            offers.append(Offer(f"{device}-spot", device, listing.spot_usd_per_hour, spot=True))
    return {offer.name: offer for offer in offers}


OFFERS: dict[str, Offer] = _offers()


def find_offer(name: str) -> Offer:
    """Return the offer `name`; raises ConfigError, which names the nearest one and the command that lists them."""
    if name in OFFERS:
        return OFFERS[name]
    near = get_close_matches(name, OFFERS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"{name!r} is not an offer of the catalogue: {hint}`heterps prices` lists them")


def device_of(offer: Offer) -> DeviceSpec | None:
    """The catalogue entry of the offer's device; None for a core of this machine, which is measured."""
    return CATALOGUE.get(offer.device)
