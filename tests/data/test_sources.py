import json

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from webhdfs import name_node

from heterps.cli import main
from heterps.data.sources import _address, open_dataset
from heterps.errors import DataError


@pytest.fixture
def folder(tmp_path):
    """Two files of row groups of 2, 2, 1 and 2, 1 rows, beside files that are no data."""
    pq.write_table(pa.table({"x": [1, 2, 3, 4, 5]}), tmp_path / "b.parquet", row_group_size=2)
    pq.write_table(pa.table({"x": [6, 7, 8]}), tmp_path / "a.parquet", row_group_size=2)
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".hidden.parquet").write_text("")
    (tmp_path / "notes.txt").write_text("hello")
    return tmp_path


def names(dataset):
    return [file.path.rsplit("/", 1)[-1] for file in dataset.files]


def test_a_folder_stands_for_its_parquet_files_in_order(folder):
    dataset = open_dataset(str(folder))
    assert names(dataset) == ["a.parquet", "b.parquet"]
    assert dataset.num_rows == 8
    assert [(group.first_row, group.num_rows) for group in dataset.row_groups] == [
        (0, 2),
        (2, 1),
        (0, 2),
        (2, 2),
        (4, 1),
    ]


def test_globs_files_and_lists_find_the_same_and_a_file_named_twice_counts_once(folder):
    both = ["a.parquet", "b.parquet"]
    assert names(open_dataset(f"{folder}/*.parquet")) == both
    assert names(open_dataset([f"{folder}/b.parquet", f"{folder}/a.parquet", f"{folder}/?.parquet"])) == both
    assert names(open_dataset(f"file://{folder}/b.parquet")) == ["b.parquet"]


def test_other_file_systems_are_read_by_address():
    memory = fsspec.filesystem("memory")
    with memory.open("/sources/x.parquet", "wb") as stream:
        pq.write_table(pa.table({"x": [1, 2, 3]}), stream)
    dataset = open_dataset("memory://sources/*.parquet")
    assert dataset.files[0].address == "memory:///sources/x.parquet"
    assert dataset.files[0].read(0, ["x"]).column("x").to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("words", ["data", "data/", "data/*.parquet"])
def test_files_of_webhdfs_keep_their_host(folder, words):
    with name_node(folder.parent) as host:
        source = f"{host}/{folder.name}{words.removeprefix('data')}"
        dataset = open_dataset(source)
        assert [file.address for file in dataset.files] == [f"{host}/{folder.name}/{name}" for name in names(dataset)]
        assert names(dataset) == ["a.parquet", "b.parquet"]
        assert dataset.files[0].read(1, ["x"]).column("x").to_pylist() == [8]


def test_data_on_webhdfs_is_described_by_the_command(folder, capsys):
    with name_node(folder) as host, pytest.raises(SystemExit) as end:
        main(["data", "describe", f"{host}/b.parquet", "--json"])
    assert end.value.code == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 5


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("webhdfs:///data/x.parquet", "not an address that can be read"),
        ("webhdfs://127.0.0.1:9/x.parquet", "webhdfs://127.0.0.1:9/x.parquet: cannot be read, after 5 attempts"),
    ],
)
def test_a_name_node_that_is_missing_is_told(address, says, monkeypatch):
    monkeypatch.setattr("heterps.data.storage.FIRST_DELAY_S", 0.0)
    with pytest.raises(DataError, match=says):
        open_dataset(address)


def test_hosts_that_a_file_system_strips_from_its_paths_are_put_back():
    class Hdfs:
        def unstrip_protocol(self, name):
            return f"hdfs://{name}"

    address = _address("hdfs://user@node:8020/day=*/x", Hdfs(), "/day=*/x", "/day=1/x")
    assert address == "hdfs://user@node:8020/day=1/x"


def test_only_the_named_columns_of_a_row_group_are_read(tmp_path):
    pq.write_table(pa.table({"x": [1, 2, 3], "y": [4, 5, 6]}), tmp_path / "a.parquet", row_group_size=2)
    table = open_dataset(str(tmp_path)).files[0].read(1, ["y"])
    assert table.to_pydict() == {"y": [6]}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "no such file or folder"),
        ("*.csv", "no file matches"),
        ("notes.txt", "not a Parquet file"),
        ("empty", "holds no data file"),
    ],
)
def test_what_cannot_be_data_is_named(folder, source, message):
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match=message) as caught:
        open_dataset(f"{folder}/{source}")
    assert source in str(caught.value)


def test_a_relative_path_is_told_with_the_folder_that_it_is_relative_to(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for source in ("nowhere", "no/*.parquet"):
        with pytest.raises(DataError, match=f"{source.replace('*', '.')}: .* in {folder}, the working directory"):
            open_dataset(source)


def test_a_folder_of_folders_says_which_to_name(tmp_path):
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=r"not searched \(test, train\)"):
        open_dataset(str(tmp_path))


def test_an_empty_list_is_refused():
    with pytest.raises(DataError, match="no training data is named"):
        open_dataset([])


def test_files_without_rows_are_an_empty_data_set(tmp_path):
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: the data set is empty"):
        open_dataset(str(tmp_path))


def test_unknown_protocols_and_missing_packages_are_named():
    with pytest.raises(DataError, match="nosuch://x: this is not an address"):
        open_dataset("nosuch://x")


def test_a_truncated_file_is_named(folder):
    (folder / "a.parquet").write_bytes((folder / "a.parquet").read_bytes()[:-10])
    with pytest.raises(DataError, match=r"a\.parquet: this is not a Parquet file"):
        open_dataset(str(folder))


def test_a_file_that_cannot_be_opened_is_named(folder, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("permission denied")

    monkeypatch.setattr(pa, "OSFile", refuse)
    with pytest.raises(DataError, match=r"a\.parquet: cannot read this file: permission denied"):
        open_dataset(f"{folder}/a.parquet")


def test_damage_found_while_reading_names_file_and_row_group(folder):
    dataset = open_dataset(f"{folder}/a.parquet")
    (folder / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"a\.parquet: row group 1 cannot be read"):
        dataset.files[0].read(1, ["x"])


def test_row_groups_without_rows_are_left_out_and_the_others_keep_their_places(tmp_path):
    table = pa.table({"x": pa.array([1, 2, 3])})
    with pq.ParquetWriter(tmp_path / "data.parquet", table.schema) as writer:
        for part in (table, table.slice(0, 0), table.slice(0, 2), table):
            writer.write_table(part)
    groups = open_dataset(str(tmp_path)).row_groups
    assert [(group.index, group.first_row, group.num_rows) for group in groups] == [(0, 0, 3), (2, 3, 2), (3, 5, 3)]
