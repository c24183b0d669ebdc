"""The simulated network: time passes by events, runs repeat, faults and deaths happen where they are told to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heterps.config import Faults
from heterps.wire.simulated import Outgoing, SimulatedNetwork


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
