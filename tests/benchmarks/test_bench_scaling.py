"""The benchmark of workers and plans runs, and writes what its README shows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import preloaded
import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "scaling" / "bench.py"


@pytest.mark.slow
def test_bench_scaling_compares_launchers_and_predictions_with_what_is_measured(tmp_path: Path) -> None:
    words = [sys.executable, BENCH, "real", "emulated", "--rows", "4000", "--seconds", "0.1", "--rounds", "1"]
    words += ["--batch-size", "256", "--policies", "asp", "--out", tmp_path / "got.json"]
    done = preloaded.run(words)
    assert done.returncode == 0, done.stderr
    got = json.loads((tmp_path / "got.json").read_text())
    assert got["real"][0]["ratio"] == 1.0
    assert all(row["samples_per_s"] > 0 for row in got["real"])
    assert all(row["predicted"] > 0 and row["measured"] > 0 for row in got["emulated"])
    assert len(got["emulated"]) == 7
