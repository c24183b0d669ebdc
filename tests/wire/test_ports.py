"""Ports of emulated machines: when messages arrive, by the bytes that pass the ports of both ends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from heterps.wire import MemoryNetwork
from heterps.wire.ports import Limited, Port, PortTimes


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "ports")


def register(folder: str, **rates: float) -> dict[str, Port]:
    """Peers behind ports of these bytes a second; `a1` and `a2` are on machine `a`."""
    ports = {peer: Port(peer[0], rate, 2.0, folder) for peer, rate in rates.items()}
    for peer, port in ports.items():
        PortTimes(folder).register(peer, port)
    return ports


def test_a_message_takes_the_time_of_the_slower_port(folder: str) -> None:
    ports = register(folder, a1=100.0, b1=50.0)
    assert PortTimes(folder).arrival_s(ports["a1"], "b1", 100, 10.0) == 10.0 + 4.0  # 2 s at b, two real ones each
    assert PortTimes(folder).arrival_s(ports["b1"], "a1", 100, 10.0) == 10.0 + 4.0, "the other way is free"


def test_a_port_sends_one_message_after_the_other_for_all_units_of_its_machine(folder: str) -> None:
    ports = register(folder, a1=100.0, a2=100.0, b1=1000.0, c1=1000.0)
    times = PortTimes(folder)
    ways = [("a1", "b1"), ("a2", "c1"), ("a1", "b1")]
    arrivals = [times.arrival_s(ports[sender], peer, 100, 0.0) for sender, peer in ways]
    assert arrivals == [2.0, 4.0, 6.0]
    assert times.arrival_s(ports["a1"], "a2", 10**9, 0.0) == 0.0, "nothing leaves the machine"
    assert times.arrival_s(ports["a1"], "c1", 100, 100.0) == 102.0, "an idle port saves nothing up"


def test_senders_to_one_receiver_queue_at_its_port_and_do_not_hold_up_others(folder: str) -> None:
    ports = register(folder, a1=100.0, b1=100.0, c1=100.0, d1=100.0)
    times = PortTimes(folder)
    assert [times.arrival_s(ports[sender], "d1", 100, 0.0) for sender in ("a1", "b1", "c1")] == [2.0, 4.0, 6.0]
    assert times.arrival_s(ports["c1"], "a1", 100, 0.0) == 4.0, "c has sent to d by 2"


def test_to_a_peer_without_a_port_only_the_senders_counts(folder: str) -> None:
    ports = register(folder, a1=100.0)
    assert PortTimes(folder).arrival_s(ports["a1"], "coordinator", 100, 0.0) == 2.0


def test_a_limited_channel_delivers_all_messages_whole_in_order_and_not_before_they_are_due(folder: str) -> None:
    network = MemoryNetwork()
    sender = Limited(network.channel("a/client"), Port("a", 1000.0, 0.5, folder))
    receiver = Limited(network.channel("b"), Port("b", 1000.0, 0.5, folder))
    began = time.monotonic()
    for number in range(4):
        sender.send("b", [bytes([number]), b"x" * 49])
    assert time.monotonic() - began < 60, "sending does not wait for the port"
    for number in range(4):
        received = receiver.receive(60.0)
        assert received is not None
        assert received[0] == "a/client"
        assert [bytes(part) for part in received[1]] == [bytes([number]), b"x" * 49]
        assert time.monotonic() - began >= 0.025 * (number + 1)
    sender.send("nobody", [b"x"])
    receiver.close()
    sender.send("b", [b"x" * 10])
    while not sender.counters.dropped:
        time.sleep(0.001)
    sender.close()
    assert sender.counters.dropped["peer lost"] >= 1
