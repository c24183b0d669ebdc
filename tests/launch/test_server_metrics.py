"""`heterps server start --metrics`: what a server tells Prometheus, and whom it does not tell anything."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_commands import run_command, started, told_stats

from heterps.config import load_job
from heterps.launch.servers import first_roster
from heterps.ps.client.connect import connect
from heterps.ps.keys.dedup import make_lookup
from heterps.report.prometheus_servers import NAMES
from heterps.training.protocol.stage_tables import job_tables

ADDRESS = "ipc://./ps-0"
TOLD = "server-0 (shard 0 of 1) listens at ipc://./ps-0"
TOKEN = "a-long-enough-token"
UNTOLD = {"heterps_server_dropped_total", *(name for name in NAMES if "_mirror_" in name)}
"""Nothing was dropped, and servers that are started by hand have no mirrors."""
Told = dict[tuple[str, str], float]
"""By name, and the label beside `server` where there is one."""


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().removeprefix("metrics at ").strip()


def told(url: str, token: str | None = None) -> Told:
    request = urllib.request.Request(url, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("server") == "server-0"
            found[sample.name, "".join(sample.labels.values())] = sample.value
    return found


def test_a_server_tells_what_it_holds_and_who_is_silent(tiny_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_job.write_text(f"{tiny_job.read_text()}\ntiers: {{memory_bytes: 1000000}}\n")
    with started(tiny_job, [ADDRESS], TOLD, "--metrics", "127.0.0.1:0") as process:
        url = url_of(process)
        for foreign in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):  # pages of others
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(urllib.request.Request(url, headers=foreign), timeout=60)
        empty = told(url)
        assert empty["heterps_server_table_rows", "embedding"] == 0
        tables = job_tables(load_job(tiny_job))
        client = connect("worker-1.0", first_roster([ADDRESS]), tables)
        client.pull("embedding", make_lookup(np.arange(7), 1)).result()
        client.close()
        stats = told_stats(capsys, ADDRESS)
        while (full := told(url))["heterps_server_requests_total", ""] < stats["requests"]:
            pass  # figures are noted once a second
    assert {name for name, _ in full} >= set(NAMES) - UNTOLD
    assert full["heterps_server_table_rows", "embedding"] == stats["tables"]["embedding"]["rows"] == 7
    assert full["heterps_server_table_rows_pulled_total", "embedding"] == 7
    assert full["heterps_server_worker_silence_seconds", "worker-1.0"] >= 0
    assert full["heterps_server_disk_free_bytes", "embedding"] > 0
    assert full["heterps_server_received_bytes_total", ""] > 0
    assert full["heterps_server_message_seconds_bucket", "+Inf"] == full["heterps_server_message_seconds_count", ""] > 1


def test_only_those_who_know_the_token_are_told(tiny_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERPS_TOKEN", TOKEN)
    with started(tiny_job, [ADDRESS], TOLD, "--metrics", "0.0.0.0:0") as process:
        url = url_of(process).replace("0.0.0.0", "127.0.0.1")
        for wrong in (None, "another-long-token"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                told(url, wrong)
        assert told(url, TOKEN)["heterps_server_workers", ""] == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--metrics", "0.0.0.0:0"], "--metrics 0.0.0.0: others than this machine could ask there, so a token"),
        (["--metrics", "9100"], "--metrics 9100: give HOST:PORT"),
        (["--metrics", "127.0.0.1:99999"], "give HOST:PORT"),
        (["--token-file", "token"], "--token-file: the token is for --metrics"),
    ],
)
def test_where_metrics_cannot_be_told_no_server_starts(
    tiny_job: Path,
    options: list[str],
    why: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HETERPS_TOKEN", raising=False)
    code, _, said = run_command(capsys, "start", str(tiny_job), "--address", ADDRESS, *options)
    assert code == 2
    assert why in " ".join(said.split())
