"""A worker process in reserve: when it starts, who takes it, and that it is never in the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ends import assert_same_tables, wait_until
from test_replaced_workers import BATCH, EPOCHS, NUM_ROWS, Watcher, changed, job

from heterps.checkpoint import load_latest
from heterps.config import Job
from heterps.launch import standby, train
from heterps.launch.standby import Standby
from heterps.processes import Child

__all__ = ["job"]  # a fixture
pytestmark = pytest.mark.usefixtures("no_leaks", "in_its_folder")
IN_RESERVE = "the worker in reserve"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "AFTER_S", 0.0)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Standby]:
    made = Standby(tmp_path / "logs", is_wanted=True)
    yield made
    made.close()


@pytest.mark.usefixtures("at_once")
def test_who_needs_a_worker_takes_the_one_in_reserve_with_its_own_name_and_log(
    processes: Standby, children: dict[str, list[Child]], tmp_path: Path
) -> None:
    processes.tend()
    processes.tend()
    (reserved,) = children[IN_RESERVE]
    taken = processes.take("worker-1.0")
    try:
        assert taken is reserved
        assert (taken.name, taken.log) == ("worker-1.0", tmp_path / "logs" / "worker-1.0.log")
        assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["worker-1.0.log"]
        taken.send({"log": str(taken.log), "folder": str(tmp_path), "job": "nowhere.yaml", "worker": {}})
        wait_until(lambda: not taken.is_running, "it fails at this start")
        assert "worker-1.0.log" in str(taken.ended), "what it printed is where its name says"
    finally:
        taken.close()


@pytest.mark.usefixtures("at_once")
def test_the_next_one_starts_after_one_was_taken(processes: Standby, children: dict[str, list[Child]]) -> None:
    processes.tend()
    first = processes.take("worker-1.0")
    processes.tend()
    second = processes.take("worker-1.1")
    first.close()
    second.close()
    assert children[IN_RESERVE] == [first, second]


@pytest.mark.usefixtures("at_once")
def test_one_that_ends_by_itself_is_no_loss_and_is_not_started_again(
    processes: Standby, children: dict[str, list[Child]]
) -> None:
    processes.tend()
    os.kill(children[IN_RESERVE][0].pid, signal.SIGKILL)
    wait_until(lambda: not children[IN_RESERVE][0].is_running, "it is gone")
    processes.tend()
    processes.tend()
    assert len(children[IN_RESERVE]) == 1
    new = processes.take("worker-1.0")
    assert new.is_running
    new.close()


def test_short_runs_and_runs_without_replacements_have_none(
    processes: Standby, children: dict[str, list[Child]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    processes.tend()
    monkeypatch.setattr(standby, "AFTER_S", 0.0)
    Standby(tmp_path / "logs", is_wanted=False).tend()
    assert IN_RESERVE not in children


@pytest.mark.usefixtures("at_once")
def test_a_killed_worker_is_replaced_by_the_one_in_reserve_and_the_run_is_the_same(
    job: Job, children: dict[str, list[Child]]
) -> None:
    killer = Watcher(lambda: os.kill(children["worker-1.1"][-1].pid, signal.SIGKILL), 3 * BATCH)
    done = train(changed(job, workers={"channel": "ipc"}), "run", observer=killer).summary
    assert (done["recoveries"], done["samples"]) == (1, EPOCHS * NUM_ROWS)
    assert len(children["worker-1.1"]) == 1, "the first; the second was started as the one in reserve"
    assert children[IN_RESERVE][0].name == "worker-1.1"
    train(changed(job, workers={"channel": "memory"}), "clean")
    assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))
