"""Jobs on a real Ray of two nodes that are changed while they run: stages are scaled, and plans replaced."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import elastic
import numpy as np
import pytest

pytest.importorskip("ray")
from ray_cluster import staged_job, wait_gone
from test_ray import Recorded, Watcher, cluster, endless, job_file, recorded

import heterps.launch.ray as launcher
from heterps.launch import train
from heterps.training.run.commands import CommandReply, Replan, Scale
from heterps.training.run.control import ask

__all__ = ["cluster", "job_file", "recorded"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning:ray")]


def test_a_stage_is_scaled_while_the_job_runs(cluster: Any, job_file: Path, recorded: type[Recorded]) -> None:
    answers: list[CommandReply] = []

    def act() -> None:
        if not answers:
            threading.Thread(target=lambda: answers.append(ask(Path("ray"), Scale(1, 2)))).start()
        else:
            os.kill(os.getpid(), signal.SIGINT)

    watcher = Watcher(at=3, act=act)
    finished = train(endless(job_file, ["cpu", "big"], cluster[0].address), "ray", observer=watcher)
    assert not answers[0].is_error
    assert watcher.changes == ["1 cpu + 2 big from " + watcher.changes[0].rpartition("from ")[2]]
    assert recorded.last.places["worker-2.1"]["node"] == cluster[1]["big"]
    assert finished.summary["status"].endswith("SIGINT")
    wait_gone(recorded.last.pids)


def test_a_scale_that_the_cluster_has_no_place_for_is_refused_and_the_job_goes_on(
    cluster: Any, job_file: Path, recorded: type[Recorded]
) -> None:
    answers: list[CommandReply] = []

    def act() -> None:
        if not answers:
            threading.Thread(target=lambda: answers.append(ask(Path("ray"), Scale(1, 5)))).start()
        else:
            os.kill(os.getpid(), signal.SIGINT)

    watcher = Watcher(at=3, act=act)
    finished = train(endless(job_file, ["cpu", "big"], cluster[0].address), "ray", observer=watcher)
    assert answers[0].is_error
    assert "lacks 3 big" in answers[0].text
    assert finished.summary["status"].endswith("SIGINT")


def test_bsp_has_the_losses_of_one_process_while_actors_join_and_leave(
    cluster: Any, job_file: Path, recorded: type[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = elastic.OneAfterTheOther(monkeypatch, Scale(0, 2), Scale(1, 2), Scale(0, 1), Scale(0, 2), Scale(1, 1))
    job = endless(job_file, ["cpu", "big"], cluster[0].address)
    with pytest.raises(elastic.Enough):
        train(job, "ray", observer=script)
    assert [told.text for told in script.told if told.is_error] == []
    assert [change.partition(" from")[0] for change in script.changes] == [
        "2 cpu + 1 big", "2 cpu + 2 big", "1 cpu + 2 big", "2 cpu + 2 big", "2 cpu + 1 big",
    ]  # fmt: skip
    np.testing.assert_allclose(script.losses, elastic.inline_losses(job, script.end), rtol=1e-6)
    wait_gone(recorded.last.pids)


def test_bsp_has_the_losses_of_one_process_over_plans_and_one_without_a_place_is_given_up(
    cluster: Any, job_file: Path, recorded: type[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Replanning(elastic.Script):
        def started(self, samples: int, total: int, resumed: bool) -> None:
            super().started(samples, total, resumed)
            elastic.make_plan([2, 1], [3]).write("ray/plan-2.json")
            elastic.make_plan([1, 3], [3]).write("ray/plan-3.json")
            monkeypatch.setattr(launcher, "PLACE_S", 10.0)

    script = Replanning(monkeypatch, (64, Replan("plan-2.json"), 0), (160, Replan("plan-3.json"), 0))
    job = staged_job(job_file, ["cpu", "big"], [2], cluster[0].address)
    done = train(job, "ray", observer=script)
    assert [told.text for told in script.told if told.is_error] == []
    assert script.changes == ["a new plan: 2 cpu + 1 big", "a new plan: 1 cpu + 3 big"]
    assert any("the job goes on by the plan before, 2 cpu + 1 big" in warning for warning in script.warnings)
    np.testing.assert_allclose(script.losses, elastic.inline_losses(job), rtol=1e-6)
    assert (done.summary["status"], done.summary["samples"]) == ("completed", 320)
    assert [stage["workers"] for stage in done.summary["stages"]] == [2, 1]
    wait_gone(recorded.last.pids)
