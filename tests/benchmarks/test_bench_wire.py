"""The benchmark of the wire runs, and prints every line that its README explains."""

from __future__ import annotations

import sys
from pathlib import Path

import preloaded

FOLDER = Path(__file__).parents[2] / "benchmarks" / "wire"


def test_bench_wire_prints_every_carrier_alone_and_four_under_way() -> None:
    done = preloaded.run([sys.executable, FOLDER / "bench.py", "--quick"])
    assert done.returncode == 0, done.stderr
    table = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")][2:]
    lines = [(cells[0].strip(), int(cells[1])) for cells in table]
    carriers = [(carrier, num) for carrier in ("memory", "raw ipc", "ipc", "tcp", "shm") for num in (1, 4)]
    assert lines == [("copy there and back", 1), *carriers]
    assert all(float(cell.replace(",", "")) > 0 for cells in table for cell in cells[2:])
