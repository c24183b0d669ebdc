"""Initial values: to the bit those of the reference, and distributed as their names say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_table import initial_values

from heterps.config import Constant, Normal, Uniform, Zero
from heterps.ps import SGD, SparseTable

INITIALIZERS = [Uniform(scale=0.3), Normal(std=0.3), Constant(value=-1.5), Zero()]
initializers = pytest.mark.parametrize("init", INITIALIZERS, ids=lambda init: init.kind)


@initializers
@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20), st.integers(0, 2**64 - 1))
def test_rows_begin_as_the_reference_says_whether_pulled_pushed_or_peeked(init, keys, seed):
    keys = np.array(keys, np.uint64)
    expected = np.array([initial_values(int(key), 5, seed, init) for key in keys])
    table = SparseTable(5, SGD(), seed, init=init)
    np.testing.assert_array_equal(table.pull(keys, create=False), expected)
    table.push(keys, np.zeros((len(keys), 5)))
    np.testing.assert_array_equal(table.pull(keys), expected)


def test_normal_values_have_the_moments_and_tails_of_the_normal_distribution():
    values = SparseTable(50, init=Normal(std=2.0)).pull(np.arange(20_000), create=False).ravel() / 2
    assert abs(values.mean()) < 0.005
    assert abs(values.std() - 1) < 0.005
    assert abs((values**4).mean() - 3) < 0.05
    for bound, chance in ((1, 0.3173), (2, 0.0455), (3, 0.0027)):
        assert np.mean(np.abs(values) > bound) == pytest.approx(chance, rel=0.05)
    assert np.abs(values).max() < 4.2


def test_normal_values_stay_what_they_were():
    """A worker of another version must make the same rows."""
    expected = [0.8788372874259949, -0.025450291112065315, 0.19426746666431427]
    values = initial_values(42, 3, seed=7, init=Normal(std=1.0))
    np.testing.assert_array_equal(values, np.float32(expected))


def test_init_replaces_init_scale():
    assert SparseTable(2, init_scale=0.5, init=Zero()).pull([1]).tolist() == [[0, 0]]
