"""Write synthetic data sets to disk atomically.

    DIR/dataset.json            how good the teacher is, seed, rows, distinct ids
        train/part-00000.parquet ...   files of 131,072 rows in row groups of 65,536; or .tsv, with a header
        test/part-00000.parquet ...

Threads write several files at once. The bytes depend only on the task, the seed, the skew and the numbers of rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from heterps.config.base import Record
from heterps.data.clicks import Clicks
from heterps.data.feed import FeedTask
from heterps.data.folder import INFO_NAME, new_dataset
from heterps.data.histories import Histories
from heterps.data.matches import Matches
from heterps.data.ratings import Ratings
from heterps.data.synthetic import TEST_FIRST_ROW
from heterps.data.task import Drawn, Task
from heterps.data.words import Words
from heterps.errors import ConfigError
from heterps.yamlfile import read_model

ROWS_PER_GROUP = 65_536
ROWS_PER_FILE = 2 * ROWS_PER_GROUP
_BINS = 1 << 16

# The fastest to read of what was measured (uncompressed, lz4, snappy; plain, dictionary, delta), and the smallest.
_WRITER_OPTIONS = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
_ID_ENCODING = "DELTA_BINARY_PACKED"

TASKS: dict[str, Callable[..., Task]] = {
    "click": Clicks,
    "match": Matches,
    "words": Words,
    "feed": FeedTask,
    "history": Histories,
    "ratings": Ratings,
}


class SplitInfo(Record):
    """Statistics of the rows in train/ or test/."""

    rows: int
    files: int
    base_rate: float = Field(description="Mean of the label.")
    teacher_auc: float | None = Field(description="AUC of the teacher's probabilities; null: the label is a number.")
    teacher_log_loss: float | None
    teacher_rmse: float | None = Field(None, description="RMSE of the teacher; null: the label is 0 or 1.")
    distinct_ids: int


class DatasetInfo(Record):
    """The file `dataset.json` of a synthetic data set."""

    version: int = 1
    task: str = "click"
    seed: int
    skew: float | None = Field(None, description="Zipf exponent of the popularity of ids; null: the task's own.")
    possible_ids: int
    train: SplitInfo
    test: SplitInfo | None


class _Task(Record):
    """The field that every `dataset.json` has, also that of images."""

    task: str = "click"


def load_info(folder: str | Path) -> DatasetInfo:
    return read_model(Path(folder) / INFO_NAME, DatasetInfo, what="description of a synthetic data set")


def find_dataset_info(source: str | Sequence[str]) -> DatasetInfo | None:
    """Read the `dataset.json` next to `source`, the train or test folder of synthetic data; None for other data."""
    folder = Path(source).parent if isinstance(source, str) else None
    if folder is None or not (folder / INFO_NAME).is_file():
        return None
    about = read_model(folder / INFO_NAME, _Task, what="description of a data set")
    return load_info(folder) if about.task in TASKS else None


def generate(
    folder: str | Path,
    rows: int,
    test_rows: int,
    seed: int = 0,
    *,
    skew: float | None = None,
    task: str = "click",
    files: str = "parquet",
    force: bool = False,
    num_threads: int | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> DatasetInfo:
    """Write a synthetic data set of one of TASKS to `folder`, in `files` of one of FILES.

    `skew` is the Zipf exponent of the popularity of ids, the task's own if None; of ratings, that of items.
    `progress` is called, from any thread, with the number of rows just written. Raises ConfigError if `folder` is not
    empty; with `force`, a data set that heterps wrote is replaced. After an error or an interrupt `folder` is
    unchanged.
    """
    if task not in TASKS:
        raise ConfigError(f"there is no task {task!r}; choose one of: {', '.join(TASKS)}.")
    if files not in FILES:
        raise ConfigError(f"files of {files!r} cannot be written; choose one of: {', '.join(FILES)}.")
    with new_dataset(folder, f"{rows + test_rows:,} rows (about 100 bytes each)", force=force) as partial_folder:
        drawing = TASKS[task](seed) if skew is None else TASKS[task](seed, skew)
        write = partial(_write_split, partial_folder, drawing, files, num_threads or os.cpu_count() or 1, progress)
        info = DatasetInfo(
            task=task,
            seed=seed,
            skew=skew,
            possible_ids=drawing.possible_ids,
            train=write("train", 0, rows),
            test=write("test", TEST_FIRST_ROW, test_rows) if test_rows else None,
        )
        (partial_folder / INFO_NAME).write_text(info.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return info


# --- one split -------------------------------------------------------------------------------------------------------


@dataclass
class _TeacherStats:
    """How good the teacher is: sums, and histograms of its probability by label; mergeable, of constant size."""

    rows: int = 0
    labels: float = 0.0  # their sum
    squares: float = 0.0  # of the teacher's errors
    loss: float = 0.0
    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, _BINS), np.int64))

    def add(self, drawn: Drawn) -> None:
        expected, label = drawn.expected, drawn.label
        self.rows += len(label)
        self.labels += float(label.sum())
        self.squares += float(np.square(expected - label).sum())
        if label.dtype == np.bool_:
            bins = np.minimum((expected * _BINS).astype(np.int64), _BINS - 1)
            self.histogram += np.bincount(bins + _BINS * label.astype(np.int64), minlength=2 * _BINS).reshape(2, _BINS)
            self.loss -= float(np.log(np.where(label, expected, 1.0 - expected)).sum())

    def merge(self, other: _TeacherStats) -> None:
        self.rows += other.rows
        self.labels += other.labels
        self.squares += other.squares
        self.loss += other.loss
        self.histogram += other.histogram

    def fields(self) -> dict[str, float | None]:
        """The fields of SplitInfo that are about the label."""
        is_binary = bool(self.histogram.any())
        return {
            "base_rate": self.labels / self.rows,
            "teacher_auc": self._auc if is_binary else None,
            "teacher_log_loss": self.loss / self.rows if is_binary else None,
            "teacher_rmse": None if is_binary else (self.squares / self.rows) ** 0.5,
        }

    @property
    def _auc(self) -> float:
        """Share of (positive, negative) pairs in the right order; 0.5 if one label is absent."""
        negatives, positives = self.histogram.astype(np.float64)
        pairs = positives.sum() * negatives.sum()
        below = np.cumsum(negatives) - 0.5 * negatives  # pairs of one bin count half
        return float((positives * below).sum() / pairs) if pairs else 0.5


def _write_split(
    folder: Path,
    task: Task,
    files: str,
    num_threads: int,
    progress: Callable[[int], object],
    name: str,
    first_row: int,
    num_rows: int,
) -> SplitInfo:
    (folder / name).mkdir()
    seen = np.zeros(task.possible_ids, np.bool_)

    def write_file(start: int) -> _TeacherStats:
        stats = _TeacherStats()
        stop = min(start + ROWS_PER_FILE, num_rows)

        def tables() -> Iterable[Any]:
            for begin in range(start, stop, ROWS_PER_GROUP):
                size = min(ROWS_PER_GROUP, stop - begin)
                drawn = task.draw(first_row + begin, size, seen)
                stats.add(drawn)
                yield drawn.table
                progress(size)

        FILES[files](folder / name / f"part-{start // ROWS_PER_FILE:05d}.{files}", task.schema, tables())
        return stats

    total = _TeacherStats()
    starts = range(0, num_rows, ROWS_PER_FILE)
    pool = ThreadPoolExecutor(min(num_threads, len(starts)), thread_name_prefix="generate")
    try:
        for stats in pool.map(write_file, starts):  # in order of files, so that sums do not depend on threads
            total.merge(stats)
    finally:
        pool.shutdown(cancel_futures=True)
    return SplitInfo(
        rows=total.rows,
        files=len(starts),
        distinct_ids=int(seen.sum()),
        **total.fields(),
    )


# --- files -----------------------------------------------------------------------------------------------------------


def _write_parquet(path: Path, schema: Any, tables: Iterable[Any]) -> None:
    encoding = {column.name: _ID_ENCODING for column in schema if column.type == pa.int64()}
    with pq.ParquetWriter(path, schema, column_encoding=encoding, **_WRITER_OPTIONS) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=ROWS_PER_GROUP)


def _write_tsv(path: Path, schema: Any, tables: Iterable[Any]) -> None:
    """Write a line of names, then the rows: an empty value is a null, and items of a list have a | between them."""
    options = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with path.open("wb") as file:
        file.write("\t".join(schema.names).encode() + b"\n")
        for table in tables:
            columns = [_as_text(column) if pa.types.is_list(column.type) else column for column in table.columns]
            pa_csv.write_csv(pa.table(columns, names=schema.names), file, options)


def _as_text(lists: Any) -> Any:
    words = [pa.ListArray.from_arrays(c.offsets, c.values.cast(pa.string())) for c in lists.chunks]
    return pc.binary_join(pa.chunked_array(words), "|")


FILES: dict[str, Callable[[Path, Any, Iterable[Any]], None]] = {"parquet": _write_parquet, "tsv": _write_tsv}
