"""The benchmark of serving runs, and prints a line for every way to score."""

from __future__ import annotations

import sys
from pathlib import Path

import preloaded
import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "serve" / "bench.py"


@pytest.mark.slow
def test_bench_serve_prints_every_way_to_score() -> None:
    done = preloaded.run([sys.executable, BENCH, "--quick"])
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if "|" in line]
    rates = [line for line in cells if len(line) == 3 and line[2].endswith(tuple("0123456789"))]
    assert [line[0] for line in rates] == [
        "plain PyTorch", "plain ONNX Runtime", "heterps, export to torch", "heterps, export to onnx",
    ]  # fmt: skip
    assert all(float(line[2]) < 1e-6 for line in rates), "the models are the same"
    loads = [line for line in cells if len(line) == 7][2:]
    assert len(loads) == 16
    assert all(float(line[5]) > 0 for line in loads)
    sizes = [line[0] for line in cells if len(line) == 4 and not line[0].startswith("---")]
    assert sizes == ["bytes", "full export", "increment", "increment", "values", "fp16", "int8"]
