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


# Device: USD per hour on demand, and as spot capacity where there is a market. AWS: us-east-1 on 2026-08-22, as the
# SkyPilot catalog collected it from AWS's price list; spot prices are medians over the region's zones. Google Cloud:
# us-central1 on 2026-08-18, from the same catalog.
PRICES: dict[str, tuple[float, float | None]] = {
    LOCAL: (0.04, None),  # HeterPS paper (arXiv 2111.10635): a CPU core
    "v100": (2.42, 1.3569),  # HeterPS paper; spot: Google Cloud V100, without its host
    "a100": (2.745, 2.375),  # AWS p4d.24xlarge, 8 GPUs: 21.957642; spot 19.00
    "h100": (6.88, 2.592),  # AWS p5.48xlarge, 8 GPUs: 55.04; spot 20.74
    "t4": (0.526, 0.3599),  # AWS g4dn.xlarge, 1 GPU
    "l4": (0.8048, 0.7959),  # AWS g6.xlarge, 1 GPU
    "a10g": (1.006, 0.638),  # AWS g5.xlarge, 1 GPU
    "kunlun": (1.0, None),  # assumption: no public list price was found; write your own into the cluster file
    "cascade-lake": (0.085, 0.0309),  # AWS c5.large, 1 core
    "ice-lake": (0.085, 0.0387),  # AWS c6i.large, 1 core
    "sapphire-rapids": (0.08925, 0.0318),  # AWS c7i.large, 1 core
    "milan": (0.0765, 0.0285),  # AWS c6a.large, 1 core
    "genoa": (0.05132, 0.0125),  # AWS c7a.medium, 1 core
    "graviton3": (0.0363, 0.0138),  # AWS c7g.medium, 1 core
}


def _offers() -> dict[str, Offer]:
    offers = []
    for device, (on_demand, spot) in PRICES.items():
        offers.append(Offer(device, device, on_demand))
        if spot is not None:
            offers.append(Offer(f"{device}-spot", device, spot, spot=True))
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
