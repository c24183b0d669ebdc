"""Workers that join and leave while a job trains: nothing of it shows in what is learned."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from elastic import CLUSTER, DEADLINE_S, Enough, OneAfterTheOther, Script, inline_losses, make_plan, metrics, on_threads
from tiny import write_tiny

from heterps.config import Job
from heterps.errors import ModelError
from heterps.launch import train
from heterps.sync import replay
from heterps.training.coordinator.reconfiguration import GIVEN_UP_S, Reconfiguration, StartWorkers, StopWorker
from heterps.training.protocol.layout import make_layout
from heterps.training.protocol.messages import Send, Stop
from heterps.training.run.commands import AskStatus, Scale
from heterps.training.worker.worker import Worker, WorkerStart


@pytest.fixture
def job_file(tiny_job, tmp_path):
    write_tiny(tmp_path / "train.parquet", 640)
    return tiny_job


CHANGES = {
    "one stage": ([1], [], [(96, Scale(0, 3), 2), (320, Scale(0, 2), 0)]),
    "first of two": ([1, 2], [2], [(96, Scale(0, 3), 2), (320, Scale(0, 2), 0)]),
    "second of two": ([2, 1], [2], [(96, Scale(1, 3), 2), (320, Scale(1, 2), 0)]),
    "both, and up again": (
        [1, 1],
        [2],
        [(64, Scale(0, 3), 2), (192, Scale(1, 2), 1), (288, Scale(0, 1), 0), (384, Scale(0, 3), 2)],
    ),
}


@pytest.mark.parametrize(
    ("name", "dense"), [*((name, "servers") for name in CHANGES), ("both, and up again", "all_reduce")]
)
def test_bsp_has_the_losses_of_one_process_whatever_is_scaled(job_file, monkeypatch, name, dense):
    counts, cuts, asks = CHANGES[name]
    job = on_threads(job_file, make_plan(counts, cuts), workers={"channel": "memory", "dense": dense})
    script = Script(monkeypatch, *asks)
    done = train(job, "scaled", observer=script)
    assert [told.text for told in script.told if told.is_error] == []
    assert len(script.changes) == len(asks), script.changes
    np.testing.assert_allclose(script.losses, inline_losses(job), rtol=1e-6)
    assert done.summary["samples"] == 640
    assert script.warnings == []


def test_clipping_goes_on_where_one_worker_becomes_several_and_one_again(job_file, monkeypatch):
    """One worker clips its own gradients, several let the coordinator clip their sum on the servers."""
    optimizers = {"clip": {"norm": 0.1}, "dense": {"kind": "sgd", "lr": 0.5}, "sparse": {"kind": "sgd", "lr": 0.5}}
    job = on_threads(job_file, make_plan([1], []), workers={"channel": "memory"}, optimizers=optimizers)
    script = Script(monkeypatch, (96, Scale(0, 3), 2), (320, Scale(0, 1), 0), (480, Scale(0, 2), 1))
    train(job, "scaled", observer=script)
    assert len(script.changes) == 3, script.changes
    np.testing.assert_allclose(script.losses, inline_losses(job), rtol=1e-6)


@pytest.mark.slow
def test_processes_join_and_leave_as_threads_do(job_file, monkeypatch):
    job = on_threads(job_file, make_plan([1, 1], [2]), workers={"channel": "ipc"}, data={"epochs": 10_000})
    script = OneAfterTheOther(monkeypatch, Scale(0, 2), Scale(0, 1))
    with pytest.raises(Enough):
        train(job, "scaled", observer=script)
    assert [told.text for told in script.told if told.is_error] == []
    assert len(script.changes) == 2
    np.testing.assert_allclose(script.losses, inline_losses(job, script.end), rtol=1e-6)


def test_counts_and_prices_follow_in_the_metrics(job_file, monkeypatch):
    job = on_threads(job_file, make_plan([1, 1], [2]))
    done = train(job, "scaled", observer=Script(monkeypatch, (96, Scale(1, 3), 2), (320, Scale(1, 2), 0)))
    lines = metrics("scaled")
    counts = [line["stages"][1]["workers"] for line in lines]
    assert set(counts) == {1, 2, 3}
    assert (counts[0], counts[-1]) == (1, 2)
    usd = 0.0
    for before, line in zip([{"seconds": 0, "usd": 0.0}, *lines], lines, strict=False):
        cpu_and_server, big = 2.0, 10.0 * line["stages"][1]["workers"]
        if before.get("stages") in (None, line["stages"]) or before["stages"][1]["workers"] == big / 10:
            usd = (line["seconds"] - before["seconds"]) * (cpu_and_server + big) / 3600
            assert line["usd"] - before["usd"] == pytest.approx(usd, abs=2e-3 * (cpu_and_server + big) / 3600)
    assert done.summary["measured_usd"] == pytest.approx(lines[-1]["usd"])


@pytest.mark.parametrize(("sync", "bound"), [("ssp:1", 1), ("dssp:1:3", 4), ("asp", None)])
def test_every_batch_is_trained_once_and_the_bounds_hold(job_file, monkeypatch, sync, bound):
    job = on_threads(job_file, make_plan([1, 1], [2]), sync=sync, data={"epochs": 2})
    asks = [(96, Scale(0, 3), 2), (320, Scale(1, 2), 1), (640, Scale(0, 1), 0), (800, Scale(0, 2), 1)]
    script = Script(monkeypatch, *asks)
    done = train(job, "scaled", observer=script)
    assert [told.text for told in script.told if told.is_error] == []
    assert len(script.changes) == len(asks)
    assert done.summary["samples"] == 2 * 640
    assert [line["samples"] for line in metrics("scaled")] == list(range(16, 1296, 16))
    for stage in ("stage-1", "stage-2"):
        policy = replay(f"scaled/traces/{stage}.jsonl")
        assert bound is None or policy.max_lead <= bound
        text = (job_file.parent / "scaled" / "traces" / f"{stage}.jsonl").read_text()
        assert '"event": "joined"' in text
        assert '"event": "left"' in text


REFUSED = [
    (Scale(0, 2), False, "stage 1 has 2 workers already: nothing changes"),
    (Scale(2, 2), True, "there is no stage 3: the plan has 2, counted from 1"),
    (Scale(0, 6), True, "7 units of 'cpu', servers included, and the job's cluster allows 6: scale to 5 at most"),
    (Scale(1, 5), True, "5 units of 'big' and the job's cluster allows 4: scale to 4 at most"),
]


@pytest.mark.parametrize(("asked", "is_error", "text"), REFUSED)
def test_what_cannot_be_is_refused_and_the_job_goes_on(job_file, monkeypatch, asked, is_error, text):
    script = Script(monkeypatch, (96, asked, 0))
    train(on_threads(job_file, make_plan([2, 1], [2])), "run", observer=script)
    (told,) = script.told
    assert (told.is_error, script.changes) == (is_error, [])
    assert text in told.text


def test_a_batch_must_have_a_sample_for_every_lane(job_file, monkeypatch):
    script = Script(monkeypatch, (96, Scale(0, 3), 0))
    cluster = {"resources": {"cpu": {"device": "cpu", "usd_per_hour": 1.0, "limit": 9}}, "server_resource": "cpu"}
    train(on_threads(job_file, make_plan([1], []), data={"batch_size": 2}, cluster=cluster), "run", observer=script)
    assert script.told[0].is_error
    assert "2 samples cannot be divided among 3 lanes" in script.told[0].text


def test_a_second_change_waits_for_the_first(job_file, monkeypatch):
    script = Script(monkeypatch, (96, Scale(0, 2), 0), (96, Scale(0, 3), 1))
    train(on_threads(job_file, make_plan([1], [])), "run", observer=script)
    first, second = script.told
    assert not first.is_error
    assert second.is_error
    assert "another change is under way (stage 1 from 1 to 2 workers, waits for worker-1.1)" in second.text
    assert len(script.changes) == 1
    assert script.changes[0].startswith("2 cpu from ")


def test_status_tells_of_stages_money_and_what_is_under_way(job_file, monkeypatch):
    script = Script(
        monkeypatch, (96, AskStatus(), 0), (96, Scale(0, 2), 0), (96, AskStatus(), 1), (480, AskStatus(), 0)
    )
    train(on_threads(job_file, make_plan([1, 1], [2])), "run", observer=script)
    first, _, second, third = [told.text for told in script.told]
    status = json.loads(first)
    assert (status["samples"], status["total"], status["change"], status["last_change"]) == (96, 640, "", "")
    assert status["usd"] > 0
    assert status["usd_per_hour"] == 12.0
    assert [(stage["resource"], stage["workers"]) for stage in status["stages"]] == [("cpu", 1), ("big", 1)]
    assert json.loads(second)["change"] == "stage 1 from 1 to 2 workers, waits for worker-1.1"
    assert json.loads(third)["last_change"] == "stage 1 from 1 to 2 workers"


class Breaking:
    """What happens to a worker of this name when it starts."""

    def __init__(self, monkeypatch, name, do):
        make = Worker.__init__

        def made(worker, job, start, mailbox, connect):
            if start.name == name:
                do(mailbox)
            make(worker, job, start, mailbox, connect)

        monkeypatch.setattr(Worker, "__init__", made)


def test_a_worker_that_fails_to_start_is_given_up_and_the_job_goes_on(job_file, monkeypatch):
    def fail(mailbox):
        raise ModelError("no room on this unit")

    Breaking(monkeypatch, "worker-1.2", fail)
    script = Script(monkeypatch, (96, Scale(0, 3), 1), (320, Scale(0, 2), 1))
    job = on_threads(job_file, make_plan([1, 1], [2]), data={"epochs": 3})
    done = train(job, "run", observer=script)
    (warning,) = script.warnings
    assert warning.startswith(
        "stage 1 from 1 to 3 workers: given up, worker-1.2: no room on this unit. The job goes on"
    )
    assert len(script.changes) == 1, "the second change, after the first was given up"
    assert done.summary["stages"][0]["workers"] == 2
    np.testing.assert_allclose(script.losses, inline_losses(job), rtol=1e-6)


class UntilWarned(Script):
    """Goes on until the job warns, then ends it soon."""

    def warned(self, message):
        super().warned(message)
        self.end = 0


def test_a_worker_that_never_comes_is_given_up_after_a_deadline(job_file, monkeypatch):
    monkeypatch.setattr("heterps.training.coordinator.reconfiguration.START_S", 0.0)
    released = threading.Event()
    Breaking(monkeypatch, "worker-1.1", lambda mailbox: released.wait(DEADLINE_S))
    monkeypatch.setattr("heterps.training.coordinator.reconfiguration.GIVEN_UP_S", 0.0)
    script = UntilWarned(monkeypatch, (96, Scale(0, 2), 0))
    with pytest.raises(Enough):
        train(on_threads(job_file, make_plan([1], []), data={"epochs": 10_000}), "run", observer=script)
    released.set()
    (warning,) = script.warnings
    assert "stage 1 from 1 to 2 workers: given up, worker-1.1 did not start within" in warning
    assert script.changes == []


def test_a_process_that_dies_before_it_is_ready_is_no_loss_of_the_job():
    warnings: list[str] = []
    job = Job(data={"train": "unread"}, cluster=CLUSTER, launcher="local")
    start_of = lambda worker, layout: WorkerStart(worker, 0, (0,))  # noqa: E731
    changes = Reconfiguration(job, make_plan([1], []), start_of, lambda _: None, warnings.append)
    layout = make_layout(make_plan([1], []), in_rounds=True, batch_size=16)
    effects, reply = changes.scale(layout, Scale(0, 2), 0.0)
    assert "1 start" in reply.text
    assert effects == [StartWorkers((WorkerStart("worker-1.1", 0, (0,)),))]
    assert changes.lost("worker-1.0", "it died") is None, "a worker of the layout is one"
    given_up = changes.lost("worker-1.1", "worker-1.1 (process 7) ended with exit code 9")
    assert given_up == [Send("worker-1.1", Stop()), StopWorker("worker-1.1", GIVEN_UP_S)]
    assert "given up, worker-1.1 (process 7) ended with exit code 9" in warnings[0]
    assert not changes.is_ready
    (start,), _ = changes.scale(layout, Scale(0, 2), 1.0)
    assert [worker.name for worker in start.workers] == ["worker-1.2"], "a name is given once"
    changes.ready("worker-1.2")
    assert changes.is_ready
    wanted = changes.take_layout()
    assert wanted is not None
    assert wanted.workers == ("worker-1.0", "worker-1.2")
    assert not changes.is_ready
