"""A profile as a table that fits the screen: as many figures of each resource as its width allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heterps.planning.prediction import NORMAL_90
from heterps.profiling.profile import Cost, LayerProfile, Profile
from heterps.report.figures import plural
from heterps.report.names import shortened

NOISY = 0.2
CELL = 8  # width of a figure with its padding
NAME, KIND, SIZE = 16, 12, 9


@dataclass(frozen=True)
class Figure:
    """One column of the table for a resource."""

    title: str
    value: Callable[[Cost], float]
    is_seconds: bool = True


COMPUTE = Figure("compute", lambda cost: cost.compute_s)
SYNC = Figure("sync", lambda cost: cost.sync_s)
INPUT = Figure("input", lambda cost: cost.input_s)
ALPHA = Figure("alpha", lambda cost: cost.alpha, is_seconds=False)
LEVELS = ((COMPUTE, SYNC, INPUT, ALPHA), (COMPUTE, SYNC, INPUT), (COMPUTE, SYNC), (COMPUTE,))


def profile_table(profile: Profile, width: int) -> RenderableType:
    """A table with layers down and resources across; resources without room get a table of their own below."""
    resources = profile.resources
    room = width - NAME - KIND - 2 * SIZE
    first = max(CELL, min(max(map(len, resources)), NAME) + 1)  # the first figure's column carries the resource's name

    def needed(level: tuple[Figure, ...]) -> int:
        return first + CELL * (len(level) - 1)

    figures = next((level for level in LEVELS if needed(level) * len(resources) <= room), LEVELS[-1])
    per_table = max(room // needed(figures), 1)
    groups = [resources[i : i + per_table] for i in range(0, len(resources), per_table)]
    tables = [_table(profile, group, figures) for group in groups]
    title = Text.assemble(
        (profile.model, "bold"), f": a batch of {profile.batch_size:,}, forward and backward on one unit, in ms"
    )
    return Group(title, *tables, *_notes(profile))


def _table(profile: Profile, resources: tuple[str, ...], figures: tuple[Figure, ...]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0), show_footer=True, footer_style="bold")
    table.add_column("layer", "all", no_wrap=True, vertical="bottom")
    table.add_column("kind", no_wrap=True, style="dim")
    weight_bytes = sum(layer.weight_bytes for layer in profile.layers)
    table.add_column("weights", size(weight_bytes), justify="right", no_wrap=True)
    for resource in resources:
        for figure in figures:
            name = shortened(resource, NAME) if figure is figures[0] else ""
            head = Text.assemble((name, "bold"), f"\n{figure.title}", justify="right")
            table.add_column(head, _total(profile, resource, figure), justify="right", no_wrap=True)
    server_ms = milliseconds(sum(layer.server_s for layer in profile.layers))
    table.add_column(Text("\nserver", justify="right"), server_ms, justify="right", no_wrap=True)
    for layer in profile.layers:
        cells = [_cell(layer, resource, figure) for resource in resources for figure in figures]
        server = milliseconds(layer.server_s) if layer.server_s else ""
        table.add_row(
            shortened(layer.name, NAME),
            layer.kind,
            size(layer.weight_bytes) if layer.weight_bytes else "",
            *cells,
            server,
        )
    return table


def _cell(layer: LayerProfile, resource: str, figure: Figure) -> str:
    if resource not in layer.costs:
        return "-"
    cost = layer.costs[resource]
    value = figure.value(cost)
    if not figure.is_seconds:
        return f"{value:.2f}"
    return f"{'~' if cost.estimated else ''}{milliseconds(value)}" if value else ""


def _total(profile: Profile, resource: str, figure: Figure) -> str:
    """The sum over the layers where one makes sense: of the inputs, only those at borders of stages are paid."""
    if figure not in (COMPUTE, SYNC):
        return ""
    total = sum(figure.value(layer.costs[resource]) for layer in profile.layers if resource in layer.costs)
    return f"{'~' if profile.estimated(resource) else ''}{milliseconds(total)}"


def _notes(profile: Profile) -> list[Text]:
    notes = []
    speeds = [_speed(profile, resource) for resource in profile.resources]
    notes.append(f"One unit alone computes {', '.join(speeds)}.")
    if estimated := [name for name in profile.resources if profile.estimated(name)]:
        notes.append(f"~ estimated by roofline, because not in this machine: {', '.join(estimated)}.")
    costs = [cost for layer in profile.layers for cost in layer.costs.values()]
    for name in ("alpha", "beta"):
        if errors := [error for cost in costs if (error := getattr(cost, f"{name}_error")) is not None]:
            notes.append(f"The least sure {name} is known to ± {NORMAL_90 * max(errors):.2g} in 9 of 10 cases.")
    if profile.whole_steps:
        ratios = [f"{ratio:.2f} times on {plural(k, 'thread')}" for k, ratio in sorted(profile.whole_steps.items())]
        notes.append(f"Real steps in one process take the sum of their layers {', '.join(ratios)}.")
    for table in profile.tables or ():
        ahead = 10 * table.samples
        notes.append(
            f"Table {table.name}: {table.rows(table.samples):,.0f} rows after {table.samples:,} samples, about "
            f"{table.rows(ahead):,.0f} after {ahead:,}; {table.row_bytes} bytes a row."
        )
    for launcher, overhead in (profile.overheads or {}).items():
        taken = {"a batch besides": overhead.batch_s, "at its start": overhead.start_s}
        words = [f"{milliseconds(seconds)} ms {when}" for when, seconds in taken.items() if seconds]
        notes += [f"Launcher {launcher} takes {' and '.join(words)}."] if words else []
    noise = max(cost.spread for cost in costs)
    if noise > NOISY:
        notes.append(f"Times varied by up to {noise:.0%}: for steadier ones raise --budget or quieten the machine.")
    return [Text(note, style="dim") for note in notes]


def _speed(profile: Profile, resource: str) -> str:
    seconds = sum(layer.costs[resource].compute_s for layer in profile.layers if resource in layer.costs)
    mark = "~" if profile.estimated(resource) else ""
    return f"{mark}{profile.batch_size / seconds:,.0f} samples/s on {resource}" if seconds else f"nothing on {resource}"


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds, with three significant digits."""
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"


def size(num_bytes: float) -> str:
    """A number of bytes with its unit: 512 B, 1.5 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" or num_bytes >= 100 else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
