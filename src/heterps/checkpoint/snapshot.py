"""What a checkpoint holds: the state of a job at one clock, as plain arrays and plain JSON.

Nothing here knows a table, a model or torch: the owner of the state turns it into arrays and back. Rows carry their
keys and not their place, so a snapshot can be loaded on any number of servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps.checkpoint.indexed_rows import IndexedRows
from heterps.checkpoint.row_folder import RowFolder
from heterps.checkpoint.rows import RowPart
from heterps.ps.protocol.row_files import RowFileInfo, RowFiles
from heterps.ps.table.rows import PART_ROWS, Rows

DTYPES = frozenset({"bool", "float16", "float32", "float64"}) | {
    f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)
}
"""What a dense array may hold: the dtypes that safetensors and NumPy share."""
ROW_BYTES = 16  # key, uses and clock


@dataclass(frozen=True, eq=False)
class TableRows:
    """All rows of one sparse table, all shards together. Every key occurs once; the order means nothing.

    Rows whose use nobody counted, as those of version 1 of the checkpoint format, were used once, at clock 0.
    """

    keys: NDArray[np.uint64]  # [n]
    values: NDArray[np.float32]  # [n, dim]
    state: NDArray[np.float32]  # [n, w]: what the optimizer keeps for each row; w may be 0
    meta: Mapping[str, Any] = field(default_factory=dict)  # JSON: dim, optimizer, steps, seed
    uses: NDArray[np.float32] = field(default_factory=lambda: np.ones(0, np.float32))  # [n], faded up to the clock
    clock: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))  # [n], of the last use
    metadata: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # what the table knows besides its rows

    def __post_init__(self) -> None:
        n = len(self.keys)
        if len(self.uses) == len(self.clock) == 0:
            object.__setattr__(self, "uses", np.ones(n, np.float32))
            object.__setattr__(self, "clock", np.zeros(n, np.uint32))
        for name, array, dtype, num_axes in (
            ("keys", self.keys, np.uint64, 1),
            ("values", self.values, np.float32, 2),
            ("state", self.state, np.float32, 2),
            ("uses", self.uses, np.float32, 1),
            ("clock", self.clock, np.uint32, 1),
        ):
            if array.dtype != dtype or array.ndim != num_axes or len(array) != n:
                raise ValueError(
                    f"{name} must be {np.dtype(dtype)} with {num_axes} axes and {n} rows, "
                    f"it is {array.dtype} of shape {array.shape}"
                )
        require_json(self.meta, "meta")
        require_dtypes(self.metadata, "metadata")

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def widths(self) -> tuple[int, int]:
        """The numbers of columns of the values and of the state."""
        return self.values.shape[1], self.state.shape[1]

    def parts(self) -> Iterator[Rows]:
        """Yield the rows, PART_ROWS at a time: views."""
        rows = Rows(self.keys, self.values, self.state, self.uses, self.clock)
        return (rows.select(slice(start, start + PART_ROWS)) for start in range(0, len(self), PART_ROWS))

    def whole(self) -> TableRows:
        return self


@dataclass(frozen=True, eq=False)
class TableStream:
    """A table like TableRows that should not be in memory all at once: its rows come in parts, when they are saved.

    Until then the table must stay as it is, but for one that can `write`. `read` gives the parts, from the first, each
    time that it is called.
    """

    num_rows: int
    widths: tuple[int, int]
    read: Callable[[], Iterator[RowPart]]
    meta: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    write: Callable[[RowFiles, str], Callable[[], list[RowFileInfo]]] | None = None
    """How those who hold the rows begin to write them as they are, to files whose paths begin with a path; what it
    returns waits for the files, while the table may change again. None: `read` is."""
    files: tuple[RowFolder, tuple[str, ...]] | None = None
    """Where a table that was loaded is, for those who read it themselves: paths below the folder of the run.

    Rows of later files take the place of those of earlier ones; a file without values has keys that went.
    """
    gone: NDArray[np.uint64] | None = None
    """Keys whose rows went since the parent of a checkpoint that has changes only."""

    def __post_init__(self) -> None:
        require_json(self.meta, "meta")
        require_dtypes(self.metadata, "metadata")

    def __len__(self) -> int:
        return self.num_rows

    def parts(self) -> Iterator[RowPart]:
        """Yield the rows; ValueError at the end where they were not as many as was said."""
        num_read = 0
        for part in self.read():
            num_read += len(part.keys)
            yield part
        if num_read != self.num_rows:
            raise ValueError(f"a stream of {self.num_rows:,} rows gave {num_read:,}")

    def by_key(self) -> IndexedRows:
        """Return the rows of a table that was loaded, by key; they stay in the files."""
        assert self.files is not None, "loaded tables are in files"
        folder, paths = self.files
        return IndexedRows(folder.locate(path) for path in paths)

    def whole(self) -> TableRows:
        """Return all rows in memory."""
        dim, width = self.widths
        none = TableRows(np.empty(0, np.uint64), np.empty((0, dim), np.float32), np.empty((0, width), np.float32))
        parts = list(self.parts()) or [none]
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in Rows._fields}
        return TableRows(**arrays, meta=self.meta, metadata=self.metadata)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One consistent cut: everything that a resumed run needs to equal a run never stopped."""

    clock: int  # optimizer steps so far
    samples: int  # samples trained on so far
    dense: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # weights and optimizer state, names free
    tables: Mapping[str, TableRows | TableStream] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)  # JSON: data position, metrics, random state
    parent: str | None = None  # the version that its rows have changed since; None: it has all rows
    parent_xxh3: str | None = None  # the digest of the manifest of a checkpoint that is the parent

    def __post_init__(self) -> None:
        if self.clock < 0 or self.samples < 0:
            raise ValueError(f"clock and samples count from 0, they are {self.clock} and {self.samples}")
        require_dtypes(self.dense, "dense")
        require_json(self.progress, "progress")

    @property
    def num_bytes(self) -> int:
        """What the arrays take on disk, within a few kilobytes."""
        arrays = [*self.dense.values(), *(a for table in self.tables.values() for a in table.metadata.values())]
        rows = sum(len(table) * (ROW_BYTES + 4 * sum(table.widths)) for table in self.tables.values())
        return sum(array.nbytes for array in arrays) + rows


def require_dtypes(arrays: Mapping[str, NDArray[Any]], where: str) -> None:
    """Refuse what safetensors cannot hold."""
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise ValueError(f"{where}[{name!r}] is {array.dtype}; allowed: {', '.join(sorted(DTYPES))}")
    if "__metadata__" in arrays:
        raise ValueError(f"{where}['__metadata__']: safetensors keeps this name for itself, take another")


def require_json(value: object, where: str) -> None:
    """Refuse what JSON would turn into something else: tuples, NumPy scalars, keys that are not strings.

    NaN and infinity pass: Python writes and reads them, and a metric that is undefined so far is one.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where} has the key {key!r}; JSON knows string keys only")
            require_json(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            require_json(inner, f"{where}[{i}]")
    elif value is not None and not isinstance(value, (str, int, float)):
        raise ValueError(f"{where} is a {type(value).__name__}; allowed: dict, list, str, int, float, bool, None")
