"""SparseSequence: rows in their order with a mask, cut and padded as a loop would, on tables shared with others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heterps import Trainer
from heterps.config import SGD, Optimizers
from heterps.data.batch import Batch, Slots
from heterps.errors import ModelError
from heterps.lookups import prepared, slice_slots
from heterps.nn import SparseEmbedding, SparseSequence, bind_tables, model_tables, push_gradients
from heterps.ps.client.local import LocalClient

DIM = 3
BAGS = [[1, 2, 3], [], [4, 5, 6, 7, 8, 9], [2], [7, 7, 1, 2]]


def slots_of(histories: list[list[int]], items: list[int]) -> Slots:
    """A slot `item` and a slot `history` that share their keys."""
    bags = [bag for pair in zip(items, histories, strict=True) for bag in ([pair[0]], pair[1])]
    keys = np.array([key for bag in bags for key in bag], np.uint64)
    return Slots(("item", "history"), keys, np.cumsum([0, *map(len, bags)]))


class Both(nn.Module):
    """The item and its history on one table, added up."""

    def __init__(self, max_length: int = 4) -> None:
        super().__init__()
        self.items = SparseEmbedding(["item"], DIM)
        self.history = SparseSequence("history", DIM, max_length=max_length, table="items")

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        rows, mask = self.history(slots)
        places = torch.arange(1.0, 1 + rows.shape[1])
        weighted = (rows * (places * mask).unsqueeze(2)).sum(1)
        return (self.items(slots).squeeze(1) + weighted).sum(1) + 0 * dense.sum()


@pytest.mark.parametrize("keep", ["newest", "oldest"])
@pytest.mark.parametrize("max_length", [1, 4, 9])
def test_rows_are_in_order_and_end_at_the_last_place(keep: str, max_length: int) -> None:
    sequence = SparseSequence("history", DIM, max_length=max_length, keep=keep)
    rows, mask = sequence(slots_of(BAGS, [0] * 5))
    assert rows.shape == (5, max_length, DIM)
    row_of = {key: sequence.client.pull("embedding", _lookup([key])).result()[0] for key in range(10)}
    for sample, bag in enumerate(BAGS):
        kept = bag[-max_length:] if keep == "newest" else bag[:max_length]
        empty = max_length - len(kept)
        assert mask[sample].tolist() == [False] * empty + [True] * len(kept)
        expected = np.array([np.zeros(DIM, np.float32)] * empty + [row_of[key] for key in kept])
        np.testing.assert_array_equal(rows[sample].detach().numpy(), expected)


def _lookup(keys: list[int]):
    from heterps.ps.keys.dedup import make_lookup

    return make_lookup(np.array(keys, np.uint64))


def test_a_slot_of_single_ids_is_a_list_of_one() -> None:
    rows, mask = SparseSequence("s", DIM, max_length=2)(Slots(("s",), np.array([3, 4], np.uint64)))
    assert rows.shape == (2, 2, DIM)
    assert mask.tolist() == [[False, True]] * 2


def test_keys_that_are_cut_off_are_not_pulled() -> None:
    sequence = SparseSequence("history", DIM, max_length=2)
    sequence(slots_of(BAGS, [0] * 5))
    assert sequence.client.num_rows("embedding") == len({1, 2, 3, 8, 9})


def test_a_piece_of_a_batch_has_the_sequences_of_its_samples() -> None:
    sequence = SparseSequence("history", DIM, max_length=3)
    slots = prepared(slots_of(BAGS, [0] * 5))
    sequence.prepare(slots)
    whole, mask = sequence(slots)
    for first, last in ((0, 2), (1, 4), (3, 5)):
        rows, part = sequence(slice_slots(slots, first, last))
        assert torch.equal(rows, whole[first:last])
        assert torch.equal(part, mask[first:last])


def test_a_row_learns_from_both_modules_in_one_step() -> None:
    model = Both()
    trainer = Trainer(model, Optimizers(sparse=SGD(lr=1.0)))
    batch = Batch(np.zeros((1, 1), np.float32), slots_of([[5, 6, 5]], [5]), np.array([1.0], np.float32))
    keys = np.array([5, 6], np.uint64)
    before = trainer.client.pull("items", _lookup([5, 6])).result().copy()
    trainer.step(trainer.prepare(batch))
    moved = trainer.client.pull("items", _lookup([5, 6])).result() - before
    logit = float(before[0].sum() * (1 + 2 + 4) + before[1].sum() * 3)
    gradient = 1 / (1 + np.exp(-logit)) - 1
    np.testing.assert_allclose(moved, -gradient * np.array([[7.0] * DIM, [3.0] * DIM]), rtol=1e-5)
    assert len(keys) == trainer.num_rows
    assert [spec.name for spec in trainer.tables.sparse] == ["items"]
    trainer.close()


def test_your_own_loop_pushes_once_to_a_shared_table() -> None:
    model = Both()
    client = LocalClient(model_tables(model, Optimizers(sparse=SGD(lr=1.0))).sparse, {})
    bind_tables(model, client)
    before = client.pull("items", _lookup([5])).result().copy()
    model(torch.zeros(1, 1), slots_of([[5]], [5])).sum().backward()
    push_gradients(model)
    np.testing.assert_allclose(client.pull("items", _lookup([5])).result() - before, [[-5.0] * DIM], rtol=1e-5)


def test_a_shared_table_that_is_not_bound_can_be_read_but_not_trained() -> None:
    model = Both()
    slots = slots_of([[5]], [5])
    rows, _ = model.history(slots)
    assert torch.equal(rows[0, -1], model.history(slots)[0][0, -1])
    model(torch.zeros(1, 1), slots).sum().backward()
    with pytest.raises(ModelError, match=r"history cannot learn alone, .*table items.*Trainer\(model\)"):
        push_gradients(model)


def test_modules_that_share_a_table_must_agree_about_it() -> None:
    model = Both()
    model.other = SparseSequence("history", DIM + 1, max_length=2, table="items")
    with pytest.raises(ModelError, match="share the table items must agree about it, but differ in dim"):
        model_tables(model)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"max_length": 3, "keep": "best"}, "keep must be newest or oldest"),
    ],
)
def test_wrong_settings_are_refused(arguments: dict, problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        SparseSequence("history", DIM, **arguments)
    with pytest.raises(ModelError, match="names one table"):
        SparseEmbedding(["a", "b"], DIM, tables="per_slot", table="x")
