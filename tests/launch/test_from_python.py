"""Training as a user of PyTorch writes it: a model and data in memory, inline and on workers."""

from __future__ import annotations

import copy
import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import preloaded
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from own_tower import Tower, make_tower
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import heterps
from heterps.config import load_job
from heterps.errors import ConfigError, DataError, ModelError
from heterps.nn import SparseEmbedding, push_gradients

NUM_ROWS = 400
QUICK: dict[str, Any] = {"batch_size": 50, "threads": 1, "shuffle": False}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def columns(num_rows: int = NUM_ROWS) -> dict[str, Any]:
    random = np.random.default_rng(num_rows)
    users = random.integers(0, 30, num_rows)
    return {
        "user_id": users,
        "item_id": random.integers(0, 40, num_rows),
        "price": random.normal(10.0, 3.0, num_rows),
        "click": users % 2,
    }


class Losses(heterps.Observer):
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.summary: dict[str, Any] | None = None

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        self.losses.append(loss)

    def finished(self, summary: dict[str, Any]) -> None:
        self.summary = summary


def losses_of(**given: Any) -> list[float]:
    watch = Losses()
    run = heterps.train(observer=watch, **{**QUICK, **given})
    assert run.summary["status"] == "completed"
    assert watch.summary == run.summary
    return watch.losses


def test_a_model_with_rows_of_its_own_is_refused_unless_the_job_says_what_it_starts_from(tmp_path: Path) -> None:
    model = nn.Sequential(SparseEmbedding(["s"], 2))
    model(torch.tensor([1, 2])).sum().backward()
    push_gradients(model)
    with pytest.raises(ModelError, match=r"Sequential has rows in 0, .* heterps\.save\(model, folder\).*start=folder"):
        heterps.train(folder=tmp_path / "run", model=model, data={"s": [1, 2], "label": [0, 1]}, label="label")


def test_every_frame_gives_the_same_training_as_its_file() -> None:
    data = columns()
    pd.DataFrame(data).to_csv("clicks.csv", index=False)
    expected = losses_of(model=Tower, data="clicks.csv")
    assert len(expected) == NUM_ROWS // 50
    frames = [
        data,
        {name: torch.from_numpy(values) for name, values in data.items()},
        pd.DataFrame(data, index=np.arange(NUM_ROWS) * 7),
        pl.DataFrame(data),
        pa.table(data),
    ]
    for frame in frames:
        assert losses_of(model=Tower, data=frame) == pytest.approx(expected, rel=1e-5), type(frame)
    assert len(list(Path("runs/data").iterdir())) == 1  # equal data is written once


def test_a_module_gives_its_weights_and_stays_as_it_is() -> None:
    torch.manual_seed(7)
    module = Tower()
    module(torch.zeros(1, 1), heterps.bags({"user_id": [1], "item_id": [1]}))  # it has tables of its own now
    before = copy.deepcopy(module.state_dict())
    first = losses_of(model=module, data=columns())
    assert first == losses_of(model=module, data=columns())
    assert first != losses_of(model=Tower, data=columns())
    assert all(torch.equal(values, before[name]) for name, values in module.state_dict().items())
    assert load_job("runs/Tower-1/job.yaml").model.factory == "python:Tower"


def test_workers_train_a_class_or_a_factory_as_one_process_does() -> None:
    alone = losses_of(model=make_tower, model_args={"dim": 3}, data=columns())
    workers = losses_of(model=make_tower, model_args={"dim": 3}, data=columns(), launcher="local", threads=2)
    assert workers == pytest.approx(alone, rel=1e-4)


def test_batches_of_a_loader_are_tuples_or_dicts() -> None:
    data = {name: torch.from_numpy(values) for name, values in columns().items()}
    named = {"dense": ["price"], "slots": ["user_id", "item_id"], "label": "click"}
    ids = torch.stack([data["user_id"], data["item_id"]], 1)
    tuples = DataLoader(TensorDataset(data["price"], ids, data["click"]), batch_size=40)
    rows = [{name: values[i] for name, values in data.items()} for i in range(NUM_ROWS)]
    dicts = DataLoader(rows, batch_size=40)
    expected = losses_of(model=Tower, data=data, batch_size=40, **named)
    for loader in (tuples, dicts):
        watch = Losses()
        heterps.train(model=Tower, data=loader, observer=[watch], threads=1, shuffle=False, **named)
        assert watch.losses == pytest.approx(expected, rel=1e-5)


class Counted(IterableDataset[dict[str, Any]]):
    """Samples of which all but a few are gone when the next is asked for: `most` counts those that are held."""

    def __init__(self, late: Any = 1) -> None:
        self.late, self.alive, self.most = late, weakref.WeakSet[Any](), 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(NUM_ROWS // 50):
            columns = {"x": torch.full((50,), float(number)), "s": torch.arange(50), "label": torch.arange(50) % 2}
            self.alive.add(columns["x"])
            self.most = max(self.most, len(self.alive))
            yield columns if number < 4 else columns | {"s": np.full(50, self.late)}


def test_a_loader_is_written_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps.data.frames.ROWS_PER_GROUP", 100)
    data = Counted()
    run = heterps.train(
        data=DataLoader(data, batch_size=None), epochs=2, label="label", dense=["x"], slots=["s"], **QUICK
    )
    assert run.summary["samples"] == 2 * NUM_ROWS
    assert data.most <= 4
    (path,) = Path("runs/data").iterdir()
    assert pq.read_metadata(path).num_row_groups == NUM_ROWS // 100
    assert pq.read_table(path)["x"].to_pylist() == np.repeat(np.arange(NUM_ROWS // 50), 50).tolist()
    with pytest.raises(
        DataError, match=r"column s: later batches of the DataLoader have string, but the first 100 rows"
    ):
        heterps.train(data=DataLoader(Counted("late"), batch_size=None), label="label", dense=["x"], slots=["s"])
    assert list(Path("runs/data").iterdir()) == [path]


def test_columns_are_guessed_and_what_is_said_goes_before() -> None:
    data = columns() | {"tags": [["a", "b"], []] * (NUM_ROWS // 2), "weight": np.ones(NUM_ROWS)}
    data["rating"] = data.pop("click") * 2.5 + 1
    run = heterps.train(
        data=data,
        test=data,
        validation={"share": 0.2},
        weight="weight",
        features={"price": ["log"]},
        model_args={"embedding_dim": 2, "hidden": [4]},
        validate={"patience": 1},
        name="guess",
        **QUICK,
    )
    job = load_job(run.folder / "job.yaml")
    assert job.model.factory == "deepfm"
    assert dict(job.data.columns.labels)["rating"].loss == "mse"
    assert job.data.columns.dense == ("price",)
    assert job.data.columns.slots == ("user_id", "item_id", "tags")
    assert job.data.columns.weight == "weight"
    assert list(job.data.columns.features) == ["price"]
    assert job.validation.patience == 1
    assert run.summary["rmse"] > 0


def test_a_run_in_memory_is_resumed_with_the_same_data_or_when_it_is_done_with_other() -> None:
    heterps.train(model=Tower(), data=columns(), folder="runs/r", **QUICK)
    more = heterps.train(model=Tower(), data=columns(), folder="runs/r", epochs=2, resume=True, **QUICK)
    assert more.summary["samples"] == 2 * NUM_ROWS
    other = heterps.train(model=Tower(), data=columns(300), folder="runs/r", resume=True, **QUICK)
    assert other.summary["samples"] == 2 * NUM_ROWS + 300
    again = heterps.train(model=Tower(), data=columns(300), folder="runs/r", resume=True, **QUICK)
    assert again.summary["samples"] == 2 * NUM_ROWS + 300, "nothing is trained on twice"


SCRIPT = """
import heterps
from own_tower import Tower
import numpy as np

class Mine(Tower):
    pass

def main():
    ids = np.arange(200)
    data = {"user_id": ids % 30, "item_id": ids % 7, "price": ids * 0.01, "click": ids % 2}
    run = heterps.train(model=Mine, data=data, batch_size=50, launcher="local", threads=2)
    print(run.folder, run.summary["status"])

"""


@pytest.mark.parametrize("guard", ['if __name__ == "__main__":\n    main()', "main()"])
def test_a_model_of_the_script_itself_trains_on_workers_if_its_main_part_is_guarded(guard: str) -> None:
    Path("script.py").write_text(SCRIPT + guard)
    path = f"{Path(__file__).parent}:{':'.join(sys.path)}"
    done = preloaded.run([sys.executable, "script.py"], timeout=100, env={**os.environ, "PYTHONPATH": path})
    if "__name__" in guard:
        assert done.stdout.strip() == "runs/Mine-1 completed", done.stderr
    else:
        assert done.returncode == 1
        assert 'Put what only the main process should do under `if __name__ == "__main__":`' in done.stderr


@pytest.mark.parametrize("launcher", ["local", "ray"])
@pytest.mark.parametrize("model", [Tower(), lambda: Tower()])
def test_what_other_processes_cannot_build_is_refused_on_workers(model: Any, launcher: str) -> None:
    with pytest.raises(ModelError, match=r"exists in this process only.*launcher='inline'"):
        heterps.train(model=model, data=columns(), launcher=launcher, **QUICK)


@pytest.mark.parametrize(
    ("given", "kind", "sentence"),
    [
        ({"data": columns(), "batchsize": 3}, ConfigError, r"no argument 'batchsize'. Did you mean batch_size\?"),
        ({"data": columns(), "batch_size": -3}, ConfigError, r"Job: data.batch_size: must be greater than 0"),
        ({"data": None}, ConfigError, "train\\(\\) needs data"),
        ({"data": 3}, DataError, "data is a path, a DataFrame.*got a int"),
        ({"data": pl.LazyFrame({"a": [1]})}, DataError, r"Collect it first: frame.collect\(\)"),
        ({"data": {"a": [1, 2], "click": [1]}}, DataError, "a has 2, click has 1"),
        ({"data": {"a": [1, "x"], "click": [1, 0]}}, DataError, "column a: .* same type"),
        ({"data": {"a": [], "click": []}}, DataError, "no rows"),
        ({"data": pd.DataFrame({"a": [1, "x"], "click": [1, 0]})}, DataError, "cannot become an Arrow table"),
        ({"data": DataLoader(TensorDataset(torch.zeros(4)))}, DataError, r"a tuple \(inputs ..., label\)"),
        ({"data": columns(), "model": 3}, ModelError, "a model is a torch.nn.Module"),
        ({"data": columns(), "label": "price", "job": "x.yaml"}, ConfigError, "leave out data, label, or the job"),
        ({"job": Tower()}, ConfigError, r"got a Tower. A model and its data are given as heterps.train\(model=..."),
        ({"data": columns(), "observer": [print]}, ConfigError, "an observer is a heterps.Observer"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(given: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        heterps.train(**given)
