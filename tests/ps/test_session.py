"""Session: a worker's talk with its servers, message by message. What waits ends, whatever the servers answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import pytest
from servers import DIM, make_roster, settle

from heterps.errors import PeerLost
from heterps.ps import messages as m
from heterps.ps.calls import EXACT, PullRowsCall
from heterps.ps.dedup import make_lookup
from heterps.ps.roster import Roster, Seat
from heterps.ps.session import Options, Session

KEYS = np.arange(40, dtype=np.uint64)
OPTIONS = Options(deadline_s=10.0, first_retry_s=100.0, longest_retry_s=100.0)


def make_session(roster: Roster, options: Options = OPTIONS) -> Session:
    return Session("worker", 1, roster, "tables", options)


def pull(session: Session, now: float = 0.0) -> Future:
    future: Future = Future()
    lookup = make_lookup(KEYS, session.roster.num_shards)
    call = PullRowsCall("rows", lookup, DIM, after=0, create=True, coding=EXACT)
    session.submit(call, future, 0, now)
    session.flush()
    return future


def exchange(session: Session, now: float, answer: Callable[[str, m.ToServer], m.FromServer | None]) -> list:
    """Send what is due and hand back what `answer` says to each message; the headers that were sent."""
    headers = []
    for peer, parts in session.outgoing(now):
        headers.append(m.server_codec().decode([memoryview(part).cast("B") for part in parts])[0])
        if (said := answer(peer, headers[-1])) is not None:
            session.receive(peer, [memoryview(part) for part in m.client_codec().encode(said)], now)
    settle(session)
    return headers


def renew_last(roster: Roster) -> Roster:
    """A roster whose last server has been replaced by another of its name."""
    last = roster.servers[-1]
    return Roster((*roster.servers[:-1], Seat(last.name, incarnation=last.incarnation + 1)), roster.epoch + 1)


def test_a_deadline_does_not_start_anew_when_the_roster_changes() -> None:
    session = make_session(make_roster(1))
    future, num_changes = pull(session), 0

    def answer(_: str, header: m.ToServer) -> m.FromServer:
        nonlocal num_changes
        if isinstance(header, m.Hello):
            return m.Welcome(header.id, session.roster)
        num_changes += 1
        return m.Refused(header.id, "stale_epoch", "", Roster(session.roster.servers, session.roster.epoch + 1))

    for tenth in range(100):
        exchange(session, tenth / 10, answer)
        assert not future.done(), f"given up {10 - tenth / 10} s before its deadline"
    assert num_changes > 50
    exchange(session, 9.99, lambda *_: None)  # the newest request is left without an answer
    assert session.next_time() == pytest.approx(10.0), "the end is not later than the deadline"
    exchange(session, 10.0, answer)
    with pytest.raises(PeerLost, match=r"server-0 did not answer worker worker within 10 s \(PullRows of table rows"):
        future.result(timeout=0)


def test_a_greeting_of_a_server_that_is_replaced_again_and_again_does_not_wait_for_ever() -> None:
    """Server 0 knows a newer roster each second; its newest server 1 never answers."""
    session = make_session(make_roster(2))
    future, epochs = pull(session), []

    def answer(peer: str, header: m.ToServer) -> m.FromServer | None:
        if peer == "server-1":
            return None
        if isinstance(header, m.Hello):
            return m.Welcome(header.id, session.roster)
        return m.Refused(header.id, "stale_epoch", "", renew_last(session.roster))

    for second in range(10):
        exchange(session, float(second), answer)
        epochs.append(session.roster.epoch)
        assert not future.done(), f"given up {10 - second} s before its deadline"
    assert len(set(epochs)) > 5
    exchange(session, 9.99, lambda *_: None)
    assert session.next_time() == pytest.approx(10.0)
    exchange(session, 10.0, answer)
    with pytest.raises(PeerLost, match="did not answer worker worker within 10 s"):
        future.result(timeout=0)


def test_a_call_that_was_made_later_has_its_own_deadline() -> None:
    """It goes by the same new roster as an older call, and does not end with it."""
    session = make_session(make_roster(1), Options(deadline_s=10.0, first_retry_s=100.0, max_requests=1))
    welcome = lambda _, header: m.Welcome(header.id, session.roster) if isinstance(header, m.Hello) else None  # noqa: E731
    pull(session, 0.0)
    exchange(session, 0.0, welcome)
    exchange(session, 0.0, welcome)
    pull(session, 8.0)
    exchange(session, 8.0, welcome)
    flights = list(session._lines[0].flights.values())
    assert [flight.deadline for flight in flights] == [10.0]
    session._adopt(Roster(session.roster.servers, 2), 9.0)
    exchange(session, 9.0, welcome)
    (flight,) = session._lines[0].flights.values()
    assert len(flight.calls) == 2, "both in one request"
    assert flight.deadline == 10.0
    assert [pending.deadline for pending in flight.calls] == [10.0, 19.0]
