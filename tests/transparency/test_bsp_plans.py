"""BSP over any plan trains as one process does on the whole batch: the same loss in each step, the same tables.

inline  |batch|--> loss --> update            any plan  |lanes|--> stages --> sum --> update
                                                        equal, but for the order in which floats are added
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from random import Random

import pytest
from transparent import (
    Trained,
    assert_same,
    make_job,
    make_plan,
    num_layers,
    on_processes,
    on_threads,
    train,
    write_data,
)
from zoo_cases import CASES

from heterps.config import Job

BATCH_SIZE = 24
FEW_STEPS, MANY_STEPS = 20, 50  # the last is a smaller one
MODELS = ("ctr_dnn", "deepfm", "two_emb", "match_net")
Reference = Callable[..., tuple[Job, Trained]]

COVERING = [
    # model, workers of each stage, first layers of stages after the first (None: drawn), servers, dense parameters
    ("ctr_dnn", (1,), None, 1, "servers"),
    ("ctr_dnn", (4,), None, 3, "all_reduce"),
    ("ctr_dnn", (2, 3), None, 1, "servers"),
    ("ctr_dnn", (1, 2, 4), None, 3, "servers"),
    ("deepfm", (3, 1), (1,), 1, "all_reduce"),  # an embedding alone, whose rows three layers far ahead take
    ("deepfm", (2, 1, 2), (4, 11), 1, "servers"),  # first_order crosses two borders
    ("two_emb", (4,), None, 1, "servers"),
    ("two_emb", (2, 2), (4,), 3, "servers"),  # an embedding on each resource
    ("two_emb", (1, 3, 2), (1, 5), 1, "all_reduce"),  # and the keys of the second cross a border
    ("match_net", (4, 1), (5,), 1, "servers"),  # a tower on each
    ("match_net", (1, 1, 4), None, 3, "servers"),
    ("din", (3,), None, 1, "servers"),
    ("din", (2, 2), (1,), 2, "servers"),  # both stages push to one table: the item in one, its history in the other
    ("din", (1, 2, 1), (2, 4), 1, "all_reduce"),  # rows and their mask cross a border
    ("bst", (2, 1), (3,), 1, "servers"),
    ("bst", (1, 2, 1), (1, 7), 2, "servers"),  # attention in one stage, feed-forward in the next
]
SPLITS = [(1,), (2,), (4,), (1, 1), (2, 2), (4, 4), (2, 3), (3, 1), (1, 1, 1), (2, 2, 2), (4, 4, 4), (1, 2, 4)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The job of a model, and what comes of it in one process."""

    @cache
    def find(model: str, num_steps: int = FEW_STEPS) -> tuple[Job, Trained]:
        folder, num_rows = tmp_path_factory.mktemp("reference"), BATCH_SIZE * num_steps - 10
        data = folder / f"{model}.parquet"
        lists = {"history": histories(num_rows)} if model in ("din", "bst") else {}
        write_data(data, CASES[model][0], num_rows, **lists)
        # The bias of keys has no effect on attention: its gradient is rounding, which Adam would make steps of.
        dense = {"optimizers": {"dense": {"kind": "sgd", "lr": 0.1}}} if model == "bst" else {}
        job = make_job(model, data, BATCH_SIZE, **dense)
        return job, train(job, folder / model)

    return find


def histories(num_rows: int) -> list[list[int]]:
    """Lists of 0 to 7 of the ids that items have: some are longer than the models look at."""
    random = Random(0)
    return [[random.randrange(30) for _ in range(random.randrange(8))] for _ in range(num_rows)]


def drawn_cuts(job: Job, counts: tuple[int, ...]) -> list[int]:
    """As random as they can be and still the same in every run of the test."""
    return sorted(Random(f"{job.name} {counts}").sample(range(1, num_layers(job)), len(counts) - 1))


@pytest.mark.parametrize(("model", "counts", "cuts", "servers", "dense"), COVERING)
def test_a_plan_on_threads_trains_as_one_process(
    reference: Reference, tmp_path: Path, model, counts, cuts, servers, dense
):
    job, one = reference(model)
    assert len(one.losses) == FEW_STEPS
    plan = make_plan(job, counts, cuts or drawn_cuts(job, counts), servers)
    assert_same(one, train(on_threads(job, servers, workers={"dense": dense}), tmp_path / "run", plan))


@pytest.mark.parametrize(
    ("model", "counts", "cuts", "servers", "dense"),
    [
        ("two_emb", (2, 1), (4,), 1, "servers"),
        ("deepfm", (1, 2), (5,), 1, "all_reduce"),
        ("din", (1, 2), (2,), 1, "servers"),
    ],
)
def test_a_plan_on_processes_trains_as_one_process(
    reference: Reference, tmp_path: Path, model, counts, cuts, servers, dense
):
    job, one = reference(model)
    plan = make_plan(job, counts, cuts, servers)
    assert_same(one, train(on_processes(job, servers, workers={"dense": dense}), tmp_path / "run", plan))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "counts", "servers", "dense"), list(product(MODELS, SPLITS, (1, 3), ("servers", "all_reduce")))
)
def test_every_plan_on_threads_trains_as_one_process(
    reference: Reference, tmp_path: Path, model, counts, servers, dense
):
    job, one = reference(model, MANY_STEPS)
    plan = make_plan(job, counts, drawn_cuts(job, counts), servers)
    assert_same(one, train(on_threads(job, servers, workers={"dense": dense}), tmp_path / "run", plan))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "counts", "servers_and_dense"),
    list(product(MODELS, [(2,), (2, 3), (1, 2, 1)], [(1, "all_reduce"), (3, "servers")])),
)
def test_every_plan_on_processes_trains_as_one_process(
    reference: Reference, tmp_path: Path, model, counts, servers_and_dense
):
    servers, dense = servers_and_dense
    job, one = reference(model, MANY_STEPS)
    plan = make_plan(job, counts, drawn_cuts(job, counts), servers)
    assert_same(one, train(on_processes(job, servers, workers={"dense": dense}), tmp_path / "run", plan))


def test_a_plan_run_twice_gives_the_same_bits(reference: Reference, tmp_path: Path):
    job, _ = reference("two_emb")
    plan = make_plan(job, (2, 3), (4,), 2)
    one, other = (train(on_threads(job, 2), tmp_path / run, plan) for run in ("one", "other"))
    assert_same(one, other, exact=True)
