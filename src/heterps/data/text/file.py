"""Files of text, row by row, as row groups that can be read in any order and any number of times.

    a.csv.gz --[1]--> a.csv --[2]--> index: first byte, bytes, rows and digest of each row group, types of the columns
                                                              |
    load(group 7): its bytes [3] --> digest is checked [4] --> parsed on the calling thread [5] --> Arrow table

    [1] a compressed file is unpacked once, into the cache      [2] a file is cut once (lines.py), into the cache

The files of a data set agree on the types of their columns (`settle_types`). A value that does not fit its column's
type raises DataError, which names the file, the row and the column.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, ClassVar, Self

import fsspec
import pyarrow as pa
import xxhash

from heterps.config import Format
from heterps.data.cache import cached
from heterps.data.file import DataFile
from heterps.data.storage import version_of
from heterps.data.text.delimited import Criteo, Delimited, Tabbed
from heterps.data.text.jsonl import JsonLines
from heterps.data.text.libsvm import Libsvm
from heterps.data.text.lines import Syntax, cut
from heterps.data.text.rows import TextRows
from heterps.data.text.types import NAMED, join_all
from heterps.errors import DataError

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
MAX_PACKED_BYTES = 2**30
"""Largest compressed file that is unpacked into the cache; a larger one is to be converted."""
START_BYTES = 1 << 20
_SAMPLED_GROUPS, _SAMPLED_ROWS = 32, 2_000
_VERSION = 1


@dataclass(frozen=True)
class _Place:
    """Where a row group is in its file, and what its bytes are."""

    first_byte: int
    num_bytes: int
    num_rows: int
    digest: str


class TextFile(DataFile):
    """One file of text, whose lines are parsed by `rows_type`."""

    rows_type: ClassVar[type[TextRows]]

    def __init__(self, address: str, fs: Any, path: str, options: Format = Format()) -> None:
        super().__init__(address, fs, path)
        self._options = options
        self._text_fs, self._text_path = self._unpacked() if compression_of(address) else (fs, path)
        with self._text_fs.open(self._text_path, "rb") as stream:
            self._rows = self.rows_type(options, stream.read(START_BYTES))
        kind, said = self.rows_type.__name__, options.model_dump_json(exclude={"types"})
        key = (_VERSION, kind, address, version_of(fs, path), said)
        index = json.loads(cached(key, "index", self._write_index).read_text(encoding="utf-8"))
        self._places = [_Place(**place) for place in index["places"]]
        self.group_rows = [place.num_rows for place in self._places]
        self._first_rows = [0, *accumulate(self.group_rows)]
        self.set_types(dict(_unpack_types(index["types"])))

    @classmethod
    def open(cls, address: str, fs: Any, path: str, options: Format) -> Self:
        return cls(address, fs, path, options)

    def set_types(self, types: Mapping[str, Any]) -> None:
        """Read the columns as these types, except those that the job names."""
        self.schema = pa.schema(list(with_named_types(types, self._options).items()))

    def load(self, row_group: int, columns: list[str]) -> Any:
        place = self._places[row_group]
        with self._opened_text() as source:  # [3]
            data = source.read_at(place.num_bytes, place.first_byte)
        if xxhash.xxh3_64_hexdigest(data) != place.digest:  # [4]
            raise OSError("its bytes are not those that were there when it was opened")
        types = {name: self.schema.field(name).type for name in columns}
        return parse_rows(self.address, self._rows, data, types, self._first_rows[row_group], place.num_rows)  # [5]

    def content(self, row_group: int) -> tuple[Any, ...]:
        return (self._places[row_group].digest,)

    @contextmanager
    def _opened_text(self) -> Iterator[Any]:
        if self._text_path == self.path:
            with self.opened() as source:
                yield source
        else:
            with pa.OSFile(self._text_path) as source:
                yield source

    def _unpacked(self) -> tuple[Any, str]:
        if self.num_bytes > MAX_PACKED_BYTES:
            raise DataError(
                f"{self.address}: a compressed file of {self.num_bytes / 1e9:.1f} GB is too large to be unpacked. "
                f"Convert it to Parquet once: heterps data convert {self.address} FOLDER"
            )
        key = (self.address, version_of(self.fs, self.path))
        return fsspec.filesystem("file"), str(cached(key, "text", self._unpack))

    def _unpack(self, target: Path) -> None:  # [1]
        with open_text(self.address, self.fs, self.path) as stream, open(target, "wb") as out:
            while chunk := stream.read(1 << 22):
                out.write(chunk)

    def _write_index(self, target: Path) -> None:  # [2]
        """Cut the file into row groups, and find the types of its columns in samples of groups all over the file."""
        places: list[_Place] = []
        samples: list[bytes] = []
        stride, at = 1, self._rows.head_bytes
        with self._text_fs.open(self._text_path, "rb") as stream:
            stream.seek(at)
            for block in cut(stream, self._rows.syntax):
                data = block.join()
                if len(places) % stride == 0:
                    samples.append(first_rows(data, self._rows.syntax))
                    if len(samples) > _SAMPLED_GROUPS:
                        samples, stride = samples[::2], 2 * stride
                places.append(_Place(at, len(data), block.num_rows, xxhash.xxh3_64_hexdigest(data)))
                at += len(data)
        types = join_all(map(self._rows.guess, samples or [b""]))
        index = {"places": [vars(place) for place in places], "types": _pack_types(types)}
        target.write_text(json.dumps(index), encoding="utf-8")


def _with_packed(*suffixes: str) -> tuple[str, ...]:
    """The suffixes, plain and with those of compressed files."""
    return tuple(suffix + packed for packed in ("", *COMPRESSIONS) for suffix in suffixes)


class CsvFile(TextFile):
    title, rows_type, suffixes = "CSV", Delimited, _with_packed(".csv")


class TsvFile(TextFile):
    title, rows_type, suffixes = "TSV", Tabbed, _with_packed(".tsv", ".tab")


class CriteoFile(TextFile):
    title, rows_type = "Criteo TSV", Criteo


class JsonLinesFile(TextFile):
    title, rows_type, suffixes = "JSON lines", JsonLines, _with_packed(".jsonl", ".ndjson")


class LibsvmFile(TextFile):
    title, rows_type, suffixes = "libsvm", Libsvm, _with_packed(".libsvm", ".svm")


def settle_types(files: Sequence[DataFile]) -> None:
    """Let all text files of a data set read a column as one type: the narrowest that fits the samples of all."""
    texts = [file for file in files if isinstance(file, TextFile)]
    types = join_all({field.name: field.type for field in file.schema} for file in texts)
    for file in texts:
        own = types if isinstance(file, JsonLinesFile) else {name: types[name] for name in file.schema.names}
        file.set_types(own)


def with_named_types(types: Mapping[str, Any], options: Format) -> dict[str, Any]:
    """Replace the types of columns that `data.format.types` names; lists stay lists."""
    named = {name: NAMED[word] for name, word in options.types.items() if name in types}
    return {**types, **{n: pa.list_(kind) if pa.types.is_list(types[n]) else kind for n, kind in named.items()}}


def parse_rows(
    address: str, rows: TextRows, data: bytes, types: Mapping[str, Any], first_row: int, num_rows: int
) -> Any:
    """Parse text that has `num_rows` rows from `first_row` on; raises DataError, which names row and column."""
    try:
        table = rows.parse(data, types)
    except pa.ArrowInvalid as error:
        if (misfit := rows.find_misfit(data, types)) is None:
            raise
        where = "" if misfit.column is None else f", column {misfit.column}"
        raise DataError(f"{address}: row {first_row + misfit.row}{where}: {misfit.problem}.") from error
    if table.num_rows != num_rows:
        raise DataError(
            f"{address}: {num_rows:,} lines from row {first_row} on hold {table.num_rows:,} rows. Are there lines of "
            "spaces only, or carriage returns inside lines? Write the file anew without them."
        )
    return table


def first_rows(data: bytes, syntax: Syntax) -> bytes:
    """The first rows of a piece of text, enough to tell types from."""
    return next(cut(io.BytesIO(data), syntax, _SAMPLED_ROWS)).join()


def compression_of(address: str) -> str | None:
    return next((name for suffix, name in COMPRESSIONS.items() if address.lower().endswith(suffix)), None)


@contextmanager
def open_text(address: str, fs: Any, path: str) -> Iterator[IO[bytes]]:
    """Open a file of text as a stream, unpacked if its name says that it is compressed."""
    with fs.open(path, "rb") as raw:
        packed = compression_of(address)
        if packed is None:
            yield raw
        else:
            with pa.CompressedInputStream(pa.PythonFile(raw, "r"), packed) as stream:
                yield stream


def _pack_types(types: Mapping[str, Any]) -> str:
    return base64.b64encode(pa.schema(list(types.items())).serialize()).decode()


def _unpack_types(packed: str) -> Iterator[tuple[str, Any]]:
    return ((field.name, field.type) for field in pa.ipc.read_schema(pa.py_buffer(base64.b64decode(packed))))
