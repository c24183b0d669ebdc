"""Roster: which servers are in the job and what each holds. A value; its epoch orders it among its successors.

    slot s of every sparse table   on the server with number placement.owners(num_shards)[s]
    a dense table of n values      in equal ranges on the first `num_dense` servers

Dense ranges stay where the job began: they are small beside the rows, and every step touches all of them anyway, so
spreading them over later servers would save nothing.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from heterps.ps.placement import owners


class Seat(Struct, frozen=True):
    """A server of the job: its name on the channels, where it listens, and its how-manieth life this is."""

    name: str
    address: str = ""
    incarnation: int = 1


class Roster(Struct, frozen=True):
    """The servers by number. Requests carry its epoch; a server with another epoch refuses them."""

    servers: tuple[Seat, ...]
    num_dense: int
    epoch: Annotated[int, Meta(ge=1, lt=2**62)] = 1

    def __post_init__(self) -> None:
        names = [seat.name for seat in self.servers]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a roster needs at least one server and every name once, got {names}")
        if not 1 <= self.num_dense <= len(names):
            raise ValueError(f"num_dense must be at least 1 and at most {len(names)} servers, got {self.num_dense}")

    @property
    def num_shards(self) -> int:
        return len(self.servers)

    def number(self, name: str) -> int:
        """The number of the server called `name`, -1 where it is not in the job."""
        return next((number for number, seat in enumerate(self.servers) if seat.name == name), -1)

    def dense_range(self, size: int, number: int) -> slice:
        """The values of a dense table of `size` values that server `number` holds."""
        if number >= self.num_dense:
            return slice(size, size)
        return slice(size * number // self.num_dense, size * (number + 1) // self.num_dense)

    def add(self, seat: Seat) -> Roster:
        """The next roster, with one more server."""
        return Roster((*self.servers, seat), self.num_dense, self.epoch + 1)

    def drop_last(self) -> Roster:
        """The next roster, without the newest server. One that holds dense ranges must stay."""
        if self.num_shards == self.num_dense:
            raise ValueError(f"server {self.servers[-1].name} holds a range of the dense tables and cannot leave")
        return Roster(self.servers[:-1], self.num_dense, self.epoch + 1)

    def before_add(self) -> Roster:
        """The roster that `add` made this one of."""
        return Roster(self.servers[:-1], self.num_dense, self.epoch - 1)


class Move(NamedTuple):
    """Slots that change their home, by server numbers of the old and of the new roster."""

    source: int
    target: int
    slots: NDArray[np.int64]


def follows(new: Roster, old: Roster) -> bool:
    """Whether `new` can come after `old`: the next epoch, with one server more or less at the end."""
    if new.num_shards > old.num_shards:
        return new.before_add() == old
    return old.num_shards > old.num_dense and new == old.drop_last()


def moves(old: Roster, new: Roster) -> list[Move]:
    """What must move between servers when `new` follows `old`."""
    if not follows(new, old):
        raise ValueError(f"roster {new.epoch} does not follow roster {old.epoch} by one server more or less")
    before, after = owners(old.num_shards), owners(new.num_shards)
    pairs = np.unique(np.stack([before, after])[:, before != after], axis=1).T
    return [
        Move(int(source), int(target), np.flatnonzero((before == source) & (after == target)))
        for source, target in pairs
    ]
