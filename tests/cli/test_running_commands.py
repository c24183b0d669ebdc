"""`heterps status`, `scale` and `replan`: from another thread, by the socket, to a job that trains."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager

import pytest
from elastic import CLUSTER, DEADLINE_S, Enough, make_plan, replannable

from heterps.cli import main
from heterps.cli.status import ask_status
from heterps.config import Emulation, load_cluster, load_job
from heterps.launch import train
from heterps.planning.api import make_problem
from heterps.planning.bill import bill as bill_of
from heterps.planning.plan import load_plan
from heterps.profiling.profile import ProfiledJob, load_profile
from heterps.training.run.observer import Observer
from heterps.ui.what_if import read_basis


class Watched(Observer):
    """A job that goes on until the test has had enough."""

    def __init__(self):
        self.began, self.changes, self.is_over = threading.Event(), threading.Semaphore(0), False

    def stepped(self, samples, seconds, loss, interval):
        self.began.set()
        if self.is_over:
            raise Enough

    def changed(self, what):
        self.changes.release()


@contextmanager
def running(job, folder="run"):
    watched = Watched()

    def go():
        with pytest.raises(Enough):
            train(job, folder, observer=watched)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        assert watched.began.wait(DEADLINE_S), "the job did not begin"
        yield watched
    finally:
        watched.is_over = True
        thread.join(DEADLINE_S)
    assert not thread.is_alive()


def unpredicted(path):
    """A plan without what was predicted for the run that followed it."""
    return load_plan(path).model_copy(update={"prediction": None})


@pytest.fixture
def heterps(capsys):
    def heterps(*words):
        with pytest.raises(SystemExit) as end:
            main([*map(str, words)])
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return heterps


@pytest.fixture
def job(tiny_job):
    return replannable(tiny_job)


def test_a_job_is_watched_scaled_and_refused_by_the_commands(job, heterps):
    with running(job) as watched:
        code, out, err = heterps("status", "run", "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)["stages"][0]["workers"] == 1
        code, out, _ = heterps("scale", "run", "--stage", 1, "--count", 3)
        assert (code, out) == (
            0, "stage 1 from 1 to 3 workers: 2 start; the job goes on as it was until all of them are ready\n"
        )  # fmt: skip
        assert watched.changes.acquire(timeout=DEADLINE_S)
        code, out, _ = heterps("status", "run")
        assert code == 0
        assert "of 20,000,000 samples (0%)" in out
        assert "last change: stage 1 from 1 to 3 workers" in out
        assert [word for word in ("1 cpu", "samples/s", "compute", "wait", "queue") if word not in out] == []
        assert heterps("scale", "run", "--stage", 1, "--count", 3)[:2] == (
            0, "stage 1 has 3 workers already: nothing changes\n"
        )  # fmt: skip
        code, out, _ = heterps("scale", "run", "--stage", 1, "--count", 3, "--json")
        assert json.loads(out) == {
            "stage": 1, "count": 3, "answer": "stage 1 has 3 workers already: nothing changes"
        }  # fmt: skip
        code, out, err = heterps("scale", "run", "--stage", 1, "--count", 99)
        assert (code, out) == (2, "")
        assert "the job's cluster allows 6: scale to 5 at most" in err
        code, _, err = heterps("train", "job.yaml", "--run", "run", "--resume")
        assert code == 6
        assert "run is running already" in err
    code, _, err = heterps("status", "run")
    assert code == 6
    assert "run is not running" in err


def test_a_resource_that_became_cheap_is_taken_and_one_that_did_not_is_not(job, heterps, tmp_path):
    with running(job) as watched:
        code, out, err = heterps("replan", "run", "--price", "big=1000")
        assert (code, err) == (0, "")
        assert "The plan that runs is still the best: nothing changes." in out
        assert not (tmp_path / "run" / "plan-2.json").exists()
        code, out, _ = heterps("replan", "run", "--price", "big=2", "--json")
        told = json.loads(out)
        assert (code, told["changed"]) == (0, True)
        assert told["new"]["usd"] < told["old"]["usd"]
        assert [stage["resource"] for stage in told["new"]["stages"]] == ["big"]
        assert watched.changes.acquire(timeout=DEADLINE_S)
        assert json.loads(heterps("status", "run", "--json")[1])["stages"][0]["resource"] == "big"
        assert load_plan("run/plan-2.json") == unpredicted("run/plan.json")
        assert load_cluster("run/cluster-2.yaml").resources["big"].usd_per_hour == 2
        assert load_job("run/job.yaml").cluster.resources["big"].usd_per_hour == 2
        basis = read_basis(tmp_path / "run")
        assert (basis.fields["price.big"], basis.plan.stages[0].resource) == ("2", "big"), "what-if begins with it"
        code, out, _ = heterps("replan", "run", "--limit", "big=0")
        assert code == 0
        assert "What runs cannot stay: it has 1 units of 'big', and the limit is 0." in out
        assert watched.changes.acquire(timeout=DEADLINE_S)
        assert load_job("run/job.yaml").plan == "run/plan-3.json"
        assert unpredicted("run/plan-1.json") == make_plan([1], []), "the first is kept: it says how fast to be"


@pytest.mark.parametrize("profiled_for", [None, ProfiledJob(sync="asp")])
def test_bills_are_of_the_job_that_runs_whatever_job_was_profiled(job, heterps, profiled_for):
    """As those of `heterps plan` with a profile of that job: with all-reduce no weights go to servers."""
    profile = load_profile(job.profile)
    layers = tuple(layer.model_copy(update={"dense_bytes": 10**8, "server_s": 0.001}) for layer in profile.layers)
    profile = profile.model_copy(update={"version": 2, "layers": layers, "job": profiled_for})
    profile.write(job.profile)
    resources = {name: {**one, "port_gbps": 10.0} for name, one in CLUSTER["resources"].items()}
    plan = make_plan([2], [], sync="bsp", lanes=2)
    plan.write(job.plan)
    throughputs = {}
    for dense in ("servers", "all_reduce"):
        fields = {"cluster": {**CLUSTER, "resources": resources}, "workers": {"channel": "memory", "dense": dense}}
        changed = job.model_validate({**job.model_dump(), **fields})
        with running(changed, dense):
            told = json.loads(heterps("replan", dense, "--price", "big=1000", "--json")[1])
        throughputs[dense] = (told["by_profile"] or told)["old"]["throughput"]
        of_job = profile.model_copy(update={"job": ProfiledJob.of(changed)})
        problem = make_problem(of_job, changed.cluster, 1.0, told["samples"], sync="bsp")
        assert throughputs[dense] == pytest.approx(bill_of(problem, plan.stages, 1).throughput)
    assert throughputs["all_reduce"] > 1.01 * throughputs["servers"]


def test_a_job_is_not_replanned_onto_devices_that_are_not_here(job, heterps):
    resources = {**CLUSTER["resources"], "big": {"device": "cuda:7", "usd_per_hour": 0.001, "limit": 4}}
    elsewhere = job.model_validate({**job.model_dump(), "cluster": {**CLUSTER, "resources": resources}})
    with running(elsewhere) as watched:
        told = json.loads(heterps("replan", "run", "--limit", "cpu=40", "--json")[1])
        wanted = 4 * told["measured_throughput"]
        code, out, err = heterps("replan", "run", "--limit", "cpu=40", "--throughput", wanted)
        assert (code, err) == (0, "")
        assert "cpu×" in out, out
        assert "Both bills rest on what is measured. By the profile alone: what runs 320 samples/s for" in out
        assert "Not planned with, because this machine has no such device: big." in out
        assert watched.changes.acquire(timeout=DEADLINE_S)
        code, out, err = heterps("replan", "run", "--limit", "cpu=2", "--throughput", 1e6)
        assert (code, out) == (3, "")
        assert "Not planned with, because this machine has no such device: big." in err
    emulated = elsewhere.model_copy(update={"emulation": Emulation()})
    with running(emulated, "emulated"):
        assert json.loads(heterps("replan", "emulated", "--json")[1])["left_out"] == []


def test_a_plan_of_ones_own_is_taken_as_it_is(job, heterps):
    make_plan([1, 2], [2]).write("mine.json")
    with running(job.model_copy(update={"profile": None})) as watched:
        code, _, err = heterps("replan", "run", "--price", "big=1")
        assert code == 2
        assert "its job names no profile" in err
        assert "--profile" in err
        code, out, err = heterps("replan", "run", "--plan", "mine.json")
        assert (code, err) == (0, "")
        assert "cpu×1 [0..1] → big×2 [2..4]" in out
        assert watched.changes.acquire(timeout=DEADLINE_S)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--throughput", 1e9], 3, "1,000,000,000"),
        (["--price", "tpu=1"], 2, "the cluster has no resource 'tpu': it has cpu, big"),
        (["--price", "cpu"], 2, "--price cpu: write NAME=NUMBER"),
        (["--limit", "cpu=-1"], 2, "limit"),
        (["--cluster", "none.yaml"], 2, "none.yaml: there is no such cluster file"),
        (["--method", "magic"], 2, "magic"),
    ],
)
def test_what_cannot_be_planned_changes_nothing(job, heterps, tmp_path, words, code, text):
    with running(job):
        found, out, err = heterps("replan", "run", *words)
        assert (found, out) == (code, "")
        assert text in err
        assert not list((tmp_path / "run").glob("plan-*"))


def test_an_inline_run_tells_its_status_and_has_nothing_to_change(job, heterps):
    inline = job.model_copy(update={"launcher": "inline", "plan": None})
    with running(inline):
        code, out, _ = heterps("status", "run")
        assert code == 0
        assert "of 20,000,000 samples" in out
        code, _, err = heterps("scale", "run", "--stage", 1, "--count", 2)
        assert code == 2
        assert "an inline run has no workers to change" in err


def test_watching_ends_with_the_job(job, heterps, monkeypatch):
    with running(job) as watched:
        monkeypatch.setattr("heterps.cli.status.WATCH_S", 0.01)
        told = []

        def ask_and_end(found):
            told.append(ask_status(found))
            watched.is_over = len(told) >= 3
            return told[-1]

        monkeypatch.setattr("heterps.cli.status.ask_status", ask_and_end)
        code, out, err = heterps("status", "run", "--watch", "--json")
    assert code == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[-1]["samples"] >= lines[0]["samples"]
