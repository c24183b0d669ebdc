"""Pushes: every table gets its gradients or its part of a round, and the coordinator hears when servers have them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from flow_play import NO_USAGE, make_layout

from heterps.config import SGD
from heterps.errors import PeerLost
from heterps.lookups import RowGradients
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.messages import Iteration
from heterps.ps.protocol.specs import DenseSpec, TableSpec, TableSpecs
from heterps.training.protocol.messages import ALL_LANES, Pushed
from heterps.training.protocol.stage_tables import StageTables
from heterps.training.worker.dense_parts import ServedDense
from heterps.training.worker.pushes import Pushes, RoundPlace, send_gradients
from heterps.training.worker.turns import Key

TABLES = StageTables(
    TableSpecs(
        (TableSpec("users", 2, SGD(), 0, 0.1), TableSpec("items", 3, SGD(), 0, 0.1)),
        (DenseSpec("dense.0", 4, SGD()), DenseSpec("dense.0-1", 5, SGD())),
    ),
    2,
    {"dense.0": ("w",), "dense.0-1": ("tied",)},
    {"users": (0,), "items": (0,), "dense.0": (0,), "dense.0-1": (0, 1)},
)


class SlowClient:
    """Keeps what is pushed, and acknowledges it when told to."""

    num_shards = 1
    samples = 0

    def __init__(self) -> None:
        self.pushed: list[tuple[str, int, Any]] = []  # table, keys, round
        self.futures: list[Future[None]] = []
        self.num_flushed = 0

    def push(self, table, lookup, grads, round=None) -> Future[None]:
        assert len(grads) == len(lookup.inverse)
        return self._keep(table, len(lookup.unique), round)

    def push_dense(self, table, grads, round=None) -> Future[None]:
        return self._keep(table, len(grads), round)

    def flush(self) -> None:
        self.num_flushed = len(self.pushed)

    def _keep(self, table: str, size: int, round: Any) -> Future[None]:
        self.pushed.append((table, size, round))
        self.futures.append(Future())
        return self.futures[-1]


@pytest.fixture
def client() -> SlowClient:
    return SlowClient()


@pytest.fixture
def told() -> list[Pushed]:
    return []


@pytest.fixture
def pushes(told) -> Pushes:
    return Pushes(lambda message, _: told.append(message))


def message(iteration: int = 1) -> Pushed:
    return Pushed("worker-1.1", 0, iteration, 8, NO_USAGE, 0.5)


def send(client: SlowClient, key: Key = (5, 2)) -> list[Future[None]]:
    users = RowGradients("users", make_lookup(np.array([3, 5], np.uint64), 1), np.ones((2, 2), np.float32))
    dense = {"dense.0": np.ones(4, np.float32), "dense.0-1": np.ones(5, np.float32)}
    place = RoundPlace(TABLES, make_layout((2, 1), 4), "worker-1.1")
    return send_gradients(client, ServedDense(client, list(dense)), place, dense, [users], 96, key)


def test_without_rounds_only_what_has_gradients_is_pushed(client):
    send(client)
    own = Iteration(lane=2, number=5)
    assert client.pushed == [("users", 2, own), ("dense.0", 4, own), ("dense.0-1", 5, own)]
    assert client.num_flushed == 0, "what is asked for next goes with it"
    assert client.samples == 96


def test_a_round_gets_a_part_from_every_worker_of_all_stages_of_a_table_even_of_nothing(client):
    send(client, (7, ALL_LANES))
    found = {table: (size, part.number, part.part, part.parts) for table, size, part in client.pushed}
    assert found == {
        "users": (2, 7, 1, 2),
        "items": (0, 7, 1, 2),
        "dense.0": (4, 7, 1, 2),
        "dense.0-1": (5, 7, 1, 3),
    }


def test_the_coordinator_is_told_when_the_last_push_is_acknowledged_by_whichever_thread_learns_of_it(
    pushes, client, told
):
    pushes.announce(send(client), message())
    client.futures[2].set_result(None)
    client.futures[0].set_result(None)
    assert told == []
    assert pushes.num_under_way == 1
    thread = threading.Thread(target=client.futures[1].set_result, args=(None,))
    thread.start()
    thread.join()
    assert told == [message()]
    assert pushes.num_under_way == 0


def test_a_later_push_may_be_told_first(pushes, client, told):
    pushes.announce(send(client), message(1))
    pushes.announce(send(client), message(2))
    for future in client.futures[3:]:
        future.set_result(None)
    assert told == [message(2)]
    assert pushes.num_under_way == 1


def test_a_stage_without_parameters_has_nothing_to_wait_for(pushes, told):
    pushes.announce([], message())
    assert told == [message()]
    assert pushes.num_under_way == 0


def test_a_push_that_fails_is_not_told_and_raises_in_the_worker(pushes, client, told):
    pushes.announce(send(client), message())
    for future in client.futures[1:]:
        future.set_result(None)
    client.futures[0].set_exception(PeerLost("server-0 is gone"))
    assert told == []
    with pytest.raises(PeerLost, match="server-0 is gone"):
        _ = pushes.num_under_way


def test_a_coordinator_that_cannot_be_told_raises_in_the_worker():
    def tell(*_: object) -> None:
        raise PeerLost("the coordinator is gone")

    pushes = Pushes(tell)
    pushes.announce([], message())
    with pytest.raises(PeerLost, match="coordinator"):
        _ = pushes.num_under_way


def test_waiting_fetches_answers_that_nobody_else_fetches(pushes, told):
    class Lazy(Future[None]):
        def exception(self, timeout=None):
            if not self.done():
                self.set_result(None)
            return super().exception(timeout)

    pushes.announce([Lazy(), Lazy()], message())
    assert told == []
    pushes.wait()
    assert told == [message()]
    assert pushes.num_under_way == 0
