"""Faults happen as often as asked, the same with the same seed, and corrupt messages never get through a check."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.config import Faults
from heterps.errors import ConfigError, PeerLost
from heterps.wire import Counters, MemoryNetwork
from heterps.wire.checked import Checked, digest
from heterps.wire.faults import FaultPlan, Faulty, _Route, flip_bit

PARTS = st.lists(st.binary(max_size=20), min_size=1, max_size=4)


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def through(faults: Faults, num: int, seed: int = 0) -> tuple[list[int], Counters]:
    """The numbers of 0 .. num-1 that arrive, in order, when one is sent each millisecond."""
    clock, network = Clock(), MemoryNetwork(queue_messages=0)
    sender, receiver = Faulty(network.channel("a"), faults, seed, clock=clock), network.channel("b")
    for number in range(num):
        clock.now_s += 0.001
        sender.send("b", [number.to_bytes(4, "little")])
    clock.now_s += 1000
    assert sender.receive(0) is None
    got = []
    while (received := receiver.receive(0)) is not None:
        got.append(int.from_bytes(received[1][0], "little"))
    return got, sender.counters


def test_without_faults_nothing_happens() -> None:
    got, counters = through(Faults(), 100)
    assert got == list(range(100))
    assert not counters.dropped


def test_messages_are_dropped_as_often_as_asked_and_counted() -> None:
    got, counters = through(Faults(drop=0.25), 4000)
    assert 850 < counters.dropped["drop"] < 1150
    assert len(got) == 4000 - counters.dropped["drop"]


def test_messages_are_doubled_as_often_as_asked() -> None:
    got, _ = through(Faults(double=0.25), 4000)
    assert set(got) == set(range(4000))
    assert 850 < len(got) - 4000 < 1150


def test_late_messages_stay_in_order() -> None:
    assert through(Faults(delay_s=0.1), 300)[0] == list(range(300))


def test_messages_overtake_those_that_are_held_back() -> None:
    got, _ = through(Faults(reorder=0.3), 300)
    assert sorted(got) == list(range(300))
    assert got != sorted(got)
    assert max(abs(place - number) for place, number in enumerate(got)) <= Faults().reorder_s * 1000


def test_a_cut_way_loses_everything_for_its_time() -> None:
    got, counters = through(Faults(cut=0.01, cut_s=0.05), 2000)
    gaps = np.diff(got)
    assert counters.dropped["cut"] == 2000 - len(got)
    assert set(gaps[gaps > 1] >= 50) == {True}


class Scripted(random.Random):
    """Numbers of which the first of each message, which decides whether the way is cut, is given."""

    def __init__(self, *cuts: bool) -> None:
        self._numbers = iter([number for cut in cuts for number in (0.0 if cut else 0.9, *[0.9] * 12)])

    def random(self) -> float:
        return next(self._numbers)


def test_a_way_is_cut_for_its_time_and_not_a_moment_longer_whatever_would_cut_it_meanwhile() -> None:
    plan = FaultPlan("a", Faults(cut=0.5, cut_s=10.0), 0, Counters())
    plan._routes["b"] = _Route(Scripted(False, True, True, False, False, True, False))
    arrive = [len(plan.arrivals("b", [b"x"], now_s)) for now_s in (0.0, 1.0, 6.0, 10.99, 11.0, 12.0, 21.99)]
    assert arrive == [1, 0, 0, 0, 1, 0, 0]


def test_a_message_is_not_passed_on_before_its_time() -> None:
    clock, network = Clock(), MemoryNetwork()
    sender, receiver = Faulty(network.channel("a"), Faults(delay_s=10.0), 3, clock=clock), network.channel("b")
    sender.send("b", [b"x"])
    assert receiver.receive(0) is None
    clock.now_s += 10
    assert sender.receive(0) is None
    assert receiver.receive(0) is not None


@given(st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_faults(seed: int) -> None:
    faults = Faults(drop=0.2, double=0.2, delay_s=0.01, reorder=0.2, corrupt=0.2, cut=0.05, cut_s=0.01)
    assert through(faults, 30, seed)[0] == through(faults, 30, seed)[0]


def test_messages_to_others_do_not_change_the_fate_of_a_message() -> None:
    faults = Faults(drop=0.5)
    alone, among = (FaultPlan("a", faults, 1, Counters()) for _ in range(2))
    pairs = []
    for number in range(50):
        among.arrivals("c", [b""], number)
        pairs.append((alone.arrivals("b", [b""], number), among.arrivals("b", [b""], number)))
    assert all(one == other for one, other in pairs)


def test_a_peer_that_is_gone_is_an_error_at_once_and_a_loss_later() -> None:
    clock, network = Clock(), MemoryNetwork()
    with pytest.raises(PeerLost):
        Faulty(network.channel("a"), Faults(), 0, clock=clock).send("b", [b"x"])
    late = Faulty(network.channel("late"), Faults(delay_s=5.0), 0, clock=clock)
    late.send("b", [b"x"])
    clock.now_s += 5
    assert late.receive(0) is None
    assert late.counters.dropped == {"peer lost": 1}


@given(PARTS, st.floats(0, 1, exclude_max=True))
def test_a_flipped_bit_is_one_bit_of_a_copy(parts: list[bytes], place: float) -> None:
    flipped = [bytes(memoryview(part)) for part in flip_bit(parts, place)]  # type: ignore[arg-type]
    before, after = (int.from_bytes(b"".join(both)) for both in (parts, flipped))
    assert (before ^ after).bit_count() == (1 if any(parts) else 0)
    assert list(map(len, flipped)) == list(map(len, parts))


@given(PARTS, st.floats(0, 1, exclude_max=True))
def test_every_corrupt_message_is_dropped_and_counted(parts: list[bytes], place: float) -> None:
    network = MemoryNetwork()
    raw, checked = network.channel("a"), Checked(network.channel("b"))
    raw.send("b", flip_bit([*parts, digest(parts)], place))
    assert checked.receive(0) is None
    assert checked.counters.dropped == {"corrupt": 1}


def test_a_checked_channel_over_a_faulty_one_delivers_only_what_was_sent() -> None:
    network = MemoryNetwork()
    sender = Checked(Faulty(network.channel("a"), Faults(corrupt=0.5), seed=0))
    receiver = Checked(network.channel("b"))
    for number in range(200):
        sender.send("b", [bytes([number]), np.full(5, number, np.float32)])
    got = []
    while (received := receiver.receive(0)) is not None:
        header, values = received[1]
        assert (np.frombuffer(values, np.float32) == header[0]).all()
        got.append(header[0])
    assert 50 < len(got) < 150
    assert len(got) + receiver.counters.dropped["corrupt"] == 200


@given(st.lists(st.binary(max_size=6), min_size=2, max_size=4))
def test_a_checksum_knows_where_parts_end(parts: list[bytes]) -> None:
    joined = [parts[0] + parts[1], *parts[2:]]
    assert digest(parts) != digest(joined)


@pytest.mark.parametrize("wrong", [{"drop": 1.1}, {"double": -0.1}, {"delay_s": -1}, {"cut_s": 0}, {"lose": 0.1}])
def test_faults_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        Faults(**wrong)


def test_a_late_message_that_is_lost_is_not_taken_for_the_one_that_is_being_sent() -> None:
    clock, network = Clock(), MemoryNetwork(queue_messages=1)
    sender, receiver = Faulty(network.channel("a"), Faults(delay_s=5.0), 0, clock=clock), network.channel("b")
    sender.send("b", [b"first"])
    clock.now_s += 5
    network.channel("c").send("b", [b"fills the queue"])
    sender.send("b", [b"second"], 0.0)  # late itself, it has not met the full queue
    assert sender.counters.dropped == {"peer lost": 1}
    assert receiver.receive(0) is not None
    clock.now_s += 5
    assert sender.receive(0) is None
    received = receiver.receive(0)
    assert received is not None
    assert bytes(received[1][0]) == b"second"


def test_a_message_of_which_one_copy_is_on_its_way_counts_as_sent() -> None:
    network = MemoryNetwork(queue_messages=1)
    sender, receiver = Faulty(network.channel("a"), Faults(double=1.0), 0), network.channel("b")
    sender.send("b", [b"x"], 0.0)
    assert sender.counters.dropped == {"peer lost": 1}
    assert receiver.receive(0) is not None
