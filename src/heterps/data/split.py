"""Hold rows of the training data out for validation: by the hash of a column, or of the row's place, or by time.

    row group --(the column that decides, or file name and row)--> a number of each row --< limit ?--> held out
                                                                                          else trained on

A row falls on the same side whenever and wherever it is read. How many rows of each row group are on a side is found
when the data is opened, from that one column, so that batches are located without decoding (see epoch.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import xxhash
from numba import njit
from numpy.typing import NDArray

from heterps.arrays import Mask
from heterps.config import Job, Split
from heterps.data.arrow import one_chunk
from heterps.data.decode import key_column
from heterps.data.feature_columns import times_of
from heterps.data.sources import Dataset, RowGroup, open_paths, spread_groups
from heterps.errors import DataError
from heterps.hashing import mix64

FIT_ROWS = 10_000_000
"""Number of times among which the newest share is found, if there are more rows."""
_READERS = 4
"""Number of row groups whose column is read at once."""


class Part:
    """One side of a split: the rows that are held out, or those that are trained on."""

    def __init__(self, split: Split, *, held_out: bool) -> None:
        assert split.newest is None or split.since is not None, "the time is found before: see fit_split"
        self.split = split
        self.held_out = held_out
        self.columns: tuple[str, ...] = () if split.column is None else (split.column,)

    def mask(self, group: RowGroup, table: Any) -> Mask:
        """Whether each row of a row group is on this side; `table` has the column that decides."""
        split = self.split
        if split.newest is not None:
            with np.errstate(invalid="ignore"):
                held_out = _times(group, table.column(split.newest)) >= (split.since or 0.0)
            return held_out if self.held_out else ~held_out
        if split.by is not None:
            numbers = key_column(one_chunk(table.column(split.by)), "split")
        else:
            name = group.file.path.rsplit("/", 1)[-1]
            numbers = _of_places(np.uint64(xxhash.xxh3_64_intdigest(name.encode())), group.first_row, group.num_rows)
        held_out = numbers < np.uint64(split.share * 2**64)
        return held_out if self.held_out else ~held_out

    def num_rows(self, groups: Sequence[RowGroup]) -> dict[RowGroup, int]:
        """The number of rows of each row group on this side."""

        def count(group: RowGroup) -> int:
            table = group.file.read(group.index, self.columns) if self.columns else None
            return int(np.count_nonzero(self.mask(group, table)))

        with ThreadPoolExecutor(_READERS) as pool:
            return dict(zip(groups, pool.map(count, groups), strict=True))

    def check(self, dataset: Dataset) -> None:
        """Raise DataError unless every file has the column that decides."""
        for file in dataset.files:
            if missing := [name for name in self.columns if name not in file.schema.names]:
                raise DataError(
                    f"{file.address}: data.validation is split by column {missing[0]}, which the file does not have. "
                    f"It has: {', '.join(file.schema.names[:40])}."
                )

    def is_empty(self, address: str) -> DataError:
        """The error for a side without any row."""
        side, remedy = ("held out", "Raise") if self.held_out else ("left to train on", "Lower")
        return DataError(
            f"{address}: no row is {side} by data.validation ({self.split.share:g} of the rows). {remedy} its share, "
            "or choose another column."
        )


def fit_split(job: Job) -> Job:
    """Return the job with the time from which on rows are held out, found on its training data if it is not given."""
    split = job.data.validation
    if not isinstance(split, Split) or split.newest is None or split.since is not None:
        return job
    dataset = open_paths(job.data, job.data.train)
    probe = Part(split.model_copy(update={"since": 0.0}), held_out=True)
    probe.check(dataset)
    times = np.concatenate(list(_all_times(spread_groups(dataset, FIT_ROWS), split.newest)))
    if not len(times):
        raise DataError(f"{dataset.files[0].address}: column {split.newest} has no time: every value is null.")
    since = float(np.quantile(times, 1 - split.share, method="higher"))
    fitted = split.model_copy(update={"since": since})
    return job.model_copy(update={"data": job.data.model_copy(update={"validation": fitted})})


def _all_times(groups: Iterable[RowGroup], column: str) -> Iterable[NDArray[np.float64]]:
    for group in groups:
        times = _times(group, group.file.read(group.index, (column,)).column(column))
        yield times[~np.isnan(times)]


def _times(group: RowGroup, column: Any) -> NDArray[np.float64]:
    try:
        return times_of(one_chunk(column))
    except (ValueError, NotImplementedError) as error:
        raise DataError(f"{group}: data.validation.newest needs a column of times: {error}.") from error


@njit(nogil=True, cache=True)
def _of_places(seed: np.uint64, first_row: int, num_rows: int) -> NDArray[np.uint64]:
    out = np.empty(num_rows, np.uint64)
    for i in range(num_rows):
        out[i] = mix64(mix64(np.uint64(first_row + i)) ^ seed)
    return out
