"""Clipping: gradients whose norm is above a limit are multiplied by limit / norm, as torch's clip_grad_norm_ does it.

clip.norm        all tables together              a worker that has a whole gradient clips it before it is pushed:
clip.dense_norm  all dense tables together        inline, and one stage without rounds
clip.table_norm  each sparse table for itself     in rounds of several workers the sum is on the servers, and the
                                                  coordinator clips it there (ps/ops/rounds.py)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from heterps.arrays import FloatArray
from heterps.config import Clip
from heterps.errors import PeerLost
from heterps.lookups import RowGradients
from heterps.ps.client.interface import JobClient
from heterps.ps.protocol.specs import TableSpecs
from heterps.ps.table.norms import square_sum, square_sum_by_key
from heterps.training.protocol.layout import Layout

EPS = 1e-6
"""Added to a norm before the limit is divided by it, as torch does."""


class Limit(NamedTuple):
    """The largest norm of the gradient of some tables together."""

    norm: float
    tables: tuple[str, ...]


def limits(clip: Clip | None, sparse: Iterable[str], dense: Iterable[str]) -> list[Limit]:
    """Return which of these tables are clipped, and which of them together."""
    if clip is None:
        return []
    if clip.norm is not None:
        return [Limit(clip.norm, (*sparse, *dense))]
    found = [] if clip.table_norm is None else [Limit(clip.table_norm, (table,)) for table in sparse]
    if clip.dense_norm is not None:
        found.append(Limit(clip.dense_norm, tuple(dense)))
    return found


def limits_of(clip: Clip | None, tables: TableSpecs) -> list[Limit]:
    """The limits of all tables that servers hold and that are trained."""
    sparse, dense = ([spec.name for spec in specs if not spec.is_frozen] for specs in (tables.sparse, tables.dense))
    return limits(clip, sparse, dense)


def factors(limits: Iterable[Limit], squares: Mapping[str, float]) -> dict[str, float]:
    """What the gradient of each table that is clipped is multiplied by, given its sum of squares."""
    found: dict[str, float] = {}
    for limit in limits:
        norm = math.sqrt(math.fsum(squares[table] for table in limit.tables))
        found |= dict.fromkeys(limit.tables, min(limit.norm / (norm + EPS), 1.0))
    return found


def clipped_by_servers(clip: Clip | None, layout: Layout) -> bool:
    """Whether the gradients of several workers are summed before they are clipped."""
    return clip is not None and layout.in_rounds and len(layout.workers) > 1


def clip_gradients(
    clip: Clip | None, dense: dict[str, FloatArray], rows: Sequence[RowGradients]
) -> tuple[dict[str, FloatArray], list[RowGradients]]:
    """The gradients of a whole step, clipped. Those that are within their limits are the same arrays."""
    squares = {table: square_sum(grads) for table, grads in dense.items()} if clip is not None else {}
    squares |= {part.table: square_sum_by_key(part.lookup, part.grads) for part in rows} if clip is not None else {}
    found = factors(limits(clip, [part.table for part in rows], dense), squares)

    def scaled(table: str, grads: FloatArray) -> FloatArray:
        factor = found.get(table, 1.0)
        return grads if factor == 1.0 else grads * np.float32(factor)

    return (
        {table: scaled(table, grads) for table, grads in dense.items()},
        [part._replace(grads=scaled(part.table, part.grads)) for part in rows],
    )


def end_round(client: JobClient, limits: Sequence[Limit], number: int) -> None:
    """Have a round applied: clipped tables now, others with what is asked of the servers next."""
    apply_clipped(client, limits, number)
    client.end_rounds(number)


def drop_round(client: JobClient, tables: TableSpecs, number: int) -> None:
    """Let the servers drop what they keep of a round. PeerLost where one has applied a part of it already.

    The round before is over, of which the servers may not have heard from a coordinator that died.
    """
    client.end_rounds(number - 1)
    sparse, dense = ([spec.name for spec in specs if not spec.is_frozen] for specs in (tables.sparse, tables.dense))
    names = [*sparse, *dense]
    for dropped in [client.drop_rounds(name) for name in names]:
        dropped.result()
    counted = {name: client.num_rounds(name) for name in names}
    if parted := [name for name, rounds in counted.items() if rounds.result() - {number - 1}]:
        raise PeerLost(f"round {number} cannot be repeated: it is in the tables {', '.join(parted)} already")


def apply_clipped(client: JobClient, limits: Sequence[Limit], number: int) -> None:
    """Make the step of a round that waits on the servers. Returns when all of them have made it."""
    asked = {table: client.round_squares(table, number) for limit in limits for table in limit.tables}
    squares = {table: answer.result() for table, answer in asked.items()}
    for applied in [client.apply_round(table, number, f) for table, f in factors(limits, squares).items()]:
        applied.result()
