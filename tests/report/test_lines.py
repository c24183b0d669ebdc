from __future__ import annotations

from xml.etree import ElementTree

from heterps.report.page.charts import DASHES, MARKS, Series, draw_lines


def parse(figure: str) -> ElementTree.Element:
    return ElementTree.fromstring(figure)


def found(root: ElementTree.Element, kind: str, **fields: str) -> list[ElementTree.Element]:
    return [
        node for node in root.iter()
        if node.tag.rpartition("}")[2] == kind and all(node.get(name) == value for name, value in fields.items())
    ]  # fmt: skip


def make_line(name: str, *values: float) -> Series:
    return Series(name, [(10.0 * i, value, f"{value:g} at {10 * i} s") for i, value in enumerate(values, start=1)])


def test_every_line_has_a_dash_and_a_mark_of_its_own_also_in_the_legend() -> None:
    lines = [make_line(f"policy {i}", 0.5, 0.6 + i / 100) for i in range(20)]
    root = parse(draw_lines("Accuracy", lines, x_name="seconds"))
    drawn = [(group[0].get("stroke-dasharray"), group[1].get("d")) for group in found(root, "g") if group.get("class")]
    assert len(drawn) == len(set(drawn)) == 20
    keys = [
        (node[0][0].get("stroke-dasharray"), node[0][1].get("d")) for node in found(root, "li")
    ]  # fmt: skip
    assert keys == drawn
    assert len(set(DASHES)) == len(DASHES) == len(MARKS)


def test_every_point_has_a_tooltip_with_the_name_of_its_line() -> None:
    root = parse(draw_lines("Accuracy", [make_line("a<b", 0.5, 0.9)], x_name="seconds"))
    assert [node.text for node in found(root, "title")] == ["a<b: 0.5 at 10 s", "a<b: 0.9 at 20 s"]


def test_early_values_do_not_widen_the_axis() -> None:
    line = make_line("asp", 0.1, *[0.9 + i / 1000 for i in range(20)])
    low = min(float(node.text or 0) for node in found(parse(draw_lines("A", [line], x_name="s")), "text")[:4])
    assert low > 0.8


def test_a_level_line_and_its_name_are_shown_and_stay_inside() -> None:
    text = draw_lines("Accuracy", [make_line("asp", 0.5, 0.6)], x_name="s", level=0.95, level_name="target 0.95")
    root = parse(text)
    (level,) = found(root, "line", **{"class": "reference"})
    assert 0 < float(level.get("y1") or -1) < 400
    assert "target 0.95" in text


def test_a_level_series_and_an_empty_chart_can_be_drawn() -> None:
    assert found(parse(draw_lines("A", [make_line("asp", 0.5, 0.5)], x_name="s")), "polyline")
    assert "No values" in draw_lines("A", [Series("asp", [])], x_name="s")


def test_a_line_without_points_keeps_its_place_in_the_legend() -> None:
    root = parse(draw_lines("A", [Series("diverged", []), make_line("asp", 0.5, 0.6)], x_name="s"))
    assert ["".join(node.itertext()) for node in found(root, "li")] == ["diverged", "asp"]


def test_small_lines_have_the_size_of_other_charts_and_labels_inside_of_it() -> None:
    line = Series("asp", [(0.0, 0.5, "first"), (100_000.0, 0.6, "last")])
    root = parse(draw_lines("A", [line], x_name="samples", is_small=True))
    (drawing,) = [node for node in found(root, "svg") if node.get("role") == "img"]
    assert drawing.get("viewBox") == "0 0 440 206"
    last = next(node for node in found(root, "text") if node.text == "100k")
    assert float(last.get("x", "nan")) + 4 * len("100k") <= 440
