"""The rows of one table as an Arrow IPC file (Feather v2), which pandas, polars and DuckDB open as it is.

    keys: uint64 | uses: float32 | clock: uint32 | values: fixed_size_list<float32>[dim] | state: ...[w]

A matrix without columns (w = 0) has no column here either. Version 1 of the format had no `uses` and no `clock`.

Written and read a part of the rows at a time: the file costs no memory beyond the arrays themselves and one part. Bits
are kept: NaN payloads, negative zeros and the keys 0 and 2**64 - 1 come back as they went.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.checkpoint.disk import DigestWriter
from heterps.checkpoint.snapshot import TableRows, TableStream

METADATA_KEY = b"heterps"
_VECTORS = {"keys": pa.uint64(), "uses": pa.float32(), "clock": pa.uint32()}
_VECTORS_V1 = {"keys": pa.uint64()}


def write_rows(file: DigestWriter, table: TableRows | TableStream) -> None:
    shape = {"rows": len(table), "values": table.widths[0], "state": table.widths[1]}
    header = json.dumps({"shape": shape, "meta": table.meta})
    schema = _schema(shape, _VECTORS).with_metadata({METADATA_KEY: header.encode()})
    with pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema) as writer:
        for part in table.parts():
            columns = [pa.array(getattr(part, name)) for name in _VECTORS]
            for name in schema.names[len(_VECTORS) :]:
                flat = pa.array(getattr(part, name).reshape(-1))
                columns.append(pa.FixedSizeListArray.from_arrays(flat, shape[name]))
            writer.write_batch(pa.record_batch(columns, schema=schema))


def read_rows(path: Path) -> TableRows:
    """The rows in the file at `path`, in arrays of their own; ValueError when `write_rows` did not make it."""
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
        header = json.loads((reader.schema.metadata or {}).get(METADATA_KEY, b"{}"))
        num_rows, dim, width = (header["shape"][name] for name in ("rows", "values", "state"))
        if num_rows * (8 + 4 * (dim + width)) > source.size():  # before memory is taken for them
            raise ValueError(f"it claims {num_rows} rows of {dim} + {width} numbers in {source.size()} bytes")
        kinds = _VECTORS if "uses" in reader.schema.names else _VECTORS_V1
        if not reader.schema.equals(_schema(header["shape"], kinds)):
            raise ValueError(f"its columns are {', '.join(f'{f.name}: {f.type}' for f in reader.schema)}")
        vectors = {name: np.empty(num_rows, kind.to_pandas_dtype()) for name, kind in kinds.items()}
        matrices = {"values": np.empty((num_rows, dim), np.float32), "state": np.empty((num_rows, width), np.float32)}
        at = 0
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            chunk = slice(at, at + batch.num_rows)
            for name in batch.schema.names:
                if name in vectors:
                    vectors[name][chunk] = batch.column(name).to_numpy()
                else:
                    matrices[name][chunk] = _matrix(batch.column(name))
            at = chunk.stop
        if at != num_rows:
            raise ValueError(f"it claims {num_rows} rows and holds {at}")
        arrays: dict[str, Any] = {**vectors, **matrices}
        return TableRows(**arrays, meta=header["meta"])


def _schema(shape: dict[str, int], vectors: dict[str, Any]) -> Any:
    matrices = [(name, pa.list_(pa.float32(), shape[name])) for name in ("values", "state") if shape[name]]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in (*vectors.items(), *matrices)])


def _matrix(column: Any) -> NDArray[np.float32]:
    flat: NDArray[np.float32] = column.flatten().to_numpy()
    return flat.reshape(len(column), column.type.list_size)
