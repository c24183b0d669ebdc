"""Decode a row group into arrays by row: numbers as float32, ids as keys, missing values as the schema says.

    Arrow columns --zero-copy views--> [D, n] float32   --interleave--> dense [n, D]      (NaN and null: policy)
                                       or lists [n, w]  --side by side-> dense [n, D]     (some dense column has lists)
                                       [S, n] keys      --interleave--> keys  [n, S]      (null: policy)
                                       or bags per column --place-----> keys, offsets     (some slot holds lists)

Missing values are counted by column. An invalid value raises DataError, which names the file, the row and the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.arrays import FloatArray, KeyArray, OffsetArray
from heterps.config import Schema
from heterps.data.arrow import floats_of, integer_ids, nulls_of, read_floats, read_ids, without_dictionary
from heterps.data.batch import NO_USER
from heterps.data.columns import is_list
from heterps.data.digests import digest_of
from heterps.data.feature_columns import FeatureColumns
from heterps.data.kernels import interleave_floats, interleave_keys, place_bags
from heterps.data.keys import mix_column, null_key, slot_seed
from heterps.data.labels import read_labels
from heterps.data.sources import RowGroup
from heterps.data.storage import is_local
from heterps.errors import DataError

_READ_AT_ONCE = 8


@dataclass
class DecodeCounts:
    """Numbers of rows decoded and skipped, and of missing values by column."""

    num_rows: int = 0
    num_skipped: int = 0
    missing: dict[str, int] = field(default_factory=dict)  # column to null (and NaN) values
    digest: str = ""  # of the decoded values of a row group

    @classmethod
    def total(cls, parts: Iterable[DecodeCounts]) -> DecodeCounts:
        """Add up the counts of several row groups."""
        total = cls()
        for part in parts:
            total.num_rows += part.num_rows
            total.num_skipped += part.num_skipped
            for name, count in part.missing.items():
                total.missing[name] = total.missing.get(name, 0) + count
        return total


@dataclass(frozen=True, eq=False)
class Block:
    """Decoded rows. `rows` are the indices of the rows that are not skipped."""

    dense: FloatArray  # [n, D]
    keys: KeyArray  # [n * S], or the keys of all bags
    offsets: OffsetArray | None  # [n * S + 1] where some slot holds lists
    label: FloatArray  # as in Batch
    rows: NDArray[np.int64]
    users: KeyArray | None = None  # as in Batch


class RowFilter(Protocol):
    """The rows of a data set that are read (see split.py)."""

    columns: tuple[str, ...]  # that decide which rows they are

    def mask(self, group: RowGroup, table: Any) -> NDArray[np.bool_]: ...


class Decoder:
    """Decodes row groups by a schema. `ragged` says whether some slot holds lists, so that bags need offsets.

    With a `part`, rows that are on the other side of a split are left out.
    """

    def __init__(self, schema: Schema, ragged: bool, part: RowFilter | None = None) -> None:
        self.counts_by_group: dict[RowGroup, DecodeCounts] = {}  # of each row group that was decoded, however often
        self._counts = DecodeCounts()  # of the row group that is being decoded
        self._part = part
        self._schema = schema
        self._ragged = ragged
        self._columns = schema.decoded_columns
        self._features = FeatureColumns(schema)
        owners = [(name, schema.ids_of(name)) for name in schema.slots]
        self._slots = [(name, slot_seed(owner), null_key(owner)) for name, owner in owners]

    @property
    def counts(self) -> DecodeCounts:
        """What was missing in the row groups that were decoded, each counted once."""
        return DecodeCounts.total(self.counts_by_group.values())

    def decode(self, group: RowGroup) -> Block:
        return self.decode_table(group, self._read(group))

    def decode_all(self, groups: Sequence[RowGroup]) -> Iterator[Block]:
        """Decode row groups in order. Remote ones are read several at a time, for each answer takes a while."""
        at_once = num_at_once(groups)
        if at_once == 1:
            yield from map(self.decode, groups)
            return
        with ThreadPoolExecutor(at_once, thread_name_prefix="read") as pool:
            yield from map(self.decode_table, groups, pool.map(self._read, groups))

    def _read(self, group: RowGroup) -> Any:
        deciding = () if self._part is None else self._part.columns
        return group.file.read(group.index, tuple(dict.fromkeys((*self._schema.sources(self._columns), *deciding))))

    def decode_table(self, group: RowGroup, table: Any) -> Block:
        """Decode a row group that has been read; the table may have more columns than are needed."""
        columns = {name: self._features.column(table, name, str(group)) for name in self._columns}
        keep = np.ones(group.num_rows, np.bool_) if self._part is None else self._part.mask(group, table)
        self._counts = DecodeCounts(int(np.count_nonzero(keep)))
        label = read_labels(self._schema, group, columns)
        dense = self._dense(group, columns, keep)
        keys, offsets = self._bags(group, columns, keep) if self._ragged else self._keys(group, columns, keep)
        rows = np.flatnonzero(keep)
        self._counts.num_skipped = self._counts.num_rows - len(rows)
        self._counts.digest = digest_of((dense, keys, offsets, label, rows))
        self.counts_by_group[group] = self._counts
        return Block(dense, keys, offsets, label, rows, self._users(group, columns))

    def _users(self, group: RowGroup, columns: dict[str, Any]) -> KeyArray | None:
        """Decode the users of all rows; NO_USER where the id is null."""
        name = self._schema.user
        if name is None:
            return None
        users = np.empty(group.num_rows, np.uint64)
        mix_column(*read_ids(_integer_ids(group, name, columns[name])), slot_seed(name), np.uint64(NO_USER), users)
        return users

    def _dense(self, group: RowGroup, columns: dict[str, Any], keep: NDArray[np.bool_]) -> FloatArray:
        """Decode the dense columns [n, num_dense]: single numbers and lists, in the order of the schema."""
        schema = self._schema
        singles = self._singles(group, columns, keep)
        if not schema.widths:
            return singles
        dense = np.empty((group.num_rows, schema.num_dense), np.float32)
        at, next_single = 0, iter(singles.T)
        for name in schema.dense:
            width = schema.width_of(name)
            if name in schema.widths:
                self._list(group, name, columns[name], keep, dense[:, at : at + width])
            else:
                dense[:, at] = next(next_single)
            at += width
        return dense

    def _list(self, group: RowGroup, name: str, column: Any, keep: NDArray[np.bool_], out: NDArray[np.float32]) -> None:
        """Decode the lists of a dense column into `out` [n, width]; the schema says what missing values become."""
        _read_lists(group, name, column, out)
        finite = np.isfinite(out)
        if finite.all():
            return
        absent = np.isnan(out)
        if (infinite := ~(finite | absent)).any():
            row, place = np.argwhere(infinite)[0].tolist()
            raise _error(
                group,
                row,
                name,
                f"number {place} of its list is not finite as a float32; write a finite value or a null",
            )
        rows: NDArray[np.bool_] = np.any(absent, axis=1)
        self._missing(group, name, lambda: rows, int(absent.sum()), keep, "a number of its list is null or NaN")
        out[absent] = self._schema.dense_fill

    def _singles(self, group: RowGroup, columns: dict[str, Any], keep: NDArray[np.bool_]) -> FloatArray:
        """Decode the dense columns of single numbers into [n, number of such columns]."""
        schema = self._schema
        names = [name for name in schema.dense if name not in schema.widths]
        by_column = np.empty((len(names), group.num_rows), np.float32)
        for d, name in enumerate(names):
            read_floats(columns[name], by_column[d])
        missing, infinite = np.zeros((2, len(names)), np.int64)
        dense = np.empty((group.num_rows, len(names)), np.float32)
        interleave_floats(by_column, schema.dense_fill, dense, missing, infinite)
        for d in np.flatnonzero(infinite).tolist():
            row = int(np.argmax(np.isinf(by_column[d])))
            value = columns[names[d]][row].as_py()
            raise _error(group, row, names[d], f"{value} is not finite as a float32; write a finite value or a null")
        for d in np.flatnonzero(missing).tolist():
            absent = np.isnan(by_column[d])
            value = "null" if columns[names[d]][int(np.argmax(absent))].as_py() is None else "NaN"
            self._missing(
                group, names[d], partial(np.isnan, by_column[d]), int(missing[d]), keep, f"the value is {value}"
            )
        return dense

    def _keys(self, group: RowGroup, columns: dict[str, Any], keep: NDArray[np.bool_]) -> tuple[KeyArray, None]:
        by_column = np.empty((len(self._slots), group.num_rows), np.uint64)
        for s, (name, seed, null) in enumerate(self._slots):
            column = _integer_ids(group, name, columns[name])
            mix_column(*read_ids(column), seed, null, by_column[s])
            if column.null_count:
                self._missing(group, name, partial(nulls_of, column), column.null_count, keep)
        keys = np.empty((group.num_rows, len(self._slots)), np.uint64)
        interleave_keys(by_column, keys)
        return keys.reshape(-1), None

    def _bags(self, group: RowGroup, columns: dict[str, Any], keep: NDArray[np.bool_]) -> tuple[KeyArray, OffsetArray]:
        """Decode slots that hold lists into keys and offsets, row by row."""
        num_slots = len(self._slots)
        lengths = np.empty((group.num_rows, num_slots), np.int64)
        parts: list[tuple[KeyArray, OffsetArray]] = []
        for s, (name, _, _) in enumerate(self._slots):
            keys, starts, lengths[:, s] = self._bags_of_slot(group, s, columns[name], keep)
            parts.append((keys, starts))
        offsets = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths.reshape(-1), out=offsets[1:])
        out = np.empty(offsets[-1], np.uint64)
        for s, (keys, starts) in enumerate(parts):
            place_bags(keys, starts, s, num_slots, offsets, out)
        return out, offsets

    def _bags_of_slot(
        self, group: RowGroup, s: int, column: Any, keep: NDArray[np.bool_]
    ) -> tuple[KeyArray, OffsetArray, OffsetArray]:
        name, seed, null = self._slots[s]
        values, ends = column, np.arange(group.num_rows + 1)
        null_rows = np.zeros(group.num_rows, np.bool_)
        if is_list(column.type):
            column = column.cast(pa.large_list(column.type.value_type))
            values, null_rows = without_dictionary(column.values), nulls_of(column)
            ends = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
        values = _integer_ids(group, name, values, ends)
        keys = np.empty(len(values) + 1, np.uint64)
        keys[-1] = null  # the one key of a null list
        mix_column(*read_ids(values), seed, null, keys[:-1])
        starts = np.where(null_rows, len(values), ends[:-1])
        lengths = np.where(null_rows, 1, np.diff(ends))
        null_bag = keys_are_null = null_rows
        if values.null_count:
            inside = np.concatenate(([0], np.cumsum(nulls_of(values))))
            keys_are_null = np.where(null_rows, 1, inside[ends[1:]] - inside[ends[:-1]])
            null_bag = keys_are_null > 0
        if null_bag.any():
            self._missing(group, name, lambda: null_bag, int(keys_are_null.sum()), keep)
        return keys, starts, lengths

    def _missing(
        self,
        group: RowGroup,
        name: str,
        absent: Callable[[], NDArray[np.bool_]],
        count: int,
        keep: NDArray[np.bool_],
        problem: str = "the id is null",
    ) -> None:
        """Do what the schema says with the rows of a column in which values are absent, and count these.

        Where missing values are replaced, nobody asks which rows are `absent`.
        """
        field, keeping = ("slot_missing", "key") if name in self._schema.slots else ("dense_missing", "fill")
        treatment = getattr(self._schema, field)
        if treatment == "error":
            remedy = f"fix the data, or set data.columns.{field} to {keeping} or skip"
            raise _error(group, int(np.argmax(absent())), name, f"{problem}; {remedy}")
        if treatment == "skip":
            keep &= ~absent()
        self._counts.missing[name] = self._counts.missing.get(name, 0) + count


def num_at_once(groups: Sequence[RowGroup]) -> int:
    """Number of row groups that are read at a time: one where all are on this machine."""
    return 1 if all(is_local(group.file.fs) for group in groups) else min(_READ_AT_ONCE, len(groups))


def key_column(column: Any, slot_name: str) -> KeyArray:
    """Compute the keys of an Arrow array of single ids, where floats are whole numbers."""
    keys = np.empty(len(column), np.uint64)
    mix_column(*read_ids(integer_ids(without_dictionary(column))[0]), slot_seed(slot_name), null_key(slot_name), keys)
    return keys


# --- lists -----------------------------------------------------------------------------------------------------------


def _read_lists(group: RowGroup, name: str, column: Any, out: NDArray[np.float32]) -> None:
    """Write the lists of a column to `out` [n, width], with NaN for null; DataError if a list has another length."""
    width = out.shape[1]
    if pa.types.is_fixed_size_list(column.type):
        starts = (column.offset + np.arange(len(column))) * width
        lengths = np.full(len(column), width)
    else:
        column = column.cast(pa.large_list(column.type.value_type))
        ends = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
        starts, lengths = ends[:-1], np.diff(ends)
    values = floats_of(column.values)
    valid = ~nulls_of(column)
    if (wrong := valid & (lengths != width)).any():
        row = int(np.argmax(wrong))
        raise _error(group, row, name, f"the list has {lengths[row]} numbers, but data.columns.widths says {width}")
    if valid.all() and len(column):
        out[:] = values[starts[0] : starts[0] + out.size].reshape(out.shape)
    else:
        out[:] = np.nan
        out[valid] = values[starts[valid, None] + np.arange(width)]


def _integer_ids(group: RowGroup, name: str, ids: Any, ends: OffsetArray | None = None) -> Any:
    """Return float ids as integers; DataError if one is no whole number. `ends` are those of the lists they are in."""
    integers, wrong = integer_ids(ids)
    if wrong is None:
        return integers
    row = wrong if ends is None else int(np.searchsorted(ends, wrong, side="right")) - 1
    raise _error(
        group,
        row,
        name,
        f"the id {ids[wrong].as_py()!r} is a float that is not a whole number below 2**53; write ids as integers or "
        "strings",
    )


# --- errors ----------------------------------------------------------------------------------------------------------


def _error(group: RowGroup, row: int, column: str, problem: str) -> DataError:
    return group.error(row, column, problem)
