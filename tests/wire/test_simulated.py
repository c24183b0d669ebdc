"""The simulated network: time passes by events, runs repeat, faults and deaths happen where they are told to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.config import Faults
from heterps.wire.simulated import Outgoing, SimulatedNetwork, Way


def echo(now_s: float, sender: str, parts: list[memoryview]) -> Outgoing:
    return [(sender, parts)]


def test_an_attached_state_machine_answers_within_simulated_time() -> None:
    network = SimulatedNetwork(latency_s=0.5)
    network.attach("server", echo)
    client = network.channel("client")
    client.send("server", [b"x"])
    assert client.receive(0.9) is None
    assert network.now_s == 0.9
    received = client.receive(10)
    assert received is not None
    assert (received[0], bytes(received[1][0]), network.now_s) == ("server", b"x", 1.0)


def test_a_wait_for_nothing_passes_its_time_and_no_more() -> None:
    network = SimulatedNetwork()
    assert network.channel("a").receive(3600) is None
    assert network.now_s == 3600


@given(st.integers(0, 2**32))
def test_a_seed_repeats_a_run_exactly(seed: int) -> None:
    faults = Faults(drop=0.2, double=0.2, delay_s=0.05, reorder=0.3, corrupt=0.1, cut=0.02, cut_s=0.1)

    def history() -> list[tuple[float, bytes]]:
        network = SimulatedNetwork(seed, faults=faults)
        network.attach("server", echo)
        client = network.channel("client")
        seen = []
        for number in range(30):
            client.send("server", [bytes([number])])
            while (received := client.receive(0.01)) is not None:
                seen.append((network.now_s, bytes(received[1][0])))
        return seen

    assert history() == history()


def test_retries_get_through_faults() -> None:
    network = SimulatedNetwork(7, faults=Faults(drop=0.4, double=0.2, delay_s=0.02, reorder=0.2))
    network.attach("server", echo)
    client = network.channel("client")
    for number in range(20):
        word = bytes([number])
        answers: set[bytes] = set()
        while word not in answers:
            client.send("server", [word])
            while (received := client.receive(0.1)) is not None:
                answers.add(bytes(received[1][0]))
    assert network.counters.dropped["drop"] > 0


def test_messages_to_the_dead_are_dropped_and_a_successor_is_found() -> None:
    network = SimulatedNetwork()
    network.attach("server", echo)
    client = network.channel("client")
    network.call_at(1.0, lambda: network.detach("server"))
    network.call_at(2.0, lambda: network.attach("server", echo))
    network.run(1.5)
    client.send("server", [b"lost"])
    assert client.receive(1.0) is None
    assert network.counters.dropped == {"unknown peer": 1}
    client.send("server", [b"found"])
    assert client.receive(1.0) is not None


def test_a_partition_separates_both_ways_until_its_end() -> None:
    network = SimulatedNetwork()
    network.attach("server", echo)
    inside, outside = network.channel("inside"), network.channel("outside")
    network.part({"server", "inside"}, until_s=5.0)
    for client in (inside, outside):
        client.send("server", [b"x"])
    assert inside.receive(1) is not None
    assert outside.receive(1) is None
    assert network.counters.dropped == {"apart": 1}
    network.run(5.0)
    outside.send("server", [b"x"])
    assert outside.receive(1) is not None


def test_messages_are_copies_as_between_processes() -> None:
    network = SimulatedNetwork()
    a, b = network.channel("a"), network.channel("b")
    buffer = bytearray(b"before")
    a.send("b", [memoryview(buffer)])
    buffer[:] = b"after!"
    received = b.receive(1)
    assert received is not None
    assert bytes(received[1][0]) == b"before"


def test_what_is_due_just_when_time_is_up_still_happens() -> None:
    network, happened = SimulatedNetwork(), []
    network.call_at(2.0, lambda: happened.append(network.now_s))
    assert not network.step(1.999)
    assert network.step(2.0)
    assert happened == [2.0]
    assert network.next_time_s is None


def test_what_should_have_happened_before_happens_now_and_time_does_not_go_back() -> None:
    network, happened = SimulatedNetwork(), []
    network.run(5.0)
    network.call_at(6.0, lambda: happened.append(("later", network.now_s)))
    network.call_at(1.0, lambda: happened.append(("late", network.now_s)))
    network.run(10.0)
    assert happened == [("late", 5.0), ("later", 6.0)]
    assert network.now_s == 10.0


class Heard:
    """A peer that notes when it heard what."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.heard: list[tuple[float, bytes]] = []
        network.attach(name, self._take)

    def _take(self, now_s: float, sender: str, parts: list[memoryview]) -> Outgoing:
        self.heard.append((round(now_s, 6), bytes(parts[0])))
        return ()


@pytest.mark.parametrize(("way", "heard"), [("out", (0, 1)), ("in", (1, 0)), ("both", (0, 0))])
def test_a_partition_of_one_way_lets_the_other_through(way: Way, heard: tuple[int, int]) -> None:
    network = SimulatedNetwork()
    inside, outside = Heard(network, "inside"), Heard(network, "outside")
    network.part(["inside"], 1.0, way)
    network.send("inside", "outside", [b"out"])
    network.send("outside", "inside", [b"in"])
    network.run(5.0)
    assert (len(outside.heard), len(inside.heard)) == heard


def test_what_spared_peers_send_waits_for_the_end_of_a_partition_in_its_order() -> None:
    network = SimulatedNetwork(latency_s=0.5, faults=Faults(drop=1.0), spared=lambda name: name == "a")
    heard = Heard(network, "b")
    network.part(["b"], 2.0)
    network.send("a", "b", [b"first"])
    network.send("c", "b", [b"lost"])
    network.call_at(2.0, lambda: network.send("a", "b", [b"second"]))
    network.run(5.0)
    assert heard.heard == [(2.5, b"first"), (2.5, b"second")]


def test_a_frozen_peer_hears_and_is_heard_when_it_goes_on() -> None:
    network = SimulatedNetwork(latency_s=0.5)
    frozen, other = Heard(network, "frozen"), Heard(network, "other")
    network.send("other", "frozen", [b"on its way"])
    network.freeze(["frozen"], 3.0)
    network.send("frozen", "other", [b"x"])
    network.run(5.0)
    assert frozen.heard == [(3.0, b"on its way")]
    assert other.heard == [(3.5, b"x")]


def test_after_a_jump_of_the_clock_what_was_due_comes_late() -> None:
    network = SimulatedNetwork(latency_s=1.0)
    heard = Heard(network, "a")
    network.send("b", "a", [b"x"])
    network.jump(10.0)
    network.send("b", "a", [b"y"])
    network.run(20.0)
    assert heard.heard == [(10.0, b"x"), (11.0, b"y")]


def test_a_calm_ends_all_that_lasts() -> None:
    network = SimulatedNetwork(latency_s=0.0, faults=Faults(drop=1.0))
    heard = Heard(network, "a")
    network.part(["a"], 9.0)
    network.freeze(["b"], 9.0)
    network.send("c", "a", [b"lost"])
    network.calm()
    network.send("b", "a", [b"x"])
    network.run(1.0)
    assert heard.heard == [(0.0, b"x")]


def test_a_peer_that_was_replaced_does_not_take_its_successor_away() -> None:
    network = SimulatedNetwork()
    before = Heard(network, "a")
    after = Heard(network, "a")
    network.detach("a", before._take)
    network.send("b", "a", [b"x"])
    network.run(1.0)
    assert len(after.heard) == 1
