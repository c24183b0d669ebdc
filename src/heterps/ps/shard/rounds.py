"""Rounds: pushes of several workers that make one step of the optimizer together, as BSP needs it.

    part 2 of round 7  --> [1] not its turn: a copy is kept              round 7   sum of parts 0, 1 | part 3 waits
    part 1 of round 7  --> [2] the lowest that was missing: added,       round 8   - | parts 0, 2 wait
                               and after it those that waited for it
                               (of rows: when all have come)
                           [3] all parts of the next round are in: one step with their sum, then the round after it.
                               A round that waits is told its factor first: one step with factor * sum; or that it
                               is over: one step with the sum
                           [4] a worker died: what has come of the rounds that wait is dropped, and comes again

The sum is made in the order of parts and rounds follow their numbers, so that nothing depends on who came first. Kept
contributions are in the ledger like pushes that were applied: a repeat is answered, and not added again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from heterps.arrays import FloatArray, KeyArray
from heterps.ps.keys.dedup import make_lookup, sum_rows
from heterps.ps.protocol.messages import Iteration, Round
from heterps.ps.shard.ledger import Ledger, PushSource


class Contribution(NamedTuple):
    """Gradients: [n, dim] of `keys` [n], which differ, or [n] of a dense range."""

    keys: KeyArray | None
    grads: FloatArray
    samples: int | None  # that the job had seen before

    @property
    def num_bytes(self) -> int:
        return self.grads.nbytes + (0 if self.keys is None else self.keys.nbytes)

    def copy(self) -> Contribution:
        return Contribution(None if self.keys is None else self.keys.copy(), self.grads.copy(), self.samples)


def summed(parts: Sequence[Contribution]) -> Contribution:
    """Return the sum of contributions to a sparse table, by key, in their order; `samples` are those of the first."""
    if len(parts) == 1:
        return parts[0]
    lookup = make_lookup(np.concatenate([part.keys for part in parts if part.keys is not None]))
    grads = np.concatenate([part.grads for part in parts])
    sums = np.empty((len(lookup.unique), grads.shape[1]), np.float32)
    sum_rows(grads, lookup.sources, lookup.starts, 0, len(lookup.unique), sums)
    return Contribution(lookup.unique, sums, parts[0].samples)


@dataclass
class _Gathered:
    """What has come of a round: contributions by part, but for those of dense ranges that are summed already, which are
    parts 0 to `num_summed` - 1. Rows are summed once, when all have come: looking keys up for each part takes long."""

    parts: int
    factor: float | None  # that the sum is multiplied by; None: it is not known yet
    num_summed: int = 0
    total: Contribution | None = None
    waiting: dict[int, Contribution] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return self.num_summed + len(self.waiting) == self.parts

    def has(self, part: int) -> bool:
        return part < self.num_summed or part in self.waiting

    def add(self, part: int, contribution: Contribution) -> None:
        if self.parts > 1 and (contribution.keys is not None or part != self.num_summed or self.total is None):
            contribution = contribution.copy()  # the sender waits for its memory
        self.waiting[part] = contribution  # [1]
        while contribution.keys is None and (next_one := self.waiting.pop(self.num_summed, None)) is not None:  # [2]
            if self.total is None:
                self.total = next_one
            else:
                np.add(self.total.grads, next_one.grads, out=self.total.grads)
            self.num_summed += 1

    def sum(self) -> Contribution:
        """Return the sum of all parts, in their order."""
        if self.total is None:
            self.total = summed([self.waiting[part] for part in range(self.parts)])
            self.num_summed, self.waiting = self.parts, {}
        return self.total


class Stash:
    """The contributions that a piece of the tables keeps, until all of their round have come."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[str, int], _Gathered] = {}  # by table and number

    def __len__(self) -> int:
        """The number of contributions, including those that are summed already."""
        return sum(gathered.num_summed + len(gathered.waiting) for gathered in self._rounds.values())

    @property
    def num_bytes(self) -> int:
        kept = [c for g in self._rounds.values() for c in (g.total, *g.waiting.values()) if c is not None]
        return sum(contribution.num_bytes for contribution in kept)

    @property
    def newest(self) -> int:
        """The highest number of a round that has begun here; 0 for none."""
        return max((number for _, number in self._rounds), default=0)

    def error(self, ledger: Ledger, source: PushSource, table: str, round: Round) -> str | None:
        """Return why a contribution, which is not in the ledger, cannot be one of its round."""
        what = f"round {round.number} of table {table}"
        if _is_repeat(ledger, source, table, round):
            return None
        if round.number < ledger.next_round(table):
            return f"{what} has been applied already, the next is round {ledger.next_round(table)}"
        if (gathered := self._rounds.get((table, round.number))) is None:
            return None
        if gathered.parts != round.parts:
            return f"{what} has {gathered.parts} parts, and this contribution says {round.parts}"
        if (gathered.factor is None) != round.waits:
            return f"{what} waits for a factor for some of its parts only"
        return f"part {round.part} of {what} came already, in another push" if gathered.has(round.part) else None

    def is_awaited(self, ledger: Ledger, table: str, round: Round, also: Iterable[int] = ()) -> bool:
        """Whether a contribution is the lowest missing one of the next round, once the parts `also` are here."""
        gathered = self._rounds.get((table, round.number)) or _begun(round)
        others = set(also)
        lower_are_here = all(part in others or gathered.has(part) for part in range(round.part))
        return round.number == ledger.next_round(table) and lower_are_here

    def add(self, table: str, round: Round, contribution: Contribution) -> None:
        """Keep a contribution that is no `error`."""
        self._rounds.setdefault((table, round.number), _begun(round)).add(round.part, contribution)

    def whole(self, table: str, number: int) -> Contribution:
        """Return the sum of a round that waits for its factor. ValueError where parts of it are missing."""
        gathered = self._rounds.get((table, number))
        if gathered is None or not gathered.is_complete or gathered.factor is not None:
            raise ValueError(f"round {number} of table {table} does not wait for a factor here")
        return gathered.sum()

    def sum_ahead(self) -> None:
        """Sum rounds whose parts have all come, before it is known what becomes of them."""
        for gathered in self._rounds.values():
            if gathered.is_complete:
                gathered.sum()

    def set_factor(self, table: str, number: int, factor: float) -> None:
        """Say what the sum of a round that waits is multiplied by."""
        self._rounds[table, number].factor = factor

    def end(self, rounds: int) -> list[str]:
        """Let whole rounds up to number `rounds` wait no longer; return the tables that can make steps then."""
        ended = [key for key, gathered in self._rounds.items() if key[1] <= rounds and gathered.is_complete]
        for key in ended:
            if self._rounds[key].factor is None:
                self._rounds[key].factor = 1.0
        return [table for table, _ in ended]

    def drop(self, table: str) -> None:
        """Forget all contributions to a table."""
        self._rounds = {key: gathered for key, gathered in self._rounds.items() if key[0] != table}

    def take(self, table: str, number: int) -> Contribution | None:
        """Return the sum of a round that can be applied, which is no longer here then."""
        gathered = self._rounds.get((table, number))
        if gathered is None or not gathered.is_complete or gathered.factor is None:
            return None
        whole = self._rounds.pop((table, number)).sum()
        return whole if gathered.factor == 1.0 else whole._replace(grads=whole.grads * np.float32(gathered.factor))


def _is_repeat(ledger: Ledger, source: PushSource, table: str, round: Round) -> bool:
    """Whether an older incarnation of the only worker has brought this round, which was applied at once."""
    is_applied = round.parts == 1 and not round.waits and round.number == ledger.next_round(table) - 1
    return is_applied and ledger.begins_again(source, table)


def _begun(round: Round) -> _Gathered:
    return _Gathered(round.parts, None if round.waits else 1.0)


def push_once(
    ledger: Ledger,
    stash: Stash,
    source: PushSource,
    table: str,
    contribution: Contribution,
    part_of: Round | Iteration | None,
    apply: Callable[[Contribution], None],
) -> None:
    """Take the next push of `source`: apply it, or keep it for its round. An exception leaves it APPLYING.

    An iteration that an older incarnation of the worker has brought is not applied again.
    """
    is_repeat = isinstance(part_of, Round) and _is_repeat(ledger, source, table, part_of)
    ledger.begin(source, table)
    if part_of is None:
        apply(contribution)
        ledger.finish(source, table)
        return
    if isinstance(part_of, Iteration):
        if ledger.has_iteration(source.worker, table, part_of.lane, part_of.number):
            ledger.keep(source, table)
        else:
            apply(contribution)
            ledger.finish_iteration(source, table, part_of.lane, part_of.number)
        return
    round = part_of
    if is_repeat:
        ledger.keep(source, table)
        return
    if round.parts == 1 and (round.waits or round.number != ledger.next_round(table)):
        contribution = contribution.copy()  # a round of one part that is not applied at once
    stash.add(table, round, contribution)
    _end_rounds(ledger, stash, table, apply)
    ledger.keep(source, table)


def apply_once(
    ledger: Ledger,
    stash: Stash,
    source: PushSource,
    table: str,
    number: int,
    factor: float,
    apply: Callable[[Contribution], None],
) -> None:
    """Take the next push of `source`, which tells the factor of a round that is whole. Fails as `push_once` does."""
    ledger.begin(source, table)
    stash.set_factor(table, number, factor)
    _end_rounds(ledger, stash, table, apply)
    ledger.keep(source, table)


def end_rounds(
    ledger: Ledger, stash: Stash, rounds: int, step_of: Callable[[str], Callable[[Contribution], None]]
) -> None:
    """Apply all whole rounds up to number `rounds`, also those that wait; `step_of` a table applies one to it."""
    for table in stash.end(rounds):
        _end_rounds(ledger, stash, table, step_of(table))


def drop_once(ledger: Ledger, stash: Stash, source: PushSource, table: str) -> None:
    """Take the next push of `source`, which drops the contributions to rounds of a table that wait. [4]"""
    ledger.begin(source, table)
    stash.drop(table)
    ledger.keep(source, table)


def _end_rounds(ledger: Ledger, stash: Stash, table: str, apply: Callable[[Contribution], None]) -> None:
    """Apply all rounds that can be, in their order."""
    while (whole := stash.take(table, ledger.next_round(table))) is not None:  # [3]
        apply(whole)
        ledger.end_round(table)
