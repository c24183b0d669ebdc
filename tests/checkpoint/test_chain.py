"""Checkpoints that have only what changed since another: they read as if they had all, and stay as long as needed."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fragile import Crash, FragileOS
from snapshots import make

from heterps.checkpoint import Snapshot, TableRows, TableStream, disk, load, load_latest, save
from heterps.checkpoint.finished import read_manifest
from heterps.checkpoint.inspection import compare, discard, verify
from heterps.errors import CorruptCheckpoint, RunError

DIM = 2


def rows_of(table: dict[int, float]) -> TableRows:
    """A table whose rows have one number everywhere."""
    numbers = np.array(list(table.values()), np.float32)
    return TableRows(
        np.array(list(table), np.uint64),
        np.repeat(numbers[:, None], DIM, 1),
        -numbers[:, None],
        {"num_pushes": 1},
    )


def found_in(snapshot: Snapshot) -> dict[int, float]:
    rows = snapshot.tables["user"].whole()
    np.testing.assert_array_equal(rows.state[:, 0], -rows.values[:, 0])
    return dict(zip(rows.keys.tolist(), rows.values[:, 0].tolist(), strict=True))


def full(clock: int, table: dict[int, float]) -> Snapshot:
    return replace(make(clock), tables={"user": rows_of(table)})


def delta(clock: int, parent: Path, changed: dict[int, float], gone: list[int], num_rows: int) -> Snapshot:
    rows = rows_of(changed)
    meta = {**rows.meta, "num_rows": num_rows}
    table = TableStream(len(rows), rows.widths, rows.parts, meta, gone=np.array(gone, np.uint64))
    xxh3 = read_manifest(parent).xxh3
    return replace(make(clock), tables={"user": table}, parent=parent.name, parent_xxh3=xxh3)


@pytest.fixture
def chain(tmp_path: Path) -> list[Path]:
    """All rows at clock 1, changes at 2 and 3."""
    first = save(tmp_path / "run", full(1, {1: 1.0, 2: 2.0, 2**64 - 1: 3.0, 5: 5.0}))
    second = save(tmp_path / "run", delta(2, first, {2: 2.5, 7: 7.0}, [1, 5], 3))
    third = save(tmp_path / "run", delta(3, second, {1: 1.5, 7: 7.5}, [2**64 - 1], 3))
    return [first, second, third]


def test_changes_read_as_the_table_that_they_lead_to(chain: list[Path]) -> None:
    assert found_in(load(chain[0])) == {1: 1.0, 2: 2.0, 2**64 - 1: 3.0, 5: 5.0}
    assert found_in(load(chain[1])) == {2: 2.5, 2**64 - 1: 3.0, 7: 7.0}
    assert found_in(load(chain[2])) == {1: 1.5, 2: 2.5, 7: 7.5}
    assert load(chain[2]).dense["mlp.0.step"] == 3
    difference = compare(chain[1], chain[2]).tables["user"]
    assert (difference.same, difference.changed, difference.new, difference.gone) == (1, 1, 1, 1)


def damage_rows(path: Path) -> None:
    rows = next((path / "tables").glob("*user*.arrow"))
    rows.write_bytes(rows.read_bytes()[:-1])


def replace_by_another(path: Path) -> None:
    """A whole checkpoint of the same name, which is not the one that the others build on."""
    shutil.rmtree(path)
    save(path.parent.parent / "other", full(int(path.name), {1: 1.0}))
    shutil.move(path.parent.parent / "other" / path.name, path)


@pytest.mark.parametrize("spoil", [damage_rows, replace_by_another, shutil.rmtree])
@pytest.mark.parametrize("number", [0, 1])
def test_what_builds_on_a_damaged_replaced_or_missing_one_is_refused(
    chain: list[Path], spoil: Callable[[Path], object], number: int
) -> None:
    spoil(chain[number])
    for path in chain[number + 1 :]:
        with pytest.raises(CorruptCheckpoint, match=chain[number].name):
            load(path)
    for path in chain[:number]:
        load(path)


def test_one_damaged_file_never_spoils_all_that_are_kept(tmp_path: Path, chain: list[Path]) -> None:
    folder = chain[0].parent
    fourth = save(folder, full(4, {9: 9.0}))
    assert names(folder) == [1, 2, 3, 4], "the newest that has nothing to do with the new one goes back to 1"
    fifth = save(folder, delta(5, fourth, {8: 8.0}, [], 2))
    sixth = save(folder, delta(6, fifth, {8: 8.5}, [], 2))
    assert names(folder) == [1, 2, 3, 4, 5, 6], "kept are 6 and 5, which build on 4, and 3, which does not"
    damage_rows(fourth)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("heterps.checkpoint.store"), "disabled", True)
        assert found_in(load_latest(folder)) == {1: 1.5, 2: 2.5, 7: 7.5}
    seventh = save(folder, full(7, {1: 1.0}))
    eighth = save(folder, full(8, {1: 1.0}))
    assert names(folder) == [7, 8]
    assert sixth not in (seventh, eighth)


def names(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir())


def test_rm_takes_nothing_that_others_build_on(chain: list[Path]) -> None:
    folder = chain[0].parent
    with pytest.raises(RunError, match="0000000003 build on what would go"):
        discard(chain[:1])
    with pytest.raises(RunError, match="build on what would go"):
        discard(chain[1:2], force=True)
    discard(chain[2:])
    assert names(folder) == [1, 2]
    discard(chain[:2], force=True)
    assert names(folder) == []


@pytest.mark.parametrize("parent", ["../0000000001", "", "0000000003", "checkpoints"])
def test_a_forged_parent_is_refused_and_not_looked_for_elsewhere(chain: list[Path], parent: str) -> None:
    path = chain[2] / "manifest.json"
    index = read_manifest(chain[2]).model_copy(update={"parent": parent})
    path.write_bytes(index.encode())
    assert "cannot be its parent" in str(verify(chain[2]))


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_crash_anywhere_of_a_save_of_changes_leaves_only_whole_ones(
    tmp_path: Path, chain: list[Path], monkeypatch: pytest.MonkeyPatch, loses_power: bool
) -> None:
    """Also where an older chain is removed at last."""
    expected = {1: 4, 2: 3, 3: 3, 4: 1, 5: 1, 6: 2}  # rows by clock
    base = chain[0].parent
    save(base, full(4, {9: 9.0}), keep=9)
    fifth = save(base, full(5, {9: 9.5}), keep=9)

    def attempt(number: int | None) -> tuple[Path, int]:
        folder = tmp_path / str(number) / "run"
        shutil.copytree(base, folder)
        fragile = FragileOS(number)
        with monkeypatch.context() as patch:
            patch.setattr(disk, "os", fragile)
            if number is None:
                save(folder, delta(6, folder / fifth.name, {8: 8.0}, [7], 2))
            else:
                with pytest.raises(Crash):
                    save(folder, delta(6, folder / fifth.name, {8: 8.0}, [7], 2))
        if loses_power:
            fragile.lose_power()
        return folder, fragile.num_calls

    newest = set()
    for number in range(attempt(None)[1]):
        folder, _ = attempt(number)
        for path in folder.iterdir():
            if not path.name.startswith("."):
                assert len(found_in(load(path))) == expected[int(path.name)]
        newest.add(load_latest(folder).clock)
    assert newest == {5, 6}


def test_a_manifest_says_what_it_builds_on(chain: list[Path]) -> None:
    body = json.loads((chain[1] / "manifest.json").read_text())
    assert (body["parent"], body["parent_xxh3"]) == (
        "0000000001", json.loads((chain[0] / "manifest.json").read_text())["xxh3"],
    )  # fmt: skip
    assert [file["path"] for file in body["tables"]["user"]] == [
        "tables/000-user.gone.arrow", "tables/000-user.arrow",
    ]  # fmt: skip
