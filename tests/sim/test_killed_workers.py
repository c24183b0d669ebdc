"""Workers that die at any moment of a simulated job: they come back, and every batch is in every table exactly once."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
from one_thread import one_torch_thread  # noqa: F401
from test_simulated_job import SAMPLES, Steps, changed, job, plan_of, slower_by_number

from heterps.config import Faults, Job
from heterps.sim.job import SimulatedJob
from heterps.sim.worker import SimulatedWorker

__all__ = ["job"]  # a fixture
BATCH = 16
NUM_BATCHES = SAMPLES // BATCH
PLANS = [((2,), 2), ((1,), 2), ((2, 1), 2), ((1, 2, 1), 1)]
POLICIES = ["bsp", "asp", "ssp:2", "dssp:1:4"]


class Watched(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []
        self.changes: list[str] = []

    def warned(self, message: str) -> None:
        self.warnings.append(message)

    def changed(self, what: str) -> None:
        self.changes.append(what)


def simulate(job: Job, plan: tuple[tuple[int, ...], int], kills: dict[float, str]) -> tuple[Watched, SimulatedJob]:
    watched = Watched()
    simulated = SimulatedJob(
        job, plan_of(*plan), slower_by_number, observer=watched, latency_s=0.001, server_s=0.0005, start_s=0.05
    )
    for at, worker in kills.items():
        simulated.network.call_at(at, partial(kill, simulated, worker))
    simulated.run()
    assert simulated.failed is None
    assert simulated.core.is_over
    return watched, simulated


def kill(simulated: SimulatedJob, worker: str) -> None:
    """Kill a worker that is there."""
    if not simulated.core.recovery.is_starting(worker):
        simulated.kill(worker)


def tables_of(simulated: SimulatedJob) -> dict[str, Any]:
    client, found = simulated.model.client, {}
    for spec in simulated.tables.sparse:
        rows, _ = client.export_rows(spec.name)
        order = np.argsort(rows.keys)
        found[spec.name] = (rows.keys[order].tobytes(), rows.values[order].tobytes())
    for spec in simulated.tables.dense:
        found[spec.name] = client.export_dense(spec.name)[0].tobytes()
    return found


def num_pushes(simulated: SimulatedJob) -> set[int]:
    """How many updates each table has on each server: one number where all have had every batch once."""
    return {
        piece.ledger.num_pushes[table]
        for server in simulated.servers.in_place
        for table in (*server.server.shard.sparse, *server.server.shard.dense)
        for piece in server.server.shard.pieces_of(table)
    }


def some_kills(counts: tuple[int, ...], seed: int) -> dict[float, str]:
    draw = random.Random(seed)
    workers = [f"worker-{stage + 1}.{k}" for stage, count in enumerate(counts) for k in range(count)]
    return {draw.uniform(0.005, 0.5): draw.choice(workers) for _ in range(draw.randint(1, 3))}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_batch_is_in_every_table_once_whoever_dies(job: Job, policy: str, plan: tuple[tuple[int, ...], int]):
    job = changed(job, sync=policy, workers={"backoff_s": 0.05})
    _, clean = simulate(job, plan, {})
    expected = tables_of(clean)
    num_recoveries = 0
    for seed in range(4):
        kills = some_kills(plan[0], seed)
        watched, simulated = simulate(job, plan, kills)
        progress, tables = simulated.core.progress, tables_of(simulated)
        assert progress.samples == SAMPLES, (seed, kills)
        assert len(watched.losses) == NUM_BATCHES, (seed, kills)
        assert num_pushes(simulated) == {NUM_BATCHES}, (seed, kills)
        assert progress.recoveries == len(watched.warnings), (seed, kills)
        assert progress.repeated_samples <= progress.recoveries * BATCH * simulated.layout.num_lanes
        if policy == "bsp":
            assert tables == expected, (seed, kills)
        num_recoveries += progress.recoveries
        simulated.close()
    assert num_recoveries, "no kill came at work: other seeds are needed"
    clean.close()


@pytest.mark.parametrize("policy", ["bsp", "ssp:2"])
def test_a_worker_that_dies_before_the_first_batch_is_replaced(job: Job, policy: str):
    """While workers start, and while they take their places."""
    job = changed(job, sync=policy, workers={"backoff_s": 0.05})
    _, clean = simulate(job, ((2, 1), 2), {})
    expected = tables_of(clean)
    for at in (0.0, 0.0005, 0.0015):
        watched, simulated = simulate(job, ((2, 1), 2), {at: "worker-1.1"})
        progress, tables = simulated.core.progress, tables_of(simulated)
        assert (progress.samples, progress.recoveries) == (SAMPLES, 1), at
        assert (num_pushes(simulated), len(watched.losses)) == ({NUM_BATCHES}, NUM_BATCHES), at
        assert next(change for change in watched.changes if "is back after" in change).endswith("at 0 samples"), at
        assert policy != "bsp" or tables == expected, at
        simulated.close()
    clean.close()


def test_a_worker_that_dies_too_often_ends_the_job(job: Job):
    job = changed(job, sync="asp", workers={"replacements": 1, "backoff_s": 0.0})
    simulated = SimulatedJob(job, plan_of((2,), 1), slower_by_number, start_s=0.02)
    for at in (0.05, 0.15):
        simulated.network.call_at(at, partial(kill, simulated, "worker-1.1"))
    simulated.run()
    assert simulated.failed == "worker-1.1 was killed, and is not replaced"
    assert simulated.core.progress.recoveries == 1


def test_nobody_waits_for_the_dead_but_in_rounds(job: Job):
    done = {}
    for policy in POLICIES:
        named = changed(job, sync=policy)
        watched, simulated = simulate(named, ((2,), 1), {0.05: "worker-1.1"})
        back = next(change for change in watched.changes if "is back" in change)
        assert "worker-1.1 is back after 0.1 s" in back or "worker-1.1 is back after 0.0 s" in back
        done[policy] = sum(0.05 < at < 0.1 for at in watched.times)
        simulated.close()
    assert done["bsp"] == 0
    assert min(done[policy] for policy in POLICIES[1:]) >= 2


@pytest.mark.parametrize("policy", POLICIES)
def test_the_last_word_of_a_worker_that_died_again_is_not_taken_for_that_of_its_successor(
    job: Job, policy: str, monkeypatch: pytest.MonkeyPatch
):
    """It has said that it is ready, and is dead when that arrives."""
    tell_ready = SimulatedWorker._tell_ready

    def tell_and_die(worker: SimulatedWorker) -> None:
        tell_ready(worker)
        if worker.incarnation == 2:
            simulated.network.call_at(simulated.network.now_s, partial(simulated.kill, worker.name))

    monkeypatch.setattr(SimulatedWorker, "_tell_ready", tell_and_die)
    job = changed(job, sync=policy, workers={"backoff_s": 0.0})
    watched = Watched()
    simulated = SimulatedJob(
        job, plan_of((2,), 1), slower_by_number, observer=watched, latency_s=0.001, server_s=0.0005, start_s=0.05
    )
    simulated.network.call_at(0.05, partial(simulated.kill, "worker-1.1"))
    simulated.run()
    assert simulated.failed is None
    assert simulated.workers["worker-1.1"].incarnation == 3
    assert simulated.network.now_s < 20.0, "nobody was waited for in vain"
    tables_of(simulated)
    assert num_pushes(simulated) == {NUM_BATCHES}
    simulated.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_worker_that_was_replaced_while_it_could_not_be_reached_can_do_nothing_when_it_is_back(job: Job, policy: str):
    """Its silence was too long, so another one has its name. It learns of that from servers, and its error is none."""
    job = changed(job, sync=policy, workers={"backoff_s": 0.0, "deadline_s": 5.0})
    watched = Watched()
    simulated = SimulatedJob(
        job, plan_of((2,), 1), lambda _worker, _turn, now_s: now_s + 1.0, observer=watched, latency_s=0.001,
        start_s=0.05, faults=Faults(),
    )  # fmt: skip
    first = simulated.workers["worker-1.1"]
    simulated.network.call_at(0.05, partial(first.part, 8.0, "both"))
    simulated.run()
    assert simulated.network.now_s > 10.0, "the job has lasted longer than both had the name"
    tables_of(simulated)
    assert simulated.failed is None
    assert simulated.workers["worker-1.1"] is not first
    assert first._is_dead
    assert num_pushes(simulated) == {NUM_BATCHES}
    assert [warning for warning in watched.warnings if "worker-1.1" in warning]
    simulated.close()
