"""The table of every method."""

from __future__ import annotations

import pytest
from plans import make_plan, make_profile, recording_console, text_of

from heterps.planning.api import Option, PlanComparison
from heterps.report.terminal.plan_table import show_every_method
from heterps.report.terminal.progress import show_progress

EXACT = make_plan(
    ("cpu", 2, 480), ("v100", 10, 32), ("cpu", 4, 7), servers=12, usd=1234.5, gap=0.0, search_s=0.01, evaluations=12
)
RL = make_plan(
    ("v100", 16, 32), method="rl", servers=120, usd=2345.6, gap=0.9, throughput=12_345_678.0, search_s=10.0,
    evaluations=1_234_567,
)  # fmt: skip
OPTIONS = (
    Option("exact", EXACT),
    Option("rl", RL),
    Option("heuristic", None, "found no plan"),
    Option("gpu", None, "found no plan"),
)


def show(width: int) -> list[str]:
    console = recording_console(width)
    show_every_method(console, PlanComparison(EXACT, OPTIONS), make_profile(16, "cpu", "v100"), 500.0)
    return [line.rstrip() for line in text_of(console).splitlines()]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_16_layers_on_2_resources_fit(width: int) -> None:
    lines = show(width)
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines)
    rows = {line[1:].split()[0]: line for line in lines if line[3:4].isalpha()}
    assert rows["exact"].startswith("✓")
    assert not rows["rl"].startswith("✓")
    assert rows["rl"].split()[1:6] == ["2,345.60", "12,345,678", "90.0%", "10.00", "1.23M"]
    assert "480" in lines[lines.index(rows["exact"]) + 1]


def test_a_reason_is_told_once_for_all_methods_that_have_it() -> None:
    assert [line for line in show(100) if "found no plan" in line] == ["heuristic, gpu: found no plan"]


def test_many_resources_are_told_apart() -> None:
    names = [f"gpu{i}" for i in range(12)]
    plan = make_plan(*[(name, 1, 1) for name in names])
    console = recording_console(100)
    show_every_method(console, PlanComparison(plan, (Option("exact", plan),)), make_profile(12, *names), 500.0)
    text = text_of(console)
    assert all(name in text for name in names)


def test_progress_is_a_line_each_where_there_is_no_terminal_and_none_if_too_many() -> None:
    console = recording_console(80)
    with show_progress(console, "searching by") as announce:
        announce("[rl]")
    with show_progress(console, "frontier at", only_terminal=True) as announce:
        announce("1")
    assert text_of(console) == "searching by [rl]\n"


def test_progress_leaves_nothing_on_a_terminal_but_shows_a_clock_meanwhile() -> None:
    console = recording_console(80, colours=True)
    with show_progress(console, "searching by") as announce:
        announce("rl")
        announce("exact")
    assert "searching by exact" in text_of(console)
    assert "0:00:00" in text_of(console)
