"""The price list, and a cluster beside it: as tables for the console and as plain data for --json.

device   what it is    torch   on demand    spot   fp32 TFLOP/s   memory GB/s   GB   port Gb/s   sold as
v100     NVIDIA V100   cuda         2.42    1.36           15.7           900   16         3.1   8 in p3.16xlarge

resource   device   usd/h     list   limit
v100       v100     2.10 *    2.42      32       * not the list price
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from heterps.catalogue import CATALOGUE, LOCAL
from heterps.config import Cluster
from heterps.offers import (
    CORE_INTERRUPTIONS,
    EGRESS_USD_PER_GB,
    GPU_INTERRUPTIONS,
    LISTED,
    MACHINES,
    MINIMUM_S,
    OFFERS,
    SOURCE,
    STARTUP_S,
    device_of,
    terms_of,
)
from heterps.report.terminal.tables import add_figures, plain_table

FACTS = {"memory_gb": "GB", "port_gbps": "Gb/s", "startup_s": "start s", "billing_s": "billed by s"}
"""Facts about a unit of a cluster, with the heads of their columns, which are shown if any resource has them."""
NARROW = 110
"""Width in characters below which the table leaves out the devices' full names."""
WIDE = 140
"""Width from which the table says in which machines units are sold."""


def price_list() -> list[dict[str, Any]]:
    """One row per device. A core of this machine has no figures, because it is measured."""
    rows = []
    for name in (LOCAL, *CATALOGUE):
        device, spot = device_of(OFFERS[name]), OFFERS.get(f"{name}-spot")
        rows.append(
            {
                "device": name,
                "title": device.title if device else "a core of this machine",
                "torch_device": OFFERS[name].torch_device,
                "usd_per_hour": OFFERS[name].usd_per_hour,
                "spot_usd_per_hour": spot.usd_per_hour if spot else None,
                "peak_flops": device.peak_flops if device else None,
                "memory_bytes_per_s": device.memory_bytes_per_s if device else None,
                "link_bytes_per_s": device.link.bytes_per_s if device else None,
                "memory_gb": round(LISTED[name].memory_gb, 1),
                "port_gbps": round(LISTED[name].unit_port_gbps, 2),
                "egress_zone_usd_per_gb": EGRESS_USD_PER_GB["zone"],
                "egress_region_usd_per_gb": EGRESS_USD_PER_GB["region"],
                "machine": LISTED[name].machine,
                "units_per_machine": LISTED[name].units,
                "machine_usd_per_hour": MACHINES[LISTED[name].machine].usd_per_hour
                if LISTED[name].machine in MACHINES
                else None,
                **asdict(terms_of(name)),
            }
        )
    return rows


def rented_list(cluster: Cluster) -> list[dict[str, Any]]:
    """One row per resource of the cluster, with the list price of an offer; `overridden`: the two differ."""
    rows = []
    for name, resource in cluster.resources.items():
        offer = cluster.offer(name)
        rows.append(
            {
                "resource": name,
                "offer": offer.name if offer else None,
                "torch_device": resource.device,
                "usd_per_hour": resource.usd_per_hour,
                "list_usd_per_hour": offer.usd_per_hour if offer else None,
                "overridden": offer is not None and offer.usd_per_hour != resource.usd_per_hour,
                "limit": resource.limit,
                "zone": resource.zone,
                "memory_gb": resource.memory_gb,
                "port_gbps": resource.port_gbps,
                "startup_s": resource.startup_s,
                "billing_s": resource.billing_s,
                "minimum_s": resource.minimum_s,
                "spot": resource.spot.model_dump() if resource.spot is not None else None,
                "machines": {
                    machine_name: machine.model_dump(exclude_none=True)
                    for machine_name, machine in cluster.machines.items()
                    if name in machine.units
                },
            }
        )
    return rows


def price_table(width: int) -> RenderableType:
    table = plain_table()
    table.add_column("device", no_wrap=True)
    if width >= NARROW:
        table.add_column("what it is", no_wrap=True, style="dim")
    table.add_column("torch")
    add_figures(table, "USD/h\non demand", "USD/h\nspot", "fp32\nTFLOP/s", "memory\nGB/s", "GB", "port\nGb/s")
    if width >= WIDE:
        table.add_column("sold as", no_wrap=True, style="dim")
    for row in price_list():
        table.add_row(
            row["device"],
            *([row["title"]] if width >= NARROW else []),
            row["torch_device"],
            usd(row["usd_per_hour"]),
            usd(row["spot_usd_per_hour"]),
            _scaled(row["peak_flops"], 1e12),
            _scaled(row["memory_bytes_per_s"], 1e9),
            f"{row['memory_gb']:g}",
            f"{row['port_gbps']:.3g}",
            *([_sold_as(row)] if width >= WIDE else []),
        )
    notes = (
        f"A unit is one GPU, or one core. List prices: {SOURCE}.",
        "Name an offer in the cluster file, `v100: {limit: 8}` or `v100-spot: {limit: 8}`, and write usd_per_hour "
        "where you pay another price.",
        "Memory and port are those of a unit; a plan counts them if the cluster file says memory_gb and port_gbps.",
        f"Cloud offers are billed by the second, at least {MINIMUM_S:g} s, and take {STARTUP_S:g} s to start. A spot "
        f"core is taken back {CORE_INTERRUPTIONS:.2g} times an hour, a spot GPU {GPU_INTERRUPTIONS:.2g} times: say "
        "startup_s, billing_s, minimum_s and spot.",
        f"Sold whole: {'; '.join(map(_machine, MACHINES))}. Under `machines` of the cluster file they need a limit "
        "only: `p3.16xlarge: {limit: 4}`.",
        f"Traffic costs {usd(EGRESS_USD_PER_GB['zone'])} USD per GB to another zone of a region, and "
        f"{usd(EGRESS_USD_PER_GB['region'])} to another region; a plan counts it if the file says zone and "
        "egress_usd_per_gb.",
    )
    return Group(table, *(Text(note, style="dim") for note in notes))


def cluster_table(cluster: Cluster) -> RenderableType:
    table = plain_table()
    table.add_column("resource", overflow="fold")
    table.add_column("offer", no_wrap=True)
    table.add_column("torch")
    add_figures(table, "USD/h", "list", "limit")
    rows = rented_list(cluster)
    has_zones = any(row["zone"] for row in rows)
    shown = {key: head for key, head in FACTS.items() if any(row[key] for row in rows)}
    add_figures(table, *shown.values())
    if has_zones:
        table.add_column("zone", overflow="fold")
    for row in rows:
        table.add_row(
            Text(row["resource"]),
            row["offer"] or "-",
            Text(row["torch_device"]),
            f"{usd(row['usd_per_hour'])}{' *' if row['overridden'] else '  '}",
            usd(row["list_usd_per_hour"]),
            f"{row['limit']:,}",
            *("-" if not row[key] else f"{row[key]:g}" for key in shown),
            *([Text(row["zone"] or "-")] if has_zones else []),
        )
    notes = [f"Servers run on {cluster.server_resource}.", *_also_rented(cluster)]
    if cluster.egress_usd_per_gb:
        notes.append(f"Traffic that leaves a zone costs {_egress(cluster)} USD per GB.")
    if any(row["overridden"] for row in rows):
        notes.append("* not the list price: the cluster file says otherwise.")
    if any(row["offer"] is None for row in rows):
        notes.append("- no offer of the catalogue: all about it is in the cluster file.")
    return Group(table, *(Text(note, style="dim") for note in notes))


def _also_rented(cluster: Cluster) -> Iterator[str]:
    """Yield a line for the spot units of each resource, and for each machine."""
    for name, resource in cluster.resources.items():
        if (spot := resource.spot) is not None:
            often = f"{spot.interruptions_per_hour:g} times an hour"
            yield f"Spot units of {name}: {spot.limit:,} at {usd(spot.usd_per_hour)} USD/h, taken back {often}."
    for name, machine in cluster.machines.items():
        units = " + ".join(f"{count} {unit}" for unit, count in machine.units.items())
        facts = {"GB": machine.memory_gb, "Gb/s": machine.port_gbps, "s to start": machine.startup_s or None}
        told = "".join(f", {value:,g} {unit}" for unit, value in facts.items() if value is not None)
        yield f"Machine {name}: {units}, {machine.limit:,} at {usd(machine.usd_per_hour)} USD/h{told}."


def _machine(name: str) -> str:
    """A machine of the catalogue, in words."""
    machine = MACHINES[name]
    return f"{name}, {machine.units} {machine.device} for {usd(machine.usd_per_hour)} USD/h"


def _egress(cluster: Cluster) -> str:
    prices = cluster.egress_usd_per_gb
    if not isinstance(prices, dict):
        return usd(prices)
    return ", ".join(f"{usd(price)} from {a} to {b}" for a, row in prices.items() for b, price in row.items())


def _sold_as(row: dict[str, Any]) -> str:
    return row["machine"] if row["units_per_machine"] == 1 else f"{row['units_per_machine']} in {row['machine']}"


def usd(value: float | None) -> str:
    """An amount in USD: cents, or four decimals below ten cents, where cores differ."""
    return "-" if value is None else f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.4f}"


def _scaled(value: float | None, unit: float) -> str:
    if value is None:
        return "measured"
    scaled = value / unit
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.1f}" if scaled >= 1 else f"{scaled:.2f}"
