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
    assert "trace.json: 5 spans of workers and lanes." in done.stdout
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["stage-1 (ssp:1)"]
    spans = [(named[e["tid"]], e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    assert [span[1:] for span in spans if span[0] == "a"] == [
        ("step 1", 0, 1e6), ("step 2", 1e6, 2e6), ("wait", 2e6, 5e6), ("step 3", 5e6, 5.5e6)
    ]  # fmt: skip
    assert [span[1:] for span in spans if span[0] == "b"] == [("step 1", 0, 5e6)]


def test_workers_have_tracks_of_what_they_did(run: Path) -> None:
    lines = [{"worker": "worker-1.0", "start": 1.0, "did": "wmc", "us": [500_000, 100_000, 400_000]}]
    lines.append({"worker": "worker-1.1", "start": 1.0, "did": "c", "us": [700_000]})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "run/traces/workers.jsonl").write_text(text + '{"worker": "wor')
    done = heterps_here("trace", "run", "--json", cwd=run)
    assert done.returncode == 0, done.stderr
    events = json.loads(done.stdout)["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["workers", "stage-1 (ssp:1)"]
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [(named[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans[:4] == [
        ("worker-1.0", "wait", 1e6, 5e5), ("worker-1.0", "communicate", 1.5e6, 1e5),
        ("worker-1.0", "compute", 1.6e6, 4e5), ("worker-1.1", "compute", 1e6, 7e5),
    ]  # fmt: skip
    assert len(spans) == 4 + 5
    (run / "run/traces/workers.jsonl").write_text("oops\n")
    assert "not a line about a worker: oops" in heterps_here("trace", "run", cwd=run).stderr


def test_a_program_gets_the_trace_itself(run: Path) -> None:
    done = heterps_here("trace", "run", "--json", cwd=run)
    assert len(json.loads(done.stdout)["traceEvents"]) == 8
    assert not (run / "trace.json").exists()


def test_a_run_without_traces_is_told_how_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder, message in (("empty", "there are no traces"), ("nowhere", "there is no such run folder")):
        done = heterps_here("trace", folder, cwd=tmp_path)
        assert done.returncode == 6
        assert message in done.stderr
