"""Predict: the scores of data sets by a trained model, row group by row group, in the order of the rows.

    row group --read--> Arrow table --decode--> batches --model--> scores ---.
        |                    '---- columns that are kept ----------------------> table of results --> out.parquet
        '-- several row groups at a time, each on a thread with a model of its own (weights copied, rows shared)

A row that the schema skips, because a value is missing, has no score: null. An id without a row in its table reads the
row's initial values, as in training, and is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.checkpoint.saved_rows import AskedKeys
from heterps.config import Format, Job, Storage
from heterps.data.columns import check_columns, is_list
from heterps.data.decode import Block, DecodeCounts, Decoder
from heterps.data.parallel import in_order
from heterps.data.pick import pick
from heterps.data.sources import Dataset, RowGroup
from heterps.errors import ConfigError, DataError
from heterps.serving.vectors import VectorsById
from heterps.threads import torch_threads
from heterps.training.model.in_use import ModelInUse, SavedModel
from heterps.training.model.start import tables_of_slot

BATCH_ROWS = 4096
ROW = "row"
"""Name of the column with the number of a row in its data set."""


@dataclass(frozen=True)
class Kept:
    """What a table of results has beside the scores: columns of the data, and the keys of the slots."""

    columns: tuple[str, ...] = ()
    keys: bool = False


@dataclass(frozen=True)
class PredictCounts:
    """What was met while predicting."""

    decoded: DecodeCounts
    asked: Mapping[str, AskedKeys]  # by table


class Predictor(Protocol):
    """A model that scores row groups. Its methods are called by several threads."""

    version: str
    format: Format  # of the data, where nothing else is said
    storage: Storage
    text_columns: Sequence[str]  # those whose ids are text

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the data that it reads."""

    def check(self, dataset: Dataset) -> None:
        """Raise DataError unless the data set has these columns with valid types."""

    def scores(self, group: RowGroup, table: pa.Table, *, keys: bool) -> dict[str, Any]:
        """The columns of scores of a row group, and of its keys if they are asked for."""

    def counts(self) -> PredictCounts: ...

    def vectors_by_id(self, slot: str, table: str | None = None) -> VectorsById:
        """The vectors of a slot's ids, to ask for several times."""


class CheckpointPredictor:
    """The model of a checkpoint, as `Predictor` needs it. Close it at the end."""

    def __init__(self, job: Job, checkpoint: Path, batch_rows: int = BATCH_ROWS) -> None:
        self.format, self.storage = job.data.format, job.data.storage
        self.text_columns: Sequence[str] = job.data.columns.text_columns
        self.model = SavedModel(job, checkpoint)
        self.version = checkpoint.name.lstrip("0") or "0"
        self.schema = job.data.columns.without_labels()
        self.batch_rows = batch_rows
        self._ragged = False
        self._counts: list[DecodeCounts] = []
        self._of_thread = threading.local()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return self.schema.sources(self.schema.decoded_columns)

    def check(self, dataset: Dataset) -> None:
        self._ragged = check_columns(dataset, self.schema)

    def scores(self, group: RowGroup, table: pa.Table, *, keys: bool) -> dict[str, Any]:
        decoder = Decoder(self.schema, self._ragged)
        block = decoder.decode_table(group, table)
        self._counts.append(decoder.counts)
        found = _columns(self._predicted(block), group.num_rows, block.rows)
        return {**(self._keys(block, table) if keys else {}), **found}

    def counts(self) -> PredictCounts:
        return PredictCounts(DecodeCounts.total(self._counts), self.model.rows.asked)

    def vectors_by_id(self, slot: str, table: str | None = None) -> VectorsById:
        tables = {name: self.model.rows.tables[name] for name in tables_of_slot(self.model.model, slot)}
        return VectorsById(self.schema, tables, slot, table)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.model.__exit__()

    def _predicted(self, block: Block) -> dict[str, NDArray[np.float32]]:
        """The scores of the rows of a block that are not skipped, batch after batch."""
        if not hasattr(self._of_thread, "model"):
            self._of_thread.model = self.model.copy()
        model: ModelInUse = self._of_thread.model
        starts = range(0, max(1, len(block.rows)), self.batch_rows)
        batches = (pick(self.schema, [(block, block.rows[at : at + self.batch_rows])]) for at in starts)
        parts = [model.predict(batch) for batch in batches]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _keys(self, block: Block, table: pa.Table) -> dict[str, Any]:
        """The keys of the slots: of one id a number, of lists a list of numbers."""
        names, num = self.schema.slots, len(block.label)
        if block.offsets is None:
            keys = block.keys.reshape(num, len(names))
            return {f"key_{name}": pa.array(np.ascontiguousarray(keys[:, s])) for s, name in enumerate(names)}
        slots = pick(self.schema, [(block, np.arange(num))]).slots
        found = {}
        for name in names:
            bags = slots.select([name])
            lists = any(is_list(table.column(source).type) for source in self.schema.sources([name]))
            keys = pa.array(bags.keys)
            found[f"key_{name}"] = pa.LargeListArray.from_arrays(pa.array(bags.offsets), keys) if lists else keys
        return found


def _columns(scores: Mapping[str, NDArray[np.float32]], num_rows: int, rows: NDArray[np.int64]) -> dict[str, Any]:
    """The scores of `rows` as columns of all rows; null for the others. Several scores a row are a list."""
    skipped = np.ones(num_rows, np.bool_)
    skipped[rows] = False
    found = {}
    for name, values in scores.items():
        whole = np.zeros((num_rows, *values.shape[1:]), np.float32)
        whole[rows] = values
        if values.ndim == 1:
            found[name] = pa.array(whole, mask=skipped if skipped.any() else None)
        else:
            mask = pa.array(skipped) if skipped.any() else None
            found[name] = pa.FixedSizeListArray.from_arrays(pa.array(whole.reshape(-1)), whole.shape[1], mask=mask)
    return found


def check_kept(dataset: Dataset, kept: Kept) -> None:
    """Raise ConfigError unless the data set has the columns that are to be kept."""
    there = dataset.files[0].schema.names
    if missing := [name for name in kept.columns if name not in there]:
        raise ConfigError(
            f"{dataset.files[0].address} has no column {', '.join(missing)} to keep. It has: {', '.join(there[:40])}."
        )
    if taken := [name for name in kept.columns if name == ROW or name.startswith("score")]:
        raise ConfigError(f"the column {taken[0]} of the data has the name of one of the results: do not keep it.")


def predict_groups(
    predictor: Predictor, dataset: Dataset, kept: Kept = Kept(), *, num_threads: int = 1
) -> Iterator[pa.Table]:
    """Yield a table of results for each row group of a data set, in their order: row, kept columns, keys, scores."""
    predictor.check(dataset)
    check_kept(dataset, kept)
    needed = tuple(dict.fromkeys((*predictor.columns, *kept.columns)))
    first_rows = dict(zip(dataset.files, _starts(dataset), strict=True))

    def results(group: RowGroup) -> pa.Table:
        table = group.file.read(group.index, needed)
        scores = predictor.scores(group, table, keys=kept.keys)
        first = first_rows[group.file] + group.first_row
        numbers = pa.array(np.arange(first, first + group.num_rows))
        return pa.table({ROW: numbers, **{name: table.column(name) for name in kept.columns}, **scores})

    groups = dataset.row_groups or (RowGroup(dataset.files[0], 0, 0, 0),)  # no rows have no scores, but columns
    num_threads = min(num_threads, len(groups))
    if num_threads == 1:
        yield from map(results, groups)
        return
    with torch_threads(1):
        yield from in_order(results, groups, num_threads, "predict")


def _starts(dataset: Dataset) -> Sequence[int]:
    """The number of rows before each file."""
    counts = [sum(file.group_rows) for file in dataset.files]
    return [sum(counts[:i]) for i in range(len(counts))]


def first_rows(tables: Iterator[pa.Table], num_rows: int) -> pa.Table:
    """The first rows of several tables, no more of which are made than needed."""
    found: list[pa.Table] = []
    for table in tables:
        found.append(table.slice(0, num_rows - sum(part.num_rows for part in found)))
        if sum(part.num_rows for part in found) >= num_rows:
            break
    if not found:
        raise DataError("the data set is empty: no file holds a row.")
    return pa.concat_tables(found)
