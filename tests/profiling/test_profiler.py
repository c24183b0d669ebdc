"""A profile of a real model: what it holds, and that it leaves no trace behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heterps.config import Adagrad, Job, Schema
from heterps.data.batch import Batch, Slots
from heterps.errors import ConfigError, ModelError
from heterps.model.zoo import ctr_dnn, deepfm
from heterps.nn import embeddings
from heterps.profiling.batches import batch_size_of, head, random_batch
from heterps.profiling.job import profile_job
from heterps.profiling.profile import Profile, load_profile
from heterps.profiling.profiler import find_targets, profile
from heterps.profiling.servers import TABLE_BYTES, ReadyRows, RowRequest
from heterps.profiling.timing import summarize, time_interleaved
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.specs import TableSpec
from heterps.ps.table.sparse import SparseTable
from heterps.threads import torch_threads

SCHEMA = Schema(dense=("a", "b"), slots=("s", "t", "u"))


@pytest.fixture(scope="module")
def result() -> Profile:
    model = ctr_dnn(SCHEMA, embedding_dim=4, hidden=(8,))
    return profile(model, random_batch(SCHEMA, 64), ["cpu", "v100", "spot=v100"], name="ctr_dnn", budget_s=0)


def test_sizes_of_every_layer_by_hand(result: Profile) -> None:
    batch = random_batch(SCHEMA, 64)
    distinct = len(np.unique(batch.slots.keys))
    sizes = {layer.name: (layer.input_bytes, layer.weight_bytes, layer.output_bytes) for layer in result.layers}
    assert sizes == {
        "embedding": (64 * 3 * 8, distinct * 4 * 4, 64 * 12 * 4),
        "cat": (64 * 14 * 4, 0, 64 * 14 * 4),
        "deep.linear1": (64 * 14 * 4, (14 * 8 + 8) * 4, 64 * 8 * 4),
        "deep.relu1": (64 * 8 * 4, 0, 64 * 8 * 4),
        "deep.logit": (64 * 8 * 4, 9 * 4, 64 * 4),
    }


def test_bytes_of_weights_rows_and_activations_by_hand(result: Profile) -> None:
    distinct = len(np.unique(random_batch(SCHEMA, 64).slots.keys))
    found = {layer.name: (layer.dense_bytes, layer.row_bytes, layer.activation_bytes) for layer in result.layers}
    assert found["cat"][:2] == (0, 0)
    assert found["embedding"][:2] == (0, 2 * distinct * (8 + 4 * 4))  # a key and a row each way
    assert found["deep.linear1"] == ((14 * 8 + 8) * 4, 0, 64 * 14 * 4)  # a product keeps its input
    assert found["deep.relu1"] == (0, 0, 64 * 8 * 4)  # and a rectifier its output,
    assert found["deep.logit"] == (9 * 4, 0, 0)  # which is the input of the next product, kept once


class Tied(nn.Module):
    """Two layers with the same weights, and two that are only alike."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.two.weight, self.two.bias = self.one.weight, self.one.bias
        self.like = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.like(self.two(self.one(x)))


def test_shared_weights_count_once_and_layers_that_are_alike_cost_the_same() -> None:
    found = profile(Tied(), (torch.randn(8, 6),), ["cpu", "v100"], budget_s=0)
    weights = (6 * 6 + 6) * 4
    assert [layer.dense_bytes for layer in found.layers] == [weights, 0, weights, weights]
    assert [layer.server_s > 0 for layer in found.layers] == [True, False, True, True]
    assert found.layers[1].costs["cpu"].sync_s == found.layers[1].costs["v100"].sync_s == 0
    own = [layer for layer in found.layers if layer.dense_bytes]
    assert len({layer.server_s for layer in own}) == 1
    for resource in ("cpu", "v100"):
        assert len({(c.compute_s, c.alpha, c.beta) for c in (layer.costs[resource] for layer in own)}) == 1


def test_a_cost_says_how_sure_it_is_and_an_estimate_does_not(result: Profile) -> None:
    assert result.version == 2
    for layer in result.layers:
        assert layer.costs["cpu"].error is not None
        assert layer.costs["v100"].error is None
        assert 0 <= (layer.server_moves_s or 0.0) <= layer.server_fixed_s


def test_in_bf16_products_give_half_the_bytes_and_rows_and_weights_stay_as_they_are(result: Profile) -> None:
    model = ctr_dnn(SCHEMA, embedding_dim=4, hidden=(8,))
    halved = profile(model, random_batch(SCHEMA, 64), ["cpu", "v100"], budget_s=0, precision="bf16")
    assert {layer.name: layer.output_bytes for layer in halved.layers} == {
        "embedding": 64 * 12 * 4, "cat": 64 * 14 * 4, "deep.linear1": 64 * 8 * 2, "deep.relu1": 64 * 8 * 2,
        "deep.logit": 64 * 2,
    }  # fmt: skip
    assert [layer.weight_bytes for layer in halved.layers] == [layer.weight_bytes for layer in result.layers]


def test_what_was_not_measured_is_marked_in_every_cost(result: Profile) -> None:
    for layer in result.layers:
        assert {name: cost.estimated for name, cost in layer.costs.items()} == {
            "cpu": False, "v100": True, "spot": True,
        }  # fmt: skip
    assert not result.estimated("cpu")
    assert result.estimated("v100")


def test_one_device_under_two_names_costs_the_same(result: Profile) -> None:
    assert all(layer.costs["v100"] == layer.costs["spot"] for layer in result.layers)


def test_layers_with_parameters_keep_servers_and_links_busy_and_others_do_not(result: Profile) -> None:
    for layer in result.layers:
        has_parameters = layer.kind in ("embedding", "linear")
        assert (layer.server_s > 0) == has_parameters, layer.name
        assert all((cost.sync_s > 0) == has_parameters for cost in layer.costs.values()), layer.name
        assert all(cost.compute_s > 0 and cost.input_s > 0 for cost in layer.costs.values()), layer.name


def test_weights_are_the_same_for_every_unit_and_rows_divide_in_part(result: Profile) -> None:
    by_name = {layer.name: layer.costs["v100"] for layer in result.layers}
    assert by_name["deep.linear1"].beta == 0.0
    assert 0 < by_name["embedding"].beta < 1


def test_sync_of_the_estimate_by_hand(result: Profile) -> None:
    by_name = {layer.name: layer.costs["v100"] for layer in result.layers}
    num_bytes = 2 * (14 * 8 + 8) * 4
    assert by_name["deep.linear1"].sync_s == pytest.approx(2 * 40e-6 + num_bytes / 12e9)
    border = 64 * 14 * 4
    assert by_name["deep.linear1"].input_s == pytest.approx(2 * 40e-6 + 2 * border / 12e9)
    border = 64 * 3 * 8 + 64 * 2 * 4  # slots and dense; no gradient goes back
    assert by_name["embedding"].input_s == pytest.approx(40e-6 + border / 12e9)


def test_an_embedding_on_a_gpu_pays_the_host_and_the_link(result: Profile) -> None:
    cpu, v100 = (result.layers[0].costs[name] for name in ("cpu", "v100"))
    assert v100.compute_s == pytest.approx(cpu.compute_s + 2 * 40e-6 + 2 * 64 * 12 * 4 / 12e9)


def test_a_known_reading_time_is_the_input_of_layer_0_only() -> None:
    found = profile(nn.Sequential(nn.Linear(3, 1)), (torch.randn(8, 3),), ["cpu"], budget_s=0, read_s=0.25)
    assert [layer.costs["cpu"].input_s for layer in found.layers] == [0.25]


class Everything(nn.Module):
    """Buffers that move, random numbers, gradients, rows on tables."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ctr_dnn(SCHEMA, embedding_dim=4, hidden=(8,))
        self.norm = nn.BatchNorm1d(2)
        self.drop = nn.Dropout(0.5)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return self.inner(self.drop(self.norm(dense)), slots)


@pytest.mark.parametrize("training", [True, False])
def test_profiling_leaves_the_model_its_tables_and_the_random_state_as_they_were(training: bool) -> None:
    model, batch = Everything(), random_batch(SCHEMA, 16)
    model(torch.from_numpy(batch.dense), batch.slots).sum().backward()
    model.train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    ((_, embedding),) = embeddings(model)
    client, uses = embedding.client, list(embedding._uses.values())
    rows = client.export_rows("embedding")  # type: ignore[attr-defined]
    threads, state = torch.get_num_threads(), torch.get_rng_state()

    profile(model, random_batch(SCHEMA, 32, seed=9), budget_s=0)

    assert model.training == training
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    after = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert after.keys() == grads.keys()
    assert all(torch.equal(grads[name], grad) for name, grad in after.items())
    assert embedding.client is client
    assert list(embedding._uses.values()) == uses
    now = client.export_rows("embedding")  # type: ignore[attr-defined]
    assert all(np.array_equal(a, b) for a, b in zip(rows[0], now[0], strict=True))
    assert rows[1] == now[1]


def test_the_layers_of_deepfm_are_all_profiled_and_the_file_reads_back(tmp_path) -> None:  # type: ignore[no-untyped-def]
    heard = []
    model = deepfm(SCHEMA, embedding_dim=4, hidden=(8,))
    found = profile(model, random_batch(SCHEMA, 8), budget_s=0, progress=lambda layer, n: heard.append((layer.name, n)))
    assert heard == [(layer.name, len(found.layers)) for layer in found.layers]
    found.write(tmp_path / "profile.json")
    assert load_profile(tmp_path / "profile.json") == found


def test_a_batch_of_one_sample_has_nothing_to_fit() -> None:
    found = profile(nn.Sequential(nn.Linear(3, 1)), (torch.randn(1, 3),), ["cpu"], budget_s=0)
    assert found.layers[0].costs["cpu"].alpha == 1.0


def test_a_layer_that_cannot_run_is_named_with_its_inputs() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 1))
    with pytest.raises(ModelError, match=r"layer 1 \(linear\) cannot run .*_0 \[6, 4\].*columns"):
        profile(model, (torch.randn(6, 3),), budget_s=0)


def test_a_batch_with_other_inputs_than_the_model_is_refused() -> None:
    with pytest.raises(ModelError, match=r"has 2 inputs, but the model takes 1: "):
        profile(nn.Sequential(nn.Linear(3, 1)), (torch.randn(6, 3), torch.randn(6)), budget_s=0)


@pytest.mark.parametrize("resources", [[], ["cpu", "cpu"], ["a=cpu", "a=v100"], ["=cpu"]])
def test_resources_need_names_that_differ(resources: list[str]) -> None:
    with pytest.raises(ConfigError, match="different names"):
        find_targets(resources)


# --- parts -----------------------------------------------------------------------------------------------------------


def test_the_head_of_ragged_slots_is_its_first_samples() -> None:
    slots = Slots(("s", "t"), np.arange(6, dtype=np.uint64), np.array([0, 2, 2, 3, 6]))
    first = head(slots, 1)
    assert len(first) == 1
    assert first.keys.tolist() == [0, 1]
    assert first.offsets.tolist() == [0, 2, 2]


@pytest.mark.parametrize("inputs", [(), (torch.zeros(0, 2),), (torch.zeros(2), torch.zeros(3))])
def test_inputs_must_agree_on_the_number_of_samples(inputs: tuple[Tensor, ...]) -> None:
    with pytest.raises(ModelError, match="at least one sample"):
        batch_size_of(inputs)


def test_a_random_batch_has_the_schemas_shape_and_repeats_by_seed() -> None:
    one, two, other = random_batch(SCHEMA, 50, 1), random_batch(SCHEMA, 50, 1), random_batch(SCHEMA, 50, 2)
    assert isinstance(one, Batch)
    assert one.dense.shape == (50, 2)
    assert len(one.slots) == len(one) == 50
    assert np.array_equal(one.slots.keys, two.slots.keys)
    assert not np.array_equal(one.slots.keys, other.slots.keys)
    assert len(np.unique(one.slots.keys)) < 150, "popular ids come more than once"


def test_bytes_of_a_request_by_hand() -> None:
    request = RowRequest(TableSpec("t", 4, Adagrad(), 0, 0.01), make_lookup(np.array([5, 7, 5], np.uint64)))
    assert request.row_bytes == 2 * 4 * 4
    assert request.sync_bytes == 2 * (2 * 4 * 4) + 2 * (2 * 8)
    assert request.spread_bytes == 2 * 3 * 4 * 4


def test_ready_rows_have_the_shape_of_the_distinct_keys() -> None:
    client = ReadyRows([TableSpec("t", 4, Adagrad(), 0, 0.01)])
    lookup = make_lookup(np.array([5, 7, 5], np.uint64))
    rows = client.pull("t", lookup).result()
    assert rows.shape == (2, 4)
    assert np.abs(rows).max() <= 0.01
    assert [request.lookup for request in client.requests] == [lookup]


def test_works_take_turns_and_run_at_least_three_times_beside_the_warm_up() -> None:
    calls: list[str] = []
    timings = time_interleaved([lambda: calls.append("a"), lambda: calls.append("b")], 0.0, torch.device("cpu"))
    assert calls == ["a", "b"] * 4
    assert [timing.num_runs for timing in timings] == [3, 3]


def test_median_and_spread_by_hand() -> None:
    timing = summarize([1.0, 2.0, 3.0, 4.0, 5.0])
    assert timing.median_s == 3.0
    assert timing.spread == pytest.approx((4.0 - 2.0) / 2 / 3.0)


def test_threads_are_given_back_after_an_error() -> None:
    before = torch.get_num_threads()
    inside = []

    def fail() -> None:
        with torch_threads(1):
            inside.append(torch.get_num_threads())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert inside == [1]
    assert torch.get_num_threads() == before


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured_tables(monkeypatch: pytest.MonkeyPatch) -> list[SparseTable]:
    """The tables that a profile is measured with, as large as in real use."""
    monkeypatch.setattr("heterps.profiling.servers.MOST_ROWS", 1_000_000)
    made: list[SparseTable] = []

    class Noted(SparseTable):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words)
            made.append(self)

    monkeypatch.setattr("heterps.profiling.servers.SparseTable", Noted)
    return made


@pytest.mark.parametrize(
    "ceiling", [{"tiers": {"memory_bytes": 6_000_000}}, {"tables": {"eviction": {"max_bytes": 6_000_000}}}]
)
def test_a_job_is_profiled_within_its_own_memory(measured_tables: list[SparseTable], ceiling: dict[str, Any]) -> None:
    columns = {"dense": SCHEMA.dense, "slots": SCHEMA.slots}
    model = {"args": {"embedding_dim": 128, "hidden": [8]}}
    job = Job.model_validate(
        {"model": model, "data": {"train": "none", "batch_size": 64, "columns": columns}} | ceiling
    )
    profile_job(job, ["cpu"], synthetic=True, budget_s=0, units="parts")
    (table,) = measured_tables
    assert 3_000_000 < table.num_bytes <= 6_000_000


def test_wide_rows_fill_no_more_memory_than_narrow_ones(measured_tables: list[SparseTable]) -> None:
    for dim in (16, 512):
        profile(ctr_dnn(SCHEMA, embedding_dim=dim, hidden=(8,)), random_batch(SCHEMA, 64), ["cpu"], budget_s=0)
    narrow, wide = measured_tables
    assert 0.5 * TABLE_BYTES < narrow.num_bytes <= TABLE_BYTES
    assert 0.5 * TABLE_BYTES < wide.num_bytes <= TABLE_BYTES
