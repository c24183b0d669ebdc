"""Exports: tables on their way to a worker, part by part, so that no table is too large for a message.

    worker   Export(part 0) --> the table is copied      Export(part 1), ... --> of that copy      EndExport --> let go

All parts are of one moment, whatever is pushed meanwhile. A worker whose copy is gone (the roster has changed, or it
was silent for too long) begins again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from heterps.ps.protocol.parts import TablePart, split

MAX_IDLE_TICKS = 60


@dataclass
class _Copy:
    number: int
    num_pushes: int
    parts: list[TablePart]
    idle_ticks: int = 0


class Page(NamedTuple):
    """One part of an export; with `num_parts` 0 the export does not exist any more."""

    num_pushes: int
    num_parts: int
    part: TablePart | None = None


class Exports:
    """The copies that a server keeps for exports: at most one for each worker and table."""

    def __init__(self) -> None:
        self._copies: dict[tuple[str, str], _Copy] = {}

    def begin(self, worker: str, table: str, number: int, num_pushes: int, whole: TablePart) -> Page:
        """Return the first part of a table, which is kept if it has more."""
        parts: list[TablePart] = [*split(whole)]
        self._copies.pop((worker, table), None)
        if len(parts) > 1:
            self._copies[worker, table] = _Copy(number, num_pushes, parts)
        return Page(num_pushes, max(1, len(parts)), parts[0] if parts else whole)

    def page(self, worker: str, table: str, number: int, part: int) -> Page:
        copy = self._copies.get((worker, table))
        if copy is None or copy.number != number or part >= len(copy.parts):
            return Page(0, 0)
        copy.idle_ticks = 0
        return Page(copy.num_pushes, len(copy.parts), copy.parts[part])

    def end(self, worker: str, table: str, number: int) -> None:
        copy = self._copies.get((worker, table))
        if copy is not None and copy.number == number:
            del self._copies[worker, table]

    def tick(self) -> None:
        """Drop the copies that nobody has asked for in the last MAX_IDLE_TICKS."""
        for copy in self._copies.values():
            copy.idle_ticks += 1
        self._copies = {key: copy for key, copy in self._copies.items() if copy.idle_ticks <= MAX_IDLE_TICKS}

    def clear(self) -> None:
        self._copies.clear()

    def __len__(self) -> int:
        return len(self._copies)
