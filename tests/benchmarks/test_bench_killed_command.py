"""The benchmark of a killed command runs, and a run that was killed ends as one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_file import load_bench

from heterps.data.generate import generate


@pytest.mark.slow
def test_a_killed_run_is_timed_and_ends_as_a_clean_one(tmp_path: Path) -> None:
    bench = load_bench("faults/killed_command.py")
    generate(tmp_path / "data", 100_000, 1000, 0)
    seconds, repeated, auc = bench.kill_and_resume(tmp_path, "bsp")
    assert (seconds > 0, repeated <= 512) == (True, True)
    assert bench.speed(tmp_path, "bsp", "0")[2] == auc
