"""Tables against torch.nn.Embedding and torch.optim, a hundred steps on the same ids."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from heterps.config import CosineRate, LinearRate, StepRate
from heterps.ps import FTRL, SGD, Adagrad, Adam, AdamW, Momentum, RowAdagrad, SparseTable
from heterps.ps.table.dense import DenseTable
from heterps.ps.table.optimizers import update

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
    (Momentum(lr=0.02, momentum=0.5), lambda weights: torch.optim.SGD(weights, lr=0.02, momentum=0.5)),
    (
        AdamW(lr=0.01, weight_decay=0.1),
        lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.1),
    ),
    (Adam(lr=0.01), lambda weights: torch.optim.Adam(weights, lr=0.01)),
    (
        Adam(lr=0.01, beta1=0.5, beta2=0.9, eps=1e-4),
        lambda weights: torch.optim.Adam(weights, lr=0.01, betas=(0.5, 0.9), eps=1e-4),
    ),
]
DECAYING = [
    (SGD(lr=0.1, weight_decay=0.2), lambda weights: torch.optim.SGD(weights, lr=0.1, weight_decay=0.2)),
    (
        Momentum(lr=0.02, momentum=0.5, weight_decay=0.2),
        lambda weights: torch.optim.SGD(weights, lr=0.02, momentum=0.5, weight_decay=0.2),
    ),
    (Adagrad(lr=0.1, weight_decay=0.2), lambda weights: torch.optim.Adagrad(weights, lr=0.1, weight_decay=0.2)),
    (Adam(lr=0.01, weight_decay=0.2), lambda weights: torch.optim.Adam(weights, lr=0.01, weight_decay=0.2)),
    (AdamW(lr=0.01, weight_decay=0.2), lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.2)),
]


def name(optimizer: object) -> str:
    return getattr(optimizer, "kind", "")


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


@pytest.mark.parametrize(("ours", "theirs"), [*DENSE, *DECAYING], ids=name)
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


SCHEDULES = [
    (LinearRate(warmup=19), lambda samples: min((samples + 1) / 20, 1.0)),
    (LinearRate(until=1000, floor=0.25), lambda samples: max(1 - 0.75 * samples / 1000, 0.25)),
    (CosineRate(until=800), lambda samples: (1 + math.cos(math.pi * min(samples / 800, 1.0))) / 2),
    (StepRate(every=300, factor=0.1), lambda samples: 0.1 ** (samples // 300)),
]


@pytest.mark.parametrize(("schedule", "curve"), SCHEDULES, ids=["warmup", "linear", "cosine", "step"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            AdamW(lr=0.05, weight_decay=0.5),
            lambda weights: torch.optim.AdamW(weights, lr=0.05, weight_decay=0.5),
        ),
        (Adam(lr=0.05), lambda weights: torch.optim.Adam(weights, lr=0.05)),
        (Momentum(lr=0.05, momentum=0.9), lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9)),
    ],
    ids=name,
)
def test_dense_table_under_a_schedule_equals_the_optimizer_under_lambda_lr(ours, theirs, schedule, curve):
    """Decay follows the scheduled rate too. Half of the gradients are zero: those values move by decay alone."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=200).astype(np.float32) + 3
    table = DenseTable(200, ours, schedule)
    table.values[:] = start
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = theirs([weight])
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: curve(10 * step))
    for step in range(STEPS):
        grads = rng.normal(size=200).astype(np.float32)
        grads[::2] = 0
        table.push(grads, samples=10 * step)
        weight.grad = torch.from_numpy(grads)
        optimizer.step()
        rate.step()
    np.testing.assert_allclose(table.values, weight.detach().numpy(), atol=2e-6)
    decayed = np.prod([1 - 0.05 * 0.5 * curve(10 * step) for step in range(STEPS)]) if name(ours) == "adamw" else 1.0
    np.testing.assert_allclose(table.values[::2], decayed * start[::2], rtol=1e-5)


def test_decay_follows_the_factor_that_a_table_is_told():
    table = DenseTable(1, AdamW(lr=0.1, weight_decay=0.5))
    table.values[:] = 1
    table.rate = 0.5
    table.push(np.zeros(1, np.float32))
    assert table.values[0] == np.float32(1 - 0.5 * 0.1 * 0.5)


def steps_of(table: SparseTable, num: int = 30) -> list[np.ndarray]:
    """Push random gradients of all of ten keys; the gradients, in float64."""
    rng = np.random.default_rng(0)
    grads = [rng.normal(size=(10, table.dim)).astype(np.float32) for _ in range(num)]
    for grad in grads:
        table.push(np.arange(10), grad)
    return [grad.astype(np.float64) for grad in grads]


def test_sparse_momentum_equals_sgd_with_momentum_on_rows_of_every_push():
    table = SparseTable(DIM, Momentum(lr=0.1, momentum=0.8), init_scale=0.5)
    weight = torch.nn.Parameter(torch.from_numpy(table.pull(np.arange(10))))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.8)
    for grad in steps_of(table):
        weight.grad = torch.from_numpy(grad.astype(np.float32))
        optimizer.step()
    np.testing.assert_allclose(table.pull(np.arange(10)), weight.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(("ours", "theirs"), DECAYING, ids=name)
def test_rows_of_every_push_decay_as_the_weights_of_the_optimizer(ours, theirs):
    table = SparseTable(DIM, ours, init_scale=0.5)
    weight = torch.nn.Parameter(torch.from_numpy(table.pull(np.arange(10))))
    optimizer = theirs([weight])
    for grad in steps_of(table):
        weight.grad = torch.from_numpy(grad.astype(np.float32))
        optimizer.step()
    np.testing.assert_allclose(table.pull(np.arange(10)), weight.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("ours", [ours for ours, _ in DECAYING] + [RowAdagrad(weight_decay=0.2)], ids=name)
def test_rows_that_are_not_pushed_do_not_decay(ours):
    table = SparseTable(DIM, ours, init_scale=0.5)
    before = table.pull([1, 2])
    table.push([1], np.zeros((1, DIM), np.float32))
    after = table.pull([1, 2])
    assert ((after - before)[0] * before[0] < 0).all()
    np.testing.assert_array_equal(after[1], before[1])


def test_row_adagrad_follows_its_formula():
    ours = RowAdagrad(lr=0.1, eps=1e-6, initial_accumulator=0.5, weight_decay=0.3)
    table = SparseTable(DIM, ours, init_scale=0.5)
    weight, squares = table.pull(np.arange(10)).astype(np.float64), np.full((10, 1), 0.5)
    for pushed in steps_of(table):
        grad = pushed + 0.3 * weight
        squares += (grad**2).mean(axis=1, keepdims=True)
        weight -= 0.1 * grad / (np.sqrt(squares) + 1e-6)
    np.testing.assert_allclose(table.pull(np.arange(10)), weight, atol=1e-5)
    assert table.export_rows().state.shape == (10, 1)


def test_ftrl_follows_the_paper_and_makes_exact_zeros():
    table = SparseTable(DIM, FTRL(lr=0.1, beta=1.0, l1=2.0, l2=0.5), init_scale=0.0)
    weight, z, n = np.zeros((3, 10, DIM))
    for grad in steps_of(table):
        sigma = (np.sqrt(n + grad**2) - np.sqrt(n)) / 0.1
        z += grad - sigma * weight
        n += grad**2
        weight = np.where(np.abs(z) <= 2.0, 0.0, -(z - np.sign(z) * 2.0) / ((1.0 + np.sqrt(n)) / 0.1 + 0.5))
    values = table.pull(np.arange(10))
    np.testing.assert_allclose(values, weight, atol=1e-5)
    assert 0.05 < (values == 0).mean() < 0.95


@pytest.mark.parametrize("optimizer", [RowAdagrad(), FTRL()], ids=name)
def test_dense_tables_refuse_optimizers_of_rows(optimizer):
    with pytest.raises(ValueError, match=f"{optimizer.kind} is for the rows of sparse tables; use sgd"):
        DenseTable(3, optimizer)


def test_dense_table_refuses_gradients_of_another_size():
    with pytest.raises(ValueError, match=r"dense table of 3 values needs as many gradients, got shape \(4,\)"):
        DenseTable(3, SGD()).push(np.zeros(4, np.float32))


def test_an_optimizer_that_no_kernel_knows_is_refused_and_changes_nothing() -> None:
    words = np.arange(6, dtype=np.float32)
    with pytest.raises(ValueError, match="no step for this optimizer"):
        update(99, words, np.zeros(1, np.int64), 2, np.ones(2, np.float32), 0, np.ones(5, np.float32))
    assert words.tolist() == [0, 1, 2, 3, 4, 5]
