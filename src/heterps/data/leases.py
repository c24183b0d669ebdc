"""Leases: which batches of which epoch are handed out, acknowledged, or returned.

    epoch 0   |########|####aa..|#bb.....|........|       |   #      acknowledged
              |<-run-->|<-of a->|<-of b->|<-of a->| free  |   a b    leased to a worker
                                                              .      the rest of that worker's runs

A pure state machine: its answers depend only on the order of the coordinator's calls. A worker continues in its run,
consecutive batches of about one block, so that few workers decode the same block. Once half of a run is handed out its
worker has the next one too, so that it can decode that block meanwhile. It gets

    [1] a returned batch, the lowest first            (its worker left; the end of the epoch should not wait for it)
    [2] the next batch of its own runs
    [3] the first batch of the lowest free run: a new one, or the rest of the run of a worker that left
    [4] from the worker that has most left, its second run, or a batch of its only one: near the end all share the rest
    [5] if all batches of an epoch are handed out: one of the next epoch

In order (BSP) a run is one batch, so that [3] hands out batch after batch. Acknowledged batches are kept as ranges.
There are few ranges whatever the number of batches, since the holes between them are leases and rests of runs.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from typing import Any, Self

from heterps.errors import DataError

Lease = tuple[int, int]
"""The epoch, and the number of a batch in it, from 0."""


class Leases:
    """Hands out batches so that every batch of every epoch is acknowledged once, whichever workers come or leave.

    epochs       number of epochs
    num_batches  batches per epoch; None where rows may be skipped: then numbers are handed out until a reader finds
                 the end, which holds for all epochs, since they have the same rows
    run          number of batches in a block
    ordered      hand out batches one by one in order, as BSP needs
    start        first batch to hand out; all before it count as acknowledged
    """

    def __init__(
        self, epochs: int, num_batches: int | None, *, run: int = 1, ordered: bool = False, start: Lease = (0, 0)
    ) -> None:
        if run < 1 or (num_batches is not None and num_batches < 1):
            raise ValueError(f"a run and an epoch have at least one batch, got {run=}, {num_batches=}")
        if num_batches is not None and start[1] > num_batches:
            raise ValueError(f"batch {start[1]} to start at is behind the {num_batches} batches of an epoch")
        self.epochs = epochs
        self.num_batches = num_batches
        self._run = 1 if ordered else run
        self._epoch = start[0]  # the first epoch that is not fully acknowledged
        self._open = [_Epoch([[0, start[1]]] if start[1] else [], num_batches)]  # this one and those begun after it
        self._holders: dict[Lease, str] = {}
        self._drop_done()

    @property
    def is_over(self) -> bool:
        """Whether all batches of all epochs are acknowledged."""
        return self._epoch >= self.epochs

    @property
    def first(self) -> Lease:
        """The first batch that is not acknowledged; (epochs, 0) at the end."""
        return (self._epoch, self._open[0].low if self._open else 0)

    @property
    def has_holes(self) -> bool:
        """Whether batches after `first` are acknowledged: a reader that continues from `first` would repeat them."""
        return bool(self._open) and (
            self._open[0].high > self._open[0].low or any(begun.done for begun in self._open[1:])
        )

    @property
    def held(self) -> dict[Lease, str]:
        """The worker of each batch that is handed out and not acknowledged."""
        return dict(self._holders)

    def take(self, worker: str) -> Lease | None:
        """Hand out the next batch for this worker; None if none is left now. Some may still be returned later."""
        for epoch in range(self._epoch, self.epochs):
            if epoch == self._epoch + len(self._open):
                self._open.append(_Epoch([], self.num_batches))  # [5]
            number = self._open[epoch - self._epoch].take(worker, self._run)
            if number is not None:
                self._holders[epoch, number] = worker
                return epoch, number
        return None

    def next_run(self, worker: str, epoch: int, number: int) -> int:
        """Return the first batch of the run with which this worker goes on after the one of its lease; 0 if unknown."""
        if (epoch, number) not in self._holders:  # it was found to be beyond the end
            return 0
        return self._open[epoch - self._epoch].next_run(worker, number)

    def claim(self, worker: str, epoch: int, number: int) -> None:
        """Hand out a certain batch that nobody holds, as it was handed out before a coordinator died.

        ValueError where it is held or acknowledged already.
        """
        while epoch >= self._epoch + len(self._open):
            self._open.append(_Epoch([], self.num_batches))
        if epoch < self._epoch or not self._open[epoch - self._epoch].claim(number):
            raise ValueError(f"batch {number} of epoch {epoch} is held or acknowledged already")
        self._holders[epoch, number] = worker

    def done(self, worker: str, epoch: int, number: int) -> bool:
        """Acknowledge a batch; False, without any change, if the worker does not hold this lease (any more)."""
        if self._holders.get((epoch, number)) != worker:
            return False
        del self._holders[epoch, number]
        self._open[epoch - self._epoch].acknowledge(number)
        self._drop_done()
        return True

    def give_back(self, worker: str) -> list[Lease]:
        """Take all leases and the run from a worker, and return the leases. They will be handed out first."""
        returned = sorted(lease for lease, holder in self._holders.items() if holder == worker)
        for epoch, number in returned:
            del self._holders[epoch, number]
            insort(self._open[epoch - self._epoch].returned, number)
        for begun in self._open:
            begun.leave(worker)
        return returned

    def end_of_epoch(self, epoch: int, num_batches: int) -> None:
        """Record the number of batches that a reader found in an epoch; leases beyond it are dropped. Idempotent."""
        known = self.num_batches
        if known is None and self._open and self._open[-1].high > num_batches:
            known = self._open[-1].high
        if num_batches < 1 or known not in (None, num_batches):
            raise DataError(
                f"a reader found {num_batches} batches in epoch {epoch}, but there are {known or 'more'} by what was "
                "read before: the data changed during the run, or differs between machines. Restore it and resume."
            )
        self.num_batches = num_batches
        self._holders = {lease: worker for lease, worker in self._holders.items() if lease[1] < num_batches}
        for begun in self._open:
            begun.cut(num_batches)
        self._drop_done()

    def state(self) -> dict[str, Any]:
        """Return the acknowledged batches for JSON: ranges [first, stop) for each epoch from `epoch`."""
        done = [[list(part) for part in begun.done] for begun in self._open]
        return {"num_batches": self.num_batches, "epoch": self._epoch, "done": done}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], epochs: int, *, run: int = 1, ordered: bool = False) -> Self:
        """Continue from a `state`: batches that were not acknowledged are handed out again, to any workers."""
        leases = cls(epochs, state["num_batches"], run=run, ordered=ordered, start=(state["epoch"], 0))
        leases._open = [_Epoch([list(part) for part in done], leases.num_batches) for done in state["done"]]
        leases._drop_done()
        return leases

    def _drop_done(self) -> None:
        while self._open and self._open[0].low == self.num_batches:
            self._open.pop(0)
            self._epoch += 1


class _Epoch:
    """One epoch that has begun; `end` is its number of batches, None while it is unknown."""

    def __init__(self, done: list[list[int]], end: int | None) -> None:
        self.done = done  # acknowledged: ranges [first, stop), ascending, not adjacent
        self.returned: list[int] = []  # ascending
        starts = [0, *(stop for _, stop in done)]
        stops = [*(first for first, _ in done), sys.maxsize if end is None else end]
        holes = [range(start, stop) for start, stop in zip(starts, stops, strict=True)]
        self._free = [hole for hole in holes if hole]  # in no worker's run, ascending
        self._runs: dict[str, list[range]] = {}  # the rest of each worker's run, and its second one

    @property
    def low(self) -> int:
        """The first batch that is not acknowledged."""
        return self.done[0][1] if self.done and self.done[0][0] == 0 else 0

    @property
    def high(self) -> int:
        """One past the last acknowledged batch."""
        return self.done[-1][1] if self.done else 0

    def take(self, worker: str, run: int) -> int | None:
        """Hand out a batch number to this worker; None if all are handed out."""
        if self.returned:
            return self.returned.pop(0)  # [1]
        if worker not in self._runs:  # else [2]
            if self._free:
                self._runs[worker] = [self._cut_run(run)]  # [3]
            elif self._runs:
                other = max(self._runs, key=self._num_left)  # [4]
                if len(self._runs[other]) > 1:
                    self._runs[worker] = [self._runs[other].pop()]
                else:
                    worker = other
            else:
                return None
        runs = self._runs[worker]
        number, rest = runs[0].start, runs[0][1:]
        runs[:1] = [rest] if rest else []
        if self._free and len(runs) < 2 and 0 < len(rest) <= run // 2:
            runs.append(self._cut_run(run))
        if not runs:
            del self._runs[worker]
        return number

    def next_run(self, worker: str, number: int) -> int:
        """Return where the first run of a worker begins that is not the rest of the one with this batch; 0: nowhere."""
        return next((run.start for run in self._runs.get(worker, []) if run.start != number + 1), 0)

    def _num_left(self, worker: str) -> tuple[int, int]:
        """How many batches a worker's runs have; of two workers with as many, who is at the lower one."""
        return sum(map(len, self._runs[worker])), -self._runs[worker][0].start

    def _cut_run(self, run: int) -> range:
        free = self._free.pop(0)
        num = run - free.start % run  # up to the end of the block, if it starts inside one
        if rest := free[num:]:
            self._free.insert(0, rest)
        return free[:num]

    def claim(self, number: int) -> bool:
        """Take a certain batch out of those that are free; False where it is not free."""
        for at, free in enumerate(self._free):
            if number in free:
                halves = range(free.start, number), range(number + 1, free.stop)
                self._free[at : at + 1] = [half for half in halves if half]
                return True
        return False

    def acknowledge(self, number: int) -> None:
        at = bisect_right(self.done, number, key=lambda part: part[0])
        self.done.insert(at, [number, number + 1])
        for right in (at + 1, at):  # join with the range behind, then with the one before
            if 0 < right < len(self.done) and self.done[right - 1][1] == self.done[right][0]:
                self.done[right - 1][1] = self.done.pop(right)[1]

    def leave(self, worker: str) -> None:
        """Free the runs of this worker for others."""
        for run in self._runs.pop(worker, []):
            insort(self._free, run, key=lambda free: free.start)

    def cut(self, end: int) -> None:
        """Drop the numbers from `end`: they do not exist."""
        del self.returned[bisect_left(self.returned, end) :]
        self._free = [cut for free in self._free if (cut := range(free.start, min(free.stop, end)))]
        for worker, runs in list(self._runs.items()):
            runs[:] = [cut for run in runs if (cut := range(run.start, min(run.stop, end)))]
            if not runs:
                del self._runs[worker]
