"""Every optimizer of job files has a step for tables, and a name in heterps.ps."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from heterps import config, ps
from heterps.config import DenseOptimizer, Optimizer
from heterps.config.optimizer_kinds import SparseOptimizer
from heterps.ps import SparseTable
from heterps.ps.table.dense import DenseTable
from heterps.ps.table.optimizers import coefficients

SPARSE, DENSE = get_args(SparseOptimizer), get_args(DenseOptimizer)


@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_an_optimizer_is_exported_and_has_the_coefficients_that_every_step_reads(optimizer: type[Any]) -> None:
    assert getattr(ps, optimizer.__name__) is getattr(config, optimizer.__name__) is optimizer
    assert {optimizer.__name__} <= {*ps.__all__} & {*config.__all__}
    assert len(coefficients(optimizer(), 1, 1.0, sparse=optimizer in SPARSE)) >= 2


@pytest.mark.parametrize("optimizer", SPARSE)
def test_a_step_moves_rows_against_their_gradients(optimizer: type[Any]) -> None:
    table, keys = SparseTable(4, optimizer(lr=0.1)), np.arange(3)
    before = table.pull(keys).copy()
    table.push(keys, np.ones((3, 4), np.float32))
    assert (table.pull(keys) < before).all()
    assert len(table.export_rows().state) == 3


@pytest.mark.parametrize("optimizer", DENSE)
def test_a_step_moves_dense_values_against_their_gradients(optimizer: type[Any]) -> None:
    table = DenseTable(5, optimizer(lr=0.1))
    before = table.values.copy()
    table.push(np.ones(5, np.float32))
    assert (table.values < before).all()
