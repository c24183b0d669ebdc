"""Jobs that somebody follows: every version equals the model of that moment to the bit, and training is the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from elastic import Script, inline_losses, make_plan, on_threads
from followers import Follower, assert_late_follower_knows_the_same, drifting, watch
from tiny import write_tiny
from torch import nn

from heterps.checkpoint import load_latest, store
from heterps.config import Job, Schema, load_job
from heterps.errors import StorageError
from heterps.launch import train
from heterps.model.zoo import ZOO, ctr_dnn
from heterps.training.coordinator.following import LEASE_S, Following
from heterps.training.run.commands import Follow, Scale

NUM_ROWS = 320
OFTEN = Follow(1e-6)
EVICTS = {"eviction": {"max_age": 4}}
ADMITS = {"admission": {"kind": "sightings", "num": 2}, "eviction": {"max_age": 6}}


@pytest.fixture
def job_file(tiny_job, tmp_path):
    write_tiny(tmp_path / "train.parquet", NUM_ROWS, **drifting(NUM_ROWS))
    return tiny_job


def job_on(path, launcher: str, sync: str = "bsp", **fields) -> Job:
    """The tiny job inline, inline with servers, or with two workers and two servers, on threads or on processes."""
    if launcher in ("local", "processes"):
        workers = {"channel": "memory"} if launcher == "local" else {}
        return on_threads(path, make_plan([2], []), sync=sync, servers={"count": 2}, workers=workers, **fields)
    servers = {"count": 2, "channel": "memory"} if launcher == "inline with servers" else None
    return Job.model_validate({**load_job(path).model_dump(), "sync": sync, "servers": servers, **fields})


def follow_all(monkeypatch, job: Job, *asks) -> tuple[Follower, Script]:
    """Of a run that is followed from its first batch on."""
    follower, script = watch(monkeypatch), Script(monkeypatch, (16, OFTEN, 0), *asks)
    train(job, "run", observer=script)
    assert [told.text for told in script.told if told.is_error] == []
    assert [warning for warning in script.warnings if "version" in warning] == []
    follower.compare(load_latest("run/checkpoints"))
    assert_late_follower_knows_the_same(follower)
    return follower, script


@pytest.mark.parametrize(
    ("launcher", "sync", "tables"),
    [
        ("inline", "bsp", ADMITS),
        ("inline with servers", "bsp", EVICTS),
        ("local", "bsp", ADMITS),
        ("local", "asp", EVICTS),
        ("local", "dssp:1:2", {}),
        ("processes", "bsp", EVICTS),
    ],
)
def test_every_version_is_the_model_of_its_moment(job_file, monkeypatch, launcher, sync, tables):
    follower, _ = follow_all(monkeypatch, job_on(job_file, launcher, sync, tables=tables))
    assert len(follower.versions) >= 5
    assert follower.clocks == sorted(set(follower.clocks))
    assert 0 < follower.num_full < len(follower.versions)
    assert bool(follower.gone) == bool(tables)


def test_rows_on_disk_are_followed(job_file, tmp_path, monkeypatch):
    write_tiny(tmp_path / "train.parquet", 3000, **drifting(3000, 900))
    data = {**load_job(job_file).data.model_dump(), "batch_size": 200}
    tiers = {"memory_bytes": 80_000, "folder": str(tmp_path / "cold")}
    follower, _ = follow_all(monkeypatch, job_on(job_file, "inline", data=data, tiers=tiers))
    assert json.loads(Path("run/summary.json").read_text())["tiers"]["num_demotions"] > 100
    assert len(follower.versions) > 10


def with_buffers(schema: Schema, seed: int = 0) -> nn.Module:
    model = ctr_dnn(schema, embedding_dim=4, hidden=(8,), seed=seed)
    model.deep = nn.Sequential(nn.BatchNorm1d(10), nn.Linear(10, 1))
    return model


@pytest.mark.parametrize("dense", ["servers", "all_reduce"])
def test_what_only_workers_have_is_followed(job_file, monkeypatch, dense):
    monkeypatch.setitem(ZOO, "with_buffers", with_buffers)
    job = load_job(job_file)
    job_file.write_text(job_file.read_text().replace("ctr_dnn, args: {embedding_dim: 4, hidden: [8]}", "with_buffers"))
    job = on_threads(job_file, make_plan([2], [], 4), workers={"channel": "memory", "dense": dense})
    follower, _ = follow_all(monkeypatch, job)
    assert any("running_mean" in name for name in follower.weights)
    assert len(follower.versions) >= 5


def test_a_followed_run_learns_what_one_learns_that_is_not_followed(job_file, monkeypatch):
    job = job_on(job_file, "local", tables=EVICTS)
    alone = Script(monkeypatch)
    train(job, "alone", observer=alone)
    follower, script = follow_all(monkeypatch, job)
    assert len(follower.versions) >= 5
    assert script.losses == alone.losses
    np.testing.assert_allclose(script.losses, inline_losses(job), rtol=1e-6)


def test_a_run_that_is_scaled_is_followed_on(job_file, monkeypatch):
    job = job_on(job_file, "local", tables=EVICTS)
    follower, script = follow_all(monkeypatch, job, (96, Scale(0, 3), 1), (208, Scale(0, 1), 0))
    assert len(script.changes) == 2
    assert len(follower.versions) >= 5


def test_the_end_of_a_followed_run_is_a_version(job_file, monkeypatch):
    """Asked for once, at the start, and never due again."""
    follower, script = watch(monkeypatch), Script(monkeypatch, (16, Follow(3600), 0))
    train(job_on(job_file, "inline"), "run", observer=script)
    assert follower.clocks[-1] == NUM_ROWS // 16
    assert len(follower.versions) <= 2
    follower.compare(load_latest("run/checkpoints"))
    assert [told.text for told in script.told] == [f"a version every 3600 s, for the next {LEASE_S:g} s"]


def test_a_run_that_nobody_follows_has_no_stream(job_file, tmp_path):
    train(job_on(job_file, "inline"), "run")
    assert not (tmp_path / "run" / "stream").exists()


def test_a_resumed_run_starts_with_all_rows(job_file, monkeypatch):
    job = job_on(job_file, "inline", tables=EVICTS, checkpoint={"every_samples": 160})
    follower, script = watch(monkeypatch), Script(monkeypatch, (16, OFTEN, 0))
    monkeypatch.setattr(script, "end", 240)
    with pytest.raises(Exception, match=r"^$"):
        train(job, "run", observer=script)
    before = len(follower.versions)
    again = Script(monkeypatch, (176, OFTEN, 0))
    train(job, "run", observer=again, resume=True)
    assert follower.versions[before].is_full
    assert follower.versions[before].clock <= follower.versions[before - 1].clock, "it went back to a checkpoint"
    follower.compare(load_latest("run/checkpoints"))


def test_a_full_disk_is_told_once_and_training_goes_on(job_file, monkeypatch):
    follower = watch(monkeypatch)
    script = Script(monkeypatch, (16, OFTEN, 0))
    real, calls = store.write, []

    def full_at_times(folder, snapshot):
        calls.append(folder.name)
        if 3 <= len(calls) <= 5:
            raise StorageError(f"{folder}: the disk is full")
        return real(folder, snapshot)

    monkeypatch.setattr(store, "write", full_at_times)
    done = train(job_on(job_file, "inline", tables=EVICTS), "run", observer=script)
    assert done.summary["samples"] == NUM_ROWS
    (warning,) = script.warnings
    assert warning.startswith("no version for followers at ")
    assert "the disk is full" in warning
    follower.compare(load_latest("run/checkpoints"))
    assert len(follower.versions) == calls.count("stream") - 3


# --- when a version is due -------------------------------------------------------------------------------------------


def test_versions_are_due_while_somebody_follows():
    following = Following()
    assert not following.is_due(1, 0.0)
    following.ask(2.0, 10.0)
    assert following.is_due(1, 10.0)
    following.begin(10.0)
    following.end(1, 10.1)
    assert not following.is_due(2, 11.9)
    assert following.is_due(2, 12.0)
    assert not following.is_due(1, 12.0), "nothing was trained since"
    assert following.is_on(24.9)
    assert not following.is_due(2, 25.0), "the lease is over"
    following.ask(2.0, 30.0)
    assert following.is_due(2, 30.0), "who comes back waits for nothing"


def test_the_follower_who_wants_most_versions_decides_as_long_as_anybody_follows():
    following = Following()
    following.ask(10.0, 0.0)
    following.begin(0.0)
    following.end(1, 0.0)
    assert not following.is_due(2, 5.0)
    following.ask(1.0, 5.0)
    assert following.is_due(2, 6.0)
    following.ask(10.0, 6.0)
    following.begin(6.0)
    following.end(2, 6.0)
    assert following.is_due(3, 7.0)


def test_who_wants_most_versions_decides_only_as_long_as_it_follows():
    following = Following()
    following.ask(0.5, 0.0)
    for now in (5.0, 10.0, 15.0, 20.0):
        following.ask(10.0, now)
    following.begin(20.0)
    following.end(1, 20.0)
    assert not following.is_due(2, 29.9)
    assert following.is_due(2, 30.0)


def test_most_of_the_time_is_for_training_however_long_a_version_takes():
    following = Following()
    following.ask(2.0, 0.0)
    following.begin(0.0)
    following.end(1, 3.0)
    following.ask(2.0, 5.0)
    assert not following.is_due(2, 7.0), "to ask again is no reason to hurry"
    assert not following.is_due(2, 14.9)
    following.ask(2.0, 14.9)
    assert following.is_due(2, 15.0)
