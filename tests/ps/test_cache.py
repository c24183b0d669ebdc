"""CachedClient: never a row staler than the bound, nothing but the client's rows at bound 0, and fewer pulls else."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.ps import Adagrad
from heterps.ps.client.cache import CachedClient
from heterps.ps.client.local import LocalClient, done
from heterps.ps.keys.dedup import Lookup, make_lookup
from heterps.ps.protocol.messages import Round
from heterps.ps.protocol.specs import TableSpec

NUM_WORKERS, NUM_KEYS = 3, 12


class CountingClient:
    """A server that counts: the row of a key holds how often each worker has pushed it."""

    def __init__(self, num_shards: int = 1) -> None:
        self.num_shards = num_shards
        self.versions: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(NUM_WORKERS, np.float32))
        self.pulled: list[list[int]] = []

    def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future:
        keys = lookup.unique.tolist()
        self.pulled.append(keys)
        return done(np.array([self.versions[key] for key in keys], np.float32).reshape(-1, NUM_WORKERS))

    def push(self, table: str, lookup: Lookup, grads: np.ndarray, round: Round | None = None) -> Future:
        for key in lookup.unique.tolist():
            self.versions[key] = self.versions[key] + grads[0]
        return done(None)


class LateClient(CountingClient):
    """Answers when it is told to, with the rows of the moment at which it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Future, Future]] = []

    def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future:
        answer: Future = Future()
        self.waiting.append((answer, super().pull(table, lookup, create=create)))
        return answer

    def answer(self) -> None:
        for answer, rows in self.waiting:
            answer.set_result(rows.result())
        self.waiting.clear()


batches = st.lists(st.integers(0, NUM_KEYS - 1), min_size=1, max_size=6)
turns = st.lists(st.tuples(st.integers(0, NUM_WORKERS - 1), batches, st.integers(0, 4)), max_size=60)


@settings(max_examples=150)
@given(turns, st.integers(1, 4), st.sampled_from([400, 1 << 16]))
def test_no_iteration_misses_a_push_from_before_its_bound(turns, first_bound, memory_bytes):
    """Workers in any order that the bound lets them take; the bound in force changes on the way."""
    server = CountingClient()
    workers = [CachedClient(server, first_bound, memory_bytes) for _ in range(NUM_WORKERS)]
    clocks = [0] * NUM_WORKERS
    pushes: list[tuple[int, int, set[int]]] = []  # worker, iteration, keys
    for worker, keys, bound in turns:
        if clocks[worker] - min(clocks) > bound:
            continue  # the policy would let it wait
        client, lookup = workers[worker], make_lookup(np.array(keys))
        client.bound = bound
        rows = client.pull("t", lookup).result()
        for key, row in zip(lookup.unique.tolist(), rows, strict=True):
            for other in range(NUM_WORKERS):
                due = sum(
                    who == other and key in pushed and iteration < clocks[worker] - bound
                    for who, iteration, pushed in pushes
                )
                assert due <= row[other] <= server.versions[key][other]
                if bound == 0:
                    assert row[other] == server.versions[key][other]
        client.push("t", lookup, np.tile(np.eye(NUM_WORKERS, dtype=np.float32)[worker], (len(keys), 1)))
        pushes.append((worker, clocks[worker], set(keys)))
        clocks[worker] += 1
        client.tick(lead=clocks[worker] - min(clocks))


def push(server: CountingClient, keys: list[int]) -> None:
    """A push of every worker."""
    server.push("t", make_lookup(keys), np.ones((len(keys), NUM_WORKERS), np.float32))


def train(client: LocalClient | CachedClient, num_batches: int = 20) -> list[np.ndarray]:
    rng, seen = np.random.default_rng(0), []
    for _ in range(num_batches):
        keys = rng.integers(0, 200, 300)
        lookup = make_lookup(keys, client.num_shards)
        seen.append(client.pull("rows", lookup).result()[lookup.inverse])
        client.push("rows", lookup, rng.normal(size=(300, 4)).astype(np.float32)).result()
        if isinstance(client, CachedClient):
            client.tick()
    return seen


def local(num_shards: int) -> LocalClient:
    return LocalClient([TableSpec("rows", 4, Adagrad(lr=0.1), 3, 0.1)], {}, num_shards)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_at_bound_0_training_is_that_without_a_cache_to_the_bit(num_shards):
    below, plain = local(num_shards), local(num_shards)
    cached = CachedClient(below, bound=0)
    for ours, wanted in zip(train(cached), train(plain), strict=True):
        np.testing.assert_array_equal(ours, wanted)
    assert cached.counts("rows").hit_rate is None
    assert cached.num_bytes == 0
    below.close()
    plain.close()


@pytest.mark.parametrize("num_shards", [1, 3])
def test_within_a_bound_rows_of_any_shard_are_those_of_some_recent_clock(num_shards):
    below, plain = local(num_shards), local(num_shards)
    cached = CachedClient(below, bound=2)
    assert cached.num_shards == num_shards
    rng = np.random.default_rng(0)
    history: list[np.ndarray] = []
    everything = make_lookup(np.arange(50), num_shards)
    for _ in range(12):
        lookup = make_lookup(rng.integers(0, 50, 30), num_shards)
        history.append(plain.pull("rows", everything).result()[everything.inverse])
        rows = cached.pull("rows", lookup).result()
        recent = np.stack(history[-3:])[:, lookup.unique.astype(np.int64)]
        assert (recent == rows).all(axis=2).any(axis=0).all(), "a row is not of one of the last three clocks"
        grads = rng.normal(size=(30, 4)).astype(np.float32)
        for client in (cached, plain):
            client.push("rows", lookup, grads).result()
        cached.tick()
    assert 0 < cached.counts("rows").hit_rate < 1
    below.close()
    plain.close()


def test_only_what_is_missing_or_too_old_is_asked_for():
    server = CountingClient()
    client = CachedClient(server, bound=1)
    client.pull("t", make_lookup([1, 2])).result()
    client.pull("t", make_lookup([2, 3])).result()
    client.tick()
    client.pull("t", make_lookup([1, 2, 3])).result()
    client.tick()
    client.pull("t", make_lookup([3, 4])).result()
    assert server.pulled == [[1, 2], [3], [3, 4]]
    counts = client.counts("t")
    assert (counts.num_hits, counts.num_misses, counts.hit_rate) == (4, 5, 4 / 9)
    assert client.counts("other").hit_rate is None


def test_a_worker_that_is_ahead_keeps_rows_for_less_long():
    server = CountingClient()
    client = CachedClient(server, bound=2)
    client.tick(lead=2)
    client.pull("t", make_lookup([1])).result()
    client.pull("t", make_lookup([1])).result()
    client.tick(lead=2)
    client.pull("t", make_lookup([1])).result()
    assert server.pulled == [[1], [1]]


def test_a_row_counts_from_when_it_was_asked_for_not_from_when_it_came():
    server = LateClient()
    client = CachedClient(server, bound=1)
    asked = client.pull("t", make_lookup([1]))
    client.tick()
    server.answer()
    assert asked.result().shape == (1, NUM_WORKERS)
    client.tick()
    client.pull("t", make_lookup([1]))
    assert server.pulled == [[1], [1]]


def test_after_clear_nothing_from_before_is_used_not_even_what_was_on_its_way():
    server = LateClient()
    client = CachedClient(server, bound=5)
    client.pull("t", make_lookup([1]))
    server.answer()
    client.pull("t", make_lookup([2]))
    client.clear()
    server.answer()
    client.pull("t", make_lookup([1, 2]))
    assert server.pulled == [[1], [2], [1, 2]]


def test_after_clear_rows_that_were_asked_for_ahead_are_asked_for_again():
    server = CountingClient()
    client = CachedClient(server, bound=5)
    lookup = make_lookup([1])
    asked = client.ask_ahead("t", lookup)
    client.clear()
    push(server, [1])
    assert asked().result()[0, 0] == 1, "the servers went back, and then somebody pushed"
    assert server.pulled == [[1], [1]]


def test_an_evaluation_reads_the_servers_and_leaves_the_cache_alone():
    server = CountingClient()
    client = CachedClient(server, bound=5)
    for _ in range(2):
        client.pull("t", make_lookup([1]), create=False).result()
    assert server.pulled == [[1], [1]]
    assert client.counts("t").num_misses == 0


def test_an_error_of_the_client_is_the_future_s_and_the_cache_goes_on():
    class Broken(CountingClient):
        def pull(self, table, lookup, *, create=True):
            answer: Future = Future()
            answer.set_exception(MemoryError("shard 1 is full"))
            return answer

    client = CachedClient(Broken(), bound=1)
    with pytest.raises(MemoryError, match="shard 1 is full"):
        client.pull("t", make_lookup([1])).result()
    small = CachedClient(CountingClient(), bound=1, memory_bytes=10)
    with pytest.raises(ValueError, match="needs at least"):
        small.pull("t", make_lookup([1])).result()


def test_rows_asked_for_ahead_are_those_of_that_moment():
    server = CountingClient()
    client = CachedClient(server, bound=1)
    lookup = make_lookup([1, 2])
    asked = client.ask_ahead("t", lookup, iterations=1)
    push(server, [1, 2])
    client.tick()
    for _ in range(2):
        np.testing.assert_array_equal(asked().result()[:, 0], [0, 0])
    assert server.pulled == [[1, 2]], "however many pieces of a batch ask for them"
    client.tick()
    np.testing.assert_array_equal(client.pull("t", lookup).result()[:, 0], [1, 1])


def test_rows_asked_for_ahead_that_are_too_old_by_then_are_asked_for_again():
    server = CountingClient()
    client = CachedClient(server, bound=1)
    lookup = make_lookup([1])
    asked = client.ask_ahead("t", lookup, iterations=1)
    push(server, [1])
    client.tick()
    client.tick()
    assert asked().result()[0, 0] == 1
    assert server.pulled == [[1], [1]]


def test_a_copy_that_would_be_too_old_at_its_use_is_not_taken_for_rows_ahead():
    server = CountingClient()
    client = CachedClient(server, bound=1)
    client.pull("t", make_lookup([1])).result()
    push(server, [1])
    client.tick()
    lookup = make_lookup([1])
    asked = client.ask_ahead("t", lookup, iterations=1)  # a copy of clock 0 is good now, and no longer at clock 2
    client.tick()
    assert asked().result()[0, 0] == 1


def test_at_bound_0_rows_are_asked_for_ahead_once_the_last_push_is_made_and_no_sooner():
    server = CountingClient()
    client = CachedClient(server, bound=0)
    lookup = make_lookup([1])
    assert client.ask_ahead("t", lookup, iterations=1) is None
    assert server.pulled == []
    push(server, [1])
    client.tick()
    asked = client.ask_ahead("t", lookup)
    assert asked().result()[0, 0] == 1
    assert server.pulled == [[1]]


def test_a_worker_that_runs_ahead_of_others_asks_for_nothing_that_could_not_be_used():
    server = CountingClient()
    client = CachedClient(server, bound=1)
    client.tick(lead=1)
    assert client.ask_ahead("t", make_lookup([1]), iterations=1) is None
    assert server.pulled == []


def test_waiting_for_rows_that_are_partly_copies_waits_for_the_others():
    class Lazy(CountingClient):
        """Does its work when somebody waits."""

        def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future:
            real = super().pull(table, lookup, create=create)

            class Waiting(Future):
                def exception(self, timeout: float | None = None) -> None:
                    if not self.done():
                        self.set_result(real.result())

            return Waiting()

    client = CachedClient(Lazy(), bound=1)
    assert client.pull("t", make_lookup([1])).result(timeout=10).shape == (1, NUM_WORKERS)
    assert client.pull("t", make_lookup([1, 2])).exception(timeout=10) is None


def test_impossible_bounds_and_leads_are_refused():
    with pytest.raises(ValueError, match="bound is at least 0, got -1"):
        CachedClient(CountingClient(), bound=-1)
    with pytest.raises(ValueError, match="at least 0 iterations ahead of the slowest, got -2"):
        CachedClient(CountingClient(), bound=1).tick(lead=-2)
