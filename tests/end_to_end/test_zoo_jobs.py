"""Every network of the zoo from end to end: profiled without data, planned, and trained on its task's data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heterps.cli import main
from heterps.config import Job, Model, Schema, load_job
from heterps.data.generate import generate
from heterps.launch import train
from heterps.model.zoo import ZOO

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
LAYERS = {"ctr_dnn": 16, "deepfm": 15, "match_net": 16, "two_emb": 10, "nce": 5, "alexnet": 12, "resnet": 70}
LAYERS |= {"din": 10, "bst": 21}
BATCH_SIZES = {"alexnet": 16, "resnet": 4}  # others 256
TASKS = {"criteo": ("click", 16_000), "match": ("match", 16_000), "words": ("words", 100_000)}
TASKS |= {"history": ("history", 40_000)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set of each task, where the example jobs look for theirs."""
    folder = tmp_path_factory.mktemp("zoo")
    for name, (task, rows) in TASKS.items():
        generate(folder / "data" / name, rows, 4000, task=task)
    (folder / "examples").symlink_to(EXAMPLES)
    return folder


def run(words: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert not end.value.code


@pytest.mark.parametrize(
    "name",
    [name if name in ("two_emb", "din") else pytest.param(name, marks=pytest.mark.slow) for name in ZOO],
)
def test_a_network_is_profiled_without_data_and_planned(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(f"profile --model {name} --batch-size {BATCH_SIZES.get(name, 256)} --budget 0 --out profile.json")
    profile = json.loads(Path("profile.json").read_text())
    assert (profile["model"], len(profile["layers"])) == (name, LAYERS[name])
    capsys.readouterr()
    run(f"plan profile.json {EXAMPLES / 'cluster.yaml'} --throughput 1000 --samples 1e6 --method exact --json")
    plan = json.loads(capsys.readouterr().out)
    assert plan["gap"] == 0
    placed = [layer for stage in plan["stages"] for layer in range(stage["first"], stage["last"] + 1)]
    assert placed == list(range(LAYERS[name]))


def quick(job: Job, batch_size: int) -> Job:
    data = job.data.model_copy(update={"batch_size": batch_size})
    return job.model_copy(update={"data": data, "threads": 1, "metrics_every_samples": 4096})


@pytest.mark.parametrize(
    ("example", "batch_size", "least_auc"),
    [
        ("match_net", 128, 0.70),
        ("nce", 1024, 0.68),
        ("two_emb", 128, 0.70),
        ("ctr_dnn", 128, 0.70),
        pytest.param("din", 64, 0.65, marks=pytest.mark.slow),
    ],
)
def test_an_example_job_learns_well_above_chance(
    example: str, batch_size: int, least_auc: float, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    finished = train(quick(load_job(f"examples/{example}.yaml"), batch_size), Path("runs") / example)
    summary = finished.summary
    assert summary["status"] == "completed"
    assert summary["own_loss"] is (example in ("match_net", "nce"))
    assert least_auc < summary["auc"] < summary["teacher_auc"]
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["auc"] > lines[0]["auc"] + 0.05


def test_a_model_without_the_history_learns_less(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    job = load_job("examples/din.yaml")
    without = job.data.model_copy(update={"columns": Schema(dense=(), slots=("user", "item"))})
    model = Model(factory="ctr_dnn", args={"hidden": [50]})
    finished = train(quick(job.model_copy(update={"data": without, "model": model}), 64), Path("runs/without"))
    assert finished.summary["auc"] < 0.60
