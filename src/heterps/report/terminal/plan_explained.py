"""The explanation of a plan in words: what is busy, what the next plans would change, and what the cost depends on."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from heterps.planning.api import PROVEN
from heterps.planning.explain import Explanation, NeighbourPlan, Sensitivity, Station
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile
from heterps.report.figures import plural, rate, usd
from heterps.report.names import Ranges
from heterps.report.terminal.plan_table import ESTIMATED
from heterps.report.terminal.tables import add_figures, plain_table

MOST_NAMED = 6


def show_explanation(console: Console, told: Explanation, plan: Plan, profile: Profile, floor: float) -> None:
    """Prints why the plan is as it is; `floor` is the throughput that was asked for. A cheaper plan comes first."""
    beaten = told.cheaper is not None and told.cheaper.meets_floor
    if beaten:
        console.print(Text.assemble(("\nBeaten by: ", "bold"), cheaper_words(told.cheaper, plan, profile)))
    console.print(Text(f"\nStations, for a batch of {profile.batch_size:,} samples", style="bold"))
    console.print(_stations(told, set(plan.estimated)))
    side = f" ({told.bottleneck.side})" if told.bottleneck.comm_s else ""
    console.print(Text(f"Bottleneck: {told.bottleneck.name} on {told.bottleneck.resource}{side}."))
    console.print()
    if not beaten:
        console.print(Text.assemble(("Next cheaper: ", "bold"), cheaper_words(told.cheaper, plan, profile)))
    console.print(Text.assemble(("Next faster: ", "bold"), faster_words(told.faster, plan, profile)))
    of = "the cost" if plan.usd <= told.optimal_usd * (1 + PROVEN) else "the cheapest plan's cost"
    console.print(Text(f"\nWhat {of} of {usd(told.optimal_usd)} hangs on", style="bold"))
    console.print(_sensitivities(told, floor))
    for line in _of_no_matter(told):
        console.print(Text(line, style="dim"))


def cheaper_words(other: NeighbourPlan | None, plan: Plan, profile: Profile) -> str:
    if other is None:
        return "none; no plan costs less, whatever the throughput."
    where = f"for the throughput asked, by method {other.plan.method}" if other.meets_floor else "fewer than asked"
    return f"{change_words(other, profile)}: {_bill(other, plan)} ({where})."


def faster_words(other: NeighbourPlan | None, plan: Plan, profile: Profile) -> str:
    if other is None:
        return "none; no plan within the limits is faster."
    return f"{change_words(other, profile)}: {_bill(other, plan)}."


def _bill(other: NeighbourPlan, plan: Plan) -> str:
    share = f" ({abs(other.usd) / plan.usd:.1%})" if plan.usd else ""
    word = "less" if other.usd < 0 else "more"
    return f"{usd(abs(other.usd))}{share} {word}, {rate(other.plan.throughput)} samples/s"


def change_words(other: NeighbourPlan, profile: Profile) -> str:
    """The units and the layers that another plan changes, in words."""
    names = [layer.name for layer in profile.layers]
    units = [f"{abs(n)} {name} {'more' if n > 0 else 'less'}" for name, n in other.units.items()]
    moves = [
        f"{names[m.first]}{f'..{names[m.last]}' if m.last > m.first else ''} from {m.before} to {m.after}"
        for m in other.moves[:MOST_NAMED]
    ]
    if len(other.moves) > MOST_NAMED:
        moves.append(f"{plural(len(other.moves) - MOST_NAMED, 'more move')} of layers")
    return ", ".join([*units, *moves]) or "the same units, otherwise shared among stages and servers"


def _stations(told: Explanation, estimated: set[str]) -> Table:
    table = plain_table()
    table.add_column("station", overflow="fold")
    table.add_column("units", no_wrap=True)
    add_figures(table, "compute", "communication", "busy")
    for station in told.stations:
        mark = ESTIMATED if station.resource in estimated else ""
        table.add_row(*_station(station, mark), style="bold" if station is told.bottleneck else "")
    return table


def _station(station: Station, mark: str) -> tuple[RenderableType, ...]:
    return (
        Ranges(station.name),
        f"{station.resource}×{station.count}",
        f"{mark}{_milliseconds(station.compute_s)}",
        f"{mark}{_milliseconds(station.comm_s)}" if station.comm_s else "-",
        f"{station.busy:.1%}",
    )


def _sensitivities(told: Explanation, floor: float) -> Table:
    table = plain_table()
    table.add_column("input", no_wrap=True)
    table.add_column("+10%, or +1 unit", overflow="fold")
    table.add_column("-10%, or -1 unit", overflow="fold")
    for higher, lower in _pairs(told):
        if higher.usd == 0 == lower.usd and higher.of != "floor":
            continue
        name = {
            "price": f"price of {higher.name}, {usd(higher.before)}/h",
            "limit": f"limit of {higher.name}, {higher.before:,.0f}",
            "floor": f"floor, {floor:,.0f} samples/s",
        }[higher.of]
        table.add_row(name, _outcome(higher), _outcome(lower))
    return table


def _of_no_matter(told: Explanation) -> list[str]:
    idle = [higher for higher, lower in _pairs(told) if higher.usd == 0 == lower.usd]
    limits = [f"{s.name} ({s.before:,.0f})" for s in idle if s.of == "limit"]
    prices = [s.name for s in idle if s.of == "price"]
    return [
        *([f"Limits that do not bind: {_named(limits)}."] if limits else []),
        *([f"Prices that do not matter, 10% higher or lower: {_named(prices)}."] if prices else []),
    ]


def _named(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:MOST_NAMED])} and {more} more"


def _pairs(told: Explanation) -> list[tuple[Sensitivity, Sensitivity]]:
    """The two changes of each input as pairs: (higher, lower)."""
    return list(zip(told.sensitivities[::2], told.sensitivities[1::2], strict=True))


def _outcome(changed: Sensitivity) -> str:
    if changed.usd is None:
        return "no plan"
    if changed.usd == 0:
        return "no change"
    return f"{'+' if changed.usd > 0 else '-'}{usd(abs(changed.usd))}, {'new' if changed.plan_changes else 'same'} plan"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
