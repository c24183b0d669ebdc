"""Run by test_resident_memory.py in a process of its own: train and save a table ten times its budget, print bytes."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from heterps.checkpoint import Snapshot, TableRows, TableStream, save
from heterps.config import Eviction, Tiers
from heterps.ps import Adagrad, SparseTable
from heterps.ps.table.tiers import TieredTable

DIM, BATCH = 120, 2000
ROW_BYTES = 16 + 8 * DIM


def resident_bytes() -> int:
    """Memory of the process that the system cannot take back, as it can pages of files."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon:")).split()[1]) * 1024


class Peak(threading.Thread):
    """The most that was resident, looked at every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self._done = 0, threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.003):
            self.most = max(self.most, resident_bytes())

    def end(self) -> int:
        self._done.set()
        self.join()
        return self.most


def train(table: TieredTable, num_keys: int, num_batches: int) -> None:
    rng = np.random.default_rng(0)
    grads = np.ones((BATCH, DIM), np.float32)
    for begin in range(0, num_keys, BATCH):
        table.pull(np.arange(begin, begin + BATCH))
        table.step()
    for _ in range(num_batches):
        keys = rng.integers(0, num_keys, BATCH)
        table.pull(keys)
        table.push(keys, grads)
        table.step()


def save_table(table: TieredTable, folder: Path) -> None:
    parts = table.row_parts()

    def read() -> Iterator[TableRows]:
        return (TableRows(*rows[:3], {}, *rows[3:]) for rows in parts())

    save(folder, Snapshot(0, 0, tables={"t": TableStream(len(table), (DIM, DIM), read)}))


def main(folder: Path, budget: int) -> None:
    def make(memory_bytes: int) -> TieredTable:
        table = SparseTable(DIM, Adagrad(), eviction=Eviction(max_age=10**6))
        return TieredTable(table, Tiers(memory_bytes=memory_bytes, folder=str(folder)))

    small = make(1 << 20)
    train(small, 2 * BATCH, 2)  # kernels compile into memory too
    save_table(small, folder / "small")
    small.close()
    before = resident_bytes()
    table = make(budget)
    peak = Peak()
    peak.start()
    train(table, 10 * budget // ROW_BYTES, 40)
    trained = peak.end() - before
    peak = Peak()
    peak.start()
    save_table(table, folder / "large")
    saved = peak.end() - before
    sys.stdout.write(json.dumps({"rows": len(table), "trained": trained, "saved": saved, "counted": table.num_bytes}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
