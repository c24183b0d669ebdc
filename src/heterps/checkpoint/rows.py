"""The rows of one table as an Arrow IPC file (Feather v2), which pandas, polars and DuckDB open as it is.

    keys: uint64 | uses: float32 | clock: uint32 | values: fixed_size_list<float32>[dim] | state: ...[w]

A matrix without columns (w = 0) has no column here either. Version 1 of the format had no `uses` and no `clock`.

Written and read a part of the rows at a time: the file costs no memory beyond the arrays themselves and one part. Bits
are kept: NaN payloads, negative zeros and the keys 0 and 2**64 - 1 come back as they went.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.checkpoint.disk import DigestWriter
from heterps.ps.table.rows import Rows

METADATA_KEY = b"heterps"
_VECTORS = {"keys": pa.uint64(), "uses": pa.float32(), "clock": pa.uint32()}
_VECTORS_V1 = {"keys": pa.uint64()}


class RowPart(Protocol):
    """Some rows of a table, as arrays of the same length."""

    @property
    def keys(self) -> NDArray[np.uint64]: ...
    @property
    def values(self) -> NDArray[np.float32]: ...
    @property
    def state(self) -> NDArray[np.float32]: ...
    @property
    def uses(self) -> NDArray[np.float32]: ...
    @property
    def clock(self) -> NDArray[np.uint32]: ...


class Header(NamedTuple):
    """What a file says of its rows."""

    num_rows: int
    widths: tuple[int, int]  # of the values and of the state
    meta: dict[str, Any]  # of the table: in files up to version 3 of the format


def write_rows(file: DigestWriter, parts: Iterable[RowPart], num_rows: int, widths: tuple[int, int]) -> None:
    """Write rows part by part; ValueError where they are not as many as was said."""
    shape = {"rows": num_rows, "values": widths[0], "state": widths[1]}
    header = json.dumps({"shape": shape})
    schema = _schema(shape, _VECTORS).with_metadata({METADATA_KEY: header.encode()})
    written = 0
    with pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema) as writer:
        for part in parts:
            columns = [_arrow(getattr(part, name)) for name in _VECTORS]
            for name in schema.names[len(_VECTORS) :]:
                flat = _arrow(getattr(part, name))
                columns.append(pa.FixedSizeListArray.from_arrays(flat, shape[name]))
            writer.write_batch(pa.record_batch(columns, schema=schema))
            written += len(part.keys)
    if written != num_rows:
        raise ValueError(f"a stream of {num_rows:,} rows gave {written:,}")


def _arrow(values: NDArray[Any]) -> pa.Array:
    """Return values as a flat Arrow array on their own memory; `pa.array` would import pandas, which takes seconds."""
    laid_out = np.ascontiguousarray(values).reshape(-1)
    return pa.Array.from_buffers(pa.from_numpy_dtype(laid_out.dtype), len(laid_out), [None, pa.py_buffer(laid_out)])


def read_header(path: Path) -> Header:
    """Read what a file says of its rows; ValueError when `write_rows` did not make it, or it does not hold them all."""
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        header, kinds = _checked(reader, source.size())
        batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]  # views of the file
        found = sum(len(_arrays(batch, header, kinds)["keys"]) for batch in batches)
        if found != header.num_rows:
            raise ValueError(f"it claims {header.num_rows} rows and holds {found}")
        return header


def read_parts(path: Path) -> Iterator[Rows]:
    """Yield the rows in the file, a part at a time, in arrays of their own."""
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
        header, kinds = _checked(reader, source.size())
        for index in range(reader.num_record_batches):
            arrays = _arrays(reader.get_batch(index), header, kinds)
            yield _rows({name: array.copy() for name, array in arrays.items()})


def read_views(source: Any) -> list[Rows]:
    """Return the rows of each part of a file that is mapped into memory, as views of it where it has them."""
    reader = pa.ipc.open_file(source)
    header, kinds = _checked(reader, source.size())
    batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
    return [_rows(_arrays(batch, header, kinds)) for batch in batches]


def _rows(arrays: dict[str, NDArray[Any]]) -> Rows:
    """Return the rows in these arrays; those of version 1 were used once, at clock 0."""
    num = len(arrays["keys"])
    return Rows(**{"uses": np.ones(num, np.float32), "clock": np.zeros(num, np.uint32), **arrays})


def _arrays(batch: Any, header: Header, kinds: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a part, as views; ValueError where a value is missing."""
    arrays: dict[str, NDArray[Any]] = {name: batch.column(name).to_numpy() for name in kinds}
    for name, width in zip(("values", "state"), header.widths, strict=True):
        is_there = name in batch.schema.names
        arrays[name] = _matrix(batch.column(name)) if is_there else np.empty((batch.num_rows, width), np.float32)
    return arrays


def _checked(reader: Any, num_bytes: int) -> tuple[Header, dict[str, Any]]:
    """Return the header of an open file whose columns are those that it says, and the kinds of its vectors."""
    text = json.loads((reader.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    num_rows, dim, width = (text["shape"][name] for name in ("rows", "values", "state"))
    if num_rows * (8 + 4 * (dim + width)) > num_bytes:  # before memory is taken for them
        raise ValueError(f"it claims {num_rows} rows of {dim} + {width} numbers in {num_bytes} bytes")
    kinds = _VECTORS if "uses" in reader.schema.names else _VECTORS_V1
    if not reader.schema.equals(_schema(text["shape"], kinds)):
        raise ValueError(f"its columns are {', '.join(f'{f.name}: {f.type}' for f in reader.schema)}")
    return Header(num_rows, (dim, width), text.get("meta", {})), kinds


def _schema(shape: dict[str, int], vectors: dict[str, Any]) -> Any:
    matrices = [(name, pa.list_(pa.float32(), shape[name])) for name in ("values", "state") if shape[name]]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in (*vectors.items(), *matrices)])


def _matrix(column: Any) -> NDArray[np.float32]:
    flat: NDArray[np.float32] = column.flatten().to_numpy()
    return flat.reshape(len(column), column.type.list_size)
