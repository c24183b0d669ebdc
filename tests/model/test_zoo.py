"""The zoo: shapes, repeatable weights, and DeepFM against its formula."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.model.trace import trace
from heterps.model.zoo import ZOO, PairwiseSum, deepfm
from heterps.nn import push_gradients

SCHEMA = Schema(dense=("a", "b", "c"), slots=("s", "t", "u", "v"))


def inputs(num_samples: int = 5) -> tuple[torch.Tensor, Slots]:
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 50, num_samples * 4).astype(np.uint64)
    return torch.from_numpy(rng.standard_normal((num_samples, 3), np.float32)), Slots(SCHEMA.slots, keys)


@pytest.mark.parametrize("name", ZOO)
def test_a_model_gives_one_logit_a_sample(name: str) -> None:
    model = ZOO[name](SCHEMA, embedding_dim=4, hidden=(8,))
    assert model(*inputs()).shape == (5,)


@pytest.mark.parametrize("name", ZOO)
def test_a_model_learns_a_batch_by_heart(name: str) -> None:
    torch.manual_seed(0)
    model = ZOO[name](SCHEMA, embedding_dim=4, hidden=(16,))
    label = torch.tensor([0.0, 1, 1, 0, 1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(*inputs()), label)
        loss.backward()
        optimizer.step()
        push_gradients(model)
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 5


@pytest.mark.parametrize("name", ZOO)
def test_layers_have_names_that_a_reader_knows(name: str) -> None:
    names = [layer.name for layer in trace(ZOO[name](SCHEMA)).layers]
    assert names[0] == "embedding"
    assert {"cat", "deep.linear1", "deep.relu3", "deep.logit"} <= set(names)


def test_pairwise_sum_equals_the_sum_over_all_pairs() -> None:
    vectors = torch.randn(3, 6, 5, dtype=torch.float64)
    expected = sum((vectors[:, s] * vectors[:, t]).sum(1) for s, t in combinations(range(6), 2))
    torch.testing.assert_close(PairwiseSum(5)(vectors.flatten(1)), expected)


def test_deepfm_is_the_sum_of_its_three_parts() -> None:
    model = deepfm(SCHEMA, embedding_dim=4, hidden=(8,))
    dense, slots = inputs()
    rows = model.embedding(slots)
    w, v = rows[:, :, 0], rows[:, :, 1:]
    pairs = sum((v[:, s] * v[:, t]).sum(1) for s, t in combinations(range(4), 2))
    tower = model.deep(torch.cat([dense, v.flatten(1)], 1)).squeeze(1)
    linear = dense @ model.first_order.weight[0] + model.first_order.bias + w.sum(1)
    torch.testing.assert_close(model(dense, slots), linear + pairs + tower)


@pytest.mark.parametrize("name", ZOO)
def test_a_schema_without_slots_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=r"data\.columns\.slots"):
        ZOO[name](Schema(dense=("a",), slots=()))
