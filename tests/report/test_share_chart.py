from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.report.page.charts import MAX_POINTS, Span, draw_shares, thin
from heterps.report.page.panel import BOTTOM, HEIGHT, TOP

HALF = (0.5, 0.25, 0.25)


def rects(html):
    svg = ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    return [element for element in svg.iter() if element.tag.endswith("rect")]


def test_an_interval_is_a_bar_of_compute_communicate_and_wait_with_tooltips():
    parts = rects(draw_shares("Stage 1 (cpu)", "50% compute", [Span(0, 100, HALF), Span(100, 300, HALF)]))
    assert [part.get("class") for part in parts] == ["share compute", "share communicate", "share wait"] * 2
    assert parts[0][0].text == "compute 50%, from 0 to 100 samples"
    assert parts[4][0].text == "communicate 25%, from 100 to 300 samples"
    heights = [float(part.get("height")) for part in parts[:3]]
    assert sum(heights) == pytest.approx(HEIGHT - TOP - BOTTOM, abs=0.2)
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)
    assert float(parts[3].get("width")) == pytest.approx(2 * float(parts[0].get("width")), rel=0.02)


def test_where_shares_are_not_known_there_is_a_gap():
    assert len(rects(draw_shares("Stage 1", "", [Span(0, 100, None), Span(100, 300, HALF)]))) == 3
    assert "No values were recorded" in draw_shares("Stage 1", "", [Span(0, 100, None)])
    assert "No values were recorded" in draw_shares("Stage 1", "", [])


def test_names_are_text():
    assert "<b>" not in draw_shares("Stage 1 (<b>)", "", [Span(0, 100, HALF)])


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=700))
def test_many_intervals_are_averaged_and_cover_the_same_samples(computes):
    spans = [
        Span(i * 10.0, i * 10.0 + 10, None if share is None else (share, 0.0, 1 - share))
        for i, share in enumerate(computes)
    ]
    thinned = thin(spans)
    assert len(thinned) <= MAX_POINTS
    assert (thinned[0].start, thinned[-1].end) == (0.0, len(computes) * 10.0)
    assert all(a.end == b.start for a, b in pairwise(thinned))
    assert all(span.shares is None or sum(span.shares) == pytest.approx(1.0) for span in thinned)
    known = [share for share in computes if share is not None]
    drawn = [span.shares[0] for span in thinned if span.shares]
    assert bool(known) == bool(drawn)
    if known:
        assert min(known) - 1e-9 <= min(drawn) <= max(drawn) <= max(known) + 1e-9
