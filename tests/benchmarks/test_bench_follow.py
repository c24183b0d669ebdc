"""The benchmark of following runs, and tells a run alone and a run that was followed."""

from __future__ import annotations

import sys
from pathlib import Path

import preloaded
import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "follow" / "bench.py"


@pytest.mark.slow
def test_bench_follow_tells_what_versions_take(tiny_job: Path) -> None:
    command = [sys.executable, BENCH, tiny_job, "--epochs", "8", "--every-s", "0.05"]
    done = preloaded.run(command)
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if "|" in line]
    alone, followed = cells[-2:]
    assert (alone[0], followed[0]) == ("1 alone", "1 followed")
    assert " full, " in followed[2]
    assert len(followed) == 8
