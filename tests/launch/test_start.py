"""Jobs that start from another run, a saved model or a file of rows; and what is frozen stays as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from numpy.typing import NDArray

import heterps
from heterps.checkpoint import Snapshot, latest, load
from heterps.cli import main
from heterps.config import Job
from heterps.data.keys import make_keys
from heterps.training.model.start import projection
from heterps.training.run.folder import Run

MODEL = '''
"""Two models of the same samples: the second has other names, one more slot and one more layer."""

import torch
from torch import nn

from heterps.config import Zero
from heterps.nn import SparseEmbedding


class First(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.rows = SparseEmbedding(["user", "item"], dim, tables="per_slot", init_scale=0.5)
        self.mlp = nn.Sequential(nn.Linear(2 * dim + 1, 6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, dense, slots):
        return self.mlp(torch.cat([dense, self.rows(slots).flatten(1)], 1)).squeeze(1)


class Second(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.people = SparseEmbedding(["user"], dim, init_scale=0.5)
        self.things = SparseEmbedding(["item"], dim, init_scale=0.5)
        self.town = SparseEmbedding(["town"], 1, init=Zero())
        self.deep = nn.Sequential(nn.Linear(2 * dim + 1, 6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, dense, slots):
        rows = [self.people(slots).flatten(1), self.things(slots).flatten(1)]
        return (self.deep(torch.cat([dense, *rows], 1)) + self.town(slots).sum(1)).squeeze(1)
'''

RENAME = {"people": "rows.user", "things": "rows.item", "deep": "mlp"}


def write_data(path: Path, num_rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    user, item = random.integers(0, 10, num_rows), random.integers(0, 12, num_rows)
    table = {
        "label": (user + item) % 2,
        "x": random.normal(size=num_rows),
        "user": [f"u{number}" for number in user],
        "item": item,
        "town": random.integers(0, 3, num_rows),
    }
    pq.write_table(pa.table(table), path, row_group_size=64)


def job_of(model: str, slots: list[str], **fields: Any) -> dict[str, Any]:
    return {
        "name": model,
        "model": {"factory": f"models.py:{model}"},
        "data": {
            "train": "train.parquet", "test": "test.parquet", "batch_size": 32,
            "columns": {"dense": ["x"], "slots": slots},
        },
        "optimizers": {"sparse": {"kind": "adagrad", "lr": 0.1}, "dense": {"kind": "adam", "lr": 0.01}},
        "threads": 2,
        **fields,
    }  # fmt: skip


FIRST = job_of("First", ["user", "item"])
SECOND = job_of("Second", ["user", "item", "town"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, models, and a run `first` of the first model."""
    folder = tmp_path_factory.mktemp("start")
    write_data(folder / "train.parquet", 640, 1)
    write_data(folder / "test.parquet", 200, 2)
    (folder / "models.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_command(FIRST, "first")
    return folder


@pytest.fixture(autouse=True)
def _here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def run_command(job: Mapping[str, Any], run: str, *words: str) -> dict[str, Any]:
    """Train a job by the command; return its summary."""
    Path(f"{run}.yaml").write_text(yaml.safe_dump(dict(job)))
    with pytest.raises(SystemExit) as ended:
        main(["train", f"{run}.yaml", "--run", run, *words])
    assert ended.value.code == 0
    summary: dict[str, Any] = json.loads((Path(run) / "summary.json").read_text())
    return summary


def refused(job: Mapping[str, Any], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """The words with which the command refuses a job; it leaves no folder."""
    Path("refused.yaml").write_text(yaml.safe_dump(dict(job)))
    with pytest.raises(SystemExit) as ended:
        main(["train", "refused.yaml", "--run", "refused"])
    assert ended.value.code == code
    assert not Path("refused").exists()
    return " ".join(capsys.readouterr().err.split())


def last(run: str) -> Snapshot:
    path = latest(Path(run) / "checkpoints")
    assert path is not None
    return load(path)


def rows_of(snapshot: Snapshot, table: str) -> dict[int, NDArray[np.float32]]:
    whole = snapshot.tables[table].whole()
    return dict(zip(whole.keys.tolist(), np.hstack([whole.values, whole.state]), strict=True))


def same(ours: Mapping[int, NDArray[np.float32]], theirs: Mapping[int, NDArray[np.float32]]) -> bool:
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[key], theirs[key]) for key in ours)


LOCAL = {"launcher": "local", "servers": {"count": 2, "channel": "memory"}, "workers": {"channel": "memory"}}
NOTHING = {"optimizers": {"freeze": ["people", "things", "deep.*"], "sparse": {"kind": "adagrad", "lr": 0.1}}}


@pytest.mark.parametrize("launcher", [{}, LOCAL], ids=["inline", "local"])
def test_a_job_with_new_names_and_one_more_slot_begins_where_the_other_ended(launcher: dict[str, Any]) -> None:
    """All that was taken is frozen and the new slot begins with zeros, whose table learns too slowly to be seen."""
    optimizers = {"freeze": ["people", "things", "deep.*"], "sparse": {"kind": "sgd", "lr": 1e-12}}
    start = {"model": "first", "rename": RENAME}
    run = f"second-{launcher.get('launcher', 'inline')}"
    summary = run_command({**SECOND, **launcher, "optimizers": optimizers, "start": start}, run)
    first = json.loads((Path("first") / "summary.json").read_text())
    assert summary["auc"] == first["auc"]
    assert summary["log_loss"] == pytest.approx(first["log_loss"], abs=1e-6)
    begun = summary["start"]
    assert begun["model"].startswith("first/checkpoints/")
    assert begun["tables"] == {"people": 10, "things": 12}
    assert begun["renamed"]["deep.0.weight"] == "mlp.0.weight"
    assert begun["fresh"] == ["town"]
    assert begun["ignored"] == []
    assert len(begun["weights"]) == 4


@pytest.mark.parametrize("sync", ["bsp", "ssp:2"])
@pytest.mark.parametrize("launcher", [{}, LOCAL], ids=["inline", "local"])
def test_what_is_frozen_stays_as_it_is_to_the_bit(launcher: dict[str, Any], sync: str) -> None:
    optimizers = {**SECOND["optimizers"], "freeze": ["things", "deep.0.*"], "clip": {"norm": 1.0}}
    start = {"model": "first", "rename": RENAME}
    run = f"frozen-{launcher.get('launcher', 'inline')}-{sync.partition(':')[0]}"
    job = {**SECOND, **launcher, "optimizers": optimizers, "start": start, "sync": sync}
    if launcher and sync != "bsp":
        job["optimizers"] = {**optimizers, "clip": None}
    run_command(job, run)
    before, after = last("first"), last(run)
    ours, theirs = (rows_of(snapshot, name) for snapshot, name in ((after, "things"), (before, "rows.item")))
    assert same(ours, theirs)
    assert not same(rows_of(after, "people"), rows_of(before, "rows.user"))
    assert np.array_equal(after.dense["model/deep.0.weight"], before.dense["model/mlp.0.weight"])
    assert not np.array_equal(after.dense["model/deep.2.weight"], before.dense["model/mlp.2.weight"])
    state = after.dense["optimizer/state"].reshape(2, -1)  # of Adam: m and v of every value
    frozen = before.dense["model/mlp.0.weight"].size + before.dense["model/mlp.0.bias"].size
    assert not state[:, :frozen].any()
    assert state[:, frozen:].all()


def test_workers_train_a_started_job_as_one_process_does() -> None:
    start = {"model": "first", "rename": RENAME}
    job = {**SECOND, "start": start, "optimizers": {**SECOND["optimizers"], "freeze": ["deep.2.*"]}}
    inline, local = run_command(job, "equal-inline"), run_command({**job, **LOCAL}, "equal-local")
    assert local["log_loss"] == pytest.approx(inline["log_loss"], rel=1e-5)
    ours, theirs = rows_of(last("equal-local"), "people"), rows_of(last("equal-inline"), "people")
    assert ours.keys() == theirs.keys()
    assert all(np.allclose(ours[key], theirs[key], rtol=1e-4, atol=1e-6) for key in ours)


@pytest.mark.parametrize("launcher", [{}, LOCAL], ids=["inline", "local"])
def test_tables_with_rows_on_disk_start_too(launcher: dict[str, Any]) -> None:
    optimizers = {**FIRST["optimizers"], "freeze": ["rows.*"]}
    run = f"tiers-{launcher.get('launcher', 'inline')}"
    tiers = {"memory_bytes": 1 << 20}
    run_command({**FIRST, **launcher, "start": "first", "optimizers": optimizers, "tiers": tiers}, run)
    for table in ("rows.user", "rows.item"):
        assert same(rows_of(last(run), table), rows_of(last("first"), table))


def test_the_best_checkpoint_of_a_run_is_started_from() -> None:
    """With such rates and this seed the best validation is that after 19 of 32 steps."""
    wild = {"sparse": {"kind": "sgd", "lr": 1.0}, "dense": {"kind": "sgd", "lr": 1.0}}
    data = {**FIRST["data"], "validation": {"share": 0.2}, "epochs": 2}
    validation = {"every_samples": 64, "keep_best": True}
    run_command({**FIRST, "data": data, "validation": validation, "optimizers": wild, "seed": 2}, "wild")
    newest = latest(Path("wild/checkpoints"))
    summary = run_command({**FIRST, "start": "wild"}, "tamed")
    progress = last("wild").progress["validation"]
    assert newest is not None
    assert load(summary["start"]["model"]).clock == progress["best"]["clock"] < last("wild").clock


def test_rows_of_a_file_begin_under_their_original_ids() -> None:
    vectors = np.arange(20, dtype=np.float32).reshape(5, 4)
    ids = ["u0", "u3", "u7", "nobody", "äöü"]
    pq.write_table(pa.table({"name": ids, "v": list(vectors)}), "users.parquet")
    numbers = pa.array(np.ones((2, 4)).tolist(), pa.list_(pa.float64(), 4))
    pq.write_table(pa.table({"id": [3, 99], "vector": numbers}), "items.parquet")
    rows = {"user": {"file": "users.parquet", "id": "name", "vector": "v"}, "item": {"file": "items.parquet"}}
    freeze = ["rows.*", "mlp.0.*"]
    optimizers = {**FIRST["optimizers"], "freeze": freeze}
    summary = run_command({**FIRST, "start": {"model": "first", "rows": rows}, "optimizers": optimizers}, "given")
    assert summary["start"]["from_files"] == {"rows.user": 5, "rows.item": 2}
    user, item, before = (rows_of(*of) for of in (
        (last("given"), "rows.user"), (last("given"), "rows.item"), (last("first"), "rows.user"),
    ))  # fmt: skip
    keys = make_keys(np.array(ids), "user").tolist()
    assert np.array_equal(np.stack([user[key][:4] for key in keys]), vectors)
    assert not np.stack([user[key][4:] for key in keys]).any()  # no steps so far
    assert user.keys() == before.keys() | set(keys)
    others = before.keys() - set(keys)
    assert len(others) == 7
    assert all(np.array_equal(user[key], before[key]) for key in others)
    assert np.array_equal(item[make_keys(np.array([99]), "item").tolist()[0]][:4], np.ones(4))


@pytest.mark.parametrize(("dim", "dims"), [(6, "overlap"), (2, "overlap"), (6, "project"), (2, "project")])
def test_rows_and_weights_of_another_size_overlap_or_are_projected(dim: int, dims: str) -> None:
    fresh = ["mlp.0.*"] if dims == "project" else []
    start = {"model": "first", "dims": dims, "fresh": fresh}
    optimizers = {**FIRST["optimizers"], "freeze": ["rows.*", "mlp.0.*"]}
    model = {**FIRST["model"], "args": {"dim": dim}}
    run = f"{dims}-{dim}"
    summary = run_command({**FIRST, "model": model, "start": start, "optimizers": optimizers}, run)
    before, after = last("first"), last(run)
    theirs, ours = rows_of(before, "rows.user"), rows_of(after, "rows.user")
    assert theirs.keys() == ours.keys()
    old = np.stack([theirs[key][:4] for key in sorted(theirs)])
    new = np.stack([ours[key][:dim] for key in sorted(theirs)])
    both = min(dim, 4)
    if dims == "overlap":
        assert np.array_equal(new[:, :both], old[:, :both])
        assert np.all(np.abs(new[:, both:]) < 0.5)
        mine, other = after.dense["model/mlp.0.weight"], before.dense["model/mlp.0.weight"]
        both = min(mine.shape[1], other.shape[1])
        assert np.array_equal(mine[:, :both], other[:, :both])
        assert {"mlp.0.weight", "rows.user"} <= set(summary["start"]["resized"])
    elif dim == 6:
        assert np.allclose(new @ new.T, old @ old.T, atol=1e-5)  # angles and lengths stay
        assert not np.allclose(new[:, :4], old)
    else:
        assert np.linalg.matrix_rank(new) == 2


def test_a_projection_keeps_dot_products_on_average() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 16))
    found = [(a @ projection(16, 4, seed)) @ (b @ projection(16, 4, seed)) for seed in range(2000)]
    assert np.mean(found) == pytest.approx(a @ b, abs=4 * np.std(found) / 2000**0.5)


def test_a_job_starts_from_a_checkpoint_or_a_saved_model() -> None:
    path = latest(Path("first") / "checkpoints")
    optimizers = {**FIRST["optimizers"], "freeze": ["rows.*"]}
    by_checkpoint = run_command({**FIRST, "start": str(path), "optimizers": optimizers}, "by-checkpoint")
    assert by_checkpoint["start"]["tables"] == {"rows.user": 10, "rows.item": 12}
    model = heterps.load("first", into=_first())
    heterps.save(model, "saved")
    run_command({**FIRST, "start": "saved", "optimizers": optimizers}, "by-saved")
    for run in ("by-checkpoint", "by-saved"):
        assert same(rows_of(last(run), "rows.item"), rows_of(last("first"), "rows.item"))
    assert np.array_equal(
        last("by-saved").dense["model/mlp.0.weight"], last("by-checkpoint").dense["model/mlp.0.weight"]
    )


def _first() -> Any:
    from heterps.model.build import build_model

    job = Job.model_validate(FIRST)
    return build_model(job.model, job.data.columns, 0)


def test_a_resumed_run_goes_on_and_does_not_start_anew() -> None:
    start = {"model": "first", "rename": RENAME}
    whole = run_command({**SECOND, "start": start, "data": {**SECOND["data"], "epochs": 2}}, "whole")
    run_command({**SECOND, "start": start}, "halves")
    again = run_command({**SECOND, "start": start, "data": {**SECOND["data"], "epochs": 2}}, "halves", "--resume")
    assert again["start"] == whole["start"]
    assert again["log_loss"] == pytest.approx(whole["log_loss"], rel=1e-6)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_run_that_died_early_goes_on_from_its_start(has_begun: bool) -> None:
    job = {**SECOND, "start": {"model": "first", "rename": RENAME}}
    expected = run_command(job, f"undisturbed-{has_begun}")
    run = Run(Path(f"died-{has_begun}"))
    run.create(Job.model_validate(job))
    if has_begun:
        name = "0000000000"
        shutil.copytree(f"undisturbed-{has_begun}/checkpoints/{name}", run.checkpoints / name)
        shutil.copy(f"undisturbed-{has_begun}/start.json", run.folder)
    resumed = run_command(job, run.folder.name, "--resume")
    assert resumed["log_loss"] == pytest.approx(expected["log_loss"], rel=1e-6)
    assert resumed["start"] == expected["start"]


def test_a_start_is_told_and_python_takes_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    run_command({**SECOND, "start": {"model": "first", "rename": RENAME, "fresh": ["deep.2.*"]}}, "told")
    said = " ".join(capsys.readouterr().out.split())
    assert "starts from first/checkpoints/" in said
    assert "22 rows of people, things, 2 weights" in said
    assert "fresh: deep.2.weight, deep.2.bias, town; ignored: mlp.2.bias, mlp.2.weight" in said
    run = heterps.train(
        folder="python", model="models.py:First", data="train.parquet", label="label", dense=["x"],
        slots=["user", "item"], start="first", optimizers={"freeze": ["rows.*"]}, batch_size=64,
    )  # fmt: skip
    assert run.summary["start"]["tables"] == {"rows.user": 10, "rows.item": 12}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"start": {"model": "first"}}, "has nothing that this model has: rows.user"),
        ({"start": {"model": "first", "rename": {"peple": "rows.user"}}}, "peple is no table or parameter of the"),
        ({"start": {"model": "first", "rename": {"people": "rows.users"}}}, "has no rows.users, only"),
        ({"start": {"model": "first", "rename": RENAME, "fresh": ["head.*"]}}, "start.fresh: head.* matches nothing"),
        ({"start": {"model": "first", "rename": {"a.*": "b"}}}, "write one * in both names"),
        ({"start": {"rename": RENAME}}, "name it in start.model"),
        ({"start": {}}, "give a model, or files of rows"),
        ({"optimizers": {"freeze": ["peple"]}}, "optimizers.freeze: peple matches no table or parameter"),
        ({"optimizers": {"freeze": ["*"]}}, "there is nothing to train"),
        ({"start": {"rows": {"nowhere": {"file": "strange.parquet"}}}}, "nowhere is no slot of an embedding"),
        ({"start": {"rows": {"town": {"file": "strange.parquet", "table": "people"}}}}, "not in people, but in town"),
        ({"start": {"rows": {"people": {"file": "x"}}}}, "people is no slot"),
    ],
)
def test_a_start_that_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], fields: dict[str, Any], sentence: str
) -> None:
    assert sentence in refused({**SECOND, **fields}, capsys)


def test_another_size_is_refused_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    model = {**FIRST["model"], "args": {"dim": 6}}
    said = refused({**FIRST, "model": model, "start": "first"}, capsys)
    assert "mlp.0.weight is [6, 13] here and [6, 9] there" in said
    assert "rows of table rows.user have 6 values here and 4 there" in said
    assert refused({**FIRST, "start": "nowhere"}, capsys, code=6)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"id": [1, 2], "vector": [[1.0] * 4] * 2}, "ids of the training data are of kind string"),
        ({"id": ["a", "a"], "vector": [[1.0] * 4] * 2}, "an id of column id is there twice"),
        ({"id": ["a", None], "vector": [[1.0] * 4] * 2}, "the id is null"),
        ({"id": ["a", "b"], "vector": [[1.0] * 4, None]}, "the vector is null"),
        (
            {"id": ["a", "b"], "vector": [[1.0] * 4, [1.0] * 3]},
            "row 1 of row group 0), column vector: the vector has",
        ),
        ({"id": ["a"], "vector": [[1.0, float("nan"), 1.0, 1.0]]}, "not finite"),
        ({"id": ["a"], "vector": ["no list"]}, "not lists"),
        ({"id": ["a"], "vectors": [[1.0] * 4]}, "there is no column vector. It has: id, vectors"),
    ],
)
def test_files_of_rows_that_are_wrong_are_refused(
    capsys: pytest.CaptureFixture[str], columns: dict[str, Any], sentence: str
) -> None:
    pq.write_table(pa.table(columns), "strange.parquet")
    assert sentence in refused({**FIRST, "start": {"rows": {"user": {"file": "strange.parquet"}}}}, capsys, code=4)


def test_vectors_of_another_size_are_refused_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"id": ["a"], "vector": [[1.0, 2.0]]}), "short.parquet")
    start = {"rows": {"user": {"file": "short.parquet"}}}
    assert "vectors of short.parquet have 2 values, rows of table rows.user have 4" in refused(
        {**FIRST, "start": start}, capsys
    )
