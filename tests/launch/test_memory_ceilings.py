"""Tables with a budget keep commands within it, a copy of it, and a constant, however many keys the data has.

What is served is in memory whole: an export has no budget.
Resident memory of real processes, against that of the same commands on data with few keys.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
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
SERVED_BYTES = 2 * NUM_ROWS * (4 * DIM + 17)
"""Of the rows of an export that is served: all of them are in memory once, with their keys and an index."""
SERVER = "servers: {count: 1}"
BOUNDS = {
    "eviction": f"tables: {{eviction: {{max_bytes: {BUDGET}}}}}",
    "tiers": f"tiers: {{memory_bytes: {BUDGET}, folder: .}}",
}
BOUNDS |= {f"{kind}, on a server": f"{bound}\n{SERVER}" for kind, bound in BOUNDS.items()}
TRAIN = ("train", "job.yaml", "--run", "run")
SERVE = ("serve", "export", "--port", "0")
TERMINATED = 143
PHASES = {
    "profile": ("profile", "job.yaml", "--out", "profile.json", "--budget", "2"),
    "train": TRAIN,
    "resume": (*TRAIN, "--resume"),
    "predict": ("predict", "run", "test.parquet", "--out", "scores.parquet"),
    "export": ("export", "run", "--to", "export"),
    "serve": SERVE,
}
SHORT_BUDGET, SHORT_DIM, SHORT_ROWS = 4_000_000, 128, 80_000
"""Of the test that always runs: a table of 166 MB without a budget."""
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="resident memory is read from /proc, which only Linux has"
)


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
        is_told = False
        while process.poll() is None:
            if words == SERVE and not is_told and "http://" in said.read_text():
                process.terminate()  # it has loaded all that it needs
                is_told = True
            if looks % 50 == 0:
                processes = children(process.pid)
            most, looks = max(most, *map(resident_bytes, processes)), looks + 1
            time.sleep(0.004)
    assert process.returncode == (TERMINATED if words == SERVE else 0), (words, said.read_text())
    return most


def peaks(
    folder: Path,
    bound: str,
    num_keys: int,
    num_rows: int = NUM_ROWS,
    dim: int = DIM,
    phases: Sequence[str] = (*PHASES,),
) -> dict[str, int]:
    """The peaks of phases on data with so many keys in a slot."""
    folder.mkdir()
    for name, rows in (("train", num_rows), ("test", 4000)):
        ids = np.random.default_rng(rows).integers(0, num_keys, (rows, 2))
        dense = np.random.default_rng(1).normal(size=(rows, 2))
        table = {"label": ids[:, 0] % 2, "a": dense[:, 0], "b": dense[:, 1], "s": ids[:, 0], "t": ids[:, 1]}
        pq.write_table(pa.table(table), folder / f"{name}.parquet", row_group_size=20_000)
    checkpoint = "checkpoint: {every_samples: 81920, full_every: 3}"
    job = (
        JOB.replace("embedding_dim: 4", f"embedding_dim: {dim}").replace("16\n", "2048\n", 1).replace("64\n", "40960\n")
    )
    text = f"{job}{bound}\n{checkpoint}\n"
    found = {}
    for phase in phases:
        (folder / "job.yaml").write_text(text.replace("2048\n", "2048\n  epochs: 2\n") if phase == "resume" else text)
        found[phase] = peak_bytes(PHASES[phase], folder)
    return found


def growth(few: dict[str, int], many: dict[str, int]) -> dict[str, int]:
    """By how many MB the peaks on data with many keys are above those with few."""
    return {phase: (many[phase] - few[phase]) // 10**6 for phase in few}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOUNDS)
def test_no_phase_takes_more_than_the_budget_twice_and_a_constant(tmp_path: Path, kind: str) -> None:
    few, many = peaks(tmp_path / "few", BOUNDS[kind], 100), peaks(tmp_path / "many", BOUNDS[kind], 1 << 40)
    assert CEILING < TABLE_BYTES / 2
    grown = growth(few, many)
    grown["serve"] -= SERVED_BYTES // 10**6
    assert max(grown.values()) < CEILING // 10**6, str(grown)


def test_a_server_that_trains_and_saves_stays_within_its_budget_twice_and_a_constant(tmp_path: Path) -> None:
    bound = f"tables: {{eviction: {{max_bytes: {SHORT_BUDGET}}}}}\n{SERVER}"
    few, many = (
        peaks(tmp_path / name, bound, num_keys, SHORT_ROWS, SHORT_DIM, ("train",))
        for name, num_keys in (("few", 100), ("many", 1 << 40))
    )
    ceiling = 2 * SHORT_BUDGET + SLACK
    assert ceiling < SHORT_ROWS * 2 * (16 + 8 * SHORT_DIM) * 0.6
    assert max(growth(few, many).values()) < ceiling // 10**6, str(growth(few, many))
