"""A simulation on a terminal, as a picture and as a page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from plans import recording_console, text_of

from heterps.errors import StorageError
from heterps.report.page.charts import draw_histogram
from heterps.report.page.simulation import draw_staleness, render_page, write_page, write_svg
from heterps.report.page.timeline import draw_timeline
from heterps.report.terminal.simulation_table import make_groups, outcome, show_policies, show_simulation
from heterps.report.terminal.timeline import make_rows
from heterps.sim import Scenario, SimResult, simulate

SVG = "{http://www.w3.org/2000/svg}"
POLICIES = ("bsp", "asp", "ssp:3", "dssp:3:12", "bsp+backup:1", "dssp:3:12+literal")


def run(policy: str, workers: str = "1.0,2.0", *, until: float = 12.0, **fields: object) -> SimResult:
    return simulate(Scenario(workers=workers, horizon_s=until, **fields), policy, window=(0.0, until))


def lines_of(result: SimResult, width: int = 80) -> list[str]:
    console = recording_console(width)
    show_simulation(console, result)
    return [line.rstrip() for line in text_of(console).splitlines()]


def test_bars_tell_computing_from_waiting_without_colours() -> None:
    """A cell is half a second: BSP computes for two and waits for two."""
    row, slow = make_rows(run("bsp"), 24)
    assert row.kinds == (("compute",) * 2 + ("wait",) * 2) * 6
    assert slow.kinds == ("compute",) * 24
    assert [i for i, ends in enumerate(row.ends) if ends] == [1, 5, 9, 13, 17, 21]
    bar = next(line for line in lines_of(run("bsp"), 4 + 24) if line.startswith("w0  █"))
    assert bar == "w0  " + "█▊··" * 6


def test_pushes_that_queue_are_shown() -> None:
    row = make_rows(run("asp", "4x1.0", server_s=1.0), 24)[3]
    assert row.kinds[:2] == ("compute",) * 2
    assert row.kinds[2:10] == ("push",) * 8


def test_who_comes_late_and_leaves_early_has_room_before_and_after() -> None:
    result = run(
        "asp", "2x1.0", deaths=[{"worker": "w0", "at_s": 6.0}], joins=[{"at_s": 3.0, "workers": "1.0"}]
    )  # fmt: skip
    dead, _, late = make_rows(result, 12)
    assert dead.kinds == ("compute",) * 6 + ("",) * 6
    assert dead.left == 6
    assert late.kinds == ("",) * 3 + ("compute",) * 9


@pytest.mark.parametrize("width", [50, 80, 120])
@pytest.mark.parametrize("workers", ["1.0,2.0", "30x1.0,30x2.0", "1000x1.0"])
def test_lines_fit_and_there_are_few_of_them(width: int, workers: str) -> None:
    lines = lines_of(run("ssp:3", workers), width)
    bars = [line for line in lines if re.match(r"w\d+(-w\d+)?  [█▊·▒]", line)]
    assert 0 < len(bars) <= 20
    assert len(lines) < 45
    assert all(len(line) <= width for line in bars)


def test_neighbours_of_a_speed_share_a_row_of_means() -> None:
    result = run("bsp", "30x1.0,10x2.0", until=10.0)
    fast, slow = make_groups(result.workers)
    assert fast.cells() == ("w0-w29 (mean)", "1", "5.0", "5.0", "5.0", "50.0%", "0.0")
    assert slow.name == "w30-w39 (mean)"
    several = make_groups(run("bsp", ",".join(str(1 + i / 100) for i in range(40))).workers)
    assert len(several) <= 16
    assert several[0].cells()[1] == "several"


def test_the_outcome_is_told_in_words() -> None:
    text = outcome(run("dssp:3:12", "1.0,2.3", until=1000.0))
    assert text.startswith("884 pushes in 1,000 s (0.884 a second). Workers waited 426 times, 550.0 s in all, 27.5% of")
    assert "more than 15 ahead" in text
    assert "bounds no lead" in outcome(run("dssp:3:12+literal"))
    assert "gradients came too late" in outcome(run("bsp+backup:1", "3x1.0,3.5"))


def test_policies_are_rows_that_fit_on_a_narrow_terminal() -> None:
    console = recording_console(80)
    show_policies(console, [run(policy, "8x1.0,2.3", until=1000.0, jitter=0.1) for policy in POLICIES])
    text = text_of(console)
    assert "…" not in text
    rows = {line.split()[0]: line.split() for line in text.splitlines()[2:8]}
    assert tuple(rows) == POLICIES
    assert rows["ssp:3"][6] == "3"
    assert rows["bsp"][7] == "0.00"


def bars_of(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]


def test_a_picture_has_a_bar_with_a_tooltip_for_all_that_was_done(tmp_path: Path) -> None:
    result = run("bsp")
    write_svg(tmp_path / "t.svg", result)
    root = ElementTree.fromstring((tmp_path / "t.svg").read_text())
    bars = bars_of(root)
    assert len(bars) == sum(len(worker.segments) for worker in result.workers)
    assert bars[0][0].text == "w0 computes from 0.00 to 1.00 s (1.00 s)"
    assert bars[1].get("class") == "wait"
    words = {text.text for text in root.iter(f"{SVG}text")}
    assert words >= {"computes", "waits", "w0", "w1", "0", "12"}
    assert "pushes" not in words, "here they take no time, and there is no bar of them"
    assert any(element.tag.endswith("style") for element in root.iter())


@pytest.mark.parametrize("workers", ["2x1.0", "40x0.01", "300x1.0,2.0"])
def test_a_picture_stays_small_and_inside_its_frame(workers: str) -> None:
    root = ElementTree.fromstring(draw_timeline(run("ssp:3", workers, until=20.0, jitter=0.3)))
    _, _, width, height = map(float, root.get("viewBox", "").split())
    assert height < 1300
    bars = bars_of(root)
    assert 0 < len(bars) < 20_000
    for bar in bars:
        x, y, wide, tall = (float(bar.get(name, "nan")) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert x + wide <= width
        assert y + tall <= height


def test_bars_are_cut_at_the_window() -> None:
    result = simulate(Scenario(workers="10.0", horizon_s=100.0), "asp", window=(45.0, 55.0))
    xs = [float(bar.get("x", "nan")) for bar in bars_of(ElementTree.fromstring(draw_timeline(result)))]
    assert xs == [74.0, pytest.approx(74 + (960 - 74 - 14) / 2)]


def test_a_page_has_the_figures_and_a_timeline_a_policy(tmp_path: Path) -> None:
    results = [run(policy, "4x1.0,2.3", until=100.0) for policy in POLICIES]
    write_page(tmp_path / "p.html", results)
    page = (tmp_path / "p.html").read_text()
    assert page.count("<figcaption>Timeline") == len(POLICIES)
    assert all(f"<h2>{policy}</h2>" in page for policy in POLICIES)
    assert "6 policies compared" in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    cut = simulate(Scenario(workers="2x1.0", horizon_s=100.0), "asp", window=(10.0, 25.5))
    assert "<figcaption>Timeline from 10 to 25.5 s, of 100 s<" in render_page([cut])
    assert "<figcaption>Timeline<" in page, "all of it is shown"
    one = render_page(results[:1])
    assert '<div class="tiles">' in one
    assert "<h1>bsp</h1>" in one


def test_a_histogram_has_a_bar_for_each_staleness_or_range() -> None:
    few = draw_staleness(run("asp", "3x1.0"))
    told = [int(count) for count in re.findall(r"<title>\d: (\d+) gradients", few)]
    assert len(told) == 3
    shares = [f"{count / sum(told):.0%}" for count in told]
    assert re.findall(r">(\d+%)<", few) == shares, "a share stands above each bar"
    assert "&lt;1%" in draw_histogram("rare", {0: 999, 1: 1}, "updates", "gradients"), "which is not 0%"
    wide = draw_staleness(run("asp", "500x1.0", jitter=0.5))
    assert 10 < wide.count("<title>") <= 40
    assert re.search(r"<title>\d+ to \d+: [\d,]+ gradients", wide)
    assert "Nobody pushed" in draw_staleness(run("asp", "3x100.0"))


def test_a_simulation_in_which_nothing_happens_can_be_shown() -> None:
    nobody = run("bsp", "2x1.0", deaths=[{"worker": "w0", "at_s": 0}, {"worker": "w1", "at_s": 0}])
    assert (nobody.end_s, nobody.pushes) == (0.0, 0)
    assert "0 pushes in 0 s" in " ".join(lines_of(nobody))
    assert "<svg" in render_page([nobody])


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write the page: No such file"):
        write_page(tmp_path / "none" / "p.html", [run("bsp")])
