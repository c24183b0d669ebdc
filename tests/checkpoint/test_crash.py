"""Crash at every write, sync, rename and removal of a save: the old or the new is there, never half of one."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fragile import Crash, FragileOS
from snapshots import assert_same, make

from heterps.checkpoint import disk, latest, load, load_latest, save, snapshot

KILL, POWER = "the process is killed", "the power fails"


@pytest.fixture
def crash_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Path]]:
    """Run a save once for each of its calls, crashing there; the folders that are left, in the order of the calls."""

    def run(base: Path, clock: int, how: str) -> list[Path]:
        monkeypatch.setattr(snapshot, "PART_ROWS", 2)

        def attempt(number: int | None) -> tuple[Path, FragileOS]:
            folder = tmp_path / "attempts" / str(number) / "run" / "checkpoints"
            if base.exists():
                shutil.copytree(base, folder)
            else:
                folder.parent.parent.mkdir(parents=True)
            fragile = FragileOS(number)
            with monkeypatch.context() as patch:
                patch.setattr(disk, "os", fragile)
                if number is None:
                    save(folder, make(clock))
                else:
                    with pytest.raises(Crash):
                        save(folder, make(clock))
            if how is POWER:
                fragile.lose_power()
            return folder, fragile

        num_calls = attempt(None)[1].num_calls
        assert num_calls > 30, "the crash points are not reached: does disk.py still go through its `os`?"
        return [attempt(number)[0] for number in range(num_calls)]

    return run


@pytest.mark.parametrize("how", [KILL, POWER])
def test_a_crash_anywhere_leaves_the_old_or_the_new(
    tmp_path: Path, crash_everywhere: Callable[..., list[Path]], caplog: pytest.LogCaptureFixture, how: str
) -> None:
    base = tmp_path / "base"
    for clock in (1, 2):
        save(base, make(clock))
    clocks = []
    with caplog.at_level(logging.WARNING):
        for folder in crash_everywhere(base, 3, how):
            finished = [path for path in folder.iterdir() if not path.name.startswith(".")]
            assert len(finished) >= 2
            for path in finished:  # not only the newest: whatever has a checkpoint's name is whole
                assert_same(load(path), make(int(path.name)))
            clocks.append(load_latest(folder).clock)
            save(folder, make(4))
            assert sorted(path.name for path in folder.iterdir()) == [f"{clocks[-1]:010d}", "0000000004"]
    assert not caplog.records, "a checkpoint was damaged or could not be removed"
    assert set(clocks) == {2, 3}
    assert clocks == sorted(clocks)


@pytest.mark.parametrize("how", [KILL, POWER])
def test_a_crash_of_the_first_save_leaves_nothing_or_all(
    tmp_path: Path, crash_everywhere: Callable[..., list[Path]], how: str
) -> None:
    for folder in crash_everywhere(tmp_path / "not there", 1, how):
        if latest(folder) is not None:
            assert_same(load_latest(folder), make(1))
        save(folder, make(2))
        assert_same(load_latest(folder), make(2))


def test_the_fragile_disk_itself_forgets_what_was_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the syncs the promise does not hold: so the tests above can fail."""
    for clock in (1, 2):
        save(tmp_path, make(clock))
    fragile = FragileOS()
    monkeypatch.setattr(disk, "os", fragile)
    monkeypatch.setattr(disk, "sync_folder", lambda path: None)
    save(tmp_path, make(3))
    fragile.lose_power()
    assert latest(tmp_path) != tmp_path / "0000000003"
