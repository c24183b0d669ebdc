"""The controller's choice against the paper's figure and against trying everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.sync.dynamic import best_grant

seconds = st.floats(0.0, 1000.0)


def by_brute_force(now: float, busy_s: float, slow_next: float, slow_busy_s: float, cap: int, spread: int) -> int:
    def wait_s(r: int) -> float:
        return min(abs((slow_next + k * slow_busy_s) - (now + r * busy_s)) for k in range(spread + 1))

    return min(range(cap + 1), key=wait_s)  # the first of equals


@pytest.mark.parametrize(("spread", "grant"), [(0, 0), (4, 3), (8, 5), (12, 10)])
def test_the_figure_of_the_paper(spread: int, grant: int) -> None:
    """The fast worker pushed at 236.4 and 295, the slow one at 176 and 277."""
    assert best_grant(295.0, 295 - 236.4, 277.0 + 101.0, 277.0 - 176.0, spread, spread) == grant


@pytest.mark.parametrize(
    ("cap", "spread", "grant"),
    [(1, 1, 1), (0, 1, 0), (1, 0, 0), (2, 1, 1), (2, 2, 1)],
)
def test_the_last_push_of_either_row_counts(cap: int, spread: int, grant: int) -> None:
    """The fastest pushes at 0, 3, 6, the slowest at 1, 3, 5: they meet at the second push of both."""
    assert best_grant(0.0, 3.0, 1.0, 2.0, cap, spread) == grant


@given(seconds, seconds, seconds, seconds, st.integers(0, 15), st.integers(0, 15))
def test_two_pointers_choose_what_brute_force_chooses(
    now: float, busy_s: float, ahead_s: float, slow_busy_s: float, cap: int, spread: int
) -> None:
    problem = (now, busy_s, now + ahead_s, slow_busy_s, min(cap, spread), spread)
    assert best_grant(*problem) == by_brute_force(*problem)


@given(st.integers(0, 20), st.integers(0, 5), st.integers(0, 20), st.integers(0, 5), st.integers(0, 9))
def test_of_equal_waits_the_smallest_grant_is_chosen(now: int, busy: int, ahead: int, slow_busy: int, cap: int) -> None:
    """Whole numbers meet often."""
    problem = (float(now), float(busy), float(now + ahead), float(slow_busy), cap, 9)
    assert best_grant(*problem) == by_brute_force(*problem)
