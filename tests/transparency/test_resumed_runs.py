"""A run that was stopped and resumed is a run that was never stopped: by the same plan, another, or none at all.

inline or plan A |== 7 steps ==| SIGTERM, checkpoint      inline or plan B |== the rest ==|      same as |=====|
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
import pytest
from odd_models import COLUMNS
from transparent import (
    Trained,
    assert_same_tables,
    changed,
    make_job,
    make_plan,
    on_processes,
    on_threads,
    train,
    write_data,
)
from zoo_cases import CASES

from heterps.checkpoint import load_latest
from heterps.config import Job
from heterps.training.run.folder import Run
from heterps.yamlfile import dump_yaml

STOP_AFTER = 7
Place = tuple[tuple[int, ...], tuple[int, ...], int, str] | None  # workers, first layers, servers, dense; None: inline
PLACES: dict[str, Place] = {
    "inline": None,
    "one": ((1,), (), 1, "servers"),
    "two stages": ((2, 1), (4,), 1, "servers"),
    "other counts": ((1, 3), (4,), 3, "servers"),
    "other stages": ((1, 2, 1), (2, 5), 2, "servers"),
    "reduced": ((2, 2), (4,), 1, "all_reduce"),
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Two epochs of 8 steps."""
    data = tmp_path_factory.mktemp("data") / "two_emb.parquet"
    write_data(data, CASES["two_emb"][0], 24 * 7 + 10)
    return changed(make_job("two_emb", data), data={"epochs": 2})


@pytest.fixture(scope="module")
def whole(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(job, tmp_path_factory.mktemp("whole") / "run")


def at(place: str, job: Job, folder: Path, **more: Any) -> Trained:
    if (found := PLACES[place]) is None:
        return train(job, folder, **more)
    counts, cuts, servers, dense = found
    return train(
        on_threads(job, servers, workers={"dense": dense}), folder, make_plan(job, counts, cuts, servers), **more
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("two stages", "two stages", marks=pytest.mark.slow),  # to the bit, below
        ("two stages", "other counts"),
        pytest.param("other counts", "other stages", marks=pytest.mark.slow),
        ("two stages", "inline"),
        ("inline", "two stages"),
        pytest.param("reduced", "reduced", marks=pytest.mark.slow),
        ("reduced", "other counts"),
        pytest.param("one", "reduced", marks=pytest.mark.slow),
        ("inline", "reduced"),
        pytest.param("reduced", "inline", marks=pytest.mark.slow),
    ],
)
def test_a_run_stopped_and_resumed_is_one_never_stopped(job: Job, whole: Trained, tmp_path: Path, before, after):
    first = at(before, job, tmp_path / "run", stop_after=STOP_AFTER)
    assert first.outcome.stopped_by == "SIGTERM"
    assert STOP_AFTER <= len(first.losses) <= STOP_AFTER + 1, "more than the step under way was done"
    second = at(after, job, tmp_path / "run", resume=True)
    assert second.outcome.restarts == 1
    assert second.outcome.samples == whole.outcome.samples
    np.testing.assert_allclose(first.losses + second.losses, whole.losses, rtol=1e-6)
    assert_same_tables(whole.snapshot, second.snapshot)
    lines = Run(tmp_path / "run").metrics()
    assert [line["samples"] for line in lines] == [line["samples"] for line in Run(whole.folder).metrics()]


def test_by_the_same_plan_a_resumed_run_has_the_same_bits(job: Job, tmp_path: Path):
    whole = at("two stages", job, tmp_path / "whole")
    first = at("two stages", job, tmp_path / "run", stop_after=STOP_AFTER)
    second = at("two stages", job, tmp_path / "run", resume=True)
    assert first.losses + second.losses == whole.losses
    assert_same_tables(whole.snapshot, second.snapshot, exact=True)


def test_dropout_draws_in_a_resumed_run_what_it_would_have_drawn(tmp_path: Path):
    data = tmp_path / "odd.parquet"
    write_data(data, COLUMNS, 192)
    model = {"factory": "odd_models:dropped", "args": {}}
    job = on_threads(changed(make_job("ctr_dnn", data, 12), model=model, data={"columns": COLUMNS.model_dump()}))
    plan = make_plan(job, (2, 1), (3,))
    whole = train(job, tmp_path / "whole", plan)
    first = train(job, tmp_path / "run", plan, stop_after=5)
    second = train(job, tmp_path / "run", plan, resume=True)
    assert first.losses + second.losses == whole.losses


def test_checkpoints_on_the_way_leave_the_results_unchanged(job: Job, whole: Trained, tmp_path: Path):
    saving = changed(job, checkpoint={"every_samples": 48})
    trained = at("other counts", saving, tmp_path / "run")
    assert trained.watcher.saves >= 5, "after 3 steps each, since one is under way when a cut is asked for"
    np.testing.assert_allclose(trained.losses, whole.losses, rtol=1e-6)
    assert_same_tables(whole.snapshot, trained.snapshot)


def test_a_run_resumed_twice_counts_its_restarts_and_ends_the_same(job: Job, whole: Trained, tmp_path: Path):
    losses = at("one", job, tmp_path / "run", stop_after=3).losses
    losses = losses + at("inline", job, tmp_path / "run", resume=True, stop_after=4).losses
    last = at("two stages", job, tmp_path / "run", resume=True)
    assert last.outcome.restarts == 2
    np.testing.assert_allclose(losses + last.losses, whole.losses, rtol=1e-6)
    assert_same_tables(whole.snapshot, last.snapshot)


def test_a_complete_run_that_is_resumed_has_nothing_to_do(job: Job, whole: Trained, tmp_path: Path):
    at("two stages", job, tmp_path / "run")
    again = at("other counts", job, tmp_path / "run", resume=True)
    assert (again.losses, again.outcome.samples) == ([], whole.outcome.samples)
    assert_same_tables(whole.snapshot, again.snapshot)


def test_more_epochs_can_be_asked_for_later(job: Job, whole: Trained, tmp_path: Path):
    first = at("two stages", changed(job, data={"epochs": 1}), tmp_path / "run")
    second = at("other counts", job, tmp_path / "run", resume=True)
    np.testing.assert_allclose(first.losses + second.losses, whole.losses, rtol=1e-6)


class TestSkippedRows:
    """Nobody knows beforehand how many batches an epoch has."""

    @pytest.fixture
    def job(self, tmp_path_factory: pytest.TempPathFactory) -> Job:
        data = tmp_path_factory.mktemp("skipped") / "odd.parquet"
        write_data(data, COLUMNS, 240, a=[None if n % 3 == 0 else float(n % 7) for n in range(240)])
        columns = COLUMNS.model_dump() | {"dense_missing": "skip"}
        model = {"factory": "odd_models:plain", "args": {}}
        return changed(make_job("ctr_dnn", data, 12), model=model, data={"columns": columns, "epochs": 2})

    @pytest.mark.parametrize("before", ["inline", "threads"])
    def test_a_run_by_a_plan_goes_on_with_the_right_batch(self, job: Job, tmp_path: Path, before: str):
        whole = train(job, tmp_path / "whole")
        plan = make_plan(job, (2, 1), (3,))
        first = (
            train(job, tmp_path / "run", stop_after=16)
            if before == "inline"
            else train(on_threads(job), tmp_path / "run", plan, stop_after=16)
        )
        second = train(on_threads(job, 2), tmp_path / "run", make_plan(job, (3,)), resume=True)
        np.testing.assert_allclose(first.losses + second.losses, whole.losses, rtol=1e-6)
        assert_same_tables(whole.snapshot, second.snapshot)

    def test_one_process_goes_on_with_the_batches_that_workers_left(self, job: Job, tmp_path: Path):
        whole = train(job, tmp_path / "whole")
        first = train(on_threads(job), tmp_path / "run", make_plan(job, (2,)), stop_after=5)
        second = train(job, tmp_path / "run", resume=True)
        np.testing.assert_allclose(first.losses + second.losses, whole.losses, rtol=1e-6)
        assert_same_tables(whole.snapshot, second.snapshot)


@pytest.mark.slow
def test_a_process_that_gets_sigterm_saves_and_its_run_goes_on(job: Job, whole: Trained, tmp_path: Path):
    plan = make_plan(job, (2, 1), (4,))
    plan.write(tmp_path / "plan.json")
    asked = changed(on_processes(job), plan=str(tmp_path / "plan.json"))
    (tmp_path / "job.yaml").write_text(dump_yaml(asked))
    run = tmp_path / "run"
    start = "from heterps.cli import main; main()"
    command = [sys.executable, "-c", start, "train", str(tmp_path / "job.yaml"), "--run", str(run)]
    process = preloaded.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 120
        while not (run / "metrics.jsonl").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (run / "metrics.jsonl").exists(), output.decode()
    stopped = load_latest(run / "checkpoints")
    assert 0 < stopped.samples <= whole.outcome.samples
    resumed = train(on_threads(job), run, plan, resume=True)
    assert_same_tables(whole.snapshot, resumed.snapshot)
