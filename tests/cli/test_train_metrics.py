"""`heterps train --metrics`: what a running job and its servers tell Prometheus, under every launcher."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import preloaded
import pytest
from prometheus_client.parser import text_string_to_metric_families

from heterps.cli import main
from heterps.report import prometheus, prometheus_servers
from heterps.report.prometheus_servers import OF_MIRRORS

SYNCED = "heterps_server_mirror_synced"
WITHIN_S = 120.0
ENDED_S = 60.0
TOKEN = "a-long-enough-token"
Told = dict[str, list[tuple[dict[str, str], float]]]
"""Labels and values by name."""
LONG = "checkpoint: {every_samples: 640}\nservers: {count: 2}\ntiers: {memory_bytes: 1000000}\n"
OFTEN_ABSENT = {
    "heterps_server_dropped_total",  # no message was refused
    *(name for name in prometheus_servers.NAMES if "_mirror_" in name),  # there are none
    "heterps_stage_queue",  # there is one stage
    *("heterps_job_auc", "heterps_job_log_loss", "heterps_job_staleness"),  # the open interval has just begun
    *("heterps_stage_samples_per_second", "heterps_stage_time_share"),
}


def ask(url: str, **headers: str) -> Told:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=WITHIN_S) as answer:
        text = answer.read().decode()
    found: Told = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@contextmanager
def trained(job: Path, *options: str, more: str = "") -> Iterator[str]:
    """The address of the metrics of a job that goes on until Ctrl-C, which must save it and leave nobody behind."""
    job.write_text(job.read_text().replace("batch_size: 16", "batch_size: 16\n  epochs: 100000") + more)
    words = ["train", str(job), "--run", "run", "--metrics", "127.0.0.1:0", *options]
    command = [sys.executable, "-c", f"from heterps.cli import main; main({words!r})"]
    process = preloaded.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("metrics at http://127.0.0.1:"), line
        yield line.removeprefix("metrics at ").strip()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=ENDED_S)
        assert process.returncode == 130, said
    finally:
        process.kill()
        process.wait()


def until(url: str, is_enough: Callable[[Told], bool]) -> Told:
    deadline = time.monotonic() + WITHIN_S
    while not is_enough(told := ask(url)):
        assert time.monotonic() < deadline, told
        time.sleep(0.1)  # between two questions, as Prometheus does
    return told


def is_under_way(told: Told) -> bool:
    return "heterps_checkpoint_age_seconds" in told and "heterps_job_samples" in told


def test_an_inline_job_tells_how_it_stands(tiny_job: Path) -> None:
    with trained(tiny_job, more="checkpoint: {every_samples: 640}\n") as url:
        told = until(url, is_under_way)
        later = until(url, lambda now: now["heterps_job_samples"][0][1] > told["heterps_job_samples"][0][1])
    assert told["heterps_job_running"] == [({"run": "run"}, 1.0)]
    of_traffic = {name for name in prometheus.NAMES if name.startswith("heterps_traffic")}
    assert set(told) >= set(prometheus.NAMES) - OFTEN_ABSENT - of_traffic
    assert told["heterps_job_samples_planned"][0][1] == 200 * 100_000
    assert 0 <= later["heterps_checkpoint_age_seconds"][0][1] < WITHIN_S
    assert later["heterps_disk_free_bytes"][0][1] > 0
    assert not any(name.startswith("heterps_server") for name in told), "it has no servers"


@pytest.mark.parametrize("channel", ["ipc", "memory"])
def test_a_local_job_tells_what_its_servers_hold_and_who_is_silent(tiny_job: Path, channel: str) -> None:
    more = f"{LONG}workers: {{channel: {channel}}}\n"
    with trained(tiny_job, "--launcher", "local", "--workers", "2", "--sync", "asp", more=more) as url:
        told = until(url, lambda told: is_under_way(told) and len(told.get("heterps_server_updates_total", ())) == 2)
        updates = updates_of(told)
        until(url, lambda now: all(updates_of(now).get(name, 0) > count for name, count in updates.items()))
    assert set(told) >= {*prometheus.NAMES, *prometheus_servers.NAMES} - OFTEN_ABSENT
    assert {tuple(labels.items()) for labels, _ in told["heterps_server_up_seconds"]} == {
        (("run", "run"), ("server", f"server-{number}")) for number in range(2)
    }
    rows = {labels["table"]: value for labels, value in told["heterps_server_table_rows"]}
    assert rows["embedding"] > 0
    silent = {labels["worker"] for labels, _ in told["heterps_server_worker_silence_seconds"]}
    assert silent >= {"worker-1.0", "worker-1.1"}
    assert all(value > 0 for _, value in told["heterps_server_disk_free_bytes"])
    assert sum(value for _, value in told["heterps_traffic_bytes"]) > 0


def test_a_job_tells_which_server_has_which_mirror_and_how_near_it_is(tiny_job: Path) -> None:
    more = "checkpoint: {every_samples: 640}\nservers: {count: 2, replicas: 1}\n"
    with trained(tiny_job, "--launcher", "local", "--workers", "2", more=more) as url:
        told = until(url, lambda told: [value for _, value in told.get(SYNCED, ())] == [1.0, 1.0])
        sent = {labels["mirror"]: value for labels, value in told["heterps_server_mirror_requests_total"]}
        later = until(
            url,
            lambda now: all(
                value > sent[labels["mirror"]] for labels, value in now["heterps_server_mirror_requests_total"]
            ),
        )
    assert {(labels["server"], labels["mirror"]) for labels, _ in told[SYNCED]} == {
        (f"server-{number}", f"server-{number}.1") for number in range(2)
    }
    for name in set(OF_MIRRORS) - {"heterps_server_mirror_requests"}:
        assert len(later[name]) == 2, name
        assert all(value >= 0 for _, value in later[name]), name


@pytest.mark.slow
def test_a_job_on_ray_tells_of_its_servers_too(tiny_job: Path) -> None:
    pytest.importorskip("ray")
    with trained(tiny_job, "--launcher", "ray", "--workers", "2", more=LONG) as url:
        told = until(url, lambda told: is_under_way(told) and len(told.get("heterps_server_updates_total", ())) == 2)
    assert set(told) >= {*prometheus.NAMES, *prometheus_servers.NAMES} - OFTEN_ABSENT


def updates_of(told: Told) -> dict[str, float]:
    return {labels["server"]: value for labels, value in told.get("heterps_server_updates_total", ())}


def test_only_those_who_know_the_token_are_told(tiny_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERPS_TOKEN", TOKEN)
    with trained(tiny_job) as url:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(url)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            ask(url, Authorization=f"Bearer {TOKEN}", Origin="https://evil.example")
        assert ask(url, Authorization=f"Bearer {TOKEN}")["heterps_job_running"][0][1] == 1
        while not Path("run/metrics.jsonl").exists():
            time.sleep(0.1)  # before that there is nothing to save


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--metrics", "9100"], "give HOST:PORT"),
        (["--metrics", "0.0.0.0:0"], "so a token is needed"),
        (["--token-file", "token"], "the token is for --metrics"),
    ],
)
def test_where_nobody_should_listen_nothing_is_trained(
    tiny_job: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["train", str(tiny_job), "--run", "run", *options])
    assert sentence in capsys.readouterr().err
    assert not Path("run").exists()
