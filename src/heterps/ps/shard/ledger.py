"""Ledger: which pushes a piece of the tables has taken, so that each is applied exactly once.

A push is known by (worker, incarnation, table, sequence). Workers number their pushes to a table 1, 2, 3, ... and a
server applies them in this order, whatever order the network makes of them. So the memory of all pushes ever applied
is one number for a worker and table, and no acknowledgement is needed to trim it.

    EARLY     an older push is still missing: the request is kept (received) until that has been applied
    NEXT      may be applied now
    APPLYING  was begun and never finished (the table ran out of memory): in doubt, never applied again
    APPLIED   a repeat: answered again, not applied again; or kept for its round (see rounds.py), which is the same here

A worker that died is started again as its next incarnation, which numbers its pushes from 1 again and repeats the
iteration that was under way. What of that iteration was applied before is known by its lane and number: it is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from msgspec import Struct
from msgspec.msgpack import decode, encode


@dataclass(frozen=True)
class PushSource:
    """Who pushed: a worker in one of its incarnations."""

    worker: str
    incarnation: int


class PushState(Enum):
    EARLY = auto()
    NEXT = auto()
    APPLYING = auto()
    APPLIED = auto()


class Entry(Struct):
    """How far the pushes of a worker to a table have been applied."""

    incarnation: int
    applied: int = 0  # every sequence up to this one
    applying: bool = False  # the next one was begun
    lanes: dict[int, int] = {}  # the last iteration of each lane that is in the table, of older incarnations too


class Ledger(Struct):
    """A value that travels with the rows it is about: into checkpoints, and to the server that takes them over."""

    workers: dict[str, dict[str, Entry]] = {}  # by worker and table
    num_pushes: dict[str, int] = {}  # of all workers, by table: what Adam corrects its bias by
    num_rounds: dict[str, int] = {}  # that were applied, by table: see rounds.py

    def applied(self, source: PushSource, table: str) -> int:
        """Return the last sequence that was applied; 0 for a worker, incarnation or table that is new here."""
        entry = self._find(source, table)
        return entry.applied if entry is not None else 0

    def state(self, source: PushSource, table: str, sequence: int) -> PushState:
        entry = self._find(source, table) or Entry(source.incarnation)
        if sequence <= entry.applied:
            return PushState.APPLIED
        if sequence > entry.applied + 1:
            return PushState.EARLY
        return PushState.APPLYING if entry.applying else PushState.NEXT

    def begin(self, source: PushSource, table: str) -> None:
        """Note that the next push of a worker is about to change the table. A new incarnation begins to count at 1."""
        entry = self._find(source, table)
        if entry is None:
            tables = self.workers.setdefault(source.worker, {})
            lanes = tables[table].lanes if table in tables else {}
            entry = tables[table] = Entry(source.incarnation, lanes=lanes)
        entry.applying = True

    def begins_again(self, source: PushSource, table: str) -> bool:
        """Whether an older incarnation of a worker has pushed to the table, and this one has not."""
        entry = self.workers.get(source.worker, {}).get(table)
        return entry is not None and entry.incarnation < source.incarnation

    def has_iteration(self, worker: str, table: str, lane: int, number: int) -> bool:
        """Whether an iteration of a lane is in the table, whichever incarnation of the worker pushed it."""
        entry = self.workers.get(worker, {}).get(table)
        return entry is not None and entry.lanes.get(lane, 0) >= number

    def finish(self, source: PushSource, table: str, num_pushes: int | None = None) -> None:
        """Note that the push is in the table, which has then seen one more, or `num_pushes` where that is said."""
        self.keep(source, table)
        self.num_pushes[table] = self.num_pushes.get(table, 0) + 1 if num_pushes is None else num_pushes

    def finish_iteration(self, source: PushSource, table: str, lane: int, number: int) -> None:
        """Note that the push of an iteration of a lane is in the table."""
        self.finish(source, table)
        self.workers[source.worker][table].lanes[lane] = number

    def keep(self, source: PushSource, table: str) -> None:
        """Note that the push is kept for its round, and counts as applied; the table has not seen it yet."""
        entry = self.workers[source.worker][table]
        entry.applied, entry.applying = entry.applied + 1, False

    def next_round(self, table: str) -> int:
        """Return the number of the round that is to be applied next; the first is 1."""
        return self.num_rounds.get(table, 0) + 1

    def end_round(self, table: str) -> None:
        """Note that the next round is in the table, as one push."""
        self.num_rounds[table] = self.next_round(table)
        self.num_pushes[table] = self.num_pushes.get(table, 0) + 1

    def copy(self) -> Ledger:
        return decode(encode(self), type=Ledger)

    def _find(self, source: PushSource, table: str) -> Entry | None:
        entry = self.workers.get(source.worker, {}).get(table)
        return entry if entry is not None and entry.incarnation == source.incarnation else None
