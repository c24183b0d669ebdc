"""ChangeLog: what has happened to the rows of a table since a version of it was written: for those who follow a run,
and for checkpoints that have changes only.

    version 1 ---- pushes, evictions, moves between tiers ----> version 2: the rows that changed, the keys that went

    changed   the clock of a row is at least that of the table at version 1. A push sets it to a later one, a pull that
              creates a row to the same one: rows of the last push before version 1 come again, and none is missed
    gone      keys are noted when eviction takes their rows
    lowered   keys are noted when a row that changed goes down to disk, whose clocks are not read

A log that would hold too many keys forgets everything: all rows are then written, which costs little more.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import KeyArray
from heterps.ps.table.usage import ages_of

MAX_KEYS = 1 << 20
"""Largest number of keys in a log, 8 MB. There are two: of rows that went, and of rows on disk that changed."""


Reader = Literal["followers", "checkpoints"]
"""Who gets versions of a table; each has a log of its own."""


class ChangeLogs:
    """The logs of one table, or one shard of it, by reader. What happens to rows is noted in all of them."""

    def __init__(self) -> None:
        self._logs: dict[Reader, ChangeLog] = {reader: ChangeLog() for reader in get_args(Reader)}

    def __getitem__(self, reader: Reader) -> ChangeLog:
        return self._logs[reader]

    def forget(self) -> None:
        for log in self._logs.values():
            log.forget()

    def went(self, keys: KeyArray) -> None:
        for log in self._logs.values():
            log.went(keys)

    def went_down(self, keys: KeyArray, clocks: NDArray[np.uint32], now: int) -> None:
        for log in self._logs.values():
            log.went_down(keys, clocks, now)


class ChangeLog:
    """The changes since one version. `version` 0: no version was written, and nothing is noted."""

    def __init__(self) -> None:
        self.version = 0
        self._clock = 0
        self._gone, self._lowered = _Keys(), _Keys()

    def begin(self, version: int, clock: int) -> None:
        """Note changes from here on: `version` has just been written, and every later clock is at least `clock`."""
        self.forget()
        self.version, self._clock = version, clock

    def forget(self) -> None:
        """Have no version any more: rows came or went in ways that the log does not know."""
        self.version = 0
        self._gone, self._lowered = _Keys(), _Keys()

    def changed(self, clocks: NDArray[np.uint32], now: int) -> NDArray[np.bool_]:
        """Return which rows, by the clocks of their last use, may have changed; `now` is the clock of the table."""
        mask: NDArray[np.bool_] = ages_of(clocks, now) <= now - self._clock
        return mask

    def went(self, keys: KeyArray) -> None:
        """Note that eviction took the rows of `keys`."""
        self._note(self._gone, keys)

    def went_down(self, keys: KeyArray, clocks: NDArray[np.uint32], now: int) -> None:
        """Note which of these rows, which go down to disk, have changed."""
        if self.version:
            self._note(self._lowered, keys[self.changed(clocks, now)])

    @property
    def gone(self) -> KeyArray:
        """Keys whose rows went, each once; some may have a row again."""
        return self._gone.unique()

    @property
    def lowered(self) -> KeyArray:
        """Keys of rows that changed before they went down, each once; some may be up again, or gone."""
        return self._lowered.unique()

    def _note(self, log: _Keys, keys: KeyArray) -> None:
        if self.version and not log.add(keys):
            self.forget()


class _Keys:
    """Up to MAX_KEYS different keys."""

    def __init__(self) -> None:
        self._parts: list[KeyArray] = []
        self._num = 0

    def add(self, keys: KeyArray) -> bool:
        """Note keys; False where there are too many."""
        self._parts.append(keys)
        self._num += len(keys)
        return self._num <= MAX_KEYS or len(self.unique()) <= MAX_KEYS

    def unique(self) -> KeyArray:
        """Return the keys, sorted."""
        self._parts = [np.unique(np.concatenate([np.empty(0, np.uint64), *self._parts]))]
        self._num = len(self._parts[0])
        return self._parts[0]
