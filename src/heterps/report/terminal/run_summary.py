"""The summary of a run on a terminal, 80 columns wide: its result, what it means, and what to do next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps.report.emulated import MARK, banner, is_emulated, late_warnings, seconds_word
from heterps.report.figures import duration, plural, rate, ratio
from heterps.report.meaning import (
    DIVERGED,
    FINISHED,
    UNFINISHED,
    UNPREDICTED,
    against_teacher,
    compare,
    follows_plan,
    measures_in,
    metrics_of,
    named,
    promised,
    usd_per_billion,
    usd_without,
    verdict,
)
from heterps.report.stage_figures import in_step, recoveries
from heterps.report.terminal.profile_table import size
from heterps.report.terminal.stage_table import stage_table
from heterps.report.traffic import SAVED, Traffic, saved_messages, traffic_of, travelled

NAME, FIGURE = 18, 12
MAX_COLUMNS_NAMED = 3


def print_summary(console: Console, folder: Path, summary: dict[str, Any]) -> None:
    """Prints the summary of the run in `folder`; an incomplete run comes with the command that resumes it."""
    console.print()
    console.print(_headline(summary))
    if is_emulated(summary):
        console.print(Text.assemble((MARK, "bold yellow"), f": {banner(summary)}."))
    console.print(_quality(summary))
    if "validation" in summary:
        console.print(_validation(summary["validation"]))
    console.print(_prediction(summary))
    if follows_plan(summary):
        _print_stages(console, summary)
    if "plan" in summary:
        console.print(_promise(summary))
    if summary["rows"] or summary["table_bytes"]:
        console.print(_tables(summary))
    if (traffic := traffic_of(summary)) is not None:
        console.print(_traffic(traffic))
    for text in late_warnings(summary):
        console.print(Text.assemble(("\nwarning: ", "bold yellow"), f"{text}."))
    for text in summary.get("warnings", ()):
        console.print(Text.assemble(("\nwarning: ", "bold yellow"), text))
    for note in _data_notes(summary):
        console.print(note)
    if "learned" in summary:
        console.print(Text(f"\n{summary['learned']}"), soft_wrap=True)
    console.print(Text.assemble(("\nReport  ", "bold"), str(folder / "report.html")), soft_wrap=True)
    if summary["status"] not in FINISHED:
        console.print(_next_step(folder, summary), soft_wrap=True)


def _headline(summary: dict[str, Any]) -> Text:
    status = summary["status"]
    return Text.assemble(
        (summary["name"], "bold"),
        " ",
        (status, "bold red" if status == DIVERGED else "bold green" if status in FINISHED else "bold yellow"),
        f": {summary['samples']:,} samples in {duration(summary['seconds'])}, ",
        f"{rate(summary['samples_per_s'])} samples/s{seconds_word(summary)}",
    )


def _quality(summary: dict[str, Any]) -> Table:
    table = _grid(f"Quality on the {metrics_of(summary)}")
    for number, measure in enumerate(measures_in(summary)):
        value = summary.get(measure.field)
        judged = verdict(measure, value, summary) if value is not None else f"needs {measure.needs}"
        if number == 0:
            judged = against_teacher(summary) or judged
        table.add_row(measure.title, measure.show(value), Text(judged, style="dim"))
    return table


def _validation(validation: dict[str, Any]) -> Table:
    table = _grid(f"Validation, {plural(validation['count'], 'time')}")
    name, best, last = validation["metric"], validation["best"], validation["last"]
    title = named(name, best)
    table.add_row(f"Best {title}", ratio(best[name]), Text(f"after {best['samples']:,} samples", style="dim"))
    if last["samples"] != best["samples"]:
        end = "; it did not get better, so training ended" if validation["stopped_early"] else ""
        table.add_row(f"Last {title}", ratio(last[name]), Text(f"after {last['samples']:,} samples{end}", style="dim"))
    return table


def _prediction(summary: dict[str, Any]) -> Table:
    of = ", of the emulated units" if is_emulated(summary) else ""
    table = _grid(f"Predicted and measured{of}", num_figures=2)
    table.add_row("", Text("predicted", style="dim"), Text("measured", style="dim"), "")
    for c in compare(summary):
        predicted = "-" if c.predicted is None else c.show(c.predicted)
        table.add_row(c.title, predicted, c.show(c.measured), Text(c.verdict, style="dim"))
    table.add_row("", "", "", Text(usd_per_billion(summary), style="dim"))
    if without := usd_without(summary):
        table.add_row("", "", "", Text(without, style="dim"))
    if basis := summary.get("predicted_by"):
        table.add_row("", "", "", Text(f"predicted from {basis}", style="dim"))
    return table


def _print_stages(console: Console, summary: dict[str, Any]) -> None:
    of = " in the last interval" if summary["status"] == UNFINISHED else ""
    console.print(Text(f"\nStages{of}", style="bold"))
    console.print(stage_table(summary["stages"]))
    console.print(Text(f"Kept in step by {in_step(summary)}.", style="dim"))
    if restarts := summary.get("restarts"):
        console.print(Text(f"Resumed {plural(restarts, 'time')}; the shares are of the time since then.", style="dim"))
    if replaced := recoveries(summary):
        console.print(Text(replaced, style="dim"))
    if summary["predicted_throughput"] is None:
        console.print(Text.assemble(("\nnote: ", "bold"), f"{UNPREDICTED}."))


def _promise(summary: dict[str, Any]) -> Text:
    return Text(f"\nThe plan promises {promised(summary['plan'])} on units that were not rented here.")


def _tables(summary: dict[str, Any]) -> Table:
    table = _grid("Embedding tables")
    rows, num_bytes = summary["rows"], summary["table_bytes"]
    counters, tiers = summary.get("tables", {}), summary.get("tiers")
    refused, evicted = counters.get("refused", 0), counters.get("evicted", {})
    gone = sum(evicted.values())
    words = "ids, each with a vector of its own" if refused or gone else "ids seen, each with a vector of its own"
    table.add_row("Rows", f"{rows:,}", Text(words, style="dim"))
    if refused:
        table.add_row("Refused", f"{refused:,}", Text("gradients of ids that were not admitted", style="dim"))
    if gone:
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in evicted.items() if number)
        table.add_row("Evicted", f"{gone:,}", Text(f"rows, by {reasons}", style="dim"))
    if tiers:
        below = f"{tiers['memory_rows']:,} rows, and the index of {tiers['disk_rows']:,} on disk"
        table.add_row("Memory", size(num_bytes), Text(below, style="dim"))
        table.add_row("Disk", size(tiers["disk_bytes"]), Text("for rows that are seldom used", style="dim"))
    else:
        per_row = f"{num_bytes / rows:,.0f} bytes a row with optimizer state" if rows else ""
        table.add_row("Memory", size(num_bytes), Text(per_row, style="dim"))
    return table


def _traffic(traffic: Traffic) -> Table:
    """Bytes that travelled since the last start of the run, and what would have travelled besides."""
    table = _grid("Traffic")
    table.add_row("Travelled", size(travelled(traffic)), Text("keys, rows, parameters and gradients", style="dim"))
    for field, title in SAVED.items():
        if num_bytes := traffic.get(field, 0):
            table.add_row(title, size(num_bytes), Text("saved", style="dim"))
    told = f"messages saved: {traffic.get('calls', 0):,} calls in {traffic.get('requests', 0):,}"
    table.add_row("Merging", f"{saved_messages(traffic):,}", Text(told, style="dim"))
    return table


def _grid(title: str, num_figures: int = 1) -> Table:
    """A grid of names, right-aligned figures, and words that wrap in the remaining width."""
    table = Table.grid(padding=(0, 2, 0, 0), expand=False)
    table.title, table.title_justify, table.title_style = Text(f"\n{title}", style="bold"), "left", "bold"
    table.add_column(min_width=NAME, no_wrap=True)
    for _ in range(num_figures):
        table.add_column(min_width=FIGURE, justify="right", no_wrap=True)
    table.add_column()
    return table


def _data_notes(summary: dict[str, Any]) -> list[Text]:
    """Notes on the data: skipped rows are a warning, values filled in as the job says are a note."""
    counts = summary.get("data") or {}
    notes = []
    if skipped := counts.get("num_skipped"):
        text = f"{skipped:,} of {counts['num_rows']:,} rows were skipped, because a value was missing."
        notes.append(Text.assemble(("\nwarning: ", "bold yellow"), text))
    if missing := counts.get("missing"):
        most = sorted(missing.items(), key=lambda item: -item[1])
        named = ", ".join(f"{name} {number:,}" for name, number in most[:MAX_COLUMNS_NAMED])
        more = f", {len(most) - MAX_COLUMNS_NAMED} more in the report" if len(most) > MAX_COLUMNS_NAMED else ""
        text = f"{plural(sum(missing.values()), 'value')} missing in {plural(len(most), 'column')} ({named}{more})"
        notes.append(
            Text.assemble(("\nnote: ", "bold"), f"{text}; data.columns of the job say what is done with them.")
        )
    return notes


def _next_step(folder: Path, summary: dict[str, Any]) -> Text:
    if not (folder / "checkpoints").is_dir():
        return Text("It has left no checkpoint so far, so it cannot be resumed.", style="dim")
    command = shlex.join(["heterps", "train", str(folder / "job.yaml"), "--run", str(folder), "--resume"])
    condition = " (if it is no longer running)" if summary["status"] == UNFINISHED else ""
    return Text.assemble(("Resume  ", "bold"), command, (condition, "dim"))
