"""A job that goes on by another plan, in the same process, from a checkpoint that is made for it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from elastic import CLUSTER, Script, inline_losses, make_plan, metrics, on_threads
from tiny import write_tiny

from heterps.config import load_job
from heterps.errors import StorageError
from heterps.launch import train
from heterps.planning.plan import load_plan
from heterps.training.run.commands import Replan, Scale


@pytest.fixture
def job_file(tiny_job, tmp_path):
    write_tiny(tmp_path / "train.parquet", 640)
    return tiny_job


class Replanning(Script):
    """Writes plans into the folder of the run before they are asked for."""

    def __init__(self, monkeypatch, plans, *asks, cluster=None):
        super().__init__(monkeypatch, *asks)
        self.plans, self.cluster = plans, cluster
        self.starts = []

    def started(self, samples, total, resumed):
        super().started(samples, total, resumed)
        self.starts.append(samples)
        for number, plan in enumerate(self.plans, 2):
            plan.write(f"run/plan-{number}.json")
        if self.cluster is not None:
            Path("run/cluster-2.yaml").write_text(yaml.dump(self.cluster))


def test_bsp_has_the_losses_of_one_process_over_three_plans(job_file, monkeypatch):
    plans = [make_plan([1, 2], [2], usd=0.5, throughput=9.0), make_plan([2, 1], [3])]
    asks = (Replan("plan-2.json"), 0), (Scale(0, 2), 1), (Replan("plan-3.json"), 0)
    script = Replanning(monkeypatch, plans, *((at, *ask) for at, ask in zip((160, 240, 400), asks, strict=True)))
    job = on_threads(job_file, make_plan([2], []))
    done = train(job, "run", observer=script)
    assert [told.text for told in script.told if told.is_error] == []
    assert len(script.starts) == 3
    np.testing.assert_allclose(script.losses, inline_losses(job), rtol=1e-6)
    assert (done.summary["samples"], done.summary["status"]) == (640, "completed")
    assert [stage["workers"] for stage in done.summary["stages"]] == [2, 1]
    assert load_plan("run/plan.json") == plans[-1]
    assert load_job("run/job.yaml").plan == "run/plan-3.json"
    assert script.warnings == []


def test_a_replanned_run_can_be_resumed_by_its_own_job(job_file, monkeypatch):
    plan = make_plan([1, 2], [2], usd=0.5, throughput=9.0)
    script = Replanning(monkeypatch, [plan], (160, Replan("plan-2.json"), 0))
    job = on_threads(job_file, make_plan([1], []))
    train(job, "run", observer=script)
    more = load_job("run/job.yaml")
    more = more.model_copy(update={"data": more.data.model_copy(update={"epochs": 2})})
    again = Script(monkeypatch)
    done = train(more, "run", resume=True, observer=again)
    np.testing.assert_allclose(script.losses + again.losses, inline_losses(more), rtol=1e-6)
    assert [stage["workers"] for stage in done.summary["stages"]] == [1, 2]
    assert done.summary["predicted_throughput"] == 9.0
    usd = plan.usd_per_hour(more.cluster) * done.summary["samples"] / 9.0 / 3600
    assert done.summary["predicted_usd"] == pytest.approx(usd), "of the new plan, for the samples of this job"
    assert again.warnings == []
    older = Script(monkeypatch)
    train(job, "run", resume=True, observer=older)
    assert (
        "run was replanned, to run/plan-2.json, and goes on by the plan of the job that was given" in older.warnings[0]
    )


def test_money_goes_on_from_what_was_paid_at_the_prices_before(job_file, monkeypatch):
    dearer = json.loads(json.dumps(CLUSTER))
    dearer["resources"]["cpu"]["usd_per_hour"] = 100.0
    script = Replanning(
        monkeypatch, [make_plan([1], [])], (320, Replan("plan-2.json", "cluster-2.yaml"), 0), cluster=dearer
    )
    done = train(on_threads(job_file, make_plan([1], [])), "run", observer=script)
    lines = metrics("run")
    before, first = next(pair for pair in pairwise(lines) if pair[0]["samples"] == script.starts[1])
    assert before["usd"] == pytest.approx(before["seconds"] * 2.0 / 3600, abs=2e-6)
    assert first["usd"] - before["usd"] == pytest.approx((first["seconds"] - before["seconds"]) * 200 / 3600, abs=1e-4)
    assert done.summary["measured_usd"] == pytest.approx(lines[-1]["usd"])
    assert load_job("run/job.yaml").cluster.resources["cpu"].usd_per_hour == 100.0


def test_units_cost_what_the_plan_rents_them_for_and_what_a_run_does_not_see_is_named(job_file):
    facts = json.loads(json.dumps(CLUSTER))
    facts["resources"]["cpu"] |= {"zone": "a", "startup_s": 60, "disk_usd_per_gb_hour": 0.1}
    facts["resources"]["big"] |= {"zone": "b", "spot": {"usd_per_hour": 3.0, "limit": 4}}
    facts["egress_usd_per_gb"] = 0.02
    plan = make_plan([1, 2], [2], rented={"cpu": 2, "big": 1, "big-spot": 1})
    done = train(on_threads(job_file, plan, cluster=facts), "run").summary
    assert done["measured_usd"] == pytest.approx(done["seconds"] * (2 * 1 + 10 + 3) / 3600, abs=5e-6)
    assert done["measured_usd_without"] == [
        "traffic between zones", "disks of servers", "start-up and billing steps",
    ]  # fmt: skip
    plain = train(on_threads(job_file, make_plan([1, 2], [2])), "plain").summary
    assert plain["measured_usd"] == pytest.approx(plain["seconds"] * (2 * 1 + 2 * 10) / 3600, abs=5e-6)
    assert "measured_usd_without" not in plain


BAD = {
    "no such file": (Replan("plan-9.json"), "there is no such plan"),
    "elsewhere": (Replan("../plan.json"), "files of its own run folder only"),
    "too dear": (Replan("plan-2.json"), "rents 9 units of 'cpu'"),
    "other layers": (Replan("plan-3.json"), "has 4 layers, and the model has 5"),
    "no such device": (Replan("plan-4.json", "cluster-2.yaml"), "runs on gpu, and this machine has no such device"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_plan_that_cannot_be_is_refused_and_the_job_goes_on_by_its_own(job_file, monkeypatch, name):
    asked, text = BAD[name]
    gpu = make_plan([1], [])
    gpu = gpu.model_copy(update={"stages": (gpu.stages[0].model_copy(update={"resource": "gpu"}),)})
    cluster = CLUSTER | {"resources": CLUSTER["resources"] | {"gpu": {"device": "xpu", "usd_per_hour": 1, "limit": 1}}}
    plans = [make_plan([8], []), make_plan([1], [], num_layers=4), gpu]
    script = Replanning(monkeypatch, plans, (160, asked, 0), cluster=cluster)
    done = train(on_threads(job_file, make_plan([1], [])), "run", observer=script)
    (told,) = script.told
    assert told.is_error
    assert text in told.text
    assert (len(script.starts), done.summary["status"]) == (1, "completed")


def test_a_checkpoint_that_fails_gives_the_new_plan_up_and_not_the_job(job_file, monkeypatch):
    from heterps.training.run import folder as run_folder

    saved = []

    def save(folder, snapshot, keep, spare):
        saved.append(snapshot)
        if len(saved) == 1:
            raise StorageError("the disk is full")
        return original(folder, snapshot, keep, spare)

    original = run_folder.begin_save
    monkeypatch.setattr(run_folder, "begin_save", save)
    script = Replanning(monkeypatch, [make_plan([1, 1], [2])], (160, Replan("plan-2.json"), 0))
    done = train(on_threads(job_file, make_plan([1], [])), "run", observer=script)
    assert script.warnings == ["the job goes on as it was: it could not be saved. the disk is full"]
    assert (len(script.starts), done.summary["samples"]) == (1, 640)
