"""Whole tables, sparse and dense, out and in, in parts that fit into messages.

out   worker   Export(part 0) --> the table is copied      Export(part 1), ... --> of that copy      EndExport
in    worker   Import(part), Import(part), ...     each a push like others; the first needs an empty table
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from heterps.arrays import FloatArray
from heterps.errors import PeerLost
from heterps.ps.ops import base
from heterps.ps.protocol.frames import Frames, PartInfo, pack_part, unpack_part
from heterps.ps.protocol.messages import Count, Ordinal
from heterps.ps.protocol.parts import PART_BYTES, TablePart, ValuePart, split
from heterps.ps.protocol.roster import Roster
from heterps.ps.protocol.row_files import RowFileInfo, RowFiles
from heterps.ps.shard.shard import Shard
from heterps.ps.table.finite import finite_parts
from heterps.ps.table.rows import Rows
from heterps.wire import Limits, Malformed

NUM_ATTEMPTS = 8
"""How many times an export is begun while the roster changes."""
T = TypeVar("T")
Submit = Callable[[base.Call], Future[Any]]
PushCall = Callable[[str, Callable[[int], base.Call]], Future[None]]
"""Takes a table, and a function that makes the call from the sequence of its push."""


class Export(base.Read, frozen=True, tag="export"):
    """Part `part` of what the server has of a table, as it was when part 0 of this export was asked for.

    `number` tells the exports of a worker apart. The server keeps a table of several parts until it is told EndExport,
    and for a minute after the last question; then, and after a change of the roster, it answers `num_parts` 0.
    """

    tables = "any"
    number: Ordinal
    part: Count

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        page = shard.export(to.source, self.table, self.number, self.part)
        info, frames = (None, []) if page.part is None else pack_part(page.part)
        return ExportedPart(page.num_pushes, page.num_parts, info), frames


class ExportedPart(base.Result, frozen=True, tag="exported"):
    """A part (frames) of a table that has seen `num_pushes`; none where the table has no rows or values here."""

    num_pushes: Count
    num_parts: Count
    part: PartInfo | None = None


class EndExport(base.Op, frozen=True, tag="end_export"):
    """The worker has all parts."""

    tables = "any"
    number: Ordinal

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        shard.exports.end(to.source.worker, self.table, self.number)
        return base.Done(), []


class Import(base.Push, frozen=True, tag="import"):
    """A part (frames) of a table that has seen `num_pushes`. The first needs an empty table."""

    tables = "any"
    num_pushes: Count
    is_first: bool
    part: PartInfo

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        part = unpack_part(self.part, frames)
        is_sparse = self.table in shard.sparse
        if isinstance(part, Rows) != is_sparse:
            raise Malformed(f"table {self.table} is {'sparse' if is_sparse else 'dense'}, and its part is not")
        wrong = shard.home_error(part.keys) if isinstance(part, Rows) else shard.dense[self.table].part_error(part)
        if wrong:
            raise Malformed(wrong)
        put = partial(shard.put, table=self.table, sequence=self.sequence, part=part, num_pushes=self.num_pushes)
        num_rows = len(part.keys if isinstance(part, Rows) else part.values)
        return self.once(shard, num_rows, lambda source: put(source, is_first=self.is_first))


# --- out -------------------------------------------------------------------------------------------------------------


class Gathered(NamedTuple):
    """A part of what every server has of a table."""

    epoch: int
    pages: dict[int, tuple[ExportedPart, TablePart | None]]  # by server


class ExportCall(base.Ask[ExportedPart]):
    """Part `part` of a table, of every server that has as many: part 0 has said how many there are."""

    def __init__(self, table: str, after: int, number: int, part: int = 0, first: Gathered | None = None) -> None:
        super().__init__(Export(table, after, number, part), ExportedPart, PART_BYTES)
        self._part, self._first = part, first

    def concerns(self, number: int, roster: Roster) -> bool:
        if self._first is None:
            return True
        return self._first.epoch == roster.epoch and self._part < self._first.pages[number][0].num_parts

    def read(self, result: ExportedPart, frames: Frames) -> tuple[ExportedPart, TablePart | None]:
        return result, None if result.part is None else unpack_part(result.part, frames)

    def result(self) -> Gathered:
        return Gathered(self._epoch, self._answers)


class ServerPart(NamedTuple):
    """A part of what `server` has of a table that has seen `num_pushes`."""

    server: int
    num_pushes: int
    part: TablePart | None


class _RosterChanged(Exception):
    """The parts of an export do not belong together."""


@dataclass
class TableExport:
    """The parts of a table, asked for one after another by `submit`, and begun anew when the roster changes."""

    submit: Submit
    table: str
    after: int
    numbers: Iterator[int]  # of exports, which differ

    def rows(self) -> tuple[Rows, int]:
        """Return all rows of a sparse table, and the number of pushes that all of them have seen."""
        parts, num_pushes = self._all()
        return Rows.join([part for part in parts if isinstance(part, Rows)]), num_pushes

    def dense(self) -> tuple[FloatArray, FloatArray, int]:
        """Return values, state and number of steps of a dense table, as one server alone would have them."""
        parts, num_steps = self._all()
        ranges = [part for part in parts if isinstance(part, ValuePart)]  # in the order of servers, which is theirs
        values, state = np.concatenate([part.values for part in ranges]), np.hstack([part.state for part in ranges])
        return values, state.reshape(-1), num_steps

    def save(self, files: RowFiles, path: str, num_rows: int, widths: tuple[int, int]) -> list[RowFileInfo]:
        """Write the rows of servers that see another disk here, as one file."""

        def write(number: int, parts: Iterator[ServerPart]) -> list[RowFileInfo]:
            rows = finite_parts(self.table, (part.part for part in parts if isinstance(part.part, Rows)))
            return [files.write(f"{path}.streamed-{number}.arrow", rows, num_rows, widths)]

        return self._attempt(write)

    def _all(self) -> tuple[list[TablePart | None], int]:
        """Return all parts, server after server, and the number of pushes that all of them have seen."""
        parts = self._attempt(lambda _, parts: sorted(parts, key=lambda part: part.server))
        return [part.part for part in parts], min(part.num_pushes for part in parts)

    def _attempt(self, use: Callable[[int, Iterator[ServerPart]], T]) -> T:
        """Return what `use` makes of an export and its number."""
        for number in islice(self.numbers, NUM_ATTEMPTS):
            try:
                return use(number, self._parts(number))
            except _RosterChanged:
                continue
        raise PeerLost(
            f"table {self.table} could not be exported: the servers' roster changed {NUM_ATTEMPTS} times meanwhile"
        )

    def _parts(self, number: int) -> Iterator[ServerPart]:
        """Yield the parts; one of each server is in memory at once."""
        first: Gathered = self.submit(ExportCall(self.table, self.after, number)).result()
        num_parts = {server: page.num_parts for server, (page, _) in first.pages.items()}
        most = max(num_parts.values(), default=0)
        for part in range(most):
            gathered = first
            if part:
                gathered = self.submit(ExportCall(self.table, self.after, number, part, first)).result()
            for server in (server for server in sorted(num_parts) if part < num_parts[server]):
                if server not in gathered.pages or not gathered.pages[server][0].num_parts:
                    raise _RosterChanged
                page, rows = gathered.pages[server]
                yield ServerPart(server, page.num_pushes, rows)
        if most > 1:
            self.submit(base.Ask(EndExport(self.table, number), base.Done)).result()


# --- in --------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ImportCall(base.Call):
    """A part of a table that has seen `num_pushes`; `size` is that of a dense table."""

    table: str
    part: TablePart
    num_pushes: int
    is_first: bool
    size: int
    sequence: int

    def __post_init__(self) -> None:
        self._homes = base.Homes(self.part.keys if isinstance(self.part, Rows) else np.empty(0, np.uint64))

    def concerns(self, number: int, roster: Roster) -> bool:
        within = roster.dense_range(self.size, number)
        return isinstance(self.part, Rows) or bool(within.stop > within.start)

    def build(self, number: int, roster: Roster) -> base.Built:
        mine: TablePart
        if isinstance(self.part, Rows):
            mine = self.part.select(self._homes.where(number, roster.num_shards))
        else:  # a server counts the part even where nothing of it is its own
            within = roster.dense_range(self.size, number)
            mine = self.part.cut(within)
            mine = mine._replace(first=min(max(mine.first, within.start), within.stop))
        info, frames = pack_part(mine)
        return base.Built(Import(self.table, self.sequence, self.num_pushes, self.is_first, info), frames)


def import_parts(push: PushCall, table: str, parts: Iterable[TablePart], num_pushes: int, size: int = 0) -> None:
    """Fill an empty table with parts of it; two of them are under way at a time."""
    before: Future[None] | None = None
    for number, part in enumerate(parts):
        following = push(table, partial(ImportCall, table, part, num_pushes, number == 0, size))
        if before is not None:
            before.result()
        before = following
    if before is not None:
        before.result()


def import_rows(push: PushCall, table: str, rows: Rows, num_pushes: int) -> None:
    """Fill an empty sparse table."""
    import_parts(push, table, list(split(rows)) or [rows], num_pushes)


def import_dense(push: PushCall, table: str, values: FloatArray, state: FloatArray, num_steps: int) -> None:
    """Give a dense table these values and the state of all of them, one word of each after the other."""
    size = len(values)
    whole = ValuePart(0, values, state.reshape(len(state) // size if size else 0, size))
    import_parts(push, table, list(split(whole)) or [whole], num_steps, size)


OPS, RESULTS = (Export, EndExport, Import), (ExportedPart,)
