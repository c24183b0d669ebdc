"""Whatever the network does, and whoever joins or leaves: rounds leave what whole batches leave."""

from __future__ import annotations

import numpy as np
import pytest
from any_faults import faults
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mover import Mover, join
from servers import DIM, STORM, SimulatedJob, Worker, make_tables, sorted_rows

from heterps.config import FTRL, SGD, Adagrad, Adam, AdamW, Faults, Momentum, Optimizer, RowAdagrad
from heterps.ps import Round
from heterps.ps.client.local import in_process
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.specs import TableSpecs

SIZE = 23  # of the dense table: no number of servers divides it
NO_FAULTS = Faults()
Part = tuple[np.ndarray, np.ndarray, np.ndarray]


def batches(seed: int, num_rounds: int, parts: int) -> list[list[Part]]:
    """By round and part: distinct keys, of which other parts have some too, their gradients, and dense ones."""
    rng = np.random.default_rng(seed)
    rounds = []
    for _ in range(num_rounds):
        keys = [rng.permutation(80)[: rng.integers(0, 50)].astype(np.uint64) for _ in range(parts)]
        rounds.append(
            [
                (k, rng.normal(size=(len(k), DIM)).astype(np.float32), rng.normal(size=SIZE).astype(np.float32))
                for k in keys
            ]
        )
    return rounds


def whole(tables: TableSpecs, rounds: list[list[Part]]) -> list[np.ndarray]:
    """The tables after one push a round, of all its keys, by one process."""
    client = in_process(tables)
    for parts in rounds:
        keys, grads = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        dense = parts[0][2]
        for part in parts[1:]:
            dense = dense + part[2]
        client.push("rows", make_lookup(keys), grads).result()
        client.push_dense("dense", dense).result()
    values, state, _ = client.export_dense("dense")
    return [*sorted_rows([client.export_rows("rows")[0]]), np.vstack([values, state.reshape(-1, SIZE)])]


def state_of(job: SimulatedJob, num_rounds: int) -> list[np.ndarray]:
    """The tables of all servers that are in the job, which must have ended every round and be in one piece."""
    newest = max((server.roster for server in job.servers.values()), key=lambda roster: roster.epoch)
    shards = [job.servers[seat.name].shard for seat in newest.servers]
    for shard in shards:
        assert not any(shard.stashes)
        assert len(shard.pieces) == len(shard.dense["dense"].pieces) == 1
        assert shard.pieces.num_pushes("rows") == shard.dense["dense"].num_steps == num_rounds
        assert next(iter(shard.pieces)).ledger.num_rounds == {"rows": num_rounds}
    dense = np.hstack([np.vstack([s.dense["dense"].values(), s.dense["dense"].state()]) for s in shards])
    return [*sorted_rows([shard.sparse["rows"].export_rows() for shard in shards]), dense]


def contribute(worker: Worker, number: int, part: int, parts: list[Part]) -> None:
    keys, grads, dense = parts[part]
    worker.push(keys, grads, Round(number, part, len(parts)))
    worker.push_dense(dense, Round(number, part, len(parts)))
    worker.session.flush()


def assert_equal(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for mine, wanted in zip(got, expected, strict=True):
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize("num_servers", [1, 3])
@pytest.mark.parametrize(
    ("sparse", "dense"),
    [
        (SGD(lr=0.1), SGD(lr=0.1)),
        (Momentum(lr=0.1), Momentum(lr=0.1)),
        (Adagrad(lr=0.1), Adagrad(lr=0.1)),
        (RowAdagrad(lr=0.1), Adam(lr=0.1)),
        (Adam(lr=0.1), AdamW(lr=0.1)),
        (FTRL(lr=0.1), Adam(lr=0.1)),
    ],
    ids=lambda optimizer: optimizer.kind,
)
def test_parts_of_several_workers_are_one_push_of_the_whole_batch_to_the_bit(
    sparse: Optimizer, dense: Optimizer, num_servers: int
) -> None:
    tables, rounds = make_tables(sparse, dense, SIZE), batches(1, 4, 3)
    job = SimulatedJob(0, tables, num_servers, NO_FAULTS)
    workers = [Worker(job, f"worker-{number}") for number in range(3)]
    for number, parts in enumerate(rounds, 1):
        for part in (2, 0, 1):
            contribute(workers[part], number, part, parts)
            job.finish(workers[part].futures)
    assert_equal(state_of(job, 4), whole(tables, rounds))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    num_servers=st.sampled_from([1, 3]),
    num_workers=st.integers(1, 4),
    parts=st.integers(1, 5),
    faults=faults,
)
def test_any_order_of_arrival_and_any_faults_leave_the_same_bits(
    seed: int, num_servers: int, num_workers: int, parts: int, faults: Faults
) -> None:
    """Part p is of worker p mod n. Nobody waits for answers, so that rounds overlap as the network likes."""
    tables, rounds = make_tables(Adam(lr=0.1), AdamW(lr=0.1), SIZE), batches(seed, 4, parts)
    job = SimulatedJob(seed, tables, num_servers, faults)
    workers = [Worker(job, f"worker-{number}") for number in range(num_workers)]
    own = [
        [(number, part) for number in range(1, 5) for part in range(parts) if part % num_workers == worker]
        for worker in range(num_workers)
    ]
    while left := [worker for worker in range(num_workers) if own[worker]]:
        worker = job.random.choice(left)
        number, part = own[worker].pop(0)
        contribute(workers[worker], number, part, rounds[number - 1])
        job.step()
    job.finish([future for worker in workers for future in worker.futures])
    job.deliver_leftovers()
    assert_equal(state_of(job, 4), whole(tables, rounds))


def run_moves(seed: int, plan: str, *, during: bool, faults: Faults = STORM) -> None:
    """Rosters of `plan` (+ joins, - leaves) follow each other, asked for between rounds or in the middle of one."""
    tables, rounds = make_tables(Adam(lr=0.1), Adam(lr=0.1), SIZE), batches(seed, 3 * (len(plan) + 1), 3)
    job = SimulatedJob(seed, tables, 2, faults)
    workers = [Worker(job, f"worker-{number}") for number in range(3)]
    roster, numbers = job.roster, iter(range(1, len(rounds) + 1))
    for change in [*plan, ""]:
        mover = None
        for turn in range(3):
            number = next(numbers)
            for part in job.random.sample(range(3), 3):
                contribute(workers[part], number, part, rounds[number - 1])
                for _ in range(job.random.randrange(8)):
                    job.step()
                if during and turn == 0 and mover is None and change and (change == "+" or roster.num_shards > 1):
                    new = join(job, roster) if change == "+" else roster.drop_last()
                    mover, roster = Mover(job, roster, new), new
        if not during:
            job.finish([future for worker in workers for future in worker.futures])
            if change == "+" or (change == "-" and roster.num_shards > 1):
                new = join(job, roster) if change == "+" else roster.drop_last()
                mover, roster = Mover(job, roster, new), new
        if mover:
            mover.finish()
    job.finish([future for worker in workers for future in worker.futures])
    assert {server.roster.epoch for server in job.servers.values() if server.roster.number(server.name) >= 0} == {
        roster.epoch
    }
    assert_equal(state_of(job, len(rounds)), whole(tables, rounds))


PLANS = st.lists(st.sampled_from("++-"), min_size=1, max_size=3).map("".join)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), plan=PLANS)
def test_a_rebalance_between_rounds_changes_nothing(seed: int, plan: str) -> None:
    run_moves(seed, plan, during=False)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), plan=PLANS)
@example(seed=0, plan="-+")  # a worker that asked the server that had left was told the next roster by its namesake
def test_a_rebalance_in_the_middle_of_a_round_waits_for_its_end(seed: int, plan: str) -> None:
    """Workers that have learned of the next roster bring nothing for the old one: no round may be left open by it."""
    run_moves(seed, plan, during=True)


@pytest.mark.parametrize("plan", ["+", "-", "+-"])
def test_a_rebalance_in_the_middle_of_a_round_waits_for_its_end_without_faults(plan: str) -> None:
    run_moves(7, plan, during=True, faults=NO_FAULTS)
