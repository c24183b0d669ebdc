"""Whoever waits receives; nobody waits for a message that another thread has; and nobody is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout

import numpy as np
import pytest
from servers import DIM, make_roster, make_tables, threaded_servers

from heterps.errors import HeterpsError, PeerLost
from heterps.ps.client.remote import RemoteClient
from heterps.ps.client.session import Options
from heterps.ps.keys.dedup import make_lookup
from heterps.wire import MemoryNetwork

LOOKUP = make_lookup(np.arange(20))
GRADS = np.ones((20, DIM), np.float32)


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    network = MemoryNetwork()
    with threaded_servers(make_roster(1), make_tables(), network):
        yield network


def make_client(network: MemoryNetwork, receivers: list[str], options: Options = Options()) -> RemoteClient:
    """A client that notes which thread received each message."""
    channel = network.channel("worker")
    receive = channel.receive

    def noted(timeout_s: float):
        received = receive(timeout_s)
        if received is not None:
            receivers.append(threading.current_thread().name)
        return received

    channel.receive = noted
    return RemoteClient("worker", channel, make_roster(1), make_tables(), options=options)


def test_whoever_waits_receives_its_answer_itself(network, monkeypatch):
    for wait in ("LONGEST_WAIT_S", "GRACE_S"):  # the watcher sleeps
        monkeypatch.setattr(f"heterps.ps.client.pump.{wait}", 60.0)
    receivers: list[str] = []
    client = make_client(network, receivers, Options(first_retry_s=60))
    for _ in range(20):
        client.push("rows", LOOKUP, GRADS).result()
        client.pull("rows", LOOKUP).result()
    client.close()
    assert len(receivers) == 1 + 2 * 20
    assert set(receivers) == {threading.current_thread().name}


def test_an_answer_that_nobody_waits_for_is_received_by_the_watcher(network):
    receivers: list[str] = []
    client = make_client(network, receivers)
    done: Future[None] = Future()
    client.pull("rows", LOOKUP).add_done_callback(lambda _: done.set_result(None))
    client.flush()
    done.result(timeout=30)
    assert set(receivers) == {"heterps-client-worker"}
    client.close()


def test_what_the_channel_does_not_take_is_sent_again_soon_and_not_after_the_first_retry(network):
    client = make_client(network, [], Options(first_retry_s=1000.0, longest_retry_s=1000.0, deadline_s=20.0))
    channel = client._pump._channel
    send, refused = channel.send, []

    def full(peer: str, parts: list, timeout_s: float) -> None:
        if len(refused) < 3:
            refused.append(peer)
            raise PeerLost(f"the queue to {peer} is full")
        send(peer, parts, timeout_s)

    channel.send = full
    assert client.pull("rows", LOOKUP).result(timeout=30).shape == (20, DIM)
    assert len(refused) == 3
    client.close()


def test_a_call_that_waits_for_room_does_not_wait_for_servers_that_are_lost(network, monkeypatch):
    client = make_client(network, [], Options(max_waiting=0))
    found: list[bool] = []
    monkeypatch.setattr(client._pump._changed, "wait_for", lambda is_so, _: found.append(is_so()) or found[-1])
    with client._pump.lock:
        client._session.fail(PeerLost("the servers are gone"))
    with pytest.raises(PeerLost, match="the servers are gone"):
        client.pull("rows", LOOKUP)
    assert found == [True]
    monkeypatch.undo()
    client.close()


def test_many_threads_wait_at_once_and_all_get_their_own_answers(network):
    client = make_client(network, [])
    lookups = [make_lookup(np.arange(number, number + 5)) for number in range(40)]
    expected = [client.pull("rows", lookup).result().copy() for lookup in lookups]

    def pull_all(_: int) -> None:
        for lookup, rows in zip(lookups, expected, strict=True):
            np.testing.assert_array_equal(client.pull("rows", lookup).result(timeout=60), rows)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(pull_all, range(6)))
    client.close()


def test_a_callback_may_wait_for_another_call(network):
    client = make_client(network, [])
    got: Future[np.ndarray] = Future()
    first = client.pull("rows", LOOKUP)
    first.add_done_callback(lambda _: got.set_result(client.pull("rows", LOOKUP).result(timeout=30)))
    first.result()
    assert got.result(timeout=30).shape == (20, DIM)
    client.close()


def silent_client(options: Options = Options()) -> tuple[MemoryNetwork, RemoteClient]:
    """Of a server that is there and never answers."""
    network = MemoryNetwork()
    network.channel("server-0")
    return network, RemoteClient("worker", network.channel("worker"), make_roster(1), make_tables(), options=options)


def test_a_wait_with_a_timeout_ends_and_the_call_lives_on():
    _, client = silent_client()
    pull = client.pull("rows", LOOKUP)
    for wait in (pull.result, pull.exception):
        with pytest.raises(FutureTimeout):
            wait(timeout=0.01)
    assert not pull.done()
    client.close()
    assert isinstance(pull.exception(), HeterpsError)


def test_closing_ends_the_waits_of_other_threads():
    _, client = silent_client()
    pulls = [client.pull("rows", LOOKUP) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(pull.exception, 60) for pull in pulls]
        client.close()
        client.close()
        assert [str(ended.result(timeout=60)) for ended in waits] == ["the client was closed"] * 2


def test_calls_beyond_the_queue_wait_for_the_watcher_to_make_room(network):
    client = make_client(network, [], Options(max_waiting=4, max_requests=1))
    pushes = [client.push("rows", LOOKUP, GRADS) for _ in range(60)]
    for push in pushes:
        push.result(timeout=60)
    client.close()


def test_calls_of_many_threads_beyond_the_queue_keep_the_order_of_their_numbers(network):
    client = make_client(network, [], Options(max_waiting=2, max_requests=1, deadline_s=30.0))

    def push_and_pull(_: int) -> None:
        calls = [call for _ in range(60) for call in (client.push("rows", LOOKUP, GRADS), client.pull("rows", LOOKUP))]
        for call in calls:
            call.result(timeout=60)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(push_and_pull, range(6)))
    assert client.num_pushes("rows") == 6 * 60
    client.close()
