"""A format is chosen by the suffix of a file, and everything else about data is the same for all formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from heterps.config import Format, Schema
from heterps.data.describe import describe
from heterps.data.file import DataFile
from heterps.data.formats import FORMATS, KINDS, format_of, register_format
from heterps.data.parquet import ParquetFile
from heterps.data.reader import Reader
from heterps.data.sources import open_dataset
from heterps.errors import ConfigError, DataError

SCHEMA = Schema(label="y", dense=("a",), slots=("s",))


class Rows(DataFile):
    """Comma-separated values, in row groups of three rows."""

    title = "Rows"

    def __init__(self, address: str, fs: Any, path: str) -> None:
        super().__init__(address, fs, path)
        with fs.open(path, "rb") as stream:
            self._table = pyarrow.csv.read_csv(stream)
        self.schema = self._table.schema
        self.group_rows = [min(3, self._table.num_rows - i) for i in range(0, self._table.num_rows, 3)]

    def load(self, row_group: int, columns: list[str]) -> Any:
        return self._table.select(columns).slice(3 * row_group, 3)


@pytest.fixture
def csv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FORMATS, "_entries", dict(FORMATS))
    register_format(".rows", Rows)


def write_rows(path: Path, num_rows: int) -> None:
    path.write_text("y,a,s\n" + "".join(f"{i % 2},{i / 2},{i}\n" for i in range(num_rows)))


def test_a_registered_format_is_read_as_parquet_is(csv: None, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.rows", 7)
    pq.write_table(pyarrow.csv.read_csv(tmp_path / "a.rows"), tmp_path / "b.parquet", row_group_size=3)
    of_csv, of_parquet = (
        Reader(str(tmp_path / name), SCHEMA, batch_size=4, seed=1) for name in ("a.rows", "b.parquet")
    )
    assert of_csv.num_rows == 7
    for (one, _), (other, _) in zip(of_csv.read(), of_parquet.read(), strict=True):
        assert one.dense.tolist() == other.dense.tolist()
        assert one.slots.keys.tolist() == other.slots.keys.tolist()
        assert one.label.tolist() == other.label.tolist()
    assert [type(file) for file in open_dataset(str(tmp_path)).files] == [Rows, ParquetFile]


def test_a_position_does_not_fit_a_file_that_was_rewritten(csv: None, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.rows", 7)
    _, position = next(Reader(str(tmp_path / "a.rows"), SCHEMA, batch_size=4).read())
    (tmp_path / "a.rows").write_text((tmp_path / "a.rows").read_text().replace("3.0", "3.25"))
    with pytest.raises(DataError, match="files were added, removed or rewritten"):
        next(Reader(str(tmp_path / "a.rows"), SCHEMA, batch_size=4).read(position))


def test_a_registered_format_is_described(csv: None, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.rows", 7)
    described = describe(str(tmp_path / "a.rows"), "y")
    assert (described.rows, described.row_groups) == (7, 3)
    assert described.file_bytes == (tmp_path / "a.rows").stat().st_size
    assert {column.missing for column in described.columns} == {0}


def test_errors_name_the_formats_that_there_are(csv: None, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no data file\. The name of one ends in \.parquet, \.parq, \.pq, \.csv, .*\.rows \("
    ):
        open_dataset(str(tmp_path))
    (tmp_path / "a.rows").write_text("y,a\n1\n")
    with pytest.raises(DataError, match=r"not a Rows file that can be read .* for example data/\*\.rows"):
        open_dataset(str(tmp_path))


def test_the_longest_suffix_decides_and_any_other_name_is_parquet(csv: None) -> None:
    class Packed(Rows):
        pass

    register_format(".packed.rows", Packed)
    names = ("x.PARQUET", "x.rows", "x.packed.rows", "x", "x.rows.bak")
    assert [format_of(name) for name in names] == [ParquetFile, Rows, Packed, ParquetFile, ParquetFile]


def test_suffixes_are_checked_and_registered_once(csv: None) -> None:
    register_format(".rows", Rows)
    with pytest.raises(ConfigError, match=r"already a data format for files that end in '\.rows'"):
        register_format(".rows", ParquetFile)
    for suffix in ("rows", ".ROWS"):
        with pytest.raises(ConfigError, match="starts with a dot and is in small letters"):
            register_format(suffix, Rows)


def test_a_job_can_name_every_kind_of_format() -> None:
    for kind, format in KINDS.items():
        assert Format(kind=kind).kind == kind
        assert format_of("rows", kind) is format
