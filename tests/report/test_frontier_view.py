"""The frontier on a terminal and as a file."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from plans import make_plan, make_profile, recording_console, text_of

from heterps.errors import ConfigError, StorageError
from heterps.planning.api import Option, PlanComparison
from heterps.planning.frontier import Frontier
from heterps.report.page.charts import draw
from heterps.report.page.frontier import frontier_chart, write_plot
from heterps.report.terminal.frontier_view import chosen_for, plot, show_frontier

PLANS = tuple(
    make_plan(("cpu", 1, n), ("v100", 3, n), servers=n, throughput=1000.0 * n, usd=float(n * n), gap=0.0)
    for n in (1, 2, 4)
)
FRONTIER = Frontier(PLANS, complete=True)
PROFILE = make_profile(4, "cpu", "v100")


def show(width: int, frontier: Frontier = FRONTIER) -> list[str]:
    console = recording_console(width)
    show_frontier(console, frontier, PROFILE, 1500.0)
    return [line.rstrip() for line in text_of(console).splitlines()]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_plan_for_the_floor_is_ticked_and_lines_fit(width: int) -> None:
    lines = show(width)
    assert all(len(line) <= width for line in lines)
    ticked = [line for line in lines if line.startswith("✓") and "2,000" in line]
    assert len(ticked) == 1
    assert ticked[0].split()[-3:] == ["2c", "2v", "2"]


def test_whether_there_are_plans_between_is_told() -> None:
    assert "no other is between them" in " ".join(show(100))
    assert "there are more between them" in " ".join(show(100, Frontier(PLANS, complete=False)))


def test_plans_that_are_not_proven_are_told() -> None:
    unsure = (PLANS[0].model_copy(update={"gap": None}), *PLANS[1:])
    assert "cut short" in " ".join(show(100, Frontier(unsure, complete=True)))


def test_the_cheapest_plan_that_meets_the_floor_is_the_chosen_one() -> None:
    assert chosen_for(PLANS, 1.0) is PLANS[0]
    assert chosen_for(PLANS, 2000.0) is PLANS[1]
    assert chosen_for(PLANS, 4001.0) is None


@given(
    st.lists(st.tuples(st.floats(1, 1e9), st.floats(0.01, 1e6)), min_size=1, max_size=24),
    st.floats(1, 1e9),
    st.integers(50, 120),
)
@example([(468263129.0, 100000.0), (638909531.0, 1.0)], 561576720.0, 50)
def test_a_plot_has_its_size_and_shows_the_fastest_and_the_floor(
    points: list[tuple[float, float]], floor: float, width: int
) -> None:
    points = list(zip(sorted(x for x, _ in points), sorted(y for _, y in points), strict=True))
    lines = plot(points, floor, width, 10)
    assert len(lines) == 12
    assert all(len(line) <= width for line in lines)
    assert "●" in lines[0]
    assert "▲" in lines[-1]


def test_a_plot_draws_each_plan_right_of_the_cheaper_ones_and_above() -> None:
    lines = plot([(1000.0, 1.0), (2000.0, 4.0), (4000.0, 9.0)], 1500.0, 60, 10)
    places = [(row, line.index("●")) for row, line in enumerate(lines) if "●" in line]
    assert len(places) == 3
    assert [column for _, column in places] == sorted((column for _, column in places), reverse=True)
    assert all("┊" in line or "·" in line or "●" in line for line in lines[:10])


def test_an_svg_is_a_picture_of_its_own_with_a_point_a_plan(tmp_path: Path) -> None:
    write_plot(tmp_path / "f.svg", FRONTIER, PROFILE, 1500.0)
    root = ET.fromstring((tmp_path / "f.svg").read_text())
    circles = [element for element in root.iter() if element.get("class", "").startswith("point")]
    titles = [circle[0].text for circle in circles]
    assert titles == [
        "1.00 USD at 1,000 samples/s", "4.00 USD at 2,000 samples/s", "16.00 USD at 4,000 samples/s"
    ]  # fmt: skip
    assert any(element.tag.endswith("style") for element in root.iter())


def test_a_page_has_the_plot_and_a_row_a_plan_and_escapes_names(tmp_path: Path) -> None:
    write_plot(tmp_path / "f.html", FRONTIER, PROFILE.model_copy(update={"model": "<b>"}), 1500.0)
    page = (tmp_path / "f.html").read_text()
    assert page.count("<tr>") == 1 + len(PLANS)
    assert "2,000 ✓" in page
    assert "2 cpu, 2 v100; 2 servers" in page
    assert "<svg" in page
    assert "<b>:" not in page


def test_a_page_that_rests_on_estimates_says_so(tmp_path: Path) -> None:
    write_plot(tmp_path / "f.html", FRONTIER, PROFILE, 1500.0)
    assert "estimated" not in (tmp_path / "f.html").read_text()
    guessed = tuple(plan.model_copy(update={"estimated": ("v100",)}) for plan in PLANS)
    write_plot(tmp_path / "f.html", Frontier(guessed, complete=True), PROFILE, 1500.0)
    assert "Rests on estimated costs of v100, not on measured ones." in (tmp_path / "f.html").read_text()


def test_a_plot_of_an_unknown_format_or_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"an \.svg or an \.html file"):
        write_plot(tmp_path / "f.png", FRONTIER, PROFILE, 1500.0)
    with pytest.raises(StorageError, match="cannot write the plot"):
        write_plot(tmp_path / "none" / "f.svg", FRONTIER, PROFILE, 1500.0)


def test_plans_of_methods_are_drawn_beside_the_frontier_equal_ones_once(tmp_path: Path) -> None:
    dear = make_plan(("cpu", 4, 9), throughput=3000.0, usd=12.0)
    options = tuple(Option(name, plan) for name, plan in (("exact", PLANS[1]), ("rl", PLANS[1]), ("greedy", dear)))
    compared = PlanComparison(PLANS[1], (*options, Option("brute", None, "too many schedules")))
    write_plot(tmp_path / "p.html", FRONTIER, PROFILE, 1500.0, compared)
    page = (tmp_path / "p.html").read_text()
    assert "<title>exact, rl: 4.00 USD at 2,000 samples/s</title>" in page
    assert "<title>greedy: 12.00 USD at 3,000 samples/s</title>" in page
    assert "too many schedules" in page
    assert "Layers by the chosen plan" in page
    write_plot(tmp_path / "alone.html", FRONTIER, PROFILE, 1500.0)
    assert "Methods" not in (tmp_path / "alone.html").read_text()


def test_the_labels_of_small_amounts_fit() -> None:
    cheap = Frontier(tuple(plan.model_copy(update={"usd": plan.usd / 1e5}) for plan in PLANS), complete=True)
    drawn = draw(frontier_chart(cheap, 1500.0, floor_name="planned"))
    labels = re.findall(r'text-anchor="end">([^<]+)<', drawn)
    assert {"0.00000", "0.00005", "0.00015"} < set(labels), "one unit and as many digits, all the way up"
    assert "planned" in drawn
