"""Keeper: notices that a server is lost, and sees that its mirror takes its place and that it has a mirror again.

    Lead(roster) --> servers and mirrors, five times a second --> Led         an event and the time in, effects out

    a server is lost     its process has ended, or it was silent for too long
                         [1] its mirror, which has all, takes its place in the next roster; all are told
                         [2] a new server is started; it answers --> it is the mirror in the next roster
                         [3] the server sends it a copy and its log --> it is synced
    a mirror is lost     the server goes on alone from the next roster on; then [2] and [3]
    both are lost, or there are no mirrors
                         `failure`: what they held comes back from a checkpoint
    a server has to leave, because its machine will end soon
                         its mirror takes its place as soon as that has all; without mirrors the job is told to save

The keeper alone makes rosters, one after the other, so that there is never any doubt about which is newer. A server
that was replaced can do no harm when it comes back: its mirror takes nothing more of it, and without that it may not
say that anything is done (see ps/server/mirror_stream.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from heterps.errors import HeterpsError, MirrorDiffers, PeerLost, last_heard
from heterps.ps.ops.mirrors import Lead, Led
from heterps.ps.ops.requests import client_codec, server_codec
from heterps.ps.protocol.roster import Roster, Seat
from heterps.wire import Frame, WireError

LEAD_S = 0.2
"""Seconds between two Leads."""
HELD_UP_S = 1.0
"""A keeper that was not called for so long was held up itself, and counts the silence of servers from then on."""
START_S = 180.0
"""Seconds that a new server gets until it answers."""
IN_A_LIFE = 100_000
"""Of servers with one number, fewer are started by a keeper; of Leads, fewer than its square are sent."""
ENDS_SOON = "its process was told to end, or its machine"


class Tell(NamedTuple):
    """Send a message to a server."""

    peer: str
    parts: list[Frame]


class StartServer(NamedTuple):
    """Start a server that is to be the mirror of server `number`. Say where it listens (`listens`)."""

    name: str
    number: int


class StopServer(NamedTuple):
    """End the process of a server that is lost or not wanted any more, if it is not gone."""

    name: str


Effect = Tell | StartServer | StopServer


class News(NamedTuple):
    """What happened, for people; whether a server was lost and all goes on without a way back."""

    text: str
    is_warning: bool
    is_recovery: bool = False
    asks: Literal["", "save", "move"] = ""  # the job to save all that it has, and to go on with other servers then


@dataclass
class _Watched:
    """What is known of a server: when it was heard of last (inf: never), and what it said."""

    heard_at: float = math.inf
    heard: int = 0
    epoch: int = 0
    is_synced: bool = False
    is_leaving: bool = False


@dataclass
class _Vacancy:
    """A server that has no mirror, or none that has all yet."""

    since: float
    start_at: float
    name: str = ""  # of the server that was started for it
    started_at: float = 0.0
    seat: Seat | None = None  # of that, once it listens


class Keeper:
    """Keeps the servers of `roster`, which have answered. Either they have mirrors, or none has.

    silence_s   a server that has not answered for so long is lost
    next_start  says when a new server may be started, given the time of a loss; None: no more are
    life        how many keepers the servers have had; a mirror that is missing then is started
    """

    def __init__(
        self,
        roster: Roster,
        *,
        silence_s: float,
        next_start: Callable[[float], float | None],
        now: float,
        life: int = 1,
    ) -> None:
        self.roster = roster
        self.failure: HeterpsError | None = None
        self.lost = ""
        """The server without which the job cannot go on, if that is the `failure`."""
        self._silence_s, self._next_start = silence_s, next_start
        self._watched = {seat.name: _Watched(now) for seat in roster.seats}
        self._vacancies = {  # by server
            number: _Vacancy(now, now) for number, mirror in enumerate(roster.mirrors) if mirror is None
        }
        self._taking_over: dict[str, tuple[float, str]] = {}  # mirrors in a new place, since when, and whose it was
        self._news: list[News] = []
        self._asked: set[News] = set()
        before = (life - 1) * IN_A_LIFE  # more than any keeper before has used
        self._lives = dict.fromkeys(range(roster.num_shards), 1 + before)
        self._requests, self._answers = server_codec(), client_codec()
        self._ids = before * IN_A_LIFE
        self._led_at = -math.inf
        self._ticked_at = now

    def take_news(self) -> list[News]:
        news, self._news = self._news, []
        return news

    @property
    def is_complete(self) -> bool:
        """Whether every server has a mirror that has all."""
        mirrors = [self.roster.mirror(number) for number in range(self.roster.num_shards)]
        return all(mirror is not None and self._watched[mirror.name].is_synced for mirror in mirrors)

    # --- events ------------------------------------------------------------------------------------------------------

    def handle(self, peer: str, parts: list[memoryview], now: float) -> list[Effect]:
        """Take a message of a server."""
        try:
            header, _ = self._answers.decode(parts)
        except WireError:
            return []
        watched = self._watched.get(peer)
        if watched is None or not isinstance(header, Led):
            return []
        watched.heard_at, watched.heard, watched.epoch = now, max(watched.heard, header.id), header.epoch
        watched.is_leaving = header.is_leaving
        if header.differs:
            self.failure = self.failure or MirrorDiffers(header.differs)
        if (number := self.roster.mirrored_by(peer)) >= 0 and header.is_synced and not watched.is_synced:
            watched.is_synced = True
            self._synced(number, peer, now)
        if peer in self._taking_over and header.epoch == self.roster.epoch:
            since, before = self._taking_over.pop(peer)
            self._news.append(
                News(f"{peer} has taken the place of {before} after {now - since:.1f} s", is_warning=False)
            )
        for number, vacancy in self._vacancies.items():  # [2]
            if vacancy.seat is not None and vacancy.seat.name == peer and self.roster.mirror(number) is None:
                self.roster = self.roster.with_mirror(number, vacancy.seat)
                return self._lead(now)
        return []

    def listens(self, name: str, address: str, now: float) -> list[Effect]:
        """Handle that a server that was to be started listens at this address. It may answer when it is told to."""
        for number, vacancy in self._vacancies.items():
            if vacancy.name == name:
                vacancy.seat = Seat(name, address, self._lives[number] + 1)
        return self._lead(now)

    def ended(self, name: str, why: str, now: float) -> list[Effect]:
        """Handle that the process of a server has ended."""
        if (watched := self._watched.get(name)) is None:
            return []
        return self._lost(name, why + (last_heard(now - watched.heard_at) if watched.heard else ""), now)

    def leaves(self, name: str, now: float, *, has_place: bool = True) -> list[Effect]:
        """Handle that a server will end soon, and whether another can be started meanwhile. Its mirror takes over as
        soon as it can; a mirror is dropped. Without mirrors the job is told to save, and to go on with others when
        there is a place. That is no failure. Call it again until the server is gone."""
        mirror = self.roster.mirror(number) if (number := self.roster.number(name)) >= 0 else None
        is_needed = number >= 0 and (mirror is None or not self._is_synced(mirror))
        if name in self._watched and not self.roster.mirrors:
            self._ask(name, "move" if has_place else "save")
        if name not in self._watched or is_needed or not has_place:
            return []
        return self._lost(name, f"{name} leaves, because {ENDS_SOON}", now, is_preempted=True)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due at this time. Call it several times a second, when all messages that came were handled."""
        if now - self._ticked_at > HELD_UP_S:  # what was said meanwhile may not have been heard yet
            for watched in self._watched.values():
                watched.heard_at = now if watched.heard_at < math.inf else watched.heard_at
        self._ticked_at = now
        effects: list[Effect] = []
        for name, watched in list(self._watched.items()):
            if name not in self._watched:
                continue
            if now - watched.heard_at > self._silence_s:
                effects += self._lost(name, f"{name} has not answered for {self._silence_s:g} s", now)
            elif watched.is_leaving:
                effects += self.leaves(name, now)
        for number, vacancy in list(self._vacancies.items()):
            effects += self._fill(number, vacancy, now)
        return [*effects, *(self._lead(now) if now - self._led_at >= LEAD_S else [])]

    # --- losses ------------------------------------------------------------------------------------------------------

    def _ask(self, name: str, what: Literal["save", "move"]) -> None:
        """Ask the job once to save what a server without a mirror has."""
        then = "goes on with others" if what == "move" else "there is no place for another yet"
        news = News(f"{name} has to leave, because {ENDS_SOON}: the job is saved, and {then}", True, asks=what)
        if news not in self._asked:
            self._asked.add(news)
            self._news.append(news)

    def _is_synced(self, mirror: Seat) -> bool:
        return mirror.name in self._watched and self._watched[mirror.name].is_synced

    def _lost(self, name: str, why: str, now: float, *, is_preempted: bool = False) -> list[Effect]:
        del self._watched[name]
        self._taking_over.pop(name, None)
        if (number := self.roster.number(name)) >= 0:
            mirror = self.roster.mirror(number)
            if mirror is None or not self._is_synced(mirror):
                self._fail(name, why, mirror)
                return [StopServer(name)]
            self.roster = self.roster.with_takeover(number)  # [1]
            self._taking_over[mirror.name] = now, name
            self._news.append(News(f"{why}. Its mirror {mirror.name} takes over", is_warning=True, is_recovery=True))
        elif (number := self.roster.mirrored_by(name)) >= 0:
            self.roster = self.roster.with_mirror(number, None)
            server = self.roster.servers[number].name
            text = f"{why}. It mirrored {server}, which goes on alone until it has another mirror"
            self._news.append(News(text, is_warning=True, is_recovery=True))
        else:  # started, and not a mirror yet
            number = next(n for n, vacancy in self._vacancies.items() if vacancy.name == name)
            self._news.append(News(why, is_warning=True))
        start_at = now if is_preempted else self._next_start(now)
        since = self._vacancies[number].since if number in self._vacancies else now
        self._vacancies.pop(number, None)
        if start_at is None:
            server = self.roster.servers[number].name
            self._news.append(News(f"too many servers were lost: {server} goes on without a mirror", is_warning=True))
        else:
            self._vacancies[number] = _Vacancy(since, start_at)
        return [StopServer(name), *self._lead(now)]

    def _fail(self, name: str, why: str, mirror: Seat | None) -> None:
        if self.roster.mirrors:
            why += (
                f", and {'it has no mirror' if mirror is None else f'its mirror {mirror.name} has not all that it had'}"
            )
        if self.failure is None:
            self.failure, self.lost = PeerLost(why), name

    def _fill(self, number: int, vacancy: _Vacancy, now: float) -> list[Effect]:
        """[2] Start a server when its time has come; give it up when it does not answer."""
        if not vacancy.name and now >= vacancy.start_at:
            self._lives[number] += 1
            vacancy.name, vacancy.started_at = f"server-{number}.{self._lives[number]}", now
            self._watched[vacancy.name] = _Watched()
            return [StartServer(vacancy.name, number)]
        is_late = vacancy.name and now - vacancy.started_at > START_S
        if is_late and self._watched[vacancy.name].heard_at == math.inf:
            return self._lost(vacancy.name, f"{vacancy.name} did not start within {START_S:.0f} s", now)
        return []

    def _synced(self, number: int, mirror: str, now: float) -> None:
        """[3] Record that a server has a mirror that has all."""
        if (vacancy := self._vacancies.pop(number, None)) is not None:
            server, missing_s = self.roster.servers[number].name, now - vacancy.since
            self._news.append(News(f"{server} has a mirror again after {missing_s:.1f} s, {mirror}", is_warning=False))

    def _lead(self, now: float) -> list[Effect]:
        """Tell all servers and mirrors the roster."""
        self._led_at = now
        effects: list[Effect] = []
        for name, watched in self._watched.items():
            self._ids += 1
            lead = Lead(self._ids, self.roster, watched.heard, self._silence_s)
            effects.append(Tell(name, self._requests.encode(lead)))
        return effects
