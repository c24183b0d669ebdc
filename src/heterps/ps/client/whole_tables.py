"""Calls on whole tables: counts, and tables in and out, in parts that fit into messages (see exports.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps.errors import NotFinite, PeerLost, StorageError
from heterps.ps.client.calls import Built, Call, Everywhere, FloatArray, Homes, Ranged, check_result
from heterps.ps.protocol import messages as m
from heterps.ps.protocol.frames import Frames, as_upkeep, pack_part, pack_upkeep, unpack_part, unpack_upkeep
from heterps.ps.protocol.parts import PART_BYTES, ValuePart, concatenate, row_parts, value_parts
from heterps.ps.protocol.roster import Roster
from heterps.ps.protocol.row_files import RowFile, RowFiles, shard_path
from heterps.ps.table.finite import finite_parts
from heterps.ps.table.metadata import TableCounters, Upkeep, unstack
from heterps.ps.table.sparse import Rows
from heterps.ps.table.tiers import TierCounts

NUM_ATTEMPTS = 8
"""To export a table while the roster changes."""
Submit = Callable[[Call], Future[Any]]


class Acknowledged:
    """A call that every server answers by Done."""

    def take(self, number: int, roster: Roster, result: m.Result, frames: Frames) -> None:  # noqa: ARG002
        check_result(result, m.Done)

    def result(self) -> None:
        return None


class CountRowsCall(Everywhere):
    """Rows and bytes of a sparse table."""

    def __init__(self, table: str, after: int) -> None:
        self.table = table
        self._after = after
        self._parts: dict[int, m.Counted] = {}

    def build(self, number: int, roster: Roster) -> Built:  # noqa: ARG002
        self._parts = {key: part for key, part in self._parts.items() if key < roster.num_shards}
        return Built(m.CountRows(self.table, self._after), [])

    def take(self, number: int, roster: Roster, result: m.Result, frames: Frames) -> None:  # noqa: ARG002
        self._parts[number] = check_result(result, m.Counted)

    def result(self) -> m.Counted:
        parts = self._parts.values()
        tiers = [part.tiers for part in parts if part.tiers is not None]
        return m.Counted(
            sum(part.num_rows for part in parts),
            sum(part.num_bytes for part in parts),
            TableCounters.total([part.counters for part in parts]),
            TierCounts.total(tiers) if tiers else None,
        )


class ReadUpkeepCall(Everywhere):
    """What the shards of a sparse table know besides their rows, and the least number of pushes that they have seen."""

    def __init__(self, table: str, after: int) -> None:
        self.table = table
        self._after = after
        self._parts: dict[int, tuple[int, Upkeep]] = {}

    def build(self, number: int, roster: Roster) -> Built:  # noqa: ARG002
        self._parts = {key: part for key, part in self._parts.items() if key < roster.num_shards}
        return Built(m.ReadUpkeep(self.table, self._after), [])

    def take(self, number: int, roster: Roster, result: m.Result, frames: Frames) -> None:  # noqa: ARG002
        kept = check_result(result, m.Kept)
        self._parts[number] = kept.num_pushes, as_upkeep(unpack_upkeep(kept.arrays, frames))

    def result(self) -> tuple[int, list[Upkeep]]:
        parts = [self._parts[number] for number in sorted(self._parts)]
        return min(num_pushes for num_pushes, _ in parts), [upkeep for _, upkeep in parts]


class ResumeCall(Acknowledged, Everywhere):
    """Upkeep that any number of shards had, for those of now."""

    def __init__(self, table: str, upkeep: Mapping[str, NDArray[Any]], num_pushes: int, sequence: int) -> None:
        self.table = table
        self._upkeep, self._num_pushes, self._sequence = upkeep, num_pushes, sequence

    def build(self, number: int, roster: Roster) -> Built:
        upkeep = unstack(self._upkeep, roster.num_shards)[number]
        assert upkeep is not None
        infos, frames = pack_upkeep(upkeep)
        return Built(m.Resume(self.table, self._sequence, self._num_pushes, infos), frames)


# --- out -------------------------------------------------------------------------------------------------------------


class Gathered(NamedTuple):
    """A part of what every server has of a table."""

    epoch: int
    pages: dict[int, tuple[m.Exported, Rows | ValuePart | None]]  # by server


class ExportCall:
    """Part `part` of a table, of every server that has so many of them: part 0 has said how many there are."""

    def __init__(self, table: str, after: int, number: int, part: int = 0, first: Gathered | None = None) -> None:
        self.table = table
        self._op = m.Export(table, after, number, part)
        self._first = first
        self._gathered = Gathered(0, {})

    def concerns(self, number: int, roster: Roster) -> bool:
        if self._first is None:
            return True
        return self._first.epoch == roster.epoch and self._op.part < self._first.pages[number][0].num_parts

    def build(self, number: int, roster: Roster) -> Built:  # noqa: ARG002
        if self._gathered.epoch != roster.epoch:
            self._gathered = Gathered(roster.epoch, {})
        return Built(self._op, [], PART_BYTES)

    def take(self, number: int, roster: Roster, result: m.Result, frames: Frames) -> None:  # noqa: ARG002
        exported = check_result(result, m.Exported)
        part = None if exported.part is None else unpack_part(exported.part, frames)
        self._gathered.pages[number] = exported, part

    def result(self) -> Gathered:
        return self._gathered


class EndExportCall(Acknowledged, Everywhere):
    def __init__(self, table: str, number: int) -> None:
        self.table = table
        self._number = number

    def build(self, number: int, roster: Roster) -> Built:  # noqa: ARG002
        return Built(m.EndExport(self.table, self._number), [])


def export_rows(submit: Submit, table: str, after: int, numbers: Iterator[int]) -> tuple[Rows, int]:
    """All rows of a sparse table, and the number of pushes that all of them have seen."""
    parts, num_pushes = _export(submit, table, after, numbers)
    return concatenate([part for part in parts if isinstance(part, Rows)]), num_pushes


class SaveRowsCall(Everywhere):
    """Every server writes its rows of a sparse table. The result is a function that gives the files, None where a
    server does not see the folder, or raises what a server met."""

    def __init__(self, table: str, after: int, path: str) -> None:
        self.table = table
        self._after, self._path = after, path
        self._epoch, self._saved = 0, dict[int, m.Saved]()

    def build(self, number: int, roster: Roster) -> Built:
        if self._epoch != roster.epoch:
            self._epoch, self._saved = roster.epoch, {}
        return Built(m.SaveRows(self.table, self._after, shard_path(self._path, roster.epoch, number)), [])

    def take(self, number: int, roster: Roster, result: m.Result, frames: Frames) -> None:  # noqa: ARG002
        self._saved[number] = check_result(result, m.Saved)

    def result(self) -> Callable[[], list[RowFile] | None]:
        return self._files

    def _files(self) -> list[RowFile] | None:
        for saved in self._saved.values():
            if saved.kind:
                raise {"StorageError": StorageError, "NotFinite": NotFinite}[saved.kind](saved.text)
        if any(saved.num_bytes is None for saved in self._saved.values()):
            return None
        return [
            RowFile(shard_path(self._path, self._epoch, number), saved.num_bytes or 0, saved.xxh3)
            for number, saved in sorted(self._saved.items())
        ]


class _RosterChanged(Exception):
    """The parts of an export do not belong together."""


def save_streamed(
    submit: Submit,
    table: str,
    after: int,
    numbers: Iterator[int],
    files: RowFiles,
    path: str,
    num_rows: int,
    widths: tuple[int, int],
) -> list[RowFile]:
    """Write the rows of servers that see another disk here, as one file; a part of each server is in memory at once."""
    for number in islice(numbers, NUM_ATTEMPTS):
        parts = finite_parts(table, _stream(submit, table, after, number))
        try:
            return [files.write(f"{path}.streamed-{number}.arrow", parts, num_rows, widths)]
        except _RosterChanged:
            continue
    raise PeerLost(f"table {table} could not be saved: the servers' roster changed {NUM_ATTEMPTS} times meanwhile")


def _stream(submit: Submit, table: str, after: int, number: int) -> Iterator[Rows]:
    first: Gathered = submit(ExportCall(table, after, number)).result()
    num_parts = {server: page.num_parts for server, (page, _) in first.pages.items()}
    for part in range(max(num_parts.values(), default=0)):
        gathered = first if part == 0 else submit(ExportCall(table, after, number, part, first)).result()
        for server in (server for server in sorted(num_parts) if part < num_parts[server]):
            if server not in gathered.pages or not gathered.pages[server][0].num_parts:
                raise _RosterChanged
            if isinstance(rows := gathered.pages[server][1], Rows):
                yield rows
    submit(EndExportCall(table, number)).result()


def export_dense(submit: Submit, table: str, after: int, numbers: Iterator[int]) -> tuple[FloatArray, FloatArray, int]:
    """Values, state and number of steps of a dense table, as one server alone would have them."""
    parts, num_steps = _export(submit, table, after, numbers)
    ranges = [part for part in parts if isinstance(part, ValuePart)]  # in the order of servers, which is theirs
    values, state = np.concatenate([part.values for part in ranges]), np.hstack([part.state for part in ranges])
    return values, state.reshape(-1), num_steps


def _export(
    submit: Submit, table: str, after: int, numbers: Iterator[int]
) -> tuple[list[Rows | ValuePart | None], int]:
    """All parts of a table, server after server, and the least number of pushes. Begun anew when the roster changes."""
    for number in islice(numbers, NUM_ATTEMPTS):
        first: Gathered = submit(ExportCall(table, after, number)).result()
        num_parts = {server: page.num_parts for server, (page, _) in first.pages.items()}
        others = [
            submit(ExportCall(table, after, number, part, first))
            for part in range(1, max(num_parts.values(), default=0))
        ]
        gathered: list[Gathered] = [first, *(other.result() for other in others)]
        pages = {(server, part): page for part, each in enumerate(gathered) for server, page in each.pages.items()}
        if others:
            submit(EndExportCall(table, number)).result()
        wanted = [(server, part) for server in sorted(num_parts) for part in range(num_parts[server])]
        if all(page in pages and pages[page][0].num_parts for page in wanted):
            return [pages[page][1] for page in wanted], min(page.num_pushes for page, _ in first.pages.values())
    raise PeerLost(f"table {table} could not be exported: the servers' roster changed {NUM_ATTEMPTS} times meanwhile")


# --- in --------------------------------------------------------------------------------------------------------------


class ImportRowsCall(Acknowledged, Everywhere):
    """A part of a sparse table that has seen `num_pushes`."""

    def __init__(self, table: str, rows: Rows, num_pushes: int, sequence: int, *, is_first: bool) -> None:
        self.table = table
        self._rows, self._num_pushes, self._sequence, self._is_first = rows, num_pushes, sequence, is_first
        self._homes = Homes(rows.keys)

    def build(self, number: int, roster: Roster) -> Built:
        where = self._homes.where(number, roster.num_shards)
        part, frames = pack_part(self._rows.select(where))  # type: ignore[arg-type]
        return Built(m.Import(self.table, self._sequence, self._num_pushes, self._is_first, part), frames)


class FindRowsCall(Everywhere):
    """Whether all servers see these files."""

    def __init__(self, table: str, after: int, paths: Sequence[str]) -> None:
        self.table = table
        self._op = m.FindRows(table, after, tuple(paths))
        self._found: dict[int, bool] = {}

    def build(self, number: int, roster: Roster) -> Built:  # noqa: ARG002
        return Built(self._op, [])

    def take(self, number: int, roster: Roster, result: m.Result, frames: Frames) -> None:  # noqa: ARG002
        self._found[number] = check_result(result, m.Found).are_there

    def result(self) -> bool:
        return all(self._found.values())


class LoadRowsCall(Acknowledged, Everywhere):
    """Every server reads the rows whose home it is, for an empty table that has seen `num_pushes`."""

    def __init__(self, table: str, paths: Sequence[str], num_pushes: int, sequence: int) -> None:
        self.table = table
        self._op = m.LoadRows(table, sequence, num_pushes, tuple(paths))

    def build(self, number: int, roster: Roster) -> Built:  # noqa: ARG002
        return Built(self._op, [])


class ImportDenseCall(Acknowledged, Ranged):
    """A part of a dense table of `size` values after `num_steps`. Servers without any of it count it too."""

    def __init__(
        self, table: str, size: int, part: ValuePart, num_steps: int, sequence: int, *, is_first: bool
    ) -> None:
        self.table = table
        self.size = size
        self._part, self._num_steps, self._sequence, self._is_first = part, num_steps, sequence, is_first

    def build(self, number: int, roster: Roster) -> Built:
        within, whole = roster.dense_range(self.size, number), self._part
        first = min(max(within.start, whole.first), within.stop)
        last = max(first, min(within.stop, whole.first + len(whole.values)))
        mine = slice(first - whole.first, last - whole.first) if last > first else slice(0, 0)
        part, frames = pack_part(ValuePart(first, whole.values[mine], whole.state[:, mine]))
        return Built(m.Import(self.table, self._sequence, self._num_steps, self._is_first, part), frames)


Push = Callable[[str, Callable[[int], Call]], Future[None]]
"""Takes a table and what makes a call of the number of the push."""


def import_rows(push: Push, table: str, rows: Rows, num_pushes: int, upkeep: Mapping[str, NDArray[Any]]) -> None:
    """Fill an empty sparse table, with the upkeep if there is some."""
    parts = list(row_parts(rows)) or [rows]
    _import(push, table, parts, lambda part, sequence, is_first: ImportRowsCall(
        table, part, num_pushes, sequence, is_first=is_first))  # fmt: skip
    if upkeep:
        push(table, lambda sequence: ResumeCall(table, upkeep, num_pushes, sequence)).result()


def import_parts(push: Push, table: str, parts: Iterator[Rows], num_pushes: int) -> None:
    """Fill an empty sparse table with rows that come in parts; one of them is under way at a time."""
    is_first = True
    for part in parts:
        _import(push, table, [part], lambda rows, sequence, is_first: ImportRowsCall(
            table, rows, num_pushes, sequence, is_first=is_first), is_first)  # fmt: skip
        is_first = False


def import_dense(push: Push, table: str, values: FloatArray, state: FloatArray, num_steps: int) -> None:
    """Give a dense table these values and the state of all of them, one word of each after the other."""
    size = len(values)
    whole = ValuePart(0, values, state.reshape(len(state) // size if size else 0, size))
    parts = list(value_parts(*whole)) or [whole]
    _import(push, table, parts, lambda part, sequence, is_first: ImportDenseCall(
        table, size, part, num_steps, sequence, is_first=is_first))  # fmt: skip


def _import(
    push: Push, table: str, parts: list[Any], make: Callable[[Any, int, bool], Call], is_begin: bool = True
) -> None:
    def maker(part: Any, is_first: bool) -> Callable[[int], Call]:
        return lambda sequence: make(part, sequence, is_first)

    for future in [push(table, maker(part, is_begin and number == 0)) for number, part in enumerate(parts)]:
        future.result()
