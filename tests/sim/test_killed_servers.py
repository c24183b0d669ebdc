"""Servers with mirrors that die at any moment of a simulated job: nothing is lost, and nobody goes back."""

from __future__ import annotations

import random
from functools import partial

import pytest
from one_thread import one_torch_thread  # noqa: F401
from test_killed_workers import NUM_BATCHES, Watched, kill, num_pushes, tables_of
from test_simulated_job import SAMPLES, changed, job, plan_of, slower_by_number

from heterps.config import Faults, Job
from heterps.sim.job import SimulatedJob

__all__ = ["job"]  # a fixture
PLANS = [((2,), 2), ((1,), 1), ((2, 1), 1)]
POLICIES = ["bsp", "asp", "ssp:2", "dssp:1:4"]
MIRRORED = {"servers": {"replicas": 1}, "workers": {"backoff_s": 0.05, "replacements": 50}}
STORM = Faults(drop=0.02, double=0.05, delay_s=0.01, reorder=0.1, reorder_s=0.05)


def slowly(worker: str, turn: object, now_s: float) -> float:
    """Turns take so long that a job lasts some seconds, and several servers can be lost in it."""
    return now_s + 8 * (slower_by_number(worker, turn, now_s) - now_s)


def simulated_job(job: Job, plan: tuple[tuple[int, ...], int], watched: Watched, **options: object) -> SimulatedJob:
    return SimulatedJob(
        job, plan_of(*plan), slowly, observer=watched,
        **{"latency_s": 0.001, "server_s": 0.0005, "start_s": 0.05, "silence_s": 2.0, **options},
    )  # fmt: skip


def hit(simulated: SimulatedJob, number: int, role: str, how: str, pause_s: float = 4.0) -> None:
    """Kill or pause a server that has a mirror with all that it has, or that mirror; both must be well."""
    if (keeper := simulated.servers.keeper) is None:  # its coordinator has died
        return
    mirror, server = keeper.roster.mirror(number), keeper.roster.servers[number].name
    if mirror is None or not keeper._watched[mirror.name].is_synced:
        return
    both = [simulated.servers.all[name] for name in (server, mirror.name)]
    if any(one.is_dead or one._waiting is not None for one in both):
        return
    name = mirror.name if role == "mirror" else server
    if how == "kill":
        simulated.servers.kill(name)
    else:
        simulated.servers.all[name].pause()
        simulated.network.call_at(simulated.network.now_s + pause_s, simulated.servers.all[name].resume)


def some_hits(num_servers: int, draw: random.Random) -> list[tuple[float, int, str, str]]:
    return [
        (
            draw.uniform(0.0, 3.0),
            draw.randrange(num_servers),
            draw.choice(["server", "mirror"]),
            draw.choice(["kill", "kill", "pause"]),
        )
        for _ in range(draw.randint(1, 4))
    ]


def assert_equal_mirrors(simulated: SimulatedJob) -> None:
    """Every table of every server is that of its mirror: the servers compare digests themselves."""
    client = simulated.model.client
    client.compare_mirrors()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_batch_is_in_every_table_once_whichever_server_dies(
    job: Job, policy: str, plan: tuple[tuple[int, ...], int]
):
    mirrored = changed(job, sync=policy, **MIRRORED)
    clean = simulated_job(changed(job, sync=policy), plan, Watched())
    clean.run()
    expected = tables_of(clean)
    num_recoveries = 0
    for seed in range(8):
        draw = random.Random(seed)
        watched = Watched()
        simulated = simulated_job(mirrored, plan, watched, seed=seed, faults=STORM if seed % 2 else Faults())
        hits = some_hits(plan[1], draw)
        began = simulated.network.now_s
        for at, *what in hits:
            simulated.network.call_at(began + at, partial(hit, simulated, *what))
        if seed % 4 == 3:
            simulated.network.call_at(began + draw.uniform(0.0, 3.0), partial(kill, simulated, "worker-1.0"))
        simulated.run()
        where = (seed, hits, watched.warnings, watched.changes)
        assert simulated.failed is None, where
        assert simulated.core.is_over, where
        assert simulated.core.progress.samples == SAMPLES, where
        assert len(watched.losses) == NUM_BATCHES, where
        tables = tables_of(simulated)
        assert num_pushes(simulated) == {NUM_BATCHES}, where
        assert_equal_mirrors(simulated)
        if policy == "bsp":
            assert tables == expected, where
        num_recoveries += simulated.core.progress.recoveries
        simulated.close()
    assert num_recoveries > 4, "few came at work: other seeds are needed"
    clean.close()


SLEPT_THROUGH = {
    "a mirror that was replaced while it was paused, before its server died": (
        "bsp", ((1, 2, 1), 1), [(3.93, 0, "server", "kill"), (0.35, 0, "mirror", "pause")],
    ),
    "two servers, while the coordinator asked for nothing": (
        "asp", ((3,), 1), [(0.56, 0, "server", "kill"), (2.33, 0, "server", "kill")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SLEPT_THROUGH)
def test_clients_know_who_serves_though_all_whom_they_knew_are_gone(job: Job, name: str) -> None:
    policy, plan, hits = SLEPT_THROUGH[name]
    simulated = simulated_job(changed(job, sync=policy, **MIRRORED), plan, Watched())
    began = simulated.network.now_s
    for at, *what in hits:
        simulated.network.call_at(began + at, partial(hit, simulated, *what))
    simulated.run(began + 60.0)
    assert simulated.core.is_over, "it stands still"
    tables_of(simulated)
    assert num_pushes(simulated) == {NUM_BATCHES}
    assert len([one for one in simulated.servers.all.values() if one.is_dead]) >= 1
    simulated.close()


def test_a_client_that_has_asked_for_nothing_yet_knows_who_serves(job: Job) -> None:
    simulated = simulated_job(changed(job, sync="asp", **MIRRORED), ((2,), 1), Watched())
    idle = simulated.clients.connect("idle", 1, simulated.tables, lambda: None)
    simulated.network.call_at(simulated.network.now_s + 0.5, partial(hit, simulated, 0, "server", "kill"))
    simulated.run()
    assert simulated.servers.roster.servers[0].name == "server-0.1"
    assert idle.roster.servers == simulated.servers.roster.servers
    idle.close()
    simulated.close()
