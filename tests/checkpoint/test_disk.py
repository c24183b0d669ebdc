"""Files under a checkpoint: never written over, whole or an error, and measured as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heterps.checkpoint import disk


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"longer than what comes")
    with pytest.raises(FileExistsError), disk.new_file(path):
        pass
    assert path.read_bytes() == b"longer than what comes"


def test_a_disk_that_takes_a_part_of_every_write_gets_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, sizes = os.write, []

    def take_some(descriptor: int, data: memoryview) -> int:
        sizes.append(write(descriptor, data[:3]))
        return sizes[-1]

    monkeypatch.setattr(disk.os, "write", take_some)
    with disk.new_file(tmp_path / "file") as file:
        assert file.write(b"0123456789") == 10
    assert sizes == [3, 3, 3, 1]
    assert (tmp_path / "file").read_bytes() == b"0123456789"
    assert disk.measure(tmp_path / "file") == (file.num_bytes, file.xxh3)


def test_a_file_of_several_blocks_is_measured_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    whole = disk.measure(tmp_path / "file")
    monkeypatch.setattr(disk, "BLOCK_BYTES", 7)
    assert disk.measure(tmp_path / "file") == whole
    assert whole[0] == 100


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("mine")
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "link").symlink_to(tmp_path / "kept")
    disk.remove(tmp_path / "draft")
    assert (tmp_path / "kept" / "file").read_text() == "mine"
    assert not (tmp_path / "draft").exists()
