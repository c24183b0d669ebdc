"""Data that is in memory, as Parquet files: from there on it is read as any other data, by every process of a run.

    pandas, polars, Arrow, a dict of arrays --as_table--> Arrow table --write_table--> <digest of the file>.parquet
    a DataLoader: its batches, once and in its order --'

The name of a file is a digest of its bytes. So equal data is written once, and a resumed run finds what it was trained
on, or is told that the data is another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from heterps.data.convert import ROWS_PER_GROUP
from heterps.errors import DataError, StorageError

TAKEN = "a path, a DataFrame of pandas or polars, an Arrow table, a dict of columns, or a torch DataLoader"


def is_loader(data: object) -> bool:
    """Tell whether `data` is a torch DataLoader, without importing torch."""
    return any(f"{kind.__module__}.{kind.__name__}".startswith("torch.utils.data") for kind in type(data).__mro__)


def as_table(data: Any, *, label: str = "label", dense: Sequence[str] = (), slots: Sequence[str] = ()) -> pa.Table:
    """Return the columns of a frame, a table, a dict of columns or a DataLoader.

    The batches of a DataLoader are dicts of columns, or tuples (inputs ..., label): every column of a tensor of floats
    is then a dense column, every column of a tensor of integers a slot. These have the given names, or are called
    dense_0, dense_1, slot_0 and so on.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, Mapping):
        return _from_columns(data)
    if is_loader(data):
        tables = [_from_batch(batch, label, dense, slots) for batch in data]
        if not tables:
            raise DataError("the DataLoader has no batches, so there is nothing to train on.")
        return pa.concat_tables(tables, promote_options="permissive")
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


def write_table(table: pa.Table, folder: Path) -> Path:
    """Write a table to `folder`, under the digest of what is written; return its path."""
    if table.num_rows == 0:
        raise DataError("the data has no rows, so there is nothing to train on.")
    draft = folder / f".{os.getpid()}-{id(table)}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.replace_schema_metadata(), draft, row_group_size=ROWS_PER_GROUP, compression="zstd")
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
