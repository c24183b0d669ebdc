"""The alarm of a loss that leaves its own history and is worse than always saying the average."""

from __future__ import annotations

import pytest

from heterps.training.run.divergence import Divergence


def alarms(losses: list[float], against: list[float] | None) -> list[bool]:
    """For a first batch and the intervals after it, whether each has an alarm; the state survives JSON meanwhile."""
    found, divergence = [], Divergence()
    divergence.begin(losses[0])
    for number, loss in enumerate(losses[1:]):
        divergence.judge(64 * number, loss, None if against is None else against[number])
        found.append(divergence.alarm is not None)
        again = Divergence()
        again.restore(divergence.state())
        assert vars(again) == vars(divergence)
        divergence = again
    return found


@pytest.mark.parametrize(
    ("losses", "against", "expected"),
    [
        pytest.param([0.69, 0.5, 1e5], [0.8, 2e5], [False, True], id="grows"),
        pytest.param([0.69, 1e5], [2e5], [True], id="in the first interval"),
        pytest.param([0.69, 1e5, 0.6], [2e5, 0.9], [True, False], id="recovers"),
        pytest.param([1e6, 4e5, 100, 2], [4e5, 100, 2], [False, False, False], id="comes down from far"),
        pytest.param([0.1, 0.3], [0.9], [False], id="rises below the average"),
        pytest.param([3.0, 3.1], [4.0], [False], id="bad from the start"),
        pytest.param([0.69, 9.0], [float("nan")], [False], id="one label only"),
        pytest.param([2.0, 8.0, 21.0], None, [False, True], id="own loss"),
        pytest.param([-2.0, -1.0, 50.0], None, [False, False], id="own loss below 0"),
    ],
)
def test_alarms(losses: list[float], against: list[float] | None, expected: list[bool]) -> None:
    assert alarms(losses, against) == expected


def test_a_batch_before_the_first_interval_is_history_once() -> None:
    divergence = Divergence()
    for loss in (1.0, 1e4):
        divergence.begin(loss)
    divergence.judge(64, 5e3, 7e3)
    assert divergence.alarm is not None
    assert (
        "at 64 samples the loss is 5,000.00, 5,000.0 times the lowest before, and 7,000.0 times that of"
        in divergence.alarm
    )
