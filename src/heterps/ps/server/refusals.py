"""What a server refuses: the reason that its answer gives, and contributions that do not fit their rounds."""

from __future__ import annotations

from collections.abc import Sequence

from heterps.ps.ops.base import Op, Push
from heterps.ps.protocol.messages import Code, Round
from heterps.ps.shard.ledger import PushSource
from heterps.ps.shard.shard import Shard

MAX_HELD, MAX_HELD_BYTES = 1024, 256 * 2**20
"""Largest number of requests that wait for pushes or rounds, and of contributions that wait for their rounds."""


class Refusal(Exception):
    """Nothing of a message is done; the text says why."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code: Code = code


def check_rounds(name: str, shard: Shard, source: PushSource, ops: Sequence[Op], *, drains: bool) -> None:
    """Refuse contributions that do not fit their rounds, and for now those for which there is no room.

    There always is for the contribution that a table needs next, so that a round can end whatever else is kept.

    name    of the server
    drains  it begins no round before it follows the next roster
    """
    new = [
        (op.table, op.sequence, *contribution)
        for op in ops
        if isinstance(op, Push) and (contribution := op.contribution) is not None
        if op.sequence > shard.pieces_of(op.table).applied(source, op.table)
    ]
    if not new:
        return
    also: dict[tuple[str, int], list[Round]] = {}  # of this request, by table and number
    num, num_bytes = sum(map(len, shard.stashes)), sum(stash.num_bytes for stash in shard.stashes)
    for table, sequence, round, more_bytes in new:
        others, pieces = also.setdefault((table, round.number), []), shard.pieces_of(table)
        if wrong := pieces.round_error(source, table, sequence, round) or _clash(table, round, others):
            raise Refusal("bad_request", wrong)
        if not pieces.is_awaited(table, round, [other.part for other in others]):
            num, num_bytes = num + 1, num_bytes + more_bytes
            if num > MAX_HELD or num_bytes > MAX_HELD_BYTES:
                raise Refusal("later", f"{keeps(name, shard)}, and has no room for more")
        others.append(round)
    begun = max((stash.newest for stash in shard.stashes), default=0)
    if drains and min(round.number for _, _, round, _ in new) > begun:
        raise Refusal("later", f"server {name} begins no round before it follows the next roster")


def keeps(name: str, shard: Shard) -> str:
    """Say how much a server keeps."""
    num = sum(map(len, shard.stashes))
    return f"server {name} keeps {num:,} contributions to rounds whose other parts have not come"


def _clash(table: str, round: Round, others: list[Round]) -> str | None:
    """Return what is wrong with a contribution beside others of its request to the same round."""
    if any(other.part == round.part or other.parts != round.parts for other in others):
        return f"two contributions of a request do not fit together: round {round.number} of table {table}"
    return None
