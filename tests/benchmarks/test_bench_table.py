"""The benchmark of the tables runs, and prints every line that its README explains."""

from __future__ import annotations

import sys
from pathlib import Path

import preloaded

BENCH = Path(__file__).parents[2] / "benchmarks" / "table" / "bench.py"


def test_bench_table_prints_every_figure():
    done = preloaded.run([sys.executable, BENCH, "--quick"])
    assert done.returncode == 0, done.stderr
    table = [line.split("|") for line in done.stdout.splitlines() if line.startswith("|")][2:]
    whats = [cells[1].strip() for cells in table]
    assert [what.split(",")[0].split()[0] for what in whats] == ["pull"] * 4 + ["push"] * 4 + ["lookup", "insert"]
    assert all(float(cells[column]) > 0 for cells in table for column in (2, 4, 5))
    assert "Bytes a row" in done.stdout
