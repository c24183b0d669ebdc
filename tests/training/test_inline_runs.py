"""Inline runs. The central promise: a run that was stopped and resumed equals one that never was, to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from heterps.checkpoint import load_latest
from heterps.config import Checkpoint, Data, Job, Model, Schema
from heterps.data import reader as reader_module
from heterps.errors import DataError, StorageError
from heterps.launch.inline import InlineFleet
from heterps.model.zoo import ZOO, ctr_dnn
from heterps.planning.inline import unpredicted_plan
from heterps.training.coordinator import coordinator as coordinator_module
from heterps.training.coordinator.coordinator import train_staged
from heterps.training.run import folder as run_folder
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer, Outcome
from heterps.training.worker.stage_work import StageWork

NUM_ROWS, BATCH, EPOCHS = 330, 32, 2
STEPS_AN_EPOCH = 11  # ten of 32 and one of 10
STEPS = EPOCHS * STEPS_AN_EPOCH
SCHEMA = Schema(dense=("a", "b"), slots=("s", "t"))
TIMED = ("seconds", "samples_per_s", "table_bytes", "stages", "usd")


def with_dropout(schema: Schema, seed: int = 0) -> nn.Module:
    """A model whose steps depend on torch's random state and on buffers."""
    model = ctr_dnn(schema, embedding_dim=4, hidden=(8,), seed=seed)
    model.deep = nn.Sequential(nn.BatchNorm1d(10), nn.Linear(10, 8), nn.Dropout(0.4), nn.Linear(8, 1))
    return model


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(reader_module, "BLOCK_ROWS", 64)
    monkeypatch.setitem(ZOO, "with_dropout", with_dropout)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for name, rows in (("train", NUM_ROWS), ("test", 100)):
        ids = random.integers(0, 30, (rows, 2))
        dense = random.normal(size=(rows, 2))
        label = (ids[:, 0] % 3 + dense[:, 0] > 1).astype(int)
        table = {"label": label, "a": dense[:, 0], "b": dense[:, 1], "s": ids[:, 0], "t": ids[:, 1]}
        pq.write_table(pa.table(table), folder / f"{name}.parquet", row_group_size=25)
    return folder


@pytest.fixture
def make_job(data):
    def make(factory="with_dropout", *, threads=1, checkpoint=None, seed=0, **of_data):
        fields = {"batch_size": BATCH, "epochs": EPOCHS, "test": str(data / "test.parquet"), **of_data}
        return Job(
            model=Model(factory=factory, args={} if factory == "with_dropout" else {"hidden": [8]}),
            data=Data(train=str(data / "train.parquet"), columns=SCHEMA, **fields),
            checkpoint=checkpoint or Checkpoint(),
            threads=threads,
            metrics_every_samples=100,
            seed=seed,
        )

    return make


@pytest.fixture
def run_in(tmp_path):
    def run_in(name):
        (tmp_path / name).mkdir(exist_ok=True)
        return Run(tmp_path / name)

    return run_in


class Recorder(Observer):
    """Remembers everything; raises `crash` after that step, stops the loop after `stop_after` steps."""

    def __init__(self, stop_after=None, crash_after=None):
        self.losses, self.saves, self.warnings, self.starts = [], [], [], []
        self.stop_after, self.crash_after = stop_after, crash_after
        self.evaluated = False
        self.samples = 0

    def started(self, samples, total, resumed):
        self.starts.append((samples, total, resumed))

    def stepped(self, samples, seconds, loss, interval):
        self.losses.append(loss)
        self.samples = samples
        if len(self.losses) == self.crash_after:
            raise RuntimeError("a crash")

    def saved(self, path, seconds):
        self.saves.append((self.samples, path))

    def warned(self, message):
        self.warnings.append(message)

    def evaluating(self, samples):
        self.evaluated = True

    def stop(self):
        return "SIGINT" if self.stop_after is not None and len(self.losses) >= self.stop_after else None


def train(job, run, *, resume=False, **options):
    recorder = Recorder(**options)
    return train_watched(job, run, recorder, recorder.stop, resume=resume), recorder


def train_watched(job, run, observer, stop, *, resume=False):
    plan = unpredicted_plan(job.cluster, num_cores=job.num_threads)
    fleet = InlineFleet(job, None)
    try:
        outcome = train_staged(job, run, plan, fleet, resume=resume, observer=observer, stop=stop)
    finally:
        fleet.close()
    assert isinstance(outcome, Outcome)
    return outcome


def everything(run, outcome):
    """What a run left: metrics without times, weights, rows by key, and the metrics of training and test."""
    timeless = [{k: v for k, v in line.items() if k not in TIMED}
                for line in run.metrics()]  # fmt: skip
    snapshot = load_latest(run.checkpoints)
    found = {"metrics.jsonl": json.dumps(timeless), "samples": snapshot.samples, "clock": snapshot.clock}
    found |= {name: array.tobytes() for name, array in snapshot.dense.items()}
    for name, table in ((name, table.whole()) for name, table in snapshot.tables.items()):
        order = np.argsort(table.keys)
        found |= {f"{name}.{part}": getattr(table, part)[order].tobytes() for part in ("keys", "values", "state")}
        found |= {f"{name}.meta": table.meta}
    timed = ("seconds", "interval_started_s", "restarts", "usd")
    found["progress"] = {name: value for name, value in snapshot.progress.items() if name not in timed}
    found["train"] = outcome.train.state()
    found["test"] = outcome.test.state() if outcome.test else None
    return found


def assert_equal_runs(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name] == other[name], f"{name} differs"


@pytest.fixture
def whole(make_job, run_in):
    """The run that was never stopped: what it left, and its losses."""

    def train_whole(*args, **options):
        run = run_in("whole")
        outcome, recorder = train(make_job(*args, **options), run)
        assert len(recorder.losses) == STEPS
        return everything(run, outcome), recorder.losses

    return train_whole


# --- resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_after", [1, 4, STEPS_AN_EPOCH, STEPS_AN_EPOCH + 1, STEPS - 1, STEPS])
@pytest.mark.parametrize("threads", [(1, 1), (2, 3)])
def test_a_resumed_run_equals_one_never_stopped(make_job, run_in, whole, stop_after, threads):
    expected, losses = whole(threads=threads[0])
    run = run_in("stopped")
    outcome, first = train(make_job(threads=threads[0]), run, stop_after=stop_after)
    assert (outcome.stopped_by, outcome.test, outcome.restarts) == ("SIGINT", None, 0)
    outcome, second = train(make_job(threads=threads[1]), run, resume=True)
    assert (outcome.stopped_by, outcome.samples, outcome.restarts) == (None, NUM_ROWS * EPOCHS, 1)
    assert first.losses + second.losses == losses
    assert second.starts == [(min(stop_after * BATCH, NUM_ROWS) if stop_after <= STEPS_AN_EPOCH else
                              NUM_ROWS + min((stop_after - STEPS_AN_EPOCH) * BATCH, NUM_ROWS),
                              NUM_ROWS * EPOCHS, True)]  # fmt: skip
    assert_equal_runs(expected, everything(run, outcome))


@pytest.mark.parametrize(("factory", "shuffle"), [("ctr_dnn", True), ("deepfm", False), ("with_dropout", False)])
def test_a_run_stopped_again_and_again_equals_one_never_stopped(make_job, run_in, whole, factory, shuffle):
    expected, losses = whole(factory, shuffle=shuffle)
    run, found, stops = run_in("stopped"), [], 0
    outcome, recorder = train(make_job(factory, shuffle=shuffle), run, stop_after=3)
    while outcome.stopped_by:
        stops += 1
        found += recorder.losses
        outcome, recorder = train(
            make_job(factory, shuffle=shuffle, threads=1 + stops % 3), run, resume=True, stop_after=3
        )
    assert found + recorder.losses == losses
    assert outcome.restarts == stops
    assert_equal_runs(expected, everything(run, outcome))


@pytest.mark.parametrize("crash_after", [1, 3, 9, 17, STEPS])
def test_a_crashed_run_goes_on_from_its_last_checkpoint_as_if_nothing_had_happened(
    make_job, run_in, whole, crash_after
):
    """Metrics lines of steps that the crash undid are written again, not twice; before a checkpoint it starts anew."""
    checkpoint = Checkpoint(every_samples=5 * BATCH)
    expected, losses = whole(checkpoint=checkpoint)
    run = run_in("crashed")
    with pytest.raises(RuntimeError, match="a crash"):
        train(make_job(checkpoint=checkpoint), run, crash_after=crash_after)
    outcome, recorder = train(make_job(checkpoint=checkpoint), run, resume=True)
    assert recorder.losses == losses[len(losses) - len(recorder.losses) :]
    assert bool(recorder.warnings) == (crash_after < 5), "there was no checkpoint yet"
    assert outcome.restarts == 1
    assert_equal_runs(expected, everything(run, outcome))


def test_a_crash_between_the_last_interval_and_the_last_checkpoint_doubles_no_line(
    make_job, run_in, whole, monkeypatch
):
    checkpoint = Checkpoint(every_samples=NUM_ROWS)  # the second falls on the last step, and is the last of the run
    expected, _ = whole(checkpoint=checkpoint)
    run, save, calls = run_in("crashed"), run_folder.begin_save, []

    def save_once_only(*args, **options):
        calls.append(args)
        if len(calls) > 1:
            raise StorageError("full")
        return save(*args, **options)

    monkeypatch.setattr(run_folder, "begin_save", save_once_only)
    with pytest.raises(StorageError):
        train(make_job(checkpoint=checkpoint), run)
    monkeypatch.setattr(run_folder, "begin_save", save)
    outcome, recorder = train(make_job(checkpoint=checkpoint), run, resume=True)
    assert len(recorder.losses) == STEPS_AN_EPOCH
    assert_equal_runs(expected, everything(run, outcome))


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(make_job, run_in, whole, caplog):
    checkpoint = Checkpoint(every_samples=4 * BATCH)
    expected, losses = whole(checkpoint=checkpoint)
    run = run_in("damaged")
    _, first = train(make_job(checkpoint=checkpoint), run, stop_after=6)
    newest = run.checkpoints / "0000000006" / "dense.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    outcome, second = train(make_job(checkpoint=checkpoint), run, resume=True)
    assert first.losses[:4] + second.losses == losses
    assert "0000000006" in caplog.text
    assert_equal_runs(expected, everything(run, outcome))


def test_a_finished_run_resumed_for_more_epochs_trains_on(make_job, run_in):
    run = run_in("longer")
    train(make_job(epochs=1), run)
    outcome, recorder = train(make_job(epochs=2), run, resume=True)
    assert recorder.starts == [(NUM_ROWS, 2 * NUM_ROWS, True)]
    assert len(recorder.losses) == STEPS_AN_EPOCH
    assert outcome.samples == 2 * NUM_ROWS


def test_data_that_changed_since_is_not_gone_on_with(make_job, run_in, data, tmp_path):
    other = tmp_path / "train.parquet"
    other.write_bytes((data / "train.parquet").read_bytes())
    run, job = run_in("changed"), make_job()
    train(job, run, stop_after=3)
    pq.write_table(pq.read_table(other).slice(5), other, row_group_size=25)
    changed = job.model_copy(update={"data": job.data.model_copy(update={"train": str(other)})})
    with pytest.raises(DataError, match="belongs to other data"):
        train(changed, run, resume=True)


def test_equal_jobs_take_equal_steps_and_leave_the_random_state_alone(make_job, run_in):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = train(make_job(), run_in("one"))[1].losses
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert train(make_job(), run_in("other"))[1].losses == one
    assert train(make_job(seed=1), run_in("third"))[1].losses != one


# --- evaluation ------------------------------------------------------------------------------------------------------


def test_a_stop_during_evaluation_gives_no_metrics_of_a_part(make_job, run_in, whole):
    expected, _ = whole()
    run, recorder = run_in("stopped"), Recorder()
    stop = lambda: "SIGTERM" if recorder.evaluated else None  # noqa: E731
    outcome = train_watched(make_job(), run, recorder, stop)
    assert (outcome.stopped_by, outcome.test) == ("SIGTERM", None)
    outcome, _ = train(make_job(), run, resume=True)
    assert_equal_runs(expected, everything(run, outcome))


def test_without_a_test_set_there_is_no_evaluation(make_job, run_in):
    outcome, recorder = train(make_job(test=None), run_in("run"))
    assert (outcome.test, recorder.evaluated) == (None, False)
    assert outcome.train.count == NUM_ROWS * EPOCHS


def test_a_test_set_smaller_than_a_batch_is_evaluated_whole(make_job, run_in):
    outcome, _ = train(make_job(batch_size=200), run_in("run"))
    assert outcome.test.count == 100


# --- checkpoints and metrics -----------------------------------------------------------------------------------------


def test_metrics_come_after_every_interval_and_at_the_end(make_job, run_in):
    run = run_in("run")
    outcome, _ = train(make_job(epochs=1), run)
    lines = run.metrics()
    assert [line["samples"] for line in lines] == [128, 256, 330]
    assert [line["epoch"] for line in lines] == [0, 0, 1]
    assert {"seconds", "samples_per_s", "log_loss", "auc", "normalised_entropy", "calibration"} < set(lines[0])
    assert lines[-1]["rows"] == outcome.num_rows
    assert outcome.train.count == NUM_ROWS


def saved_steps(recorder) -> list[int]:
    """The steps after which checkpoints were made."""
    return [int(Path(path).name) for _, path in recorder.saves]


def test_checkpoints_come_by_samples_and_at_the_end_and_two_are_kept(make_job, run_in):
    run = run_in("run")
    _, recorder = train(make_job(epochs=1, checkpoint=Checkpoint(every_samples=100, every_minutes=None)), run)
    assert saved_steps(recorder) == [4, 8, 11]
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["0000000008", "0000000011"]


@pytest.fixture
def clock(monkeypatch):
    """A clock on which a step takes 30 seconds and nothing else takes any."""
    clock = SimpleNamespace(now=0.0)
    now = SimpleNamespace(perf_counter=lambda: clock.now, monotonic=lambda: clock.now)
    monkeypatch.setattr(coordinator_module, "time", now)
    run = StageWork.run

    def slow(self, turn):
        clock.now += 30
        return run(self, turn)

    monkeypatch.setattr(StageWork, "run", slow)
    return clock


def test_checkpoints_come_by_minutes(make_job, run_in, clock):
    run = run_in("run")
    outcome, recorder = train(make_job(epochs=1, checkpoint=Checkpoint(every_minutes=2)), run)
    assert saved_steps(recorder) == [4, 8, STEPS_AN_EPOCH]
    assert outcome.seconds == 30 * STEPS_AN_EPOCH
    assert run.metrics()[0]["samples_per_s"] == round(BATCH / 30, 1)


def test_seconds_of_a_resumed_run_add_up(make_job, run_in, clock):
    run = run_in("run")
    train(make_job(), run, stop_after=5)
    clock.now = 1e6
    outcome, _ = train(make_job(), run, resume=True)
    assert outcome.seconds == 30 * STEPS
    assert [line["seconds"] for line in run.metrics()][:2] == [120, 240]


@pytest.mark.parametrize("fails_at", ["begin", "end"])
def test_a_periodic_checkpoint_that_fails_is_a_warning_and_the_next_succeeds(
    make_job, run_in, whole, monkeypatch, fails_at
):
    checkpoint = Checkpoint(every_samples=100)
    expected, _ = whole(checkpoint=checkpoint)
    run, save, attempts = run_in("run"), run_folder.begin_save, []

    def fail_once(*args, **options):
        attempts.append(args)
        if len(attempts) == 1:
            return fail(fails_at)
        return save(*args, **options)

    monkeypatch.setattr(run_folder, "begin_save", fail_once)
    outcome, recorder = train(make_job(checkpoint=checkpoint), run)
    assert recorder.warnings == ["the checkpoint at 128 samples failed, training goes on. No space left on device."]
    assert saved_steps(recorder)[0] == 8, "the next one comes when it would have come"
    assert_equal_runs(expected, everything(run, outcome))


def fail(at: str) -> Callable[[], Path]:
    """A disk is full when a checkpoint is begun, or when it ends, on another thread."""

    def end() -> Path:
        raise StorageError("No space left on device.")

    return end() if at == "begin" else end


@pytest.mark.parametrize("fails_at", ["begin", "end"])
@pytest.mark.parametrize("stop_after", [None, 3])
def test_the_last_checkpoint_must_succeed(make_job, run_in, monkeypatch, stop_after, fails_at):
    monkeypatch.setattr(run_folder, "begin_save", lambda *_: fail(fails_at))
    with pytest.raises(StorageError, match="No space left"):
        train(make_job(), run_in("run"), stop_after=stop_after)
