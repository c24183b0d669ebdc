from __future__ import annotations

from heterps.sync import Staleness


def test_updates_of_others_between_pull_and_push_are_counted() -> None:
    staleness = Staleness()
    assert staleness.mean is None
    for worker in "ab":
        staleness.pulled(worker)
    assert staleness.pushed("a") == 0
    staleness.updated()
    staleness.pulled("a")
    assert staleness.pushed("a") == 0
    staleness.updated()
    assert staleness.pushed("b") == 2
    assert staleness.counts == {0: 2, 2: 1}
    assert staleness.mean == 2 / 3
