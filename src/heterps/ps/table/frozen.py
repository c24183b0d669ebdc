"""FrozenRows: the rows of a table as they were at one moment, while the table goes on changing.

    freeze                     every row that the reader wants is due
    push, removal --places-->  [1] rows that are due and about to change are copied, and due no more
    parts                      [2] what was copied, then the next rows that are due, until none is

So each row comes once, as it was, and only rows that change while others are read take memory. The reader takes copies
first. Where it is slow, a push waits until it has taken them: there are never many more than MAX_COPIED_BYTES.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import FloatArray
from heterps.ps.table.rows import Rows

PART_ROWS = 1 << 14
"""Rows that are read at once: for so long, a millisecond or two, a push waits."""
MAX_COPIED_BYTES = 64 * 2**20
LONGEST_WAIT_S = 1.0
"""A push waits no longer for a reader that takes nothing, such as one whose disk hangs; its copies are made anyway."""


class RowsToSave(Protocol):
    """Rows of a table on their way into a file."""

    @property
    def holds(self) -> bool:
        """Whether they stay as they are when the table changes. Otherwise they are to be read at once."""

    @property
    def num_left(self) -> int:
        """The number of rows that were not read yet."""

    def __len__(self) -> int:
        """Return how many rows there are, read or not."""

    def parts(self) -> Iterator[Rows]:
        """Yield all of them, a part at a time, once."""


class FrozenRows:
    """Rows of a table; `due` says which, by their places. Both threads, the table's and the reader's, hold `lock`.

    words    gives all rows of the table as they are, [n, words of a row]: a view
    as_rows  makes copies of whole rows
    """

    holds = True

    def __init__(
        self,
        due: NDArray[np.bool_],
        words: Callable[[], FloatArray],
        as_rows: Callable[[FloatArray], Rows],
        lock: threading.Lock,
    ) -> None:
        self._due, self._words, self._as_rows = due, words, as_rows
        self._lock, self._taken = lock, threading.Condition(lock)
        self._num_rows = self.num_left = int(np.count_nonzero(due))
        self._copies: list[FloatArray] = []
        self._at = 0  # no row before this place is due
        self._is_read = False

    def __len__(self) -> int:
        return self._num_rows

    def preserve(self, places: NDArray[np.int64]) -> None:
        """Copy those rows that are due, because they are about to change. The lock is held. [1]"""
        places = places[places < len(self._due)]
        places = np.unique(places[self._due[places]])
        if len(places):
            self._copies.append(self._words()[places])
            self._due[places] = False

    def wait_for_reader(self) -> None:
        """Wait while copies take too much memory and somebody takes them. The lock is held, but for the wait."""
        if self._is_read:
            self._taken.wait_for(lambda: self._copied_bytes <= MAX_COPIED_BYTES, LONGEST_WAIT_S)

    def parts(self) -> Iterator[Rows]:
        """Yield all rows, once; on another thread than that which changes the table, if need be. [2]"""
        self._is_read = True
        try:
            while (part := self._next()) is not None:
                yield part
        finally:
            with self._lock:  # nobody wants the others, if any are left
                self._due, self._copies, self.num_left = np.empty(0, np.bool_), [], 0
                self._taken.notify_all()

    def _next(self) -> Rows | None:
        with self._lock:
            copies, self._copies = self._copies, []
            if copies:
                self._taken.notify_all()
                part = self._as_rows(np.concatenate(copies))
            else:
                while self._at < len(self._due):
                    places = self._at + np.flatnonzero(self._due[self._at : self._at + PART_ROWS])
                    self._at += PART_ROWS
                    if len(places):
                        part = self._as_rows(self._words()[places])
                        self._due[places] = False
                        break
                else:
                    return None
        self.num_left -= len(part.keys)
        return part

    @property
    def _copied_bytes(self) -> int:
        return sum(copy.nbytes for copy in self._copies)


class RowsInPlace:
    """Rows that are read from the table itself, which must not change before they are."""

    holds = False

    def __init__(self, num_rows: int, parts: Iterator[Rows]) -> None:
        self._num_rows = self.num_left = num_rows
        self._parts = parts

    def __len__(self) -> int:
        return self._num_rows

    def parts(self) -> Iterator[Rows]:
        for part in self._parts:
            self.num_left -= len(part.keys)
            yield part
