"""The frontier on a terminal: a table of its plans, and a plot of cost against throughput.

1.53 USD |                          ┊                   ●
         |                          ┊             ······
         |                          ┊    ●········          ● a plan; dots lead to it over the floors
         |       ●···············●··┊····                     for which it is the cheapest
       0 |                          ┊
         +---------------------------------------------
         2,367,681                  ▲ floor             8,742,162 samples/s
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from heterps.planning.frontier import Frontier
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile
from heterps.report.terminal.plan_table import add_option, figures, usd
from heterps.report.terminal.stage_bar import StageBar, make_keys
from heterps.report.terminal.tables import add_figures, plain_table

HEIGHT, WIDEST, BAR = 12, 100, 18


def show_frontier(console: Console, frontier: Frontier, profile: Profile, floor: float) -> None:
    """Prints the plot and the table; the plan for `floor`, the throughput that was asked for, is ticked."""
    points = [(plan.throughput, plan.usd) for plan in frontier.plans]
    for line in plot(points, floor, min(console.width, WIDEST), HEIGHT):
        console.print(line, markup=False, no_wrap=True, overflow="crop")
    console.print()
    keys = make_keys(profile.resources)
    table = plain_table()
    table.add_column("", width=1)
    add_figures(table, "samples/s", "USD", "hours")
    table.add_column("stages", max_width=BAR)
    table.add_column("units", overflow="fold")
    table.add_column("servers", justify="right")
    asked = chosen_for(frontier.plans, floor)
    for plan in frontier.plans:
        samples, duration, cost = figures(plan)
        bar = StageBar(plan, keys, with_counts=False)
        units = " ".join(f"{stage.count}{keys.letters[stage.resource]}" for stage in plan.stages)
        add_option(table, samples, cost, duration, bar, units, str(plan.servers.count), is_chosen=plan is asked)
    console.print(table)
    console.print(keys.legend(stage.resource for plan in frontier.plans for stage in plan.stages))
    console.print(Text(meaning(frontier, floor)))


def chosen_for(plans: Sequence[Plan], floor: float) -> Plan | None:
    """The cheapest of the plans that meets the floor."""
    return next((plan for plan in plans if plan.throughput >= floor), None)


def meaning(frontier: Frontier, floor: float) -> str:
    """What the points of the frontier are, in words, and which of them is ticked."""
    return points_meaning(frontier, f" ✓ is the one for {floor:,.0f} samples/s.")


def points_meaning(frontier: Frontier, ticked: str = "") -> str:
    """What the points of the frontier are, in words."""
    between = "no other is" if frontier.complete else "there are more"
    proof = "" if frontier.proven else " Not all of them are proven to be the cheapest: their search was cut short."
    return (
        "Each plan is the cheapest for its throughput, from the cheapest of all to the fastest within the limits; "
        f"{between} between them.{ticked}{proof}"
    )


def plot(points: Sequence[tuple[float, float]], floor: float, width: int, height: int) -> list[str]:
    """Plots (throughput, usd) of the plans, slowest first, as lines of at most `width` characters."""
    low, high = min(floor, points[0][0]), max(floor, points[-1][0])
    top = max(y for _, y in points) or 1.0
    label = f"{usd(top)} USD "
    room = width - len(label) - 2

    def across(x: float) -> int:
        return round((x - low) / (high - low) * (room - 1)) if high > low else 0

    grid = [[" "] * room for _ in range(height)]
    for row in grid:
        row[across(floor)] = "┊"
    start = 0
    for x, y in points:
        row = grid[round((1 - y / top) * (height - 1))]
        for column in range(start, across(x)):
            row[column] = "·" if row[column] == " " else row[column]
        start = across(x)
    for x, y in points:
        grid[round((1 - y / top) * (height - 1))][across(x)] = "●"
    heads = [label, *[" " * len(label)] * (height - 2), "0 ".rjust(len(label))]
    lines = [f"{head}│{''.join(row)}".rstrip() for head, row in zip(heads, grid, strict=True)]
    return [
        *lines,
        f"{' ' * len(label)}└{'─' * room}",
        f"{' ' * (len(label) + 1)}{_below(low, high, floor, room, across(floor))}",
    ]


def _below(low: float, high: float, floor: float, room: int, column: int) -> str:
    """The labels of the throughput axis: the floor, and the ends where there is room."""
    line = [" "] * room
    asked, end = f"{floor:,.0f} asked", f"{high:,.0f} samples/s"
    after, before = (column, f"▲ {asked}"), (column - len(asked) - 1, f"{asked} ▲")
    alone = (column, "▲")  # a label has room on neither side
    marks = [
        after if column + len(asked) + 2 <= room else before if before[0] >= 0 else alone,
        (room - len(end), end),
        (0, f"{low:,.0f}"),
    ]
    for start, text in marks:
        if start >= 0 and not "".join(line[max(start - 2, 0) : start + len(text) + 2]).strip():
            line[start : start + len(text)] = text
    return "".join(line).rstrip()
