"""Channels of one process: order, deadlines that name who was waited for, counters."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from heterps.errors import PeerLost
from heterps.wire import BackPressure, MemoryNetwork, receive_within


def test_messages_arrive_in_order_with_their_sender() -> None:
    network = MemoryNetwork()
    a, b = network.channel("a"), network.channel("b")
    for number in range(3):
        a.send("b", [bytes([number]), np.arange(2.0)])
    got = [b.receive(0) for _ in range(4)]
    assert got[3] is None
    assert [(sender, bytes(parts[0])) for sender, parts in got[:3] if parts] == [("a", bytes([i])) for i in range(3)]
    assert (a.counters.messages_sent, a.counters.bytes_sent) == (3, 51)
    assert (b.counters.messages_received, b.counters.bytes_received) == (3, 51)


def test_a_message_wakes_a_receiver_on_another_thread() -> None:
    network = MemoryNetwork()
    a, b = network.channel("a"), network.channel("b")
    sender = threading.Thread(target=a.send, args=("b", [b"x"]))
    sender.start()
    got = b.receive(30)
    sender.join()
    assert got is not None
    assert got[0] == "a"


def test_a_peer_that_is_not_there_is_named() -> None:
    network = MemoryNetwork()
    a = network.channel("a")
    network.channel("b").close()
    with pytest.raises(PeerLost, match="a cannot send to b"):
        a.send("b", [b""])


def test_a_full_queue_is_back_pressure_that_names_the_peer() -> None:
    network = MemoryNetwork(queue_messages=1, send_deadline_s=0.01)
    a, b = network.channel("a"), network.channel("b")
    a.send("b", [b"1"])
    with pytest.raises(BackPressure, match="to send to b"):
        a.send("b", [b"2"])
    assert b.receive(0) is not None
    a.send("b", [b"3"])


def test_a_wait_that_ends_in_nothing_says_who_was_waited_for() -> None:
    with pytest.raises(PeerLost, match=r"worker-3 waited .* for the rows of server-1"):
        receive_within(MemoryNetwork().channel("worker-3"), 0.01, "the rows of server-1")


def test_a_name_is_taken_until_its_channel_is_closed() -> None:
    network = MemoryNetwork()
    first = network.channel("a")
    with pytest.raises(ValueError, match="named 'a' already"):
        network.channel("a")
    first.close()
    first.close()
    network.channel("a")
