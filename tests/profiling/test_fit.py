from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.profiling.fit import fit_fixed, fit_line, fit_share, share_error

shares = st.floats(0, 1)
seconds = st.floats(1e-6, 1e3)


@given(shares, seconds, st.sets(st.floats(1.1, 64), min_size=1, max_size=5))
def test_a_planted_share_is_recovered(alpha: float, whole_s: float, units: set[float]) -> None:
    times = {1.0: whole_s} | {k: whole_s * (1 - alpha + alpha / k) for k in units}
    assert fit_share(times) == pytest.approx(alpha, abs=1e-6)


def test_least_squares_weighs_the_points_by_hand() -> None:
    # x = 1/2, 3/4 and y = 0.4, 0.7: (0.2 + 0.525) / (0.25 + 0.5625)
    assert fit_share({1.0: 1.0, 2.0: 0.6, 4.0: 0.3}) == pytest.approx(0.725 / 0.8125)


def test_a_share_stays_between_zero_and_one() -> None:
    assert fit_share({1.0: 1.0, 2.0: 1.5}) == 0.0
    assert fit_share({1.0: 1.0, 2.0: 0.1}) == 1.0


@pytest.mark.parametrize("times", [{1.0: 2.0}, {1.0: 0.0, 2.0: 0.0}])
def test_nothing_to_fit_counts_as_divisible(times: dict[float, float]) -> None:
    assert fit_share(times) == 1.0


@given(st.floats(0, 1), st.floats(0, 1), st.sets(st.integers(1, 1000), min_size=2, max_size=6))
def test_a_planted_line_is_recovered(fixed: float, slope: float, amounts: set[int]) -> None:
    line = fit_line([(x, fixed + slope * x) for x in amounts])
    assert line.fixed_s == pytest.approx(fixed, abs=1e-6)
    assert line.per_unit_s == pytest.approx(slope, abs=1e-6)


def test_a_line_has_no_negative_terms() -> None:
    assert fit_line([(1, 2.0), (2, 1.0)]).per_unit_s == 0.0
    through_origin = fit_line([(1, 0.0), (2, 2.0)])
    assert through_origin.fixed_s == 0.0
    assert through_origin.per_unit_s == pytest.approx(4 / 5)


def test_a_line_needs_two_amounts() -> None:
    with pytest.raises(ValueError, match="two different amounts"):
        fit_line([(3, 1.0), (3, 2.0)])


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from([2.0, 5 / 3]))
def test_a_planted_fixed_part_is_recovered_from_two_batch_sizes(fixed: float, grows: float, k: float) -> None:
    assert fit_fixed({1.0: fixed + grows, k: fixed + grows / k, 4.0: 99.0}) == pytest.approx(fixed, abs=1e-9)


def test_a_fixed_part_is_never_more_than_the_whole_and_one_size_tells_nothing() -> None:
    assert fit_fixed({1.0: 1.0, 2.0: 3.0}) == 1.0
    assert fit_fixed({1.0: 1.0}) == 0.0


@pytest.mark.parametrize("ks", [(2.0,), (2.0, 4.0)])
def test_the_error_of_a_share_is_how_far_shares_of_disturbed_times_are_spread(ks: tuple[float, ...]) -> None:
    rng, errors = random.Random(0), {1.0: 0.01, 2.0: 0.02, 4.0: 0.03}
    exact = {1.0: 1.0} | {k: 0.4 + 0.6 / k for k in ks}
    tried = [fit_share({k: t * (1 + rng.gauss(0, errors[k])) for k, t in exact.items()}) for _ in range(4000)]
    found = share_error(exact, errors)
    assert found == pytest.approx(statistics.stdev(tried), rel=0.15)
    assert share_error({1.0: 1.0}, errors) == share_error({1.0: 0.0, 2.0: 0.0}, errors) == 0.0
