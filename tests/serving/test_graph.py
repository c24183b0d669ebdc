"""Models of all kinds are exported with the scores they have, or refused with a sentence that says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from export_models import Branches, Counts, Lengths, Makes, Reads
from hypothesis import given, settings
from hypothesis import strategies as st
from trained_runs import assert_equal, own_scores, train_run

from heterps.config import Schema
from heterps.errors import ModelError
from heterps.serving.export import export
from heterps.serving.graph import record
from heterps.serving.score import ScoreError, Scorer

MODELS = Path(__file__).with_name("export_models.py")
COLUMNS = {"dense": ["x"], "slots": ["s", "t", "h"]}


def table(num_rows: int, seed: int, texts: bool = False) -> pa.Table:
    rng = np.random.default_rng(seed)

    def ids(num: int) -> list[Any]:
        found = rng.integers(0, 12, num).tolist()
        return [f"item number {i}" for i in found] if texts else found

    histories = [None if rng.random() < 0.1 else ids(rng.integers(0, 6)) for _ in range(num_rows)]
    return pa.table({
        "label": rng.integers(0, 2, num_rows),
        "x": pa.array(rng.standard_normal(num_rows), mask=rng.random(num_rows) < 0.2),
        "s": ids(num_rows),
        "t": pa.array(ids(num_rows), mask=rng.random(num_rows) < 0.2),
        "h": histories,
    })  # fmt: skip


@settings(max_examples=4)
@given(
    pooling=st.sampled_from(["sum", "mean"]),
    places=st.integers(1, 7),
    keep=st.sampled_from(["newest", "oldest"]),
    texts=st.booleans(),
    missing=st.sampled_from([("fill", "key"), ("skip", "key"), ("fill", "skip")]),
    init=st.sampled_from([None, {"kind": "normal", "std": 0.4}, {"kind": "constant", "value": 0.3}]),
    loss=st.sampled_from(["binary", "mse", "poisson"]),
)
def test_a_model_with_embeddings_of_every_kind_scores_the_same(
    pooling, places, keep, texts, missing, init, loss, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("mixed")
    columns = {**COLUMNS, "labels": {"label": loss}, "dense_missing": missing[0], "slot_missing": missing[1]}
    args = {"pooling": pooling, "places": places, "keep": keep}
    model = {"factory": f"{MODELS}:Mixed", "args": args}
    run = train_run(folder / "mixed", table(64, 1, texts), model, columns, tables={"init": init})
    export(run, folder / "out")
    asked = table(40, 2, texts)
    assert_equal(Scorer(folder / "out").score(asked), own_scores(run, asked, folder))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Counts, r"Counts cannot be exported: its graph depends on the number of samples in a batch. Take it from"),
        (Reads, r"it uses slots.keys. In an export a model gets rows, not ids"),
        (Lengths, r"it uses slots.offsets"),
        (Makes, "it uses ids that it makes itself and gives to the embedding alone"),
        (Branches, "Branches cannot be exported: "),
    ],
)
def test_a_model_that_needs_more_than_rows_is_refused(model, message):
    schema = Schema.model_validate(COLUMNS)
    with pytest.raises(ModelError, match=message):
        record(model(schema), 1, schema.slots, lambda module, dense, slots: {"score": module(dense, slots)})


def test_rows_that_are_not_pooled_need_one_id_of_each_sample(tmp_path):
    model = {"factory": f"{MODELS}:Unpooled", "args": {"slots": ["s", "t"]}}
    columns = {"dense": ["x"], "slots": ["s", "t"]}
    run = train_run(tmp_path / "run", table(64, 1), model, columns)
    export(run, tmp_path / "out")
    asked = table(20, 2)
    scorer = Scorer(tmp_path / "out")
    assert_equal(scorer.score(asked), own_scores(run, asked, tmp_path))
    lists = asked.set_column(asked.column_names.index("s"), "s", asked["h"].combine_chunks())
    with pytest.raises(ScoreError, match="column s: the model takes exactly one id of each sample"):
        scorer.score(lists)


def test_an_export_that_would_be_wrong_is_refused_and_leaves_nothing_behind(tmp_path):
    model = {"factory": f"{MODELS}:Restless"}
    run = train_run(tmp_path / "run", table(64, 1), model, {"dense": ["x"], "slots": ["s"]})
    (tmp_path / "to").mkdir()
    with pytest.raises(ModelError, match="the export would be wrong: of the first 64 rows of the training data"):
        export(run, tmp_path / "to" / "out")
    assert list((tmp_path / "to").iterdir()) == []


def test_an_export_without_its_training_data_says_that_it_was_not_checked(tmp_path):
    model = {"factory": f"{MODELS}:Mixed"}
    run = train_run(tmp_path / "run", table(64, 1), model, COLUMNS)
    (tmp_path / "run" / "train.parquet").unlink()
    assert "were not checked, since the training data is not there" in export(run, tmp_path / "out").notes[0]


def test_onnx_without_its_packages_says_what_to_install(tmp_path, monkeypatch):
    run = train_run(tmp_path / "run", table(64, 1), {"factory": f"{MODELS}:Mixed"}, COLUMNS)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(Exception, match=r"pip install 'heterps\[onnx\]'"):
        export(run, tmp_path / "out", format="onnx")


@pytest.mark.slow
def test_an_environment_with_numpy_pyarrow_and_onnxruntime_alone_scores(tmp_path):
    """The environment is new; its three packages, and what they need, are those of this one."""
    run = train_run(tmp_path / "run", table(64, 1), {"factory": f"{MODELS}:Mixed"}, COLUMNS)
    export(run, tmp_path / "out", format="onnx")
    asked = table(40, 2)
    pq.write_table(asked, tmp_path / "asked.parquet")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True, timeout=60)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    here = Path(np.__file__).parent.parent
    for name in ("numpy", "numpy.libs", "pyarrow", "onnxruntime", "google", "flatbuffers", "packaging"):
        if (here / name).exists():
            (site / name).symlink_to(here / name)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = tmp_path / "env" / "bin" / "python"
    for module in ("heterps", "torch", "numba"):
        assert subprocess.run([python, "-c", f"import {module}"], env=environment, capture_output=True).returncode == 1
    done = subprocess.run(
        [python, tmp_path / "out" / "score.py", "asked.parquet", "--out", "scores.parquet"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_equal(pq.read_table(tmp_path / "scores.parquet"), own_scores(run, asked, tmp_path))
