"""Data that is in memory, as Parquet files: from there on it is read as any other data, by every process of a run.

    pandas, polars, Arrow, a dict of arrays --as_tables--> Arrow table --+
    a DataLoader: its batches, once and in its order --as_tables---------+--write_tables--> <digest>.parquet

Batches of a DataLoader are written as they come: no more than a row group of them is in memory. The name of a file is a
digest of its bytes. So equal data is written once, and a resumed run finds what it was trained on, or is told that the
data is another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from fsspec.implementations.local import LocalFileSystem

from heterps.data.convert import ROWS_PER_GROUP
from heterps.data.file import DataFile
from heterps.errors import DataError, StorageError

TAKEN = "a path, a DataFrame of pandas or polars, an Arrow table, a dict of columns, or a torch DataLoader"


def is_loader(data: object) -> bool:
    """Tell whether `data` is a torch DataLoader, without importing torch."""
    return any(f"{kind.__module__}.{kind.__name__}".startswith("torch.utils.data") for kind in type(data).__mro__)


def as_tables(
    data: Any, *, label: str = "label", dense: Sequence[str] = (), slots: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """Iterate over the rows of a frame, a table, a dict of columns or a DataLoader, whose batches are a table each.

    The batches of a DataLoader are dicts of columns, or tuples (inputs ..., label): every column of a tensor of floats
    is then a dense column, every column of a tensor of integers a slot. These have the given names, or are called
    dense_0, dense_1, slot_0 and so on.
    """
    if is_loader(data):
        return (_from_batch(batch, label, dense, slots) for batch in data)
    return iter([_from_frame(data)])


def _from_frame(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, Mapping):
        return _from_columns(data)
    try:
        if hasattr(data, "iloc"):  # pandas; its index is no column
            return pa.Table.from_pandas(data, preserve_index=False)
        if hasattr(data, "to_arrow"):  # polars
            return data.to_arrow()
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"this {type(data).__name__} cannot become an Arrow table: {_first_line(error)}.") from None
    hint = " Collect it first: frame.collect()." if hasattr(data, "collect") else ""
    raise DataError(f"data is {TAKEN}; got a {type(data).__name__}.{hint}")


def write_tables(tables: Iterable[pa.Table], folder: Path) -> Path:
    """Write the rows of tables to one file in `folder`, under the digest of what is written; return its path.

    Columns have the types of the first row group. A later value that does not fit them raises DataError.
    """
    draft = folder / f".{os.getpid()}-{id(tables)}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_groups(_row_groups(tables), draft)
        digest = xxhash.xxh3_128()
        with draft.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
        path = folder / f"{digest.hexdigest()}.parquet"
        os.replace(draft, path)
    except OSError as error:
        raise StorageError(f"{folder}: the data cannot be written: {error.strerror or error}.") from error
    except pa.ArrowException as error:
        raise DataError(f"the data cannot be written as Parquet: {_first_line(error)}.") from None
    finally:
        draft.unlink(missing_ok=True)
    return path


def join_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """Return all rows as one table; raises DataError if the types of a column differ."""
    try:
        return pa.concat_tables(tables, promote_options="permissive").replace_schema_metadata()
    except pa.ArrowException as error:
        raise DataError(f"{_first_line(error)}. Give every value of a column the same type.") from None


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join small tables until they fill a row group; a large one stays whole."""
    waiting: list[pa.Table] = []
    num_rows = 0
    for table in tables:
        waiting.append(table)
        num_rows += table.num_rows
        if num_rows >= ROWS_PER_GROUP:
            yield join_tables(waiting)
            waiting, num_rows = [], 0
    if num_rows:
        yield join_tables(waiting)


def _write_groups(groups: Iterator[pa.Table], path: Path) -> None:
    if (first := next(groups, None)) is None:
        raise DataError("the data has no rows, so there is nothing to train on.")
    with pq.ParquetWriter(path, first.schema, compression="zstd", write_page_checksum=True) as writer:
        for group in chain([first], groups):
            writer.write_table(_cast(group, first.schema), row_group_size=ROWS_PER_GROUP)


def _cast(table: pa.Table, schema: Any) -> pa.Table:
    if sorted(table.column_names) != sorted(schema.names):
        names = ", ".join(sorted({*table.column_names} ^ {*schema.names}))
        raise DataError(f"every batch of the DataLoader must have the same columns, but some lack {names}.")
    return pa.table([_cast_column(table.column(field.name), field) for field in schema], schema=schema)


def _cast_column(column: Any, field: Any) -> Any:
    try:
        return column.cast(field.type)
    except pa.ArrowException:
        raise DataError(
            f"column {field.name}: later batches of the DataLoader have {column.type}, but the first "
            f"{ROWS_PER_GROUP:,} rows have {field.type}. Give every value of it the same type."
        ) from None


class TableFile(DataFile):
    """A table in memory, which is read as a file is."""

    title = "table"

    def __init__(self, table: pa.Table, address: str = "the data") -> None:
        super().__init__(address, LocalFileSystem(), "")
        self._table = table
        self.schema = table.schema
        self.group_rows = [min(ROWS_PER_GROUP, table.num_rows - at) for at in range(0, table.num_rows, ROWS_PER_GROUP)]

    def load(self, row_group: int, columns: list[str]) -> pa.Table:
        return self._table.select(columns).slice(row_group * ROWS_PER_GROUP, ROWS_PER_GROUP)


def _from_columns(columns: Mapping[str, Any]) -> pa.Table:
    arrays = {str(name): _array(str(name), values) for name, values in columns.items()}
    if len({len(array) for array in arrays.values()}) > 1:
        shown = ", ".join(f"{name} has {len(array):,}" for name, array in arrays.items())
        raise DataError(f"all columns must have a value for every sample, but {shown}.")
    return pa.table(arrays)


def _from_batch(batch: Any, label: str, dense: Sequence[str], slots: Sequence[str]) -> pa.Table:
    if isinstance(batch, Mapping):
        return _from_columns(batch)
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise DataError(
            f"a batch of the DataLoader must be a dict of columns or a tuple (inputs ..., label), but is a "
            f"{type(batch).__name__}."
        )
    *inputs, target = map(_numpy, batch)
    floats = [column for array in inputs if array.dtype.kind == "f" for column in _columns(array)]
    ids = [column for array in inputs if array.dtype.kind != "f" for column in _columns(array)]
    named = dict(zip(_names("dense", dense, len(floats)), floats, strict=True))
    named |= zip(_names("slot", slots, len(ids)), ids, strict=True)
    return _from_columns({**named, label: target.reshape(-1)})


def _columns(array: np.ndarray[Any, Any]) -> list[Any]:
    if array.ndim not in (1, 2):
        raise DataError(
            f"an input of a batch must have the shape [n] or [n, columns], but has {list(array.shape)}. Give others as "
            "a dict of columns, with `widths` for lists of numbers."
        )
    return [array] if array.ndim == 1 else list(array.T)


def _names(what: str, given: Sequence[str], count: int) -> list[str]:
    if given and len(given) != count:
        role = "slots" if what == "slot" else what
        raise DataError(f"{role} names {len(given)} columns, but the batches of the DataLoader have {count} of them.")
    return list(given) or [f"{what}_{i}" for i in range(count)]


def _numpy(values: Any) -> np.ndarray[Any, Any]:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


def _array(name: str, values: Any) -> Any:
    """Return one column; a matrix [n, width] is a column of lists."""
    try:
        values = _numpy(values) if hasattr(values, "detach") else values
        if isinstance(values, np.ndarray) and values.ndim == 2:
            return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
        return values if isinstance(values, pa.ChunkedArray) else pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"column {name}: {_first_line(error)}. Give every value of it the same type.") from None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")
