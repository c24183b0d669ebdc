"""Mailbox: letters between a worker, its neighbours and the coordinator, over one channel in memory or two sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from heterps.errors import HeterpsError, PeerLost
from heterps.training.protocol.messages import AskState, Backward, Forward, Go, Stop
from heterps.training.worker.mailbox import Mailbox
from heterps.wire import ClientChannel, MemoryNetwork, ServerChannel, WireError

SOON_S = 20.0
Pair = tuple[Mailbox, Mailbox]


@pytest.fixture(params=["memory", "sockets"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """A worker of stage 1, and the one of stage 2 that it reaches."""
    with ExitStack() as opened:
        make = _in_memory() if request.param == "memory" else _by_sockets(tmp_path)
        posts = make("worker-1.0"), make("worker-2.0")
        for mailbox in posts:
            opened.callback(mailbox.close)
        posts[0].connect({"worker-2.0": f"ipc://{tmp_path}/worker-2.0"})
        yield posts


def _in_memory() -> Callable[[str], Mailbox]:
    network = MemoryNetwork()
    return lambda name: Mailbox(network.channel(name))


def _by_sockets(folder: Path) -> Callable[[str], Mailbox]:
    def make(name: str) -> Mailbox:
        reaching = ClientChannel(name, {})
        return Mailbox(ServerChannel(name, f"ipc://{folder}/{name}"), reaching, reaching.connect)

    return make


def test_values_go_on_and_gradients_come_back_the_same_way(pair: Pair):
    first, second = pair
    values = torch.arange(5.0)
    first.send("worker-2.0", Forward(1, 2, 3, 4, 5), {"x": values})
    envelope = second.receive(SOON_S)
    assert envelope is not None
    assert (envelope.sender, envelope.message) == ("worker-1.0", Forward(1, 2, 3, 4, 5))
    assert envelope.values is not None
    assert torch.equal(envelope.values["x"], values)
    second.send("worker-1.0", Backward(1, 2, 3, None))
    answer = first.receive(SOON_S)
    assert answer is not None
    assert (answer.sender, answer.message) == ("worker-2.0", Backward(1, 2, 3, None))


def test_letters_of_one_sender_keep_their_order(pair: Pair):
    first, second = pair
    for number in range(50):
        first.send("worker-2.0", Go(0, number, 0))
    came = [second.receive(SOON_S) for _ in range(50)]
    assert [envelope.message.iteration for envelope in came if envelope is not None] == list(range(50))


@pytest.mark.parametrize("timeout_s", [0.0, 0.01])
def test_where_nothing_comes_there_is_none(pair: Pair, timeout_s: float):
    assert pair[0].receive(timeout_s) is None


def test_to_be_connected_again_to_the_same_address_changes_nothing(pair: Pair, tmp_path: Path):
    first, second = pair
    first.connect({"worker-2.0": f"ipc://{tmp_path}/worker-2.0"})
    first.send("worker-2.0", Stop())
    envelope = second.receive(SOON_S)
    assert envelope is not None
    assert envelope.message == Stop()
    assert second.receive(0.0) is None


def test_what_is_no_letter_is_an_error_and_the_next_one_comes(tmp_path: Path):
    network = MemoryNetwork()
    mailbox, other = Mailbox(network.channel("worker-1.0")), network.channel("stranger")
    other.send("worker-1.0", [b"nonsense"])
    with pytest.raises(WireError):
        mailbox.receive(SOON_S)
    sender = Mailbox(network.channel("coordinator"))
    sender.send("worker-1.0", AskState())
    envelope = mailbox.receive(SOON_S)
    assert envelope is not None
    assert envelope.message == AskState()
    for each in (mailbox, sender, other):
        each.close()


def test_a_peer_that_nobody_knows_is_lost():
    mailbox = Mailbox(MemoryNetwork().channel("worker-1.0"))
    with pytest.raises(PeerLost, match=r"worker-9\.9"):
        mailbox.send("worker-9.9", Stop())
    mailbox.close()


class Broken:
    """A channel that fails when it is listened to."""

    name = "worker-1.0"

    def __init__(self) -> None:
        self.is_closed = False

    def receive(self, timeout_s: float):
        raise HeterpsError(f"the socket is gone ({timeout_s > 0})")

    def send(self, peer, parts) -> None:
        raise AssertionError

    def close(self) -> None:
        self.is_closed = True


def test_what_a_channel_meets_comes_out_of_receive_whichever_thread_met_it(tmp_path: Path):
    broken, reaching = Broken(), ClientChannel("worker-1.0", {})
    mailbox = Mailbox(broken, reaching, reaching.connect)
    with pytest.raises(HeterpsError, match="the socket is gone"):
        mailbox.receive(SOON_S)
    mailbox.close()
    assert broken.is_closed
