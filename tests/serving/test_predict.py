"""heterps predict and heterps.load: what a trained model says of samples."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import xxhash
from command import heterps as as_process
from command import heterps_here as command
from shop import shop_table
from sklearn.metrics import roc_auc_score
from torch import nn

import heterps
from heterps.errors import ConfigError, CorruptCheckpoint, DataError, ModelError, RunError
from heterps.hashing import mix64
from heterps.serving.load import LoadedModel
from heterps.serving.source import Trained, with_trained


@pytest.fixture(scope="module")
def scores(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    out = tmp_path_factory.mktemp("scores") / "scores.parquet"
    done = as_process(
        "predict", shop, shop.parent / "test.parquet", "--out", out, "--columns", "user,click", "--keys", "--workers",
        "2", "--json", cwd=out.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rows"] == 300
    assert told["version"] == "20"
    assert 0 < told["unknown_ids"] < told["ids"]
    assert told["missing"]["age"] > 0
    return pq.read_table(out)


def test_scores_have_the_quality_that_training_told_of_the_test_set(shop: Path, scores: pa.Table) -> None:
    summary = json.loads((shop / "summary.json").read_text())
    auc = roc_auc_score(scores["click"].to_numpy(), scores["score"].to_numpy())
    assert auc == pytest.approx(summary["auc"], abs=1e-6)


def test_results_are_in_the_order_of_rows_with_the_columns_that_were_asked_for(shop: Path, scores: pa.Table) -> None:
    data = pq.read_table(shop.parent / "test.parquet")
    assert scores.column_names == ["row", "user", "click", "key_user", "key_item", "key_tags", "key_hour", "score"]
    assert scores["row"].to_pylist() == list(range(300))
    assert scores["user"].to_pylist() == data["user"].to_pylist()
    assert [*map(len, scores["key_tags"].to_pylist())] == [*map(len, data["tags"].to_pylist())]
    expected = mix64(np.uint64(data["item"][0].as_py() ^ xxhash.xxh3_64_intdigest(b"item")))
    assert scores["key_item"][0].as_py() == int(expected)


@pytest.mark.parametrize("as_data", [pd.DataFrame, pl.DataFrame, dict, pa.table])
def test_frames_get_the_scores_of_files(as_data: Callable[[Any], Any], shop: Path, scores: pa.Table) -> None:
    data = pq.read_table(shop.parent / "test.parquet").drop_columns(["click"])  # no label is needed
    columns = {name: data[name].to_pylist() for name in data.column_names}
    with heterps.load(shop) as model:
        found = model.predict(as_data(columns))
        assert model.module.training is False
    np.testing.assert_allclose(found, scores["score"].to_numpy(), atol=1e-6)


def test_the_size_of_batches_and_the_number_of_threads_change_nothing(shop: Path, scores: pa.Table) -> None:
    with heterps.load(shop) as model:
        found = model.predict(str(shop.parent / "test.parquet"), batch_size=7, threads=3)
    np.testing.assert_allclose(found, scores["score"].to_numpy(), atol=1e-6)


def test_ids_without_a_row_read_initial_values_and_are_counted(shop: Path) -> None:
    table = shop_table(50, 3, new_ids=1000)
    with heterps.load(shop) as model:
        first = model.predict(table)
        asked = model.counts.asked["embedding"]
        np.testing.assert_array_equal(first, model.predict(table))
    new_hours = 0  # every hour of a day is in the training data
    assert asked.num_unknown == 50 + new_hours
    assert asked.num == 50 * 3 + sum(map(len, table["tags"].to_pylist()))


def test_a_checkpoint_can_be_named_and_an_early_one_scores_differently(shop: Path) -> None:
    checkpoints = sorted((shop / "checkpoints").iterdir())
    test = str(shop.parent / "test.parquet")
    with heterps.load(checkpoints[-1]) as last, heterps.load(shop) as newest:
        np.testing.assert_array_equal(last.predict(test), newest.predict(test))


def test_text_files_keep_ids_that_look_like_numbers_as_text(shop: Path, tmp_path: Path) -> None:
    """A small file may hold no id that is visibly text: it is read as the training data was."""
    job = (shop.parent / "job.yaml").read_text().replace("slots: [user, item, tags, hour]", "slots: [user]")
    job = (
        job[: job.index("    features:")].replace("dense: [price, age]", "dense: []") + "  batch_size: 8\nthreads: 1\n"
    )
    rows = [{"click": i % 2, "user": "u1" if i == 0 else str(i % 5)} for i in range(40)]
    pa.csv.write_csv(pa.Table.from_pylist(rows), tmp_path / "train.csv")
    text = job.replace("train.parquet", "train.csv").replace("  test: test.parquet\n", "")
    (tmp_path / "job.yaml").write_text(text)
    done = command("train", "job.yaml", "--run", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pa.csv.write_csv(pa.table({"user": [1, 2, 3, 4]}), tmp_path / "new.csv")
    done = command("predict", "run", "new.csv", "--out", "scores.csv", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unknown_ids"] == 0
    assert "score" in (tmp_path / "scores.csv").read_text()
    pq.write_table(pa.table({"user": [1, 2, 3, 4]}), tmp_path / "new.parquet")
    done = command("predict", "run", "new.parquet", "--out", "scores.csv", cwd=tmp_path)
    assert done.returncode == 4
    assert "integer ids, but string ids in the training data" in " ".join(done.stderr.split())


def test_without_a_file_for_them_ten_rows_are_shown_within_80_columns(shop: Path) -> None:
    data = shop.parent / "test.parquet"
    done = command("predict", shop, data, "--columns", "user,item,tags", cwd=shop.parent)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("u" in line for line in lines[2:]) == 10


def test_what_cannot_be_predicted_is_told(shop: Path, tmp_path: Path) -> None:
    test = shop.parent / "test.parquet"
    for words, code, problem in [
        (["predict", tmp_path, test, "--out", "s.parquet"], 6, "is neither a run"),
        (["predict", tmp_path / "none", test], 6, "there is no such folder"),
        (["predict", shop, "none.parquet", "--out", "s.parquet"], 4, "none.parquet"),
        (["predict", shop, test, "--out", "s.xlsx"], 2, ".parquet, .csv, .arrow"),
        (["predict", shop, test, "--out", "no/such/s.csv"], 7, "there is no folder no/such"),
        (["predict", shop, test, "--columns", "usr", "--out", "s.csv"], 2, "has no column usr"),
    ]:
        done = command(*words, cwd=tmp_path)
        told = " ".join(done.stderr.split())
        assert (done.returncode, problem in told) == (code, True), told
    assert os.listdir(tmp_path) == []
    broken = tmp_path / "broken.parquet"
    pq.write_table(shop_table(30, 1).drop_columns(["item"]), broken)
    with heterps.load(shop) as model, pytest.raises(DataError, match="item"):
        model.predict(str(broken))


def test_rows_that_the_schema_skips_have_no_score(shop: Path, tmp_path: Path) -> None:
    job = (shop.parent / "job.yaml").read_text().replace("dense_missing: fill", "dense_missing: skip")
    for name in ("train", "test"):
        os.link(shop.parent / f"{name}.parquet", tmp_path / f"{name}.parquet")
    (tmp_path / "job.yaml").write_text(job)
    assert command("train", "job.yaml", "--run", "run", cwd=tmp_path).returncode == 0
    done = command("predict", "run", "test.parquet", "--out", "scores.parquet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scores, ages = pq.read_table(tmp_path / "scores.parquet")["score"], pq.read_table(tmp_path / "test.parquet")["age"]
    assert scores.is_null().to_pylist() == ages.is_null().to_pylist()
    assert f"{ages.null_count} rows have no score" in done.stdout
    with heterps.load(tmp_path / "run") as model:
        found = model.predict(pq.read_table(tmp_path / "test.parquet"))
    assert np.isnan(found).tolist() == ages.is_null().to_pylist()


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = heterps.nn.SparseEmbedding(["user"], 2)
        self.end = nn.Linear(2, 3)

    def forward(self, dense: Any, slots: Any) -> Any:
        return self.end(self.rows(slots).flatten(1))


def test_a_model_object_is_given_again_and_classes_have_a_probability_each(tmp_path: Path) -> None:
    data = {"user": [str(i % 7) for i in range(64)], "kind": [i % 3 for i in range(64)]}
    given = Small()
    run = heterps.train(
        model=given, data=data, label="kind", slots=["user"], num_classes=3, batch_size=16, folder=tmp_path / "run"
    )
    with pytest.raises(ModelError, match="Pass it again"):
        heterps.load(run.folder)
    with heterps.load(run.folder, model=given) as model:
        found = model.predict({"user": ["1", "2"]})
        assert isinstance(model, LoadedModel)
    assert isinstance(found, np.ndarray)
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)


def test_a_run_without_a_checkpoint_has_no_model_yet(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text((shop / "job.yaml").read_text())
    with pytest.raises(RunError, match="has no checkpoint yet"):
        heterps.load(tmp_path)
    with heterps.load(shop) as model, pytest.raises(ConfigError, match="no column"):
        model.predict_table(shop_table(3, 1), columns=["nothing"])


@pytest.fixture(scope="module")
def export(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "full"
    done = command("export", shop, "--to", folder, cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    return folder


def test_an_export_predicts_the_same_with_the_same_keys(export: Path, shop: Path, scores: pa.Table) -> None:
    out = export.parent / "scores.parquet"
    words = ("--out", out, "--columns", "user,click", "--keys", "--json")
    done = command("predict", export, shop.parent / "test.parquet", *words, cwd=export.parent)
    assert done.returncode == 0, done.stderr
    found = pq.read_table(out)
    assert found.column_names == scores.column_names
    assert found.drop_columns(["score"]).to_pydict() == scores.drop_columns(["score"]).to_pydict()
    np.testing.assert_allclose(found["score"].to_numpy(), scores["score"].to_numpy(), atol=1e-6)
    assert json.loads(done.stdout)["unknown_ids"] > 0


def test_an_export_refuses_data_that_it_cannot_score(export: Path, tmp_path: Path) -> None:
    pq.write_table(shop_table(30, 1).drop_columns(["item"]), tmp_path / "less.parquet")
    done = command("predict", export, "less.parquet", "--out", "s.parquet", cwd=tmp_path)
    assert (done.returncode, "the model reads item" in " ".join(done.stderr.split())) == (4, True), done.stderr
    wrong = shop_table(30, 1).set_column(3, "user", pa.array(range(30)))
    pq.write_table(wrong, tmp_path / "other.parquet")
    done = command("predict", export, "other.parquet", "--out", "s.parquet", cwd=tmp_path)
    assert (done.returncode, "user" in done.stderr) == (4, True), done.stderr
    assert not (tmp_path / "s.parquet").exists()


def test_no_rows_have_no_scores(shop: Path) -> None:
    with heterps.load(shop) as model:
        assert model.predict(shop_table(5, 1).slice(0, 0)).shape == (0,)
        assert model.predict_table(shop_table(5, 1).slice(0, 0), columns=["user"]).column_names == [
            "row",
            "user",
            "score",
        ]


def test_parts_of_crosses_keep_the_kind_of_their_ids(tmp_path: Path) -> None:
    columns = {"click": [0, 1] * 20, "user": list(range(40)), "city": ["a", "1", "2", "3"] * 10}
    features = {"pair": {"cross": ["user", "city"]}}
    run = heterps.train(
        model="ctr_dnn", model_args={"embedding_dim": 2, "hidden": [4]}, data=columns, label="click", dense=[],
        slots=["pair"], features=features, batch_size=8, folder=tmp_path / "run",
    )  # fmt: skip
    with heterps.load(run.folder) as model:
        texts = {"user": [1, 2], "city": ["1", "2"]}
        model.predict(texts)
        assert model.counts.asked["embedding"].num_unknown == 0
        with pytest.raises(DataError, match="city holds integer ids, but string ids in the training data"):
            model.predict({"user": [1, 2], "city": [1, 2]})
        pa.csv.write_csv(pa.table(texts), tmp_path / "new.csv")
        model.predict(str(tmp_path / "new.csv"))
        assert model.counts.asked["embedding"].num_unknown == 0


def test_a_checkpoint_that_a_run_removes_meanwhile_is_not_missed(shop: Path) -> None:
    opened: list[Path] = []

    def use(trained: Trained) -> str:
        opened.append(trained.checkpoint)
        if len(opened) == 1:
            trained.checkpoint.rename(trained.checkpoint.with_name(".removing"))
            raise CorruptCheckpoint("it is missing")
        return "used"

    newest = sorted((shop / "checkpoints").iterdir())[-1]
    shutil.copytree(newest, spare := newest.with_name("0000000001"))
    try:
        assert with_trained(shop, use) == "used"
        assert opened == [newest, spare]
        with pytest.raises(CorruptCheckpoint, match="damaged"):
            with_trained(spare, damaged)
    finally:
        newest.with_name(".removing").rename(newest)
        shutil.rmtree(spare)


def damaged(_: Trained) -> str:
    raise CorruptCheckpoint("it is damaged")
