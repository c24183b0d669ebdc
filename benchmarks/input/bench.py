"""How fast is data read, from which format and from where? See README.md beside this file.

Every figure is rows a second of one pass over the same Criteo-like rows: a label, 13 numbers, 26 hexadecimal ids.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import torch
import xxhash

from heterps.config import Format, Schema, Storage
from heterps.data.convert import convert
from heterps.data.prefetch import Prefetch
from heterps.data.reader import Reader
from heterps.data.sources import Dataset, open_dataset

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "data"))

SCHEMA = Schema()
COLUMNS = [SCHEMA.label, *SCHEMA.dense, *SCHEMA.slots]
BATCH = 4096
FORMATS = {
    "Parquet": ("parquet", Format()),
    "CSV": ("csv", Format()),
    "CSV, gzip": ("csv.gz", Format()),
    "JSON lines": ("jsonl", Format()),
    "Criteo TSV": ("criteo", Format(kind="criteo")),
}
DELAY_S, COMPUTE_S = 0.02, 0.02


# --- data ------------------------------------------------------------------------------------------------------------


def make_rows(num_rows: int) -> Any:
    draw = np.random.default_rng(0)
    columns: dict[str, Any] = {"label": pa.array((draw.random(num_rows) < 0.25).astype(np.int64))}
    for i, name in enumerate(SCHEMA.dense):
        columns[name] = pa.array(draw.integers(0, 10 ** (1 + i % 5), num_rows), mask=draw.random(num_rows) < 0.2)
    for name in SCHEMA.slots:
        ids = np.minimum(draw.zipf(1.2, num_rows), 10**6).astype(np.uint32) * np.uint32(2654435761)
        columns[name] = pa.array(np.char.mod("%08x", ids), mask=draw.random(num_rows) < 0.05)
    return pa.table(columns)


def write_all(table: Any, folder: Path) -> None:
    """Two files of each format, so that two workers have one each."""
    half = table.num_rows // 2
    for number, part in enumerate((table.slice(0, half), table.slice(half))):
        name = str(folder / f"{number}")
        pq.write_table(part, f"{name}.parquet", row_group_size=65_536, compression="zstd")
        csv.write_csv(part, f"{name}.csv", csv.WriteOptions(quoting_style="none"))
        Path(f"{name}.csv.gz").write_bytes(gzip.compress(Path(f"{name}.csv").read_bytes(), 1))
        options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        csv.write_csv(part, f"{name}.criteo", options)
        with open(f"{name}.jsonl", "w") as out:
            for row in part.to_pylist():
                out.write(json.dumps({key: value for key, value in row.items() if value is not None}) + "\n")


# --- readers ---------------------------------------------------------------------------------------------------------


def read_ours(datasets: list[Dataset]) -> int:
    """Read data sets as workers do, a thread each: decoded, keys hashed, shuffled, in batches."""

    def read(dataset: Dataset) -> int:
        return sum(len(batch) for batch, _ in Reader(dataset, SCHEMA, batch_size=BATCH).read())

    with ThreadPoolExecutor(len(datasets)) as pool:
        return sum(pool.map(read, datasets))


def scan_arrow(paths: list[str], suffix: str) -> int:
    """Arrow's own scan: the columns in memory, nothing hashed, shuffled or put into batches."""
    if suffix == "criteo":
        names = csv.ReadOptions(column_names=COLUMNS)
        convert_options = csv.ConvertOptions(column_types={name: pa.string() for name in SCHEMA.slots})
        kind: Any = ds.CsvFileFormat(
            csv.ParseOptions(delimiter="\t"), read_options=names, convert_options=convert_options
        )
    else:
        kind = {"parquet": "parquet", "jsonl": "json"}.get(suffix, "csv")
    source = ds.dataset(paths, format=kind)
    return sum(batch.num_rows for batch in source.to_batches(columns=COLUMNS, use_threads=pa.cpu_count() > 1))


class ArrowBatches(torch.utils.data.IterableDataset[Any]):
    """What one writes for a DataLoader: Arrow's batches as tensors, each id hashed."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        paths = self._paths if worker is None else self._paths[worker.id :: worker.num_workers]
        source = ds.dataset(paths, format="parquet")
        for batch in source.to_batches(columns=COLUMNS, batch_size=BATCH, use_threads=False):
            dense = [batch.column(name).fill_null(0).to_numpy(zero_copy_only=False) for name in SCHEMA.dense]
            ids = [[_hash(value) for value in batch.column(name).to_pylist()] for name in SCHEMA.slots]
            label = torch.tensor(batch.column("label").to_numpy())
            yield torch.from_numpy(np.stack(dense, 1).astype(np.float32)), torch.tensor(ids).T, label


def _hash(value: str | None) -> int:
    return xxhash.xxh3_64_intdigest((value or "").encode()) >> 1


def load_torch(paths: list[str], workers: int) -> int:
    loader = torch.utils.data.DataLoader(ArrowBatches(paths), batch_size=None, num_workers=workers)
    return sum(len(label) for _, _, label in loader)


# --- figures ---------------------------------------------------------------------------------------------------------


@contextmanager
def cores(number: int) -> Iterator[None]:
    """Run on so many cores only: all threads of this process, also those that Arrow has started before."""
    allowed = os.sched_getaffinity(0)
    _stay_on(set(sorted(allowed)[:number]))
    pa.set_cpu_count(number)
    try:
        yield
    finally:
        _stay_on(allowed)


def _stay_on(chosen: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), chosen)


def rates(reads: Sequence[Callable[[], int]], repeats: int) -> list[float]:
    """Rows a second of several ways to read: the best of a few passes of each, in turns."""
    best = [0.0] * len(reads)
    for _ in range(repeats):
        for number, read in enumerate(reads):
            begin = time.perf_counter()
            rows = read()
            best[number] = max(best[number], rows / (time.perf_counter() - begin))
    return best


def show_formats(folder: Path, repeats: int) -> None:
    print("\n| format | cores | heterps | Arrow's scan | of it | torch DataLoader |\n|---|---|---|---|---|---|")
    for name, (suffix, options) in FORMATS.items():
        paths = [str(folder / f"{i}.{suffix}") for i in range(2)]
        for number in (1, 2):
            split = [paths] if number == 1 else [[path] for path in paths]
            opened = [open_dataset(some, options) for some in split]
            with cores(number):
                ours, arrow = rates([partial(read_ours, opened), partial(scan_arrow, paths, suffix)], repeats)
                (torch_rate,) = rates([partial(load_torch, paths, number)], 1) if suffix == "parquet" else [0.0]
            of_torch = f"{torch_rate:,.0f}" if torch_rate else ""
            print(f"| {name} | {number} | {ours:,.0f} | {arrow:,.0f} | {100 * ours / arrow:.0f} % | {of_torch} |")


def show_convert(folder: Path, repeats: int) -> None:
    print("\n| `heterps data convert` | rows/s |\n|---|---|")
    for name, pattern in (("Criteo TSV", "*.criteo"), ("CSV, gzip", "*.csv.gz")):
        options = Format(kind="criteo") if "Criteo" in name else Format()
        (figure,) = rates([partial(convert_all, folder, pattern, options)], repeats)
        print(f"| {name} | {figure:,.0f} |")


def convert_all(folder: Path, pattern: str, options: Format) -> int:
    return convert(str(folder / pattern), folder / "converted", options=options, force=True).rows


def train_on(dataset: Dataset, depth: int) -> int:
    """Take batches as a model that needs COMPUTE_S for each would; `depth` of them are read ahead."""
    batches = (batch for batch, _ in Reader(dataset, SCHEMA, batch_size=BATCH).read())
    rows = 0
    with Prefetch(batches, depth) if depth else nullcontext(batches) as source:
        for batch in source:
            time.sleep(COMPUTE_S)
            rows += len(batch)
    return rows


def show_storage(folder: Path) -> None:
    from s3 import s3_server
    from webhdfs import name_node

    print(f"\nAn answer takes {1000 * DELAY_S:.0f} ms, a model {1000 * COMPUTE_S:.0f} ms for {BATCH:,} rows.\n")
    print("| where | read ahead | rows/s |\n|---|---|---|")
    with s3_server() as s3, name_node(folder, delay_s=DELAY_S) as host:
        s3.put("data", folder)
        s3.behaviour.delay_s = DELAY_S
        places = {
            "this machine": open_dataset(str(folder)),
            "S3": open_dataset("s3://data/*.parquet", storage=Storage(endpoint=s3.endpoint)),
            "WebHDFS": open_dataset(f"{host}/*.parquet"),
        }
        for name, dataset in places.items():
            for depth in (0, 4):
                (figure,) = rates([partial(train_on, dataset, depth)], 2)
                print(f"| {name} | {f'{depth} batches' if depth else 'no'} | {figure:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    asked = parser.parse_args()
    num_rows, repeats = (10_000, 1) if asked.quick else (asked.rows, 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        table = make_rows(num_rows)
        (folder / "formats").mkdir()
        write_all(table, folder / "formats")
        read_ours([open_dataset(str(folder / "formats" / "0.csv"))])  # compiles the kernels
        show_formats(folder / "formats", repeats)
        show_convert(folder / "formats", repeats)
        (folder / "remote").mkdir()
        for i in range(4):
            part = table.slice(i * 30_000, min(30_000, num_rows))
            pq.write_table(part, folder / f"remote/{i}.parquet", row_group_size=10_000) if part.num_rows else None
        show_storage(folder / "remote")


if __name__ == "__main__":
    main()
