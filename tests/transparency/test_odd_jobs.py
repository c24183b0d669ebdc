"""BSP is as one process also for models, data and tables that are not the usual ones; and where it is not, which part
of it holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from odd_models import COLUMNS
from transparent import Trained, Watcher, assert_same, changed, make_job, make_plan, on_threads, train, write_data
from zoo_cases import CASES, IMAGES

from heterps.config import Job
from heterps.errors import ConfigError
from heterps.sim.job import SimulatedJob


def odd_job(folder: Path, factory: str, num_rows: int = 240, **more: Any) -> Job:
    """Of a model of odd_models.py."""
    columns = more.pop("columns", {})
    data = folder / "odd.parquet"
    write_data(data, COLUMNS, num_rows, **columns)
    model = {"factory": f"odd_models:{factory}", "args": {}}
    job = changed(make_job("ctr_dnn", data, 12), model=model, data={"columns": COLUMNS.model_dump()})
    return changed(job, **more)


def assert_as_one_process(
    job: Job, folder: Path, counts: tuple[int, ...], cuts: tuple[int, ...], servers: int = 2, **more: Any
) -> tuple[Trained, Trained]:
    one = train(job, folder / "one")
    other = train(on_threads(job, servers, **more), folder / "many", make_plan(job, counts, cuts, servers))
    assert_same(one, other)
    return one, other


def test_tied_weights_and_an_embedding_called_in_two_stages(tmp_path: Path):
    assert_as_one_process(odd_job(tmp_path, "tied"), tmp_path, (2, 1, 3), (2, 6))


def test_tied_weights_that_workers_of_two_stages_reduce(tmp_path: Path):
    assert_as_one_process(odd_job(tmp_path, "tied"), tmp_path, (2, 3), (5,), workers={"dense": "all_reduce"})


@pytest.mark.parametrize("dense", ["servers", "all_reduce"])
@pytest.mark.parametrize("freeze", [["embedding"], ["embedding", "deep.linear1.*"], ["deep.*2.*"]])
def test_layers_that_are_frozen_also_all_of_a_stage(tmp_path: Path, freeze: list[str], dense: str):
    write_data(tmp_path / "data.parquet", CASES["ctr_dnn"][0], 240)
    job = make_job("ctr_dnn", tmp_path / "data.parquet", 24, optimizers={"freeze": freeze})
    one, _ = assert_as_one_process(job, tmp_path, (2, 2), (2,), workers={"dense": dense})
    assert one.losses[-1] < one.losses[0]


def test_a_tied_weight_and_an_embedding_called_twice_in_one_stage(tmp_path: Path):
    assert_as_one_process(odd_job(tmp_path, "tied"), tmp_path, (3,), ())


def test_losses_of_samples_are_divided(tmp_path: Path):
    assert_as_one_process(odd_job(tmp_path, "of_samples"), tmp_path, (3, 2), (3,))


def test_a_loss_of_whole_batches_is_refused_with_what_to_do(tmp_path: Path):
    job = odd_job(tmp_path, "of_batches")
    with pytest.raises(ConfigError, match=r"loss of whole batches.*cannot be divided.*`losses`"):
        train(on_threads(job), tmp_path / "run", make_plan(job, (2,)))


def test_a_loss_of_whole_batches_is_as_one_process_where_there_is_one_lane(tmp_path: Path):
    assert_as_one_process(odd_job(tmp_path, "of_batches"), tmp_path, (1, 1), (3,), workers={"lanes": 1})


@pytest.mark.parametrize(("counts", "cuts"), [((4,), ()), ((2, 3), (2,))])
def test_a_last_batch_that_is_smaller_than_the_number_of_lanes(tmp_path: Path, counts, cuts):
    job = odd_job(tmp_path, "plain", num_rows=12 * 4 + 2, data={"epochs": 3})
    one, _ = assert_as_one_process(job, tmp_path, counts, cuts)
    assert len(one.losses) == 15


def test_a_batch_that_gives_a_stage_0_worker_no_samples_at_all(tmp_path: Path):
    job = odd_job(tmp_path, "plain", num_rows=12 * 3 + 1, data={"epochs": 2})
    assert_as_one_process(job, tmp_path, (4,), ())


@pytest.mark.parametrize(
    ("counts", "cuts"),
    [((2, 1), (3,)), *(pytest.param(*case, marks=pytest.mark.slow) for case in (((3,), ()), ((1, 2, 1), (1, 3))))],
)
def test_rows_that_a_policy_skips_so_that_nobody_knows_the_number_of_batches(tmp_path: Path, counts, cuts):
    holes = [None if n % 3 == 0 else float(n % 7) for n in range(240)]
    job = odd_job(
        tmp_path,
        "plain",
        columns={"a": holes},
        data={"epochs": 2, "columns": COLUMNS.model_dump() | {"dense_missing": "skip"}},
    )
    one, other = assert_as_one_process(job, tmp_path, counts, cuts)
    assert one.outcome.samples == other.outcome.samples == 2 * 160
    assert other.outcome.counts == one.outcome.counts == {"num_rows": 240, "num_skipped": 80, "missing": {"a": 80}}


def test_bags_of_keys_some_of_them_empty(tmp_path: Path):
    random = np.random.default_rng(3)
    bags = [random.integers(0, 9, random.integers(0, 4)).tolist() for _ in range(240)]
    assert_as_one_process(odd_job(tmp_path, "plain", columns={"t": bags}), tmp_path, (2, 3), (1,))


def test_a_table_for_every_slot_and_means_of_bags(tmp_path: Path):
    random = np.random.default_rng(3)
    bags = [random.integers(0, 9, random.integers(0, 4)).tolist() for _ in range(240)]
    assert_as_one_process(odd_job(tmp_path, "by_slot", columns={"s": bags}), tmp_path, (3, 1), (2,), servers=3)


@pytest.mark.parametrize(
    ("sparse", "dense"),
    [({"kind": "adam"}, {"kind": "sgd", "lr": 0.05}), ({"kind": "sgd"}, {"kind": "adagrad"})],
    ids=["adam, sgd", "sgd, adagrad"],
)
def test_other_optimizers(tmp_path: Path, sparse, dense):
    job = odd_job(tmp_path, "plain", optimizers={"sparse": sparse, "dense": dense})
    assert_as_one_process(job, tmp_path, (2, 3), (3,), workers={"dense": "all_reduce"})


def test_rows_on_disk_are_rows_in_memory(tmp_path: Path):
    random = np.random.default_rng(3)
    ids = {name: random.integers(0, 4000, 720) for name in ("s", "t")}
    job = odd_job(tmp_path, "plain", num_rows=720, columns=ids)
    tiers = {"memory_bytes": 40_000, "folder": str(tmp_path)}
    _, other = assert_as_one_process(job, tmp_path, (2, 1), (3,), servers=1, tiers=tiers)
    assert other.outcome.tiers is not None


@pytest.mark.parametrize(
    "tables",
    [
        {"admission": {"kind": "sightings", "num": 3}},
        {"eviction": {"max_age": 3}},
        {"admission": {"kind": "sightings", "num": 2}, "eviction": {"max_age": 5, "min_uses": 0.5, "half_life": 4}},
        {"admission": {"kind": "probability", "p": 0.3}},
    ],
    ids=["admission", "age", "both", "probability"],
)
def test_rows_come_and_go_as_in_one_process(tmp_path: Path, tables):
    random = np.random.default_rng(3)
    ids = {name: random.integers(0, 60, 240) for name in ("s", "t")}
    job = odd_job(tmp_path, "plain", columns=ids, tables=tables)
    one, other = assert_as_one_process(job, tmp_path, (3, 2), (3,), servers=1)
    assert one.outcome.counters == other.outcome.counters
    assert one.outcome.counters != type(one.outcome.counters)(0, 0, 0), "nothing came or went"


def test_rows_come_and_go_on_three_servers_as_on_one(tmp_path: Path):
    random = np.random.default_rng(3)
    ids = {name: random.integers(0, 60, 240) for name in ("s", "t")}
    tables = {"admission": {"kind": "sightings", "num": 2}, "eviction": {"max_age": 4}}
    job = odd_job(tmp_path, "plain", columns=ids, tables=tables)
    one, other = assert_as_one_process(job, tmp_path, (2, 2), (3,), servers=3)
    assert one.outcome.counters == other.outcome.counters


def test_images_of_several_classes(tmp_path: Path):
    data = tmp_path / "images.parquet"
    write_data(data, IMAGES, 96)
    job = make_job("resnet", data, batch_size=16)
    depth = len(make_plan(job, (1,)).layers or ())
    one, other = assert_as_one_process(job, tmp_path, (2, 1), (depth // 2,), workers={"lanes": 4})
    assert one.outcome.train["accuracy"] == other.outcome.train["accuracy"]


def test_schedules_follow_the_samples_of_the_whole_job(tmp_path: Path):
    optimizers = {"schedule": {"kind": "cosine", "until": 400}}
    assert_as_one_process(odd_job(tmp_path, "plain", optimizers=optimizers, data={"epochs": 2}), tmp_path, (2, 2), (3,))


@pytest.mark.parametrize("values", ["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
def test_values_of_16_bits_between_stages_train_closely(tmp_path: Path, values):
    job = odd_job(tmp_path, "plain")
    one = train(job, tmp_path / "one")
    other = train(on_threads(job, workers={"values": values}), tmp_path / "many", make_plan(job, (2, 1), (3,)))
    assert one.losses != other.losses, "they were not rounded"
    np.testing.assert_allclose(other.losses, one.losses, rtol=0.02)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({"drop": 0.03, "double": 0.1}, marks=pytest.mark.slow),
        {"delay_s": 0.002, "reorder": 0.2, "reorder_s": 0.005},
        {"corrupt": 0.03, "drop": 0.02, "double": 0.05, "reorder": 0.05, "reorder_s": 0.005},
    ],
    ids=["lost and doubled", "late and out of order", "everything"],
)
def test_faults_on_the_way_to_the_servers_do_not_show(tmp_path: Path, faults):
    job = odd_job(tmp_path, "plain", num_rows=120)
    one = train(job, tmp_path / "one")
    many = changed(on_threads(job, 2), servers={"faults": faults, "retry_s": 0.05})
    assert_same(one, train(many, tmp_path / "many", make_plan(job, (2, 2), (2,), 2)))


# --- what holds of layers that look at more than their sample, or draw -----------------------------------------------


@pytest.mark.parametrize("factory", ["dropped", "normed"])
def test_layers_that_draw_or_average_are_the_same_whoever_computes_a_lane(tmp_path: Path, factory):
    """Dropout draws by lane and samples so far; BatchNorm sees the micro-batch of a lane."""
    job = on_threads(odd_job(tmp_path, factory), workers={"lanes": 4})
    one = train(job, tmp_path / "one", make_plan(job, (1, 1), (3,)))
    for counts, cuts in [((2, 1), (3,)), ((1, 2), (3,)), ((4, 4), (3,))]:
        other = train(job, tmp_path / f"{counts}", make_plan(job, counts, cuts))
        np.testing.assert_allclose(other.losses, one.losses, rtol=1e-6)


def test_batch_norm_is_as_one_process_in_one_lane_and_not_in_several(tmp_path: Path):
    job = odd_job(tmp_path, "normed")
    one, _ = assert_as_one_process(job, tmp_path, (1, 1), (3,), workers={"lanes": 1})
    several = train(on_threads(job), tmp_path / "several", make_plan(job, (2,)))
    assert not np.allclose(several.losses, one.losses, rtol=1e-4), "statistics are of a lane's micro-batch"


@pytest.mark.parametrize(
    ("factory", "how", "counts", "sentence"),
    [
        ("normed", {}, (2,), "^middle: BatchNorm normalises over a micro-batch, one of 2 of a batch, .* LayerNorm"),
        ("normed", {"optimizers": {"accumulate": 3}, "workers": {"lanes": 1}}, (1,), "one of 3 of a batch"),
        ("normed", {"sync": "asp"}, (2,), "^middle: each of the 2 lanes keeps running statistics of BatchNorm of its"),
        ("normed", {"workers": {"lanes": 1}}, (1,), None),
        ("plain", {}, (2,), None),
    ],
)
def test_batch_norm_that_differs_from_one_process_is_told_before_training(tmp_path, factory, how, counts, sentence):
    job = odd_job(tmp_path, factory, num_rows=24)
    trained = train(on_threads(job, **how), tmp_path / "run", make_plan(job, counts))
    told = trained.watcher.warnings
    assert len(told) == (sentence is not None)
    assert trained.outcome.doubts == told, "the summary says it, too"
    assert sentence is None or re.search(sentence, told[0])
    assert train(job, tmp_path / "inline").watcher.warnings == [], "one process"


def test_dropout_draws_the_same_inline_on_workers_and_simulated_in_as_many_lanes(tmp_path: Path):
    job = odd_job(tmp_path, "dropped", data={"epochs": 4}, workers={"lanes": 4})
    inline, plan = train(job, tmp_path / "inline"), make_plan(job, (2,))
    on_two = on_threads(job, workers={"lanes": 4})
    assert_same(inline, train(on_two, tmp_path / "local", plan))
    watcher = Watcher()
    simulated = SimulatedJob(on_two, plan, lambda worker, turn, now: now + 1.0, observer=watcher)
    simulated.run()
    simulated.close()
    np.testing.assert_allclose(watcher.losses, inline.losses, rtol=1e-6)
    assert np.mean(inline.losses[-20:]) < np.mean(inline.losses[:20]) - 0.05, "it learns"


def test_dropout_draws_anew_for_every_lane_and_step(tmp_path: Path):
    """With all samples alike, and parameters that hardly move, losses differ by what was drawn alone."""
    same = {"s": [1] * 240, "t": [2] * 240, "a": [1.0] * 240, "b": [1.0] * 240, "label": [1] * 240}
    optimizers = {"sparse": {"kind": "sgd", "lr": 1e-9}, "dense": {"kind": "sgd", "lr": 1e-9}}
    job = on_threads(odd_job(tmp_path, "dropped", columns=same, optimizers=optimizers))
    trained = train(job, tmp_path / "run", make_plan(job, (2,)))
    assert len(set(trained.losses)) == len(trained.losses) == 20


def test_a_caller_s_random_numbers_are_left_as_they_were(tmp_path: Path):
    job = on_threads(odd_job(tmp_path, "dropped", num_rows=48))
    before = torch.get_rng_state()
    train(job, tmp_path / "run", make_plan(job, (2, 1), (3,)))
    assert torch.equal(before, torch.get_rng_state())
