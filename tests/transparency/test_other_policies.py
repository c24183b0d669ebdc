"""ASP, SSP and DSSP: each batch is an update of its own, so runs differ from one process, and from each other; but they
learn as well, take every batch once, and keep the bounds that they promise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transparent import Trained, assert_same, changed, make_job, make_plan, on_threads, train, write_data
from zoo_cases import CASES

from heterps.config import DSSP, SSP, Data, Job, Model
from heterps.data.keys import slots_from_ids
from heterps.sync import replay

POLICIES = ("asp", "ssp:2", "dssp:1:4")
SOME = [pytest.param("asp", marks=pytest.mark.slow), pytest.param("ssp:2", marks=pytest.mark.slow), "dssp:1:4"]


@pytest.fixture(scope="module")
def demo(criteo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Trained]:
    """The data of the demo, and what one process learns from it."""
    job = Job(
        model=Model(factory="ctr_dnn", args={"embedding_dim": 4, "hidden": (16,)}),
        data=Data(train=str(criteo / "train"), test=str(criteo / "test"), batch_size=256),
        threads=1,
    )
    job = changed(job, cluster=make_job("ctr_dnn", criteo).cluster.model_dump())
    return job, train(job, tmp_path_factory.mktemp("inline") / "run")


@pytest.mark.parametrize(
    ("sync", "counts", "cuts"), [("asp", (2,), ()), ("ssp:2", (2, 1), (2,)), ("dssp:1:4", (2,), ())]
)
def test_it_learns_as_well_as_one_process(demo: tuple[Job, Trained], tmp_path: Path, sync, counts, cuts):
    job, one = demo
    other = train(on_threads(job, sync=sync), tmp_path / "run", make_plan(job, counts, cuts))
    assert one.outcome.test is not None
    assert other.outcome.test is not None
    assert other.outcome.test["auc"] > one.outcome.test["auc"] - 0.005
    assert_bounds(other)


def leads(folder: Path) -> dict[str, list[int]]:
    """By trace: the lead at which every iteration was started."""
    return {
        path.name: [
            line["lead"] for line in map(json.loads, path.read_text().splitlines()) if line.get("event") == "released"
        ]
        for path in sorted((folder / "traces").glob("stage-*.jsonl"))
    }


def assert_bounds(trained: Trained) -> None:
    """Traces replay to the same decisions, and nobody starts too far ahead."""
    found = leads(trained.folder)
    assert found
    for name, started in found.items():
        policy = replay(trained.folder / "traces" / name)
        assert len(started) > 0
        config = policy.config
        if isinstance(config, SSP):
            assert max(started) <= config.lower
        elif isinstance(config, DSSP):
            assert max(started) <= config.lower + config.spread


@pytest.mark.parametrize("sync", SOME)
@pytest.mark.parametrize(
    ("counts", "cuts", "epochs", "num_rows"),
    [((3,), (), 2, 250), ((2, 3), (4,), 3, 101), ((1, 2, 1), (2, 5), 1, 250), ((4,), (), 3, 20)],
    ids=["one stage", "two stages", "three stages", "fewer batches than workers"],
)
def test_every_batch_of_every_epoch_is_done_once(tmp_path: Path, sync, counts, cuts, epochs, num_rows):
    data = tmp_path / "numbered.parquet"
    write_data(data, CASES["two_emb"][0], num_rows, t=np.arange(num_rows))
    job = changed(make_job("two_emb", data, 12), data={"epochs": epochs}, sync=sync)
    trained = train(on_threads(job, 2), tmp_path / "run", make_plan(job, counts, cuts, 2))
    batches = -(-num_rows // 12)
    assert trained.outcome.samples == num_rows * epochs
    assert len(trained.losses) == batches * epochs == trained.snapshot.clock
    assert trained.watcher.samples == sorted(trained.watcher.samples)
    assert_bounds(trained)
    assert uses_of_rows(trained, num_rows) == [1 + epochs] * num_rows, "not every batch was pushed once an epoch"


def uses_of_rows(trained: Trained, num_rows: int) -> list[int]:
    """Of slot t, in which every sample has another id: 1 when a row is new, and 1 more with every push. They fade, but
    little."""
    table = trained.snapshot.tables["tiny"].whole()
    numbered = slots_from_ids(np.arange(num_rows)[:, None], ("t",)).keys
    return np.round(table.uses[np.isin(table.keys, numbered)]).astype(int).tolist()


@pytest.mark.parametrize("sync", SOME)
def test_a_run_stopped_and_resumed_takes_what_is_left_and_nothing_twice(tmp_path: Path, sync):
    num_rows = 200
    data = tmp_path / "numbered.parquet"
    write_data(data, CASES["two_emb"][0], num_rows, t=np.arange(num_rows))
    job = changed(make_job("two_emb", data, 12), data={"epochs": 2}, sync=sync)
    first = train(on_threads(job, 2), tmp_path / "run", make_plan(job, (2, 3), (4,)), stop_after=9)
    second = train(on_threads(job), tmp_path / "run", make_plan(job, (3,)), resume=True)
    assert first.outcome.stopped_by == "SIGTERM"
    assert len(first.losses) + len(second.losses) == 2 * 17
    assert second.outcome.samples == 2 * num_rows
    assert uses_of_rows(second, num_rows) == [3] * num_rows
    assert_bounds(second)


@pytest.mark.parametrize("sync", SOME)
def test_rows_that_a_policy_skips_end_every_epoch_for_all_lanes(tmp_path: Path, sync):
    schema = CASES["two_emb"][0]
    holes = [None if n % 3 == 0 else float(n % 7) for n in range(180)]
    write_data(tmp_path / "holes.parquet", schema, 180, a=holes)
    columns = schema.model_dump() | {"dense_missing": "skip"}
    job = changed(
        make_job("two_emb", tmp_path / "holes.parquet", 12), data={"epochs": 3, "columns": columns}, sync=sync
    )
    trained = train(on_threads(job), tmp_path / "run", make_plan(job, (2, 1), (4,)))
    assert (trained.outcome.samples, len(trained.losses)) == (3 * 120, 3 * 10)
    assert_bounds(trained)


def test_one_worker_and_one_lane_is_one_process_whatever_the_policy(tmp_path: Path):
    """Nobody is there to be stale."""
    write_data(tmp_path / "data.parquet", CASES["two_emb"][0], 120)
    job = make_job("two_emb", tmp_path / "data.parquet")
    one = train(job, tmp_path / "one")
    many = on_threads(job, sync="asp", workers={"lanes": 1})
    assert_same(one, train(many, tmp_path / "many", make_plan(job, (1, 1), (4,))))
