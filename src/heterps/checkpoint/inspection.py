"""Look at checkpoints, compare two, and remove those that a run can do without.

listed    reads manifests and sizes only        verify    reads every byte, as a resume would
compare   row by row, out of the files          discard   only if a good one stays
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps.checkpoint import store
from heterps.checkpoint.finished import ancestors, finished, read_manifest
from heterps.checkpoint.indexed_rows import IndexedRows
from heterps.checkpoint.manifest import NAME, Manifest
from heterps.checkpoint.snapshot import Snapshot, TableStream
from heterps.errors import CorruptCheckpoint, HeterpsError, RunError
from heterps.ps.table.rows import PART_ROWS


class Listed(NamedTuple):
    """A checkpoint as its manifest describes it. Numbers are None where the manifest cannot be read."""

    name: str
    path: str
    clock: int | None
    samples: int | None
    bytes: int | None  # of its files
    parent: str | None  # the checkpoint that it has the changes since; None: it has all rows
    saved_s: float | None  # when it was written, in seconds since 1970
    problem: str | None  # what is visibly wrong with it


def listed(folder: Path) -> list[Listed]:
    """List the finished checkpoints in `folder`, the newest last. Bytes are counted, not read: see `verify`."""
    return [_listed(each.path) for each in finished(folder)]


def _listed(path: Path) -> Listed:
    try:
        index = read_manifest(path)
        return Listed(
            path.name, str(path), index.clock, index.samples, index.num_bytes, index.parent,
            path.joinpath(NAME).stat().st_mtime, _visible_problem(path, index),
        )  # fmt: skip
    except HeterpsError as error:
        return Listed(path.name, str(path), None, None, None, None, None, str(error))


def _visible_problem(path: Path, index: Manifest) -> str | None:
    for file in index.files:
        located = file.locate(path)
        if not located.is_file():
            return f"{located} is missing."
        if (found := located.stat().st_size) != file.num_bytes:
            return f"{located} is damaged: it should be {file.num_bytes} bytes, it is {found}."
    return None


def verify(path: Path) -> str | None:
    """Read all of a checkpoint as a resume would; return what is wrong with it, None if nothing is."""
    try:
        store.load(path)
    except CorruptCheckpoint as error:
        return str(error)
    return None


def discard(paths: Sequence[Path], *, force: bool = False) -> None:
    """Remove checkpoints of one folder. RunError, and no change, where no good one would stay, unless with `force`."""
    folder = paths[0].parent
    known = [each.path for each in finished(folder)]
    for path in paths:
        if path.parent != folder or path not in known or path.is_symlink():
            raise RunError(
                f"{path} is no checkpoint of {folder}: nothing was removed. `heterps checkpoint ls` shows them."
            )
    others = [path for path in reversed(known) if path not in paths]
    building = [other.name for other in others if ancestors(other) & set(paths)]
    if building:
        raise RunError(
            f"{', '.join(reversed(building))} build on what would go: nothing was removed. Name them too, to remove "
            "them with it."
        )
    if not force and not any(verify(path) is None for path in others):
        raise RunError(
            f"no good checkpoint of {folder} would stay, and the run could not be resumed: nothing was removed. "
            "Add --force if that is meant."
        )
    store.remove(path for path in reversed(known) if path in paths)


class TableDifference(NamedTuple):
    """How the rows of a table differ between two checkpoints."""

    rows: tuple[int, int]
    same: int  # rows whose values and optimizer state are equal, bit by bit
    changed: int
    new: int  # rows that only the second has
    gone: int  # rows that only the first has
    largest: float  # the largest difference of a value, among rows that both have


class Difference(NamedTuple):
    """How two checkpoints differ; names of arrays and tables that only one has are in `only_in`."""

    clock: tuple[int, int]
    samples: tuple[int, int]
    tables: dict[str, TableDifference]
    dense: dict[str, float | None]  # the largest difference of each array; None: of another shape or kind
    only_in: tuple[list[str], list[str]]

    @property
    def is_none(self) -> bool:
        """Whether tables and dense arrays are equal."""
        changes = [table.changed + table.new + table.gone for table in self.tables.values()]
        return not any(changes) and all(value == 0 for value in self.dense.values()) and not any(self.only_in)


def compare(first: Path, second: Path) -> Difference:
    """Compare two checkpoints, each of which is verified first."""
    a, b = store.load(first), store.load(second)
    names = [{*one.tables, *one.dense} for one in (a, b)]
    return Difference(
        (a.clock, b.clock),
        (a.samples, b.samples),
        {name: _compare_tables(a, b, name) for name in a.tables if name in b.tables},
        {name: _largest(a.dense[name], b.dense[name]) for name in a.dense if name in b.dense},
        (sorted(names[0] - names[1]), sorted(names[1] - names[0])),
    )


def _largest(a: NDArray[Any], b: NDArray[Any]) -> float | None:
    """Return the largest difference of two arrays; None where they cannot be compared."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return None
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0))


def _compare_tables(a: Snapshot, b: Snapshot, name: str) -> TableDifference:
    tables = a.tables[name], b.tables[name]
    assert isinstance(tables[0], TableStream)
    assert isinstance(tables[1], TableStream)
    if tables[0].widths != tables[1].widths:
        raise RunError(f"table {name} has rows of {tables[0].widths} and {tables[1].widths} words: two models.")
    first, second = tables[0].by_key(), tables[1].by_key()
    try:
        return _compare_rows(first, second)
    finally:
        first.close()
        second.close()


def _compare_rows(first: IndexedRows, second: IndexedRows) -> TableDifference:
    num_both = num_changed = 0
    largest = 0.0
    for at in range(0, len(first), PART_ROWS):
        keys = first.keys[at : at + PART_ROWS]
        in_second, places = second.find(keys)
        if not len(places):
            continue
        before, after = first.rows(first.find(keys[in_second])[1]), second.rows(places)
        num_both += len(places)
        differs = np.zeros(len(places), np.bool_)
        for one, other in ((before.values, after.values), (before.state, after.state)):
            differs |= (one.view(np.uint32) != other.view(np.uint32)).any(axis=1)
        num_changed += int(differs.sum())
        largest = max(largest, _largest(before.values, after.values) or 0.0)
    sizes = len(first), len(second)
    return TableDifference(
        sizes, num_both - num_changed, num_changed, sizes[1] - num_both, sizes[0] - num_both, largest
    )
