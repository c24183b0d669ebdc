"""What people see of policies that were compared by training."""

from __future__ import annotations

import io

from rich.console import Console
from virtual_runs import SCENARIO, make_run

from heterps.report.page.virtual import render_virtual_page
from heterps.report.terminal.progress import show_virtual_progress
from heterps.report.terminal.virtual_table import cells, heads, show_comparison
from heterps.sim.compare import advise, compare
from heterps.sim.course import Point
from heterps.sim.variants import parse_variant

RUNS = [
    make_run("bsp", 0.5, 0.8, 0.9, step_s=20.0),
    make_run("bsp", 0.5, 0.9, 0.95, seed=1, step_s=21.0),
    make_run("asp+compensated:0.04", 0.4, 0.7, 0.9),
    make_run("asp+compensated:0.04", 0.4, 0.7, 0.92, seed=1, step_s=11.0),
    make_run("ssp:3", 0.4, failed="the loss of step 9 is nan."),
    make_run("ssp:3", 0.4, 0.5, 0.6, seed=1),
    make_run("bsp+backup:1", 0.4, 0.9, dropped=200),
    make_run("bsp+backup:1", 0.4, 0.6, seed=1),
]
COMPARISON = compare(RUNS, target=0.9)


def shown(width: int = 80, advice: bool = True) -> str:
    file = io.StringIO()
    show_comparison(Console(file=file, width=width), COMPARISON, advise(COMPARISON) if advice else ())
    return file.getvalue()


def test_a_row_has_the_seconds_their_spread_and_what_is_behind_them() -> None:
    assert heads(COMPARISON) == ("policy", "s to 0.9", "seeds", "best", "per s", "stale", "wait", "drop")
    table = {row.label: cells(row, COMPARISON) for row in COMPARISON.rows}
    assert table["bsp"][:5] == ("bsp", "51.0", "42.0-60.0", "0.9250", "4.9")
    assert table["asp+compensated:0.04"][:3] == ("asp+compensated:0.04 ✓", "31.5", "30.0-33.0")
    assert table["ssp:3"][1:3] == ("diverged", "0 of 2")
    assert table["bsp+backup:1"][1:3] == ("never", "1 of 2")
    assert table["bsp+backup:1"][-1] == "25%"
    assert all(len(row) == len(heads(COMPARISON)) for row in table.values())


def test_with_one_seed_and_nothing_dropped_their_columns_are_left_out() -> None:
    comparison = compare([make_run("bsp", 0.5, 0.9)], target=0.9)
    assert heads(comparison) == ("policy", "s to 0.9", "best", "per s", "stale", "wait")
    assert len(cells(comparison.rows[0], comparison)) == 6


def test_the_table_fits_a_narrow_terminal_and_the_advice_follows() -> None:
    text = shown()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "Take bsp: it reaches" in text
    assert "It cannot be told apart from asp+compensated:0.04" in text
    assert "ssp:3 diverges: the loss of step 9 is nan." in text.replace("\n", " ")


def test_without_advice_a_divergence_is_told_still() -> None:
    text = shown(advice=False)
    assert "ssp:3 diverged: the loss of step 9 is nan." in text
    assert "Take" not in text


def test_the_page_has_both_charts_every_policy_and_the_range_of_seeds() -> None:
    page = render_virtual_page("a <job>", SCENARIO, RUNS, COMPARISON, advise(COMPARISON))
    assert page.count("<figure>") == 2
    assert page.count("<polyline") == 2 * 4
    assert "a &lt;job&gt;: 4 policies compared" in page
    assert "Seconds an iteration: 1, 2.3" in page
    assert "bsp: 0.8500 at 41.0 s, 200 samples (0.8000 to 0.9000 over 2 seeds)" in page
    assert "<script" not in page
    assert "target 0.9" in page
    assert page == render_virtual_page("a <job>", SCENARIO, RUNS, COMPARISON, advise(COMPARISON))


def test_many_speeds_are_given_as_a_range() -> None:
    scenario = SCENARIO.model_copy(update={"workers": (1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)})
    assert "Seconds an iteration: 1 to 1.6" in render_virtual_page("j", scenario, RUNS, COMPARISON, [])


def test_progress_shows_the_policy_its_time_and_quality_on_a_terminal_only() -> None:
    variant, point = parse_variant("asp"), Point(1234.5, 10, 5, 0.91234, 0.3)
    for is_terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, width=80, force_terminal=is_terminal)
        with show_virtual_progress(console, [variant], 2, 3) as tell:
            tell(variant, 4, point)
        assert ("1,234 s, 0.9123, seed 4" in file.getvalue()) == is_terminal
