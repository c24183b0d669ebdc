"""A table that is far larger than what the coordinator may use is saved, resumed and moved to other servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tiny import JOB, write_tiny

from heterps.checkpoint import RowFolder, Snapshot, load, save
from heterps.config import Job, load_job
from heterps.launch.run_servers import run_servers
from heterps.ps.client.interface import JobClient
from heterps.ps.keys.dedup import make_lookup
from heterps.training.model.table_snapshots import load_table, save_table
from heterps.training.protocol.stage_tables import job_tables
from heterps.yamlfile import dump_yaml

DIM, NUM_ROWS, BATCH = 64, 120_000, 10_000
TABLE_BYTES = NUM_ROWS * DIM * 8  # values and the accumulator of Adagrad
MAY_USE = TABLE_BYTES // 4


def resident_bytes() -> int:
    """Memory of this process that the system cannot take back, as it can pages of files."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon:")).split()[1]) * 1024


@contextmanager
def growth() -> Iterator[list[int]]:
    """The most that this process grows by meanwhile, looked at every few milliseconds."""
    before, most, over = resident_bytes(), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.003):
            most[0] = max(most[0], resident_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()


@contextmanager
def client_of(job: Job, num_servers: int) -> Iterator[JobClient]:
    with run_servers(job, Path("run/job.yaml"), count=num_servers) as servers:
        client = servers.connect("coordinator", job_tables(job))
        try:
            yield client
        finally:
            client.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_no_process_but_the_servers_holds_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "train.parquet", 200)
    Path("job.yaml").write_text(
        JOB.replace("embedding_dim: 4", f"embedding_dim: {DIM}").replace("  test: test.parquet\n", "")
    )
    Path("run").mkdir()
    job = load_job("job.yaml")
    Path("run/job.yaml").write_text(dump_yaml(job))
    (spec,) = job_tables(job).sparse
    first = make_lookup(np.arange(BATCH), 2)
    with client_of(job, 2) as client:
        for begin in range(0, NUM_ROWS, BATCH):
            client.pull(spec.name, make_lookup(np.arange(begin, begin + BATCH), 2)).result()
        expected = client.pull(spec.name, first).result().copy()
        with growth() as grown:
            table = save_table(client, spec, in_place=True)
            path = save("run/checkpoints", Snapshot(0, 0, tables={spec.name: table}))
    assert grown[0] < MAY_USE, f"saving {TABLE_BYTES:,} bytes took {grown[0]:,}"
    assert len(list((path / "tables").glob("*.arrow"))) == 2, "a file a server"
    with client_of(job, 3) as client:
        with growth() as grown:
            load_table(client, spec, load(path).tables[spec.name])
        assert client.num_rows(spec.name) == NUM_ROWS
        found = client.pull(spec.name, make_lookup(np.arange(BATCH), 3), create=False).result()
        mine, theirs = (np.argsort(make_lookup(np.arange(BATCH), num).unique) for num in (3, 2))
        np.testing.assert_array_equal(found[mine], expected[theirs])
    assert grown[0] < MAY_USE, f"loading {TABLE_BYTES:,} bytes took {grown[0]:,}"
    assert RowFolder(Path("run/checkpoints")).has(f"{path.name}/tables/000-{spec.name}.1-000.arrow")
