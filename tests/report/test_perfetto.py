"""Traces for Perfetto: steps and waits where the policy saw them, nothing twice, every track named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import heterps_here

from heterps.sync import make_policy, record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two workers under SSP(1): a pushes at 1, 2 and 3 s, and waits from 3 s until b pushes at 5 s."""
    (tmp_path / "run/traces").mkdir(parents=True)
    policy = make_policy("ssp", workers=["a", "b"], lower=1)
    with (tmp_path / "run/traces/stage-1.jsonl").open("w") as file:
        record(policy, file)
        for worker, now in (("a", 1.0), ("a", 2.0), ("b", 5.0), ("a", 5.5)):
            policy.on_push(worker, now=now)
    return tmp_path


def test_steps_and_waits_follow_each_other_on_the_track_of_their_worker(run: Path) -> None:
    done = heterps_here("trace", "run", "--out", "trace.json", cwd=run)
    assert done.returncode == 0, done.stderr
    assert "trace.json: 5 steps and waits." in done.stdout
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["stage-1 (ssp:1)"]
    spans = [(named[e["tid"]], e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    assert [span[1:] for span in spans if span[0] == "a"] == [
        ("step 1", 0, 1e6), ("step 2", 1e6, 2e6), ("wait", 2e6, 5e6), ("step 3", 5e6, 5.5e6)
    ]  # fmt: skip
    assert [span[1:] for span in spans if span[0] == "b"] == [("step 1", 0, 5e6)]


def test_a_program_gets_the_trace_itself(run: Path) -> None:
    done = heterps_here("trace", "run", "--json", cwd=run)
    assert len(json.loads(done.stdout)["traceEvents"]) == 8
    assert not (run / "trace.json").exists()


def test_a_run_without_traces_is_told_how_to_get_them(tmp_path: Path) -> None:
    done = heterps_here("trace", "nowhere", cwd=tmp_path)
    assert done.returncode == 6
    assert "there are no traces" in done.stderr
