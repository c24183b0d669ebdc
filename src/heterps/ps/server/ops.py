"""What a server does for each op of a request: first everything is checked, then everything is done.

`unpack` takes the frames of an op and refuses what does not fit the shard, `run` cannot be refused any more. Between
them a request may be held, so nothing that a push could change is looked at too early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps.errors import NotFinite, StorageError
from heterps.ps.protocol import messages as m
from heterps.ps.protocol.frames import Frames, as_upkeep, pack_part, pack_upkeep, unpack_part, unpack_upkeep
from heterps.ps.protocol.parts import ValuePart
from heterps.ps.server.ledger import PushState, Source
from heterps.ps.server.rounds import Contribution
from heterps.ps.server.shard import Shard
from heterps.ps.server.stats import Counts
from heterps.ps.table.finite import first_not_finite
from heterps.ps.table.schedules import rate_at
from heterps.ps.table.sparse import Rows
from heterps.ps.table.tiers import TieredTable
from heterps.wire import Frame, Limits, Malformed, Packed, PackedKeys, pack_values, unpack_keys, unpack_values
from heterps.wire.arrays import Room

Arrays = list[NDArray[np.generic]]
Answer = tuple[m.Result, list[Frame]]
DONE: Answer = (m.Done(), [])
_DENSE, _EITHER = m.PullDense | m.PushDense | m.FillDense, m.Export | m.EndExport | m.Import


class InDoubt(Exception):
    """A push was begun and did not end, so that nobody can say what of it is in the table."""


def unpack(op: m.Op, frames: Frames, shard: Shard, limits: Limits) -> Arrays:
    """The arrays of an op, in the order of its fields; WireError where op, frames and shard do not fit together, and
    NotFinite where a gradient is NaN or infinite."""
    kind = "dense" if isinstance(op, _DENSE) or (isinstance(op, _EITHER) and op.table in shard.dense) else "sparse"
    if op.table not in (shard.dense if kind == "dense" else shard.sparse):
        raise Malformed(f"there is no {kind} table {op.table!r}")
    if isinstance(op, m.PushRows | m.PushDense):
        _check_samples(op, shard)
        if op.round is not None and op.round.part >= op.round.parts:
            raise Malformed(f"table {op.table}: part {op.round.part} of a round that has {op.round.parts}, 0 the first")
    match op:
        case m.PullRows():
            return [_keys(op.keys, frames, shard, limits)]
        case m.PushRows():
            keys = _keys(op.keys, frames, shard, limits)
            shape = (len(keys), shard.sparse[op.table].dim)
            return [keys, _finite(_values(op.grads, frames, shape, op.table, limits), op)]
        case m.PushDense():
            return [_finite(_values(op.grads, frames, (shard.dense[op.table].size,), op.table, limits), op)]
        case m.FillDense():
            return [_values(op.values, frames, (shard.dense[op.table].size,), op.table, limits)]
        case m.Import():
            return _checked_part(op, unpack_part(op.part, frames), shard)
        case m.Resume():
            arrays = unpack_upkeep(op.arrays, frames)
            try:
                shard.sparse[op.table].check_upkeep(as_upkeep(arrays))
            except ValueError as error:
                raise Malformed(f"table {op.table}: {error}") from None
            return arrays
        case m.SaveRows(path=path):
            _check_paths(shard, [path])
            return []
        case m.FindRows(paths=paths):
            _check_paths(shard, paths)
            return []
        case m.LoadRows(paths=paths):
            _check_paths(shard, paths)
            if not shard.can_read(paths):
                raise Malformed(f"table {op.table}: this server does not see all of the files {', '.join(paths)}")
            return []
        case m.ReadUpkeep() | m.PullDense() | m.Export() | m.EndExport() | m.CountRows():
            return []


def run(op: m.Op, arrays: Arrays, shard: Shard, source: Source, counts: Counts, room: Room = lambda _: None) -> Answer:
    """Do an op whose time has come. Pushes that were taken before are counted as repeats and answered as done.

    Large frames of the answer are made in a `room` where there is one.
    """
    match op:
        case m.PullRows():
            keys = arrays[0].view(np.uint64)
            counts.pulled(op.table, len(keys))
            table = shard.sparse[op.table]
            if op.create and isinstance(table, TieredTable):
                table.step()  # between the last push and this pull: no row of either is needed now
            out = _room_for_rows(len(keys), table.dim, op.coding, room)
            return _packed(table.pull(keys, out, create=op.create), op.coding, room)
        case m.PullDense():
            values = shard.dense[op.table].values()
            counts.pulled(op.table, len(values))
            return _packed(values, op.coding, room)
        case m.PushRows():
            keys, grads = arrays[0].view(np.uint64), arrays[1].view(np.float32)
            return _once(op, shard, source, counts, len(keys), lambda: shard.push_rows(
                source, op.table, op.sequence, Contribution(keys, grads, op.samples), op.round))  # fmt: skip
        case m.PushDense():
            grads = arrays[0].view(np.float32)
            return _once(op, shard, source, counts, len(grads), lambda: shard.dense[op.table].push(
                source, op.sequence, Contribution(None, grads, op.samples), op.round))  # fmt: skip
        case m.FillDense():
            shard.dense[op.table].fill(arrays[0].view(np.float32))
            return DONE
        case m.Export():
            page = shard.export(source, op.table, op.number, op.part)
            info, frames = (None, []) if page.part is None else pack_part(page.part)
            return m.Exported(page.num_pushes, page.num_parts, info), frames
        case m.EndExport():
            shard.exports.end(source.worker, op.table, op.number)
            return DONE
        case m.Import():
            return _once(op, shard, source, counts, len(arrays[0]), lambda: shard.put(
                source, op.table, op.sequence, _part(op, arrays), op.num_pushes, is_first=op.is_first))  # fmt: skip
        case m.SaveRows():
            return _save(op, shard), []
        case m.FindRows():
            return m.Found(shard.can_read(op.paths)), []
        case m.LoadRows():
            return _once(op, shard, source, counts, 0, lambda: shard.load_rows(
                source, op.table, op.sequence, op.paths, op.num_pushes))  # fmt: skip
        case m.ReadUpkeep():
            infos, frames = pack_upkeep(shard.sparse[op.table].export_upkeep())
            return m.Kept(shard.num_pushes(op.table), infos), frames
        case m.Resume():
            return _once(op, shard, source, counts, 0, lambda: shard.resume(
                source, op.table, op.sequence, op.num_pushes, as_upkeep(arrays)))  # fmt: skip
        case m.CountRows():
            table = shard.sparse[op.table]
            tiers = table.counts if isinstance(table, TieredTable) else None
            return m.Counted(len(table), table.num_bytes, table.counters(), tiers), []


def _save(op: m.SaveRows, shard: Shard) -> m.Saved:
    """An answer in any case: a save that fails is the coordinator's to tell, and no loss of the server."""
    try:
        written = shard.save_rows(op.table, op.path)
    except (StorageError, NotFinite) as error:
        kind: Any = type(error).__name__
        return m.Saved(kind=kind, text=str(error))
    return m.Saved() if written is None else m.Saved(written.num_bytes, written.xxh3)


def _check_paths(shard: Shard, paths: Iterable[str]) -> None:
    """Malformed where a path leaves the folder that all share."""
    try:
        shard.can_read(paths)
    except ValueError as error:
        raise Malformed(str(error)) from None


def _once(op: m.Push, shard: Shard, source: Source, counts: Counts, num_rows: int, apply: Callable[[], None]) -> Answer:
    """Apply a push unless the ledger has it."""
    match shard.state(source, op.table, op.sequence):
        case PushState.APPLIED:
            counts.repeats += 1
        case PushState.NEXT:
            apply()
            round = op.round if isinstance(op, m.PushRows | m.PushDense) else None
            counts.pushed(op.table, num_rows, round.parts if round is not None else 1)
        case PushState.APPLYING:
            raise InDoubt(f"push {op.sequence} of {source.worker} was begun before and did not end")
        case PushState.EARLY:
            raise AssertionError("a push was run before its predecessor")
    return DONE


def _checked_part(op: m.Import, part: Rows | ValuePart, shard: Shard) -> Arrays:
    """The arrays of a part whose table, homes and sizes are those of the shard."""
    if isinstance(part, Rows) != (op.table in shard.sparse):
        raise Malformed(f"table {op.table} is {'sparse' if op.table in shard.sparse else 'dense'}, and its part is not")
    if isinstance(part, Rows):
        if wrong := shard.home_error(part.keys):
            raise Malformed(wrong)
        return list(part)
    dense = shard.dense[op.table]
    stop = part.first + len(part.values)
    if not dense.within.start <= part.first <= stop <= dense.within.stop or len(part.state) != dense.num_words:
        raise Malformed(
            f"table {op.table} has values {dense.within.start} to {dense.within.stop} with {dense.num_words} words of "
            f"state each here, got {part.first} to {stop} with {len(part.state)}"
        )
    return [part.values, part.state]


def _part(op: m.Import, arrays: Arrays) -> Rows | ValuePart:
    made: list[Any] = list(arrays)
    return Rows(*made) if op.part.first is None else ValuePart(op.part.first, *made)


def _check_samples(op: m.PushRows | m.PushDense, shard: Shard) -> None:
    table = shard.sparse[op.table] if isinstance(op, m.PushRows) else shard.dense[op.table].spec
    try:
        rate_at(table.schedule, op.samples)
    except ValueError as error:
        raise Malformed(f"table {op.table}: {error}") from None


def _keys(packed: PackedKeys, frames: Frames, shard: Shard, limits: Limits) -> NDArray[np.uint64]:
    keys = unpack_keys(packed, frames.take(), limits)
    if wrong := shard.home_error(keys):
        raise Malformed(wrong)
    return keys


def _values(
    packed: Packed, frames: Frames, expected: tuple[int, ...], table: str, limits: Limits
) -> NDArray[np.float32]:
    if packed.shape != expected:
        raise Malformed(f"table {table} needs values {list(expected)} here, got {list(packed.shape)}")
    return unpack_values(packed, frames.take(), limits)


def _finite(grads: NDArray[np.float32], op: m.PushRows | m.PushDense) -> NDArray[np.float32]:
    """The gradients themselves; NotFinite where one of them would spoil the table."""
    if (at := first_not_finite(grads)) >= 0:
        raise NotFinite(f"a gradient of table {op.table} is {grads.flat[at]}: it is not applied")
    return grads


def _room_for_rows(num_rows: int, dim: int, coding: m.Coding, room: Room) -> NDArray[np.float32] | None:
    """Where rows that travel as they are can go at once."""
    if coding.dtype != "fp32" or coding.compression is not None:
        return None
    memory = room(4 * num_rows * dim)
    return None if memory is None else memory.view(np.float32).reshape(num_rows, dim)


def _packed(values: NDArray[np.float32], coding: m.Coding, room: Room) -> Answer:
    packed, frame = pack_values(values, coding.dtype, coding.compression, coding.least_bytes, room)
    return m.Values(packed), [frame]
