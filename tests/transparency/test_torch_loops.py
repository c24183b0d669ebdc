"""What a job says of optimizers gives the parameters that a loop in plain torch gives, also on workers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from odd_models import COLUMNS, Counting
from torch import nn
from torch_loop import assert_equals_loop, loop
from transparent import Watcher, assert_same, changed, make_job, make_plan, on_threads, train, write_data

from heterps.config import Job
from heterps.errors import ConfigError
from heterps.sim.job import SimulatedJob

EVERY_ID = {name: [number % 12 for number in range(192)] for name in ("s", "t")}
"""Ids of which every batch has all, so that torch's optimizers, which move all rows, do as tables do."""


def plain_job(folder: Path, optimizers: dict[str, Any], **more: Any) -> Job:
    data = folder / "data.parquet"
    write_data(data, COLUMNS, 192, **EVERY_ID)
    job = changed(
        make_job("ctr_dnn", data, 24),
        model={"factory": "odd_models:plain", "args": {}},
        data={"columns": COLUMNS.model_dump(), "shuffle": False, "epochs": 2},
    )
    return changed(job, optimizers=optimizers, **more)


def parts(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The rows, and all other parameters."""
    named = dict(model.named_parameters())
    return [named.pop("rows.table.weight")], list(named.values())


class Torch:
    """Steps of torch's optimizers of the groups of parameters that `make` gives, at rates of `curve` by group."""

    def __init__(self, make, curves=lambda _: None) -> None:
        self._make, self._curves, self._optimizers = make, curves, None

    def __call__(self, model: nn.Module, samples: int) -> None:
        if self._optimizers is None:
            self._optimizers = self._make(model)
            self._rates = [group["lr"] for o in self._optimizers for group in o.param_groups]
        groups = [group for o in self._optimizers for group in o.param_groups]
        for group, rate, factor in zip(groups, self._rates, self._curves(samples) or [1] * len(groups), strict=True):
            group["lr"] = rate * factor
        for optimizer in self._optimizers:
            optimizer.step()


def both_ways(job: Job, folder: Path, expected) -> None:
    """Inline, and on five workers of two stages with two servers."""
    assert_equals_loop(train(job, folder / "one"), expected)
    assert_equals_loop(train(on_threads(job, 2), folder / "many", make_plan(job, (2, 3), (3,), 2)), expected)


def test_weight_decay(tmp_path: Path) -> None:
    optimizers = {
        "sparse": {"kind": "adagrad", "lr": 0.1, "weight_decay": 0.05},
        "dense": {"kind": "adamw", "lr": 0.01, "weight_decay": 0.3},
    }
    job = plain_job(tmp_path, optimizers)

    def make(model: nn.Module):
        rows, others = parts(model)
        return [
            torch.optim.Adagrad(rows, lr=0.1, weight_decay=0.05),
            torch.optim.AdamW(others, lr=0.01, weight_decay=0.3),
        ]

    both_ways(job, tmp_path, loop(job, Torch(make)))


def test_schedules_of_rows_and_of_other_parameters(tmp_path: Path) -> None:
    optimizers = {
        "sparse": {"kind": "adagrad", "lr": 0.1},
        "dense": {"kind": "sgd", "lr": 0.5},
        "schedule": {"kind": "step", "every": 1},
        "sparse_schedule": {"kind": "constant", "warmup": 99},
        "dense_schedule": {"kind": "cosine", "warmup": 49, "until": 400, "floor": 0.1},
    }
    job = plain_job(tmp_path, optimizers)

    def make(model: nn.Module):
        rows, others = parts(model)
        return [torch.optim.Adagrad(rows, lr=0.1), torch.optim.SGD(others, lr=0.5)]

    def curves(samples: int) -> list[float]:
        cosine = 0.1 + 0.9 * (1 + math.cos(math.pi * min((samples - 49) / 351, 1))) / 2
        return [min((samples + 1) / 100, 1), (samples + 1) / 50 if samples < 49 else cosine]

    both_ways(job, tmp_path, loop(job, Torch(make, curves)))


def test_groups_by_name(tmp_path: Path) -> None:
    optimizers = {
        "sparse": {"kind": "adagrad", "lr": 0.1},
        "dense": {"kind": "adamw", "lr": 0.01, "weight_decay": 0.3},
        "groups": [
            {"match": "*.bias", "weight_decay": 0.0},
            {"match": "last.*", "lr": 0.05, "schedule": {"kind": "exponential", "every": 100, "factor": 0.3}},
            {"match": "rows", "lr": 0.02},
        ],
    }
    job = plain_job(tmp_path, optimizers)

    def make(model: nn.Module):
        named = dict(model.named_parameters())
        biases = [named["first.bias"], named["last.bias"]]
        adam = torch.optim.AdamW(
            [
                {"params": biases, "weight_decay": 0.0},
                {"params": [named["last.weight"]], "lr": 0.05},
                {"params": [named["first.weight"]]},
            ],
            lr=0.01,
            weight_decay=0.3,
        )
        return [torch.optim.Adagrad(parts(model)[0], lr=0.02), adam]

    both_ways(job, tmp_path, loop(job, Torch(make, lambda samples: [1, 1, 0.3 ** (samples / 100), 1])))


def test_groups_of_parameters_that_workers_reduce_resume_in_other_stages(tmp_path: Path) -> None:
    groups = [{"match": "*.bias", "lr": 0.1}]
    job = plain_job(tmp_path, {"dense": {"kind": "adam", "lr": 0.01}, "groups": groups})
    one = train(job, tmp_path / "one")
    many = on_threads(job, 2, workers={"dense": "all_reduce"})
    train(many, tmp_path / "many", make_plan(job, (2, 3), (3,), 2), stop_after=5)
    resumed = train(on_threads(job), tmp_path / "many", make_plan(job, (2,), ()), resume=True)
    assert resumed.losses == pytest.approx(one.losses[len(one.losses) - len(resumed.losses) :], rel=1e-5)


# --- accumulated gradients -------------------------------------------------------------------------------------------


def adam_and_adagrad(model: nn.Module):
    rows, others = parts(model)
    return [torch.optim.Adagrad(rows, lr=0.1), torch.optim.Adam(others, lr=0.01)]


@pytest.mark.parametrize(
    ("how", "counts", "cuts", "sizes"),
    [
        ({}, (1,), (), [8]),
        ({"launcher": "local", "sync": "asp", "workers": {"lanes": 1}}, (1,), (), [8]),
        ({"launcher": "local"}, (2,), (), [4]),
        ({"launcher": "local", "workers": {"lanes": 4}}, (2, 1), (3,), [2]),
    ],
    ids=["inline", "one asynchronous worker", "two workers", "two stages"],
)
def test_micro_batches_one_after_another_make_the_step_of_the_batch(tmp_path: Path, how, counts, cuts, sizes) -> None:
    optimizers = {
        "sparse": {"kind": "adagrad", "lr": 0.1},
        "dense": {"kind": "adam", "lr": 0.01},
        "accumulate": 3,
    }
    job = plain_job(tmp_path, optimizers, model={"factory": "odd_models:counting", "args": {}})
    expected = loop(job, Torch(adam_and_adagrad))
    Counting.seen.clear()
    here = changed(on_threads(job, 2), **how) if how else job
    assert_equals_loop(train(here, tmp_path / "run", make_plan(job, counts, cuts, 2) if how else None), expected)
    assert sorted(set(Counting.seen)) == sizes, "samples in memory at once"


def test_micro_batches_are_divided_among_threads_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps.training.model.replicas.LEAST_WORK", 0)
    data = tmp_path / "many.parquet"
    write_data(data, COLUMNS, 700)
    fields = {"model": {"factory": "odd_models:plain", "args": {}}, "data": {"columns": COLUMNS.model_dump()}}
    job = changed(make_job("ctr_dnn", data, 300), **fields)
    one = train(job, tmp_path / "one")
    both = changed(job, optimizers={"accumulate": 2}, threads=2)
    other = train(both, tmp_path / "other")
    assert_same(one, other)


@pytest.mark.parametrize(
    ("factory", "how", "cuts", "complaint"),
    [
        ("plain", {"sync": "ssp:2"}, (3,), r"accumulate: with sync ssp:2 batches pass the 2 stages whole: choose"),
        ("of_batches", {"sync": "ssp:2"}, (), r"accumulate: OfBatches has a loss of whole batches"),
    ],
)
def test_accumulation_that_cannot_be_is_refused(tmp_path: Path, factory, how, cuts, complaint: str) -> None:
    job = plain_job(tmp_path, {"accumulate": 2}, model={"factory": f"odd_models:{factory}", "args": {}})
    with pytest.raises(ConfigError, match=complaint):
        train(on_threads(job, **how), tmp_path / "run", make_plan(job, (1,) * (len(cuts) + 1), cuts))


# --- clipping --------------------------------------------------------------------------------------------------------


def clipped_step(clip: dict[str, float]):
    """The steps of torch after its own clipping; says how often it was needed."""
    step = Torch(adam_and_adagrad)
    norms: list[float] = []

    def clipped(model: nn.Module, samples: int) -> None:
        rows, others = parts(model)
        if "norm" in clip:
            norms.append(nn.utils.clip_grad_norm_(rows + others, clip["norm"]).item() / clip["norm"])
        if "table_norm" in clip:
            norms.append(nn.utils.clip_grad_norm_(rows, clip["table_norm"]).item() / clip["table_norm"])
        if "dense_norm" in clip:
            norms.append(nn.utils.clip_grad_norm_(others, clip["dense_norm"]).item() / clip["dense_norm"])
        step(model, samples)

    return clipped, norms


CLIPS = [{"norm": 0.2}, {"table_norm": 0.015, "dense_norm": 0.2}, {"table_norm": 0.015}]


@pytest.mark.parametrize("clip", CLIPS, ids=str)
@pytest.mark.parametrize(
    ("how", "counts", "cuts", "servers"),
    [
        (None, (1,), (), 1),
        ({"sync": "ssp:2", "workers": {"lanes": 1}}, (1,), (), 2),
        ({}, (1,), (), 2),
        ({}, (3,), (), 2),
        ({}, (2, 3), (3,), 3),
    ],
    ids=["inline", "one asynchronous worker", "one worker", "three workers", "two stages, three servers"],
)
def test_gradients_are_clipped_as_by_torch(tmp_path: Path, clip, how, counts, cuts, servers) -> None:
    optimizers = {
        "sparse": {"kind": "adagrad", "lr": 0.1},
        "dense": {"kind": "adam", "lr": 0.01},
        "clip": clip,
    }
    job = plain_job(tmp_path, optimizers)
    step, norms = clipped_step(clip)
    expected = loop(job, step)
    assert min(norms) < 1 < max(norms), "some steps are clipped and some are not"
    here = job if how is None else on_threads(job, servers, **how)
    plan = None if how is None else make_plan(job, counts, cuts, servers)
    assert_equals_loop(train(here, tmp_path / "run", plan), expected)


def test_clipping_on_a_bad_network_is_clipping(tmp_path: Path) -> None:
    job = plain_job(tmp_path, {"clip": {"norm": 0.2}})
    one = train(job, tmp_path / "one")
    faults = {"corrupt": 0.03, "drop": 0.03, "double": 0.1, "reorder": 0.1, "reorder_s": 0.005}
    many = changed(on_threads(job, 2), servers={"faults": faults, "retry_s": 0.05})
    assert_same(one, train(many, tmp_path / "many", make_plan(job, (2, 2), (3,), 2)))


def test_clipping_by_table_beside_an_all_reduce_and_on_a_simulated_clock(tmp_path: Path) -> None:
    job = plain_job(tmp_path, {"clip": {"table_norm": 0.015}})
    one = train(job, tmp_path / "one")
    plan = make_plan(job, (2, 2), (3,), 2)
    assert_same(one, train(on_threads(job, 2, workers={"dense": "all_reduce"}), tmp_path / "many", plan))
    watcher = Watcher()
    simulated = SimulatedJob(on_threads(job, 2), plan, lambda worker, turn, now: now + 1.0, observer=watcher)
    simulated.run()
    simulated.close()
    assert watcher.losses == pytest.approx(one.losses, rel=1e-6)


@pytest.mark.parametrize(
    ("factory", "clip", "how", "cuts", "complaint"),
    [
        ("plain", {"norm": 1}, {"sync": "asp"}, (3,), r"clip.norm: with sync asp each of the 2 stages .*table_norm"),
        ("plain", {"dense_norm": 1}, {"sync": "asp"}, (3,), r"clip.dense_norm: with sync asp each of the 2 stages"),
        ("tied", {"table_norm": 1}, {"sync": "asp"}, (5,), r"several stages push their own parts .* gradient of rows"),
        ("plain", {"norm": 1}, {"workers": {"dense": "all_reduce"}}, (3,), r"clip.norm: .* set workers.dense: servers"),
    ],
)
def test_clipping_of_what_nobody_sees_whole_is_refused(tmp_path: Path, factory, clip, how, cuts, complaint) -> None:
    job = plain_job(tmp_path, {"clip": clip}, model={"factory": f"odd_models:{factory}", "args": {}})
    with pytest.raises(ConfigError, match=complaint):
        train(on_threads(job, **how), tmp_path / "run", make_plan(job, (1, 1), cuts))


# --- bfloat16 --------------------------------------------------------------------------------------------------------


def test_bf16_is_autocast_of_torch_inline_and_across_a_stage_border(tmp_path: Path) -> None:
    optimizers = {
        "sparse": {"kind": "adagrad", "lr": 0.1},
        "dense": {"kind": "adam", "lr": 0.01},
    }
    job = plain_job(tmp_path, optimizers, precision="bf16")
    expected = loop(job, Torch(adam_and_adagrad))
    assert_equals_loop(train(job, tmp_path / "one"), expected)
    staged = on_threads(job, workers={"lanes": 1})
    trained = train(staged, tmp_path / "two", make_plan(job, (1, 1), (3,)))
    assert_equals_loop(trained, expected)
    assert trained.snapshot.dense["model/first.weight"].dtype == np.float32
    exact = loop(changed(job, precision="fp32"), Torch(adam_and_adagrad))
    assert trained.losses != pytest.approx(exact.losses, rel=1e-4), "nothing was rounded"
    assert trained.losses == pytest.approx(exact.losses, rel=0.02)


@pytest.mark.parametrize(
    ("optimizers", "complaint"),
    [
        (
            {"groups": [{"match": "emb*", "lr": 1}]},
            r"emb\* matches no table .* has rows, first.weight",
        ),
        ({"sparse": {"kind": "ftrl"}, "groups": [{"match": "rows", "weight_decay": 0.1}]}, "ftrl has no weight_decay"),
    ],
)
def test_a_group_of_nothing_is_refused(tmp_path: Path, optimizers: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        train(plain_job(tmp_path, optimizers), tmp_path / "run")
