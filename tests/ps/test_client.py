"""LocalClient: any number of shards is one table, in one process."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from heterps.ps import SGD, Adagrad, Adam, SparseTable
from heterps.ps.client import local as client_module
from heterps.ps.client.local import LocalClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.specs import TableSpec
from heterps.ps.table.dense import DenseTable

DIM = 5


def make_client(num_shards: int, optimizer=Adagrad(lr=0.1), dense=None) -> LocalClient:
    return LocalClient([TableSpec("rows", DIM, optimizer, seed=3, init_scale=0.1)], dense or {}, num_shards)


def batches(num: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    for _ in range(num):
        yield rng.integers(0, 500, 300), rng.normal(size=(300, DIM)).astype(np.float32)


def train(client: LocalClient, num: int, seed: int = 0) -> list[np.ndarray]:
    """The rows that each batch saw."""
    seen = []
    for keys, grads in batches(num, seed):
        lookup = make_lookup(keys, client.num_shards)
        seen.append(client.pull("rows", lookup).result()[lookup.inverse])
        client.push("rows", lookup, grads).result()
    return seen


def sorted_rows(client: LocalClient) -> tuple[np.ndarray, ...]:
    rows, num_pushes = client.export_rows("rows")
    return *rows.select(np.argsort(rows.keys)), np.array(num_pushes)


@pytest.fixture(params=[True, False], ids=["on threads", "alone"], autouse=True)
def on_threads(request, monkeypatch):
    """However few the keys: every shard on its thread, or all on the caller's."""
    for name in ("FEW_TO_PULL", "FEW_TO_PUSH"):
        monkeypatch.setattr(client_module, name, 0 if request.param else 2**62)
    return request.param


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Adagrad(lr=0.1), Adam()], ids=lambda optimizer: optimizer.kind)
@pytest.mark.parametrize("num_shards", [1, 2, 3])
def test_shards_give_the_rows_of_one_table_to_the_bit(num_shards, optimizer):
    table = SparseTable(DIM, optimizer, seed=3, init_scale=0.1)
    client = make_client(num_shards, optimizer)
    for (keys, grads), seen in zip(batches(10), train(client, 10), strict=True):
        np.testing.assert_array_equal(seen, table.pull(keys))
        table.push(keys, grads)
    assert client.num_rows("rows") == len(table)
    assert client.num_bytes("rows") >= table.num_bytes - 8 * 1024
    client.close()


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("before", [1, 2, 3])
def test_rows_move_to_another_number_of_shards_and_training_goes_on_equally(before, after):
    first, second = make_client(before, Adam()), make_client(after, Adam())
    train(first, 5)
    second.import_rows("rows", *first.export_rows("rows"))
    train(first, 5, seed=1)
    train(second, 5, seed=1)
    for one, other in zip(sorted_rows(first), sorted_rows(second), strict=True):
        np.testing.assert_array_equal(one, other)
    first.close()
    second.close()


def test_pull_without_create_reads_initial_values_and_leaves_no_row():
    client = make_client(2)
    lookup = make_lookup(np.arange(50), 2)
    rows = client.pull("rows", lookup, create=False).result()
    assert client.num_rows("rows") == 0
    np.testing.assert_array_equal(client.pull("rows", lookup).result(), rows)
    client.close()


def test_threads_end_on_close_and_closing_twice_is_safe(on_threads):
    before = set(threading.enumerate())
    client = make_client(3)
    train(client, 1)
    started = set(threading.enumerate()) - before
    assert (1 <= len(started) <= 2) if on_threads else not started
    client.close()
    client.close()
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_an_error_in_one_shard_is_the_future_s_error(broken, monkeypatch):
    client = make_client(3)
    lookup = make_lookup(np.arange(50), 3)

    def fail(*_, **__):
        raise MemoryError(f"shard {broken} is full")

    shard = client._shards["rows"][broken]
    monkeypatch.setattr(shard, "pull", fail)
    monkeypatch.setattr(shard, "push_sums", fail)
    with pytest.raises(MemoryError, match=f"shard {broken} is full"):
        client.pull("rows", lookup).result()
    with pytest.raises(MemoryError, match=f"shard {broken} is full"):
        client.push("rows", lookup, np.zeros((50, DIM), np.float32)).result()
    client.close()


def test_two_threads_on_one_client_lose_no_step():
    client = LocalClient([TableSpec("rows", 1, SGD(lr=1.0), 0, 0.0)], {}, 2)
    lookup = make_lookup(np.arange(400), 2)

    def work() -> None:
        for _ in range(100):
            client.push("rows", lookup, -np.ones((400, 1), np.float32)).result()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(client.pull("rows", lookup).result(), np.full((400, 1), 200, np.float32))
    assert client.export_rows("rows")[1] == 200
    client.close()


def test_dense_tables_are_pulled_and_pushed_by_name():
    client = make_client(1, dense={"mlp": DenseTable(3, SGD(lr=0.5))})
    client.push_dense("mlp", np.array([1, 2, 3], np.float32)).result()
    np.testing.assert_array_equal(client.pull_dense("mlp").result(), np.float32([-0.5, -1, -1.5]))


def test_arguments_that_no_shard_could_take_are_refused():
    client = make_client(2)
    with pytest.raises(ValueError, match="lookup made for 3 shards; this client has 2"):
        client.pull("rows", make_lookup(np.arange(9), 3))
    with pytest.raises(ValueError, match=r"table rows needs gradients \[9, 5\] for this lookup, got \[8, 5\]"):
        client.push("rows", make_lookup(np.arange(9), 2), np.zeros((8, DIM), np.float32))
    with pytest.raises(ValueError, match="num_shards must be at least 1, got 0"):
        make_client(0)
    client.close()
