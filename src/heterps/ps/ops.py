"""What a server does for each op of a request: first everything is checked, then everything is done.

`unpack` takes the frames of an op and refuses what does not fit the shard, `run` cannot be refused any more. Between
them a request may be held, so nothing that a push could change is looked at too early.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from heterps.ps import messages as m
from heterps.ps.ledger import PushState
from heterps.ps.shard import Shard, Source
from heterps.ps.stats import Counts
from heterps.ps.table.schedules import rate_at
from heterps.ps.table.sparse import Rows
from heterps.wire import Frame, Limits, Malformed, Packed, PackedKeys, pack_values, unpack_keys, unpack_values
from heterps.wire.arrays import Room

Arrays = list[NDArray[np.generic]]
Answer = tuple[m.Result, list[Frame]]
DONE: Answer = (m.Done(), [])


class InDoubt(Exception):
    """A push was begun and did not end, so that nobody can say what of it is in the table."""


def unpack(op: m.Op, frames: m.Frames, shard: Shard, limits: Limits) -> Arrays:
    """The arrays of an op, in the order of its fields; WireError where op, frames and shard do not fit together."""
    is_dense = isinstance(op, m.PullDense | m.PushDense | m.FillDense)
    if op.table not in (shard.dense if is_dense else shard.sparse):
        raise Malformed(f"there is no {'dense' if is_dense else 'sparse'} table {op.table!r}")
    if isinstance(op, m.PushRows | m.PushDense):
        _check_samples(op, shard)
    match op:
        case m.PullRows():
            return [_keys(op.keys, frames, shard, limits)]
        case m.PushRows():
            keys = _keys(op.keys, frames, shard, limits)
            return [keys, _values(op.grads, frames, (len(keys), shard.sparse[op.table].dim), op.table, limits)]
        case m.PushDense():
            return [_values(op.grads, frames, (shard.dense[op.table].size,), op.table, limits)]
        case m.FillDense():
            return [_values(op.values, frames, (shard.dense[op.table].size,), op.table, limits)]
        case m.ImportRows():
            return list(m.unpack_rows(op.arrays, frames))
        case m.PullDense() | m.ExportRows() | m.CountRows():
            return []


def run(op: m.Op, arrays: Arrays, shard: Shard, source: Source, counts: Counts, room: Room = lambda _: None) -> Answer:
    """Do an op whose time has come. Pushes that were applied before are counted as repeats and answered as done.

    Large frames of the answer are made in a `room` where there is one.
    """
    match op:
        case m.PullRows():
            keys = arrays[0].view(np.uint64)
            counts.pulled(op.table, len(keys))
            table = shard.sparse[op.table]
            out = _room_for_rows(len(keys), table.dim, op.coding, room)
            return _packed(table.pull(keys, out, create=op.create), op.coding, room)
        case m.PullDense():
            values = shard.dense[op.table].values.copy()  # the next push changes the table, not what is on its way
            counts.pulled(op.table, len(values))
            return _packed(values, op.coding, room)
        case m.PushRows():
            keys, grads = arrays[0].view(np.uint64), arrays[1].view(np.float32)
            return _once(op, shard, source, counts, len(keys), lambda: shard.push_rows(
                source, op.table, op.sequence, keys, grads, op.samples))  # fmt: skip
        case m.PushDense():
            grads = arrays[0].view(np.float32)
            return _once(
                op, shard, source, counts, len(grads), lambda: shard.push_dense(source, op.table, grads, op.samples)
            )
        case m.FillDense():
            shard.fill_dense(op.table, arrays[0].view(np.float32))
            return DONE
        case m.ExportRows():
            rows, num_pushes = shard.export_rows(op.table)
            infos, frames = m.pack_arrays(rows)
            return m.Exported(num_pushes, infos), frames
        case m.ImportRows():
            rows = Rows(*arrays)  # type: ignore[arg-type]
            return _once(op, shard, source, counts, len(rows.keys), lambda: shard.import_rows(
                source, op.table, rows, op.num_pushes))  # fmt: skip
        case m.CountRows():
            table = shard.sparse[op.table]
            return m.Counted(len(table), table.num_bytes), []


def _once(op: m.Push, shard: Shard, source: Source, counts: Counts, num_rows: int, apply: Callable[[], None]) -> Answer:
    """Apply a push unless the ledger has it."""
    match shard.state(source, op.table, op.sequence):
        case PushState.APPLIED:
            counts.repeats += 1
        case PushState.NEXT:
            apply()
            counts.pushed(op.table, num_rows)
        case PushState.APPLYING:
            raise InDoubt(f"push {op.sequence} of {source.worker} was begun before and did not end")
        case PushState.EARLY:
            raise AssertionError("a push was run before its predecessor")
    return DONE


def _check_samples(op: m.PushRows | m.PushDense, shard: Shard) -> None:
    table = shard.sparse[op.table] if isinstance(op, m.PushRows) else shard.dense[op.table]
    try:
        rate_at(table.schedule, op.samples)
    except ValueError as error:
        raise Malformed(f"table {op.table}: {error}") from None


def _keys(packed: PackedKeys, frames: m.Frames, shard: Shard, limits: Limits) -> NDArray[np.uint64]:
    keys = unpack_keys(packed, frames.take(), limits)
    if wrong := shard.home_error(keys):
        raise Malformed(wrong)
    return keys


def _values(
    packed: Packed, frames: m.Frames, expected: tuple[int, ...], table: str, limits: Limits
) -> NDArray[np.float32]:
    if packed.shape != expected:
        raise Malformed(f"table {table} needs values {list(expected)} here, got {list(packed.shape)}")
    return unpack_values(packed, frames.take(), limits)


def _room_for_rows(num_rows: int, dim: int, coding: m.Coding, room: Room) -> NDArray[np.float32] | None:
    """Where rows that travel as they are can go at once."""
    if coding.dtype != "fp32" or coding.compression is not None:
        return None
    memory = room(4 * num_rows * dim)
    return None if memory is None else memory.view(np.float32).reshape(num_rows, dim)


def _packed(values: NDArray[np.float32], coding: m.Coding, room: Room) -> Answer:
    packed, frame = pack_values(values, coding.dtype, coding.compression, coding.least_bytes, room)
    return m.Values(packed), [frame]
