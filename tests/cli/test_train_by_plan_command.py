"""`heterps train` on workers, which are threads here: options, what is shown, what is written, and its report."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import yaml
from tiny import write_tiny

from heterps.cli import main
from heterps.config import load_job
from heterps.model import build_model
from heterps.model.trace import trace
from heterps.planning.plan import load_plan
from heterps.profiling.profile import Cost, LayerProfile, Profile
from heterps.report.terminal.training_progress import TrainingProgress

CLUSTER = """
cluster:
  resources:
    cpu: {device: cpu, usd_per_hour: 0.04, limit: 8}
    v100: {device: "cuda:7", usd_per_hour: 2.42, limit: 2}
  server_resource: cpu
"""
THREADS = "workers: {channel: memory}\n"


@pytest.fixture
def job(tiny_job, monkeypatch):
    """On threads; and a profile for it, by which 16 samples take 4 ms, 2 on each of two layers."""
    monkeypatch.setattr("heterps.training.coordinator.accounting.VIEW_S", 0.0)
    tiny_job.write_text(tiny_job.read_text() + THREADS + CLUSTER)
    loaded = load_job(tiny_job)
    names = [layer.name for layer in trace(build_model(loaded.model, loaded.data.columns, 0)).layers]
    takes = {names[0]: 0.002, names[-1]: 0.002}
    layers = [
        LayerProfile(
            name=name,
            server_s=0.0,
            costs={
                resource: Cost(compute_s=takes.get(name, 0.0), sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0)
                for resource in ("cpu", "v100")
            },
        )
        for name in names
    ]
    Profile(model="ctr_dnn", batch_size=16, layers=tuple(layers)).write("profile.json")
    stages = [
        {"first": 0, "last": 1, "resource": "cpu", "count": 2},
        {"first": 2, "last": len(names) - 1, "resource": "v100", "count": 1},
    ]
    plan = {"method": "exact", "stages": stages, "servers": {"resource": "cpu", "count": 1}, "bottleneck": "v100"}
    Path("plan.json").write_text(json.dumps(plan | {"throughput": 8000.0, "hours": 1.0, "usd": 3.0}))
    return tiny_job


@pytest.fixture
def heterps(job, capsys):
    def heterps(*words):
        with pytest.raises(SystemExit) as end:
            main([*map(str, words)])
        out, err = capsys.readouterr()
        return end.value.code, " ".join(out.split()), err.replace("\n", " ")

    return heterps


def summary_of(run):
    return json.loads(Path(run, "summary.json").read_text())


def lines_of(run):
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def test_an_emulated_run_by_a_plan_is_marked_wherever_its_figures_are(heterps, job, monkeypatch):
    views = []
    monkeypatch.setattr(TrainingProgress, "staged", lambda _, view: views.append(view))
    options = ("--launcher", "local", "--profile", "profile.json", "--plan", "plan.json", "--emulate", "--run", "mine")
    code, out, err = heterps("train", "job.yaml", *options)
    assert (code, err) == (0, "")
    assert load_job("mine/job.yaml").profile == "profile.json", "a resumed run goes by it too"
    lines, summary = lines_of("mine"), summary_of("mine")
    scale = summary["emulated"]["scale"]
    assert all(line["emulated"] == {"scale": scale} for line in [*lines, *views])
    assert out.count(f"EMULATED (scale {scale:g})") == len(lines)
    assert f"takes {scale:g} real ones" in out
    assert "Predicted and measured, of the emulated units" in out
    assert "EMULATED" in Path("mine", "report.html").read_text()
    assert "emulation:\n  scale: null" in Path("mine", "job.yaml").read_text()


def test_a_plan_for_the_policy_of_the_job_brings_its_interval_to_the_summary(heterps, job):
    Path("cluster.yaml").write_text(yaml.safe_dump(yaml.safe_load(CLUSTER)["cluster"]))
    asked = ("plan", "profile.json", "cluster.yaml", "--throughput", "2000", "--samples", "320", "--out", "plan.json")
    code, out, _ = heterps(*asked, "--sync", "bsp")
    assert (code, "samples/s in 9 of 10 runs." in out, "which no run has tested" in out) == (0, True, True)
    planned = load_plan("plan.json")
    options = ("--launcher", "local", "--profile", "profile.json", "--plan", "plan.json", "--emulate")
    assert heterps("train", "job.yaml", *options, "--sync", "bsp", "--run", "same")[0] == 0
    summary = summary_of("same")
    assert summary["predicted_throughput"] == pytest.approx(planned.throughput, abs=0.1)
    assert summary["predicted_throughput_low"] < planned.throughput < summary["predicted_throughput_high"]
    assert summary["predicted_by"] == planned.prediction.basis
    assert heterps("train", "job.yaml", *options, "--sync", "asp", "--run", "other")[0] == 0
    assert "predicted_throughput_low" not in summary_of("other"), "the plan is for another policy"


EMULATED = ("--launcher", "local", "--profile", "profile.json", "--plan", "plan.json", "--emulate", "--run", "mine")


@pytest.mark.parametrize("channel", ["memory", "ipc"])
def test_an_emulated_run_is_as_slow_as_the_port_of_its_server(heterps, job, channel):
    """Three workers pull and push their dense weights through it, 13 batches long, whatever the plan predicts."""
    limited = job.read_text().replace(
        "usd_per_hour: 0.04, limit: 8", "usd_per_hour: 0.04, limit: 8, port_gbps: 0.00004"
    )
    job.write_text(limited.replace("channel: memory", f"channel: {channel}") + "emulation: {scale: 0.2}\n")
    code, _, err = heterps("train", "job.yaml", *EMULATED)
    assert (code, err) == (0, "")
    summary = summary_of("mine")
    weights = 10 * 8 + 8 + 8 + 1  # of the layers of ctr_dnn on 2 dense values and 2 slots of 4
    assert summary["seconds"] > 13 * 2 * 4 * weights / 5_000
    assert summary["samples"] == 200
    assert summary["samples_per_s"] < 8000.0


@pytest.mark.parametrize(
    ("resource", "named"),
    [("usd_per_hour: 2.42, limit: 2", "worker-2.0 is out of memory: parameters with their gradients take "),
     ("usd_per_hour: 0.04, limit: 8", " is out of memory: ")],
)  # fmt: skip
def test_an_emulated_unit_that_needs_more_memory_than_it_has_fails_in_bytes(heterps, job, resource, named):
    job.write_text(job.read_text().replace(resource, f"{resource}, memory_gb: 0.0000002") + "emulation: {scale: 0.2}\n")
    code, _, err = heterps("train", "job.yaml", *EMULATED)
    assert code == 2
    assert named in err
    assert "memory_gb of the cluster gives a unit 200." in err


def test_a_run_by_a_plan_shows_its_stages_while_it_runs_and_at_its_end(heterps, job, monkeypatch):
    views = []
    monkeypatch.setattr(TrainingProgress, "staged", lambda _, view: views.append(view))
    Path("plan.json").write_text(Path("plan.json").read_text().replace("v100", "cpu"))
    code, out, err = heterps("train", "job.yaml", "--launcher", "local", "--plan", "plan.json", "--run", "mine")
    assert (code, err) == (0, "")
    assert "warning" not in out, "it follows the plan"
    *_, line = lines_of("mine")
    summary = summary_of("mine")
    for figures in (views[-1], line, summary):
        assert [(s["resource"], s["workers"]) for s in figures["stages"]] == [("cpu", 2), ("cpu", 1)]
        assert "emulated" not in figures
        for stage in figures["stages"]:
            assert stage["compute"] + stage["communicate"] + stage["wait"] == pytest.approx(1.0, abs=1e-3)
    assert line["usd"] == pytest.approx(line["seconds"] * 4 * 0.04 / 3600, rel=0.01)
    assert summary["predicted_usd"] == pytest.approx(200 / 8000 * 4 * 0.04 / 3600), "for 200 samples, not an hour"
    assert "bottleneck stage" in out
    assert "Kept in step by bsp" in out
    assert "Samples/s 8,000" in out
    page = Path("mine", "report.html").read_text()
    assert "Kept in step by bsp" in page
    assert "EMULATED" not in page + out


def test_the_policy_can_be_given_by_option(heterps):
    code, out, _ = heterps(
        "train", "job.yaml", "--launcher", "local", "--workers", 2, "--sync", "ssp:1", "--run", "mine"
    )
    assert code == 0
    assert "Kept in step by ssp:1; mean staleness" in out
    summary = summary_of("mine")
    assert summary["sync"] == "ssp:1"
    assert summary["stages"][0]["workers"] == 2
    assert set(summary["max_lead"].values()) <= {0, 1}


def test_a_job_without_a_plan_is_predicted_by_its_profile(heterps, job):
    job.write_text(job.read_text() + "profile: profile.json\n")
    assert heterps("train", "job.yaml", "--launcher", "local", "--run", "mine")[0] == 0
    plan, summary = load_plan("mine/plan.json"), summary_of("mine")
    assert plan.throughput == pytest.approx(16 / 0.004)
    assert (plan.method, plan.bottleneck) == ("local", "this machine")
    assert summary["predicted_throughput"] == pytest.approx(plan.throughput, abs=0.1)
    assert summary["predicted_usd"] == pytest.approx(plan.usd)


def test_without_a_profile_nothing_is_predicted_and_that_is_said(heterps):
    code, out, _ = heterps("train", "job.yaml", "--launcher", "local", "--run", "mine")
    assert code == 0
    assert "note: Nothing was predicted for this run" in out
    assert summary_of("mine")["predicted_usd"] is None
    assert "nothing is predicted" in Path("mine", "report.html").read_text()


def test_an_unfinished_run_on_workers_can_be_looked_at(heterps, job):
    job.write_text(job.read_text() + "profile: profile.json\n")
    options = ("--launcher", "local", "--plan", "plan.json", "--emulate", "--run", "mine")
    assert heterps("train", "job.yaml", *options)[0] == 0
    Path("mine", "summary.json").unlink()
    code, out, _ = heterps("report", "mine")
    assert code == 0
    assert "tiny unfinished" in out
    assert "EMULATED" in out
    assert "Stages in the last interval" in out
    assert "Samples/s 8,000" in out
    page = Path("mine", "report.html").read_text()
    assert "EMULATED" in page
    assert "still running, or was killed" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sync fast", "--sync: there is no policy 'fast' among bsp"),
        ("--emulate", "emulation is of the units of a plan, which the inline launcher has not: use --launcher local"),
        ("--launcher local --emulate", "emulation goes by the times of a profile"),
        ("--launcher local --plan plan.json", "the plan runs on v100, and this machine has no such device"),
        ("--launcher local --plan plan.json --workers 2", "--workers: the plan plan.json says how many workers"),
        ("--workers 2", "--workers: the inline launcher has no workers. Add --launcher local"),
        ("--launcher local --workers 0", "--workers"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_what_to_do(heterps, words, message):
    code, _, err = heterps("train", "job.yaml", "--run", "mine", *words.split())
    assert code == 2
    assert message in err
    assert not Path("mine").exists()


def test_an_emulation_that_the_job_has_is_kept(heterps, job):
    job.write_text(job.read_text() + "profile: profile.json\nlauncher: local\nemulation: {scale: 0.5}\n")
    assert heterps("train", "job.yaml", "--emulate", "--run", "mine")[0] == 0
    assert summary_of("mine")["emulated"] == {"scale": 0.5}


def test_an_inline_run_says_how_to_follow_the_plan(heterps):
    code, out, _ = heterps("train", "job.yaml", "--plan", "plan.json")
    assert code == 0
    assert "Follow the plan with --launcher local, and --emulate where it has units that are not here" in out


def test_restarts_override_the_job_and_need_workers(heterps, job):
    options = ("--launcher", "local", "--restarts", "3", "--run", "mine")
    code, _, err = heterps("train", "job.yaml", *options)
    assert (code, err) == (0, "")
    workers = load_job("mine/job.yaml").workers
    assert (workers.restarts, workers.channel) == (3, "memory")
    code, _, err = heterps("train", "job.yaml", "--restarts", "3", "--run", "other")
    assert code == 2
    assert "the inline launcher has no workers to lose" in err
    assert not Path("other").exists()


@pytest.mark.parametrize(("launcher", "sync"), [("inline", "bsp"), ("local", "bsp"), ("local", "asp")])
@pytest.mark.parametrize("change", ["grown", "written anew with as many rows"])
def test_a_run_does_not_go_on_with_other_data(job, heterps, launcher, sync, change):
    trained = ("train", job, "--run", "run", "--launcher", launcher, "--sync", sync)
    assert heterps(*trained)[0] == 0
    if change == "grown":
        write_tiny(Path("train.parquet"), 240)
    else:
        write_tiny(Path("train.parquet"), 200, a=list(np.random.default_rng(7).normal(size=200).round(3)))
    job.write_text(job.read_text().replace("batch_size: 16", "batch_size: 16\n  epochs: 2"))
    code, _, err = heterps(*trained, "--resume")
    assert code == 4
    assert "train.parquet: the position to go on from belongs to other data" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is there on Linux only")
@pytest.mark.parametrize("is_full_at_once", [True, False])
def test_a_full_disk_ends_traces_and_not_the_run(job, heterps, monkeypatch, is_full_at_once):
    opened = Path.open

    def open_trace(path, *words, **options):
        if "traces" not in path.parts:
            return opened(path, *words, **options)
        if is_full_at_once:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(Path("/dev/full"), *words, **options)

    monkeypatch.setattr(Path, "open", open_trace)
    code, out, err = heterps("train", job, "--run", "run", "--launcher", "local", "--sync", "asp")
    assert (code, err) == (0, "")
    told = "".join(out.split("\n"))
    for name in ("stage-1.jsonl", "workers.jsonl"):
        assert told.count(f"{name}: this trace ends before the run: No space left on device. Training goes on.") == 1
    assert summary_of("run")["status"] == "completed"


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_a_full_disk_under_the_metrics_is_an_error_that_says_how_to_go_on(job, heterps, monkeypatch, launcher):
    opened = Path.open

    def open_metrics(path, *words, **options):
        return opened(Path("/dev/full") if path.name == "metrics.jsonl" else path, *words, **options)

    monkeypatch.setattr(Path, "open", open_metrics)
    code, _, err = heterps("train", job, "--run", "run", "--launcher", launcher)
    assert code == 7
    assert "metrics.jsonl: the disk is full. Free some room, then go on with --resume." in err


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_a_run_goes_on_although_a_line_of_its_metrics_is_damaged(job, heterps, launcher):
    trained = ("train", job, "--run", "run", "--launcher", launcher)
    assert heterps(*trained)[0] == 0
    metrics = Path("run/metrics.jsonl")
    damaged = "".join(line[: 9 if i == 1 else None] + "\n" for i, line in enumerate(metrics.read_text().splitlines()))
    metrics.write_text(damaged)
    job.write_text(job.read_text().replace("batch_size: 16", "batch_size: 16\n  epochs: 2"))
    code, out, err = heterps(*trained, "--resume")
    assert (code, err) == (0, "")
    assert "warning: run/metrics.jsonl: line 2 is damaged and left out of the report" in out
    assert Path("run/metrics.damaged.jsonl").read_text() == damaged
    samples = [line["samples"] for line in lines_of("run")]
    assert samples[0] == 64
    assert samples[-1] == 400
    assert 128 not in samples, "the damaged line"
    assert summary_of("run")["samples"] == 400
