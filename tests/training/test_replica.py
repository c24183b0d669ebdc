"""Replicas of stages: together they are the model, and apart they leave each other, and the model, alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from staged import SLOTS, Pushed, Staged, a_batch, add_rows, collect, run_pipeline, splits, tied, zoo_model
from torch import Tensor, nn
from zoo_cases import small_batch

from heterps.config import Schema
from heterps.data.batch import Batch, Slots
from heterps.errors import ModelError, NotFinite
from heterps.lookups import PreparedSlots, prepared
from heterps.model.zoo import ZOO
from heterps.nn import SparseEmbedding
from heterps.training.model.device import open_device
from heterps.training.model.replica import Replica
from heterps.training.model.trainer import Trainer


@pytest.fixture(autouse=True)
def _keep_random_state() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def of_whole_batch(model: nn.Module, batch: Batch, columns: Schema = Schema()) -> Pushed:
    """What an inline trainer would push."""
    with Trainer(copy.deepcopy(model), columns=columns) as trainer:
        found = trainer.gradients(Batch(batch.dense, batch.slots, batch.label))
        sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
        bounds = np.cumsum([0, *sizes.values()])
        flat = next(iter(found.dense.values()), np.zeros(0))
        dense = {name: flat[a:b] for name, (a, b) in zip(sizes, pairwise(bounds), strict=True)}
        rows: dict[str, dict[int, np.ndarray]] = {}
        add_rows(rows, found.rows)
        return Pushed(found.loss, found.logits, dense, rows)


def assert_same_pushes(one: Pushed, other: Pushed, atol: float = 1e-6) -> None:
    assert one.loss == pytest.approx(other.loss, rel=1e-6)
    np.testing.assert_allclose(one.logits, other.logits, rtol=1e-5, atol=1e-6)
    assert one.dense.keys() == other.dense.keys()
    for name, grads in one.dense.items():
        np.testing.assert_allclose(grads, other.dense[name], rtol=1e-5, atol=atol, err_msg=name)
    assert {table: set(rows) for table, rows in one.rows.items()} == {t: set(rows) for t, rows in other.rows.items()}
    for table, rows in one.rows.items():
        for key, grads in rows.items():
            np.testing.assert_allclose(grads, other.rows[table][key], rtol=1e-5, atol=atol, err_msg=f"{table} {key}")


@settings(max_examples=40)
@given(st.data())
def test_gradients_of_stages_and_micro_batches_add_up_to_those_of_the_whole_batch(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*sorted(ZOO), "tied"]), "model")
    model, columns = (tied(), Schema()) if name == "tied" else zoo_model(name)
    batch = a_batch(9) if name == "tied" else small_batch(name, 9)
    staged = Staged(model, data.draw(splits(model), "boundaries"), columns=columns)
    bounds = [0, *sorted(data.draw(st.sets(st.integers(1, 8), max_size=3), "micro-batches")), 9]
    replicas = staged.replicas(staged.client())
    expected = of_whole_batch(model, batch, columns)
    for _ in range(2):  # nothing is left of a round in the next
        assert_same_pushes(run_pipeline(staged, replicas, batch, bounds), expected)


def test_an_embedding_in_two_stages_and_a_weight_in_two_get_gradients_from_both() -> None:
    staged = Staged(tied(), [3])
    replicas = staged.replicas(staged.client())
    batch = a_batch()
    pushed = run_pipeline(staged, replicas[:], batch, [0, 5, 12])
    assert_same_pushes(pushed, of_whole_batch(staged.model, batch))
    run_pipeline(staged, replicas, batch, [0, 12])
    forward = replicas[0].forward(0, staged.inputs(batch))
    _, _, gradients = replicas[1].loss(0, forward, torch.from_numpy(batch.label), None)
    replicas[0].backward(0, gradients)
    for replica in replicas:
        dense, rows = replica.take_gradients()
        assert np.abs(dense["dense.0-1"]).max() > 0
        assert "shared" in [taken.table for taken in rows]


def test_a_replica_starts_as_the_model_is_and_takes_the_values_that_it_is_given() -> None:
    staged = Staged(tied(), [3])
    replicas = staged.replicas(staged.client())
    batch = a_batch()
    changed = copy.deepcopy(staged.model)
    with torch.no_grad():
        for parameter in changed.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.5)
    values = dict(changed.named_parameters())
    for number, replica in enumerate(replicas):
        tables = {
            table: torch.cat([values[name].detach().flatten() for name in staged.tables.parameters[table]]).numpy()
            for table in staged.tables.of_stage(number)
            if table in staged.tables.parameters
        }
        for array in tables.values():
            array.flags.writeable = False  # as they come from servers
        replica.load(tables)
    assert_same_pushes(run_pipeline(staged, replicas, batch, [0, 12]), of_whole_batch(changed, batch))


def test_replicas_with_different_weights_do_not_disturb_each_other() -> None:
    batch = a_batch()

    def run(disturb: bool) -> tuple[dict[str, object], Pushed]:
        staged = Staged(tied(), [3])
        client = staged.client()
        a, b = (staged.part().replica(client) for _ in range(2))
        values = a.forward("lane 0", staged.inputs(batch))
        if disturb:
            b.load({"dense.0": np.full(2, 9, np.float32), "dense.0-1": np.full(4, -9, np.float32)})
            b.backward("lane 0", {n: torch.ones_like(v) for n, v in b.forward("lane 0", staged.inputs(batch)).items()
                                  if isinstance(v, Tensor) and v.requires_grad})  # fmt: skip
        wanted = {n: torch.ones_like(v) for n, v in values.items() if isinstance(v, Tensor) and v.requires_grad}
        return a.backward("lane 0", wanted), collect(staged, [a])

    alone, disturbed = run(False), run(True)
    assert alone[0].keys() == disturbed[0].keys()
    for name, grads in alone[1].dense.items():
        np.testing.assert_array_equal(grads, disturbed[1].dense[name])
    assert_same_pushes(alone[1], disturbed[1], atol=0)


def test_parameters_are_not_changed_under_a_run() -> None:
    staged = Staged(tied(), [3])
    first = staged.replicas(staged.client())[0]
    first.forward("lane 0", staged.inputs(a_batch()))
    with pytest.raises(AssertionError, match="lane 0"):
        first.load({})
    first.forget()
    first.load({})


def test_the_model_stays_as_it_was_and_replicas_have_no_memory_for_other_stages() -> None:
    model, _ = zoo_model("ctr_dnn")
    staged = Staged(model, [2, 4])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    replicas = staged.replicas(staged.client())
    run_pipeline(staged, replicas, small_batch("ctr_dnn", 6), [0, 3, 6])
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None
    for number, replica in enumerate(replicas):
        held = {name for name, p in replica._model.named_parameters() if not p.is_meta}
        tables = staged.tables.of_stage(number)
        assert held == {name for table in tables for name in staged.tables.parameters.get(table, ())}
        inside = {id(p) for p in replica._stage.module.parameters()}
        assert inside <= {id(p) for p in replica._model.parameters()}, "the model's loss sees the stage's parameters"


def test_values_that_cross_a_border_are_leaves_that_say_whether_they_want_gradients() -> None:
    staged = Staged(tied(), [1])
    values = staged.replicas(staged.client())[0].forward(0, staged.inputs(a_batch()))
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    assert {name: value.requires_grad for name, value in tensors.items()} == {"first": True}
    assert tensors["first"].is_leaf
    assert isinstance(values["slots"], Slots)


def test_replicas_compute_on_the_device_that_they_are_given() -> None:
    staged = Staged(tied(), [3])
    batch = a_batch()
    replicas = staged.replicas(staged.client(), open_device("cpu"))
    assert_same_pushes(run_pipeline(staged, replicas, batch, [0, 12]), of_whole_batch(staged.model, batch))


def test_rows_are_prepared_and_looked_up_for_the_embeddings_of_the_stage_only() -> None:
    staged = Staged(tied(), [4])
    first, second = staged.replicas(staged.client())
    slots = prepared(a_batch().slots)
    assert [table for table, _ in first.parts(slots)] == ["shared"]
    assert sorted(table for table, _ in second.parts(slots)) == ["block.rows", "shared"]
    other = prepared(a_batch().slots)
    first.prepare(other)
    assert len(other.lookups) == 1
    with pytest.raises(ModelError, match=r"Tied failed in stage 1 on 3 samples: .*no slot named s, t"):
        first.prepare(PreparedSlots(("x",), np.zeros(3, np.uint64)))


# --- losses ----------------------------------------------------------------------------------------------------------


class OwnLoss(nn.Module):
    """Layers a, b, out; its loss also uses out's weight, a parameter that no layer uses, and what a test adds."""

    def __init__(self, more=lambda model: 0.0) -> None:
        super().__init__()
        self.a, self.act, self.out = nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 1)
        self.bias = nn.Parameter(torch.ones(1))
        self.more = more

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return self.out(self.act(self.a(dense))).squeeze(1)

    def losses(self, output: Tensor, label: Tensor) -> Tensor:
        extra = self.more(self)
        return (output + self.bias - label) ** 2 + self.out.weight.square().sum() + extra


@pytest.mark.parametrize("boundaries", [[], [1], [2], [1, 2]])
def test_a_loss_of_the_model_uses_the_parameters_of_the_last_stage(boundaries: list[int]) -> None:
    staged = Staged(OwnLoss(), boundaries)
    batch = a_batch()
    pushed = run_pipeline(staged, staged.replicas(staged.client()), batch, [0, 3, 12])
    assert np.abs(pushed.dense["bias"]).max() > 0
    assert_same_pushes(pushed, of_whole_batch(staged.model, batch))


@pytest.mark.parametrize("use", [lambda m: m.a.weight.square().sum(), lambda m: m.a.weight.norm()])
def test_a_loss_that_uses_parameters_of_another_stage_is_told_so(use) -> None:
    staged = Staged(OwnLoss(use), [1])
    with pytest.raises(
        ModelError, match=r"the loss of OwnLoss, in stage 2, uses parameters of layers of another stage"
    ):
        run_pipeline(staged, staged.replicas(staged.client()), a_batch(), [0, 12])


def last_stage(staged: Staged, batch: Batch) -> tuple[Replica, dict[str, object]]:
    """The replica of the last of two stages, and what it takes of a batch."""
    first, last = staged.replicas(staged.client())
    return last, first.forward(0, staged.inputs(batch))


def test_without_a_number_of_samples_the_loss_is_that_of_the_whole_batch() -> None:
    class Median(OwnLoss):
        def loss(self, output: Tensor, label: Tensor) -> Tensor:
            return (output - label).square().median()

    batch = a_batch()
    staged = Staged(Median(), [1])
    last, values = last_stage(staged, batch)
    expected = of_whole_batch(staged.model, batch)
    loss, logits, gradients = last.loss((0, 1), values, torch.from_numpy(batch.label), None)
    assert loss == pytest.approx(expected.loss, rel=1e-6)
    np.testing.assert_array_equal(logits, expected.logits)
    assert gradients.keys() == {"a"}


def test_a_loss_that_is_not_finite_names_stage_and_micro_batch_and_adds_no_gradients() -> None:
    staged = Staged(OwnLoss(), [1])
    batch = a_batch()
    last, values = last_stage(staged, batch)
    label = torch.from_numpy(batch.label)
    nan = {name: value * float("nan") for name, value in values.items() if isinstance(value, Tensor)}
    with pytest.raises(
        NotFinite, match=r"the loss of micro-batch \(3, 8\) in stage 2 is nan\. Every dense parameter of"
    ):
        last.loss((3, 8), nan, label, 12)
    assert all((grads == 0).all() for grads in last.take_gradients()[0].values())
    last.load({"dense.1": np.full(5, np.inf, np.float32)})
    with pytest.raises(NotFinite, match=r"The first parameter that is not finite is bias"):
        last.loss((3, 8), values, label, 12)


def test_an_error_of_the_models_code_names_stage_and_micro_batch_and_can_be_forgotten() -> None:
    batch = a_batch()
    staged = Staged(tied(), [3])
    replicas = staged.replicas(staged.client())
    good = run_pipeline(staged, replicas, batch, [0, 12])
    values = replicas[0].forward((0, 1), staged.inputs(batch))
    replicas[1].loss((0, 1), values, torch.from_numpy(batch.label), 12)
    with pytest.raises(ModelError, match=r"Tied failed in stage 1 on micro-batch \(1, 1\): RuntimeError: .*shapes"):
        replicas[0].forward((1, 1), {**staged.inputs(batch), "dense": torch.zeros(3, 7)})
    for replica in replicas:
        replica.forget()
    assert_same_pushes(run_pipeline(staged, replicas, batch, [0, 12]), good, atol=0)


def test_an_output_that_is_no_logit_is_refused() -> None:
    staged = Staged(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), [1])
    last = staged.replicas(staged.client())[1]
    with pytest.raises(ModelError, match=r"it returned shape \[4, 3\]"):
        last.loss(0, {"_0": torch.zeros(4, 2)}, torch.zeros(4), None)


# --- random numbers and buffers --------------------------------------------------------------------------------------


class Draws(nn.Module):
    """Random numbers in stage 0, by a function; running means in stage 1; a buffer that no layer uses."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbedding(SLOTS, 2)
        self.a, self.norm, self.out = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("own", torch.ones(6), persistent=False)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        dropped = nn.functional.dropout(self.a(self.rows(slots).flatten(1)), 0.5)
        return self.out(self.norm(dropped) * self.own).squeeze(1)

    def losses(self, output: Tensor, label: Tensor) -> Tensor:
        self.seen += len(label)
        return (output - label) ** 2


def test_random_numbers_come_from_the_seed_of_the_micro_batch() -> None:
    staged = Staged(Draws(), [3])
    first = staged.replicas(staged.client())[0]
    inputs = staged.inputs(a_batch())
    outputs = [first.forward(i, inputs, seed)["dropout"] for i, seed in enumerate((1, 2, 1))]
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])


def test_torchs_random_numbers_are_left_as_they_were_whether_a_stage_draws_or_not() -> None:
    staged = Staged(Draws(), [3])
    first, last = staged.replicas(staged.client())
    before = torch.get_rng_state()
    values = first.forward(0, staged.inputs(a_batch()), 1)
    label = torch.from_numpy(a_batch().label)
    last.loss(0, values, label, None, seed=1)  # it is tried out
    last.loss(1, values, label, None, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    first.forward(1, staged.inputs(a_batch()), 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_buffers_are_those_of_the_stage_by_the_models_names_and_can_be_moved_to_another_replica() -> None:
    staged = Staged(Draws(), [3])
    batch = a_batch()
    replicas = staged.replicas(staged.client())
    run_pipeline(staged, replicas, batch, [0, 4, 12])
    first, last = replicas
    assert first.buffers() == {}
    buffers = last.buffers()
    assert set(buffers) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "seen"}
    assert (buffers["norm.num_batches_tracked"], buffers["seen"]) == (2, 12)
    assert staged.model.norm.num_batches_tracked == 0, "the model's own are another copy"
    kept = {name: tensor.clone() for name, tensor in buffers.items()}
    run_pipeline(staged, replicas, batch, [0, 4, 12])
    assert last.buffers()["seen"] == 24
    assert all(torch.equal(tensor, kept[name]) for name, tensor in buffers.items()), "what was given is a copy"
    other = staged.replicas(staged.client())[1]
    other.load_buffers({name: tensor.numpy() for name, tensor in buffers.items()})
    assert all(torch.equal(tensor, buffers[name]) for name, tensor in other.buffers().items())
    with pytest.raises(ValueError, match="buffer own"):
        other.load_buffers({"own": torch.ones(6)})
