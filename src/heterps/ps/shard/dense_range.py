"""DenseRange: one server's range of a dense table, in pieces that have taken the same pushes (see pieces.py)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np

from heterps.arrays import FloatArray
from heterps.ps.protocol.messages import Iteration, Round
from heterps.ps.protocol.parts import ValuePart
from heterps.ps.protocol.specs import DenseSpec
from heterps.ps.shard.ledger import Ledger, PushSource
from heterps.ps.shard.pieces import Piece, PieceSet
from heterps.ps.shard.rounds import Contribution
from heterps.ps.table.dense import DenseTable
from heterps.ps.table.optimizers import state_words


class DensePart(NamedTuple):
    """Values of a dense table on their way, and which pushes are in them."""

    part: ValuePart
    is_filled: bool
    ledger: Ledger


class DensePiece(Piece):
    """A part in use: a table of its own for a range of the values."""

    def __init__(self, spec: DenseSpec, dense: DensePart) -> None:
        super().__init__(dense.ledger.copy())
        self.spec, self.is_filled = spec, dense.is_filled
        self._hold(dense.part)

    def _hold(self, part: ValuePart) -> None:
        self.first, self.stop = part.first, part.stop
        self.table = DenseTable(len(part.values), self.spec.optimizer, self.spec.schedule)
        self.table.values[:] = part.values
        self.table.restore(part.state.reshape(-1), self.ledger.num_pushes.get(self.spec.name, 0))

    def part(self) -> ValuePart:
        """Return a view of the values and their state."""
        return ValuePart(self.first, self.table.values, self.table.state.reshape(-1, self.table.size))

    def cut(self, within: slice) -> DensePart:
        """Return what of the piece is `within`: a view."""
        return DensePart(self.part().cut(within), self.is_filled, self.ledger)

    def absorb(self, other: Self) -> bool:
        if (self.stop, self.is_filled) != (other.first, other.is_filled):
            return False
        one, two = self.part(), other.part()
        values, state = np.concatenate([one.values, two.values]), np.hstack([one.state, two.state])
        self._hold(ValuePart(self.first, values, state))
        return True


class DenseRange:
    """The values `within` of the table `spec`."""

    def __init__(self, spec: DenseSpec, within: slice) -> None:
        self.spec = spec
        self.within = within
        self.pieces: PieceSet[DensePiece] = PieceSet()
        if self.size:
            table = DenseTable(self.size, spec.optimizer, spec.schedule)
            part = ValuePart(within.start, table.values, table.state.reshape(-1, table.size))
            self.load([DensePart(part, False, Ledger())])

    @property
    def size(self) -> int:
        return len(range(self.within.start, self.within.stop))

    @property
    def num_words(self) -> int:
        """Number of float32 words of optimizer state per value."""
        return state_words(self.spec.optimizer, 1)

    @property
    def num_bytes(self) -> int:
        return 4 * self.size * (1 + self.num_words)

    @property
    def num_steps(self) -> int:
        """Number of steps of the piece that has made the fewest."""
        return self.pieces.num_pushes(self.spec.name)

    def values(self, out: FloatArray | None = None) -> FloatArray:
        """Return a copy of all values, in `out` where it is given."""
        return np.concatenate([np.empty(0, np.float32), *(piece.table.values for piece in self.pieces)], out=out)

    def state(self) -> FloatArray:
        """Return a copy of the optimizer state, [words a value, size]."""
        none = np.empty((self.num_words, 0), np.float32)
        return np.concatenate([none, *(piece.part().state for piece in self.pieces)], axis=1)

    def fill(self, values: FloatArray) -> None:
        """Give every piece that has none its first values."""
        for piece in self.pieces:
            if not piece.is_filled:
                piece.table.values[:] = self._cut(values, piece)
                piece.is_filled = True
        self.pieces.replace(self.pieces)

    def push(
        self, source: PushSource, sequence: int, push: Contribution, round: Round | Iteration | None = None
    ) -> None:
        """Apply a push, or keep it for its round, in every piece whose next one it is; see PieceSet.push."""

        def part_of(piece: DensePiece) -> Contribution:
            return push._replace(grads=self._cut(push.grads, piece))

        self.pieces.push(source, self.spec.name, sequence, round, part_of, _step)

    def apply_round(self, source: PushSource, sequence: int, number: int, factor: float) -> None:
        """Make the step of a round that waits; see PieceSet.apply_round."""
        self.pieces.apply_round(source, self.spec.name, sequence, number, factor, _step)

    def end_rounds(self, rounds: int) -> None:
        """Make the steps of whole rounds; see PieceSet.end_rounds."""
        self.pieces.end_rounds(rounds, lambda _, piece, push: _step(piece, push))

    def part_error(self, part: ValuePart) -> str | None:
        """Return what is wrong with a part that is not within this range."""
        within = self.within
        if within.start <= part.first <= part.stop <= within.stop and len(part.state) == self.num_words:
            return None
        return (
            f"table {self.spec.name} has values {within.start} to {within.stop} with {self.num_words} words of "
            f"state each here, got {part.first} to {part.stop} with {len(part.state)}"
        )

    def put(self, source: PushSource, sequence: int, part: ValuePart, num_steps: int) -> None:
        """Take over values and state of a table after `num_steps`, as a push. They count as filled."""

        def put(piece: DensePiece) -> None:
            own, new = piece.part().cut(slice(part.first, part.stop)), part.cut(slice(piece.first, piece.stop))
            own.values[:], own.state[:] = new.values, new.state
            piece.table.num_pushes, piece.is_filled = num_steps, True

        self.pieces.take_over(source, self.spec.name, sequence, num_steps, put)

    # --- moves -------------------------------------------------------------------------------------------------------

    def copy(self, within: slice) -> list[DensePart]:
        """Return copies of what is here of a range."""
        parts = [piece.cut(within) for piece in self.pieces]
        return [DensePart(d.part.copy(), d.is_filled, d.ledger.copy()) for d in parts if len(d.part.values)]

    def cut(self, within: slice) -> list[DensePart]:
        """Return what is here of a range, which is no longer here then."""
        leaving = self.copy(within)
        rest = [piece.cut(slice(piece.first, within.start)) for piece in self.pieces]
        rest += [piece.cut(slice(within.stop, piece.stop)) for piece in self.pieces]
        self.pieces = PieceSet()
        self.load([dense for dense in rest if len(dense.part.values)])
        return leaving

    def load(self, parts: Sequence[DensePart]) -> None:
        """Put in what came from elsewhere. ValueError, and no change, where it does not fit or is here already."""
        new = (DensePiece(self.spec, dense) for dense in parts)
        pieces = sorted([*self.pieces, *new], key=lambda piece: piece.first)
        for before, after in pairwise(pieces):
            if after.first < before.stop:
                raise ValueError(f"value {after.first} of table {self.spec.name} came twice")
        if pieces and not self.within.start <= pieces[0].first <= pieces[-1].stop <= self.within.stop:
            raise ValueError(f"values beyond {self.within.start} to {self.within.stop - 1} of table {self.spec.name}")
        self.pieces.replace(pieces)

    def _cut(self, values: FloatArray, piece: DensePiece) -> FloatArray:
        """Return those values of the range that are a piece's."""
        return values[piece.first - self.within.start : piece.stop - self.within.start]


def _step(piece: DensePiece, push: Contribution) -> None:
    piece.table.push(push.grads, samples=push.samples)
