"""DenseRange: one server's range of a dense table, and the ledgers that say which pushes are in it.

    values    [ 40 .. 59 | 60 .. 79 ]            a piece is a range that has taken the same pushes
    ledgers     a: 17      a: 18                 60 .. 79 came from another server that was further on

Mostly there is one piece. After a move there are several, until the pushes under way have reached all of them (the same
as in shard.py, with ranges in place of slots).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from heterps.ps.protocol.messages import Round
from heterps.ps.protocol.specs import DenseSpec
from heterps.ps.server.ledger import Ledger, PushState, Source
from heterps.ps.server.rounds import Contribution, Stash, push_once
from heterps.ps.table.dense import DenseTable
from heterps.ps.table.optimizers import state_words

FloatArray = NDArray[np.float32]


@dataclass
class DensePart:
    """Values first..first+n-1 of a dense table with their state [words a value, n], and which pushes are in them."""

    first: int
    values: FloatArray
    state: FloatArray
    is_filled: bool
    ledger: Ledger

    @property
    def stop(self) -> int:
        return self.first + len(self.values)

    def cut(self, within: slice) -> DensePart:
        """What of it is `within`; none of its memory is copied."""
        part = slice(max(within.start - self.first, 0), max(within.stop - self.first, 0))
        first = min(max(self.first, within.start), self.stop)
        return DensePart(first, self.values[part], self.state[:, part], self.is_filled, self.ledger)


class DensePiece:
    """A part in use."""

    def __init__(self, spec: DenseSpec, part: DensePart) -> None:
        self.first, self.stop = part.first, part.stop
        self.is_filled, self.ledger, self.stash = part.is_filled, part.ledger.copy(), Stash()
        self.table = DenseTable(len(part.values), spec.optimizer, spec.schedule)
        self.table.values[:] = part.values
        self.table.restore(part.state.reshape(-1), self.ledger.num_pushes.get(spec.name, 0))

    def step(self, push: Contribution) -> None:
        """One step of the optimizer."""
        self.table.push(push.grads, samples=push.samples)

    def part(self) -> DensePart:
        """A view, not a copy."""
        state = self.table.state.reshape(-1, self.table.size)
        return DensePart(self.first, self.table.values, state, self.is_filled, self.ledger)


class DenseRange:
    """The values `within` of the table `spec`."""

    def __init__(self, spec: DenseSpec, within: slice) -> None:
        self.spec = spec
        self.within = within
        table = DenseTable(within.stop - within.start, spec.optimizer, spec.schedule)
        self._pieces: list[DensePiece] = []
        if table.size:
            state = table.state.reshape(-1, table.size)
            self.load([DensePart(within.start, table.values, state, False, Ledger())])

    @property
    def size(self) -> int:
        return len(range(self.within.start, self.within.stop))

    @property
    def num_words(self) -> int:
        """Of optimizer state, a value."""
        return state_words(self.spec.optimizer, 1)

    @property
    def num_bytes(self) -> int:
        return 4 * self.size * (1 + self.num_words)

    @property
    def num_pieces(self) -> int:
        return len(self._pieces)

    @property
    def num_steps(self) -> int:
        """Of the piece that has seen the fewest."""
        return min((piece.table.num_pushes for piece in self._pieces), default=0)

    @property
    def pieces(self) -> Sequence[DensePiece]:
        return self._pieces

    def values(self) -> FloatArray:
        """A copy."""
        return np.concatenate([np.empty(0, np.float32), *(piece.table.values for piece in self._pieces)])

    def state(self) -> FloatArray:
        """A copy, [words a value, size]."""
        none = np.empty((self.num_words, 0), np.float32)
        return np.concatenate([none, *(piece.part().state for piece in self._pieces)], axis=1)

    def fill(self, values: FloatArray) -> None:
        """Give every piece that has none its first values."""
        for piece in self._pieces:
            if not piece.is_filled:
                piece.table.values[:] = self._cut(values, piece)
                piece.is_filled = True
        self._join()

    def push(self, source: Source, sequence: int, push: Contribution, round: Round | None = None) -> None:
        """Apply a push, or keep it for its round, in every piece whose next one it is.

        An exception leaves it APPLYING in a piece: in doubt.
        """
        for piece in self._next(source, sequence):
            part = push._replace(grads=self._cut(push.grads, piece))
            push_once(piece.ledger, piece.stash, source, self.spec.name, part, round, piece.step)
        self._join()

    def put(self, source: Source, sequence: int, part: DensePart, num_steps: int) -> None:
        """As a push, take over values and state of a table after `num_steps`. They count as filled."""
        for piece in self._next(source, sequence):
            piece.ledger.begin(source.worker, source.incarnation, self.spec.name)
            own, new = piece.part().cut(slice(part.first, part.stop)), part.cut(slice(piece.first, piece.stop))
            own.values[:], own.state[:] = new.values, new.state
            piece.table.num_pushes, piece.is_filled = num_steps, True
            piece.ledger.finish(source.worker, self.spec.name, num_steps)
        self._join()

    # --- moves -------------------------------------------------------------------------------------------------------

    def copy(self, within: slice) -> list[DensePart]:
        """What is here of a range."""
        parts = [piece.part().cut(within) for piece in self._pieces]
        return [_copied(part) for part in parts if len(part.values)]

    def cut(self, within: slice) -> list[DensePart]:
        """As `copy`, and it is no longer here."""
        transfer = self.copy(within)
        left = [piece.part().cut(slice(piece.first, within.start)) for piece in self._pieces]
        right = [piece.part().cut(slice(within.stop, piece.stop)) for piece in self._pieces]
        self._pieces = []
        self.load([part for part in (*left, *right) if len(part.values)])
        return transfer

    def load(self, parts: Sequence[DensePart]) -> None:
        """Put in what came from elsewhere. ValueError, and no change, where it does not fit or is here already."""
        pieces = sorted(
            [*self._pieces, *(DensePiece(self.spec, part) for part in parts)], key=lambda piece: piece.first
        )
        for before, after in pairwise(pieces):
            if after.first < before.stop:
                raise ValueError(f"value {after.first} of table {self.spec.name} came twice")
        if pieces and not self.within.start <= pieces[0].first <= pieces[-1].stop <= self.within.stop:
            raise ValueError(f"values beyond {self.within.start} to {self.within.stop - 1} of table {self.spec.name}")
        self._pieces = pieces
        self._join()

    def _next(self, source: Source, sequence: int) -> list[DensePiece]:
        push = source.worker, source.incarnation, self.spec.name, sequence
        return [piece for piece in self._pieces if piece.ledger.state(*push) is PushState.NEXT]

    def _cut(self, values: FloatArray, piece: DensePiece) -> FloatArray:
        """Of the range's values, those of a piece."""
        return values[piece.first - self.within.start : piece.stop - self.within.start]

    def _join(self) -> None:
        """Make one of neighbours that have come to the same pushes, and keep nothing."""
        if len(self._pieces) < 2:
            return
        joined = [self._pieces[0]]
        for piece in self._pieces[1:]:
            last = joined[-1]
            alike = (last.stop, last.is_filled, last.ledger) == (piece.first, piece.is_filled, piece.ledger)
            if alike and not last.stash and not piece.stash:
                one, two = last.part(), piece.part()
                values, state = np.concatenate([one.values, two.values]), np.hstack([one.state, two.state])
                joined[-1] = DensePiece(self.spec, DensePart(last.first, values, state, last.is_filled, last.ledger))
            else:
                joined.append(piece)
        self._pieces = joined


def _copied(part: DensePart) -> DensePart:
    return DensePart(part.first, part.values.copy(), part.state.copy(), part.is_filled, part.ledger.copy())
