"""Growth of distinct ids: the law is found again where it holds, and the interval grows with what is not known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import heterps_here

from heterps.data.growth import Growth, fit_growth, worth_a_point


def test_an_exact_law_is_found_again_and_is_sure_of_itself() -> None:
    points = [(n, round(40 * n**0.6)) for n in (100, 1000, 10_000, 20_000, 40_000, 80_000)]
    found = fit_growth(points)
    assert found is not None
    assert (found.coefficient, found.exponent) == pytest.approx((40, 0.6), rel=1e-2)
    assert found.distinct(1_000_000) == pytest.approx(40 * 1e6**0.6, rel=2e-2)
    low, high = found.interval(1_000_000)
    assert high / low < 1.05


def test_the_interval_of_a_bending_curve_holds_what_was_really_drawn() -> None:
    ids = np.random.default_rng(0).zipf(1.3, 2_000_000) % 300_000
    points: list[tuple[int, int]] = []
    for n in range(1000, 100_001, 1000):
        if worth_a_point(n, points):
            points.append((n, len(np.unique(ids[:n]))))
    found = fit_growth(points)
    assert found is not None
    for n in (200_000, 500_000):
        low, high = found.interval(n)
        assert low <= len(np.unique(ids[:n])) <= high, n
    widths = [high / low for low, high in (found.interval(n) for n in (100_000, 1_000_000, 100_000_000))]
    assert widths == sorted(widths), "farther is less sure"


def test_ids_that_have_all_been_seen_do_not_grow() -> None:
    found = fit_growth([(n, 26) for n in (1000, 2000, 4000, 8000)])
    assert found is not None
    assert found.distinct(1e9) == pytest.approx(26)
    assert found.interval(1e9) == pytest.approx((26, 26))


@pytest.mark.parametrize("points", [[], [(10, 5)], [(10, 5), (20, 7)], [(0, 0), (0, 0), (0, 0)]])
def test_too_few_points_say_nothing(points: list[tuple[int, int]]) -> None:
    assert fit_growth(points) is None


def test_fewer_ids_than_were_seen_are_never_expected() -> None:
    growth = Growth(coefficient=1.0, exponent=0.5, error=0.0, exponent_error=2.0, samples=10_000)
    assert growth.interval(1_000_000)[0] == pytest.approx(100)


def test_describe_says_how_many_ids_to_expect(tmp_path: Path) -> None:
    made = heterps_here("data", "synth", "data", "--rows", 300_000, "--test-rows", 0, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    shown = heterps_here("data", "describe", "data/train", cwd=tmp_path)
    assert "expected in 3,000,000 rows (Heaps' law)" in " ".join(shown.stdout.split())
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    columns = json.loads(heterps_here("data", "describe", "data/train", "--json", cwd=tmp_path).stdout)["columns"]
    for column in columns:
        if "slots" in column["roles"]:
            assert column["distinct"] <= column["expected"]["high"]
            assert column["expected"]["low"] <= column["expected"]["distinct"] <= column["expected"]["high"]
