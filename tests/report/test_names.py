"""Names of layers where there is little room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import recording_console, text_of

from heterps.report.names import Ranges, broken, shortened


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        ("user_tower.linear2", 18, "user_tower.linear2"),
        ("user_tower.linear2", 16, "user_tow…linear2"),
        ("user_tower.linear3", 16, "user_tow…linear3"),
    ],
)
def test_the_middle_of_a_long_name_goes(name: str, width: int, expected: str) -> None:
    assert shortened(name, width) == expected


@given(st.text("abc.", min_size=1), st.text("abc", min_size=1), st.integers(5, 60))
def test_no_part_is_wider_than_its_place_and_what_fits_is_whole(first: str, last: str, width: int) -> None:
    line = f"→ v100×1 [{first}x..{last}]"
    parts = broken(line, width)
    assert all(len(part) <= width for part in parts)
    assert len(parts) == 1 or len(line) > width


def test_a_range_breaks_at_its_dots_and_not_in_a_name() -> None:
    console = recording_console(24)
    console.print(Ranges("cpu×8 [embedding]", "→ v100×1 [cat..deep.softmax]"))
    assert [line.rstrip() for line in text_of(console).splitlines()] == [
        "cpu×8 [embedding]", "→ v100×1 [cat..", "  deep.softmax]",
    ]  # fmt: skip
