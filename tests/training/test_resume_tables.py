"""2N steps are N steps, a checkpoint on disk, and N steps: for every admission, eviction and tier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from heterps.checkpoint import load, save
from heterps.config import Adam, AfterSightings, Always, Eviction, Optimizers, Schema, Tables, Tiers, WithProbability
from heterps.data.batch import Batch
from heterps.data.keys import slots_from_ids
from heterps.model.zoo import ZOO
from heterps.ps.table import budget
from heterps.training.model.trainer import Trainer

SCHEMA = Schema(dense=("a",), slots=("s", "t"))
OPTIMIZERS = Optimizers(sparse=Adam(lr=0.01))
NUM_STEPS, BATCH = 12, 200
ADMISSIONS = [Always(), AfterSightings(num=2, sketch_bytes=4096), WithProbability(p=0.3)]
EVICTIONS = [
    Eviction(),
    Eviction(max_age=3),
    Eviction(min_uses=1.6, half_life=2),
    Eviction(max_bytes=30_000, order="lfu"),
    Eviction(max_bytes=30_000, order="lru"),
]
NAMES = ["keep", "age", "uses", "bytes-lfu", "bytes-lru"]


@pytest.fixture(autouse=True)
def _keep_random_state():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def make_batches() -> list[Batch]:
    """Many keys that come once, some that come now and then, few that come always."""
    random = np.random.default_rng(0)
    batches = []
    for _ in range(2 * NUM_STEPS):
        ids = random.zipf(1.15, (BATCH, 2)) % 100_000
        dense = random.normal(size=(BATCH, 1)).astype(np.float32)
        batches.append(Batch(dense, slots_from_ids(ids, SCHEMA.slots), (ids[:, 0] % 3 > 0).astype(np.float32)))
    return batches


def make_trainer(tables: Tables, tiers: Tiers | None, num_shards: int) -> Trainer:
    torch.manual_seed(1)
    model = ZOO["ctr_dnn"](SCHEMA, embedding_dim=4, hidden=(8,))
    return Trainer(model, OPTIMIZERS, tables=tables, tiers=tiers, num_shards=num_shards)


def train(trainer: Trainer, batches: list[Batch]) -> list[float]:
    return [trainer.step(trainer.prepare(batch))[0] for batch in batches]


def arrays_of(folder: Path, trainer: Trainer) -> dict[str, np.ndarray]:
    """All that a checkpoint has, with the rows in the order of their keys."""
    snapshot = load(save(folder, trainer.snapshot(trainer.samples, {})))
    arrays = dict(snapshot.dense)
    for name, table in ((name, table.whole()) for name, table in snapshot.tables.items()):
        order = np.argsort(table.keys)
        parts = ("keys", "values", "state", "uses", "clock")
        arrays |= {f"{name}.{part}": getattr(table, part)[order] for part in parts}
        arrays |= {f"{name}.{part}": array for part, array in table.metadata.items()}
    return arrays


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("with_tiers", [False, True], ids=["memory", "tiers"])
@pytest.mark.parametrize("eviction", EVICTIONS, ids=NAMES)
@pytest.mark.parametrize("admission", ADMISSIONS, ids=lambda admission: admission.kind)
def test_training_resumed_from_disk_equals_training_never_stopped(
    admission, eviction, with_tiers: bool, num_shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "LEAST_ROWS", 16)
    tables = Tables(admission=admission, eviction=eviction)
    memory_bytes = num_shards * (75_000 if eviction == Eviction() else 38_000)
    tiers = Tiers(memory_bytes=memory_bytes, folder=str(tmp_path / "cold")) if with_tiers else None
    batches = make_batches()
    with make_trainer(tables, tiers, num_shards) as whole:
        expected = train(whole, batches)
        if with_tiers and isinstance(admission, Always) and num_shards == 1:
            assert whole.tier_counts.num_demotions > 100
        wanted = arrays_of(tmp_path / "whole", whole)
    with make_trainer(tables, tiers, num_shards) as first:
        losses = train(first, batches[:NUM_STEPS])
        path = save(tmp_path / "half", first.snapshot(first.samples, {}))
    with make_trainer(tables, tiers, num_shards) as second:
        second.restore(load(path))
        losses += train(second, batches[NUM_STEPS:])
        found = arrays_of(tmp_path / "resumed", second)
    assert losses == expected
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert found[name].tobytes() == wanted[name].tobytes(), f"{name} differs"
    counters = wanted["embedding.counters"].sum(axis=0)
    assert (counters[1] > 0) == (not isinstance(admission, Always)), "the gate has refused some"
    assert (counters[2:].sum() > 0) == (eviction != Eviction()), "rows went"


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
@pytest.mark.parametrize("admission", ADMISSIONS, ids=lambda admission: admission.kind)
def test_on_other_shards_all_rows_are_there(admission, before: int, after: int, tmp_path: Path) -> None:
    tables = Tables(admission=admission, eviction=Eviction(max_age=3))
    with make_trainer(tables, None, before) as first:
        train(first, make_batches()[:NUM_STEPS])
        wanted = arrays_of(tmp_path / "first", first)
    with make_trainer(tables, None, after) as second:
        second.restore(load(next((tmp_path / "first").iterdir())))
        found = arrays_of(tmp_path / "second", second)
        train(second, make_batches()[NUM_STEPS:])
    rows = [name for name in wanted if name.split(".")[-1] not in ("hand", "sightings", "counters", "sketch")]
    for name in rows:
        assert found[name].tobytes() == wanted[name].tobytes(), f"{name} differs"
    assert len(wanted["embedding.keys"]) > 50


def test_a_step_between_a_snapshot_of_tiers_and_its_save_is_an_error_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    tiers = Tiers(memory_bytes=70_000, folder=str(tmp_path / "cold"))
    batches = make_batches()
    with make_trainer(Tables(), tiers, 1) as trainer:
        train(trainer, batches[:2])
        snapshot = trainer.snapshot(0, {})
        train(trainer, batches[2:3])
        with pytest.raises(RuntimeError, match="changed between its snapshot and the save of it"):
            save(tmp_path / "run", snapshot)
    assert list((tmp_path / "run").iterdir()) == []
