from __future__ import annotations

from heterps.sync import Staleness


def test_updates_of_others_between_pull_and_push_are_counted() -> None:
    staleness = Staleness()
    assert staleness.mean is None
    for worker in "ab":
        staleness.pulled(worker)
    assert staleness.pushed("a") == 0
    staleness.pulled("a")
    assert staleness.pushed("a") == 0
    assert staleness.pushed("b") == 2
    assert staleness.counts == {0: 2, 2: 1}
    assert staleness.mean == 2 / 3


def test_a_round_is_one_update_and_nobody_in_it_is_stale() -> None:
    staleness = Staleness()
    for _ in range(3):
        for worker in "abc":
            staleness.pulled(worker)
        assert [staleness.pushed(worker, is_update=False) for worker in "abc"] == [0, 0, 0]
        staleness.end_round()
    assert staleness.version == 3
