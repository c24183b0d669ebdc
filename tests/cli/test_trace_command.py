"""`heterps trace` and the report of a real run: what its workers computed, communicated and waited, on any launcher."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from command import heterps_here

LOCAL = ("--launcher", "local", "--workers", "2", "--sync", "asp")


@pytest.mark.parametrize(("words", "num_workers"), [((), 1), (LOCAL, 2)], ids=["inline", "local"])
def test_every_worker_has_a_track_and_a_row_of_what_it_did(tiny_job: Path, words: tuple[str], num_workers: int) -> None:
    done = heterps_here("train", "job.yaml", "--run", "run", *words, cwd=tiny_job.parent)
    assert done.returncode == 0, done.stderr
    done = heterps_here("trace", "run", "--json", cwd=tiny_job.parent)
    assert done.returncode == 0, done.stderr
    events = [event for event in json.loads(done.stdout)["traceEvents"] if event["pid"] == 0]
    assert [event["args"]["name"] for event in events if event["name"] == "thread_name"] == [
        f"worker-1.{number}" for number in range(num_workers)
    ]
    spans = [event for event in events if event["ph"] == "X"]
    assert Counter(span["name"] for span in spans).keys() == {"compute", "communicate", "wait"}
    for number in range(1, num_workers + 1):
        track = [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["tid"] == number]
        assert track[0][0] >= 0
        assert all(end <= start + 20 for (_, end), (start, _) in pairwise(track)), "they overlap"
    page = (tiny_job.parent / "run/report.html").read_text()
    assert "What workers did" in page
    assert f"worker-1.{num_workers - 1} computes" in page
