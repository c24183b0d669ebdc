"""A snapshot in a folder of its own: it replaces an older one whole, and a crash anywhere leaves one of the two."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from fragile import Crash, FragileOS
from snapshots import assert_same, make

from heterps.checkpoint import disk, load, save_as
from heterps.errors import RunError, StorageError


def test_a_snapshot_comes_back_and_a_newer_one_takes_its_place(tmp_path: Path) -> None:
    for clock in (1, 2):
        assert save_as(tmp_path / "a" / "model", make(clock)) == tmp_path / "a" / "model"
        assert_same(load(tmp_path / "a" / "model"), make(clock))
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model"]


def test_what_is_no_saved_model_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("x")
    with pytest.raises(RunError, match="no saved model"):
        save_as(tmp_path / "photos", make(1))
    assert (tmp_path / "photos" / "a.jpg").read_text() == "x"


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_crash_anywhere_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loses_power: bool
) -> None:
    save_as(tmp_path / "base" / "model", make(1))
    clocks = []
    for number in range(1000):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "base", folder)
        fragile = FragileOS(number)
        with monkeypatch.context() as patch:
            patch.setattr(disk, "os", fragile)
            try:
                save_as(folder / "model", make(2))
                break
            except Crash:
                pass
        if loses_power:
            fragile.lose_power()
        found = load(folder / "model")
        assert_same(found, make(found.clock))
        clocks.append(found.clock)
        save_as(folder / "model", make(3))  # goes on from there
        assert_same(load(folder / "model"), make(3))
        assert [path.name for path in folder.iterdir()] == ["model"]
    assert clocks == sorted(clocks)
    assert {1, 2} == set(clocks)


def test_a_full_disk_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_as(tmp_path / "model", make(1))

    class FullOS:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, *_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "os", FullOS())
        with pytest.raises(StorageError, match=r"cannot save the model .* No space left"):
            save_as(tmp_path / "model", make(2))
    assert_same(load(tmp_path / "model"), make(1))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
