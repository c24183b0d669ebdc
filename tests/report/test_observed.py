"""What traces tell of a run: steps, waits and staleness, of its last start, however long it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps.config import load_job
from heterps.errors import RunError
from heterps.report.observed import read_observed
from heterps.report.run_details import read_details
from heterps.sim.scenario import Scenario
from heterps.sim.simulator import Simulator
from heterps.sync import make_policy, record
from heterps.sync.policy import Policy
from heterps.training.run.folder import Run

PUSHES = (("lane-0", 1.0), ("lane-0", 2.0), ("lane-1", 5.0), ("lane-0", 5.5))


def write_trace(run: Path, name: str, pushes=PUSHES, kind: str = "ssp", **options: int) -> Policy:
    (run / "traces").mkdir(parents=True, exist_ok=True)
    policy = make_policy(kind, workers=sorted({worker for worker, _ in pushes}), **options)
    with (run / "traces" / name).open("w") as file:
        record(policy, file)
        for worker, now in pushes:
            policy.on_push(worker, now=now)
    return policy


def test_steps_waits_and_staleness_are_those_of_the_trace(tmp_path: Path) -> None:
    write_trace(tmp_path, "stage-1.jsonl", lower=1)
    (policy,) = read_observed(tmp_path)
    first, second = policy.result.workers
    assert policy.title == "Stage 1"
    assert policy.is_whole
    assert not policy.has_rounds
    assert first.segments == ((0.0, 1.0, "compute"), (1.0, 2.0, "compute"), (2.0, 5.0, "wait"), (5.0, 5.5, "compute"))
    assert second.segments == ((0.0, 5.0, "compute"),)
    assert (first.pushes, first.waits, first.wait_s, first.compute_s) == (3, 1, 3.0, 2.5)
    assert policy.result.staleness == {0: 3, 2: 1}, "the step of lane-1 missed two pushes"
    assert policy.result.window == (0.0, 5.5)


@pytest.mark.parametrize("words", ["asp", "ssp:2", "dssp:1:4"])
def test_staleness_and_waits_agree_with_the_simulation_that_was_traced(tmp_path: Path, words: str) -> None:
    (tmp_path / "traces").mkdir()
    scenario = Scenario(workers="2x1.0,2.3", horizon_s=100.0, jitter=0.2)
    with (tmp_path / "traces/stage-1.jsonl").open("w") as file:
        simulator = Simulator(scenario, words)
        record(simulator.policy, file)
        simulated = simulator.run()
    (policy,) = read_observed(tmp_path)
    assert policy.result.staleness == simulated.staleness
    assert policy.result.pushes == simulated.pushes
    seen = sum(worker.wait_s for worker in policy.result.workers)
    assert seen == pytest.approx(simulated.wait_s, abs=3.0), "waits at the end have not ended"


def test_a_lane_starts_when_the_policies_of_all_stages_let_it(tmp_path: Path) -> None:
    write_trace(tmp_path, "stage-1.jsonl", (("lane-0", 3.0), ("lane-0", 6.0)), kind="asp")
    write_trace(tmp_path, "stage-2.jsonl", (("lane-0", 2.0), ("lane-0", 5.0)), kind="asp")
    first, second = read_observed(tmp_path)
    assert first.result.workers[0].segments == ((0.0, 3.0, "compute"), (3.0, 6.0, "compute"))
    worked, waited, again, _ = second.result.workers[0].segments
    assert (worked, waited, again) == ((0.0, 2.0, "compute"), (2.0, 3.0, "wait"), (3.0, 5.0, "compute"))


def test_gradients_of_a_round_are_not_stale(tmp_path: Path) -> None:
    write_trace(tmp_path, "stage-1.jsonl", (("a", 1.0), ("b", 2.0), ("b", 3.0), ("a", 4.0)), kind="bsp")
    (policy,) = read_observed(tmp_path)
    assert policy.has_rounds
    assert policy.result.staleness == {0: 4}
    assert policy.result.workers[0].waits == 1


def test_only_the_last_start_of_the_run_is_shown(tmp_path: Path) -> None:
    write_trace(tmp_path, "stage-1.jsonl", lower=1)
    write_trace(tmp_path, "stage-2.jsonl", lower=1)
    write_trace(tmp_path, "stage-1-2.1.jsonl", lower=1)
    assert [policy.title for policy in read_observed(tmp_path)] == ["Stages 1 and 2"]
    assert read_observed(tmp_path / "elsewhere") == []


def test_of_a_long_trace_the_end_is_read(tmp_path: Path) -> None:
    write_trace(tmp_path, "stage-1.jsonl", [(f"lane-{i % 2}", float(i)) for i in range(1, 2001)], kind="asp")
    (policy,) = read_observed(tmp_path, most_bytes=20_000)
    assert not policy.is_whole
    assert 50 < policy.result.pushes < 400
    assert policy.result.window is not None
    assert policy.result.window[1] == 2000.0
    assert policy.result.staleness.keys() == {1}
    assert policy.result.workers[0].segments[-1].end >= 1999.0


def test_a_damaged_trace_is_an_error_here_and_a_remark_in_a_report(tmp_path: Path) -> None:
    write_trace(tmp_path, "stage-1.jsonl")
    with (tmp_path / "traces/stage-1.jsonl").open("a") as file:
        file.write("{oops\n")
    with pytest.raises(RunError, match=r"stage-1\.jsonl:\d+: not a line of a trace"):
        read_observed(tmp_path)
    job = load_job(Path(__file__).parent / "run/job.yaml")
    details = read_details(Run(tmp_path), job)
    assert "not a line of a trace" in details.problems[0]
    assert (details.policies, details.profile, details.events) == ([], None, [])


def test_a_trace_without_a_step_is_not_shown(tmp_path: Path) -> None:
    write_trace(tmp_path, "stage-1.jsonl", (("a", 1.0),), kind="asp")
    lines = (tmp_path / "traces/stage-1.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "traces/stage-1.jsonl").write_text(lines[0])
    assert read_observed(tmp_path) == []
