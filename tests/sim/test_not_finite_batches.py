"""Batches that are skipped in a simulated job, while workers and coordinators die: the tables are those of a job in
which nobody died, and each batch is skipped once."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from one_thread import one_torch_thread  # noqa: F401
from test_killed_coordinator import simulate
from test_killed_workers import BATCH, NUM_BATCHES, num_pushes, some_kills, tables_of
from test_simulated_job import SAMPLES, changed, job, plan_of, slower_by_number
from tiny import write_tiny

from heterps.config import Job
from heterps.sim.job import SimulatedJob

__all__ = ["job"]  # a fixture

MODEL = """
import torch
import heterps

class Net(torch.nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.embedding = heterps.nn.SparseEmbedding(schema.slots, 4)
        self.first = torch.nn.Linear(10, 8)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, dense, slots):
        x = torch.cat([dense * dense, self.embedding(slots).flatten(1)], 1)
        return self.last(self.first(x)).squeeze(1)
"""


def skipping(job: Job, num_bad: int, sync: str = "bsp") -> Job:
    """The job with so many rows, in batches of their own, that have no finite loss."""
    Path("squares.py").write_text(MODEL)
    values = np.random.default_rng(1).normal(size=SAMPLES)
    values[4 : 4 + num_bad * BATCH : BATCH] = 1e38
    write_tiny(Path("train.parquet"), SAMPLES, a=list(values))
    data = job.data.model_dump() | {"shuffle": False}
    model, workers = {"factory": "squares.py:Net"}, {"backoff_s": 0.05}
    return changed(job, model=model, data=data, on_not_finite="skip", workers=workers, sync=sync)


@pytest.mark.parametrize("plan", [((2,), 2), ((1,), 2), ((2, 1), 2)], ids=str)
def test_in_rounds_a_batch_is_skipped_by_all_whoever_dies(job: Job, plan: tuple[tuple[int, ...], int]) -> None:
    job = skipping(job, 4)
    _, clean = simulate(job, plan, [], {})
    expected = tables_of(clean)
    assert (clean.core.progress.skips.batches, num_pushes(clean)) == (4, {NUM_BATCHES - 4})
    for seed in range(6):
        draw = random.Random(seed)
        deaths = [draw.uniform(0.002, 0.3) for _ in range(draw.randint(1, 3))]
        kills = some_kills(plan[0], seed) if seed % 2 else {}
        _, simulated = simulate(job, plan, deaths, kills)
        progress, tables, where = simulated.core.progress, tables_of(simulated), (seed, deaths, kills)
        assert (progress.samples, progress.skips.batches, progress.skips.samples) == (SAMPLES, 4, 4 * BATCH), where
        assert simulated.core.clock == NUM_BATCHES, where
        assert num_pushes(simulated) == {NUM_BATCHES - 4}, where
        assert tables == expected, where
        simulated.close()
    clean.close()


@pytest.mark.parametrize("policy", ["asp", "ssp:2", "dssp:1:4"])
def test_without_rounds_each_batch_is_in_the_tables_once_or_skipped_once(job: Job, policy: str) -> None:
    job = skipping(job, 4, policy)
    for seed in range(4):
        draw = random.Random(seed)
        _, simulated = simulate(job, ((2,), 2), [draw.uniform(0.002, 0.3)], some_kills((2,), seed))
        progress = simulated.core.progress
        assert (progress.samples, progress.skips.batches) == (SAMPLES, 4), seed
        assert num_pushes(simulated) == {NUM_BATCHES - 4}, seed
        simulated.close()


def test_too_many_skipped_batches_end_a_simulated_job(job: Job) -> None:
    simulated = SimulatedJob(skipping(job, 12), plan_of((2,), 1), slower_by_number)
    simulated.run()
    assert simulated.failed is not None
    assert "the last 10 batches were all skipped" in simulated.failed
    simulated.close()
