"""What comes back is what was saved, the right ones are kept, and refusals say why."""

from __future__ import annotations

import errno
import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from snapshots import assert_same, make

from heterps.checkpoint import Snapshot, TableRows, TableStream, disk, latest, load, load_latest, save
from heterps.checkpoint import snapshot as snapshot_module
from heterps.errors import CorruptCheckpoint, RunError, StorageError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- round trip ------------------------------------------------------------------------------------------------------


@st.composite
def table_rows(draw: st.DrawFn) -> TableRows:
    edges = st.sampled_from([0, 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
    keys = np.array(draw(st.lists(edges, max_size=20, unique=True)), np.uint64)

    def bits(width: int) -> np.ndarray:  # every float there is: NaN payloads, infinities, -0.0, subnormals
        return draw(hnp.arrays(np.uint32, (len(keys), width))).view(np.float32).reshape(len(keys), width)

    meta = draw(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3))
    clock = draw(hnp.arrays(np.uint32, len(keys)))
    values, state = bits(draw(st.integers(0, 5))), bits(draw(st.integers(0, 3)))
    metadata = draw(st.dictionaries(st.text(max_size=5), dense_arrays, max_size=2))
    return TableRows(keys, values, state, meta, bits(1)[:, 0], clock, metadata)


dense_arrays = hnp.arrays(
    st.sampled_from(["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]).map(np.dtype),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
snapshots = st.builds(
    Snapshot,
    clock=st.integers(0, 10**12),
    samples=st.integers(0, 10**15),
    dense=st.dictionaries(st.text(max_size=20), dense_arrays, max_size=3),
    tables=st.dictionaries(st.text(max_size=300), table_rows(), max_size=3),
    progress=st.dictionaries(st.text(max_size=5), json_values, max_size=3),
)


@given(snapshot=snapshots)
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_every_bit_comes_back(tmp_path_factory: pytest.TempPathFactory, snapshot: Snapshot) -> None:
    path = save(tmp_path_factory.mktemp("run"), snapshot)
    assert_same(load(path), snapshot)


def test_rows_of_many_chunks_come_back_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "PART_ROWS", 7)
    for num_rows in (1, 6, 7, 8, 14, 30):
        snapshot = make(num_rows, num_rows=num_rows)
        assert_same(load(save(tmp_path, snapshot)), snapshot)


def in_parts(table: TableRows) -> TableStream:
    read = table.parts
    return TableStream(len(table), table.widths, read, table.meta, table.metadata)


def test_a_table_saved_in_parts_is_the_table_saved_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "PART_ROWS", 7)
    whole = make(3, num_rows=30)
    parts = replace(whole, tables={name: in_parts(table) for name, table in whole.tables.items()})
    assert parts.num_bytes == whole.num_bytes
    assert_same(replace(parts, tables={name: table.whole() for name, table in parts.tables.items()}), whole)
    paths = save(tmp_path / "parts", parts), save(tmp_path / "whole", whole)
    assert_same(load(paths[0]), whole)
    first, second = ((path / "manifest.json").read_bytes() for path in paths)
    assert first == second


def test_a_stream_that_gives_other_rows_than_it_said_fails_the_save_and_leaves_nothing(tmp_path: Path) -> None:
    rows = make(1, num_rows=30).tables["user"]
    stream = TableStream(31, rows.widths, rows.parts)
    with pytest.raises(ValueError, match="31 rows gave 30"):
        save(tmp_path, Snapshot(1, 1, tables={"t": stream}))
    assert names(tmp_path) == []


def test_views_of_other_arrays_are_saved_as_they_read(tmp_path: Path) -> None:
    grid = np.arange(24, dtype=np.float32).reshape(4, 6)
    table = TableRows(np.arange(8, dtype=np.uint64)[::2], grid[:, ::3], grid[:, 1:2])
    snapshot = Snapshot(clock=1, samples=1, dense={"w": grid.T, "v": grid[1::2, ::2]}, tables={"t": table})
    found = load(save(tmp_path, snapshot))
    np.testing.assert_array_equal(found.dense["w"], grid.T)
    np.testing.assert_array_equal(found.dense["v"], grid[1::2, ::2])
    np.testing.assert_array_equal(found.tables["t"].whole().values, grid[:, ::3])


def test_what_is_loaded_can_be_written_to(tmp_path: Path) -> None:
    found = load(save(tmp_path, make(1)))
    found.dense["mlp.0.weight"][...] = 0
    found.tables["user"].whole().values[...] = 0


def test_a_row_costs_its_bytes_and_no_more(tmp_path: Path) -> None:
    snapshot = make(1, num_rows=100_000)
    path = save(tmp_path, snapshot)
    on_disk = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert on_disk < snapshot.num_bytes * 1.01 + 10_000


def test_other_tools_can_open_the_files(tmp_path: Path) -> None:
    import pyarrow.feather
    from safetensors.numpy import load_file

    path = save(tmp_path, snapshot := make(3))
    table = pyarrow.feather.read_table(path / "tables" / "000-user.arrow")
    assert table["keys"].to_pylist() == snapshot.tables["user"].keys.tolist()
    assert table["values"].to_pylist() == snapshot.tables["user"].values.tolist()
    assert set(load_file(path / "dense.safetensors")) == set(snapshot.dense)


def test_strange_table_names_stay_inside_the_folder(tmp_path: Path) -> None:
    empty = TableRows(np.empty(0, np.uint64), np.empty((0, 1), np.float32), np.empty((0, 0), np.float32))
    strange = ["../../etc", "/root", "a/b.c", ".", "..", "", "é" * 300, "A", "a", "con", "x\0y"]
    path = save(tmp_path, Snapshot(clock=1, samples=1, tables=dict.fromkeys(strange, empty)))
    assert list(load(path).tables) == strange
    assert len(names(path / "tables")) == len(strange)
    assert names(tmp_path) == ["0000000001"]


# --- which ones are kept ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [2, 3])
def test_the_newest_are_kept_and_the_rest_pruned(tmp_path: Path, keep: int) -> None:
    for clock in range(1, 7):
        save(tmp_path, make(clock), keep=keep)
    assert names(tmp_path) == [f"{clock:010d}" for clock in range(7 - keep, 7)]


def test_keeping_fewer_than_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least two"):
        save(tmp_path, make(1), keep=1)


def test_a_clock_reached_again_replaces_the_first_and_not_its_predecessor(tmp_path: Path) -> None:
    save(tmp_path, make(1))
    save(tmp_path, make(2))
    assert save(tmp_path, make(2)).name == "0000000002-2"
    assert save(tmp_path, make(2)).name == "0000000002-3"
    assert names(tmp_path) == ["0000000001", "0000000002-3"]


def test_a_run_that_went_back_removes_the_future_it_gave_up(tmp_path: Path) -> None:
    for clock in (1, 5, 6):
        save(tmp_path, make(clock), keep=3)
    save(tmp_path, make(2))
    assert names(tmp_path) == ["0000000001", "0000000002"]
    assert load_latest(tmp_path).clock == 2


def test_leftovers_of_crashed_saves_are_removed_and_files_of_others_are_not(tmp_path: Path) -> None:
    (tmp_path / ".saving-0000000009" / "tables").mkdir(parents=True)
    (tmp_path / ".saving-0000000009" / "tables" / "000-user.arrow").write_text("half")
    (tmp_path / ".removing-0000000001").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    save(tmp_path, make(2))
    assert names(tmp_path) == ["0000000002", "notes.txt"]


def test_the_latest_is_by_clock_and_not_by_name(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    assert latest(tmp_path / "nowhere") is None
    for clock in (9_999_999_999, 10_000_000_000):
        save(tmp_path, make(clock))
    assert latest(tmp_path) == tmp_path / "10000000000"


# --- refusals --------------------------------------------------------------------------------------------------------


def test_nothing_to_load_is_a_run_error_that_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no checkpoint here.*--resume"):
        load_latest(tmp_path)
    with pytest.raises(RunError, match="no such checkpoint"):
        load(tmp_path / "0000000001")


def test_the_previous_one_is_loaded_with_a_warning_when_the_newest_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, old := make(1))
    (save(tmp_path, make(2)) / "dense.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert_same(load_latest(tmp_path), old)
    assert "0000000002/dense.safetensors is damaged: it should be" in caplog.text
    assert "Going back to the checkpoint before it." in caplog.text


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_disk_that_has_lost_a_checkpoint_costs_that_one_and_a_missing_permission_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """What cannot be read back is damaged; what may not be read is somebody's mistake, and going back would hide it."""
    save(tmp_path, old := make(1))
    save(tmp_path, make(2))
    measure = disk.measure

    def broken(path: Path) -> tuple[int, str]:
        if "0000000002" in str(path):
            raise OSError(number, os.strerror(number))
        return measure(path)

    monkeypatch.setattr(disk, "measure", broken)
    if number == errno.EIO:
        assert_same(load_latest(tmp_path), old)
    else:
        with pytest.raises(StorageError, match=r"0000000002.* cannot be read: .*Check its permissions"):
            load_latest(tmp_path)


def test_one_bit_of_any_file_is_noticed_and_the_file_named(tmp_path: Path) -> None:
    path = save(tmp_path, make(1))
    files = sorted(file for file in path.rglob("*") if file.is_file())
    assert {"000-user.arrow", "000-user.safetensors", "dense.safetensors"} <= {file.name for file in files}
    for file in files:
        content = file.read_bytes()
        file.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        with pytest.raises(CorruptCheckpoint, match=f"{file.name} is damaged"):
            load(path)
        file.write_bytes(content)
    assert_same(load(path), make(1))


def test_when_none_is_good_the_error_names_every_file_with_its_digests(tmp_path: Path) -> None:
    for clock in (1, 2):
        path = save(tmp_path, make(clock))
        expected = json.loads((path / "manifest.json").read_text())["progress"]["xxh3"]
        (path / "progress.json").write_text("{}")
    with pytest.raises(CorruptCheckpoint) as error:
        load_latest(tmp_path)
    assert "0000000001/progress.json" in str(error.value)
    assert f"with digest {expected}, it is 2 bytes with digest" in str(error.value)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "Free space on that disk"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "Make the folder writable"),
        (errno.EROFS, "Mount the file system for writing"),
        (errno.EIO, "Check the disk"),
    ],
)
@pytest.mark.parametrize("call", ["mkdir", "open", "write", "fsync", "rename"])
def test_a_disk_that_refuses_is_a_storage_error_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, sentence: str
) -> None:
    save(tmp_path, make(1))
    save(tmp_path, newest := make(2))

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(disk.os, call, refuse)
        with pytest.raises(StorageError, match=sentence) as error:
            save(tmp_path, make(3))
    assert "cannot save the checkpoint of clock 3" in str(error.value)
    assert "What was saved before is as it was" in str(error.value)
    assert [name for name in names(tmp_path) if not name.startswith(".")] == ["0000000001", "0000000002"]
    assert_same(load_latest(tmp_path), newest)
    save(tmp_path, make(3))
    assert names(tmp_path) == ["0000000002", "0000000003"]


def test_a_full_disk_gets_the_half_written_space_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, room = os.write, 3000

    def fill(descriptor: int, data: memoryview) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[:room])
        room -= written
        return written

    monkeypatch.setattr(disk.os, "write", fill)
    with pytest.raises(StorageError, match="No space left on device"):
        save(tmp_path, make(1, num_rows=1000))
    assert names(tmp_path) == []


def test_an_old_checkpoint_that_cannot_be_removed_does_not_fail_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for clock in (1, 2):
        save(tmp_path, make(clock))

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(disk.os, "unlink", refuse)
        assert load(save(tmp_path, make(3))).clock == 3
    assert "is saved, but an old one could not be removed" in caplog.text
    save(tmp_path, make(4))
    assert names(tmp_path) == ["0000000003", "0000000004"]


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cannot save the checkpoint of clock 1"):
        save(tmp_path / "run" / "checkpoints", make(1))
