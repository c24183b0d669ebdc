"""Tables against torch.nn.Embedding and torch.optim, a hundred steps on the same ids."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from heterps.ps import SGD, Adagrad, Adam, SparseTable
from heterps.ps.dense import DenseTable

STEPS, NUM_IDS, DIM = 100, 200, 16
SPARSE = [
    (SGD(lr=0.1), lambda weights: torch.optim.SGD(weights, lr=0.1)),
    (Adagrad(lr=0.1), lambda weights: torch.optim.Adagrad(weights, lr=0.1)),
    (
        Adagrad(lr=0.1, initial_accumulator=0.1, eps=1e-6),
        lambda weights: torch.optim.Adagrad(weights, lr=0.1, initial_accumulator_value=0.1, eps=1e-6),
    ),
    (Adam(lr=0.01), lambda weights: torch.optim.SparseAdam(weights, lr=0.01)),
    (
        Adam(lr=0.01, beta1=0.5, beta2=0.9, eps=1e-4),
        lambda weights: torch.optim.SparseAdam(weights, lr=0.01, betas=(0.5, 0.9), eps=1e-4),
    ),
]
DENSE = [
    *SPARSE[:3],
    (Adam(lr=0.01), lambda weights: torch.optim.Adam(weights, lr=0.01)),
    (
        Adam(lr=0.01, beta1=0.5, beta2=0.9, eps=1e-4),
        lambda weights: torch.optim.Adam(weights, lr=0.01, betas=(0.5, 0.9), eps=1e-4),
    ),
]


def name(optimizer: object) -> str:
    return optimizer.kind if isinstance(optimizer, (SGD, Adagrad, Adam)) else ""


@pytest.mark.parametrize(("ours", "theirs"), SPARSE, ids=name)
def test_sparse_table_equals_a_sparse_embedding(ours, theirs):
    """Ids repeat within a batch, some come late, some never: only the rows of a batch may move."""
    rng = np.random.default_rng(0)
    table = SparseTable(DIM, ours, init_scale=0.5)
    embedding = torch.nn.Embedding(NUM_IDS, DIM, sparse=True)
    with torch.no_grad():
        embedding.weight.copy_(torch.from_numpy(table.pull(np.arange(NUM_IDS), create=False)))
    optimizer = theirs(embedding.parameters())
    for step in range(STEPS):
        ids = rng.integers(0, 20 + step, 64)
        target = torch.from_numpy(rng.normal(size=(64, DIM)).astype(np.float32))

        rows = torch.from_numpy(table.pull(ids)).requires_grad_()
        ((rows - target) ** 2).sum().backward()
        table.push(ids, rows.grad.numpy())

        optimizer.zero_grad()
        ((embedding(torch.from_numpy(ids)) - target) ** 2).sum().backward()
        optimizer.step()
    assert 64 < len(table) < NUM_IDS
    difference = table.pull(np.arange(NUM_IDS)) - embedding.weight.detach().numpy()
    assert np.abs(difference).max() <= 1e-6


@pytest.mark.parametrize(("ours", "theirs"), DENSE, ids=name)
def test_dense_table_equals_the_optimizer(ours, theirs):
    rng = np.random.default_rng(0)
    start = rng.normal(size=1000).astype(np.float32)
    table = DenseTable(1000, ours)
    table.values[:] = start
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = theirs([weight])
    for _ in range(STEPS):
        grads = rng.normal(size=1000).astype(np.float32)
        table.push(grads)
        weight.grad = torch.from_numpy(grads)
        optimizer.step()
    assert table.num_pushes == STEPS
    assert np.abs(table.values - start).max() > 0.1
    assert np.abs(table.values - weight.detach().numpy()).max() <= 1e-6


def test_dense_table_refuses_gradients_of_another_size():
    with pytest.raises(ValueError, match=r"dense table of 3 values needs as many gradients, got shape \(4,\)"):
        DenseTable(3, SGD()).push(np.zeros(4, np.float32))
