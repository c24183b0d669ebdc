"""What do several workers of one machine spend on reading, with and without sharing what they decode? See README.md.

Each worker is a process with the Feed of a worker of the first stage in BSP, which has a part of every batch. They take
batch after batch together, as rounds do. Figures are CPU seconds of all processes for one pass over the data.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from bench import make_rows

from heterps.config import Job
from heterps.data.reader import open_reader
from heterps.training.protocol.layout import Layout, StageLayout, worker_name
from heterps.training.protocol.messages import ALL_LANES, Go
from heterps.training.worker.feed import Feed


def read(number: int, count: int, job: dict[str, Any], folder: str, together: Barrier, spent: Any) -> None:
    """Take every batch of an epoch as worker `number` of `count`, and tell the CPU seconds that it took."""
    read_job = Job.model_validate(job)
    reader = open_reader(read_job)
    workers = tuple(worker_name(0, other) for other in range(count))
    layout = Layout((StageLayout(0, 0, "cpu", workers),), count)
    feed = Feed(read_job, reader, ("dense", "slots"), folder)
    feed.follow(layout, layout.lanes_of(workers[number]), None)  # type: ignore[arg-type]
    feed.take(Go(ALL_LANES, 0, 0, 1, 0))  # compiles
    together.wait()
    began, batch = time.process_time(), 0
    while feed.take(Go(ALL_LANES, batch, 0, 0, batch)) is not None:
        batch += 1
        together.wait()
    spent[number] = time.process_time() - began
    feed.close()


def measure(job: dict[str, Any], count: int, folder: str) -> float:
    """CPU seconds of all workers for one pass."""
    context = mp.get_context("spawn")
    spent, together = context.Array("d", count), context.Barrier(count)
    arguments = [(number, count, job, folder, together, spent) for number in range(count)]
    processes = [context.Process(target=read, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sum(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = make_rows(options.rows)
        pq.write_table(rows, Path(folder) / "rows.parquet", row_group_size=16_384, compression="zstd")
        job = {"data": {"train": f"{folder}/rows.parquet", "batch_size": 4096}}
        print("| workers | each decodes, CPU s | decoded once, CPU s |\n|---|---|---|")
        for count in options.workers:
            alone, shared = measure(job, count, ""), measure(job, count, f"{folder}/shared")
            print(f"| {count} | {alone:.2f} | {shared:.2f} |", flush=True)


if __name__ == "__main__":
    main()
