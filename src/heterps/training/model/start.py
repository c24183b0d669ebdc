"""What a job starts from: another model's weights and rows, and rows of files, as the snapshot of clock 0.

    the model as built   weights, no rows     --+
    start.model          a checkpoint         --+--> Snapshot of clock 0 --> the run's first checkpoint, or a restore
    start.rows           files by original id --+         rows pass a part at a time, never a whole table

A new name is looked for under its old one (`start.rename`). What is not found begins with its initial values, what
nobody asked for is ignored, and both are told: see StartOutcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from heterps.arrays import FloatArray, KeyArray
from heterps.checkpoint import Snapshot, TableRows, TableStream
from heterps.config import FTRL, Optimizer, Start
from heterps.errors import ConfigError
from heterps.nn import embeddings
from heterps.ps.protocol.specs import TableSpec
from heterps.ps.table.optimizers import initial_state, state_words
from heterps.ps.table.rows import Rows

Weights = dict[str, NDArray[Any]]
Given = tuple[KeyArray, FloatArray]
"""Keys [n] and vectors [n, width] of a file."""


@dataclass(frozen=True)
class StartOutcome:
    """What a start has taken over, by the names of the new model; the fields are those of `start` in summary.json."""

    model: str | None
    tables: dict[str, int] = field(default_factory=dict)  # rows by table
    weights: list[str] = field(default_factory=list)  # parameters and buffers
    renamed: dict[str, str] = field(default_factory=dict)  # new names to old ones
    resized: list[str] = field(default_factory=list)  # had another size
    from_files: dict[str, int] = field(default_factory=dict)  # rows by table
    fresh: list[str] = field(default_factory=list)  # begin with initial values
    ignored: list[str] = field(default_factory=list)  # of the other model, in nothing of this one

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """Return a sentence for people."""
        rows = sum(self.tables.values())
        parts = []
        if self.model is not None:
            parts.append(
                f"from {self.model}: {rows:,} rows of {_listed(self.tables)}, {len(self.weights)} weights"
                f"{f' ({len(self.renamed)} under other names)' if self.renamed else ''}"
                f"{f', other sizes: {_listed(self.resized)}' if self.resized else ''}"
            )
        if self.from_files:
            parts.append(f"from files: {sum(self.from_files.values()):,} rows of {_listed(self.from_files)}")
        if self.fresh:
            parts.append(f"fresh: {_listed(self.fresh)}")
        if self.ignored:
            parts.append(f"ignored: {_listed(self.ignored)}")
        return f"starts {'; '.join(parts)}"


def starting_snapshot(
    fresh: Snapshot, specs: Mapping[str, TableSpec], start: Start, source: Snapshot | None, given: Mapping[str, Given]
) -> tuple[Snapshot, StartOutcome]:
    """The snapshot that a model starts from, and what was taken from where.

    fresh   the snapshot of the model as it was built, without rows
    specs   its tables
    source  the snapshot of start.model
    given   by table, rows of files

    Raises ConfigError for names that match nothing, and for other sizes that `start.dims` does not allow.
    """
    theirs: Weights = _weights(source.dense) if source is not None else {}
    their_tables = dict(source.tables) if source is not None else {}
    mine = _weights(fresh.dense)
    old = _old_names([*specs, *mine], start, {*theirs, *their_tables})
    refused: list[str] = []
    weights, tables = dict(mine), {}
    taken = StartOutcome(start.model)
    for name, array in mine.items():
        other = theirs.get(old.get(name, ""))
        fitted = None if other is None else _fitted(array, other, start)
        if other is None:
            taken.fresh.append(name)
        elif fitted is None:
            refused.append(f"{name} is {list(array.shape)} here and {list(other.shape)} there")
        else:
            weights[name] = fitted
            taken.weights.append(name)
            taken.resized.extend([name] if array.shape != other.shape else [])
    for name, spec in specs.items():
        table = their_tables.get(old.get(name, ""))
        if table is not None and table.widths[0] != spec.dim:
            if start.dims == "refuse":
                refused.append(f"rows of table {name} have {spec.dim} values here and {table.widths[0]} there")
            taken.resized.append(name)
        tables[name] = _StartRows(spec, start, table, given.get(name)).stream()
        if table is not None:
            taken.tables[name] = len(table)
        if name in given:
            taken.from_files[name] = len(given[name][0])
        elif table is None:
            taken.fresh.append(name)
    if refused:
        raise ConfigError(
            f"start: other sizes: {'; '.join(refused)}. Set start.dims to overlap or (for rows) project, or name what "
            "is to begin anew in start.fresh."
        )
    taken.renamed.update({new: was for new, was in old.items() if new != was and new not in taken.fresh})
    used = {old[name] for name in [*taken.weights, *taken.tables]}
    taken.ignored.extend(sorted({*theirs, *their_tables} - used))
    if source is not None and not used:
        raise ConfigError(
            f"start.model: {start.model} has nothing that this model has: {_listed([*their_tables, *theirs])} there, "
            f"{_listed([*specs, *mine])} here. Give the old names in start.rename."
        )
    dense = {**fresh.dense, **{f"model/{name}": array for name, array in weights.items()}}
    return replace(fresh, dense=dense, tables=tables), taken


def tables_of_slot(model: nn.Module, slot: str) -> list[str]:
    """The tables that have rows of a slot."""
    found = [table for name, module in embeddings(model) for table, slots in module.slots_of(name) if slot in slots]
    return list(dict.fromkeys(found))


# --- names -----------------------------------------------------------------------------------------------------------


def _old_names(names: Sequence[str], start: Start, theirs: set[str]) -> dict[str, str]:
    """Return the old name of everything to be taken over; ConfigError for patterns that match nothing."""
    for pattern in start.fresh:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"start.fresh: {pattern} matches nothing of the model, which has {_listed(names)}.")
    unused = dict(start.rename)
    found = {}
    for name in names:
        if any(fnmatchcase(name, pattern) for pattern in start.fresh):
            continue
        found[name] = name
        for new, was in start.rename.items():
            if (renamed := _renamed(name, new, was)) is not None:
                if renamed in theirs:
                    unused.pop(new, None)
                found[name] = renamed
                break
    for new, was in unused.items():
        known = [name for name in names if _renamed(name, new, was) is not None]
        raise ConfigError(
            f"start.rename: {new}: {was}: "
            + (f"{start.model} has no {was}, only {_listed(sorted(theirs))}." if known else "")
            + ("" if known else f"{new} is no table or parameter of the model, which has {_listed(names)}.")
        )
    return found


def _renamed(name: str, new: str, old: str) -> str | None:
    """The old name of `name`, if the rule `new` to `old` is about it."""
    if "*" not in new:
        is_below = name.startswith(f"{new}.")
        return old + name[len(new) :] if name == new or is_below else None
    before, after = new.split("*")
    if len(name) < len(before) + len(after) or not (name.startswith(before) and name.endswith(after)):
        return None
    return old.replace("*", name[len(before) : len(name) - len(after)])


def _weights(dense: Mapping[str, NDArray[Any]]) -> Weights:
    return {name.removeprefix("model/"): array for name, array in dense.items() if name.startswith("model/")}


def _listed(names: Any) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "") if listed else "nothing"


# --- sizes -----------------------------------------------------------------------------------------------------------


def _fitted(mine: NDArray[Any], theirs: NDArray[Any], start: Start) -> NDArray[Any] | None:
    """Return the other model's values in the shape of this one's; None where that is not allowed."""
    if mine.shape == theirs.shape:
        return theirs.astype(mine.dtype)
    if start.dims != "overlap" or mine.ndim != theirs.ndim:
        return None
    both = tuple(slice(0, min(sizes)) for sizes in zip(mine.shape, theirs.shape, strict=True))
    fitted = mine.copy()
    fitted[both] = theirs[both]
    return fitted


def projection(old: int, new: int, seed: int) -> FloatArray:
    """A random matrix [old, new] that keeps dot products: exactly if rows get longer, on average if shorter."""
    square = np.random.default_rng(seed).standard_normal((max(old, new), max(old, new)))
    orthogonal, _ = np.linalg.qr(square)
    matrix: FloatArray = (orthogonal[:old, :new] * np.sqrt(max(old / new, 1.0))).astype(np.float32)
    return matrix


@dataclass(frozen=True)
class _StartRows:
    """The rows that a table starts with: `theirs`, without those that are `given` anew."""

    spec: TableSpec
    start: Start
    theirs: TableRows | TableStream | None
    given: Given | None

    def stream(self) -> TableStream:
        spec = self.spec
        meta = {"dim": spec.dim, "optimizer": spec.optimizer.model_dump(), "num_pushes": 0}
        count = 0 if self.given is None else len(self.given[0])
        if self.theirs is not None and self.given is None:
            count = len(self.theirs)
        elif self.theirs is not None:
            count += sum(int(np.count_nonzero(self._kept(part.keys))) for part in self.theirs.parts())
        return TableStream(count, (spec.dim, state_words(spec.optimizer, spec.dim)), self._parts, meta)

    def _parts(self) -> Iterator[Rows]:
        if self.theirs is not None:
            kind = self.theirs.meta.get("optimizer", {}).get("kind")
            keeps_state = kind == self.spec.optimizer.kind and self.theirs.widths[0] == self.spec.dim
            for part in self.theirs.parts():
                rows = Rows(part.keys, part.values, part.state, part.uses, part.clock).select(self._kept(part.keys))
                values = self._in_dim(rows.keys, rows.values)
                state = rows.state if keeps_state else first_state(self.spec.optimizer, values)
                yield Rows(rows.keys, values, state, rows.uses, np.zeros(len(rows.keys), np.uint32))
        if self.given is not None:
            keys, vectors = self.given
            values, num = self._in_dim(keys, vectors), len(keys)
            state = first_state(self.spec.optimizer, values)
            yield Rows(keys, values, state, np.ones(num, np.float32), np.zeros(num, np.uint32))

    def _kept(self, keys: KeyArray) -> NDArray[np.bool_]:
        return np.ones(len(keys), np.bool_) if self.given is None else np.isin(keys, self.given[0], invert=True)

    def _in_dim(self, keys: KeyArray, values: FloatArray) -> FloatArray:
        """The values as rows of this table, by start.dims."""
        old, new = values.shape[1], self.spec.dim
        if old == new:
            return values
        if self.start.dims == "project":
            return values @ projection(old, new, self.spec.seed)
        fitted = self.spec.make_shard().pull(keys, create=False)
        fitted[:, : min(old, new)] = values[:, : min(old, new)]
        return fitted


def first_state(optimizer: Optimizer, values: FloatArray) -> FloatArray:
    """The state [n, words] of an optimizer that has made no step with rows of these `values`.

    FTRL computes values from its state, so z is chosen such that these values result.
    """
    dim = values.shape[1]
    state = np.full((len(values), state_words(optimizer, dim)), initial_state(optimizer), np.float32)
    if isinstance(optimizer, FTRL):
        slope = optimizer.beta / optimizer.lr + optimizer.l2
        state[:, :dim] = -values * slope - np.sign(values) * optimizer.l1
    return state
