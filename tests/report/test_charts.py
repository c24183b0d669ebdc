import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.report.figures import ratio, short
from heterps.report.page.charts import MAX_POINTS, Chart, draw
from heterps.report.page.panel import HEIGHT, WIDTH

SVG = "{http://www.w3.org/2000/svg}"
numbers = st.floats(-1e12, 1e12, allow_nan=False).map(lambda y: round(y, 6))
series = st.lists(st.one_of(st.none(), numbers), min_size=1, max_size=300)


def show(value):
    return "undefined" if value is None else f"{value:g}"


def svg(chart):
    figure = ElementTree.fromstring(draw(chart))
    return figure.find(f"{SVG}svg")


def points_of(values):
    return [(65_536 * i, y) for i, y in enumerate(values, 1)]


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


@given(series, st.booleans(), st.one_of(st.none(), numbers))
def test_any_series_is_well_formed_and_inside_its_frame(values, from_zero, reference):
    root = svg(Chart("Loss", points_of(values), show, from_zero=from_zero, reference=reference))
    if all(y is None for y in values):
        assert root is None
        return
    places = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(f"{SVG}circle")]
    places += [
        tuple(map(float, p.split(","))) for line in root.iter(f"{SVG}polyline") for p in line.get("points").split()
    ]
    places += [(WIDTH / 2, float(line.get("y1"))) for line in root.iter(f"{SVG}line")]
    assert all(-0.1 <= x <= WIDTH + 0.1 and -0.1 <= y <= HEIGHT + 0.1 for x, y in places)
    assert len(texts(root)) < 25


def test_axes_carry_round_labels_and_the_unit():
    root = svg(Chart("AUC", points_of([0.69, 0.72, 0.7697]), ratio))
    assert {"0.68", "0.70", "0.72", "0.74", "0.76", "0.78", "0", "samples"} <= set(texts(root))


def test_a_value_axis_may_have_labels_of_its_own():
    root = svg(Chart("Memory", points_of([1e6, 4e6]), show, tick=lambda y: f"{y / 1e6:g} MB", from_zero=True))
    assert {"0 MB", "4 MB"} <= set(texts(root))


def test_the_last_value_and_the_reference_can_be_read():
    drawn = draw(Chart("AUC", points_of([0.69, 0.7697]), ratio, reference=0.8044, reference_name="teacher"))
    assert "<strong>0.7697</strong>" in drawn
    assert "teacher 0.8044" in drawn
    assert 'class="reference"' in drawn


def test_a_null_is_a_gap_and_not_a_zero():
    root = svg(Chart("AUC", points_of([0.7, 0.71, None, 0.73, 0.74]), ratio))
    lines = [len(line.get("points").split()) for line in root.iter(f"{SVG}polyline")]
    assert lines == [2, 2]


def test_a_last_value_that_is_null_leaves_the_one_before():
    assert Chart("AUC", points_of([0.7, 0.71, None]), ratio).last == 0.71


def test_a_single_point_is_a_dot():
    root = svg(Chart("AUC", points_of([0.7]), ratio))
    assert not list(root.iter(f"{SVG}polyline"))
    assert any("alone" in circle.get("class") for circle in root.iter(f"{SVG}circle"))


def test_nothing_recorded_is_said_in_words():
    assert "No values were recorded" in draw(Chart("AUC", points_of([None, None]), ratio))


def test_a_long_run_is_thinned_to_means_but_ends_where_it_ended():
    values = [0.0, 2.0] * 5_000 + [7.0]
    root = svg(Chart("Loss", points_of(values), show))
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert len(titles) <= MAX_POINTS + 1
    assert titles[0].startswith("1 at ")
    assert titles[-1] == f"7 at {65_536 * len(values):,} samples"


def test_names_are_escaped():
    drawn = draw(Chart("<b>&", points_of([1.0]), lambda _: "<i>", reference=1.0, reference_name='"<u>'))
    assert not re.search(r"<[biu]>", drawn)
    ElementTree.fromstring(drawn)


@pytest.mark.parametrize("value", [0.0, 1e-9, 5.0, 1e15])
def test_a_level_series_has_an_axis(value):
    root = svg(Chart("Rows", points_of([value, value]), short, from_zero=True))
    assert len(set(texts(root))) >= 4


def frontier_chart(points, mark):
    return Chart(
        "Cost", points, show, from_zero=True, x_name="samples/s", x_from=None, steps=True,
        mark=mark, mark_name="asked",
    )  # fmt: skip


@given(
    st.lists(st.tuples(st.floats(1, 1e9), st.floats(0, 1e6)), min_size=1, max_size=24, unique_by=lambda p: p[0]),
    st.floats(1, 1e9),
)
def test_stairs_and_a_mark_stay_inside_the_frame(points, mark):
    root = svg(frontier_chart(sorted(points), mark))
    corners = [
        tuple(map(float, p.split(","))) for line in root.iter(f"{SVG}polyline") for p in line.get("points").split()
    ]
    corners += [(float(line.get("x1")), float(line.get("y2"))) for line in root.iter(f"{SVG}line")]
    assert all(-0.1 <= x <= WIDTH + 0.1 and -0.1 <= y <= HEIGHT + 0.1 for x, y in corners)


@given(
    st.lists(st.floats(1, 1e9), min_size=1, max_size=24, unique=True),
    st.floats(1, 1e9),
    st.sampled_from([1.0, 1e-2, 1e-4, 1e-6, 1e-9]),
)
def test_plans_that_are_all_fast_have_an_axis_whose_labels_differ(places, mark, near):
    """However near they are to each other, and however far above what was asked for."""
    fastest = max(places)
    points = [(fastest * (1 - near) + near * x, 1.0) for x in sorted(places)]
    root = svg(frontier_chart(points, mark))
    *labels, name = (one for one in root.iter(f"{SVG}text") if float(one.get("y")) > HEIGHT - 30)
    assert name.text == "samples/s"
    assert len({label.text for label in labels}) == len(labels) >= 3
    frame = [float(line.get(end)) for line in root.iter(f"{SVG}line") for end in ("x1", "x2")]
    drawn = [float(label.get("x")) for label in labels]
    assert drawn[0] == pytest.approx(min(frame), abs=0.2)
    assert drawn[-1] == pytest.approx(max(frame), abs=20), "but for long labels, which stay inside"
    assert all(min(frame) - 0.1 <= float(dot.get("cx")) <= max(frame) + 0.1 for dot in root.iter(f"{SVG}circle"))


def test_what_was_asked_far_below_all_plans_is_told_at_the_edge():
    root = svg(frontier_chart([(8.9e6, 1.0), (9.1e6, 3.0)], 2e4))
    assert {"8.9M", "9M", "9.1M", "← asked"} <= set(texts(root))
    assert not [line for line in root.iter(f"{SVG}line") if line.get("class") == "reference"]


def test_stairs_rise_before_they_go_on():
    root = svg(frontier_chart([(1000.0, 1.0), (2000.0, 3.0)], 1500.0))
    line = next(root.iter(f"{SVG}polyline")).get("points").split()
    (x0, y0), (x1, y1), (x2, y2) = (tuple(map(float, corner.split(","))) for corner in line)
    assert x0 == x1 < x2
    assert y0 > y1 == y2


def test_another_axis_has_its_own_name_and_start_and_the_mark_is_told():
    drawn = draw(frontier_chart([(1000.0, 1.0), (2000.0, 3.0)], 1500.0))
    assert {"samples/s", "1k", "2k"} <= set(texts(ElementTree.fromstring(drawn)))
    assert "1,500 samples/s asked" in drawn
    assert "3 at 2,000 samples/s" in drawn
