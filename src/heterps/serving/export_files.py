"""The files of an export: rows.parquet, weights.parquet, the manifest, and the draft folder that they are written into.

rows.parquet      table: string | key: uint64 | values: list<float32|float16|int8> | scale: float32, of int8 alone
                  sorted by table and key; a row group is of one table; values are null where a key is gone
weights.parquet   name: string | dtype: string | shape: list<int64> | data: binary
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from heterps.arrays import FloatArray, KeyArray
from heterps.checkpoint import disk
from heterps.errors import ModelError, RunError
from heterps.serving.score import digest_of, measure

Values = Literal["fp32", "fp16", "int8"]
KINDS: Mapping[Values, Any] = {"fp32": pa.float32(), "fp16": pa.float16(), "int8": pa.int8()}
DRAFT = ".exporting-"
MANIFEST = "manifest.json"


class Draft:
    """A folder that is being written; it gets its name when it is finished."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: list[str] = []

    @contextmanager
    def file(self, name: str) -> Iterator[disk.DigestWriter]:
        """Make a file; once the block is left without an error, its bytes are on the disk."""
        with disk.new_file(self.folder / name) as file:
            yield file
        self._names.append(name)

    def write(self, name: str, content: bytes) -> None:
        with self.file(name) as file:
            file.write(content)

    def finish(self, manifest: Mapping[str, Any]) -> int:
        """Write the manifest, with sizes and digests of all files; returns the bytes of the folder."""
        if (self.folder / MANIFEST).exists():  # files were added since
            disk.remove(self.folder / MANIFEST)
            self._names.remove(MANIFEST)
        measured = {name: measure(self.folder / name) for name in self._names}
        files = {name: {"num_bytes": size, "digest": digest} for name, (size, digest) in measured.items()}
        whole = {**manifest, "files": files}
        text = json.dumps(whole, sort_keys=True)
        self.write(
            "manifest.json", json.dumps({**whole, "manifest_digest": digest_of(text.encode())}, indent=1).encode()
        )
        disk.sync_folder(self.folder)
        return sum(path.stat().st_size for path in self.folder.iterdir())


@contextmanager
def new_folder(target: Path) -> Iterator[Draft]:
    """Make a folder that appears whole, when the block is left without an error, or not at all."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(f"{target} is there already and not empty. Exports are never changed: name another folder.")
    draft = target.parent / f"{DRAFT}{target.name}"
    with disk.storage_errors(f"{target}: cannot write the export"):
        if draft.exists():  # of an export that was killed
            disk.remove(draft)
        try:
            disk.make_folder(draft)
            yield Draft(draft)
            disk.rename(draft, target)
        except BaseException:
            if draft.exists():
                disk.remove(draft)
            raise


def quantised(values: FloatArray, kind: Values) -> tuple[NDArray[Any], FloatArray | None]:
    """Return rows [n, dim] as they are stored, and of int8 the factor of each row [n]."""
    if kind == "fp32":
        return values, None
    if kind == "fp16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16), None
    scale = (np.abs(values).max(axis=1, initial=0) / 127).astype(np.float32)
    factor = np.where(scale > 0, scale, 1)[:, None]
    return np.rint(values / factor).astype(np.int8), scale


def rounded(values: FloatArray, kind: Values) -> FloatArray:
    """Return rows as their next reader gets them."""
    stored, scale = quantised(values, kind)
    found = stored.astype(np.float32)
    return found if scale is None else found * scale[:, None]


class RowsFile:
    """Writes rows.parquet, a part of one table at a time."""

    def __init__(self, file: disk.DigestWriter, kind: Values) -> None:
        self._kind = kind
        fields = [("table", pa.string()), ("key", pa.uint64()), ("values", pa.list_(KINDS[kind]))]
        self._schema = pa.schema(fields + ([("scale", pa.float32())] if kind == "int8" else []))
        dictionaries = ["table", *(["values.list.element"] if kind == "int8" else [])]
        self._writer = pq.ParquetWriter(
            pa.PythonFile(file, mode="w"), self._schema, compression="zstd", use_dictionary=dictionaries
        )

    def add(self, table: str, keys: KeyArray, values: FloatArray, gone: NDArray[np.bool_] | None = None) -> None:
        """Write rows, sorted by key. Values of keys that are gone are written as null.

        Raises ModelError if a value is too large for fp16.
        """
        if not len(keys):
            return
        gone = np.zeros(len(keys), np.bool_) if gone is None else gone
        there = values[~gone]
        stored, scale = quantised(there, self._kind)
        if self._kind == "fp16" and (np.isinf(stored) & np.isfinite(there)).any():
            self.close()  # while the file is open: else the writer complains when it is deleted
            raise ModelError(
                f"table {table} has a value of {np.abs(there[np.isfinite(there)]).max():g}, but fp16 ends at 65504. "
                "Export with --values fp32."
            )
        ends = np.concatenate([[0], np.cumsum(np.where(gone, 0, values.shape[1]))]).astype(np.int32)
        columns = [
            pa.DictionaryArray.from_arrays(np.zeros(len(keys), np.int8), [table]).cast(pa.string()),
            pa.array(keys),
            pa.ListArray.from_arrays(pa.array(ends), pa.array(stored.reshape(-1)), mask=pa.array(gone)),
        ]
        if scale is not None:
            spread = np.zeros(len(keys), np.float32)
            spread[~gone] = scale
            columns.append(pa.array(spread))
        self._writer.write_table(pa.table(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def write_weights(file: disk.DigestWriter, weights: Mapping[str, NDArray[Any]]) -> None:
    """Write weights.parquet."""
    columns: dict[str, Iterable[Any]] = {
        "name": list(weights),
        "dtype": [array.dtype.name for array in weights.values()],
        "shape": [list(array.shape) for array in weights.values()],
        "data": [np.ascontiguousarray(array).tobytes() for array in weights.values()],
    }
    kinds = {"name": pa.string(), "dtype": pa.string(), "shape": pa.list_(pa.int64()), "data": pa.large_binary()}
    table = pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})
    pq.write_table(table, pa.PythonFile(file, mode="w"), compression="zstd", use_dictionary=False)
