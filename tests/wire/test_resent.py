"""Messages that nobody asks for again arrive once and in order, whatever happens to the connections under them."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.errors import PeerLost
from heterps.wire.channel import Received
from heterps.wire.counters import Counters
from heterps.wire.message import Frame, contiguous
from heterps.wire.resent import AGAIN_S, TEND_S, Resent


class Wire:
    """A connection between channels `a` and `b`, which breaks and loses what is in it, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_up = True
        self.under_way: dict[str, deque[list[memoryview]]] = {"a": deque(), "b": deque()}  # by receiver
        self.ends = {name: End(self, name) for name in "ab"}

    def break_it(self) -> None:
        self.is_up = False
        for queue in self.under_way.values():
            queue.clear()

    def mend(self) -> None:
        if not self.is_up:
            self.is_up = True
            for end in self.ends.values():
                end.counters.connects += 1


class End:
    def __init__(self, wire: Wire, name: str) -> None:
        self.name, self.counters, self._wire = name, Counters(), wire

    def send(self, peer: str, parts: list[Frame], deadline_s: float | None = None) -> None:
        assert deadline_s == 0.0, "nobody waits for a connection"
        if not self._wire.is_up:
            raise PeerLost(f"{self.name} cannot reach {peer}")
        self._wire.under_way[peer].append([memoryview(bytes(contiguous(part))) for part in parts])

    def receive(self, timeout_s: float) -> Received | None:
        queue = self._wire.under_way[self.name]
        if queue:
            return "ab".replace(self.name, ""), queue.popleft()
        self._wire.now += timeout_s
        return None

    def close(self) -> None:
        pass


def ends(wire: Wire, deadline_s: float | None = None) -> tuple[Resent, Resent]:
    a, b = (Resent(wire.ends[name], deadline_s, lambda: wire.now) for name in "ab")
    return a, b


def all_of(channel: Resent) -> list[bytes]:
    """Everything that is there for a channel now."""
    got = []
    while (received := channel.receive(0.0)) is not None:
        got.append(bytes(received[1][0]))
    return got


def settle(wire: Wire, *channels: Resent) -> list[list[bytes]]:
    """Let time pass until nothing can come any more; what came to each."""
    got: list[list[bytes]] = [[] for _ in channels]
    for _ in range(10):
        wire.now += TEND_S
        for mine, channel in zip(got, channels, strict=True):
            mine += all_of(channel)
    return got


ACTIONS = ["a sends", "b sends", "a receives", "b receives", "breaks", "is mended", "time passes"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(ACTIONS), max_size=60))
def test_each_message_arrives_once_and_in_order(actions: list[str]) -> None:
    wire = Wire()
    channels = dict(zip("ab", ends(wire), strict=True))
    sent: dict[str, list[bytes]] = {"a": [], "b": []}  # by receiver
    got: dict[str, list[bytes]] = {"a": [], "b": []}
    for number, action in enumerate(actions):
        match action.split():
            case [sender, "sends"]:
                receiver = "ab".replace(sender, "")
                sent[receiver].append(b"%d" % number)
                channels[sender].send(receiver, [b"%d" % number])
            case [receiver, "receives"]:
                if (received := channels[receiver].receive(0.0)) is not None:
                    got[receiver].append(bytes(received[1][0]))
            case ["breaks"]:
                wire.break_it()
            case ["is", "mended"]:
                wire.mend()
            case _:
                wire.now += 0.07
    wire.mend()
    rest = settle(wire, channels["a"], channels["b"])
    assert {name: got[name] + more for name, more in zip("ab", rest, strict=True)} == sent
    assert not any(peer.kept for channel in channels.values() for peer in channel._peers.values()), (
        "all is acknowledged"
    )


def test_a_message_that_is_lost_without_a_new_connection_is_sent_again_after_a_while() -> None:
    wire = Wire()
    a, b = ends(wire)
    a.send("b", [b"one"])
    wire.under_way["b"].clear()
    a.send("b", [b"two"])
    assert all_of(b) == []
    wire.now += AGAIN_S
    assert all_of(a) == []
    assert all_of(b) == [b"one", b"two"]


def test_a_process_that_was_started_anew_gets_nothing_that_was_meant_for_the_one_before() -> None:
    wire = Wire()
    a, b = ends(wire)
    b.send("a", [b"ready"])
    assert all_of(a) == [b"ready"]
    wire.break_it()
    a.send("b", [b"for the first life"])
    wire.mend()
    anew = ends(wire)[1]
    anew.send("a", [b"ready again"])
    assert settle(wire, a, anew) == [[b"ready again"], []]
    a.send("b", [b"for the second"])
    assert settle(wire, anew) == [[b"for the second"]]


def test_neighbours_that_begin_anew_forget_what_was_under_way() -> None:
    wire = Wire()
    a, b = ends(wire)
    a.send("b", [b"one"])
    assert all_of(b) == [b"one"]
    wire.break_it()
    a.send("b", [b"void"])
    a.begin_anew()
    b.begin_anew()
    wire.mend()
    a.send("b", [b"of the next round"])
    assert settle(wire, a, b) == [[], [b"of the next round"]]
    a.begin_anew(spared=["b"])
    b.send("a", [b"an answer"])
    assert settle(wire, a) == [[b"an answer"]]


def test_a_peer_that_cannot_be_reached_for_too_long_is_named() -> None:
    wire = Wire()
    a, _ = ends(wire, deadline_s=5.0)
    wire.break_it()
    a.send("b", [b"one"])
    wire.now += 4.0
    all_of(a)
    wire.now += 2.0
    with pytest.raises(PeerLost, match=r"a could not reach b for 6 s: is it alive, and is the network"):
        a.receive(0.0)


def test_a_peer_that_has_died_is_forgotten_and_not_waited_for() -> None:
    wire = Wire()
    a, b = ends(wire, deadline_s=5.0)
    a.send("b", [b"one"])
    assert all_of(b) == [b"one"]
    wire.break_it()
    a.send("b", [b"void"])
    wire.now += 4.0
    a.forget("b")
    wire.now += 100.0
    assert all_of(a) == []
    wire.mend()
    another = ends(wire)[1]
    a.send("b", [b"for its next incarnation"])
    assert settle(wire, a, another) == [[], [b"for its next incarnation"]]


def test_a_peer_that_is_busy_is_not_out_of_reach() -> None:
    wire = Wire()
    a, b = ends(wire, deadline_s=5.0)
    a.send("b", [b"one"])
    wire.now += 100.0
    assert all_of(a) == []
    assert all_of(b) == [b"one"], "though it was sent twice meanwhile"


def test_what_is_no_message_is_counted_and_dropped() -> None:
    wire = Wire()
    a, b = ends(wire)
    for parts in ([], [b"\xff"], [b"\x91\x01"]):
        wire.ends["a"].send("b", parts, 0.0)
    assert all_of(b) == []
    assert b.counters.dropped["malformed"] == 3
    a.send("b", [b"one"])
    assert all_of(b) == [b"one"]
