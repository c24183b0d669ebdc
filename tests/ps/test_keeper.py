"""The keeper of servers, event by event: who is lost, who takes over, who is started, and when nobody can go on."""

from __future__ import annotations

import pytest

from heterps.errors import PeerLost
from heterps.ps.client.keeper import Effect, Keeper, StartServer, StopServer, Tell
from heterps.ps.ops.mirrors import Led
from heterps.ps.ops.requests import client_codec
from heterps.ps.protocol.roster import Roster, Seat

SILENCE_S = 3.0


def keeper(*, mirrors: bool) -> Keeper:
    seats = tuple(Seat(f"server-{number}", f"ipc://{number}") for number in range(2))
    others = tuple(Seat(f"server-{number}.1", f"ipc://{number}.1") for number in range(2)) if mirrors else ()
    return Keeper(Roster(seats, mirrors=others), silence_s=SILENCE_S, next_start=lambda _: None, now=0.0)


def led(made: Keeper, name: str, now: float, *, is_synced: bool = False, is_leaving: bool = False) -> list[Effect]:
    parts = client_codec().encode(Led(1, made.roster.epoch, is_synced, is_leaving=is_leaving))
    return made.handle(name, [memoryview(bytes(part)) for part in parts], now)


def told(effects: list[Effect]) -> set[str]:
    return {effect.peer for effect in effects if isinstance(effect, Tell)}


def others(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, Tell)]


def test_without_mirrors_all_are_led_and_one_that_is_silent_is_ended_and_named() -> None:
    made = keeper(mirrors=False)
    leads: set[str] = set()
    for tenths in range(31):
        leads |= told(made.tick(tenths / 10))
        led(made, "server-0", tenths / 10)
    assert leads == {"server-0", "server-1"}
    assert made.failure is None
    assert others(made.tick(3.1)) == [StopServer("server-1")]
    assert isinstance(made.failure, PeerLost)
    assert str(made.failure) == "server-1 has not answered for 3 s", "no word of mirrors"
    assert made.lost == "server-1"


def test_a_server_that_has_to_leave_waits_for_its_mirror_and_another_is_started_though_too_many_were_lost() -> None:
    made = keeper(mirrors=True)
    assert made.leaves("server-0", 1.0) == [], "its mirror has not all that it had"
    led(made, "server-0.1", 1.1, is_synced=True)
    assert others(made.leaves("server-0", 1.2)) == [StopServer("server-0")]
    assert made.roster.servers[0].name == "server-0.1"
    assert made.leaves("server-0", 1.3) == [], "it is gone"
    assert others(made.tick(1.4)) == [StartServer("server-0.2", 0)]
    assert made.failure is None


def test_a_server_that_is_started_is_the_mirror_once_it_listens_and_answers() -> None:
    made = keeper(mirrors=True)
    assert others(made.leaves("server-1.1", 1.0)) == [StopServer("server-1.1")], "a mirror need not wait"
    made.tick(1.1)
    led(made, "server-1.2", 1.2)
    assert made.roster.mirror(1) is None, "nobody knows its address"
    assert "server-1.2" in told(made.listens("server-1.2", "tcp://node:1", 2.0))
    led(made, "server-1.2", 2.1)
    assert made.roster.mirror(1) == Seat("server-1.2", "tcp://node:1", 3)


def test_without_mirrors_a_server_that_has_to_leave_stays_until_the_job_was_saved_and_has_others() -> None:
    made = keeper(mirrors=False)
    assert made.leaves("server-0", 1.0, has_place=False) == []
    assert made.leaves("server-0", 1.1, has_place=False) == []
    (news,) = made.take_news()
    assert (news.asks, news.is_recovery) == ("save", False)
    assert "server-0 has to leave" in news.text
    for now in (1.2, 1.3):
        assert made.leaves("server-0", now) == []
    assert [news.asks for news in made.take_news()] == ["move"], "once"
    assert made.failure is None


@pytest.mark.parametrize("mirrors", [False, True])
def test_a_server_that_was_told_to_end_says_so_itself(*, mirrors: bool) -> None:
    made = keeper(mirrors=mirrors)
    for name in ("server-0.1", "server-1.1") if mirrors else ():
        led(made, name, 1.0, is_synced=True)
    led(made, "server-1", 1.0, is_leaving=True)
    assert others(made.tick(1.1))[:1] == ([StopServer("server-1")] if mirrors else [])
    assert [news.asks for news in made.take_news()] == ([""] if mirrors else ["move"])
    assert made.roster.servers[1].name == ("server-1.1" if mirrors else "server-1")
    assert made.failure is None, "too many losses end the job, and this is none"
