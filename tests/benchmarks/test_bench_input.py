"""The benchmark of input runs, and prints a line for every format and place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "benchmarks" / "input" / "bench.py"


def test_bench_input_prints_every_format_and_place() -> None:
    done = subprocess.run([sys.executable, BENCH, "--quick"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if "|" in line]
    formats = [(line[0], line[1]) for line in cells if len(line) == 6][2:]
    names = ("Parquet", "CSV", "CSV, gzip", "JSON lines", "Criteo TSV")
    assert formats == [(name, number) for name in names for number in ("1", "2")]
    places = [line[0] for line in cells if len(line) == 3][2:]
    assert places == [name for name in ("this machine", "S3", "WebHDFS") for _ in range(2)]
