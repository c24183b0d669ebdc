"""Requests: all that a worker wants of a server at one time, as ops of all families, and the codecs of all messages.

A server takes the frames of a request in turn, op by op, and refuses the whole request where anything is left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias, Union

from msgspec import Meta, Struct

from heterps.ps.ops import dense, metadata, moves, rounds, row_files, rows, tables, versions
from heterps.ps.ops.base import Op, Result
from heterps.ps.protocol import messages
from heterps.ps.protocol.messages import Count, Name, Ordinal
from heterps.wire import Codec, Limits

FAMILIES = (rows, dense, rounds, tables, row_files, versions, metadata)

# msgspec decodes a union of classes; type checkers know them by what they have in common.
if TYPE_CHECKING:
    AnyOp: TypeAlias = Op
    AnyResult: TypeAlias = Result
else:
    AnyOp = Union[tuple(op for family in FAMILIES for op in family.OPS)]  # noqa: UP007
    AnyResult = Union[tuple(result for family in FAMILIES for result in family.RESULTS)]  # noqa: UP007


class OpRequest(Struct, frozen=True, tag="request"):
    """What a worker wants of a server, made for the roster of `epoch`. A repeat has the same id.

    All rounds up to number `rounds` are over: all their parts are on all servers.
    """

    id: Count
    worker: Name
    incarnation: Ordinal
    epoch: Ordinal
    ops: Annotated[tuple[AnyOp, ...], Meta(min_length=1, max_length=256)]
    rounds: Count = 0


class OpReply(Struct, frozen=True, tag="reply"):
    """The results of the ops of a request, in their order."""

    id: Count
    results: tuple[AnyResult, ...]


Greeting = messages.Hello | messages.AskStats | messages.AskRoster
ToServer = Greeting | OpRequest | moves.Prepare | moves.Switch | moves.Fetch | moves.Deliver | moves.Forget
FromServer = messages.Welcome | OpReply | messages.Refused | messages.StatsReply | moves.ChunkReply | moves.Agreed


def server_codec(limits: Limits = Limits()) -> Codec[ToServer]:
    """Return what decodes the messages that a server receives."""
    return Codec(ToServer, limits)


def client_codec(limits: Limits = Limits()) -> Codec[FromServer]:
    """Return what decodes the messages that a client receives."""
    return Codec(FromServer, limits)
