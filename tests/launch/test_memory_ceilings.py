"""Tables with a budget keep commands within it, a copy of it, and a constant, however many keys the data has.

Resident memory of real processes, against that of the same commands on data with few keys.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import JOB

BUDGET = 16_000_000
SLACK = 80_000_000
"""Of batches, row groups, the index of rows on disk, and what the allocator keeps."""
CEILING = 2 * BUDGET + SLACK
DIM, NUM_ROWS = 64, 250_000
TABLE_BYTES = 2 * NUM_ROWS * (16 + 8 * DIM)
"""What the table would take without a budget: a key is in the data once, with values and the state of Adagrad."""
BOUNDS = {
    "eviction": f"tables: {{eviction: {{max_bytes: {BUDGET}}}}}",
    "tiers": f"tiers: {{memory_bytes: {BUDGET}, folder: .}}",
}
TRAIN = ("train", "job.yaml", "--run", "run")
PHASES = {
    "profile": ("profile", "job.yaml", "--out", "profile.json", "--budget", "2"),
    "train": TRAIN,
    "resume": (*TRAIN, "--resume"),
    "predict": ("predict", "run", "test.parquet", "--out", "scores.parquet"),
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc"),
]


def resident_bytes(process: int) -> int:
    """Memory that the system cannot take back, as it can pages of files."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("RssAnon:")).split()[1]) * 1024
    except (OSError, StopIteration):
        return 0


def children(process: int) -> list[int]:
    found = [process]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == process:
            found += children(int(path.parent.name))
    return found


def peak_bytes(words: tuple[str, ...], folder: Path) -> int:
    """The most that one process of a command takes."""
    most = looks = 0
    said = folder / "said"
    command = [str(Path(sys.executable).parent / "heterps"), *words]
    with (
        said.open("w") as out,
        subprocess.Popen(command, cwd=folder, stdout=out, stderr=out) as process,
    ):
        while process.poll() is None:
            if looks % 50 == 0:
                processes = children(process.pid)
            most, looks = max(most, *map(resident_bytes, processes)), looks + 1
            time.sleep(0.004)
    assert process.returncode == 0, (words, said.read_text())
    return most


def peaks(folder: Path, bound: str, num_keys: int) -> dict[str, int]:
    """The peaks of all phases on data with so many keys in a slot."""
    folder.mkdir()
    for name, num_rows in (("train", NUM_ROWS), ("test", 4000)):
        ids = np.random.default_rng(num_rows).integers(0, num_keys, (num_rows, 2))
        dense = np.random.default_rng(1).normal(size=(num_rows, 2))
        table = {"label": ids[:, 0] % 2, "a": dense[:, 0], "b": dense[:, 1], "s": ids[:, 0], "t": ids[:, 1]}
        pq.write_table(pa.table(table), folder / f"{name}.parquet", row_group_size=20_000)
    checkpoint = "checkpoint: {every_samples: 81920, full_every: 3}"
    job = (
        JOB.replace("embedding_dim: 4", f"embedding_dim: {DIM}").replace("16\n", "2048\n", 1).replace("64\n", "40960\n")
    )
    text = f"{job}{bound}\n{checkpoint}\n"
    found = {}
    for phase, words in PHASES.items():
        (folder / "job.yaml").write_text(text.replace("2048\n", "2048\n  epochs: 2\n") if phase == "resume" else text)
        found[phase] = peak_bytes(words, folder)
    return found


@pytest.mark.parametrize("kind", BOUNDS)
def test_no_phase_takes_more_than_the_budget_twice_and_a_constant(tmp_path: Path, kind: str) -> None:
    few, many = peaks(tmp_path / "few", BOUNDS[kind], 100), peaks(tmp_path / "many", BOUNDS[kind], 1 << 40)
    growth = {phase: (many[phase] - few[phase]) // 10**6 for phase in few}  # MB
    assert CEILING < TABLE_BYTES / 2
    assert max(growth.values()) < CEILING // 10**6, str(growth)
