"""Data sources: find the files and row groups behind an address, folder, glob or list.

    "data/train"  "s3://bucket/day=*/*.parquet"  ["a.parquet", "b.parquet"]
         |--(fsspec)--> sorted files --(formats.py)--> row groups with row counts, columns with types

Files are only opened here, not read. Any fsspec address works; a path without a protocol is local.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa

from heterps.data.file import FAILURES, DataFile, first_line
from heterps.data.formats import FORMATS, format_of, suffixes_of
from heterps.errors import DataError

_FILES_OPENED = 8
"""Number of files that are opened at once."""


@dataclass(frozen=True)
class RowGroup:
    """A part of a file, decoded as a unit."""

    file: DataFile
    index: int
    first_row: int  # in the file
    num_rows: int

    def __str__(self) -> str:
        return f"{self.file.address}: row group {self.index}"

    def error(self, row: int, column: str, problem: str) -> DataError:
        """The error for a value of this row group."""
        return DataError(
            f"{self.file.address}: row {self.first_row + row} (row {row} of row group {self.index}), "
            f"column {column}: {problem}."
        )


@dataclass(frozen=True, eq=False)
class Dataset:
    """Files in the order of their addresses, and all their row groups that are not empty."""

    files: tuple[DataFile, ...]

    @cached_property
    def row_groups(self) -> tuple[RowGroup, ...]:
        groups: list[RowGroup] = []
        for file in self.files:
            first_row = 0
            for index, num_rows in enumerate(file.group_rows):
                if num_rows:
                    groups.append(RowGroup(file, index, first_row, num_rows))
                first_row += num_rows
        return tuple(groups)

    @property
    def num_rows(self) -> int:
        return sum(group.num_rows for group in self.row_groups)


def open_dataset(source: str | Sequence[str]) -> Dataset:
    """Open the files of a path, folder, glob or list of these; raises DataError if there is nothing to read."""
    sources = [source] if isinstance(source, str) else list(source)
    addresses = sorted({address for one in sources for address in find_files(one)})
    if not addresses:
        raise DataError("no training data is named: give a Parquet file, a folder, a glob or a list of them.")
    with ThreadPoolExecutor(min(_FILES_OPENED, len(addresses))) as pool:
        dataset = Dataset(tuple(pool.map(open_file, addresses)))
    if dataset.num_rows == 0:
        shown = addresses[0] if len(addresses) == 1 else f"{len(addresses)} files from {addresses[0]} on"
        raise DataError(f"{shown}: the data set is empty: no file holds a row. Check the job that wrote it.")
    return dataset


def open_file(address: str) -> DataFile:
    """Open the file at `address` by its format; raises DataError, which names it."""
    fs, path = _filesystem(address)
    format = format_of(address)
    try:
        return format(address, fs, path)
    except FileNotFoundError:
        raise DataError(f"{address}: there is no such file. Check the path of the data.") from None
    except (ValueError, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"{address}: this is not a {format.title} file that can be read ({first_line(error)}). "
            f"Convert the data to {format.title}, or name the {format.title} files alone, for example "
            f"data/*{suffixes_of(format)[0]}."
        ) from None
    except FAILURES as error:
        raise DataError(f"{address}: cannot read this file: {first_line(error)}.") from error


def find_files(source: str) -> list[str]:
    """Return the sorted addresses of the files that a path, folder or glob stands for."""
    fs, path = _filesystem(source)
    try:
        if any(character in path for character in "*?["):
            found = [name for name in fs.glob(path) if not _is_hidden(name) and not fs.isdir(name)]
            if not found:
                raise DataError(f"{source}: no file matches this pattern. Check it with a listing of the folder.")
        elif fs.isdir(path):
            found = [
                name
                for name in fs.ls(path, detail=False)
                if name.lower().endswith(tuple(FORMATS)) and not _is_hidden(name)
            ]
            if not found:
                titles = " or ".join(dict.fromkeys(format.title for format in FORMATS.values()))
                raise DataError(f"{source}: this folder holds no {titles} file.{_folders_hint(fs, path)}")
        elif fs.exists(path):
            found = [path]
        else:
            fs.info(path)  # says why, where a file system cannot be reached
            raise FileNotFoundError
    except FileNotFoundError:
        raise DataError(f"{source}: there is no such file or folder. Check the path of the data.") from None
    except (*FAILURES, ValueError) as error:
        raise DataError(f"{source}: cannot look for data here: {first_line(error)}.") from error
    return sorted(_address(source, fs, path, name) for name in found)


def _address(source: str, fs: Any, path: str, name: str) -> str:
    """Return the address of the file `name` that was found under `source`, whose path in the file system is `path`.

    WebHDFS and HDFS strip the host from their paths, and their `unstrip_protocol` does not put it back.
    """
    parts = urlsplit(source)
    if parts.netloc and parts.netloc not in path.split("/"):
        return f"{parts.scheme}://{parts.netloc}{name}"
    return str(fs.unstrip_protocol(name)).removeprefix("file://")


def _filesystem(address: str) -> tuple[Any, str]:
    try:
        fs, path = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise DataError(f"{address}: this kind of address needs a package: {first_line(error)}.") from None
    except (OSError, ValueError, TypeError) as error:  # TypeError: an address without the host that its kind needs
        raise DataError(f"{address}: this is not an address that can be read: {first_line(error)}.") from None
    return fs, path


def _is_hidden(path: str) -> bool:
    """Tell whether a file is a by-product of a writer: `_SUCCESS`, `_metadata`, `.part.parquet.crc`."""
    return path.rsplit("/", 1)[-1].startswith((".", "_"))


def _folders_hint(fs: Any, path: str) -> str:
    """Suggest what to name when the data is in subfolders, as partitioned data is."""
    folders = sorted(name.rsplit("/", 1)[-1] for name in fs.ls(path, detail=False) if fs.isdir(name))
    if not folders:
        return f" A data file ends in {', '.join(FORMATS)}."
    shown = ", ".join(folders[:5]) + (", ..." if len(folders) > 5 else "")
    return f" Its folders are not searched ({shown}): name one of them, or all with a glob such as **/*.parquet."
