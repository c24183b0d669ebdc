"""Statistics: percentiles that bound the truth from above, rates of the last interval."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heterps.ps.server.stats import Rate
from heterps.ps.shard.counts import Histogram


@given(times=st.lists(st.floats(1e-6, 50), min_size=1, max_size=200), percent=st.sampled_from([50, 90, 99, 99.9]))
def test_a_percentile_is_at_most_a_bucket_above_the_truth(times: list[float], percent: float) -> None:
    histogram = Histogram()
    for seconds in times:
        histogram.add(seconds)
    truth = np.percentile(times, percent, method="inverted_cdf")
    assert truth * 0.999 <= histogram.percentile(percent) <= truth * 1.2


def test_times_beyond_the_buckets_are_counted_in_the_outermost() -> None:
    histogram = Histogram()
    assert histogram.percentile(50) == 0.0
    histogram.add(0.0)
    histogram.add(1e6)
    assert histogram.percentile(50) == 1e-6
    assert 60 < histogram.percentile(99) < 100


def test_a_rate_is_of_the_last_interval_only() -> None:
    rate = Rate(interval_s=1.0)
    for now, count in ((0.0, 0), (0.5, 50), (2.0, 100)):
        rate.update(count, now)
    assert rate.per_s == 50.0
    rate.update(100, 4.0)
    assert rate.per_s == 0.0
