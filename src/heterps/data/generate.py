"""Write synthetic data sets to disk atomically.

    DIR/dataset.json            the teacher's AUC and log loss, seed, rows, distinct ids
        train/part-00000.parquet ...   files of 131,072 rows in row groups of 65,536
        test/part-00000.parquet ...

Threads write several files at once. The bytes depend only on the task, the seed and the numbers of rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from heterps.config.base import Record
from heterps.data.clicks import Clicks
from heterps.data.feed import Feed
from heterps.data.folder import INFO_NAME, new_dataset
from heterps.data.histories import Histories
from heterps.data.matches import Matches
from heterps.data.synthetic import TEST_FIRST_ROW
from heterps.data.task import Task
from heterps.data.words import Words
from heterps.errors import ConfigError
from heterps.yamlfile import read_model

ROWS_PER_GROUP = 65_536
ROWS_PER_FILE = 2 * ROWS_PER_GROUP
_BINS = 1 << 16

# The fastest to read of what was measured (uncompressed, lz4, snappy; plain, dictionary, delta), and the smallest.
_WRITER_OPTIONS = {"compression": "none", "use_dictionary": False}
_ID_ENCODING = "DELTA_BINARY_PACKED"

TASKS: dict[str, Callable[[int], Task]] = {
    "click": Clicks,
    "match": Matches,
    "words": Words,
    "feed": Feed,
    "history": Histories,
}


class SplitInfo(Record):
    """Statistics of the rows in train/ or test/."""

    rows: int
    files: int
    base_rate: float = Field(description="Mean of the label.")
    teacher_auc: float = Field(description="AUC of the teacher's own probabilities, which no model can beat.")
    teacher_log_loss: float
    distinct_ids: int


class DatasetInfo(Record):
    """The file `dataset.json` of a synthetic data set."""

    version: int = 1
    task: str = "click"
    seed: int
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
    task: str = "click",
    force: bool = False,
    num_threads: int | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> DatasetInfo:
    """Write a synthetic data set of one of TASKS to `folder`.

    `progress` is called, from any thread, with the number of rows just written. Raises ConfigError if `folder` is not
    empty; with `force`, a data set that heterps wrote is replaced. After an error or an interrupt `folder` is
    unchanged.
    """
    if task not in TASKS:
        raise ConfigError(f"there is no task {task!r}; choose one of: {', '.join(TASKS)}.")
    with new_dataset(folder, f"{rows + test_rows:,} rows (about 100 bytes each)", force=force) as partial_folder:
        drawing = TASKS[task](seed)
        write = partial(_write_split, partial_folder, drawing, num_threads or os.cpu_count() or 1, progress)
        info = DatasetInfo(
            task=task,
            seed=seed,
            possible_ids=drawing.possible_ids,
            train=write("train", 0, rows),
            test=write("test", TEST_FIRST_ROW, test_rows) if test_rows else None,
        )
        (partial_folder / INFO_NAME).write_text(info.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return info


# --- one split -------------------------------------------------------------------------------------------------------


@dataclass
class _TeacherStats:
    """AUC and log loss of the teacher, from histograms of its probability by label: mergeable, of constant size."""

    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, _BINS), np.int64))
    loss: float = 0.0

    def add(self, probability: NDArray[np.float64], label: NDArray[np.bool_]) -> None:
        bins = np.minimum((probability * _BINS).astype(np.int64), _BINS - 1)
        self.histogram += np.bincount(bins + _BINS * label, minlength=2 * _BINS).reshape(2, _BINS)
        self.loss -= float(np.log(np.where(label, probability, 1.0 - probability)).sum())

    def merge(self, other: _TeacherStats) -> None:
        self.histogram += other.histogram
        self.loss += other.loss

    @property
    def rows(self) -> int:
        return int(self.histogram.sum())

    @property
    def auc(self) -> float:
        """Share of (positive, negative) pairs in the right order; 0.5 if one label is absent."""
        negatives, positives = self.histogram.astype(np.float64)
        pairs = positives.sum() * negatives.sum()
        below = np.cumsum(negatives) - 0.5 * negatives  # pairs of one bin count half
        return float((positives * below).sum() / pairs) if pairs else 0.5


def _write_split(
    folder: Path,
    task: Task,
    num_threads: int,
    progress: Callable[[int], object],
    name: str,
    first_row: int,
    num_rows: int,
) -> SplitInfo:
    (folder / name).mkdir()
    seen = np.zeros(task.possible_ids, np.bool_)
    encoding = {column.name: _ID_ENCODING for column in task.schema if column.type == pa.int64()}

    def write_file(start: int) -> _TeacherStats:
        path = folder / name / f"part-{start // ROWS_PER_FILE:05d}.parquet"
        stats = _TeacherStats()
        stop = min(start + ROWS_PER_FILE, num_rows)
        with pq.ParquetWriter(path, task.schema, column_encoding=encoding, **_WRITER_OPTIONS) as writer:
            for begin in range(start, stop, ROWS_PER_GROUP):
                size = min(ROWS_PER_GROUP, stop - begin)
                drawn = task.draw(first_row + begin, size, seen)
                stats.add(drawn.probability, drawn.label)
                writer.write_table(drawn.table, row_group_size=ROWS_PER_GROUP)
                progress(size)
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
        base_rate=float(total.histogram[1].sum() / total.rows),
        teacher_auc=total.auc,
        teacher_log_loss=total.loss / total.rows,
        distinct_ids=int(seen.sum()),
    )
