"""Rooms: frames made in shared memory are sent without a copy, and are reused only when both sides have let go."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from heterps.wire import MemoryNetwork
from heterps.wire.arena import Arena
from heterps.wire.shared import Shared, SharedOptions

SMALL = SharedOptions(least_bytes=100, arena_bytes=16_384)


@pytest.fixture
def ends() -> Iterator[tuple[Shared, Shared]]:
    network = MemoryNetwork()
    a, b = (Shared(network.channel(name), SMALL) for name in "ab")
    a.send("b", [bytes(200)])  # offers
    assert b.receive(0) is not None
    assert a.receive(0) is None  # is accepted
    yield a, b
    a.close()
    b.close()


def received(channel: Shared) -> np.ndarray:
    got = channel.receive(0)
    assert got is not None
    return np.frombuffer(got[1][-1], np.uint8)


def test_a_frame_made_in_a_room_arrives_without_a_copy(
    ends: tuple[Shared, Shared], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = ends
    room = a.room("b", 4000)
    assert room is not None
    room[:] = 7
    monkeypatch.setattr(Arena, "write", None)  # whoever copies fails
    a.send("b", [b"header", room.view(np.float32).reshape(10, 100)])
    assert (received(b) == 7).all()
    assert a.counters.shared_bytes == 4000


def test_there_are_no_rooms_for_small_frames_nor_without_an_arena(ends: tuple[Shared, Shared]) -> None:
    a, b = ends
    assert a.room("b", 99) is None
    assert a.room("stranger", 4000) is None
    assert b.room("a", 4000) is None  # nothing was offered that way yet
    assert a.room("b", 16_385) is None


def test_a_room_that_is_sent_again_is_copied_and_both_arrive(ends: tuple[Shared, Shared]) -> None:
    a, b = ends
    room = a.room("b", 4000)
    assert room is not None
    room[:] = 1
    for _ in range(2):
        a.send("b", [room])
    first, second = received(b), received(b)
    assert (first == 1).all()
    assert (second == 1).all()
    room[:] = 2
    assert (first == 2).all(), "the room itself"
    assert (second == 1).all(), "its copy"


def test_a_room_is_not_reused_while_its_writer_may_send_it_again(ends: tuple[Shared, Shared]) -> None:
    a, b = ends
    room = a.room("b", 9000)
    assert room is not None
    a.send("b", [room])
    received(b)
    gc.collect()
    b.send("a", [b"answer, with the release"])
    a.receive(0)
    assert a.room("b", 9000) is None, "its writer still has it"
    del room
    assert a.room("b", 9000) is not None


def test_a_room_is_not_reused_while_its_reader_looks_at_it(ends: tuple[Shared, Shared]) -> None:
    a, b = ends
    room = a.room("b", 9000)
    assert room is not None
    room[:] = 5
    a.send("b", [room])
    kept = received(b)
    del room
    assert a.room("b", 9000) is None
    assert (kept == 5).all()
    del kept
    b.send("a", [b"answer, with the release"])
    a.receive(0)
    assert a.room("b", 9000) is not None


def test_rooms_that_are_never_sent_come_back(ends: tuple[Shared, Shared]) -> None:
    a, _ = ends
    for _ in range(50):
        assert a.room("b", 9000) is not None


def test_blocks_sent_between_making_and_sending_a_room_arrive_too(ends: tuple[Shared, Shared]) -> None:
    a, b = ends
    room = a.room("b", 1000)
    assert room is not None
    room[:] = 3
    a.send("b", [np.full(1000, 4, np.uint8)])
    a.send("b", [room])
    assert (received(b) == 4).all()
    assert (received(b) == 3).all()
    assert not b.counters.dropped


def test_a_room_outlives_its_channel() -> None:
    network = MemoryNetwork()
    a, b = (Shared(network.channel(name), SMALL) for name in "ab")
    a.send("b", [bytes(200)])
    b.receive(0)
    a.receive(0)
    room = a.room("b", 1000)
    assert room is not None
    a.close()
    b.close()
    room[:] = 1
    assert room.sum() == 1000
