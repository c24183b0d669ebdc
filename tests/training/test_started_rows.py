"""What rows start with, and frozen layers of a Trainer."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heterps.config import FTRL, SGD, Adagrad, Adam, Optimizer, Optimizers, RowAdagrad, Schema, Tiers
from heterps.data.batch import Batch, Slots
from heterps.data.keys import slots_from_ids
from heterps.nn import SparseEmbedding
from heterps.ps import SparseTable
from heterps.ps.table.rows import Rows
from heterps.training.model.start import first_state
from heterps.training.model.trainer import Trainer

COLUMNS = Schema(dense=("x",), slots=("s", "t"))


@pytest.mark.parametrize(
    "optimizer",
    [SGD(), Adagrad(initial_accumulator=0.5), RowAdagrad(), Adam(), FTRL(lr=0.2, beta=0.5, l1=0.3, l2=0.1)],
    ids=lambda optimizer: optimizer.kind,
)
def test_rows_without_a_state_stay_what_they_are_until_they_have_a_gradient(optimizer: Optimizer) -> None:
    """FTRL makes its weights from its state, and would forget them with the first push."""
    values = np.array([[0.5, -2.0, 0.0], [1e-3, 3.0, -0.1]], np.float32)
    keys = np.array([1, 2], np.uint64)
    table = SparseTable(3, optimizer)
    state = first_state(optimizer, values)
    table.import_rows(Rows(keys, values, state, np.ones(2, np.float32), np.zeros(2, np.uint32)), 0, None)
    table.push(keys, np.zeros((2, 3), np.float32))
    assert np.allclose(table.pull(keys), values, rtol=1e-5)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = SparseEmbedding(["s"], 3, init_scale=0.5)
        self.b = SparseEmbedding(["t"], 3, init_scale=0.5)
        self.hidden = nn.Linear(7, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        rows = torch.cat([dense, self.a(slots).flatten(1), self.b(slots).flatten(1)], 1)
        logit: Tensor = self.out(torch.relu(self.hidden(rows)))
        return logit.squeeze(1)


def batch_of(seed: int, num: int = 64) -> Batch:
    random = np.random.default_rng(seed)
    ids = random.integers(0, 9, (num, 2))
    return Batch(
        random.normal(size=(num, 1)).astype(np.float32), slots_from_ids(ids, COLUMNS.slots), ids[:, 0] % 2 * 1.0
    )


@pytest.mark.parametrize("settings", [{}, {"num_threads": 3, "num_shards": 2}, {"tiers": Tiers(memory_bytes=1 << 20)}])
def test_a_trainer_leaves_alone_what_is_frozen(settings: dict[str, object]) -> None:
    frozen = Optimizers(freeze=("a", "hidden.*"), sparse=Adagrad(lr=0.3), dense=Adam(lr=0.1))
    torch.manual_seed(0)
    model = Net()
    before = copy.deepcopy(model)
    with Trainer(model, frozen, columns=COLUMNS, **settings) as trainer:  # type: ignore[arg-type]
        losses = [trainer.step(batch_of(seed))[0] for seed in range(20)]
        assert trainer.client.num_rows("a") == 0  # it was pulled, and got no rows
        assert trainer.client.num_rows("b") == 9
        assert trainer.client.num_pushes("a") == 0
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert torch.equal(model.hidden.weight, before.hidden.weight)
    assert model.hidden.weight.grad is None
    assert not torch.equal(model.out.weight, before.out.weight)
