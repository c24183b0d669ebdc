"""Data sources: find the files and row groups behind an address, folder, glob or list.

    "data/train"  "s3://bucket/day=*/*.parquet"  ["a.csv", "b.csv"]
         |--(storage.py)--> sorted files --(formats.py)--> row groups with row counts, columns with types

Files are only opened here, not read. A path without a protocol is local.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from heterps.config import Data, Format, Storage
from heterps.config.data import Paths
from heterps.data.file import DataFile
from heterps.data.formats import FORMATS, format_of, known_suffixes, suffixes_of
from heterps.data.kernels import permutation
from heterps.data.storage import FAILURES, filesystem_of, first_line, retried
from heterps.data.text.file import settle_types
from heterps.errors import DataError

T = TypeVar("T", covariant=True)
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


def open_dataset(source: str | Sequence[str], options: Format = Format(), storage: Storage = Storage()) -> Dataset:
    """Open the files of a path, folder, glob or list of these; raises DataError if there is nothing to read."""
    addresses = find_all_files(source, options, storage)
    with ThreadPoolExecutor(min(_FILES_OPENED, len(addresses))) as pool:
        dataset = Dataset(tuple(pool.map(lambda address: open_file(address, options, storage), addresses)))
    settle_types(dataset.files)
    if dataset.num_rows == 0:
        shown = addresses[0] if len(addresses) == 1 else f"{len(addresses)} files from {addresses[0]} on"
        raise DataError(f"{shown}: the data set is empty: no file holds a row. Check the job that wrote it.")
    return dataset


def find_all_files(source: str | Sequence[str], options: Format = Format(), storage: Storage = Storage()) -> list[str]:
    """Return the sorted addresses of the files of a path, folder, glob or list of these, each once; at least one."""
    sources = [source] if isinstance(source, str) else list(source)
    addresses = sorted({address for one in sources for address in find_files(one, options, storage)})
    if not addresses:
        raise DataError("no training data is named: give a file, a folder, a glob or a list of them.")
    return addresses


def spread_groups(dataset: Dataset, num_rows: int) -> list[RowGroup]:
    """Return row groups of at least `num_rows` rows, or all, drawn evenly from all files, in their order."""
    groups = dataset.row_groups
    chosen, rows = [], 0
    for i in permutation(len(groups), np.uint64(0)).tolist():
        if rows >= num_rows:
            break
        chosen.append(i)
        rows += groups[i].num_rows
    return [groups[i] for i in sorted(chosen)]


def open_paths(data: Data, paths: Paths) -> Dataset:
    """Open files that a job names, such as `data.train`, in the format and from the storage that it names."""
    return open_dataset(paths, data.format, data.storage)


def open_file(address: str, options: Format = Format(), storage: Storage = Storage()) -> DataFile:
    """Open the file at `address` by its format; raises DataError, which names it."""
    return open_by(address, options, storage, format_of(address, options.kind).open)


class _Opener(Protocol[T]):
    def __call__(self, address: str, fs: Any, path: str, *, options: Format) -> T: ...


def open_by(address: str, options: Format, storage: Storage, opener: _Opener[T]) -> T:
    """Open the file at `address` by a function; raises DataError, which names the file, for the errors of it."""
    fs, path = filesystem_of(address, storage)
    format = format_of(address, options.kind)
    try:
        return retried(address, fs, lambda: opener(address, fs, path, options=options))
    except FileNotFoundError:
        raise DataError(f"{address}: there is no such file. Check the path of the data.") from None
    except (ValueError, pa.ArrowNotImplementedError) as error:
        problem = f"{address}: this is not a {format.title} file that can be read ({first_line(error)})."
        suffixes = [suffix for suffix in suffixes_of(format) if address.lower().endswith(suffix)]
        if options.kind is None and not suffixes:
            raise DataError(
                f"{problem} A file whose name does not end in {known_suffixes()} is taken for Parquet: name its format "
                f"in the job, as in data.format: {{kind: csv}}."
            ) from None
        raise DataError(
            f"{problem} Mend it, or name the {format.title} files alone, for example "
            f"data/*{suffixes[-1] if suffixes else ''}."
        ) from None
    except FAILURES as error:
        raise DataError(f"{address}: cannot read this file: {first_line(error)}.") from error


def find_files(source: str, options: Format = Format(), storage: Storage = Storage()) -> list[str]:
    """Return the sorted addresses of the files that a path, folder or glob stands for.

    In a folder these are the files with a known suffix, or all if `options` names the format.
    """
    fs, path = filesystem_of(source, storage)
    try:
        found = retried(source, fs, lambda: _find(source, fs, path, options))
    except FileNotFoundError:
        raise DataError(f"{source}: there is no such file or folder{_relative_to(source)}.") from None
    except (*FAILURES, ValueError) as error:
        raise DataError(f"{source}: cannot look for data here: {first_line(error)}.") from error
    return sorted(_address(source, fs, path, name) for name in found)


def _find(source: str, fs: Any, path: str, options: Format) -> list[str]:
    """Return the paths of the files; few requests, however many there are."""
    if any(character in path for character in "*?["):
        found = [name for name, info in fs.glob(path, detail=True).items() if _is_file(name, info)]
        if not found:
            raise DataError(f"{source}: no file matches this pattern{_relative_to(source)}.")
        return found
    if fs.info(path)["type"] != "directory":
        return [path]
    listed = {info["name"]: info for info in fs.ls(path, detail=True)}
    suffixes = tuple(FORMATS) if options.kind is None else ("",)
    found = [name for name, info in listed.items() if _is_file(name, info) and name.lower().endswith(suffixes)]
    if not found:
        folders = [name for name, info in listed.items() if info["type"] == "directory"]
        raise DataError(f"{source}: this folder holds no data file.{_folders_hint(folders)}")
    return found


def _address(source: str, fs: Any, path: str, name: str) -> str:
    """Return the address of the file `name` that was found under `source`, whose path in the file system is `path`.

    WebHDFS and HDFS strip the host from their paths, and their `unstrip_protocol` does not put it back.
    """
    parts = urlsplit(source)
    if parts.netloc and parts.netloc not in path.split("/"):
        return f"{parts.scheme}://{parts.netloc}{name}"
    return str(fs.unstrip_protocol(name)).removeprefix("file://")


def _relative_to(source: str) -> str:
    """Say where a relative path was looked for."""
    if "://" in source or Path(source).is_absolute():
        return ""
    return f" in {Path.cwd()}, the working directory, which paths of a job are relative to"


def _is_file(name: str, info: dict[str, Any]) -> bool:
    """Tell whether something found is a file, and no by-product of a writer: `_SUCCESS`, `.part.parquet.crc`."""
    return info["type"] == "file" and not name.rsplit("/", 1)[-1].startswith((".", "_"))


def _folders_hint(folders: Sequence[str]) -> str:
    """Suggest what to name when the data is in subfolders, as partitioned data is."""
    if not folders:
        return f" The name of one ends in {known_suffixes()}; for other names set data.format.kind."
    names = sorted(name.rstrip("/").rsplit("/", 1)[-1] for name in folders)
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f" Its folders are not searched ({shown}): name one of them, or all with a glob such as **/*.csv."
