"""What a real plan rents, and how its policy and batch size compare with others, on the console."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heterps.planning.cost import Problem
from heterps.planning.plan import Plan
from heterps.planning.real import GB
from heterps.planning.tables import shard_bytes, table_bytes
from heterps.report.terminal.plan_table import hours, usd
from heterps.report.terminal.profile_table import size
from heterps.report.terminal.tables import add_figures, plain_table


def show_rented(console: Console, problem: Problem, plan: Plan) -> None:
    """Print what is rented, for which policy, and how many servers the tables need."""
    if plan.rented is None:
        return
    rented = ", ".join(f"{count:,} {name}" for name, count in plan.rented.items())
    price = plan.usd_per_hour(problem.cluster)
    console.print(Text(f"  Rented: {rented}, for {usd(price)} USD an hour."), soft_wrap=False)
    if plan.egress_usd is not None:
        console.print(Text(f"  Traffic between zones: {usd(plan.egress_usd)} of {usd(plan.usd)} USD."))
    if plan.sync is not None:
        lanes = ""
        if plan.lanes is not None and problem.in_rounds:
            lanes = f", each batch in {plan.lanes:,} micro-batches"
        elif plan.lanes is not None:
            lanes = f", {plan.lanes:,} batches under way: gradients are about {plan.lanes - 1:,} updates old"
        console.print(Text(f"  Policy: {plan.sync}{lanes}."))
    if problem.least_servers > 1:
        console.print(Text(f"  The tables need {problem.least_servers} servers{_sizes(problem)}."))
    _show_disk(console, problem, plan)


def _sizes(problem: Problem) -> str:
    """The bytes of tables that are expected, and those that servers must hold in all but 1 of 20 cases."""
    assert problem.conditions is not None
    expected, most = (
        sum(table_bytes(problem.profile, problem.samples, problem.conditions, expected=one)) for one in (True, False)
    )
    return f": {size(expected)} are expected, and there is room for {size(most)}" if most > expected else ""


def show_expected(console: Console, plan: Plan, batch_size: int) -> None:
    """Print the interval of the throughput of a plan, with the terms that it rests on."""
    if plan.prediction is None:
        return
    _, low, high = plan.prediction.throughput(batch_size)
    rest = "overlapping" if plan.prediction.overhead_s < 0 else "waiting and messages"
    terms = {
        "layers": plan.prediction.compute_s,
        "servers": plan.prediction.servers_s,
        "communication": plan.prediction.network_s,
        rest: plan.prediction.overhead_s,
    }
    told = ", ".join(f"{name} {1000 * seconds:,.3g} ms" for name, seconds in terms.items() if seconds)
    text = (
        f"Expected: {rounded(low)} to {rounded(high)} samples/s in 9 of 10 runs. A batch at the bottleneck: {told}. "
        f"This rests on {plan.prediction.basis}."
    )
    console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))


def rounded(value: float) -> str:
    """An end of an interval, with two digits that matter."""
    return f"{float(f'{value:.2g}'):,.0f}"


def _show_disk(console: Console, problem: Problem, plan: Plan) -> None:
    """Print what servers keep on disk, and the field of the job that makes them."""
    if problem.conditions is None or problem.conditions.rows_in_memory in (None, 1) or not plan.servers.count:
        return
    held = shard_bytes(problem.profile, problem.samples, problem.conditions, plan.servers.count)
    paid = f", for {usd(problem.disk_usd)} USD an hour" if problem.disk_usd else ""
    console.print(
        Text(
            f"  Each server has {held.disk / GB:,.3g} GB of rows on disk{paid}: give the job tiers.memory_bytes "
            f"{math.ceil(held.rows):,}."
        )
    )


def show_reached(console: Console, problem: Problem) -> None:
    """Print whether predictions count on what trials of plans reached, or why they do not."""
    share, policy = problem.profile.reached, problem.profile.reached_for
    if share is None:
        return
    trials = f"Trials with {policy}" if policy else "Trials"
    of = f"it is of --sync {policy}" if policy else "it is of plans without --sync"
    if policy is None and problem.conditions is None:
        of = "the paper's bill was asked for"
    counts = "count on as much" if problem.reached == share else f"leave that out, since {of}"
    told = f"{trials} reached {share:.0%} of the throughput of their slowest stage; the figures {counts}."
    console.print(Padding(Text(told), (0, 0, 0, 2), expand=False))


def show_variants(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print a line for each policy and batch size."""
    table: Table = plain_table()
    table.add_column("policy")
    add_figures(table, "batch", "samples/s", "hours", "USD", "staleness")
    for row in rows:
        cells = ["-"] * 4
        if row["usd"] is not None:
            stale = "-" if row["staleness"] is None else f"{row['staleness']:,.0f}"
            cells = [f"{row['throughput']:,.0f}", hours(row["hours"]), usd(row["usd"]), stale]
        table.add_row(row["sync"] or "-", f"{row['batch_size']:,}", *cells)
    console.print(table)
    console.print("Staleness is expected, in updates; how it changes learning is not predicted.", style="dim")
