"""Files of text are row groups like any other: any group, any number of times, with types that hold for all files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import heterps.data.text.file as text_file
from heterps.config import Format, Schema
from heterps.data.cache import cache_folder
from heterps.data.keys import make_keys
from heterps.data.reader import Reader
from heterps.data.sources import open_dataset
from heterps.data.text.lines import MAX_ROWS
from heterps.errors import DataError

NAMES = ("label", "user", "price", "title", "day")


def make_rows(num_rows: int, seed: int = 0) -> list[tuple[Any, ...]]:
    draw = random.Random(seed)
    titles = ["plain", 'says "hi"', "two\nlines", "with, comma", ""]
    return [
        (
            i % 2,
            draw.randrange(10**6),
            draw.choice([None, draw.random()]),
            draw.choice(titles),
            f"2021-03-{1 + i % 28:02}",
        )
        for i in range(num_rows)
    ]


def write_csv(path: Path, rows: list[tuple[Any, ...]], delimiter: str = ",", header: bool = True) -> Path:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerows(([NAMES] if header else []) + rows)
    path.write_bytes(packed(path, text.getvalue().encode()))
    return path


def packed(path: Path, data: bytes) -> bytes:
    if path.suffix == ".gz":
        return gzip.compress(data)
    return pa.compress(data, "zstd", asbytes=True) if path.suffix == ".zst" else data


def read_all(path: Path, columns: list[str], options: Format = Format()) -> list[tuple[Any, ...]]:
    """All rows of a file, read from the last row group to the first."""
    file = open_dataset(str(path), options).files[0]
    groups = {i: file.read(i, columns).to_pydict() for i in reversed(range(len(file.group_rows)))}
    return [row for i in sorted(groups) for row in zip(*groups[i].values(), strict=True)]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.zst", "a.tsv", "a.tsv.gz"])
def test_every_row_of_a_file_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    rows = make_rows(2 * MAX_ROWS + 1000)
    path = write_csv(tmp_path / name, rows, "\t" if ".tsv" in name else ",")
    dataset = open_dataset(str(path))
    assert [str(field.type) for field in dataset.files[0].schema] == [
        "int64", "int64", "double", "string", "date32[day]",
    ]  # fmt: skip
    assert dataset.files[0].group_rows == [MAX_ROWS, MAX_ROWS, 1000]
    wanted = [(label, user, price, title or None) for label, user, price, title, _ in rows]
    assert read_all(path, list(NAMES[:4])) == wanted
    assert read_all(path, ["title"]) == [row[3:] for row in wanted]


def test_files_without_a_header_are_named_by_the_job(tmp_path: Path) -> None:
    rows = make_rows(10)
    path = write_csv(tmp_path / "u.data", rows, "|", header=False)
    options = Format(kind="csv", delimiter="|", names=NAMES)
    assert [row[0] for row in read_all(path, ["user"], options)] == [row[1] for row in rows]
    with pytest.raises(DataError, match=r"u\.data: .*taken for Parquet: .* data\.format: \{kind: csv\}"):
        open_dataset(str(path))
    with pytest.raises(DataError, match=r"has no ',', but '\|'"):
        open_dataset(str(path), Format(kind="csv"))
    with pytest.raises(DataError, match=r"first line is no header.*Name its 5 columns.*data\.format: \{names"):
        open_dataset(str(path), Format(kind="csv", delimiter="|"))


def test_lists_in_a_value_are_split(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("y\tgenres\tids\n1\tAction|War\t3|4\n0\t\t5\n1\tWar||\t\n")
    options = Format(lists={"genres": "|", "ids": "|"})
    rows = read_all(tmp_path / "a.tsv", ["genres", "ids"], options)
    assert rows == [(["Action", "War"], [3, 4]), (None, [5]), (["War", None, None], None)]
    schema = Schema(label="y", dense=(), slots=("genres", "ids"))
    batch, _ = next(Reader(open_dataset(str(tmp_path), options), schema, batch_size=3, shuffle=False).read())
    assert batch.slots.keys[:4].tolist() == [
        *make_keys(["Action", "War"], "genres"), *make_keys([3, 4], "ids"),
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"data\.format\.lists names tags"):
        open_dataset(str(tmp_path), Format(lists={"tags": "|"}))


def test_all_files_of_a_data_set_agree_on_types(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,zip,x\n1,10001,3\n0,,\n")
    (tmp_path / "b.csv").write_text("label,zip,x\n1,K1A,2.5\n")
    dataset = open_dataset(str(tmp_path))
    assert {str(file.schema.field("zip").type) for file in dataset.files} == {"string"}
    assert {str(file.schema.field("x").type) for file in dataset.files} == {"double"}
    batch, _ = next(Reader(dataset, Schema(dense=("x",), slots=("zip",)), batch_size=3, shuffle=False).read())
    assert batch.slots.keys[0] == make_keys(["10001"], "zip")[0]


def test_the_types_that_a_job_names_come_first(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,zip,n\n1,10001,3\n")
    file = open_dataset(str(tmp_path), Format(types={"zip": "string", "n": "number"})).files[0]
    assert file.read(0, ["zip", "n"]).to_pydict() == {"zip": ["10001"], "n": [3.0]}


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"y": i % 2, "ids": list(range(i % 4)), "big": 2**63 + i, "w": 0.5 * i} for i in range(MAX_ROWS + 5)]
    rows[7]["at"] = "2021-01-01T00:00:00"
    rows[8]["inner"] = {"a": 1}
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"y": 1, "other": "x"}\n'))
    first, second = open_dataset(str(tmp_path)).files
    columns = ["y", "ids", "big", "w", "at", "inner", "other"]
    assert first.schema.names == second.schema.names == columns
    assert [str(kind) for kind in first.schema.types[2:5]] == ["uint64", "double", "timestamp[us]"]
    wanted = [(row["y"], row["ids"], row["big"], row["w"]) for row in rows]
    assert read_all(tmp_path / "a.jsonl", columns[:4]) == wanted
    assert second.read(0, ["ids", "other"]).to_pydict() == {"ids": [None], "other": ["x"]}


def test_libsvm(tmp_path: Path) -> None:
    (tmp_path / "a.libsvm").write_text("1 3:1 17:0.5  # first\n-1\n\n+1 1:2e-1 \n")
    assert read_all(tmp_path / "a.libsvm", ["label", "ids", "values"]) == [
        (1.0, [3, 17], [1.0, 0.5]), (-1.0, [], []), (1.0, [1], [pytest.approx(0.2)]),
    ]  # fmt: skip
    (tmp_path / "b.svm").write_text("2 qid:7 1:1\n0 qid:8 2:1 3:1\n")
    assert read_all(tmp_path / "b.svm", ["qid", "ids"]) == [(7, [1]), (8, [2, 3])]


def test_criteo(tmp_path: Path) -> None:
    line = "\t".join(["1", *map(str, range(12)), "", *(f"{i:08x}" for i in range(25)), ""])
    (tmp_path / "day_0").write_text(line + "\n" + line.replace("1", "0", 1) + "\n")
    dataset = open_dataset(str(tmp_path), Format(kind="criteo"))
    batch, _ = next(Reader(dataset, Schema(), batch_size=2, shuffle=False).read())
    assert batch.dense[0].tolist() == [*range(12), 0]
    assert batch.label.tolist() == [1, 0]
    assert batch.slots.keys[24] == make_keys(["00000018"], "C25")[0]
    (tmp_path / "x.tsv").write_text(line + "\n")
    with pytest.raises(DataError, match=r"If these are Criteo's click logs, set data\.format: \{kind: criteo\}"):
        open_dataset(str(tmp_path / "x.tsv"))


# --- what does not fit -----------------------------------------------------------------------------------------------


def long_file(path: Path, head: str, line: str, wrong: str, row: int) -> Path:
    """A file of which one row, after those of the samples, is wrong."""
    lines = [line] * (MAX_ROWS + 10_000)
    lines[row] = wrong
    path.write_text(head + "\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "head", "line", "wrong", "says"),
    [
        (
            "a.csv",
            "y,n,s\n",
            '1,5,"a"',
            "1,five,b",
            r"row 20000, column n: 'five' is not a whole.*types: \{n: st",
        ),
        ("a.csv", "y,n,s\n", "1,5,a", "1,2.5,b", r"row 20000, column n: '2\.5' is not a whole number"),
        ("a.csv", "y,n,s\n", "1,5,a", "1,5", r"row 20000: the line has 2 values, but there are 3 columns: '1,5'"),
        ("a.csv", "y,n,s\n", "1,,a", "1,7,a", r"row 20000, column n: '7' is not missing"),
        ("a.jsonl", "", '{"y": 1, "n": 5}', '{"y": 1, "n": "a"}', "row 20000, column n: 'a' is not a whole number"),
        ("a.jsonl", "", '{"y": 1, "n": 5}', '{"y": 1, "n"', "row 20000: the line is not a JSON object"),
        ("a.libsvm", "", "1 5:1", "1 5:x", "row 20000: the line is not a label with pairs of index:value: '1 5:x'"),
    ],
)
def test_a_value_that_does_not_fit_is_named(
    tmp_path: Path, name: str, head: str, line: str, wrong: str, says: str
) -> None:
    file = open_dataset(str(long_file(tmp_path / name, head, line, wrong, 20_000))).files[0]
    columns = ["label", "values"] if name == "a.libsvm" else ["y", "n"]
    assert file.read(0, columns).num_rows == MAX_ROWS
    with pytest.raises(DataError, match=f"{name}: {says}"):
        file.read(1, columns)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "", "it is empty"),
        ("a.csv", "1,2,3\n4,5,6\n", "its first line is no header"),
        ("a.csv", "a,a\n4,5\n", "its first line is no header"),
        ("a.csv", 'a,b\n1,"x\n', "a quote is never closed"),
        ("a.jsonl", "a,b\n1,2\n", "its first lines hold no JSON object"),
        ("a.svm", "a,b\n1,2\n", "its first line is not a label"),
        ("a.csv.gz", "a,b\n", "cannot read this file|not a CSV file"),
    ],
)
def test_another_format_is_refused(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=rf"{name}: .*({says})"):
        open_dataset(str(tmp_path))


def test_a_file_of_a_header_alone_is_an_empty_data_set(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n")
    with pytest.raises(DataError, match="the data set is empty"):
        open_dataset(str(tmp_path))


# --- the cache -------------------------------------------------------------------------------------------------------


def test_a_file_is_cut_and_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_csv(tmp_path / "a.csv.gz", make_rows(100))
    rows = read_all(path, ["user"])
    made = {file.name: file.stat().st_mtime_ns for file in cache_folder().iterdir()}
    assert sorted(Path(name).suffix for name in made) == [".index", ".lock", ".lock", ".text"]
    assert read_all(path, ["user"]) == rows
    assert {file.name: file.stat().st_mtime_ns for file in cache_folder().iterdir()} == made
    write_csv(path, make_rows(101, seed=1))
    assert len(read_all(path, ["user"])) == 101  # a file that was written anew is read anew


def test_a_large_compressed_file_is_to_be_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_csv(tmp_path / "a.csv.gz", make_rows(100))
    monkeypatch.setattr(text_file, "MAX_PACKED_BYTES", 100)
    with pytest.raises(DataError, match=r"too large to be unpacked.*heterps data convert .*a\.csv\.gz FOLDER"):
        open_dataset(str(path))


def test_a_file_that_changes_while_it_is_in_use_is_noticed(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", make_rows(100))
    file = open_dataset(str(path)).files[0]
    path.write_bytes(path.read_bytes().replace(b"2021", b"2022", 1))
    with pytest.raises(DataError, match=r"row group 0 cannot be read: its bytes are not those"):
        file.read(0, ["user"])


def test_batches_are_those_of_the_same_rows_in_parquet(tmp_path: Path) -> None:
    """The order is a function of row groups and seed, so that positions and leases hold for text as for Parquet."""
    import pyarrow.parquet as pq

    path = write_csv(tmp_path / "a.csv", make_rows(40_000))
    table = open_dataset(str(path)).files[0]
    whole = pa.concat_tables([table.read(i, list(NAMES)) for i in range(len(table.group_rows))])
    pq.write_table(whole, tmp_path / "a.parquet", row_group_size=MAX_ROWS)
    schema = Schema(dense=("price",), slots=("user", "title"))
    of_text, of_parquet = (Reader(str(tmp_path / name), schema, batch_size=999) for name in ("a.csv", "a.parquet"))
    positions = []
    for (one, position), (other, _) in zip(of_text.read(), of_parquet.read(), strict=True):
        np.testing.assert_array_equal(one.dense, other.dense)
        np.testing.assert_array_equal(one.slots.keys, other.slots.keys)
        positions.append((one, position))
    again, _ = next(of_text.read(positions[20][1]))
    np.testing.assert_array_equal(again.slots.keys, positions[21][0].slots.keys)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_row_may_be_longer_than_the_blocks_that_are_parsed(tmp_path: Path, name: str) -> None:
    words = ["w" * size for size in (10, 3 << 20, 600_000, 5)]
    if name == "a.csv":
        (tmp_path / name).write_text("y,text\n" + "".join(f'{i},"{word}"\n' for i, word in enumerate(words)))
    else:
        lines = (json.dumps({"y": i, "text": word}) for i, word in enumerate(words))
        (tmp_path / name).write_text("\n".join(lines))
    assert [len(text) for _, text in read_all(tmp_path / name, ["y", "text"])] == [10, 3 << 20, 600_000, 5]
