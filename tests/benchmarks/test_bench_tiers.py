"""The benchmark of tiers runs, and prints a line for every budget that keeps to it."""

from __future__ import annotations

import sys
from pathlib import Path

import preloaded

BENCH = Path(__file__).parents[2] / "benchmarks" / "tiers" / "bench.py"


def test_bench_tiers_prints_every_budget(tmp_path: Path):
    done = preloaded.run([sys.executable, BENCH, "--quick", "--folder", tmp_path])
    assert done.returncode == 0, done.stderr
    lines = [line.strip("|").split("|") for line in done.stdout.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip().rstrip("%") for cell in line] for line in lines]
    budgets = ["no tiers", "100", "50", "20", "10"]
    assert [(line[0], line[1]) for line in cells] == [(dim, budget) for dim in ("16", "64") for budget in budgets]
    for line in cells:
        assert line[1] == "no tiers" or float(line[2]) <= float(line[1])
        assert all(float(cell) > 0 for cell in line[3:])
    hits = [float(line[3]) for line in cells]
    for dim in (0, 5):
        assert hits[dim : dim + 2] == [100, 100], "a table that fits has all its rows in memory"
        assert hits[dim + 1 : dim + 5] == sorted(hits[dim + 1 : dim + 5], reverse=True)
    assert list(tmp_path.iterdir()) == []
