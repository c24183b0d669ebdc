"""Roster: which rosters can follow each other."""

from __future__ import annotations

import pytest
from servers import make_roster

from heterps.ps.protocol.roster import Roster, Seat, follows, moves

OLD = make_roster(2)
FIRST, SECOND = OLD.servers
THIRD = Seat("server-2")


def test_a_roster_is_followed_by_one_with_a_server_more_or_less_at_the_end() -> None:
    assert follows(OLD.add(THIRD), OLD)
    assert follows(OLD.drop_last(), OLD)


@pytest.mark.parametrize(
    "servers",
    [
        (FIRST, SECOND),
        (FIRST, Seat("another"), THIRD),
        (FIRST, Seat(SECOND.name, incarnation=2), THIRD),
        (SECOND, FIRST, THIRD),
        (THIRD, FIRST, SECOND),
        (FIRST, SECOND, THIRD, Seat("server-3")),
        (SECOND,),
    ],
    ids=["as before", "another", "started anew", "turned", "at the beginning", "two more", "the first left"],
)
def test_a_roster_of_other_servers_does_not_follow(servers: tuple[Seat, ...]) -> None:
    """Slots would move to whoever has a number, and stay where nobody looks for them."""
    new = Roster(servers, OLD.epoch + 1)
    assert not follows(new, OLD)
    with pytest.raises(ValueError, match="roster 2 does not follow roster 1"):
        moves(OLD, new)


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_roster_of_another_epoch_does_not_follow(epoch: int) -> None:
    assert not follows(Roster((*OLD.servers, THIRD), epoch), OLD)
