"""The benchmark of spot capacity runs, and generated traces show what its README explains."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import preloaded

RUN = Path(__file__).parents[2] / "benchmarks" / "spot" / "run.py"


def test_it_describes_traces_and_plays_a_plan_over_them(tmp_path: Path) -> None:
    trace = json.dumps({"metadata": {"gap_seconds": 3600}, "data": [16, 16, 8, 16] * 10})
    for folder in ("availability/1-node/aws-02-15-2023", "availability/16-node/aws"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "zone_v100_1.json").write_text(trace)
    done = preloaded.run([sys.executable, RUN, "--traces", tmp_path, "--seeds", "3"])
    assert done.returncode == 0, done.stderr
    assert "| zone | 16 | 75% | 1.00 |" in done.stdout
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "% |" in line]
    played = {row[0]: row for row in rows if len(row) == 8}
    assert list(played) == ["trace", "independent", "generated", "zone_v100_1"]
    assert float(played["independent"][-1]) == 0.0, "each unit is replaced by a spot unit"
