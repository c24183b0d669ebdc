"""The benchmark of input runs, and prints a line for every format and place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import preloaded
import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "input" / "bench.py"


def test_bench_input_prints_every_format_and_place() -> None:
    done = preloaded.run([sys.executable, BENCH, "--quick"])
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if "|" in line]
    formats = [(line[0], line[1]) for line in cells if len(line) == 6][2:]
    names = ("Parquet", "CSV", "CSV, gzip", "JSON lines", "Criteo TSV")
    assert formats == [(name, number) for name in names for number in ("1", "2")]
    places = [line[0] for line in cells if len(line) == 3][2:]
    assert places == [name for name in ("this machine", "S3", "WebHDFS") for _ in range(2)]


@pytest.mark.slow
def test_bench_of_workers_says_what_sharing_saves() -> None:
    words = [sys.executable, BENCH.with_name("workers.py"), "--rows", "20000", "--workers", "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    workers, alone, shared = (cell.strip() for cell in done.stdout.splitlines()[-1].strip("|").split("|"))
    assert workers == "2"
    assert float(alone) > 0
    assert float(shared) > 0
