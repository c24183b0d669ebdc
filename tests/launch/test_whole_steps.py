"""Real steps beside the sum of the layers: measured on scratch tables, kept in the profile, used by the prediction."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from command import heterps_here

from heterps.config import Job, Servers, load_job
from heterps.launch.whole_steps import with_whole_steps
from heterps.planning.inline import INLINE_JOB, inline_prediction, layer_seconds
from heterps.profiling.profile import Cost, LayerProfile, Profile, load_profile

JOB = """
model: {factory: ctr_dnn, args: {embedding_dim: 4, hidden: [8]}}
data: {train: data/train, batch_size: 64, epochs: 2}
threads: 2
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.chdir(tmp_path)
    made = heterps_here("data", "synth", "data", "--rows", 640, "--test-rows", 64, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    (tmp_path / "job.yaml").write_text(JOB)
    return load_job("job.yaml")


def profile_of(resource: str = "cpu", *, estimated: bool = False) -> Profile:
    cost = Cost(compute_s=0.001, sync_s=0, input_s=0.002, alpha=1, beta=1, estimated=estimated)
    return Profile(model="m", batch_size=64, layers=(LayerProfile(name="one", costs={resource: cost}),))


def test_the_ratio_times_the_sum_is_the_time_of_steps_that_really_ran(job: Job) -> None:
    found = with_whole_steps(profile_of(), job, [1, 2], seconds=0.0)
    assert found.version == 2
    assert found.whole_steps is not None
    assert set(found.whole_steps) == {1, 2}
    seconds = found.whole_steps[2] * layer_seconds(found, job.cluster, 2).seconds
    assert 1e-4 < seconds < 5.0, "a small step takes milliseconds"
    assert 0 <= (found.overheads or {})[INLINE_JOB].start_s < 5.0
    assert sorted(path.name for path in Path().iterdir()) == ["data", "job.yaml"], "and leaves nothing behind"


def test_the_start_is_what_the_first_steps_take_more_than_others(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    from heterps.launch import whole_steps

    def watch_steps(_: Job, seconds: float) -> whole_steps._StepWatch:
        watch = whole_steps._StepWatch(seconds)
        monkeypatch.setattr(whole_steps.time, "perf_counter", iter(range(100)).__next__)
        for number in range(1, 100):
            try:
                watch.stepped(64, 2.5 + number, 0.5, None)  # type: ignore[arg-type]
            except whole_steps.Enough:
                break
        return watch

    monkeypatch.setattr(whole_steps, "_watch_steps", watch_steps)
    assert whole_steps.step_seconds(job, 0.0) == pytest.approx((1.0, 0.0, 2.5))


@pytest.mark.parametrize("profile", [profile_of("v100"), profile_of(estimated=True)])
def test_a_profile_without_measured_cores_stays_as_it_is(job: Job, profile: Profile) -> None:
    assert with_whole_steps(profile, job, [1, 2], seconds=0.0) is profile


def test_servers_of_others_are_left_alone(job: Job) -> None:
    served = job.model_copy(update={"servers": Servers()})
    assert with_whole_steps(profile_of(), served, [2], seconds=0.0).whole_steps is None


def test_a_signal_ends_the_steps_and_the_command(job: Job) -> None:
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        with_whole_steps(profile_of(), job, [1, 2], seconds=60.0)
    timer.join()


def test_a_profile_of_a_job_has_whole_steps_and_a_run_is_predicted_by_them(job: Job, tmp_path: Path) -> None:
    made = heterps_here("profile", "job.yaml", "--resources", "cpu", "--units", "parts", "--budget", 0.1, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    profile = load_profile("profile.json")
    assert set(profile.whole_steps or {}) == {1, 2}
    run = heterps_here("train", "job.yaml", "--profile", "profile.json", "--run", "run", "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    steady = inline_prediction(profile, job.cluster, 2)
    assert summary["predicted_throughput"] == pytest.approx(64 / (steady.seconds + steady.start_s / 20), rel=1e-3), (
        "two epochs of ten batches have the start once"
    )
    low, expected, high = (summary[f"predicted_throughput{end}"] for end in ("_low", "", "_high"))
    assert low < expected < high
    assert summary["predicted_by"] == "real steps on this machine"
    for terms, seconds in (("predicted_terms", 64 / expected), ("measured_terms", 64 / summary["samples_per_s"])):
        assert sum(summary[terms].values()) == pytest.approx(seconds, rel=0.02), terms
