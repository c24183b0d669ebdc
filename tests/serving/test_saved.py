"""Saving and loading a model with its rows, and a state_dict that would lose them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import heterps
from heterps.config import SGD, Adagrad, Adam, Optimizers, Schema
from heterps.data.batch import Batch, Slots
from heterps.data.keys import slots_from_ids
from heterps.errors import CorruptCheckpoint, HeterpsError, ModelError, RunError
from heterps.nn import SparseEmbedding, SparseSequence, bind_tables, model_tables, push_gradients, weights
from heterps.ps.client.local import in_process

SLOTS = ("user", "item")
COLUMNS = Schema(dense=("x",), slots=SLOTS)


class Net(nn.Module):
    """Two embeddings, one of them with a table a slot, and a layer with buffers."""

    def __init__(self, dim: int = 3) -> None:
        super().__init__()
        self.wide = SparseEmbedding(SLOTS, 1, tables="per_slot")
        self.deep = SparseEmbedding(SLOTS, dim, init_scale=0.5)
        self.norm = nn.BatchNorm1d(2 * dim)
        self.out = nn.Linear(2 * dim, 1)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        logit: Tensor = self.out(self.norm(self.deep(slots).flatten(1)))
        return (logit + self.wide(slots).sum(1) + dense).squeeze(1)


def batch_of(seed: int, high: int = 12, num: int = 16) -> Batch:
    random = np.random.default_rng(seed)
    ids = random.integers(0, high, (num, 2))
    dense = random.normal(size=(num, 1)).astype(np.float32)
    return Batch(dense, slots_from_ids(ids, SLOTS), (ids[:, 0] % 2).astype(np.float32))


def train_alone(model: nn.Module, steps: int = 5) -> None:
    """A loop of plain PyTorch, over tables that the model has or makes."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for seed in range(steps):
        batch = batch_of(seed)
        logits = model(torch.from_numpy(batch.dense), batch.slots)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.label)).backward()
        optimizer.step()
        push_gradients(model)


def bound() -> nn.Module:
    """A trained model that has its tables from `bind_tables`, with settings that are not the usual ones."""
    model = Net()
    bind_tables(model, in_process(model_tables(model, Optimizers(sparse=Adam(lr=0.1)), seed=7), num_shards=2))
    train_alone(model)
    return model


def alone() -> nn.Module:
    model = Net()
    train_alone(model)
    return model


def trained() -> heterps.Trainer:
    trainer = heterps.Trainer(Net(), Optimizers(sparse=Adagrad(lr=0.2), dense=Adam(lr=0.05)), columns=COLUMNS)
    for seed in range(5):
        trainer.step(batch_of(seed))
    return trainer


def of_trainer() -> nn.Module:
    return trained().model


def scores(model: nn.Module, high: int = 30) -> Tensor:
    """Of samples, some of whose ids, those from 12 on, the model has never met."""
    batch = batch_of(99, high, num=64)
    with torch.no_grad():
        return model.eval()(torch.from_numpy(batch.dense), batch.slots).clone()


@pytest.mark.parametrize("make", [alone, bound, of_trainer])
def test_a_model_scores_the_same_after_it_was_saved_and_loaded(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    model = make()
    before = scores(model)
    heterps.save(model, tmp_path / "model")
    loaded = heterps.load(tmp_path / "model", into=Net())
    assert isinstance(loaded, Net)
    assert torch.equal(scores(loaded), before)
    assert torch.equal(scores(model), before)  # saving changes nothing
    heterps.save(loaded, tmp_path / "again")
    assert torch.equal(scores(heterps.load(tmp_path / "again", into=Net())), before)


@pytest.mark.parametrize("make", [alone, bound])
def test_a_loaded_model_trains_on_as_the_saved_one_does(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    model = make()
    heterps.save(model, tmp_path / "model")
    loaded = heterps.load(tmp_path / "model", into=Net())
    for one in (model, loaded):
        train_alone(one.train(), steps=8)
    assert torch.equal(scores(loaded), scores(model))


def test_a_saved_trainer_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    trainer = trained()
    heterps.save(trainer, tmp_path / "model")
    optimizers = Optimizers(sparse=Adagrad(lr=0.2), dense=Adam(lr=0.05))
    again = heterps.load(tmp_path / "model", into=heterps.Trainer(Net(), optimizers, columns=COLUMNS))
    assert again.samples == trainer.samples == 80
    for seed in range(5, 10):
        assert again.step(batch_of(seed))[0] == trainer.step(batch_of(seed))[0]
    with pytest.raises(ModelError, match="Load into a Trainer that is new"):
        heterps.load(tmp_path / "model", into=again)


def test_a_model_saved_alone_is_trained_on_by_a_trainer(tmp_path: Path) -> None:
    model = alone()
    heterps.save(model, tmp_path / "model")
    trainer = heterps.load(tmp_path / "model", into=heterps.Trainer(Net(), columns=COLUMNS))
    assert torch.allclose(scores(trainer.model, high=12), scores(model, high=12))
    trainer.step(batch_of(0))


def test_tables_that_modules_share_are_saved_once(tmp_path: Path) -> None:
    def make() -> nn.ModuleDict:
        item = SparseEmbedding(["item"], 2, table="items")
        return nn.ModuleDict({"item": item, "seen": SparseSequence("seen", 2, max_length=3, table="items")})

    model = make()
    bind_tables(model, in_process(model_tables(model, Optimizers(sparse=SGD(lr=0.1)))))
    slots = heterps.bags({"item": ["a", "b"], "seen": [["a"], ["b", "c"]]})
    (model["item"](slots).sum() + model["seen"](slots)[0].sum()).backward()
    push_gradients(model)
    heterps.save(model, tmp_path / "model")
    assert len(list((tmp_path / "model" / "tables").glob("*.arrow"))) == 1
    loaded = heterps.load(tmp_path / "model", into=make()).eval()
    assert torch.equal(loaded["item"](slots), model.eval()["item"](slots))


def test_what_cannot_be_loaded_is_refused_with_a_sentence(tmp_path: Path) -> None:
    heterps.save(alone(), tmp_path / "model")
    with pytest.raises(ModelError, match=r"not the code of the model.*into="):
        heterps.load(tmp_path / "model")
    with pytest.raises(ModelError, match=r"tables are wide\.user, wide\.item, deep.*those of Linear are none"):
        heterps.load(tmp_path / "model", into=nn.Linear(1, 1))
    with pytest.raises(ModelError, match="of another model"):
        heterps.load(tmp_path / "model", into=Net(dim=4))
    with pytest.raises(RunError, match="no such"):
        heterps.load(tmp_path / "other", into=Net())
    with pytest.raises(ModelError, match="not a dict"):
        heterps.save({}, tmp_path / "other")  # type: ignore[arg-type]
    rows = next((tmp_path / "model" / "tables").glob("*.arrow"))
    rows.write_bytes(rows.read_bytes()[:-9])
    untouched = Net()
    with pytest.raises(CorruptCheckpoint, match="is damaged"):
        heterps.load(tmp_path / "model", into=untouched)
    assert untouched.deep.held[0] is None


# --- the usual way ---------------------------------------------------------------------------------------------------


def through_torch(state: dict[str, Tensor]) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Tensor] = torch.load(file, weights_only=True)
    return loaded


def through_safetensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return safetensors.torch.load(safetensors.torch.save({name: tensor.clone() for name, tensor in state.items()}))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("through", [dict, through_torch, through_safetensors])
@pytest.mark.parametrize("make", [alone, bound, of_trainer])
def test_a_state_dict_is_not_loaded_where_its_rows_are_not(
    make: Callable[[], nn.Module], through: Callable[[dict[str, Tensor]], dict[str, Tensor]], strict: bool
) -> None:
    state = through(make().state_dict())
    others = [Net(), heterps.Trainer(Net(), columns=COLUMNS).model, Net()]
    others[-1](torch.zeros(16, 1), batch_of(0).slots)  # has some rows, but not those
    for other in others:
        with pytest.raises(RuntimeError) as refused:
            other.load_state_dict(state, strict=strict)
        for words in ("12 rows in table wide.user", "table deep", "heterps.save", "heterps.load", "num_rows"):
            assert words in str(refused.value)


def test_a_state_dict_is_loaded_where_the_rows_are(tmp_path: Path) -> None:
    model = alone()
    state = copy.deepcopy(model.state_dict())
    before = scores(model)
    with torch.no_grad():
        model.out.weight.zero_()
    model.load_state_dict(state)
    assert torch.equal(scores(model), before)
    heterps.save(model, tmp_path / "model")
    other = heterps.load(tmp_path / "model", into=Net())
    assert other.load_state_dict(state) == ([], [])


def test_a_table_without_rows_beside_one_with_rows_loses_nothing() -> None:
    model = SparseEmbedding(SLOTS, 2, tables="per_slot")
    slots = heterps.bags({"user": [["a"], ["b"]], "item": [[], []]})
    model(slots).sum().backward()
    push_gradients(model)
    assert model.state_dict()["num_rows"].tolist() == [2, 0]
    model.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match=r"2 rows in table embedding\.user"):
        SparseEmbedding(SLOTS, 2, tables="per_slot").load_state_dict(model.state_dict())


def test_weights_alone_are_loaded_by_their_names() -> None:
    model, fresh = alone(), Net()
    assert "deep.num_rows" not in fresh.state_dict()  # nothing to lose
    assert fresh.load_state_dict(Net().state_dict()) == ([], [])
    assert fresh.load_state_dict(weights(model)) == ([], [])  # strict: no name is missing
    assert torch.equal(fresh.out.weight, model.out.weight)
    assert set(weights(model)) == set(Net().state_dict())
    layer = nn.Linear(6, 1)
    layer.load_state_dict(model.out.state_dict())


def test_a_model_that_is_an_embedding_and_one_in_a_wrapper_are_refused_too() -> None:
    one = SparseEmbedding(["item"], 2)
    one(torch.tensor([1, 2, 3])).sum().backward()
    push_gradients(one)
    with pytest.raises(RuntimeError, match="3 rows in table embedding"):
        SparseEmbedding(["item"], 2).load_state_dict(one.state_dict())
    wrapped = nn.DataParallel(alone())
    with pytest.raises(RuntimeError, match="rows in table"):
        nn.DataParallel(Net()).load_state_dict(wrapped.state_dict())


def test_a_pickle_of_a_trained_model_is_refused_and_a_copy_begins_without_rows() -> None:
    model = alone()
    with pytest.raises(HeterpsError, match=r"SparseEmbedding\(2 slots.*would lose its rows.*heterps\.save"):
        torch.save(model, io.BytesIO())
    pickle.dumps(Net())
    copied = copy.deepcopy(model)
    assert copied.deep.held == (None, [])
    assert torch.equal(copied.out.weight, model.out.weight)
