"""Plans, profiles and comparisons to show."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.profiling.profile import Cost, LayerProfile, Profile


def make_plan(*stages: tuple[str, int, int], method: str = "exact", servers: int = 0, **fields: float) -> Plan:
    """Of stages (resource, number of layers, units)."""
    made, first = [], 0
    for resource, num_layers, count in stages:
        made.append(Stage(first=first, last=first + num_layers - 1, resource=resource, count=count))
        first += num_layers
    bill = {"throughput": 1000.0, "hours": 1.0, "usd": 2.0} | fields
    bottleneck = f"everything on {stages[0][0]}"
    return Plan.model_validate(
        {
            "method": method,
            "stages": made,
            "servers": PlannedServers(resource="cpu", count=servers),
            "bottleneck": bottleneck,
        }
        | bill
    )


def make_profile(num_layers: int, *resources: str) -> Profile:
    costs = {name: Cost(compute_s=1.0, sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0) for name in resources}
    layers = (LayerProfile(name=f"layer{i}", costs=costs) for i in range(num_layers))
    return Profile(model="m", batch_size=100, layers=tuple(layers))


def recording_console(width: int, *, colours: bool = False) -> Console:
    return Console(
        file=StringIO(),
        width=width,
        highlight=False,
        force_terminal=colours,
        color_system="truecolor" if colours else None,
    )


def text_of(console: Console) -> str:
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()
