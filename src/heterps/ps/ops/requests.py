"""Requests: all that a worker wants of a server at one time, as ops of all families, and the codecs of all messages.

A server takes the frames of a request in turn, op by op, and refuses the whole request where anything is left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias, Union

from msgspec import Meta, Struct

from heterps.ps.ops import dense, metadata, row_files, rows, tables
from heterps.ps.ops.base import Op, Result
from heterps.ps.ops.moves import Agreed, ChunkReply, Deliver, Fetch, Forget, Prepare, Switch
from heterps.ps.protocol.messages import (
    AskRoster,
    AskStats,
    Count,
    Hello,
    Name,
    Ordinal,
    Refused,
    StatsReply,
    Welcome,
)
from heterps.wire import Codec, Limits

FAMILIES = (rows, dense, tables, row_files, metadata)

if TYPE_CHECKING:
    AnyOp: TypeAlias = Op
    AnyResult: TypeAlias = Result
else:
    AnyOp = Union[tuple(op for family in FAMILIES for op in family.OPS)]  # noqa: UP007
    AnyResult = Union[tuple(result for family in FAMILIES for result in family.RESULTS)]  # noqa: UP007


class OpRequest(Struct, frozen=True, tag="request"):
    """What a worker wants of a server, made for the roster of `epoch`. A repeat has the same id."""

    id: Count
    worker: Name
    incarnation: Ordinal
    epoch: Ordinal
    ops: Annotated[tuple[AnyOp, ...], Meta(min_length=1, max_length=256)]


class OpReply(Struct, frozen=True, tag="reply"):
    """The results of the ops of a request, in their order."""

    id: Count
    results: tuple[AnyResult, ...]


ToServer = Hello | OpRequest | AskStats | AskRoster | Prepare | Switch | Fetch | Deliver | Forget
FromServer = Welcome | OpReply | Refused | StatsReply | ChunkReply | Agreed


def server_codec(limits: Limits = Limits()) -> Codec[ToServer]:
    """Return what decodes the messages that a server receives."""
    return Codec(ToServer, limits)


def client_codec(limits: Limits = Limits()) -> Codec[FromServer]:
    """Return what decodes the messages that a client receives."""
    return Codec(FromServer, limits)
