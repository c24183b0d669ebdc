"""Data that was changed behind a run's back, through the real command: rows permuted in place, and flipped bits."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import heterps_here

from heterps.config import load_job
from heterps.data.reader import open_reader

CLUSTER = "cluster: {resources: {cpu: {usd_per_hour: 0.04, limit: 9}}, server_resource: cpu}\n"


def write_plainly(path: Path, table: pa.Table) -> None:
    """So that the sizes of columns do not depend on the order of rows."""
    pq.write_table(table, path, row_group_size=50, compression="none", use_dictionary=False)


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_rows_that_were_permuted_in_place_are_refused_when_they_are_read_again(tiny_job: Path, launcher: str) -> None:
    folder, job = tiny_job.parent, tiny_job.read_text() + CLUSTER + "workers: {channel: memory}\n"
    table = pq.read_table(folder / "train.parquet")
    write_plainly(folder / "train.parquet", table)
    order = open_reader(load_job(tiny_job)).order
    tiny_job.write_text(job)
    words = ("train", "job.yaml", "--run", "run", "--launcher", launcher)
    done = heterps_here(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    tiny_job.write_text(job.replace("batch_size: 16", "batch_size: 16\n  epochs: 2"))
    write_plainly(folder / "train.parquet", table.take(np.arange(200)[::-1]))
    assert open_reader(load_job(tiny_job)).order == order, "names, counts and sizes are the same"
    refused = heterps_here(*words, "--resume", cwd=folder)
    assert refused.returncode == 4, refused.stdout + refused.stderr
    assert "of data.train, counted over all files, holds other values than when this run first read it" in (
        " ".join(refused.stderr.split())
    )
    write_plainly(folder / "train.parquet", table)
    assert heterps_here(*words, "--resume", cwd=folder).returncode == 0


def test_every_flipped_bit_of_data_that_heterps_wrote_is_found(tmp_path: Path) -> None:
    made = heterps_here("data", "synth", "data", "--rows", 2000, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert heterps_here("data", "convert", "data/train", "converted", cwd=tmp_path).returncode == 0
    for path in (*(tmp_path / "data" / "train").glob("*.parquet"), *(tmp_path / "converted").glob("*.parquet")):
        good, column = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0).column(0)
        table = pq.read_table(path)
        first = column.data_page_offset
        generator = random.Random(0)
        num_seen = 0
        for _ in range(20):
            place = generator.randrange(first, first + column.total_compressed_size)
            path.write_bytes(good[:place] + bytes([good[place] ^ 1 << generator.randrange(8)]) + good[place + 1 :])
            described = heterps_here("data", "describe", str(path), cwd=tmp_path)
            num_seen += described.returncode == 4
            if described.returncode == 0:  # a bit of the page's header that nobody reads
                assert pq.read_table(path).equals(table)
        path.write_bytes(good)
        assert num_seen >= 18
