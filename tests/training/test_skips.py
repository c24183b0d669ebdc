"""Skips: single batches may be skipped, and too many are an error."""

from __future__ import annotations

import pytest

from heterps.errors import NotFinite
from heterps.training.run.skips import JUDGED_AFTER, MOST_IN_A_ROW, Skips


def test_a_few_may_be_skipped_before_their_share_is_judged() -> None:
    skips = Skips()
    for _ in range(JUDGED_AFTER // 2 - 1):
        skips.skipped(8)
        skips.check("why")
        skips.went_on()
    assert (skips.batches, skips.samples, skips.total) == (49, 49 * 8, 98)
    for _ in range(2):
        skips.went_on()
    skips.skipped(8)
    with pytest.raises(NotFinite, match=r"50 of 101 batches were skipped, more than 1%: .* The last one: why"):
        skips.check("why")


def test_one_in_a_hundred_may_be_skipped_for_ever() -> None:
    skips = Skips()
    for _ in range(50):
        for _ in range(99):
            skips.went_on()
        skips.skipped(8)
        skips.check("why")
    assert skips.batches == 50


def test_too_many_in_a_row_end_the_run_also_after_a_resume() -> None:
    skips = Skips()
    for _ in range(MOST_IN_A_ROW - 1):
        skips.skipped(1)
        skips.check("why")
    resumed = Skips(**skips.state())
    resumed.skipped(1)
    with pytest.raises(NotFinite, match="the last 10 batches were all skipped"):
        resumed.check("why")


def test_an_interval_counts_its_own() -> None:
    skips = Skips()
    assert skips.close_interval() == {}
    skips.skipped(8)
    assert skips.close_interval() == {"skipped_batches": 1, "skipped_samples": 8}
    assert skips.close_interval() == {}
    assert skips.warning == "1 batch was skipped, with 8 samples: their loss or gradients were not finite."
