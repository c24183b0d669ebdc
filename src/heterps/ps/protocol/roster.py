"""Roster: which servers are in the job and what each holds. A value; its epoch orders it among its successors.

    slot s of every sparse table   on the server with number placement.owners(num_shards)[s]
    a dense table of n values      in equal ranges, one a server, by number
    all of that a second time      on the mirror of a server, where it has one

One more server takes 1/(n+1) of every other's slots. Of a dense table about half moves, each range by a little: equal
ranges stay next to each other, and dense tables are small beside the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from heterps.ps.keys.placement import owners


class Seat(Struct, frozen=True):
    """A server of the job: its name on the channels, where it listens, and how many times it has been started."""

    name: str
    address: str = ""
    incarnation: int = 1


class Roster(Struct, frozen=True):
    """The servers by number. Requests carry its epoch; a server with another epoch refuses them."""

    servers: tuple[Seat, ...]
    epoch: Annotated[int, Meta(ge=1, lt=2**62)] = 1
    mirrors: tuple[Seat | None, ...] = ()  # by the number of their server; empty: no server has one

    def __post_init__(self) -> None:
        names = [seat.name for seat in self.seats]
        if not self.servers or len(set(names)) < len(names):
            raise ValueError(f"a roster needs at least one server and every name once, got {names}")
        if len(self.mirrors) not in (0, len(self.servers)):
            raise ValueError(f"{len(self.servers)} servers need as many places for mirrors, got {len(self.mirrors)}")

    @property
    def seats(self) -> Iterator[Seat]:
        """All servers, then all mirrors."""
        yield from self.servers
        yield from (seat for seat in self.mirrors if seat is not None)

    @property
    def num_shards(self) -> int:
        return len(self.servers)

    def number(self, name: str) -> int:
        """Return the number of the server called `name`, -1 where it is not in the job."""
        return next((number for number, seat in enumerate(self.servers) if seat.name == name), -1)

    def mirror(self, number: int) -> Seat | None:
        """Return the mirror of server `number`, if it has one."""
        return self.mirrors[number] if self.mirrors else None

    def mirrored_by(self, name: str) -> int:
        """Return the number of the server whose mirror is called `name`, -1 where it is no mirror."""
        return next((n for n, seat in enumerate(self.mirrors) if seat is not None and seat.name == name), -1)

    def dense_range(self, size: int, number: int) -> slice:
        """Return which of `size` values of a dense table server `number` holds; -1, which is none, holds none."""
        if number < 0:
            return slice(0, 0)
        return slice(size * number // self.num_shards, size * (number + 1) // self.num_shards)

    def add(self, seat: Seat) -> Roster:
        """Return the next roster, with one more server."""
        return Roster((*self.servers, seat), self.epoch + 1)

    def drop_last(self) -> Roster:
        """Return the next roster, without the newest server. The last one of all must stay."""
        if self.num_shards == 1:
            raise ValueError(f"server {self.servers[-1].name} is the only one and cannot leave")
        return Roster(self.servers[:-1], self.epoch + 1)

    def with_mirror(self, number: int, mirror: Seat | None) -> Roster:
        """Return the next roster, in which server `number` has this mirror, or none."""
        mirrors = list(self.mirrors or [None] * self.num_shards)
        mirrors[number] = mirror
        return Roster(self.servers, self.epoch + 1, tuple(mirrors))

    def with_takeover(self, number: int) -> Roster:
        """Return the next roster, in which the mirror of server `number`, which it must have, is in its place."""
        mirror = self.mirror(number)
        assert mirror is not None
        servers = (*self.servers[:number], mirror, *self.servers[number + 1 :])
        mirrors = (*self.mirrors[:number], None, *self.mirrors[number + 1 :])
        return Roster(servers, self.epoch + 1, mirrors)

    def without_gone(self, is_there: Callable[[Seat], bool]) -> Roster | None:
        """Return the roster by which another keeper goes on, without mirrors that are gone; None where a server is."""
        if not all(map(is_there, self.servers)):
            return None
        left = self
        for number, mirror in enumerate(self.mirrors):
            if mirror is not None and not is_there(mirror):
                left = left.with_mirror(number, None)
        return left

    def before_add(self) -> Roster:
        """Return the roster that `add` made this one of; ValueError for one that cannot have been made so."""
        if self.num_shards == 1 or self.epoch == 1:
            raise ValueError(f"roster {self.epoch} of {self.num_shards} servers is the first of its job")
        return Roster(self.servers[:-1], self.epoch - 1)


class Move(NamedTuple):
    """What changes its home, by server numbers of the old and of the new roster: slots, and `dense_move` of tables."""

    source: int
    target: int
    slots: NDArray[np.int64]


def follows(new: Roster, old: Roster) -> bool:
    """Whether `new` can come after `old`: the next epoch, with one server more or less at the end."""
    more, fewer = (new, old) if new.num_shards > old.num_shards else (old, new)
    return new.epoch == old.epoch + 1 and more.servers[:-1] == fewer.servers


def moves(old: Roster, new: Roster) -> list[Move]:
    """Return who must hand over to whom when `new` follows `old`; first those between neighbours that move no slots."""
    if not follows(new, old):
        raise ValueError(f"roster {new.epoch} does not follow roster {old.epoch} by one server more or less")
    before, after = owners(old.num_shards), owners(new.num_shards)
    pairs = set(zip(before[before != after].tolist(), after[before != after].tolist(), strict=True))
    step = 1 if new.num_shards > old.num_shards else -1
    neighbours = {(number, number + step) for number in range(max(0, -step), old.num_shards)}
    return [
        Move(source, target, np.flatnonzero((before == source) & (after == target)))
        for source, target in (*sorted(neighbours - pairs), *sorted(pairs))
    ]


def dense_move(size: int, old: Roster, new: Roster, move: Move) -> slice:
    """Return which of `size` values of a dense table move with `move`; only between neighbours there are any."""
    before, after = old.dense_range(size, move.source), new.dense_range(size, move.target)
    first = max(before.start, after.start)
    return slice(first, max(first, min(before.stop, after.stop)))
