from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from heterps.planning.schedulers.opening import BILLS, MOST_PACES, Opening

SLOWEST_S, FASTEST_S = 1.0, 0.1


def play(opening: Opening, score: Callable[[int], float]) -> list[int]:
    """Bill all that is proposed: a schedule is one number here, and `score` says what it is worth."""
    billed: list[int] = []
    while (schedules := opening.propose()) is not None:
        assert len(schedules) > 0
        billed += schedules[:, 0].tolist()
        opening.feedback(schedules, np.array([score(x) for x in schedules[:, 0].tolist()]))
    return billed


def thousandths(tau: float) -> np.ndarray:
    return np.array([round(1000 * tau)], np.int16)


@pytest.mark.parametrize("best", [120, 350, 600, 970])
def test_it_comes_near_the_best_pace_within_its_bills(best: int) -> None:
    billed = play(Opening(thousandths, SLOWEST_S, FASTEST_S), lambda x: -abs(np.log(x / best)))
    assert len(billed) == len(set(billed)) == BILLS
    assert min(abs(np.log(x / best)) for x in billed) < 0.06
    assert {1000, 100} <= set(billed)


def test_a_schedule_of_several_paces_is_billed_once() -> None:
    billed = play(Opening(lambda tau: np.array([tau > 0.5], np.int16), SLOWEST_S, FASTEST_S), float)
    assert sorted(billed) == [0, 1]


def test_it_gives_up_when_all_paces_lead_to_few_schedules() -> None:
    asked: list[float] = []

    def note(tau: float) -> np.ndarray:
        asked.append(tau)
        return np.array([tau > 0.5], np.int16)

    play(Opening(note, SLOWEST_S, FASTEST_S), float)
    assert len(asked) <= MOST_PACES


def test_one_pace_only_is_enough() -> None:
    assert play(Opening(thousandths, SLOWEST_S, 2.0), float) == [1000]
