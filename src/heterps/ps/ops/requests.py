"""Requests: all that a worker wants of a server at one time, as ops of all families, and the codecs of all messages.

A server takes the frames of a request in turn, op by op, and refuses the whole request where anything is left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias, Union

from msgspec import Meta, Struct

from heterps.ps.ops import dense, metadata, mirrors, moves, rounds, row_files, rows, tables, versions
from heterps.ps.ops.base import Op, Result
from heterps.ps.protocol import messages
from heterps.ps.protocol.messages import Count, Name, Ordinal
from heterps.wire import Codec, Limits

FAMILIES = (rows, dense, rounds, tables, row_files, versions, metadata, mirrors)

# msgspec decodes a union of classes; type checkers know them by what they have in common.
if TYPE_CHECKING:
    AnyOp: TypeAlias = Op
    AnyResult: TypeAlias = Result
else:
    AnyOp = Union[tuple(op for family in FAMILIES for op in family.OPS)]  # noqa: UP007
    AnyResult = Union[tuple(result for family in FAMILIES for result in family.RESULTS)]  # noqa: UP007


class OpRequest(Struct, frozen=True, tag="request"):
    """What a worker wants of a server, made for the roster of `epoch`. A repeat has the same id.

    All rounds up to number `rounds` are over: all their parts are on all servers. The request itself is held until that
    is so of rounds up to `after_round`.
    """

    id: Count
    worker: Name
    incarnation: Ordinal
    epoch: Ordinal
    ops: Annotated[tuple[AnyOp, ...], Meta(min_length=1, max_length=256)]
    rounds: Count = 0
    after_round: Count = 0


class OpReply(Struct, frozen=True, tag="reply"):
    """The results of the ops of a request, in their order."""

    id: Count
    results: tuple[AnyResult, ...]


class MirrorOps(Struct, frozen=True, tag="forward"):
    """What a request of a worker has changed, for the mirror of the server (see mirrors.py): these ops, in this order.

    None: the worker was greeted, or rounds have ended. From one that `is_synced` on, all that the server says to be
    done is here.
    """

    id: Ordinal
    worker: str = ""
    incarnation: Count = 0
    ops: Annotated[tuple[AnyOp, ...], Meta(max_length=256)] = ()
    rounds: Count = 0
    is_synced: bool = False


Greeting = messages.Hello | messages.AskStats | messages.AskRoster
Moving = moves.Prepare | moves.Switch | moves.Fetch | moves.Deliver | moves.ForgetMoved
Mirroring = mirrors.Lead | mirrors.Fill | MirrorOps | mirrors.MirrorAck
ToServer = Greeting | OpRequest | Moving | Mirroring
Answering = messages.Welcome | OpReply | messages.Refused | messages.StatsReply | mirrors.MirrorAck | mirrors.Led
FromServer = Answering | moves.ChunkReply | moves.Agreed


def server_codec(limits: Limits = Limits()) -> Codec[ToServer]:
    """Return what decodes the messages that a server receives."""
    return Codec(ToServer, limits)


def client_codec(limits: Limits = Limits()) -> Codec[FromServer]:
    """Return what decodes the messages that a client receives."""
    return Codec(FromServer, limits)
