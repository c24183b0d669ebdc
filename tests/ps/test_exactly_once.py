"""Whatever is lost, doubled, delayed, reordered or cut off on the way, each gradient is applied once, in its order."""

from __future__ import annotations

import numpy as np
import pytest
from any_faults import faults
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import DIM, SimulatedJob, Worker, make_tables, sorted_rows

from heterps.config import SGD, Adam, Faults
from heterps.errors import PeerLost
from heterps.ps.client.session import Options
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.specs import TableSpec, TableSpecs


def state_of(job: SimulatedJob) -> list[np.ndarray]:
    """All that the servers hold."""
    shards = [server.shard for server in job.servers.values()]
    dense = [np.vstack([shard.dense["dense"].values(), shard.dense["dense"].state()]) for shard in shards]
    pushes = [np.array([shard.sparse["rows"].num_pushes, shard.dense["dense"].num_steps]) for shard in shards]
    return [*sorted_rows([shard.sparse["rows"].export_rows() for shard in shards]), *dense, *pushes]


def distinct_keys(rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(60)[: rng.integers(1, 40)].astype(np.uint64)


def one_worker(seed: int, num_servers: int, num_pushes: int, faults: Faults) -> list[np.ndarray]:
    """What is left when a worker pushed all without waiting and pulled now and then, with these faults on the way."""
    tables = make_tables(Adam(lr=0.1), Adam(lr=0.1))
    job = SimulatedJob(seed, tables, num_servers, faults)
    worker = Worker(job, "worker")
    rng = np.random.default_rng(seed)
    pulled = []
    for _ in range(num_pushes):
        keys = distinct_keys(rng)
        worker.push(keys, rng.normal(size=(len(keys), DIM)).astype(np.float32))
        worker.push_dense(rng.normal(size=10).astype(np.float32))
        worker.session.flush()
        job.step()  # a message of its own, so that the next may overtake it
        if rng.random() < 0.5:
            pulled.append(worker.pull(np.arange(60, dtype=np.uint64)))
            job.finish([pulled[-1]])
    job.finish(worker.futures)
    job.deliver_leftovers()
    return [*(future.result() for future in pulled), *state_of(job)]


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), num_servers=st.integers(1, 3), num_pushes=st.integers(1, 12), faults=faults)
def test_any_faults_leave_what_a_clean_run_leaves(seed, num_servers, num_pushes, faults):
    clean = one_worker(seed, num_servers, num_pushes, Faults())
    stormy = one_worker(seed, num_servers, num_pushes, faults)
    for expected, got in zip(clean, stormy, strict=True):
        np.testing.assert_array_equal(got, expected)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_several_workers_are_each_applied_once(seed):
    """Gradients are whole numbers, so that their sum does not depend on whose came first."""
    tables = TableSpecs((TableSpec("rows", DIM, SGD(lr=1.0), seed=3, init_scale=0.0),))
    job = SimulatedJob(seed, tables, 2)
    workers = [Worker(job, f"worker-{i}") for i in range(3)]
    rng = np.random.default_rng(seed)
    expected = np.zeros((60, DIM), np.float32)
    for _ in range(6):
        for worker in workers:
            keys = distinct_keys(rng)
            grads = rng.integers(-9, 9, (len(keys), DIM)).astype(np.float32)
            worker.push(keys, grads)
            expected[keys.astype(int)] -= grads
            worker.session.flush()
            job.step()
    job.finish([future for worker in workers for future in worker.futures])
    job.deliver_leftovers()
    rows = workers[0].pull(np.arange(60, dtype=np.uint64))
    lookup = make_lookup(np.arange(60, dtype=np.uint64), 2)
    job.finish([rows])
    np.testing.assert_array_equal(rows.result()[lookup.inverse], expected)


def test_repeats_are_counted():
    tables = make_tables()
    job = SimulatedJob(1, tables, 1, Faults(double=1.0))
    worker = Worker(job, "worker")
    worker.push(np.arange(5, dtype=np.uint64), np.ones((5, DIM), np.float32))
    job.finish(worker.futures)
    job.deliver_leftovers()
    counts = job.servers["server-0"].counts
    assert counts.repeats >= 1
    assert counts.tables["rows"].pushes == 1


def test_a_server_that_is_cut_off_for_good_ends_the_wait_at_the_deadline():
    tables = make_tables()
    job = SimulatedJob(1, tables, 1, Faults(drop=1.0))
    worker = Worker(job, "worker", Options(deadline_s=30.0))
    pull = worker.pull(np.arange(5, dtype=np.uint64))
    job.finish([pull])
    assert job.now == pytest.approx(30.0, abs=1.0)
    with pytest.raises(PeerLost, match="server-0 did not answer worker worker within 30 s"):
        pull.result()


def test_no_more_than_the_credit_is_in_flight():
    tables = make_tables()
    job = SimulatedJob(1, tables, 1, Faults(drop=1.0))
    worker = Worker(job, "worker", Options(max_requests=2, max_waiting=8, deadline_s=100))
    line = worker.session._lines[0]
    line.greeted = True
    sent = []
    for _ in range(5):
        worker.push(np.arange(5, dtype=np.uint64), np.ones((5, DIM), np.float32))
        worker.session.flush()
        sent += worker.session.outgoing(0.0)
    assert len(sent) == len(line.flights) == 2
    assert len(line.queue) == 3
    assert worker.session.has_room
    for _ in range(5):
        worker.push(np.arange(5, dtype=np.uint64), np.ones((5, DIM), np.float32))
    assert not worker.session.has_room
