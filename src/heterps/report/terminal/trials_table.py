"""The trials of a measured plan on the console: what was predicted for each, what was measured, and what is best.

     plan                        predicted   measured  error    USD  measured
✓ 1  cpu×5 [embedding]             699,029    641,200  +9.0%   1.06      1.15
     → v100×1 [cat..deep.logit]
     servers: cpu×1
"""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heterps.planning.online import Attempt, Measurement
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile
from heterps.report.terminal.plan_table import add_option, draw_stages, hours, usd
from heterps.report.terminal.tables import add_figures, plain_table

LATE = 0.05
"""Share of the time by which an emulating machine may be late before its figures are doubted."""


def show_trials(console: Console, found: Measurement, profile: Profile, throughput: float) -> None:
    """Prints one row per trial, the best one ticked, then what that means; `throughput` is the floor."""
    console.print(_table(found, profile))
    for line, style in _verdict(found, throughput):
        console.print(Padding(Text(line, style=style), (0, 0, 0, 2), expand=False))


def trials_as_json(found: Measurement) -> dict[str, Any]:
    """The fields of `heterps plan --measure --json`."""
    return {
        "chosen": _fields(found.plan),
        "keeps_floor": found.best.keeps_floor,
        "emulated": _is_emulated(found),
        "optimum": _fields(found.optimum),
        "reached": found.reached,
        "error_before": found.error_before,
        "error_after": found.error_after,
        "stopped_by": found.stopped_by,
        "trials": [_trial(attempt) for attempt in found.attempts],
    }


def _trial(attempt: Attempt) -> dict[str, Any]:
    shown: dict[str, Any] = {"plan": _fields(attempt.plan), "keeps_floor": attempt.keeps_floor}
    if attempt.trial is None:
        return {**shown, "measured": None, "reason": attempt.reason}
    trial = attempt.trial
    measured = {
        "throughput": trial.throughput,
        "hours": attempt.hours,
        "usd": attempt.usd,
        "batches": trial.num_batches,
        "seconds": trial.seconds,
        "emulated": trial.is_emulated,
        "late": trial.late,
        "stages": [
            {"compute_s": s.compute_s, "communicate_s": s.communicate_s, "wait_s": s.wait_s} for s in trial.stages
        ],
    }
    return {**shown, "error": attempt.error, "measured": measured}


def _fields(plan: Plan) -> dict[str, Any]:
    return plan.model_dump(mode="json", exclude_none=True)


def _is_emulated(found: Measurement) -> bool:
    return any(attempt.trial is not None and attempt.trial.is_emulated for attempt in found.attempts)


def _table(found: Measurement, profile: Profile) -> Table:
    table = plain_table()
    table.add_column("", width=1)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("plan", overflow="fold")
    add_figures(table, "predicted", "measured", "error", "USD", "measured")
    for number, attempt in enumerate(found.attempts, 1):
        add_option(table, str(number), *_cells(attempt, profile), is_chosen=attempt is found.best)
    return table


def _cells(attempt: Attempt, profile: Profile) -> tuple[RenderableType, ...]:
    plan = attempt.plan
    start = draw_stages(plan, profile, with_servers=True), f"{plan.throughput:,.0f}"
    if attempt.trial is None:
        return *start, Text("failed", style="red"), "-", usd(plan.usd), "-"
    below = "" if attempt.keeps_floor else "↓"
    return *start, f"{below}{attempt.throughput:,.0f}", f"{attempt.error:+.1%}", usd(plan.usd), usd(attempt.usd)


def _verdict(found: Measurement, throughput: float) -> list[tuple[str, str]]:
    best, optimum = found.best, found.optimum
    how = "measured, emulated" if _is_emulated(found) else "measured"
    lines = [
        (
            f"Best: {usd(best.usd)} USD in {hours(best.hours)} hours at {best.throughput:,.0f} samples/s ({how}; "
            f"{throughput:,.0f} asked).",
            "bold",
        )
    ]
    if not best.keeps_floor:
        lines.append(("No plan that was tried keeps the throughput that was asked: this is the fastest.", "yellow"))
    lines += [
        (
            f"Predicted optimum of the profile as given: {usd(optimum.usd)} USD at {optimum.throughput:,.0f} "
            f"samples/s{_where(found)}.",
            "",
        ),
        (
            f"Predictions were off by {found.error_before:.1%} on average with the profile as given, and are by "
            f"{found.error_after:.1%} with the corrected one"
            + (f"; runs reach {found.reached:.0%} of their slowest stage." if found.reached < 0.995 else "."),
            "",
        ),
    ]
    if any(not a.keeps_floor and a.trial is not None for a in found.attempts):
        lines.append(("↓ below the throughput that was asked.", "dim"))
    if _is_emulated(found):
        lines.append(("Trials were emulated: they follow the profile, and say nothing of real units.", "dim"))
    for number, attempt in enumerate(found.attempts, 1):
        if attempt.trial is None:
            lines.append((f"Trial {number} failed: {attempt.reason}", "red"))
        elif attempt.trial.late > LATE:
            lines.append(
                (
                    f"Trial {number}: this machine was too slow to emulate its units, which look slower than they are. "
                    "Raise emulation.scale of the job.",
                    "yellow",
                )
            )
    if found.stopped_by is not None:
        lines.append((f"Ended by {found.stopped_by} before all trials were done.", "yellow"))
    return lines


def _where(found: Measurement) -> str:
    """A phrase on which trial was of the predicted optimum."""
    for number, attempt in enumerate(found.attempts, 1):
        if (attempt.plan.stages, attempt.plan.servers) == (found.optimum.stages, found.optimum.servers):
            measured = f", measured {attempt.throughput:,.0f}" if attempt.trial is not None else ""
            return f" (trial {number}{measured})"
    return " (not tried)"
