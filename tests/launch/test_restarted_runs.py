"""Runs that lose a worker or a server and go on by themselves: they end as if nothing had happened, or say why not."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from command import processes_of, started
from ends import NUM_ROWS, assert_same_tables, read_job, wait_until, write_job

import heterps.launch.by_plan as by_plan
from heterps.checkpoint import load_latest
from heterps.config import Job, load_job
from heterps.errors import ConfigError, DataError, HeterpsError, ModelError, PeerLost, StaleIncarnation, StorageError
from heterps.launch import train
from heterps.launch.ray.cluster import NoRay
from heterps.launch.ray.reservations import NoPlace
from heterps.launch.restarts import Restarts
from heterps.launch.trials import trial_job
from heterps.planning.plan import load_plan
from heterps.processes import Child
from heterps.training.coordinator.failures import PeerDied
from heterps.training.coordinator.fleet import WorkerLost
from heterps.training.coordinator.reconfiguration import Replanned
from heterps.training.run.observer import Observer

pytestmark = pytest.mark.usefixtures("no_leaks", "in_its_folder")
EVERY = 96
"""Samples between checkpoints: six batches."""
LONG = 15
"""Epochs of a job that is still there when a test has found its processes."""


class Killer(Observer):
    """Calls `kill` at each of these numbers of samples, and remembers what it is told."""

    def __init__(self, kill: Callable[[], object], *at: int) -> None:
        self.kill, self.at = kill, list(at)
        self.warnings: list[str] = []
        self.starts: list[int] = []

    def started(self, samples: int, total: int, resumed: bool) -> None:
        self.starts.append(samples)

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        if self.at and samples == self.at[0]:
            self.at.pop(0)
            self.kill()

    def warned(self, message: str) -> None:
        self.warnings.append(message)


def restarting(folder: Path, restarts: int, how: str = "nothing", **options: Any) -> Job:
    workers = {"restarts": restarts, **options.pop("workers", {})}
    return read_job(folder, how, checkpoint={"every_samples": EVERY}, workers=workers, **options)


# --- processes that are killed ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["worker-1.0", "server-0"])
def test_a_run_whose_process_is_killed_ends_as_one_that_was_never_disturbed(
    tmp_path: Path, children: dict[str, list[Child]], name: str
) -> None:
    whole = train(restarting(tmp_path, 0), "whole").summary
    killer = Killer(lambda: os.kill(children[name][-1].pid, signal.SIGKILL), 160)
    done = train(restarting(tmp_path, 3, channel="ipc"), "run", observer=killer).summary
    (warning,) = killer.warnings
    assert warning.startswith(f"{name} (")
    assert "ended with exit code -9 (SIGKILL)" in warning
    assert warning.endswith("The job goes on from its last checkpoint, at 96 samples: restart 1 of 3")
    assert killer.starts == [0, 96]
    assert len(children[name]) == 2
    assert_same_tables(load_latest("run/checkpoints"), load_latest("whole/checkpoints"))
    assert (done["status"], done["samples"], done["restarts"]) == ("completed", NUM_ROWS, 1)
    assert (done["log_loss"], done["auc"]) == (whole["log_loss"], whole["auc"])


@pytest.mark.slow
def test_a_worker_that_is_silent_is_replaced(tmp_path: Path, children: dict[str, list[Child]]) -> None:
    killer = Killer(lambda: os.kill(children["worker-2.0"][-1].pid, signal.SIGSTOP), 160)
    job = restarting(tmp_path, 1, channel="ipc", workers={"deadline_s": 3.0})
    done = train(job, "run", observer=killer).summary
    assert "worker-2.0" in killer.warnings[0]
    assert killer.starts == [0, 96]
    assert (done["status"], done["restarts"]) == ("completed", 1)


@pytest.mark.slow
def test_a_process_that_dies_whenever_it_comes_there_uses_up_the_restarts(tmp_path: Path) -> None:
    killer = Killer(lambda: None)
    with pytest.raises(PeerLost, match=r"SIGKILL.*The job was restarted 2 of 2 times \(workers.restarts\); .*--resume"):
        train(restarting(tmp_path, 2, how="dies", channel="ipc"), "run", observer=killer)
    restarts = [warning for warning in killer.warnings if "restart" in warning]
    assert [warning.rpartition(": ")[2] for warning in restarts] == ["restart 1 of 2", "restart 2 of 2"]
    assert "The job goes on from its beginning" in restarts[0]


@pytest.mark.slow
def test_a_server_that_cannot_be_made_is_no_loss(tmp_path: Path) -> None:
    class Remove(Killer):
        def waiting(self, what: str) -> None:
            if "server" in what:
                Path("run/job.yaml").unlink()

    killer = Remove(lambda: None)
    with pytest.raises(ConfigError, match=r"server-0 .*failed with ConfigError: .*job\.yaml"):
        train(restarting(tmp_path, 3, channel="ipc"), "run", observer=killer)
    assert killer.warnings == []


@pytest.mark.parametrize("launcher", [pytest.param("inline", marks=pytest.mark.slow), "local"])
def test_the_command_goes_on_from_the_last_checkpoint_by_default_when_its_server_dies(
    tmp_path: Path, launcher: str
) -> None:
    fields = {"checkpoint": {"every_samples": EVERY}, "servers": {"count": 1}}
    write_job(tmp_path, channel="ipc", epochs=LONG, **fields)
    with started("train", "job.yaml", "--run", "run", "--launcher", launcher, cwd=tmp_path) as process:
        wait_until(lambda: any(tmp_path.glob("run/checkpoints/[0-9]*")), "the run has a checkpoint")
        os.kill(processes_of(process.pid, "server_process")[0], signal.SIGKILL)
        out, _ = process.communicate(timeout=100)
    assert process.returncode == 0, out
    words = " ".join(out.split())
    assert "server-0 (" in words
    assert "The job goes on from its last checkpoint, at" in words
    assert "restart 1 of 3" in words
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["samples"], summary["restarts"]) == (LONG * NUM_ROWS, 1)


# --- on threads: losses that are made up -----------------------------------------------------------------------------


class Enough(Exception):
    """The test has seen what it wanted."""


def lose(error: HeterpsError) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


def test_restarts_without_progress_are_counted_and_money_is_that_of_the_samples_that_count(tmp_path: Path) -> None:
    killer = Killer(lose(WorkerLost("worker-1.0", "worker-1.0 is gone")), 128, 128, 208)
    done = train(restarting(tmp_path, 3), "run", observer=killer).summary
    assert killer.starts == [0, 96, 96, 192]
    assert done["restarts"] == 3
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == -(-NUM_ROWS // 64), "no interval is there twice"
    usd_per_hour = 2 * 0.04 + 1.0
    assert done["measured_usd"] == pytest.approx(done["seconds"] * usd_per_hour / 3600, abs=1e-6)
    whole = train(restarting(tmp_path, 0), "whole").summary
    assert (done["samples"], done["log_loss"]) == (whole["samples"], whole["log_loss"])
    assert done["train"] == whole["train"]


def test_a_job_that_dies_once_more_than_it_may_ends_with_the_last_error(tmp_path: Path) -> None:
    deaths = iter(range(1, 9))

    def die() -> None:
        raise WorkerLost("worker-1.0", f"death {next(deaths)}")

    killer = Killer(die, 128, 128, 128, 128)
    with pytest.raises(PeerLost, match=r"^death 3\. The job was restarted 2 of 2 times") as raised:
        train(restarting(tmp_path, 2), "run", observer=killer)
    assert raised.value.exit_code == 8
    assert [warning.partition(".")[0] for warning in killer.warnings] == ["death 1", "death 2"]
    resumed = train(restarting(tmp_path, 2), "run", resume=True).summary
    assert (resumed["status"], resumed["samples"]) == ("completed", NUM_ROWS)


def test_a_run_without_restarts_says_how_to_go_on(tmp_path: Path) -> None:
    killer = Killer(lose(WorkerLost("worker-1.0", "worker-1.0 is gone")), 128)
    with pytest.raises(PeerLost, match=r"^worker-1\.0 is gone\. .*--resume, or by itself with workers\.restarts"):
        train(restarting(tmp_path, 0), "run", observer=killer)


@pytest.mark.parametrize("kind", [NoPlace, NoRay])
def test_a_loss_that_cannot_be_replaced_is_told_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[HeterpsError]
) -> None:
    tries = 4 if kind is NoRay else 1  # it may come back, within the restarts
    errors = iter([WorkerLost("worker-2.0", "worker-2.0 is gone"), *[kind("it lacks 1 v100")] * tries])

    def fail(*_: Any, **__: Any) -> None:
        raise next(errors)

    monkeypatch.setattr(by_plan, "train_once", fail)
    with pytest.raises(PeerLost, match=r"^worker-2\.0 is gone\. It could not be replaced: it lacks 1 v100\."):
        train(restarting(tmp_path, 3, workers={"backoff_s": 0.01}), "run")
    errors = iter([kind("it lacks 1 v100")])
    with pytest.raises(kind, match=r"^it lacks 1 v100$"):
        train(restarting(tmp_path, 3), "other")


def test_a_new_plan_without_a_place_is_given_up_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = restarting(tmp_path, 0)
    plan = load_plan("plan.json")
    other = plan.model_copy(update={"servers": plan.servers.model_copy(update={"count": 2})})
    steps = iter(
        [Replanned(job.model_copy(update={"plan": "plan-2.json"}), other), NoPlace("it lacks 1 cpu"), Enough()]
    )
    plans: list[Any] = []

    def train_once(job: Job, run: Any, plan: Any, **_: Any) -> Any:
        plans.append((job.plan, plan))
        if isinstance(step := next(steps), Exception):
            raise step
        return step

    monkeypatch.setattr(by_plan, "train_once", train_once)
    killer = Killer(lambda: None)
    with pytest.raises(Enough):
        train(job, "run", observer=killer)
    assert plans == [("plan.json", plan), ("plan-2.json", other), ("plan.json", plan)]
    assert killer.warnings == ["the job goes on by the plan before, 1 cpu + 1 big: it lacks 1 cpu"]
    assert (load_plan("run/plan.json"), load_job("run/job.yaml").plan) == (plan, "plan.json")


# --- the decision ----------------------------------------------------------------------------------------------------


def a_job(restarts: int | None = 2, addresses: Sequence[str] = (), **fields: Any) -> Job:
    servers = {"addresses": list(addresses)} if addresses else None
    return Job.model_validate(
        {"data": {"train": "x"}, "launcher": "local", "workers": {"restarts": restarts}, "servers": servers, **fields}
    )


LOST = PeerDied("server-0", "gone")


def next_start(
    error: HeterpsError, job: Job, signals: Sequence[str] = (), *, has_begun: bool = False, has_checkpoint: bool = True
) -> float | None:
    return Restarts(job).next_start(error, job, signals, 1.0, has_begun=has_begun, has_checkpoint=has_checkpoint)


def last_words(error: HeterpsError, job: Job, *, has_checkpoint: bool = True) -> str | None:
    return Restarts(a_job()).last_words(error, "", job, has_checkpoint=has_checkpoint)


@pytest.mark.parametrize("error", [LOST, WorkerLost("worker-1.0", "gone"), PeerLost("silent")])
def test_what_died_or_was_silent_is_replaced_as_often_as_the_job_says(error: HeterpsError) -> None:
    job = a_job(2)
    restarts = Restarts(job)
    starts = [
        restarts.next_start(error, job, [], now, has_begun=True, has_checkpoint=False)
        for now in (0.0, 5.0, 9.0, 3601.0, 3602.0)
    ]
    assert starts == [0.0, 5.0 + job.workers.backoff_s, None, 3601.0 + job.workers.backoff_s, None], "in an hour"
    assert next_start(error, a_job(0)) is None


def test_a_job_that_does_not_say_how_often_goes_on_from_a_checkpoint_and_does_not_begin_anew() -> None:
    assert next_start(LOST, a_job(None)) == 1.0
    assert next_start(LOST, a_job(None), has_checkpoint=False) is None
    assert Restarts(a_job(None)).most == 3
    assert "the run can only begin again" in str(last_words(LOST, a_job(None), has_checkpoint=False))


@pytest.mark.parametrize(
    "error",
    [ModelError("x"), DataError("x"), ConfigError("x"), StorageError("x"), StaleIncarnation("x"), HeterpsError("x"),
     NoPlace("x"), NoRay("x")],
)  # fmt: skip
def test_errors_that_would_come_again_are_not_tried_again(error: HeterpsError) -> None:
    assert next_start(error, a_job()) is None


def test_a_ray_that_is_out_of_reach_is_tried_again_once_the_run_has_begun() -> None:
    assert next_start(NoRay("x"), a_job(), has_begun=True) == 1.0
    assert next_start(NoPlace("x"), a_job(), has_begun=True) is None


def test_a_run_that_was_told_to_stop_is_not_begun_again() -> None:
    assert next_start(LOST, a_job(), ["SIGTERM"]) is None


def test_servers_that_run_already_cannot_be_brought_back_to_a_checkpoint() -> None:
    job = a_job(addresses=["ipc:///x"])
    assert next_start(LOST, job) is None
    assert "Start the servers of the job anew" in str(last_words(LOST, job))


def test_there_is_no_advice_where_there_is_nothing_to_go_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps.launch.trials.fit_job", lambda job: job)  # there is no data
    assert last_words(NoRay("Ray is not there"), a_job()) is None
    assert last_words(LOST, trial_job(a_job())) is None
    assert trial_job(a_job()).workers.restarts == 0, "a trial that is disturbed measures nothing"
