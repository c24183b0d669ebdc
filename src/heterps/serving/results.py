"""Write tables of results to a file as they come: whole at the end, or not there at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from heterps.errors import ConfigError, StorageError

_WRITERS: dict[str, Callable[[Any, Any], Any]] = {
    ".parquet": lambda file, schema: pq.ParquetWriter(file, schema, compression="zstd"),
    ".csv": pa.csv.CSVWriter,
    ".arrow": pa.ipc.new_file,
}


def check_target(path: Path) -> None:
    """Raise ConfigError or StorageError where results cannot be written to `path`."""
    if path.suffix not in _WRITERS:
        raise ConfigError(f"{path}: results are written as {', '.join(_WRITERS)}: name a file that ends so.")
    if path.is_dir() or not path.parent.is_dir():
        problem = "this is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise StorageError(f"{path}: the results cannot be written: {problem}. Name a file in a folder that is there.")


def write_results(tables: Iterator[pa.Table], path: Path) -> Iterator[int]:
    """Write tables one after another; yield the number of rows of each. After an error there is no new file."""
    check_target(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with pa.OSFile(str(draft), "wb") as file:
            writer = None
            try:
                for table in tables:
                    table = _plain(table) if path.suffix == ".csv" else table
                    writer = writer or _WRITERS[path.suffix](file, table.schema)
                    writer.write(table.cast(writer.schema) if hasattr(writer, "schema") else table)
                    yield table.num_rows
            finally:
                if writer is not None:
                    writer.close()
        os.replace(draft, path)
    except OSError as error:
        raise StorageError(
            f"{path}: the results cannot be written: {error.strerror or error}. Free some room, or name another file."
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink()


def _plain(table: pa.Table) -> pa.Table:
    """The table with lists as text, which CSV can hold."""
    for number, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            texts = [None if value is None else " ".join(map(str, value)) for value in table.column(number).to_pylist()]
            table = table.set_column(number, field.name, pa.array(texts, pa.string()))
    return table
