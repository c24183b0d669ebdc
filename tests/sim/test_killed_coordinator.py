"""Coordinators that die at any moment of a simulated job: the next one goes on by the journal, and nobody goes back."""

from __future__ import annotations

import random
from functools import partial

import pytest
from one_thread import one_torch_thread  # noqa: F401
from test_killed_servers import MIRRORED, assert_equal_mirrors, hit, simulated_job
from test_killed_workers import (
    BATCH,
    NUM_BATCHES,
    PLANS,
    POLICIES,
    Watched,
    kill,
    num_pushes,
    some_kills,
    tables_of,
)
from test_simulated_job import SAMPLES, changed, job, plan_of, slower_by_number

from heterps.config import Job
from heterps.sim.job import SimulatedJob

__all__ = ["job"]  # a fixture


def simulate(
    job: Job, plan: tuple[tuple[int, ...], int], deaths: list[float], kills: dict[float, str]
) -> tuple[Watched, SimulatedJob]:
    watched = Watched()
    simulated = SimulatedJob(
        job, plan_of(*plan), slower_by_number, observer=watched, latency_s=0.001, server_s=0.0005, start_s=0.05
    )
    for at in deaths:
        simulated.network.call_at(at, simulated.coordinator.kill)
    for at, worker in kills.items():
        simulated.network.call_at(at, partial(kill, simulated, worker))
    simulated.run()
    assert simulated.failed is None
    assert simulated.core.is_over
    return watched, simulated


@pytest.mark.parametrize("policy", POLICIES)
def test_servers_with_mirrors_wait_for_the_next_coordinator_and_its_keeper_leads_them(job: Job, policy: str) -> None:
    """Servers and mirrors are lost before and after it, also one that took the place of another."""
    mirrored = changed(job, sync=policy, **MIRRORED)
    plan = PLANS[0]
    _, clean = simulate(changed(job, sync=policy), plan, [], {})
    expected = tables_of(clean)
    num_lives = 0
    for seed in range(3):
        draw = random.Random(seed)
        simulated = simulated_job(mirrored, plan, Watched(), seed=seed)
        began = simulated.network.now_s
        deaths = [draw.uniform(0.2, 1.2) for _ in range(2)]
        for at in deaths:
            simulated.network.call_at(began + at, simulated.coordinator.kill)
        hits = [(0.1 + 0.4 * number, number % 2, draw.choice(["server", "mirror"]), "kill") for number in range(5)]
        for at, *what in hits:
            simulated.network.call_at(began + at, partial(hit, simulated, *what))
        simulated.run()
        where = (seed, deaths, hits)
        assert simulated.failed is None, where
        tables = tables_of(simulated)
        assert (simulated.core.progress.samples, num_pushes(simulated)) == (SAMPLES, {NUM_BATCHES}), where
        assert_equal_mirrors(simulated)
        assert any(one.is_dead for one in simulated.servers.all.values()), where
        if policy == "bsp":
            assert tables == expected, where
        num_lives += simulated.journal.life
        simulated.close()
    assert num_lives > 5, "few coordinators died at work: other seeds are needed"
    clean.close()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_batch_is_in_every_table_once_when_the_coordinator_dies(
    job: Job, policy: str, plan: tuple[tuple[int, ...], int]
) -> None:
    job = changed(job, sync=policy, workers={"backoff_s": 0.05})
    _, clean = simulate(job, plan, [], {})
    expected = tables_of(clean)
    num_lives = 0
    for seed in range(6):
        draw = random.Random(seed)
        deaths = [draw.uniform(0.002, 0.6) for _ in range(draw.randint(1, 3))]
        kills = some_kills(plan[0], seed) if seed % 2 else {}
        _, simulated = simulate(job, plan, deaths, kills)
        progress, tables, where = simulated.core.progress, tables_of(simulated), (seed, deaths, kills)
        assert progress.samples == SAMPLES, where
        assert simulated.core.clock == NUM_BATCHES, where
        assert num_pushes(simulated) == {NUM_BATCHES}, where
        assert progress.repeated_samples <= progress.recoveries * BATCH * simulated.layout.num_lanes, where
        assert progress.recoveries >= simulated.journal.life - 1, where
        if policy == "bsp":
            assert tables == expected, where
        num_lives += simulated.journal.life
        simulated.close()
    assert num_lives > 6, "no coordinator died at work: other seeds are needed"
    clean.close()
