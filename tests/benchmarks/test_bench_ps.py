"""The benchmark of servers runs, and prints and writes every line that its README explains."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import preloaded
import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "ps" / "bench.py"


@pytest.mark.slow
def test_bench_ps_prints_pulls_and_pushes_of_every_channel_and_contender(tmp_path: Path) -> None:
    words = [sys.executable, BENCH, "--quick", "--only", "no hash", "table", "memory", "ipc", "tcp", "shm"]
    done = preloaded.run([*words, "--json", tmp_path / "got.json"])
    assert done.returncode == 0, done.stderr
    pull, push = (done.stdout.split(f"### {op}\n")[1].split("###")[0] for op in ("pull", "push"))
    for text in (pull, push):
        table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"][2:]
        kinds = [cells[0] for cells in table]
        assert kinds == ["echo"] * 4 + ["no hash", "table", "memory", "ipc", "tcp", "shm", "ipc"]
        assert table[-1][1:5] == ["2", "2", "fp16", "4"]
        assert all(float(cell) > 0 for cells in table for cell in cells[5:10])
    lines = json.loads((tmp_path / "got.json").read_text())["lines"]
    assert len(lines) == 11
    assert all(
        line[op]["of_echo"] > 0 and line[op]["p99_ms"] >= line[op]["p50_ms"]
        for line in lines
        for op in line
        if op in ("pull", "push")
    )
