"""An ordinary run corrects the profile it was predicted from, and the next prediction is nearer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import heterps_here

from heterps.config import Job, load_job
from heterps.launch.by_plan import default_plan
from heterps.launch.learning import corrected, learn
from heterps.planning.inline import INLINE_JOB
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.profiling.profile import Cost, LayerProfile, Overhead, Profile, load_profile

JOB = """
model: {factory: ctr_dnn, args: {embedding_dim: 4, hidden: [8]}}
data: {train: data/train, batch_size: 32}
threads: 1
"""
LAYERS = ("embedding", "cat", "deep.linear1", "deep.relu1", "deep.logit")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.chdir(tmp_path)
    made = heterps_here("data", "synth", "data", "--rows", 1280, "--test-rows", 0, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    (tmp_path / "job.yaml").write_text(JOB)
    cost = Cost(compute_s=1.0, sync_s=0, input_s=0, alpha=1, beta=1)
    layers = tuple(LayerProfile(name=name, costs={"cpu": cost}) for name in LAYERS)
    Profile(model="slow", batch_size=32, layers=layers).write("profile.json")
    return load_job("job.yaml").model_copy(update={"profile": "profile.json"})


def train(folder: Path, *words: str) -> dict[str, Any]:
    done = heterps_here("train", "job.yaml", "--profile", "profile.json", "--json", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def error(summary: dict[str, Any]) -> float:
    return max(summary[f"{one}_throughput"] / summary[f"{two}_throughput"]
               for one, two in (("predicted", "measured"), ("measured", "predicted")))  # fmt: skip


def test_the_second_run_is_predicted_by_the_first(job: Job, tmp_path: Path) -> None:
    first = train(tmp_path, "--learn")
    assert error(first) > 20, "five seconds a batch, says the profile"
    assert "profile.json is corrected by this run: a step takes" in first["learned"]
    again = train(tmp_path)
    assert "learned" not in again
    assert again["predicted_throughput"] == pytest.approx(first["measured_throughput"], rel=1e-3)


@pytest.mark.parametrize("start_s", [0.001, 1000.0])
def test_an_inline_run_with_a_start_is_predicted_by_the_one_before_too(
    job: Job, tmp_path: Path, start_s: float
) -> None:
    started = {"whole_steps": {1: 1.0}, "overheads": {INLINE_JOB: Overhead(start_s=start_s)}}
    load_profile("profile.json").model_copy(update={"version": 2, **started}).write("profile.json")
    first = train(tmp_path, "--learn")
    kept = (load_profile("profile.json").overheads or {})[INLINE_JOB].start_s
    assert kept == pytest.approx(start_s) if start_s < 1 else 0 < kept < start_s / 2
    assert train(tmp_path)["predicted_throughput"] == pytest.approx(first["measured_throughput"], rel=1e-3)


def test_a_run_that_is_too_short_teaches_nothing(job: Job, tmp_path: Path) -> None:
    before = Path("profile.json").read_text()
    summary = {"status": "completed", "samples": 64, "measured_throughput": 1.0}
    assert learn(job, default_plan(job), summary).startswith("Nothing is learned from this run")
    assert Path("profile.json").read_text() == before


def test_a_local_run_corrects_the_overhead_of_its_launcher(job: Job) -> None:
    profile = load_profile("profile.json").model_copy(update={"overheads": {"local": Overhead(batch_s=0.5)}})
    profile.write("profile.json")
    local = job.model_copy(update={"launcher": "local"})
    plan = default_plan(local)
    assert plan.throughput == pytest.approx(32 / 5.5)
    after, what = corrected(profile, local, plan, {"measured_throughput": 32 / 6.0, "samples": 1280})
    assert what == "a batch takes 1000.0 ms besides its layers (batch_s)"
    after.write("profile.json")
    assert default_plan(local).throughput == pytest.approx(32 / 6.0)


def test_a_run_by_a_plan_corrects_the_layers_of_its_stages(job: Job) -> None:
    local = job.model_copy(update={"launcher": "local", "plan": "plan.json"})
    stages = (Stage(first=0, last=4, resource="cpu", count=1),)
    servers = PlannedServers(resource="cpu", count=1)
    plan = Plan(method="exact", stages=stages, servers=servers, throughput=6.4, hours=1, usd=1, bottleneck="cpu")
    shares = {"compute": 0.8, "communicate": 0.0, "wait": 0.2}
    summary = {"measured_throughput": 3.2, "samples": 1280, "seconds": 400.0, "stages": [shares]}
    after, _ = corrected(load_profile("profile.json"), local, plan, summary)
    assert sum(layer.costs["cpu"].compute_s for layer in after.layers) == pytest.approx(8.0), "0.8 of 10 s a batch"
    assert all(layer.costs["cpu"].corrected for layer in after.layers)


@pytest.mark.parametrize(
    ("words", "reason"),
    [([], "the job names none"), (["--profile", "profile.json", "--launcher", "local", "--emulate"], "emulated units")],
)
def test_what_cannot_be_learned_from_is_refused(job: Job, tmp_path: Path, words: list[str], reason: str) -> None:
    done = heterps_here("train", "job.yaml", "--learn", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert reason in " ".join(done.stderr.split())
    assert not (tmp_path / "runs").exists()
