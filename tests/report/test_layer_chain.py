from __future__ import annotations

import re

from heterps.report.page.layer_chain import ChainLayer, layer_chain

LAYERS = [
    ChainLayer("embedding", "embedding", 0.004, "stage 1: 2 cpu"),
    ChainLayer("concat", "concat", 0.001, "stage 1: 2 cpu", "copied by each worker"),
    ChainLayer("fc1", "linear", 0.002, "stage 2: 1 v100"),
]


def test_neighbours_of_a_group_stand_under_one_heading_with_their_times_and_shares_of_the_longest():
    html = layer_chain(LAYERS)
    assert re.findall("<h3>(.*?)</h3>", html) == ["stage 1: 2 cpu", "stage 2: 1 v100"]
    assert re.findall("<strong>(.*?)</strong>", html) == ["embedding", "concat", "fc1"]
    assert re.findall(r"[\d.]+ ms", html) == ["4.00 ms", "1.00 ms", "2.00 ms"]
    assert re.findall(r"width:([\d.]+)%", html) == ["100.0", "25.0", "50.0"]
    assert 'title="copied by each worker"' in html
    assert 'class="colour-0"' in html
    assert 'class="colour-1"' in html


def test_a_group_that_comes_again_keeps_its_colour_and_colours_can_be_given():
    again = [*LAYERS, ChainLayer("out", "linear", 0.001, "stage 1: 2 cpu")]
    assert layer_chain(again).count('class="colour-0"') == 2
    assert 'class="colour-5"' in layer_chain(LAYERS, {"stage 2: 1 v100": "colour-5"})


def test_layers_without_times_have_no_bar_and_names_are_text():
    html = layer_chain([ChainLayer("<b>", "<i>", None, "<u>"), ChainLayer("zero", "other", 0.0, "")])
    assert "&lt;b&gt;" in html
    assert "&lt;i&gt;" in html
    assert "&lt;u&gt;" in html
    assert html.count("<i style=") == 1
    assert html.count("<h3>") == 1
