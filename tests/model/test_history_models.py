"""din and bst against plain PyTorch on the same parameters, and what they do with places that are empty."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from zoo_cases import CASES, small_model

from heterps import Trainer
from heterps.config import Schema
from heterps.data.batch import Batch, Slots
from heterps.errors import ModelError
from heterps.model.zoo import ZOO, bst, din

NUM_IDS, LENGTH, DIM = 12, 5, 4
HISTORIES = [[1, 2, 3], [], [4, 5, 6, 7, 8, 9, 10], [2], [7, 7, 1, 2, 11], [3, 3]]
ITEMS, USERS = [2, 5, 9, 2, 1, 0], [100, 101, 100, 102, 103, 101]
LABELS = torch.tensor([1.0, 0, 1, 1, 0, 0])


def make_batch() -> Batch:
    """Ids are their own keys, so that a plain embedding can have the same rows."""
    bags = [bag for row in zip(USERS, ITEMS, HISTORIES, strict=True) for bag in ([row[0]], [row[1]], row[2])]
    keys = np.array([key for bag in bags for key in bag], np.uint64)
    dense = np.random.default_rng(0).standard_normal((len(ITEMS), 1)).astype(np.float32)
    return Batch(dense, Slots(("user", "item", "history"), keys, np.cumsum([0, *map(len, bags)])), LABELS.numpy())


class Plain(nn.Module):
    """What both models share, in plain PyTorch: padded histories, and rows in nn.Embedding."""

    def __init__(self, model: nn.Module, trainer: Trainer) -> None:
        super().__init__()
        from heterps.ps.keys.dedup import make_lookup

        def rows(table: str, first: int, count: int) -> Tensor:
            lookup = make_lookup(np.arange(first, first + count, dtype=np.uint64))
            pulled = trainer.client.pull(table, lookup).result()
            return torch.from_numpy(pulled[lookup.inverse].copy())

        self.items = nn.Embedding.from_pretrained(rows("items", 0, NUM_IDS), freeze=False)
        self.users = nn.Embedding.from_pretrained(rows("context", 100, 4), freeze=False)
        self.load_own(model)
        newest = [history[-LENGTH:] for history in HISTORIES]
        self.history = torch.tensor([[0] * (LENGTH - len(h)) + h for h in newest])
        self.mask = torch.tensor([[0.0] * (LENGTH - len(h)) + [1.0] * len(h) for h in newest])

    def load_own(self, model: nn.Module) -> None:
        raise NotImplementedError

    def interest(self, target: Tensor, rows: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, dense: Tensor) -> Tensor:
        target, rows = self.items(torch.tensor(ITEMS)), self.items(self.history)
        users = self.users(torch.tensor(USERS) - 100)
        x = torch.cat([dense, target, self.interest(target, rows), users], 1)
        return self.out(torch.relu(self.first(x)))[:, 0]

    def tower(self, model: nn.Module) -> None:
        self.first, self.out = nn.Linear(1 + 3 * DIM, 8), nn.Linear(8, 1)
        self.first.load_state_dict(model.deep.linear1.state_dict())
        self.out.load_state_dict(model.deep.logit.state_dict())


class PlainDin(Plain):
    def load_own(self, model: nn.Module) -> None:
        self.tower(model)
        self.unit1, self.unit2 = nn.Linear(4 * DIM, 6), nn.Linear(6, 1)
        self.unit1.load_state_dict(model.attention.unit.linear1.state_dict())
        self.unit2.load_state_dict(model.attention.unit.logit.state_dict())

    def interest(self, target: Tensor, rows: Tensor) -> Tensor:
        total = torch.zeros_like(target)
        for place in range(LENGTH):  # one after the other
            h = rows[:, place]
            weight = self.unit2(torch.relu(self.unit1(torch.cat([h, target, h - target, h * target], 1))))
            total = total + weight * h * self.mask[:, place : place + 1]
        return total


class PlainBst(Plain):
    def load_own(self, model: nn.Module) -> None:
        self.tower(model)
        self.positions = nn.Parameter(model.sequence.positions.detach().clone())
        block = model.blocks[0]
        names = ("self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight")
        state = block.state_dict()
        self.in_weight, self.in_bias, self.out_weight = (nn.Parameter(state[name].clone()) for name in names)
        self.block = block.state_dict()

    def interest(self, target: Tensor, rows: Tensor) -> Tensor:
        """The formulas of a post-norm block, for the last place alone."""
        x = torch.cat([rows, target[:, None]], 1) + self.positions
        seen = torch.cat([self.mask, torch.ones(len(target), 1)], 1)
        q, k, v = (x @ self.in_weight.T + self.in_bias).split(DIM, 2)
        heads = []
        for head in (slice(0, 2), slice(2, 4)):
            scores = torch.einsum("bd,bld->bl", q[:, -1, head], k[:, :, head]) / 2**0.5
            weights = torch.softmax(scores.masked_fill(seen == 0, -torch.inf), 1)
            heads.append(torch.einsum("bl,bld->bd", weights, v[:, :, head]))
        b = self.block
        attended = torch.cat(heads, 1) @ self.out_weight.T + b["self_attn.out_proj.bias"]
        y = functional.layer_norm(x[:, -1] + attended, (DIM,), b["norm1.weight"], b["norm1.bias"])
        inner = torch.relu(y @ b["linear1.weight"].T + b["linear1.bias"]) @ b["linear2.weight"].T + b["linear2.bias"]
        return functional.layer_norm(y + inner, (DIM,), b["norm2.weight"], b["norm2.bias"])


@pytest.mark.parametrize(("name", "plain_kind"), [("din", PlainDin), ("bst", PlainBst)])
def test_loss_and_gradients_are_those_of_plain_pytorch(name: str, plain_kind: type[Plain]) -> None:
    torch.manual_seed(1)
    model, batch = small_model(name), make_batch()
    with Trainer(model) as trainer:
        plain = plain_kind(model, trainer)
        loss = functional.binary_cross_entropy_with_logits(plain(torch.from_numpy(batch.dense)), LABELS)
        loss.backward()
        found = trainer.gradients(trainer.prepare(batch))
        assert found.loss == pytest.approx(float(loss.detach()), rel=1e-6)
        for table, embedding, first in (("items", plain.items, 0), ("context", plain.users, 100)):
            (rows,) = [taken for taken in found.rows if taken.table == table]
            summed = np.zeros(embedding.weight.shape, np.float32)
            keys = rows.lookup.unique[rows.lookup.inverse].astype(np.int64) - first
            np.add.at(summed, keys, rows.grads)
            np.testing.assert_allclose(summed, embedding.weight.grad, rtol=1e-4, atol=1e-7)
        gradient = dict(zip(model.state_dict(), _parts(found.dense["dense"], model), strict=True))
        for ours, theirs in {
            "deep.linear1.weight": plain.first.weight,
            "deep.logit.weight": plain.out.weight,
            **({"attention.unit.linear1.weight": plain.unit1.weight} if name == "din" else {}),
            **({"attention.unit.logit.bias": plain.unit2.bias} if name == "din" else {}),
            **({"sequence.positions": plain.positions} if name == "bst" else {}),
            **({"blocks.0.self_attn.in_proj_weight": plain.in_weight} if name == "bst" else {}),
            **({"blocks.0.self_attn.out_proj.weight": plain.out_weight} if name == "bst" else {}),
        }.items():
            np.testing.assert_allclose(gradient[ours], theirs.grad, rtol=1e-3, atol=1e-6, err_msg=ours)


def _parts(flat: np.ndarray, model: nn.Module) -> list[np.ndarray]:
    """The gradients of all parameters, in their order, out of one vector."""
    sizes = [parameter.shape for parameter in model.parameters()]
    ends = np.cumsum([0, *(int(np.prod(size)) for size in sizes)])
    return [flat[a:b].reshape(size) for a, b, size in zip(ends, ends[1:], sizes, strict=False)]


@pytest.mark.parametrize("name", ["din", "bst"])
def test_a_sample_does_not_depend_on_the_length_of_others(name: str) -> None:
    model = small_model(name).eval()
    batch = make_batch()
    together = model(torch.from_numpy(batch.dense), batch.slots)
    for i, history in enumerate(HISTORIES):
        keys = np.array([USERS[i], ITEMS[i], *history[-LENGTH:]], np.uint64)
        alone = Slots(batch.slots.names, keys, np.array([0, 1, 2, 2 + len(history[-LENGTH:])]))
        torch.testing.assert_close(model(torch.from_numpy(batch.dense[i : i + 1]), alone)[0], together[i])


@pytest.mark.parametrize("name", ["din", "bst"])
def test_an_example_for_profiles_has_full_histories(name: str) -> None:
    dense, slots = small_model(name).example_inputs(7)
    assert (dense.shape, len(slots), slots.names) == ((7, 1), 7, CASES[name][0].slots)
    assert np.diff(slots.offsets).reshape(7, 3).tolist() == [[1, 1, LENGTH]] * 7


SAME = {"h": "i"}


@pytest.mark.parametrize(
    ("schema", "args", "message"),
    [
        (Schema(dense=(), slots=("i",)), {}, r"needs at least 2 slots \(an item and the history"),
        (Schema(dense=(), slots=("i", "h")), {}, r"same_ids: \{h: i\}"),
        (Schema(dense=(), slots=("i", "h"), same_ids=SAME), {"item": "i"}, "together, or neither"),
        (Schema(dense=(), slots=("i", "h"), same_ids=SAME), {"item": "i", "history": "x"}, "history names x"),
        (Schema(dense=(), slots=("i", "h"), same_ids=SAME), {"max_length": 0}, "max_length must be at least 1"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_with_what_to_do(schema: Schema, args: dict, message: str) -> None:
    for factory in (din, bst):
        with pytest.raises(ModelError, match=message):
            factory(schema, **args)


def test_heads_must_divide_the_dimension_and_other_slots_are_not_needed() -> None:
    schema = Schema(dense=(), slots=("i", "h"), same_ids=SAME)
    with pytest.raises(ModelError, match=r"embedding_dim \(16\) must be a multiple of heads \(3\)"):
        bst(schema, heads=3)
    for name in ("din", "bst"):
        model = ZOO[name](schema, embedding_dim=4)
        assert model.context is None
        assert model(*model.example_inputs(3)).shape == (3,)
