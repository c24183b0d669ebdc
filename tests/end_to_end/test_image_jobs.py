"""Images from end to end: written as Parquet, profiled, planned, trained, resumed, and told of by accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stops import StopsAfter

from heterps.cli import main
from heterps.config import Job, load_job
from heterps.data.images import open_images, write_images
from heterps.errors import ModelError
from heterps.launch import FinishedRun, train

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
STATED = 0.97
"""The accuracy that examples/digits.yaml and docs/how-to/images.md promise."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits where the example looks for them."""
    folder = tmp_path_factory.mktemp("images")
    write_images(open_images("digits"), folder / "data/digits")
    (folder / "examples").symlink_to(EXAMPLES)
    return folder


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def command(words: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert not end.value.code


def digits(epochs: int, **changes: Any) -> Job:
    """The example job on one thread."""
    job = load_job("examples/digits.yaml")
    data = job.data.model_copy(update={"epochs": epochs})
    return job.model_copy(update={"data": data, "threads": 1, **changes})


def lines_of(finished: FinishedRun) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]


def test_the_example_reaches_the_stated_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    finished = train(digits(epochs=20), "runs/stated")
    summary, lines = finished.summary, lines_of(finished)
    assert summary["accuracy"] >= STATED
    assert "auc" not in summary
    assert summary["own_loss"] is False, "it is the cross entropy"
    assert "calibration" not in summary["train"]
    assert 0 < summary["normalised_entropy"] < 0.2
    assert lines[-1]["accuracy"] > lines[0]["accuracy"] + 0.2
    page = (finished.folder / "report.html").read_text()
    assert "Test accuracy" in page
    assert 'aria-label="Accuracy: ' in page
    assert "AUC" not in page
    assert "Table memory" not in page, "there are no tables"
    command("report runs/stated")
    printed = capsys.readouterr().out
    assert f"Accuracy                  {summary['accuracy']:.4f}" in printed
    assert "AUC" not in printed
    assert "Embedding tables" not in printed


def test_a_job_of_images_is_profiled_and_planned_by_its_data(capsys: pytest.CaptureFixture[str]) -> None:
    command("profile examples/digits.yaml --budget 0 --units parts --out digits.json")
    layers = json.loads(Path("digits.json").read_text())["layers"]
    assert [layer["kind"] for layer in layers[:3]] == ["convolution", "activation", "reduction"]
    assert layers[0]["input_bytes"] == 128 * 64 * 4
    capsys.readouterr()
    command("plan digits.json examples/cluster.yaml --throughput 1000 --samples 1e6 --method exact --json")
    plan = json.loads(capsys.readouterr().out)
    assert [plan["stages"][0]["first"], plan["stages"][-1]["last"]] == [0, 11]


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_resumed_run_equals_one_never_stopped_statistics_of_norms_included(norm: str) -> None:
    model = {"factory": "resnet", "args": {"depth": 8, "width": 4, "norm": norm}}
    job = digits(epochs=2, metrics_every_samples=500)
    job = Job.model_validate(job.model_dump(mode="json") | {"model": model})
    whole = train(job, f"runs/{norm}-whole")
    stopped = train(job, f"runs/{norm}", observer=StopsAfter(1600))
    assert stopped.summary["status"] == "stopped by SIGTERM"
    resumed = train(job, f"runs/{norm}", resume=True)
    measured = ("accuracy", "log_loss", "normalised_entropy", "train")
    assert {name: resumed.summary[name] for name in measured} == {name: whole.summary[name] for name in measured}
    timed = ("seconds", "samples_per_s", "stages", "usd")
    without_time = [
        [{k: v for k, v in line.items() if k not in timed} for line in lines_of(run)] for run in (whole, resumed)
    ]
    assert without_time[0] == without_time[1]


def test_servers_train_the_same_model_of_images() -> None:
    alone = train(digits(epochs=1), "runs/alone").summary
    job = Job.model_validate(digits(1).model_dump(mode="json") | {"servers": {"count": 2, "channel": "memory"}})
    served = train(job, "runs/served").summary
    assert (served["accuracy"], served["log_loss"]) == (alone["accuracy"], alone["log_loss"])


def test_a_model_that_does_not_score_every_class_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "three_scores.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self, schema):\n        super().__init__()\n"
        "        self.out = nn.Linear(schema.num_dense, 3)\n\n    def forward(self, dense, slots):\n"
        "        return self.out(dense)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    job = Job.model_validate(digits(1).model_dump(mode="json") | {"model": {"factory": "three_scores:Net"}})
    with pytest.raises(ModelError, match=r"num_classes is 10, .*shape \[128, 10\]; it returned shape \[128, 3\]"):
        train(job, "runs/three")


def test_a_model_without_a_loss_of_its_own_learns_by_cross_entropy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "linear_scores.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self, schema):\n        super().__init__()\n"
        "        self.out = nn.Linear(schema.num_dense, schema.num_classes)\n\n    def forward(self, dense, slots):\n"
        "        return self.out(dense)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    optimizers = {"dense": {"kind": "adam", "lr": 0.01}}
    for threads in (1, 2):
        changed = {"model": {"factory": "linear_scores:Net"}, "optimizers": optimizers, "threads": threads}
        job = Job.model_validate(digits(5).model_dump(mode="json") | changed)
        summary = train(job, f"runs/linear-{threads}").summary
        assert summary["own_loss"] is False
        assert summary["accuracy"] > 0.88
