"""Rounds that wait: their sum is measured at every server, then applied, multiplied by a factor that follows from all.

    workers       push: parts of round 7, which `waits`  --> every server keeps their sum
    coordinator   RoundSquares(7)                        --> the sum of squares of what is kept there
                  norm over all servers and tables --> factor
                  ApplyRound(7, factor)                  --> one step with factor * sum

    any client    a request that says: rounds up to 7 are over --> one step with the sum, of tables whose round 7 waits
    coordinator   DropRounds, after a worker died        --> what was kept of rounds that wait is gone, and comes again

No part of a round is in any table before it is known that all parts are on all servers: until then it can be repeated.
So a gradient is clipped by its norm, which no server knows alone. ApplyRound is a push: it is applied exactly once.
"""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta

from heterps.ps.ops import base
from heterps.ps.protocol.frames import Frames
from heterps.ps.protocol.messages import Count, Ordinal
from heterps.ps.shard.shard import Shard
from heterps.wire import Limits

Factor = Annotated[float, Meta(ge=0.0, le=1.0)]


class Squares(base.Result, frozen=True, tag="squares"):
    """The sum of the squares of a round's summed gradients on one server."""

    total: float


class RoundSquares(base.Op, frozen=True, tag="round_squares"):
    """How large the sum of round `number`, which waits, is: all its parts must have come."""

    tables = "any"
    number: Ordinal

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        return Squares(shard.round_squares(self.table, self.number)), []


class ApplyRound(base.Push, frozen=True, tag="apply_round"):
    """Make the step of round `number`, which waits, with its sum times `factor`."""

    tables = "any"
    number: Ordinal
    factor: Factor

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        return self.once(
            shard,
            None,
            lambda source: shard.apply_round(source, self.table, self.sequence, self.number, self.factor),
        )


class AppliedRounds(base.Result, frozen=True, tag="rounds"):
    """How many rounds a server has applied to a table; several numbers where its pieces differ."""

    applied: frozenset[Count]


class CountRounds(base.Op, frozen=True, tag="count_rounds"):
    """How many rounds of the table have been applied."""

    tables = "any"

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        return AppliedRounds(frozenset(shard.pieces_of(self.table).num_rounds(self.table))), []


class DropRounds(base.Push, frozen=True, tag="drop_rounds"):
    """Forget what has come of the rounds of the table that wait."""

    tables = "any"

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        return self.once(shard, None, lambda source: shard.drop_rounds(source, self.table, self.sequence))


class CountRoundsCall(base.Ask[AppliedRounds]):
    """How many rounds of a table have been applied, on all servers: one number where they agree."""

    def __init__(self, table: str) -> None:
        super().__init__(CountRounds(table), AppliedRounds)

    def result(self) -> set[int]:
        return {number for answer in super().result().values() for number in answer.applied}


class SquaresCall(base.Ask[Squares]):
    """The sum of squares of a round over all servers."""

    def __init__(self, table: str, number: int) -> None:
        super().__init__(RoundSquares(table, number), Squares)

    def result(self) -> float:
        return math.fsum(answer.total for answer in super().result().values())


OPS, RESULTS = (RoundSquares, ApplyRound, CountRounds, DropRounds), (Squares, AppliedRounds)
