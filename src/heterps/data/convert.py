"""Convert data files of any format to Parquet, on several threads and in the order of their rows.

    a.csv      --row groups-------------.
                                         >--> pieces --[262,144 rows at a time]--> part-00000.parquet, ...
    b.csv.gz   --blocks of its stream---'              parsed and written by a thread

Compressed text is neither unpacked on disk nor held in memory as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from heterps.config import Format, Storage
from heterps.config.base import Record
from heterps.data.file import DataFile
from heterps.data.folder import HIDDEN_INFO_NAME, new_dataset
from heterps.data.formats import format_of
from heterps.data.parallel import in_order
from heterps.data.sources import find_all_files, open_by, open_file
from heterps.data.text.file import TextFile, compression_of
from heterps.data.text.packed import PackedText
from heterps.data.text.types import join_all
from heterps.errors import DataError

ROWS_PER_GROUP = 65_536
ROWS_PER_FILE = 2 * ROWS_PER_GROUP


class ConvertedInfo(Record):
    """The file `_dataset.json` of a converted data set."""

    version: int = 1
    task: str = "convert"
    source: str
    rows: int
    files: int
    columns: dict[str, str]


class _RowSlice(NamedTuple):
    """Some rows, and how to read them as an Arrow table."""

    num_rows: int
    load: Callable[[], Any]


def convert(
    source: str | Sequence[str],
    folder: str | Path,
    *,
    options: Format = Format(),
    storage: Storage = Storage(),
    force: bool = False,
    num_threads: int | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> ConvertedInfo:
    """Write the rows of data files to `folder` as Parquet, with all their columns and in their order.

    `progress` is called, from any thread, with the number of rows just written. Raises ConfigError if `folder` is not
    empty; with `force`, a data set that heterps wrote is replaced. After an error or an interrupt `folder` is
    unchanged.
    """
    with new_dataset(folder, str(source), force=force) as target:
        files = [_open(address, options, storage) for address in find_all_files(source, options, storage)]
        schema = _common_schema(files)
        pieces = (piece for file in files for piece in _pieces(file, schema))

        def write(task: tuple[int, Sequence[_RowSlice]]) -> int:
            number, some = task
            table = pa.concat_tables([piece.load().cast(schema) for piece in some])
            path = target / f"part-{number:05d}.parquet"
            pq.write_table(table, path, row_group_size=ROWS_PER_GROUP, compression="zstd", write_page_checksum=True)
            progress(table.num_rows)
            return int(table.num_rows)

        rows = list(in_order(write, enumerate(_tasks(pieces)), num_threads or os.cpu_count() or 1, "convert"))
        if not rows:
            raise DataError(f"{source}: no file holds a row to convert. Check the job that wrote them.")
        types = {field.name: str(field.type) for field in schema}
        info = ConvertedInfo(source=str(source), rows=sum(rows), files=len(rows), columns=types)
        (target / HIDDEN_INFO_NAME).write_text(info.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return info


# --- files -----------------------------------------------------------------------------------------------------------


def _open(address: str, options: Format, storage: Storage) -> DataFile | PackedText:
    format = format_of(address, options.kind)
    if not issubclass(format, TextFile) or compression_of(address) is None:
        return open_file(address, options, storage)
    return open_by(address, options, storage, partial(PackedText, format=format))


def _types_of(file: DataFile | PackedText) -> dict[str, Any]:
    return file.types if isinstance(file, PackedText) else {field.name: field.type for field in file.schema}


def _common_schema(files: Sequence[DataFile | PackedText]) -> Any:
    """The columns of all files, of types that fit the values of all; DataError if files have other columns."""
    first = _types_of(files[0])
    for file in files[1:]:
        if differing := sorted(set(_types_of(file)) ^ set(first)):
            raise DataError(
                f"{file.address}: this file and {files[0].address} differ in columns ({', '.join(differing[:10])}). "
                "Convert them apart."
            )
    types = join_all(map(_types_of, files))
    for file in files:
        if isinstance(file, TextFile):
            file.set_types({name: types[name] for name in file.schema.names})
    return pa.schema(list(types.items()))


def _pieces(file: DataFile | PackedText, schema: Any) -> Iterator[_RowSlice]:
    if isinstance(file, PackedText):
        types = {field.name: field.type for field in schema}
        for first_row, block in file.blocks():
            yield _RowSlice(block.num_rows, partial(file.parse, first_row, block, types))
    else:
        for number, num_rows in enumerate(file.group_rows):
            yield _RowSlice(num_rows, partial(file.read, number, schema.names))


# --- tasks -----------------------------------------------------------------------------------------------------------


def _tasks(pieces: Iterable[_RowSlice]) -> Iterator[list[_RowSlice]]:
    """Put pieces together until they fill a file."""
    task: list[_RowSlice] = []
    for piece in pieces:
        if piece.num_rows:
            task.append(piece)
        if sum(one.num_rows for one in task) >= ROWS_PER_FILE:
            yield task
            task = []
    if task:
        yield task
