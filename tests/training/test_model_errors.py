"""Gradients and tables that are not finite: what is said of them, and that nothing of them is saved."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from heterps.config import SGD, Optimizers, Schema
from heterps.errors import NotFinite
from heterps.lookups import RowUse, TableKeys, joined_gradients
from heterps.model.zoo import ctr_dnn
from heterps.nn import SparseEmbedding
from heterps.ps.keys.dedup import make_lookup
from heterps.training.model.errors import GradientCheck
from heterps.training.model.trainer import Trainer

SCHEMA = Schema(dense=("a", "b"), slots=("s", "t"))


@pytest.fixture
def check() -> GradientCheck:
    model = nn.ModuleDict({"first": nn.Linear(2, 2), "emb": SparseEmbedding(["s"], 2), "last": nn.Linear(2, 1)})
    return GradientCheck(model, {"dense": ("first.weight", "first.bias", "last.weight", "last.bias")})


@pytest.mark.parametrize(
    ("at", "whose"),
    [
        (0, "parameter weight of layer first"),
        (3, "parameter weight of layer first"),
        (4, "parameter bias of layer first"),
        (6, "parameter weight of layer last"),
        (8, "parameter bias of layer last"),
    ],
)
def test_a_dense_gradient_is_named_by_its_parameter(check: GradientCheck, at: int, whose: str) -> None:
    grads = np.zeros(9, np.float32)
    check({"dense": grads}, [], [], "of step 3")
    grads[at] = np.inf
    with pytest.raises(NotFinite) as raised:
        check({"dense": grads}, [], [], "of step 3")
    assert str(raised.value).startswith(f"the gradient of step 3 is inf for {whose} (table dense)")


BAGS = {  # the keys of two samples, each with bags of slots s and t
    "one": ([9, 4, 9, 5], None, ["s", "t", "s", "t"]),
    "several": ([9, 4, 9, 5], [0, 0, 3, 4, 4], ["t", "t", "t", "s"]),
}


@pytest.mark.parametrize("bags", BAGS)
def test_a_gradient_of_rows_is_named_by_its_slot_and_key_where_keys_repeat(bags: str) -> None:
    model = nn.ModuleDict({"other": SparseEmbedding(["u"], 2, table="emb"), "emb": SparseEmbedding(["s", "t"], 2)})
    check, (keys, offsets, slots) = GradientCheck(model, {}), BAGS[bags]
    lookup = make_lookup(np.array(keys))
    part = TableKeys(np.array(keys), None if offsets is None else np.array(offsets), lookup, ("s", "t"))
    for number, slot in enumerate(slots):
        values = torch.zeros(4, 2)
        values.grad = torch.zeros(4, 2)
        use = RowUse("emb", part, values)
        check({}, joined_gradients([use], 1), [use], "of step 1")
        values.grad[number, 1] = torch.nan
        with pytest.raises(NotFinite, match=rf"nan for the row of key {keys[number]} of slot {slot} of layer emb \("):
            check({}, joined_gradients([use], 1), [use], "of step 1")


def test_a_parameter_of_the_model_itself_has_no_layer() -> None:
    model = nn.Module()
    model.scale = nn.Parameter(torch.zeros(1))
    with pytest.raises(NotFinite, match=r"for parameter scale of the model \(table dense\)"):
        GradientCheck(model, {"dense": ["scale"]})({"dense": np.full(1, np.nan, np.float32)}, [], [], "of step 1")


@pytest.mark.parametrize("what", ["rows", "dense"])
def test_what_a_step_made_infinite_is_not_saved(what: str) -> None:
    huge = np.float32(3e38)  # finite, but not ten times it
    with Trainer(
        ctr_dnn(SCHEMA, embedding_dim=4, hidden=(8,)), Optimizers(sparse=SGD(lr=10.0), dense=SGD(lr=10.0))
    ) as trainer:
        trainer.snapshot(0, {})
        if what == "rows":
            trainer.client.push("embedding", make_lookup(np.array([5])), np.full((1, 4), huge))
        else:
            size = sum(parameter.numel() for parameter in trainer.model.parameters())
            trainer.client.push_dense("dense", np.full(size, huge))
        says = "table embedding: the row of key 5 has the value -inf" if what == "rows" else "parameter deep"
        with pytest.raises(NotFinite, match=says):
            trainer.snapshot(1, {})
