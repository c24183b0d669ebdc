"""A stream on disk: who follows gets every version once, in order, and never a chain that is broken."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from heterps.checkpoint import Snapshot, TableRows, load
from heterps.checkpoint import disk as disk_module
from heterps.checkpoint.finished import short_name
from heterps.checkpoint.stream import Stream, StreamWriter, Version
from heterps.errors import RunError, StorageError


def snapshot(
    clock: int, parent: str | None = None, *, num_rows: int = 4, size: int = 2, gone: tuple[int, ...] = ()
) -> Snapshot:
    """Rows and weights that are all `clock`; increments have one row."""
    num = 1 if parent else num_rows
    metadata = {"gone": np.array(gone, np.uint64)} if gone else {}
    keys, values = np.arange(num, dtype=np.uint64), np.full((num, 3), clock, np.float32)
    table = TableRows(keys, values, np.empty((num, 0), np.float32), metadata=metadata)
    dense = {"model/w.weight": np.full(size, clock, np.float32), "model/norm.num": np.array(clock)}
    return Snapshot(clock, 10 * clock, dense, {"user": table}, parent=parent)


def names(versions: list[Version]) -> list[str]:
    return [version.name for version in versions]


def folders(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "stream").iterdir())


def write(writer: StreamWriter, clock: int, **fields) -> Path:
    """As a job does: on what the writer builds on."""
    return writer.write(snapshot(clock, writer.parent, **fields))


def test_a_follower_gets_what_was_written(tmp_path: Path) -> None:
    writer, stream = StreamWriter(tmp_path), Stream(tmp_path)
    assert stream.poll() == []
    write(writer, 5, num_rows=1000)
    (version,) = stream.poll()
    assert (version.name, version.clock, version.samples, version.parent) == ("5", 5, 50, None)
    assert version.is_full
    assert {name: array.tolist() for name, array in version.weights.items()} == {"w.weight": [5, 5], "norm.num": 5}
    keys, values = version.rows["user"]
    assert (keys.tolist(), values.shape, set(values.flat)) == (list(range(1000)), (1000, 3), {5.0})
    assert version.gone["user"].tolist() == []
    write(writer, 7, gone=(3, 2**64 - 1))
    (version,) = stream.poll()
    assert (version.name, version.parent, version.is_full) == ("7", "5", False)
    assert version.rows["user"][0].tolist() == [0]
    assert version.gone["user"].tolist() == [3, 2**64 - 1]
    assert stream.poll() == []


def test_who_comes_late_gets_the_newest_full_version_and_what_builds_on_it(tmp_path: Path) -> None:
    writer = StreamWriter(tmp_path)
    for clock in (1, 2, 3):
        write(writer, clock, num_rows=1000)
    assert names(Stream(tmp_path).poll()) == ["1", "2", "3"]


def test_a_full_version_comes_when_the_changes_take_more_bytes_and_older_chains_go(tmp_path: Path) -> None:
    writer, stream, seen = StreamWriter(tmp_path), Stream(tmp_path), []
    full = []
    for clock in range(1, 30):
        if writer.parent is None:
            full.append(clock)
        write(writer, clock, num_rows=100)
        seen += stream.poll()
        starts = [c for c in full if c <= clock][-2:]
        assert folders(tmp_path) == [f"{c:010d}" for c in range(starts[0], clock + 1)], "two chains stay"
    assert names(seen) == [str(clock) for clock in range(1, 30)]
    assert [version.clock for version in seen if version.is_full] == full
    assert 2 < len(full) < 15


def test_who_is_behind_goes_to_the_end_of_its_chain_and_on_to_the_next(tmp_path: Path) -> None:
    writer, stream = StreamWriter(tmp_path), Stream(tmp_path)
    write(writer, 1)
    stream.poll()
    write(writer, 2)
    writer.write(snapshot(3))
    write(writer, 4)
    versions = stream.poll()
    assert names(versions) == ["2", "3", "4"]
    assert [version.is_full for version in versions] == [False, True, False]


def test_who_was_away_for_long_starts_from_all_rows(tmp_path: Path) -> None:
    writer, stream = StreamWriter(tmp_path), Stream(tmp_path)
    write(writer, 1)
    stream.poll()
    for clock in (2, 3, 4):
        writer.write(snapshot(clock))
    assert names(stream.poll()) == ["4"], "1 was removed, and 3 is older than 4"


def test_a_run_that_went_back_starts_a_chain_of_its_own(tmp_path: Path) -> None:
    writer, stream = StreamWriter(tmp_path), Stream(tmp_path)
    for clock in (10, 20, 30):
        write(writer, clock, num_rows=100)
    assert names(stream.poll()) == ["10", "20", "30"]
    resumed = StreamWriter(tmp_path)
    write(resumed, 15, num_rows=100)
    assert folders(tmp_path) == ["0000000010", "0000000015"]
    assert names(stream.poll()) == ["15"]
    write(resumed, 20, num_rows=100)
    write(resumed, 30, num_rows=100)
    assert names(stream.poll()) == ["20", "30"]


def test_a_version_of_a_given_up_past_is_not_taken_for_the_new_one_of_its_name(tmp_path: Path) -> None:
    """The follower slept while the run went back and came to the same clock again, with other rows."""
    writer, stream = StreamWriter(tmp_path), Stream(tmp_path)
    write(writer, 10)
    write(writer, 20)
    assert names(stream.poll()) == ["10", "20"]
    resumed = StreamWriter(tmp_path)
    resumed.write(snapshot(15, num_rows=100))
    resumed.write(snapshot(20, "0000000015", size=3))
    resumed.write(snapshot(30, "0000000020"))
    assert names(stream.poll()) == ["15", "20", "30"]


def test_a_clock_that_is_reached_again_gets_another_name(tmp_path: Path) -> None:
    writer, stream = StreamWriter(tmp_path), Stream(tmp_path)
    write(writer, 10)
    stream.poll()
    write(StreamWriter(tmp_path), 10)
    assert folders(tmp_path) == ["0000000010-2"]
    assert names(stream.poll()) == ["10-2"]
    assert short_name("0000000000") == "0"


@pytest.mark.parametrize("damage", ["cut", "missing", "manifest"])
def test_a_damaged_version_is_passed_over_until_all_rows_come(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer, stream = StreamWriter(tmp_path), Stream(tmp_path)
    write(writer, 1, num_rows=100)
    stream.poll()
    path = write(writer, 2)
    write(writer, 3)
    target = path / ("manifest.json" if damage == "manifest" else "dense.safetensors")
    if damage == "missing":
        target.unlink()
    else:
        target.write_bytes(target.read_bytes()[:-3])
    assert stream.poll() == stream.poll() == []
    assert len(caplog.records) == (damage != "manifest"), "it is told once"
    writer.write(snapshot(4))
    write(writer, 5)
    assert names(stream.poll()) == ["4", "5"]


def test_a_damaged_full_version_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    writer = StreamWriter(tmp_path)
    write(writer, 1, num_rows=100)
    write(writer, 2)
    path = writer.write(snapshot(3))
    (path / "dense.safetensors").unlink()
    assert names(Stream(tmp_path).poll()) == ["1", "2"]


def test_a_version_that_vanishes_while_it_is_read_is_no_error(tmp_path: Path, monkeypatch, caplog) -> None:
    writer, stream = StreamWriter(tmp_path), Stream(tmp_path)
    write(writer, 1, num_rows=100)
    path = write(writer, 2)
    measure = disk_module.measure

    def vanishing(file: Path) -> tuple[int, str]:
        if path in file.parents:
            shutil.rmtree(path, ignore_errors=True)
        return measure(file)

    monkeypatch.setattr(disk_module, "measure", vanishing)
    assert names(stream.poll()) == ["1"]
    assert not caplog.records
    writer.write(snapshot(3))
    assert names(stream.poll()) == ["3"]


def test_after_a_failed_write_the_next_version_has_all_rows(tmp_path: Path, monkeypatch) -> None:
    writer = StreamWriter(tmp_path)
    write(writer, 1, num_rows=100)
    assert writer.parent == "0000000001"
    with monkeypatch.context() as patched:
        patched.setattr("heterps.checkpoint.store.disk.rename", full_disk)
        with pytest.raises(StorageError, match="no space"):
            write(writer, 2)
    assert writer.parent is None
    assert folders(tmp_path) == ["0000000001"], "no draft is left"
    write(writer, 3)
    assert names(Stream(tmp_path).poll()) == ["3"]


def full_disk(*_: object) -> None:
    raise OSError(28, "no space")


def test_changes_alone_are_not_loaded_as_a_checkpoint(tmp_path: Path) -> None:
    writer = StreamWriter(tmp_path)
    full, changes = write(writer, 1, num_rows=100), write(writer, 2)
    assert len(load(full).tables["user"]) == 100
    with pytest.raises(RunError, match="has only what changed since 0000000001"):
        load(changes)
