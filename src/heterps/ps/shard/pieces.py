"""Pieces: parts of a server's tables that have taken the same pushes, each with a ledger of them.

    slots     [ 0  1  2  3  4 | 5  6  7 ]        a piece is a set of slots, or a range of a dense table
    ledgers     a: 17, b: 16    a: 18, b: 16     slots 5 to 7 came from another server that was further on
                                                 push 18 of worker a now moves the rows of slots 0 to 4 only

Mostly there is one piece. After a move there are several, until the pushes under way have reached all of them. The
sparse tables of a server share their pieces, and every dense table has pieces of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Generic, Self, TypeVar

from heterps.ps.protocol.messages import Iteration, Round
from heterps.ps.shard.ledger import Ledger, PushSource, PushState
from heterps.ps.shard.rounds import Contribution, Stash, apply_once, drop_once, end_rounds, push_once
from heterps.ps.table.norms import square_sum


class Piece:
    """A part that has taken the pushes in `ledger`, and keeps contributions to rounds in `stash`."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.stash = Stash()

    def absorb(self, other: Self) -> bool:
        """Take in `other`, whose ledger is equal; False, and no change, where they do not lie together."""
        raise NotImplementedError


P = TypeVar("P", bound=Piece)
_LEAST_FAR = (PushState.EARLY, PushState.APPLYING, PushState.NEXT, PushState.APPLIED)


class PieceSet(Generic[P]):
    """The pieces that are here. Nothing is in two of them."""

    def __init__(self, pieces: Iterable[P] = ()) -> None:
        self._pieces = list(pieces)

    def __iter__(self) -> Iterator[P]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def replace(self, pieces: Iterable[P]) -> None:
        """Have these pieces instead, joined where they can be."""
        self._pieces = list(pieces)
        self._join()

    def applied(self, source: PushSource, table: str) -> int:
        """Return the last push of `source` that all pieces have taken; without pieces, that is every push."""
        return min((piece.ledger.applied(source, table) for piece in self._pieces), default=2**62)

    def state(self, source: PushSource, table: str, sequence: int) -> PushState:
        """Return the state of a push in the piece that is least far; APPLIED without pieces."""
        states = {piece.ledger.state(source, table, sequence) for piece in self._pieces}
        return next((state for state in _LEAST_FAR if state in states), PushState.APPLIED)

    def num_pushes(self, table: str) -> int:
        """Return how many pushes all pieces have seen."""
        return min((piece.ledger.num_pushes.get(table, 0) for piece in self._pieces), default=0)

    def round_error(self, source: PushSource, table: str, sequence: int, round: Round) -> str | None:
        """Return what is wrong with a contribution that is new to some piece."""
        new_to = [piece for piece in self._pieces if sequence > piece.ledger.applied(source, table)]
        errors = (piece.stash.error(piece.ledger, source, table, round) for piece in new_to)
        return next((error for error in errors if error is not None), None)

    def is_awaited(self, table: str, round: Round, also: Iterable[int] = ()) -> bool:
        """Whether the next round waits for this contribution before all others, in some piece."""
        return any(piece.stash.is_awaited(piece.ledger, table, round, also) for piece in self._pieces)

    def awaiting(self, source: PushSource, table: str, sequence: int) -> list[P]:
        """Return the pieces whose next push of `source` this is."""
        return [piece for piece in self._pieces if piece.ledger.state(source, table, sequence) is PushState.NEXT]

    def push(
        self,
        source: PushSource,
        table: str,
        sequence: int,
        round: Round | Iteration | None,
        part_of: Callable[[P], Contribution],
        step: Callable[[P, Contribution], None],
    ) -> None:
        """Apply a push by `step`, or keep it for its round, in every piece whose next one it is.

        An exception leaves it APPLYING in a piece: in doubt.
        """
        for piece in self.awaiting(source, table, sequence):
            push_once(piece.ledger, piece.stash, source, table, part_of(piece), round, partial(step, piece))
        self._join()

    def round_squares(self, table: str, number: int) -> float:
        """Return the sum of squares of a round that waits. ValueError where parts of it are missing."""
        return sum(square_sum(piece.stash.whole(table, number).grads) for piece in self._pieces)

    def apply_round(
        self,
        source: PushSource,
        table: str,
        sequence: int,
        number: int,
        factor: float,
        step: Callable[[P, Contribution], None],
    ) -> None:
        """Make the step of a round that waits, in every piece whose next push of `source` this is.

        ValueError, and no change, where parts of the round are missing.
        """
        pieces = self.awaiting(source, table, sequence)
        for piece in pieces:
            piece.stash.whole(table, number)
        for piece in pieces:
            apply_once(piece.ledger, piece.stash, source, table, number, factor, partial(step, piece))
        self._join()

    def end_rounds(self, rounds: int, step: Callable[[str, P, Contribution], None]) -> None:
        """Make the steps of all whole rounds up to number `rounds`."""
        for piece in self._pieces:
            end_rounds(piece.ledger, piece.stash, rounds, partial(_step_of, step, piece))
        self._join()

    def drop_rounds(self, source: PushSource, table: str, sequence: int) -> None:
        """Drop the contributions to rounds of a table that wait, in every piece whose next push this is."""
        for piece in self.awaiting(source, table, sequence):
            drop_once(piece.ledger, piece.stash, source, table)
        self._join()

    def num_rounds(self, table: str) -> set[int]:
        """Return how many rounds of a table the pieces have applied: one number where they agree."""
        return {piece.ledger.next_round(table) - 1 for piece in self._pieces}

    def take_over(
        self, source: PushSource, table: str, sequence: int, num_pushes: int, put: Callable[[P], None] = lambda _: None
    ) -> None:
        """Call `put`, which puts in what a table was after `num_pushes`, for every piece whose next push this is.

        An exception leaves the ledger of its piece as it was, because `put` then has changed nothing.
        """
        for piece in self.awaiting(source, table, sequence):
            put(piece)
            piece.ledger.begin(source, table)
            piece.ledger.finish(source, table, num_pushes)
        self._join()

    def _join(self) -> None:
        """Make one of pieces that lie together, have come to the same pushes, and keep no contributions."""
        if len(self._pieces) < 2:
            return
        joined: list[P] = []
        for piece in self._pieces:
            alike = (other for other in joined if other.ledger == piece.ledger and not other.stash)
            if piece.stash or not any(other.absorb(piece) for other in alike):
                joined.append(piece)
        self._pieces = joined


def _step_of(step: Callable[[str, P, Contribution], None], piece: P, table: str) -> Callable[[Contribution], None]:
    return partial(step, table, piece)
