"""Session: a worker's talk with its servers, message by message. What waits ends, whatever the servers answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import pytest
from servers import DIM, make_roster, settle

from heterps.errors import PeerLost
from heterps.ps.client.session import UNSENT_RETRY_S, Options, Session
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.ops.base import Values
from heterps.ps.ops.dense import PullDenseCall
from heterps.ps.ops.requests import FromServer, OpReply, OpRequest, ToServer, client_codec, server_codec
from heterps.ps.ops.rows import PullRowsCall
from heterps.ps.protocol.messages import EXACT, Hello, Refused, Welcome
from heterps.ps.protocol.roster import Roster, Seat
from heterps.wire import Limits, pack_values
from heterps.wire.message import contiguous

KEYS = np.arange(40, dtype=np.uint64)
ROWS = np.arange(40 * DIM, dtype=np.float32).reshape(40, DIM)
PULL_BYTES = 40 * 8 + ROWS.nbytes  # keys that go and rows that come back
OPTIONS = Options(deadline_s=10.0, first_retry_s=100.0, longest_retry_s=100.0)


def make_session(roster: Roster, options: Options = OPTIONS, limits: Limits = Limits()) -> Session:
    return Session("worker", 1, roster, "tables", options, limits)


def pull(session: Session, now: float = 0.0, *, table: str = "rows", flush: bool = True) -> Future:
    future: Future = Future()
    lookup = make_lookup(KEYS, session.roster.num_shards)
    call = PullRowsCall(table, lookup, DIM, after=0, create=True, coding=EXACT)
    session.submit(call, future, 0, now)
    if flush:
        session.flush()
    return future


def greet(session: Session, now: float = 0.0) -> None:
    """Every server has said welcome."""
    for line in session._lines:
        line.greeted = True
    settle(session)


def requests_sent(session: Session, now: float = 0.0) -> list[OpRequest]:
    return exchange(session, now, lambda *_: None)


def answer_with(session: Session, id: int, results: list[np.ndarray], now: float = 0.0, more: int = 0) -> None:
    """Server 0 answers request `id` with these rows, and `more` frames that nobody asked for."""
    packed = [pack_values(rows) for rows in results]
    frames = [frame for _, frame in packed] + [np.zeros(1, np.float32)] * more
    reply = OpReply(id, tuple(Values(info) for info, _ in packed))
    parts = [contiguous(part) for part in client_codec().encode(reply, frames)]
    session.receive("server-0", parts, now)
    settle(session)


def exchange(session: Session, now: float, answer: Callable[[str, ToServer], FromServer | None]) -> list:
    """Send what is due and hand back what `answer` says to each message; the headers that were sent."""
    headers = []
    for peer, parts in session.outgoing(now):
        headers.append(server_codec().decode([memoryview(part).cast("B") for part in parts])[0])
        if (said := answer(peer, headers[-1])) is not None:
            session.receive(peer, [memoryview(part) for part in client_codec().encode(said)], now)
    settle(session)
    return headers


def renew_last(roster: Roster) -> Roster:
    """A roster whose last server has been replaced by another of its name."""
    last = roster.servers[-1]
    return Roster((*roster.servers[:-1], Seat(last.name, incarnation=last.incarnation + 1)), roster.epoch + 1)


def test_a_deadline_does_not_start_anew_when_the_roster_changes() -> None:
    session = make_session(make_roster(1))
    future, num_changes = pull(session), 0

    def answer(_: str, header: ToServer) -> FromServer:
        nonlocal num_changes
        if isinstance(header, Hello):
            return Welcome(header.id, session.roster)
        num_changes += 1
        return Refused(header.id, "stale_epoch", "", Roster(session.roster.servers, session.roster.epoch + 1))

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

    def answer(peer: str, header: ToServer) -> FromServer | None:
        if peer == "server-1":
            return None
        if isinstance(header, Hello):
            return Welcome(header.id, session.roster)
        return Refused(header.id, "stale_epoch", "", renew_last(session.roster))

    for second in range(10):
        exchange(session, float(second), answer)
        epochs.append(session.roster.epoch)
        assert not future.done(), f"given up {10 - second} s before its deadline"
    assert len(set(epochs)) > 5
    exchange(session, 9.99, lambda *_: None)
    assert session.next_time() == pytest.approx(10.0)
    exchange(session, 10.0, answer)
    with pytest.raises(
        PeerLost, match=r"within 10 s \(PullRows of .*; it was last heard of 1\.0 s before\): see whether"
    ):
        future.result(timeout=0)


def test_a_call_that_was_made_later_has_its_own_deadline() -> None:
    """It goes by the same new roster as an older call, and does not end with it."""
    session = make_session(make_roster(1), Options(deadline_s=10.0, first_retry_s=100.0, max_requests=1))
    greet(session)
    pull(session, 0.0)
    requests_sent(session, 0.0)
    pull(session, 8.0)
    requests_sent(session, 8.0)
    flights = list(session._lines[0].flights.values())
    assert [flight.deadline for flight in flights] == [10.0]
    session._adopt(Roster(session.roster.servers, 2), 9.0)
    requests_sent(session, 9.0)
    (flight,) = session._lines[0].flights.values()
    assert len(flight.calls) == 2, "both in one request"
    assert flight.deadline == 10.0
    assert [pending.deadline for pending in flight.calls] == [10.0, 19.0]


# --- retries ----------------------------------------------------------------------------------------------------------


def test_a_request_is_repeated_after_twice_as_long_each_time_up_to_the_longest_wait() -> None:
    session = make_session(make_roster(1), Options(deadline_s=20.0, first_retry_s=1.0, longest_retry_s=4.0))
    greet(session)
    future, now, sent_at = pull(session), 0.0, []
    while not future.done():
        sent_at += [now] * len(requests_sent(session, now))
        now = session.next_time() or now
    assert sent_at == [0.0, 1.0, 3.0, 7.0, 11.0, 15.0, 19.0]
    assert (now, session.retries) == (20.0, 6)


def test_a_message_that_the_channel_did_not_take_is_tried_soon_and_is_no_retry() -> None:
    session = make_session(make_roster(1), Options(first_retry_s=1.0))
    greet(session)
    pull(session)
    ((peer, parts),) = session.outgoing(0.0)
    session.unsent(peer, parts, 0.0)
    assert session.next_time() == pytest.approx(UNSENT_RETRY_S)
    ((_, again),) = session.outgoing(UNSENT_RETRY_S)
    assert again is parts
    assert session.retries == 0
    assert len(session.outgoing(UNSENT_RETRY_S + 2.0)) == 1, "this one was sent, and had no answer"
    assert session.retries == 1


# --- credit -----------------------------------------------------------------------------------------------------------


def test_requests_in_flight_take_no_more_bytes_than_the_credit() -> None:
    """Three pulls, a credit of one and a half: no two fit into a request, and the third waits for an answer."""
    session = make_session(make_roster(1), Options(max_bytes=PULL_BYTES * 3 // 2))
    greet(session)
    futures = [pull(session) for _ in range(3)]
    sent = requests_sent(session)
    assert [len(request.ops) for request in sent] == [1, 1]
    answer_with(session, sent[0].id, [ROWS])
    assert [future.done() for future in futures] == [True, False, False]
    assert len(requests_sent(session)) == 1


def test_a_call_that_is_larger_than_the_credit_goes_alone() -> None:
    session = make_session(make_roster(1), Options(max_bytes=10))
    greet(session)
    futures = [pull(session) for _ in range(2)]
    for _ in futures:
        (request,) = requests_sent(session)
        assert len(request.ops) == 1
        answer_with(session, request.id, [ROWS])
    assert all(future.done() for future in futures)


@pytest.mark.parametrize("limits", [Limits(header_bytes=4000), Limits(frames=11)], ids=["header", "frames"])
def test_calls_are_merged_into_messages_that_a_server_takes(limits: Limits) -> None:
    session = make_session(make_roster(1), Options(max_requests=100), limits)
    greet(session)
    for _ in range(30):
        pull(session, table="t" * 200)
    sent = requests_sent(session)
    assert session.error is None
    assert sum(len(request.ops) for request in sent) == 30
    assert 1 < len(sent) < 30, "some go together"


def test_calls_that_nobody_waits_for_linger_and_then_go_together() -> None:
    session = make_session(make_roster(1), Options(linger_s=0.5))
    greet(session)
    for now in (0.0, 0.2):
        pull(session, now, flush=False)
        assert requests_sent(session, now) == []
        assert session.next_time() == pytest.approx(0.5)
    (request,) = requests_sent(session, 0.5)
    assert len(request.ops) == 2


# --- answers that cannot be right -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("results", "more"),
    [([], 0), ([ROWS, ROWS], 0), ([ROWS[:39]], 0), ([ROWS[:, :2].copy()], 0), ([ROWS], 1)],
    ids=["no result", "two results", "a row missing", "rows of another dim", "a frame left over"],
)
def test_an_answer_that_does_not_fit_its_request_is_dropped_and_the_right_one_taken(results, more: int) -> None:
    session = make_session(make_roster(1))
    greet(session)
    future = pull(session)
    (request,) = requests_sent(session)
    answer_with(session, request.id, results, more=more)
    assert (future.done(), session.dropped, session.error) == (False, 1, None)
    answer_with(session, request.id, [ROWS])
    np.testing.assert_array_equal(future.result(timeout=0), ROWS)


@pytest.mark.parametrize("num_values", [9, 11, 1])
def test_values_of_another_number_are_dropped_and_the_right_ones_taken(num_values: int) -> None:
    session, future = make_session(make_roster(1)), Future()
    greet(session)
    session.submit(PullDenseCall("dense", 10, 0, EXACT), future, 0, 0.0)
    session.flush()
    (request,) = requests_sent(session)
    answer_with(session, request.id, [np.ones(num_values, np.float32)])
    assert (future.done(), session.dropped, session.error) == (False, 1, None)
    answer_with(session, request.id, [np.arange(10, dtype=np.float32)])
    np.testing.assert_array_equal(future.result(timeout=0), np.arange(10))


def test_rows_that_lie_in_memory_of_others_are_copied() -> None:
    """A frame that cannot be written is not the caller's own."""
    session = make_session(make_roster(1))
    greet(session)
    future = pull(session)
    (request,) = requests_sent(session)
    info, frame = pack_values(ROWS)
    parts = client_codec().encode(OpReply(request.id, (Values(info),)), [frame])
    session.receive("server-0", [memoryview(bytes(contiguous(part))) for part in parts], 0.0)
    settle(session)
    rows = future.result(timeout=0)
    assert rows.flags.writeable
    np.testing.assert_array_equal(rows, ROWS)


def test_an_older_roster_does_not_replace_a_newer_one() -> None:
    """A server that has not followed yet greets with the roster before; the call waits for the newer servers."""
    old, new = make_roster(1), make_roster(1).add(Seat("server-1"))
    session = make_session(new)
    future = pull(session)
    exchange(session, 0.0, lambda peer, header: Welcome(header.id, old))
    assert session.roster == new
    assert {type(header) for header in requests_sent(session)} == {OpRequest}
    assert not future.done()


def test_the_first_error_is_the_one_that_later_calls_see() -> None:
    session = make_session(make_roster(1))
    future = pull(session)
    for name in ("first", "second"):
        session.fail(PeerLost(name))
    settle(session)
    with pytest.raises(PeerLost, match="first"):
        pull(session)
    with pytest.raises(PeerLost, match="first"):
        future.result(timeout=0)


def test_calls_for_after_a_round_go_alone_and_hold_nothing_up() -> None:
    """They take no credit until the round is over, and their round may last longer than any deadline."""
    session = make_session(make_roster(1), Options(deadline_s=10.0, first_retry_s=4.0, max_requests=1))
    greet(session)
    before = pull(session, flush=False)
    session.after_round = 3
    later = pull(session, flush=False)
    session.after_round = 0
    session.flush()
    (first,) = requests_sent(session)
    assert (len(first.ops), first.after_round) == (1, 0), "the server would hold what goes with the other"
    answer_with(session, first.id, [ROWS])
    assert before.done()
    (held,) = requests_sent(session)
    assert (len(held.ops), held.after_round) == (1, 3)
    now = pull(session)
    (second,) = requests_sent(session)
    answer_with(session, second.id, [ROWS])
    assert now.done()
    assert [request.id for request in requests_sent(session, now=100.0)] == [held.id], "it is repeated, not given up"
    assert not session.is_busy
    session.rounds = 3
    assert session.is_busy
    answer_with(session, held.id, [ROWS], now=100.0)
    np.testing.assert_array_equal(later.result(0), ROWS)
