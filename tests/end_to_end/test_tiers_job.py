"""A job whose tables are larger than their memory: the run without tiers to the bit, stopped and resumed or not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from command import heterps
from tiny import JOB as TINY_JOB
from tiny import write_tiny

from heterps.checkpoint import Snapshot, load_latest
from heterps.config import Tiers, load_job
from heterps.launch.inline import InlineFleet
from heterps.planning.inline import unpredicted_plan
from heterps.profiling.profile import Cost, LayerProfile, Profile
from heterps.training.coordinator.coordinator import train_staged
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer, Outcome

JOB = """
name: tiers
model: {{factory: ctr_dnn, args: {{embedding_dim: 24, hidden: [16]}}}}
data: {{train: {data}/train, test: {data}/test, batch_size: 512}}
checkpoint: {{every_samples: 20000}}
threads: 2
metrics_every_samples: 10000
profile: {profile}
"""
MEMORY_BYTES = 6_000_000


class Stopper(Observer):
    """Stops a run after so many samples, and keeps its lines of metrics."""

    def __init__(self, after: int | None) -> None:
        self.after, self.samples = after, 0
        self.lines: list[dict] = []

    def stepped(self, samples, seconds, loss, interval) -> None:
        self.samples = samples

    def measured(self, line: dict) -> None:
        self.lines.append(line)

    def stop(self) -> str | None:
        return "SIGTERM" if self.after is not None and self.samples >= self.after else None


@pytest.fixture(scope="module")
def job_file(criteo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job, with a profile, which saves the time to make one."""
    folder = tmp_path_factory.mktemp("tiers")
    cost = Cost(compute_s=0.002, sync_s=0.0, input_s=0.001, alpha=0.9, beta=0.9)
    layers = (LayerProfile(name="all", costs={"cpu": cost}),)
    Profile(model="ctr_dnn", batch_size=512, layers=layers).write(folder / "profile.json")
    (folder / "job.yaml").write_text(JOB.format(data=criteo, profile=folder / "profile.json"))
    return folder / "job.yaml"


def run_job(job_file: Path, name: str, tiers: Tiers | None, *, after: int | None = None) -> tuple[Outcome, Stopper]:
    job = load_job(job_file).model_copy(update={"tiers": tiers})
    run, observer = Run(job_file.parent / name), Stopper(after)
    resume = run.folder.exists()
    (run.resume if resume else run.create)(job)
    plan, fleet = unpredicted_plan(job.cluster, num_cores=job.num_threads), InlineFleet(job, None)
    try:
        outcome = train_staged(job, run, plan, fleet, resume=resume, observer=observer, stop=observer.stop)
    finally:
        fleet.close()
    assert isinstance(outcome, Outcome)
    return outcome, observer


@pytest.fixture(scope="module")
def whole(job_file: Path) -> tuple[Outcome, Snapshot]:
    """Of a run whose rows are all in memory."""
    outcome, _ = run_job(job_file, "whole", None)
    return outcome, load_latest(job_file.parent / "whole" / "checkpoints")


def assert_equal_runs(job_file: Path, name: str, outcome: Outcome, whole: tuple[Outcome, Snapshot]) -> None:
    expected, snapshot = whole
    assert (outcome.samples, outcome.num_rows) == (expected.samples, expected.num_rows)
    for ours, theirs in ((outcome.train, expected.train), (outcome.test, expected.test)):
        assert ours.fields() == theirs.fields()
    saved = load_latest(job_file.parent / name / "checkpoints")
    assert saved.dense.keys() == snapshot.dense.keys()
    for array, other in ((saved.dense[key], snapshot.dense[key]) for key in snapshot.dense):
        np.testing.assert_array_equal(array, other)
    for table, rows in ((name, rows.whole()) for name, rows in snapshot.tables.items()):
        kept = saved.tables[table].whole()
        mine, other = np.argsort(kept.keys), np.argsort(rows.keys)
        for field in ("keys", "values", "state", "uses", "clock"):
            np.testing.assert_array_equal(getattr(kept, field)[mine], getattr(rows, field)[other])


def test_a_run_with_little_memory_equals_the_run_with_enough(job_file: Path, whole) -> None:
    outcome, observer = run_job(job_file, "tiered", Tiers(memory_bytes=MEMORY_BYTES, folder=str(job_file.parent)))
    assert_equal_runs(job_file, "tiered", outcome, whole)
    assert whole[0].table_bytes > 3 * MEMORY_BYTES
    assert max(line["table_bytes"] for line in observer.lines) <= MEMORY_BYTES
    last = observer.lines[-1]["tiers"]
    assert last["memory_rows"] + last["disk_rows"] == outcome.num_rows
    assert 0.5 < last["hit_rate"] < 1
    assert last["disk_rows"] > last["memory_rows"]
    assert min(last["num_promotions"], last["num_demotions"], last["disk_bytes"]) > 0


def test_stopped_and_resumed_with_another_budget_it_still_does(job_file: Path, whole) -> None:
    folder = str(job_file.parent)
    outcome, _ = run_job(job_file, "resumed", Tiers(memory_bytes=MEMORY_BYTES, folder=folder), after=15_000)
    assert outcome.stopped_by == "SIGTERM"
    outcome, _ = run_job(job_file, "resumed", Tiers(memory_bytes=2 * MEMORY_BYTES, folder=folder), after=30_000)
    outcome, _ = run_job(job_file, "resumed", None)
    assert outcome.restarts == 2
    assert_equal_runs(job_file, "resumed", outcome, whole)


def test_the_command_trains_with_tiers_and_explains_a_budget_that_is_too_small(job_file: Path, tmp_path: Path) -> None:
    job = yaml.safe_load(job_file.read_text()) | {"tiers": {"memory_bytes": MEMORY_BYTES, "folder": "cold"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    done = heterps("train", "job.yaml", "--run", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["tiers"]["disk_rows"] > 0
    assert list((tmp_path / "cold").iterdir()) == []
    job["tiers"]["memory_bytes"] = 100_000
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    refused = heterps("train", "job.yaml", "--run", "small", cwd=tmp_path)
    assert refused.returncode == 2
    assert "tiers.memory_bytes gives this table shard 50,000 bytes; with" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("launcher", ["inline", "local"])
@pytest.mark.parametrize(
    ("max_bytes", "num_rows", "batch"),
    [(100_000, 4000, 16), (4_000_000, 25_000, 500)],  # rows and index of all 50,000 keys are 9 MB
)
def test_the_ceiling_of_a_table_holds_with_its_index(
    tmp_path: Path, launcher: str, max_bytes: int, num_rows: int, batch: int
) -> None:
    ids = list(range(2 * num_rows))
    write_tiny(tmp_path / "train.parquet", num_rows, s=ids[:num_rows], t=ids[num_rows:])
    job = f"tables: {{eviction: {{max_bytes: {max_bytes}}}}}\nservers: {{count: 1}}\n"
    cluster = "cluster: {resources: {cpu: {usd_per_hour: 0.04, limit: 9}}, server_resource: cpu}\n"
    text = TINY_JOB.replace("  test: test.parquet\n", "").replace("embedding_dim: 4", "embedding_dim: 16")
    text = text.replace("batch_size: 16", f"batch_size: {batch}")
    (tmp_path / "job.yaml").write_text(text + job + cluster)
    done = heterps("train", "job.yaml", "--run", "run", "--launcher", launcher, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(line["table_bytes"] for line in lines) <= max_bytes
    assert 0.6 * max_bytes < lines[-1]["table_bytes"] <= max_bytes
    assert lines[-1]["tables"]["evicted"]["bytes"] > 1000
