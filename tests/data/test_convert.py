"""Converted data has the rows, columns and order of its source, and the folder is whole or absent."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import heterps.data.convert as converting
from heterps.config import Format
from heterps.data.convert import convert
from heterps.errors import ConfigError, DataError


def text_of(first: int, num_rows: int) -> bytes:
    text = io.StringIO(newline="")
    rows = [[i % 2, i, i / 4 if i % 3 else "", f"a\n{i}"] for i in range(first, first + num_rows)]
    csv.writer(text).writerows([["label", "id", "x", "title"], *rows])
    return text.getvalue().encode()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows 0 to 99,999 in a plain, a gzip and a zstd file."""
    monkeypatch.setattr(converting, "ROWS_PER_FILE", 40_000)
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.csv").write_bytes(text_of(0, 30_000))
    (folder / "b.csv.gz").write_bytes(gzip.compress(text_of(30_000, 50_000)))
    (folder / "c.csv.zst").write_bytes(pa.compress(text_of(80_000, 20_000), "zstd", asbytes=True))
    return folder


def test_all_rows_come_in_their_order(source: Path, tmp_path: Path) -> None:
    done: list[int] = []
    info = convert(str(source), tmp_path / "out", progress=done.append)
    table = pq.read_table(tmp_path / "out")
    assert info.rows == table.num_rows == sum(done) == 100_000
    assert table["id"].to_pylist() == list(range(100_000))
    assert table["x"].slice(99_990).to_pylist() == [i / 4 if i % 3 else None for i in range(99_990, 100_000)]
    assert table["title"][50_000].as_py() == "a\n50000"
    assert info.columns == {"label": "int64", "id": "int64", "x": "double", "title": "string"}
    assert info.files == len(list((tmp_path / "out").glob("*.parquet"))) == 3
    assert json.loads((tmp_path / "out/_dataset.json").read_text())["rows"] == 100_000


def test_row_groups_are_of_a_size_that_readers_like(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(text_of(0, 150_000))
    convert(str(tmp_path / "a.csv"), tmp_path / "out")
    files = sorted((tmp_path / "out").glob("*.parquet"))
    groups = [pq.ParquetFile(file).metadata for file in files]
    assert [[m.row_group(i).num_rows for i in range(m.num_row_groups)] for m in groups] == [[65_536, 65_536], [18_928]]


def test_small_files_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for i in range(20):
        pq.write_table(pa.table({"x": [i] * 10}), tmp_path / "source" / f"{i:02}.parquet")
    assert convert(str(tmp_path / "source"), tmp_path / "out").files == 1
    assert pq.read_table(tmp_path / "out")["x"].to_pylist() == [i for i in range(20) for _ in range(10)]


def test_a_value_that_does_not_fit_is_named_and_nothing_is_left(source: Path, tmp_path: Path) -> None:
    data = text_of(0, 90_000).replace(b"1,80001,", b"1,eighty,")
    (source / "b.csv.gz").write_bytes(gzip.compress(data))
    with pytest.raises(DataError, match=r"b\.csv\.gz: row 80001, column id: 'eighty' is not a whole number"):
        convert(str(source), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_files_of_other_columns_and_other_formats_are_refused(source: Path, tmp_path: Path) -> None:
    (source / "d.csv").write_text("label,y\n1,2\n")
    with pytest.raises(DataError, match=r"d\.csv: this file and .*a\.csv differ in columns \(id, title, x, y\)"):
        convert(str(source), tmp_path / "out")
    (source / "b.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"b\.csv\.gz: cannot read this file"):
        convert(str(source), tmp_path / "out")


def test_a_folder_in_use_is_refused(source: Path, tmp_path: Path) -> None:
    convert(str(source / "a.csv"), tmp_path / "out")
    with pytest.raises(ConfigError, match="not empty"):
        convert(str(source / "a.csv"), tmp_path / "out")
    assert convert(str(source / "a.csv"), tmp_path / "out", force=True).rows == 30_000


def test_the_formats_options_are_honoured(tmp_path: Path) -> None:
    (tmp_path / "u.data.gz").write_bytes(gzip.compress(b"1|a;b|007\n2|c|x\n"))
    options = Format(kind="csv", delimiter="|", names=("n", "tags", "code"), lists={"tags": ";"}, types={"n": "string"})
    convert(str(tmp_path / "u.data.gz"), tmp_path / "out", options=options)
    assert pq.read_table(tmp_path / "out").to_pydict() == {
        "n": ["1", "2"], "tags": [["a", "b"], ["c"]], "code": ["007", "x"],
    }  # fmt: skip
