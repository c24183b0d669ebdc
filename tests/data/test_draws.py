"""Random numbers as functions: of the row and not of the cut, of the id and not of the order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.data.draws import features, group_of, uniforms, zipf_ranks


@settings(max_examples=30)
@given(st.integers(0, 2**63 - 1), st.integers(0, 2**41), st.integers(0, 50), st.integers(1, 50))
def test_a_row_does_not_depend_on_where_a_cut_begins(seed: int, first: int, skip: int, size: int) -> None:
    whole = uniforms(seed, first, skip + size, 3)
    assert np.array_equal(uniforms(seed, first + skip, size, 3), whole[:, skip:])
    assert ((whole > 0) & (whole < 1)).all()


def test_columns_rows_and_seeds_are_independent_and_even() -> None:
    n = 20_000
    columns = np.vstack([uniforms(0, 0, n, 3), uniforms(0, n, n, 1), uniforms(1, 0, n, 1)])
    assert columns.mean(axis=1) == pytest.approx(0.5, abs=0.01)
    assert np.corrcoef(columns) == pytest.approx(np.eye(5), abs=0.04)


def test_features_are_of_the_id_its_kind_and_the_seed() -> None:
    ids = np.array([7, 3, 7])
    found = features(0, 1, ids)
    assert np.array_equal(found[0], found[2])
    assert np.array_equal(features(0, 1, np.array([3]))[0], found[1])
    others = (found[1], features(0, 2, ids)[0], features(1, 1, ids)[0])
    assert not any(np.array_equal(found[0], other) for other in others)


def test_features_are_standardised() -> None:
    found = features(0, 0, np.arange(20_000))
    assert found.mean(axis=0) == pytest.approx(0, abs=0.04)
    assert np.cov(found.T) == pytest.approx(np.eye(4), abs=0.04)


def test_groups_are_all_used_about_equally() -> None:
    counts = np.bincount(group_of(0, 3, np.arange(20_000), 40))
    assert len(counts) == 40
    assert counts == pytest.approx(500, abs=120)


@pytest.mark.parametrize("size", [1, 400, 50_000])
def test_ranks_stay_in_range_and_follow_the_law(size: int) -> None:
    ranks = zipf_ranks(uniforms(0, 0, 50_000, 1)[0], size, 1.05)
    assert ranks.min() == 0
    assert ranks.max() <= size - 1
    for k in (1, 10, 100):
        share = min(((k + 1) ** -0.05 - 1) / ((size + 1) ** -0.05 - 1), 1.0)
        assert (ranks < k).mean() == pytest.approx(share, abs=0.01)
    ends = zipf_ranks(np.array([1e-16, 1 - 1e-16]), size, 1.05)
    assert ends.tolist() == [0, size - 1]
