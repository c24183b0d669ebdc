"""Exports of every model of the zoo score as the trained model does, in this process and where heterps is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from export_cases import NAMES, job_parts, samples
from tiny import JOB, write_tiny
from trained_runs import as_arrays, assert_equal, own_scores, train_run

from heterps.cli import main
from heterps.serving.export import export
from heterps.serving.score import ScoreError, Scorer
from heterps.serving.score import main as score_main

WITHOUT_HETERPS = """
import sys, runpy
for name in ("heterps", "numba", "xxhash", "pydantic"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def without_heterps(folder: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run an export's score.py in a process that has no heterps and nothing that only heterps needs."""
    command = [sys.executable, "-c", WITHOUT_HETERPS, str(folder / "score.py"), *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def heterps(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained run of each model, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("runs")

    class Runs(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            self[name] = train_run(folder / name, samples(name, 96, seed=1), *job_parts(name))
            return self[name]

    return Runs()


@pytest.fixture(scope="module")
def exports(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Exports by the name of the model, or of the model and the format: "bst.onnx"."""
    folder = tmp_path_factory.mktemp("exports")

    class Exports(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            model, _, format = name.partition(".")
            assert export(runs[model], folder / name, format=format or "torch").notes == ()
            self[name] = folder / name
            return self[name]

    return Exports()


QUICK = {"ctr_dnn", "deepfm", "match_net", "mmoe", "din", "bst.onnx", "mmoe.onnx"}


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in (*NAMES, *(f"{name}.onnx" for name in NAMES))
    ],
)
def test_an_export_scores_as_the_trained_model_does(name, runs, exports, tmp_path):
    model = name.partition(".")[0]
    asked = samples(model, 70, seed=2, num_ids=60)
    scorer = Scorer(exports[name])
    expected = own_scores(runs[model], asked, tmp_path)
    assert_equal(scorer.score(asked), expected)
    alone = pa.concat_tables(scorer.score(asked.slice(i, 1)) for i in range(3))
    assert_equal(alone, {column: array[:3] for column, array in expected.items()})


@pytest.mark.parametrize("name", ["match_net", pytest.param("match_net.onnx", marks=pytest.mark.slow)])
def test_two_towers_score_apart_as_they_do_together(name, runs, exports, tmp_path):
    scorer, asked = Scorer(exports[name]), samples("match_net", 40, seed=4)
    users = as_arrays(scorer.vectors(asked.select(["user", "segment"]), "user"))["vector"]
    items = as_arrays(scorer.vectors(asked.select(["item", "category"]), "item"))["vector"]
    others = asked.select(["negative", "negative_category"]).rename_columns(["item", "category"])
    negatives = as_arrays(scorer.vectors(others, "item"))["vector"]
    score = (users * items).sum(axis=1) - (users * negatives).sum(axis=1)
    np.testing.assert_allclose(score, own_scores(runs["match_net"], asked, tmp_path)["score"], atol=1e-6)
    written = pq.read_table(exports[name] / "items.parquet")
    trained = samples("match_net", 96, seed=1).select(["item", "category"]).drop_null().to_pylist()
    assert {tuple(row.values()) for row in trained} == set(
        zip(*written.select([0, 1]).to_pydict().values(), strict=True)
    )
    again = scorer.vectors(written.select(["item", "category"]), "item")["vector"]
    assert again.to_pylist() == written["vector"].to_pylist()


def test_an_index_finds_the_best_items_of_a_user(runs, tmp_path, capsys):
    faiss = pytest.importorskip("faiss")
    wanted = pa.table({"item": [5, 7, 5, 11], "category": [1, 2, 3, None], "name": list("abcd")})
    pq.write_table(wanted, tmp_path / "items.parquet")
    words = ["--to", tmp_path / "out", "--items", tmp_path / "items.parquet", "--index"]
    assert heterps("export", runs["match_net"], *words) == 0
    assert "4 items with their vectors" in capsys.readouterr().out
    items = pq.read_table(tmp_path / "out" / "items.parquet")
    assert items["item"].to_pylist() == [5, 7, 5, 11]
    user = as_arrays(Scorer(tmp_path / "out").vectors(pa.table({"user": [3], "segment": [4]}), "user"))["vector"]
    products = as_arrays(items.select(["vector"]))["vector"] @ user[0]
    index = faiss.read_index(str(tmp_path / "out" / "items.faiss"))
    found, places = index.search(user.astype(np.float32), 4)
    assert places[0].tolist() == np.argsort(-products).tolist()
    np.testing.assert_allclose(found[0], np.sort(products)[::-1], atol=1e-6)
    assert heterps("export", runs["ctr_dnn"], "--to", tmp_path / "other", "--index") == 5
    assert "are for models with two towers: CtrDnn has no methods user_vector" in " ".join(
        capsys.readouterr().err.split()
    )


def test_items_that_the_job_skips_have_no_vector(tmp_path, capsys):
    faiss = pytest.importorskip("faiss")
    model, columns = job_parts("match_net")
    columns = {**columns, "slot_missing": "skip"}
    run = train_run(tmp_path / "skips", samples("match_net", 96, seed=1), model, columns)
    pq.write_table(pa.table({"item": [5, 7, 11], "category": [1, None, 3]}), tmp_path / "items.parquet")
    words = ["--items", tmp_path / "items.parquet", "--index"]
    assert heterps("export", run, "--to", tmp_path / "out", *words) == 0
    assert "2 items with their vectors" in capsys.readouterr().out
    items = pq.read_table(tmp_path / "out" / "items.parquet")
    assert items["item"].to_pylist() == [5, 11]
    index = faiss.read_index(str(tmp_path / "out" / "items.faiss"))
    np.testing.assert_array_equal(index.reconstruct_n(0, 2), as_arrays(items.select(["vector"]))["vector"])
    pq.write_table(pa.table({"item": [5, 7], "category": pa.nulls(2, pa.int64())}), tmp_path / "items.parquet")
    assert heterps("export", run, "--to", tmp_path / "none", *words) == 4
    assert "has a vector: each lacks a value that the model needs" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("values", "tolerance"), [("fp16", 1e-4), ("int8", 1e-2)])
def test_fewer_bits_are_close_and_their_cost_is_told(values, tolerance, tmp_path, capsys):
    model, columns = job_parts("ctr_dnn")
    pq.write_table(samples("ctr_dnn", 80, seed=5), tmp_path / "test.parquet")
    data = {"test": str(tmp_path / "test.parquet")}
    fields = {"tables": {"init": {"kind": "normal", "std": 0.5}}, "data": data}
    run = train_run(tmp_path / "few", samples("ctr_dnn", 96, seed=1), model, columns, **fields)
    assert heterps("export", run, "--to", tmp_path / "out", "--values", values, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["notes"] == []
    cost = told["quality"]
    assert (cost["data"], cost["metric"]) == ("test", "auc")
    assert abs(cost["fp32"] - cost[values]) < 0.01
    asked = samples("ctr_dnn", 50, seed=2)
    assert_equal(Scorer(tmp_path / "out").score(asked), own_scores(run, asked, tmp_path), tolerance)
    kind = pq.read_schema(tmp_path / "out" / "rows.parquet").field("values").type.value_type
    assert str(kind) == {"fp16": "halffloat", "int8": "int8"}[values]


def test_fewer_bits_without_data_to_measure_them_is_said(runs, tmp_path, capsys):
    assert heterps("export", runs["mmoe"], "--to", tmp_path / "out", "--values", "int8") == 0
    assert "What int8 costs is not known: the job has neither test nor validation data." in capsys.readouterr().out


def test_labels_are_not_needed_and_other_columns_do_not_matter(exports):
    asked = samples("mmoe", 9)
    scores = Scorer(exports["mmoe"]).score(asked)
    fewer = asked.drop_columns(["click", "rating"]).append_column("more", pa.array(["x"] * 9))
    assert Scorer(exports["mmoe"]).score(fewer).equals(scores)


def test_a_table_without_rows_has_no_scores(exports):
    for name in ("ctr_dnn", "din"):
        scores = Scorer(exports[name]).score(samples(name, 3).slice(0, 0))
        assert scores.num_rows == 0
        assert scores.column_names == ["score"]


def test_ids_without_a_row_are_counted_by_sample(exports):
    asked = pa.table({"a": [0.0] * 3, "b": [0.0] * 3, "c": [0.0] * 3,
                      "s": [1, 10**9, 10**9], "t": [1, 2, 10**9], "u": [3, 3, 3], "v": [4, 4, 4]})  # fmt: skip
    scorer = Scorer(exports["deepfm"])
    assert scorer.scored(asked).unknown.tolist() == [0, 1, 2]
    assert scorer.num_unknown == 3


@pytest.mark.parametrize("name", ["bst.onnx", pytest.param("din", marks=pytest.mark.slow)])
def test_the_program_scores_files_without_heterps(name, runs, exports, tmp_path):
    model = name.partition(".")[0]
    asked = samples(model, 50, seed=3)
    pq.write_table(asked, tmp_path / "asked.parquet", row_group_size=20)
    done = without_heterps(exports[name], "asked.parquet", "--out", "scores.parquet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"50 rows by version 3 of {model}" in done.stdout
    assert_equal(pq.read_table(tmp_path / "scores.parquet"), own_scores(runs[model], asked, tmp_path))


def test_the_program_says_what_is_wrong_and_leaves_nothing_behind(exports, tmp_path, monkeypatch):
    pq.write_table(samples("ctr_dnn", 9).drop_columns(["t"]), tmp_path / "asked.parquet")
    monkeypatch.setattr("heterps.serving.score.__file__", str(exports["ctr_dnn"] / "score.py"))
    with pytest.raises(SystemExit) as end:
        score_main([str(tmp_path / "asked.parquet"), "--out", str(tmp_path / "scores.parquet")])
    assert "error: there is no column t, which the model needs" in str(end.value.code)
    assert [path.name for path in tmp_path.iterdir()] == ["asked.parquet"]


def test_the_program_reads_csv(exports, tmp_path, monkeypatch):
    asked = samples("ctr_dnn", 30, seed=6)
    pyarrow.csv.write_csv(asked, tmp_path / "asked.csv")
    monkeypatch.setattr("heterps.serving.score.__file__", str(exports["ctr_dnn"] / "score.py"))
    score_main([str(tmp_path / "asked.csv"), "--out", str(tmp_path / "scores.parquet")])
    expected = as_arrays(Scorer(exports["ctr_dnn"]).score(asked))
    assert_equal(pq.read_table(tmp_path / "scores.parquet"), expected)


def test_an_export_reads_text_in_the_format_of_the_training_data(tmp_path, monkeypatch):
    names = ["user", "item", "history", "a", "label"]
    format = {"names": names, "delimiter": ";", "lists": {"history": "|"}, "nulls": ["-"]}
    run = train_run(tmp_path / "text", samples("din", 96, seed=1), *job_parts("din"), data={"format": format})
    asked = samples("din", 30, seed=6)
    columns = {name: asked[name].to_pylist() for name in names}
    columns["history"] = [None if not ids else [*ids, None] for ids in columns["history"]]
    asked = pa.table(columns)

    def written(value: object) -> str:
        return "|".join(map(written, value)) if isinstance(value, list) else "-" if value is None else str(value)

    lines = [";".join(written(row[name]) for name in names) for row in asked.to_pylist()]
    (tmp_path / "asked.csv").write_text("\n".join(lines) + "\n")
    export(run, tmp_path / "out")
    expected = as_arrays(Scorer(tmp_path / "out").score(asked))
    assert heterps("predict", tmp_path / "out", tmp_path / "asked.csv", "--out", tmp_path / "by_command.parquet") == 0
    assert_equal(pq.read_table(tmp_path / "by_command.parquet", columns=["score"]), expected)
    monkeypatch.setattr("heterps.serving.score.__file__", str(tmp_path / "out" / "score.py"))
    score_main([str(tmp_path / "asked.csv"), "--out", str(tmp_path / "by_program.parquet")])
    assert_equal(pq.read_table(tmp_path / "by_program.parquet"), expected)


def test_the_command_exports_and_refuses_a_folder_that_is_not_empty(runs, tmp_path, capsys):
    assert heterps("export", runs["ctr_dnn"], "--to", tmp_path / "out", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["version"] == "3"
    assert told["num_bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert told["num_rows"] == pq.read_metadata(tmp_path / "out" / "rows.parquet").num_rows
    assert Scorer(tmp_path / "out").version == "3"
    assert heterps("export", runs["ctr_dnn"], "--to", tmp_path / "out") == 6
    assert "is there already and not empty" in capsys.readouterr().err
    (checkpoint,) = (runs["ctr_dnn"] / "checkpoints").iterdir()
    assert heterps("export", checkpoint, "--to", tmp_path / "of_checkpoint") == 0
    assert "version 3," in capsys.readouterr().out


@pytest.mark.parametrize("name", ["rows.parquet", "graph.pt2", "manifest.json", "score_rows.py"])
def test_a_damaged_export_is_refused(name, exports, tmp_path):
    for path in exports["ctr_dnn"].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-7])
    with pytest.raises(ScoreError, match=name):
        Scorer(tmp_path)
    (tmp_path / name).write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    with pytest.raises(ScoreError, match=name):
        Scorer(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ScoreError, match=name):
        Scorer(tmp_path)


@pytest.mark.slow
def test_a_run_on_workers_and_servers_is_exported_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "train.parquet", 400)
    write_tiny(tmp_path / "test.parquet", 60)
    (tmp_path / "job.yaml").write_text(JOB + "launcher: local\nservers: {count: 2}\n")
    assert heterps("train", "job.yaml", "--run", "run", "--workers", "2", "--sync", "ssp:2") == 0
    asked = pq.read_table("test.parquet")
    for format in ("torch", "onnx"):
        assert heterps("export", "run", "--to", format, "--format", format) == 0
        assert_equal(Scorer(tmp_path / format).score(asked), own_scores(tmp_path / "run", asked, tmp_path))
