"""Large frames through shared memory: no copy on arrival, blocks come back, and every trouble ends on the socket."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.config import Faults
from heterps.wire import BackPressure, Checked, Faulty, MemoryNetwork
from heterps.wire.arena import ArenaOffer
from heterps.wire.channel import MemoryChannel
from heterps.wire.shared import NOTES_BYTES, RELEASES, Notes, Release, Shared, SharedBlock, SharedOptions, _take_some

SMALL = SharedOptions(least_bytes=100, arena_bytes=16_384)
Ends = tuple[Shared, Shared]


@pytest.fixture
def ends() -> Iterator[Ends]:
    network = MemoryNetwork()
    a, b = (Shared(network.channel(name), SMALL) for name in "ab")
    yield a, b
    a.close()
    b.close()


def meet(a: Any, b: Any) -> None:
    """The first large message offers an arena, and its answer accepts it."""
    a.send(b.name, [b"offer", bytes(200)])
    assert b.receive(1) is not None
    assert a.receive(0) is None


def get(channel: Any) -> list[memoryview]:
    received = channel.receive(0)
    assert received is not None
    return list(received[1])


def test_large_frames_leave_the_socket_once_the_arena_is_accepted(ends: Ends) -> None:
    a, b = ends
    meet(a, b)
    before = a.counters.bytes_sent
    big, bigger = np.arange(1000, dtype=np.float32), np.arange(2000, dtype=np.float32)
    a.send("b", [b"header", big, b"", bigger, b"end"])
    header, one, empty, two, end = get(b)
    assert (bytes(header), bytes(empty), bytes(end)) == (b"header", b"", b"end")
    np.testing.assert_array_equal(np.frombuffer(one, np.float32), big)
    np.testing.assert_array_equal(np.frombuffer(two, np.float32), bigger)
    assert one.readonly
    assert a.counters.shared_bytes == 12_000
    assert a.counters.bytes_sent - before < 200


def test_small_frames_need_no_arena(ends: Ends) -> None:
    a, b = ends
    a.send("b", [b"header", bytes(99)])
    assert [view.nbytes for view in get(b)] == [6, 99]
    assert a.counters.shared_bytes == 0
    assert not a._outgoing["b"].arena


def test_a_frame_of_just_the_least_bytes_is_shared(ends: Ends) -> None:
    a, b = ends
    a.send("b", [bytes(100)])
    get(b)
    assert a.receive(0) is None, "the answer to the offer"
    assert a._outgoing["b"].is_accepted
    a.send("b", [bytes(100), bytes(99)])
    assert [view.nbytes for view in get(b)] == [100, 99]
    assert a.counters.shared_bytes == 100
    assert a.room("b", 100) is not None


@pytest.mark.parametrize(("more", "dropped"), [(0, {}), (1, {"malformed": 1})])
def test_notes_of_just_the_longest_bytes_are_read_and_longer_ones_are_not(more: int, dropped: dict[str, int]) -> None:
    raw, b = raw_and_shared()
    overhead = len(msgspec.msgpack.encode(Notes(token="x" * 60_000))) - 60_000
    notes = msgspec.msgpack.encode(Notes(token="x" * (NOTES_BYTES - overhead + more)))
    assert len(notes) == NOTES_BYTES + more
    raw.send("b", [notes, b"message"])
    assert (b.receive(0) is None) == bool(dropped)
    assert b.counters.dropped == dropped
    b.close()


def test_a_message_carries_no_more_releases_than_its_notes_have_room_for() -> None:
    releases = deque[Release](("0" * 32, number, 2**40) for number in range(RELEASES + 1))
    some = _take_some(releases)
    assert [number for _, number, _ in some] == list(range(RELEASES))
    assert [number for _, number, _ in releases] == [RELEASES]
    assert len(msgspec.msgpack.encode(Notes(released=some))) <= NOTES_BYTES


def test_blocks_are_taken_up_to_the_very_end_of_the_arena_and_of_the_message(ends: Ends) -> None:
    a, b = ends
    meet(a, b)
    a.send("b", [b"header", np.full(16_384, 7, np.uint8)])  # all of the arena, and the last part
    header, values = get(b)
    assert bytes(header) == b"header"
    assert bytes(values) == bytes([7]) * 16_384
    assert a.counters.shared_bytes == 16_384


def test_a_block_is_not_reused_while_any_view_of_it_lives(ends: Ends) -> None:
    a, b = ends
    meet(a, b)
    kept = []
    for number in range(40):
        a.send("b", [np.full(300, number, np.float32)])
        (view,) = get(b)
        if number % 3 == 0:
            kept.append((number, np.frombuffer(view, np.float32)[10:20]))
        del view
        b.receive(0)
        a.receive(0)
    assert a.counters.shared_bytes > 20 * 1200
    for number, array in kept:
        assert (array == number).all()


def test_a_full_arena_falls_back_to_the_socket_and_recovers(ends: Ends) -> None:
    a, b = ends
    meet(a, b)
    held = []
    for number in range(5):
        a.send("b", [np.full(5000, number, np.uint8)])
        held.append(get(b))
    assert [bytes(view)[:1] for (view,) in held] == [bytes([number]) for number in range(5)]
    assert a.counters.shared_full == 2
    held.clear()
    assert b.receive(0) is None
    assert a.receive(0) is None
    a.send("b", [bytes(16_000)])
    get(b)
    assert a.counters.shared_bytes == 3 * 5000 + 16_000


def test_releases_ride_on_answers(ends: Ends) -> None:
    a, b = ends
    meet(a, b)
    for _ in range(50):
        a.send("b", [bytes(9000)])
        get(b)
        b.send("a", [b"answer"])
        get(a)
    assert a.counters.shared_full == 0
    assert b.counters.messages_sent == 50 + 1, "the answers, and one to accept the arena"


def test_both_directions_have_an_arena_of_their_own(ends: Ends) -> None:
    a, b = ends
    meet(a, b)
    meet(b, a)
    a.send("b", [b"a" * 200])
    b.send("a", [b"b" * 200])
    assert bytes(get(a)[0]) == b"b" * 200
    assert bytes(get(b)[0]) == b"a" * 200
    assert a.counters.shared_bytes == b.counters.shared_bytes == 200


def test_a_refused_arena_is_not_offered_again(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(offer: ArenaOffer) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("heterps.wire.shared.open_arena", elsewhere)
    a, b = ends
    meet(a, b)
    for _ in range(3):
        a.send("b", [bytes(500)])
        assert get(b)[0].nbytes == 500
    assert a.counters.shared_bytes == 0
    assert a._outgoing["b"].arena is None


def test_a_system_without_such_files_uses_the_socket(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.memfd_create")
    a, b = ends
    a.send("b", [bytes(500)])
    assert get(b)[0].nbytes == 500


def test_a_peer_that_restarts_is_offered_a_new_arena() -> None:
    network = MemoryNetwork()
    a, old = Shared(network.channel("a"), SMALL), Shared(network.channel("b"), SMALL)
    meet(a, old)
    old.close()
    new = Shared(network.channel("b"), SMALL)
    a.send("b", [bytes(500)])
    assert new.receive(0) is None, "a block of an arena that it does not know"
    assert new.counters.dropped == {"unknown arena": 1}
    assert a.receive(0) is None
    meet(a, new)
    a.send("b", [bytes(500)])
    assert get(new)[0].nbytes == 500
    assert a.counters.shared_bytes == 1000
    a.close()
    new.close()


def test_an_arena_whose_blocks_never_come_back_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("heterps.wire.shared.time.monotonic", lambda: now[0])
    network = MemoryNetwork()
    a, b = Shared(network.channel("a"), SMALL), Shared(network.channel("b"), SMALL)
    meet(a, b)
    first = a._outgoing["b"].arena
    a.send("b", [bytes(16_000)])
    held = get(b)
    now[0] += 31
    a.send("b", [bytes(16_000)])
    assert get(b)[0].nbytes == 16_000
    meet(a, b)
    assert a._outgoing["b"].arena not in (None, first)
    a.send("b", [b"x" * 16_000])
    assert bytes(get(b)[0]) == b"x" * 16_000
    assert bytes(held[0]) == bytes(16_000), "who holds a block of the old arena keeps it"
    a.close()
    b.close()


def test_arenas_of_peers_that_are_gone_are_given_up_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("heterps.wire.shared.time.monotonic", lambda: now[0])
    network = MemoryNetwork()
    server = Shared(network.channel("server"), SMALL)
    for number in range(5):
        client = Shared(network.channel(f"client-{number}"), SMALL)
        meet(server, client)
        meet(client, server)
        now[0] += 31
        client.close()
    assert [name for name, outgoing in server._outgoing.items() if outgoing.arena] == ["client-4"]
    assert list(server._incoming) == ["client-4"]
    server.close()


def test_blocks_of_a_message_that_could_not_be_sent_are_free_again() -> None:
    network = MemoryNetwork(queue_messages=2, send_deadline_s=0.001)
    a, b = Shared(network.channel("a"), SMALL), Shared(network.channel("b"), SMALL)
    meet(a, b)
    a.send("b", [b"1"])
    a.send("b", [b"2"])
    for _ in range(5):
        with pytest.raises(BackPressure):
            a.send("b", [bytes(16_000)])
    assert (bytes(get(b)[0]), bytes(get(b)[0])) == (b"1", b"2")
    a.send("b", [bytes(16_000)])
    assert a.counters.shared_full == 0
    a.close()
    b.close()


@pytest.mark.parametrize("alone", [False, True])
def test_releases_that_could_not_be_sent_go_with_the_next_message(alone: bool) -> None:
    """Whether they rode on a message, or went alone because much memory waits for them."""
    network = MemoryNetwork(queue_messages=2, send_deadline_s=0.001)
    a, b = Shared(network.channel("a"), SMALL), Shared(network.channel("b"), SMALL)
    meet(a, b)
    a.send("b", [bytes(9000)])
    get(b)
    arena = a._outgoing["b"].arena
    assert arena is not None
    filler = network.channel("filler")
    for _ in range(2):
        filler.send("a", [msgspec.msgpack.encode(Notes(has_message=False))])
    if alone:
        assert b.receive(0) is None
    else:
        with pytest.raises(BackPressure):
            b.send("a", [b"answer"])
    assert len(b._outgoing["a"].releases) == 1
    assert a.receive(0) is None
    assert arena.oldest_s() is not None, "not released yet"
    b.send("a", [b"answer"])
    get(a)
    assert arena.oldest_s() is None
    a.close()
    b.close()
    filler.close()


def test_a_receiver_with_nothing_to_do_sends_even_a_small_release(ends: Ends) -> None:
    a, b = ends
    meet(a, b)
    a.send("b", [bytes(200)])
    get(b)
    arena = a._outgoing["b"].arena
    assert arena is not None
    assert b.receive(0) is None, "does not wait, so there may be more to do"
    assert a.receive(0) is None
    assert arena.oldest_s() is not None
    assert b.receive(0.001) is None
    assert a.receive(0) is None
    assert arena.oldest_s() is None


def test_a_release_of_another_arena_frees_nothing(ends: Ends) -> None:
    """A late one, of an arena that was given up: its numbers are used again in the next arena."""
    a, b = ends
    meet(a, b)
    a.send("b", [bytes(9000)])
    held = get(b)
    arena = a._outgoing["b"].arena
    assert arena is not None
    for token, is_released in (("0" * 32, False), (arena.offer.token, True)):
        notes = Notes(has_message=False, released=[(token, 1, 9000)])
        b._channel.send("a", [msgspec.msgpack.encode(notes)])
        assert a.receive(0) is None
        assert (arena.oldest_s() is None) == is_released
    del held


@given(st.integers(0, 2**32))
def test_under_faults_what_arrives_is_what_was_sent(seed: int) -> None:
    network = MemoryNetwork()
    faults = Faults(drop=0.2, double=0.2, reorder=0.2, corrupt=0.2)
    a = Shared(Checked(Faulty(network.channel("a"), faults, seed)), SMALL)
    b = Shared(Checked(network.channel("b")), SMALL)
    held = []
    for number in range(30):
        a.send("b", [bytes([number]), np.full(400, number, np.uint8)])
        while (received := b.receive(0)) is not None:
            held.append(received[1])
        a.receive(0)
        del held[:-2]
        for header, values in held:
            assert bytes(values) == bytes(header) * 400
    del held, received
    a.close()
    b.close()


OFFER = ArenaOffer(1, 1, "0" * 32, 4096)
WRONG = [
    Notes(token="0" * 32, blocks=[SharedBlock(0, 1, 0, 10)]),
    Notes(blocks=[SharedBlock(0, 1, 0, 10)]),
    Notes(released=[("0" * 32, 1, 5), ("", 0, 0)]),
    Notes(accepted="1" * 32),
    Notes(refused=""),
    Notes(offer=OFFER),
]


def raw_and_shared() -> tuple[MemoryChannel, Shared]:
    network = MemoryNetwork()
    return network.channel("raw"), Shared(network.channel("b"), SMALL)


@given(st.one_of(st.binary(max_size=80), st.sampled_from(WRONG).map(msgspec.msgpack.encode)))
def test_notes_that_make_no_sense_do_no_harm(notes: bytes) -> None:
    raw, b = raw_and_shared()
    raw.send("b", [notes])
    b.receive(0)
    raw.send("b", [msgspec.msgpack.encode(Notes()), b"still there"])
    received = b.receive(0)
    assert received is not None
    assert bytes(received[1][0]) == b"still there"
    b.close()


@pytest.mark.parametrize(
    "block", [SharedBlock(0, 1, 0, 16_385), SharedBlock(0, 1, 16_384, 1), SharedBlock(2, 1, 0, 10)]
)
def test_blocks_beyond_the_arena_or_the_message_are_refused(ends: Ends, block: SharedBlock) -> None:
    a, b = ends
    meet(a, b)
    arena = a._outgoing["b"].arena
    assert arena is not None
    notes = Notes(token=arena.offer.token, blocks=[block])
    a._channel.send("b", [msgspec.msgpack.encode(notes), b"rest"])
    assert b.receive(0) is None
    assert b.counters.dropped == {"malformed": 1}


def test_two_threads_may_take_releases_at_once() -> None:
    class Shrinking(deque[Release]):
        """Another thread takes what is left in the middle of the first one's taking."""

        def popleft(self) -> Release:
            first = super().popleft()
            taken.extend(self)
            self.clear()
            return first

    taken: list[Release] = []
    releases = Shrinking([("token", number, 10) for number in range(5)])
    assert sorted([*_take_some(releases), *taken]) == [("token", number, 10) for number in range(5)]


def test_two_threads_may_send_large_frames_to_one_peer(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = ends
    meet(a, b)
    below = a._channel
    is_sending, overtaken, send = threading.Event(), threading.Event(), below.send

    def slow(peer: str, parts: Any, deadline_s: float | None = None) -> None:
        if not is_sending.is_set():
            is_sending.set()
            overtaken.wait(0.2)  # long enough for another thread to send in between, if it may
        send(peer, parts, deadline_s)

    monkeypatch.setattr(below, "send", slow)
    thread = threading.Thread(target=a.send, args=("b", [b"first", bytes(200)]))
    thread.start()
    assert is_sending.wait(10)
    a.send("b", [b"second", bytes(200)])
    overtaken.set()
    thread.join(10)
    assert [bytes(get(b)[0]) for _ in range(2)] == [b"first", b"second"]


def test_a_block_of_a_late_message_is_not_reused_when_an_earlier_message_is_lost() -> None:
    clock, network = Clock(), MemoryNetwork(queue_messages=4)
    faulty = Faulty(network.channel("a"), Faults(delay_s=5.0), 0, clock=clock)
    a, b = Shared(faulty, SMALL), Shared(network.channel("b"), SMALL)
    a.send("b", [b"offer", bytes(200)])
    clock.now_s += 5
    assert a.receive(0) is None
    assert b.receive(0) is not None
    assert a.receive(0) is None
    a.send("b", [b"lost"])
    clock.now_s += 5
    filler = network.channel("c")
    for _ in range(4):
        filler.send("b", [b""])
    with contextlib.suppress(BackPressure):
        a.send("b", [b"1", np.full(400, 1, np.uint8)], 0.0)
    for _ in range(4):
        assert b.receive(0) is None
    a.send("b", [b"2", np.full(400, 2, np.uint8)], 0.0)
    clock.now_s += 5
    assert a.receive(0) is None
    while (received := b.receive(0)) is not None:
        header, values = received[1]
        assert bytes(values) == bytes([int(bytes(header))]) * 400
    a.close()
    b.close()


def test_peers_that_come_and_go_are_forgotten_and_those_with_an_arena_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps.wire.shared.MANY_PEERS", 4)
    network = MemoryNetwork()
    server, worker = Shared(network.channel("server"), SMALL), Shared(network.channel("worker"), SMALL)
    meet(worker, server)
    for number in range(20):
        guest = Shared(network.channel(f"guest-{number}"), SMALL)
        guest.send("server", [b"question"])
        assert server.receive(0) is not None
        guest.close()
    assert len(server._outgoing) <= 4
    assert "worker" in server._outgoing
    worker.send("server", [bytes(1000)])
    assert bytes(get(server)[0]) == bytes(1000)
    server.close()
    worker.close()


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s
