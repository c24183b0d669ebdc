"""What workers and servers say to each other besides requests: greetings, refusals, questions that anybody may ask.

    worker                                        server
    Hello(worker, incarnation, tables)       -->
                                             <--  Welcome(roster)
    OpRequest(ops: push rows, pull, ...)     -->
                                             <--  OpReply(results), one for each op, in their order
                                             <--  Refused(code, text, roster), and nothing was done

Requests and their ops are in ops/, with what a client and a server do for each. Arrays travel beside the headers as
frames (see wire/).
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from heterps.ps.protocol.roster import Roster
from heterps.wire.arrays import Compression, Dtype

Count = Annotated[int, Meta(ge=0, lt=2**62)]
Ordinal = Annotated[int, Meta(ge=1, lt=2**62)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class Coding(Struct, frozen=True, array_like=True):
    """How values are to travel."""

    dtype: Dtype = "fp32"
    compression: Compression | None = None
    least_bytes: Count = 4096


EXACT = Coding()


class Round(Struct, frozen=True, array_like=True):
    """A push with it is contribution `part`, of 0 to `parts` - 1, to round `number`, from 1 on, of its table.

    A round that `waits` makes its step when ApplyRound says by which factor, or when a request says that the round is
    over (see ops/rounds.py).
    """

    number: Ordinal
    part: Count
    parts: Ordinal
    waits: bool = False


class Iteration(Struct, frozen=True, array_like=True):
    """A push with it belongs to iteration `number` of `lane`, and is applied once, whichever incarnation of its worker
    brings it. The numbers of a lane rise."""

    lane: Count
    number: Ordinal


class Hello(Struct, frozen=True, tag="hello"):
    """Greets a server for a worker. `tables` is the digest of the tables that it expects."""

    id: Count
    worker: Name
    incarnation: Ordinal
    tables: str


class Welcome(Struct, frozen=True, tag="welcome"):
    id: Count
    roster: Roster


Code = Literal[
    "bad_request", "not_finite", "other_tables", "stale_incarnation", "stale_epoch", "later", "unknown_worker",
    "failed", "mirror_differs",
]  # fmt: skip


class Refused(Struct, frozen=True, tag="refused"):
    """Nothing of request `id` was done; `text` says why. With stale_epoch comes the roster to ask again by."""

    id: Count
    code: Code
    text: str
    roster: Roster | None = None


class AskStats(Struct, frozen=True, tag="ask_stats"):
    """Asks a server for its statistics; anybody may, and StatsReply is the answer."""

    id: Count


class StatsReply(Struct, frozen=True, tag="stats"):
    """The answer to AskStats: one frame, the JSON of stats.ServerStats."""

    id: Count


class AskRoster(Struct, frozen=True, tag="ask_roster"):
    """Asks a server for its roster; anybody may, and Welcome is the answer."""

    id: Count
