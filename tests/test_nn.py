"""SparseEmbedding against torch.nn.Embedding and EmbeddingBag: rows on a table change where they are, nothing else."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from heterps.config import (
    FTRL,
    SGD,
    Adagrad,
    AfterSightings,
    Always,
    ConstantRate,
    Eviction,
    Normal,
    StepRate,
    Tables,
    Zero,
)
from heterps.data.keys import slots_from_ids
from heterps.errors import DataError, ModelError
from heterps.lookups import prepared
from heterps.nn import Slots, SparseEmbedding, embeddings, push_gradients, weights
from heterps.ps.client.local import LocalClient

NAMES = ("a", "b", "c")
NUM_KEYS, DIM = 40, 4


def make(pooling="sum", tables="one", num_shards=1, **options) -> SparseEmbedding:
    module = SparseEmbedding(NAMES, DIM, pooling=pooling, tables=tables, init_scale=0.5, **options)
    specs = module.table_specs("rows", SGD(lr=0.1))
    module.bind(LocalClient(specs, {}, num_shards), [spec.name for spec in specs])
    return module


def single(n=8, seed=0) -> Slots:
    return Slots(NAMES, np.random.default_rng(seed).integers(0, NUM_KEYS, n * 3).astype(np.uint64))


def ragged(n=8, seed=0) -> Slots:
    """Bags of 0 to 3 keys; the first and the last are empty."""
    lengths = np.random.default_rng(seed).integers(0, 4, n * 3)
    lengths[[0, -1]] = 0
    keys = np.random.default_rng(seed + 1).integers(0, NUM_KEYS, lengths.sum()).astype(np.uint64)
    return Slots(NAMES, keys, np.concatenate([[0], np.cumsum(lengths)]))


def as_ids(slots: Slots) -> torch.Tensor:
    return torch.from_numpy(slots.keys.view(np.int64))


def twin(module: SparseEmbedding, slot: int = 0) -> nn.Embedding:
    """A torch embedding with the rows that all keys have in the table of that slot."""
    every = Slots(NAMES, np.repeat(np.arange(NUM_KEYS, dtype=np.uint64), 3))
    training = module.training
    with torch.no_grad():
        rows = module.eval()(every)[:, slot]
    module.train(training)
    return nn.Embedding.from_pretrained(rows.clone(), freeze=False)


def num_rows(module: SparseEmbedding) -> int:
    return sum(module.client.num_rows(table) for table in module._tables)


def expected_output(embedding: nn.Embedding, slots: Slots, pooling: str) -> torch.Tensor:
    if slots.offsets is None:
        return embedding(as_ids(slots)).view(-1, 3, DIM)
    if pooling == "none":
        return embedding(as_ids(slots))
    offsets = torch.from_numpy(slots.offsets)
    bags = nn.functional.embedding_bag(as_ids(slots), embedding.weight, offsets, mode=pooling, include_last_offset=True)
    return bags.view(-1, 3, DIM)


# --- forward and one step --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("batch", [single, ragged])
@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
def test_output_and_step_equal_torch_s(pooling, batch, num_shards):
    module = make(pooling, num_shards=num_shards)
    embedding, slots = twin(module), batch()
    output, expected = module(slots), expected_output(embedding, slots, pooling)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)

    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    (output * weight).sum().backward()
    push_gradients(module)
    (expected * weight).sum().backward()
    torch.optim.SGD(embedding.parameters(), lr=0.1).step()
    torch.testing.assert_close(twin(module).weight, embedding.weight, rtol=0, atol=1e-6)
    module.client.close()


@pytest.mark.parametrize("batch", [single, ragged])
def test_a_table_a_slot_equals_an_embedding_a_slot(batch):
    module = make("mean", "per_slot")
    assert [spec.name for spec in module.table_specs("rows", SGD())] == ["rows.a", "rows.b", "rows.c"]
    twins = [twin(module, slot) for slot in range(len(NAMES))]
    optimizer = torch.optim.SGD([embedding.weight for embedding in twins], lr=0.1)
    for seed in range(3):
        slots = batch(seed=seed)
        parts = [slots.select([name]) for name in NAMES]
        columns = []
        for embedding, part in zip(twins, parts, strict=True):
            offsets = np.arange(len(part.keys) + 1) if part.offsets is None else part.offsets
            columns.append(
                nn.functional.embedding_bag(
                    as_ids(part), embedding.weight, torch.from_numpy(offsets), mode="mean", include_last_offset=True
                )
            )
        output, expected = module(slots), torch.stack(columns, 1)
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)
        (output**2).sum().backward()
        push_gradients(module)
        optimizer.zero_grad()
        (expected**2).sum().backward()
        optimizer.step()


def test_one_table_shares_the_row_of_a_key_between_slots_and_per_slot_does_not():
    for tables, rows in (("one", 1), ("per_slot", 3)):
        module = make(tables=tables)
        module(Slots(NAMES, np.zeros(6, np.uint64)))
        assert num_rows(module) == rows


def test_a_model_trains_to_the_losses_of_the_same_torch_model():
    """Twenty steps: embedding under Adagrad on the table, a small network under Adam beside it."""
    torch.manual_seed(0)
    module = make("mean", optimizer=Adagrad(lr=0.1))
    embedding = twin(module)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * DIM, 8), nn.ReLU(), nn.Linear(8, 1))
    other_network = copy.deepcopy(network)
    model = nn.ModuleDict({"rows": module, "network": network})
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    others = torch.optim.Adam(other_network.parameters(), lr=0.01), torch.optim.Adagrad(embedding.parameters(), lr=0.1)
    losses, expected = [], []
    for step in range(20):
        slots = ragged(16, seed=step)
        label = torch.from_numpy(np.random.default_rng(step).integers(0, 2, (16, 1)).astype(np.float32))

        loss = nn.functional.binary_cross_entropy_with_logits(network(module(slots)), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        push_gradients(model)
        losses.append(loss.item())

        bags = expected_output(embedding, slots, "mean")
        loss = nn.functional.binary_cross_entropy_with_logits(other_network(bags), label)
        for other in others:
            other.zero_grad()
        loss.backward()
        for other in others:
            other.step()
        expected.append(loss.item())
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-6)
    assert losses[-1] != losses[0]


# --- several passes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [1, 2])
def test_two_uses_in_one_forward_make_one_step_with_the_summed_gradient(num_shards):
    module = make(num_shards=num_shards, optimizer=Adagrad(lr=0.1))
    embedding = twin(module)
    left, right = single(seed=0), single(seed=1)
    (module(left).sum() + (module(right) ** 2).sum()).backward()
    push_gradients(module)
    (embedding(as_ids(left)).sum() + (embedding(as_ids(right)) ** 2).sum()).backward()
    torch.optim.Adagrad(embedding.parameters(), lr=0.1).step()
    torch.testing.assert_close(twin(module).weight, embedding.weight, rtol=0, atol=1e-6)
    assert module.client.export_rows("rows")[1] == 1
    module.client.close()


def test_gradients_of_two_backwards_are_accumulated_as_torch_does():
    module = make()
    embedding, slots = twin(module), single()
    output, expected = module(slots), embedding(as_ids(slots)).view(-1, 3, DIM)
    for loss in ((output**2).sum(), (expected**2).sum()):
        loss.backward(retain_graph=True)
        loss.backward()
    push_gradients(module)
    torch.optim.SGD(embedding.parameters(), lr=0.1).step()
    torch.testing.assert_close(twin(module).weight, embedding.weight, rtol=0, atol=1e-6)


def test_a_forward_without_backward_pushes_nothing_and_leaves_nothing_behind():
    module = make()
    slots = single(seed=1)
    abandoned, keys = module(slots), weakref.ref(slots.keys)
    output = module(single(seed=0))
    before = twin(module).weight
    del slots
    assert keys() is not None, "backward would still need them"
    del abandoned
    assert keys() is None
    output.sum().backward()
    push_gradients(module)
    push_gradients(module)
    assert module.client.export_rows("rows")[1] == 1
    moved = (twin(module).weight != before).any(1).nonzero().flatten()
    assert moved.tolist() == sorted(set(single(seed=0).keys.tolist()))


def test_a_batch_is_freed_when_it_is_dropped():
    """Its lookup must not refer back to it: batches would then pile up until the garbage collector runs."""
    module, slots = make(), single()
    module(slots).sum().backward()
    push_gradients(module)
    dropped = weakref.ref(slots)
    gc.disable()
    try:
        del slots
        assert dropped() is None
    finally:
        gc.enable()


def test_prepare_in_another_thread_gives_the_same():
    for tables in ("one", "per_slot"):
        module, slots = make(tables=tables, num_shards=2), prepared(ragged())
        thread = threading.Thread(target=module.prepare, args=(slots,))
        thread.start()
        thread.join()
        assert len(slots.lookups) == (1 if tables == "one" else 3)
        assert num_rows(module) == 0
        torch.testing.assert_close(module(slots), module(ragged()), rtol=0, atol=0)
        module.client.close()


# --- modes -----------------------------------------------------------------------------------------------------------


def test_eval_creates_no_row_and_asks_for_no_gradient():
    module = make().eval()
    output = module(single())
    assert num_rows(module) == 0
    assert not output.requires_grad
    torch.testing.assert_close(module.train()(single()), output, rtol=0, atol=0)
    assert num_rows(module) == len(set(single().keys.tolist()))


def test_no_grad_in_training_creates_rows_but_pushes_nothing():
    module = make()
    with torch.no_grad():
        assert not module(single()).requires_grad
    push_gradients(module)
    assert num_rows(module) > 0
    assert module.client.export_rows("rows")[1] == 0


def test_state_dict_of_a_model_has_no_rows_but_their_number():
    model = nn.ModuleDict({"rows": make(), "linear": nn.Linear(3 * DIM, 1)})
    model["linear"](model["rows"](single()).flatten(1)).sum().backward()
    assert set(model.state_dict()) == {"linear.weight", "linear.bias"}  # its rows have their initial values
    push_gradients(model)
    assert set(model.state_dict()) == {"linear.weight", "linear.bias", "rows.num_rows"}
    assert set(weights(model)) == {"linear.weight", "linear.bias"}
    assert not list(model["rows"].parameters())
    model.load_state_dict(model.state_dict())


def test_a_deep_copy_starts_without_tables():
    module = make()
    module(single()).sum().backward()
    twin_module = copy.deepcopy(module)
    assert num_rows(module) > 0
    assert twin_module._client is None
    assert not twin_module._uses
    assert twin_module(single()).shape == (8, 3, DIM)
    assert twin_module.client is not module.client


def test_an_unbound_module_makes_its_own_tables():
    module = SparseEmbedding(NAMES, DIM, tables="per_slot")
    module(single()).sum().backward()
    push_gradients(module)
    assert num_rows(module) > 0


def test_the_module_follows_to_dtype_and_the_table_stays_float32():
    module = make().to(torch.bfloat16)
    output = module(single())
    assert output.dtype == torch.bfloat16
    before = twin(make()).weight
    output.sum().backward()
    push_gradients(module)
    rows = module.client.export_rows("rows")[0]
    counts = np.bincount(single().keys.astype(np.int64), minlength=NUM_KEYS)[rows.keys.astype(np.int64)]
    expected = before.detach().numpy()[rows.keys.astype(np.int64)] - np.float32(0.1) * counts[:, None]
    np.testing.assert_allclose(rows.values, expected, rtol=0, atol=1e-6)


# --- what may be given -----------------------------------------------------------------------------------------------


def test_raw_ids_are_the_slots_made_from_them():
    module = make()
    ids = torch.tensor([[1, 2, 3], [-1, 2, 1]])
    torch.testing.assert_close(module(ids), module(slots_from_ids(ids.numpy(), NAMES)), rtol=0, atol=0)
    assert num_rows(module) == 5, "an id means something else in every slot"
    lone = SparseEmbedding(["a"], DIM)
    torch.testing.assert_close(lone(ids[:, 0]), lone(ids[:, :1]), rtol=0, atol=0)
    assert lone(ids[:0, 0]).shape == (0, 1, DIM)


def test_raw_ids_of_a_wrong_shape_or_type_are_refused():
    with pytest.raises(DataError, match=r"shape \[n, 3\], a column a slot, but have \[2, 2\]"):
        make()(torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(DataError, match="must be 64-bit integers or strings"):
        make()(torch.zeros(2, 3))


@pytest.mark.parametrize("batch", [single, ragged])
def test_other_slots_of_the_batch_are_ignored_and_order_is_the_module_s(batch):
    whole = batch()
    module = SparseEmbedding(["c", "a"], DIM)
    torch.testing.assert_close(module(whole), make_like(module)(whole)[:, [2, 0]], rtol=0, atol=0)
    assert set(module.client.export_rows("embedding")[0].keys) == set(whole.select(["a", "c"]).keys)
    with pytest.raises(DataError, match="no slot named d; there are: a, b, c"):
        SparseEmbedding(["d"], DIM)(whole)


def make_like(module: SparseEmbedding) -> SparseEmbedding:
    return SparseEmbedding(NAMES, module.dim, init_scale=module.init_scale, seed=module.seed)


def test_an_empty_batch_and_a_batch_of_empty_bags_give_zeros_of_the_right_shape():
    module = make("mean")
    assert module(Slots(NAMES, np.empty(0, np.uint64))).shape == (0, 3, DIM)
    empty = module(Slots(NAMES, np.empty(0, np.uint64), np.zeros(7, np.int64)))
    torch.testing.assert_close(empty, torch.zeros(2, 3, DIM))
    empty.sum().backward()
    push_gradients(module)
    assert num_rows(module) == 0


def test_unpooled_bags_of_several_tables_are_refused_before_any_row_is_made():
    module = make("none", "per_slot")
    assert module(single()).shape == (8, 3, DIM)
    before = num_rows(module)
    with pytest.raises(ModelError, match="use tables='one', or a SparseEmbedding for each slot"):
        module(ragged(seed=5))
    assert num_rows(module) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slots": "ab"}, "list of at least one slot name, got 'ab'"),
        ({"slots": []}, "list of at least one slot name"),
        ({"slots": ["a", "a"]}, "slots must differ"),
        ({"dim": 0}, "dim must be a whole number, at least 1, got 0"),
        ({"dim": "4"}, "dim must be a whole number, at least 1, got '4'"),
        ({"pooling": "max"}, "pooling must be sum, mean or none, got 'max'"),
        ({"tables": "two"}, "tables must be one or per_slot, got 'two'"),
    ],
)
def test_impossible_modules_are_refused(arguments, message):
    with pytest.raises(ModelError, match=message):
        SparseEmbedding(**{"slots": ["a"], "dim": 2, **arguments})


def test_embeddings_are_found_by_name_anywhere_in_a_model():
    model = nn.ModuleDict({"x": nn.Sequential(make(), nn.Flatten()), "y": make()})
    assert [name for name, _ in embeddings(model)] == ["x.0", "y"]
    assert [name for name, _ in embeddings(make())] == ["embedding"]


def test_what_a_module_says_of_its_tables_goes_before_what_the_job_says():
    job = Tables(init=Zero(), admission=AfterSightings(num=2), eviction=Eviction(max_age=9))
    plain, own = (
        SparseEmbedding(["a"], 2, **options).table_specs("e", Adagrad(), schedule=StepRate(every=5), tables=job)[0]
        for options in (
            {},
            {
                "optimizer": FTRL(),
                "init": Normal(std=1.0),
                "schedule": ConstantRate(),
                "admission": Always(),
                "eviction": Eviction(max_bytes=10),
            },
        )
    )
    assert (plain.optimizer, plain.init, plain.schedule) == (Adagrad(), Zero(), StepRate(every=5))
    assert (plain.admission, plain.eviction) == (job.admission, job.eviction)
    assert (own.optimizer, own.init, own.schedule) == (FTRL(), Normal(std=1.0), ConstantRate())
    assert (own.admission, own.eviction) == (Always(), Eviction(max_bytes=10))


def test_a_spec_makes_shards_of_all_it_says():
    spec = SparseEmbedding(["a"], 2, init=Zero(), admission=AfterSightings(num=2), eviction=Eviction(max_age=1))
    shard = spec.table_specs("e", SGD(lr=1.0), schedule=StepRate(every=5))[0].make_shard()
    for samples, keys in enumerate(([1], [1], [2], [2])):
        shard.push(keys, np.ones((1, 2)), samples=5 * samples)
    assert shard.pull([1, 2]).tolist() == [[0, 0], [-0.125, -0.125]]
    assert shard.counters() == (2, 2, {"age": 1, "uses": 0, "bytes": 0})
