"""The bar of a plan's stages: widths, counts, letters, colours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import make_plan, recording_console, text_of

from heterps.report.terminal.stage_bar import PALETTE, StageBar, bar_widths, make_keys, place_counts

STAGES = st.lists(st.tuples(st.just("cpu"), st.integers(1, 40), st.integers(1, 999)), min_size=1, max_size=20)


@given(STAGES, st.integers(20, 60))
def test_no_stage_is_lost_and_the_bar_is_full(stages: list[tuple[str, int, int]], width: int) -> None:
    widths = bar_widths(make_plan(*stages).stages, width)
    assert sum(widths) == width
    assert min(widths) >= 1


def test_widths_are_in_proportion_to_layers() -> None:
    assert bar_widths(make_plan(("cpu", 4, 1), ("v100", 8, 1), ("cpu", 4, 1)).stages, 32) == [8, 16, 8]


@given(STAGES, st.integers(20, 60))
def test_the_counts_below_read_in_the_order_of_the_stages(stages: list[tuple[str, int, int]], width: int) -> None:
    counts = [count for _, _, count in stages]
    line = place_counts(counts, bar_widths(make_plan(*stages).stages, width))
    assert [int(word) for word in line.split()] == counts


def test_a_count_stands_below_the_start_of_its_stage_where_there_is_room() -> None:
    assert place_counts([480, 3, 12], [2, 4, 6]) == "480 3 12"
    assert place_counts([4, 1, 12], [4, 8, 4]) == "4   1       12"


@pytest.mark.parametrize("number", [1, 3, 70])
def test_every_resource_has_a_letter_of_its_own(number: int) -> None:
    keys = make_keys([f"gpu{i}" for i in range(number)])
    assert len(set(keys.letters.values())) == number


def test_letters_are_those_of_the_names_and_the_same_whatever_is_shown() -> None:
    keys = make_keys(["cpu", "v100", "c4"])
    assert keys.letters == {"cpu": "c", "v100": "v", "c4": "C"}
    console = recording_console(80)
    console.print(keys.legend(["v100", "c4"]))
    assert text_of(console).split() == ["v", "v100", "C", "c4"]


def test_a_legend_of_many_keeps_letters_beside_their_names() -> None:
    names = [f"gpu{i}" for i in range(30)]
    keys = make_keys(names)
    console = recording_console(60)
    console.print(keys.legend(names))
    words = text_of(console).split()
    assert sorted(zip(words[1::2], words[::2], strict=True)) == sorted(keys.letters.items())
    assert all(len(line.split()) % 2 == 0 for line in text_of(console).splitlines())


def draw(*, colours: bool) -> str:
    console = recording_console(16, colours=colours)
    console.print(StageBar(make_plan(("cpu", 1, 12), ("v100", 3, 2)), make_keys(["cpu", "v100"])))
    return text_of(console)


def test_without_colours_the_letters_remain() -> None:
    assert [line.rstrip() for line in draw(colours=False).splitlines()] == ["ccccvvvvvvvvvvvv", "12  2"]


def test_with_colours_each_resource_has_its_own_ground() -> None:
    for ground, _ in PALETTE[:2]:
        red, green, blue = (int(ground[i : i + 2], 16) for i in (1, 3, 5))
        assert f"48;2;{red};{green};{blue}" in draw(colours=True)
