"""What a run tells of its traffic: bytes by kind, and what de-duplication, copies, compression and merging saved."""

from __future__ import annotations

import json
from pathlib import Path

from command import heterps_here
from tiny import JOB, write_tiny

CODED = "servers: {count: 2, staleness: 2, coding: {values: fp16}}\n"


def test_the_summary_and_the_report_tell_what_travelled_and_what_was_saved(tiny_job: Path) -> None:
    write_tiny(tiny_job.parent / "train.parquet", 800)
    tiny_job.write_text(f"{JOB}{CODED}")
    words = ("--run", "run", "--launcher", "local", "--workers", "2", "--sync", "ssp:3")
    done = heterps_here("train", "job.yaml", *words, cwd=tiny_job.parent)
    assert done.returncode == 0, done.stderr
    traffic = json.loads((tiny_job.parent / "run/summary.json").read_text())["traffic"]
    assert all(traffic[f"{kind}_bytes"] > 0 for kind in ("keys", "rows", "row_gradients", "dense", "dense_gradients"))
    assert all(traffic[f"{way}_saved_bytes"] > 0 for way in ("deduplication", "caching", "compression"))
    values = sum(traffic[f"{kind}_bytes"] for kind in ("rows", "row_gradients", "dense", "dense_gradients"))
    assert traffic["compression_saved_bytes"] == values, "values of 16 bits take half"
    assert traffic["requests"] < traffic["calls"]
    assert traffic["bytes_sent"] + traffic["bytes_shared"] + traffic["bytes_received"] > values
    page = (tiny_job.parent / "run/report.html").read_text()
    assert "What was saved" in page
    assert "16 bits a value" in page
    assert "De-duplication" in done.stdout
