"""`heterps ui` as a process, beside a job that trains: its page follows the job, changes it, and stops it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from command import heterps, started
from tiny import JOB

DEADLINE_S = 120


@contextmanager
def ui(folder: Path, *words: str) -> Iterator[httpx.Client]:
    with started("ui", "runs", *(words or ("--port", "0")), "--json", cwd=folder) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with httpx.Client(base_url=url, timeout=DEADLINE_S) as client:
            yield client
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130


def events(client: httpx.Client, run: str, seen: str = "") -> Iterator[tuple[str, str, str]]:
    """(event, id, data) of a run's changes, until it ends: asked for again and again, as a browser does."""
    kind = ""
    while kind != "end":
        answer = client.get(f"run/{run}/events", headers={"last-event-id": seen})
        assert answer.headers["content-type"].startswith("text/event-stream")
        head, *told = answer.text.removesuffix("\n\n").split("\n\n")
        assert head == "retry: 1000"
        for one in told:
            found: dict[str, list[str]] = {}
            for line in one.splitlines():
                field, _, value = line.partition(": ")
                found.setdefault(field, []).append(value)
            kind, seen = found["event"][0], "".join(found.get("id", [seen]))
            yield kind, "".join(found.get("id", [])), "\n".join(found["data"])


@pytest.fixture
def folder(tiny_job: Path) -> Path:
    """A job that would train for hours."""
    tiny_job.write_text(JOB.replace("batch_size: 16", "batch_size: 16\n  epochs: 1000000"))
    (tiny_job.parent / "runs").mkdir()
    return tiny_job.parent


@pytest.mark.parametrize("words", [("--launcher", "local", "--workers", "1"), ()], ids=["local", "inline"])
def test_a_page_follows_a_job_changes_it_and_stops_it(folder: Path, words: tuple[str, ...]) -> None:
    with started("train", "job.yaml", "--run", "runs/tiny", *words, cwd=folder) as job, ui(folder) as client:
        assert job.stdout is not None
        for line in job.stdout:
            if " samples " in line:
                break
        threading.Thread(target=job.stdout.read, daemon=True).start()  # so that it is not kept waiting
        page = client.get("run/tiny/").text
        assert 'data-events="events"' in page
        assert ">running</span>" in page
        bodies = (event for event in events(client, "tiny") if event[0] != "now")
        (kind, first, body), (_, second, later) = next(bodies), next(bodies)
        assert kind == "body"
        assert first != second
        assert body != later
        assert "<h2>Now: " in later
        if words:
            answer = client.post("run/tiny/scale", json={"stage": "1", "count": "2"}).json()
            assert answer.get("answer", answer).startswith("stage 1 from 1 to 2 workers")
            assert "give a number" in client.post("run/tiny/scale", json={"stage": "one"}).json()["error"]
        assert 'heterps_job_running{run="tiny"} 1.0' in client.get("metrics").text
        assert "saves and ends" in client.post("run/tiny/stop", json={}).json()["answer"]
        assert job.wait(DEADLINE_S) == 130
        rest = list(bodies)
        assert rest[-1][0] == "end"
        assert "It has written no summary" not in rest[-2][2]
        assert list(events(client, "tiny", rest[-2][1])) == [rest[-1]], "what was seen is not sent again"


def test_the_pages_stand_back_where_a_job_uses_all_cores(folder: Path) -> None:
    with started("ui", "runs", "--port", "0", "--json", cwd=folder) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert os.getpriority(os.PRIO_PROCESS, process.pid) > os.getpriority(os.PRIO_PROCESS, 0)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = heterps("ui", "nowhere", cwd=tmp_path)
    assert done.returncode == 6
    assert "nowhere: there is no such folder." in done.stderr
