"""Validation through the real command: the curve, early stopping, the best model, and what it says at the end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tiny import write_tiny

from heterps.checkpoint import load, of_clock
from heterps.cli import main
from heterps.config import load_job
from heterps.data.reader import open_test_reader
from heterps.launch import train
from heterps.model.build import build_model
from heterps.training.model.in_use import SavedModel
from heterps.training.model.trainer import Trainer
from heterps.training.run.observer import Observer

OVER_FITS = {
    "model": {"factory": "ctr_dnn", "args": {"embedding_dim": 8, "hidden": [16]}},
    "optimizers": {"sparse": {"kind": "adagrad", "lr": 0.5}, "dense": {"kind": "adam", "lr": 0.02}},
}


def write_noisy(path: Path, num_rows: int) -> None:
    """Labels that depend on one slot half of the time, and ids that a model can learn by heart."""
    random = np.random.default_rng(num_rows)
    label = random.integers(0, 2, num_rows)
    write_tiny(path, num_rows, label=label.tolist(), s=np.where(random.random(num_rows) < 0.4, label, 2).tolist(),
               t=random.integers(0, num_rows, num_rows).tolist())  # fmt: skip


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_noisy(tmp_path / "train.parquet", 480)
    write_noisy(tmp_path / "validation.parquet", 160)
    write_noisy(tmp_path / "test.parquet", 150)
    job = {
        "name": "v",
        **OVER_FITS,
        "data": {
            "train": "train.parquet",
            "test": "test.parquet",
            "validation": "validation.parquet",
            "columns": {"dense": ["a", "b"], "slots": ["s", "t"]},
            "batch_size": 32,
            "epochs": 6,
        },
        "validation": {"every_samples": 160, "metric": "log_loss"},
        "threads": 1,
        "metrics_every_samples": 96,
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def change(job_file: Path, **fields: Any) -> None:
    job = yaml.safe_load(job_file.read_text())
    job_file.write_text(yaml.safe_dump(job | fields))


def heterps(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    return int(ended.value.code or 0)


def trained(run: str = "run", *options: str) -> dict[str, Any]:
    assert heterps("train", "job.yaml", "--run", run, *options) == 0
    return json.loads(Path(run, "summary.json").read_text())


def curve(run: str = "run") -> dict[int, dict[str, Any]]:
    lines = [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
    return {line["samples"]: line["validation"] for line in lines if "validation" in line}


def figures_of_checkpoint(run: str, clock: int) -> dict[str, float | None]:
    """The test set by a Trainer that was restored: rows in tables, as in training."""
    job = load_job(Path(run, "job.yaml"))
    with Trainer(build_model(job.model, job.data.columns, job.seed), job.optimizers, seed=job.seed) as trainer:
        trainer.restore(load(of_clock(Path(run, "checkpoints"), clock)))
        return trainer.evaluate(batch for batch, _ in open_test_reader(job).read()).fields()


def test_the_curve_is_in_the_metrics_and_the_best_model_is_the_one_that_is_tested(job_file, capsys):
    summary = trained()
    found = curve()
    assert list(found) == list(range(160, 6 * 480 + 1, 160))
    best = min(found, key=lambda samples: found[samples]["log_loss"])
    assert best < 1500, "the model does not over-fit, so this test shows nothing"
    assert summary["validation"]["best"] | {"samples": None} == {
        name: value for name, value in found[best].items() if name not in ("metric", "is_best")
    } | {"samples": None}
    assert summary["validation"]["best"]["samples"] == best
    assert summary["status"] == "completed"
    assert summary["epochs"] == 6
    expected = figures_of_checkpoint("run", best // 32)
    assert {name: summary[name] for name in expected} == pytest.approx(expected, abs=2e-6)
    last = figures_of_checkpoint("run", 6 * 15)
    assert summary["log_loss"] != pytest.approx(last["log_loss"], abs=1e-2)
    said = capsys.readouterr().out
    assert f"validation at {best:,} samples: AUC" in said
    assert "warning: the model over-fits: log loss of the validation was" in " ".join(said.split())
    assert any("over-fits" in warning for warning in summary["warnings"])
    page = Path("run/report.html").read_text()
    assert "Validation AUC" in page
    assert f"the best model is that after\n{best:,} samples" in page


@pytest.mark.parametrize("options", [("--workers", "2"), pytest.param((), marks=pytest.mark.slow)])
def test_workers_have_the_curve_of_one_process(job_file, options):
    inline, local = trained("inline"), trained("local", "--launcher", "local", *options)
    ours, theirs = curve("inline"), curve("local")
    assert list(ours) == list(theirs)
    for samples, figures in ours.items():
        assert theirs[samples]["log_loss"] == pytest.approx(figures["log_loss"], rel=1e-4)
        assert theirs[samples]["is_best"] == figures["is_best"]
    assert local["validation"]["best"]["samples"] == inline["validation"]["best"]["samples"]
    assert local["log_loss"] == pytest.approx(inline["log_loss"], rel=1e-4)


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_training_stops_early_when_it_gets_no_better(job_file, capsys, launcher):
    change(job_file, validation={"every_samples": 160, "patience": 2, "metric": "log_loss"})
    summary = trained("run", "--launcher", launcher)
    found = curve()
    best = min(found, key=lambda samples: found[samples]["log_loss"])
    assert list(found)[-1] == best + 2 * 160 == summary["samples"]
    assert summary["status"] == "stopped early"
    assert "so training ended" in " ".join(capsys.readouterr().out.split())


def test_a_run_that_has_stopped_early_trains_no_further_when_it_is_resumed(job_file):
    def trained(*words: str) -> tuple[str, int]:
        assert heterps("train", "job.yaml", "--run", "run", *words) == 0
        summary = json.loads(Path("run/summary.json").read_text())
        return summary["status"], summary["samples"]

    change(job_file, validation={"every_samples": 160, "metric": "log_loss", "patience": 2})
    stopped = trained()
    assert stopped[0] == "stopped early"
    assert trained("--resume") == stopped
    change(job_file, validation={"every_samples": 160, "metric": "log_loss", "patience": 4})
    assert trained("--resume")[1] > stopped[1], "with more patience it goes on"


def test_without_saying_when_it_is_validated_once_an_epoch_and_at_the_end(job_file):
    change(job_file, validation={"patience": 50})
    trained()
    assert list(curve()) == [480 * epoch for epoch in range(1, 7)]


def test_a_resumed_run_goes_on_with_its_best(job_file):
    change(job_file, checkpoint={"every_samples": 320, "every_minutes": None})
    trained("whole")
    data = yaml.safe_load(job_file.read_text())["data"]
    change(job_file, data=data | {"epochs": 4})
    trained("parts")
    change(job_file, data=data)
    summary = trained("parts", "--resume")
    assert curve("parts") == curve("whole")
    whole = json.loads(Path("whole/summary.json").read_text())
    assert summary["validation"] == whole["validation"]
    assert summary["auc"] == whole["auc"]
    assert of_clock("parts/checkpoints", whole["validation"]["best"]["samples"] // 32) is not None


def test_a_share_of_the_training_data_is_validated_with_and_not_trained_on(job_file):
    data = yaml.safe_load(job_file.read_text())["data"]
    change(job_file, data=data | {"validation": {"share": 0.25, "by": "t"}, "epochs": 1})
    summary = trained()
    assert 300 < summary["samples"] < 420
    assert summary["data"]["num_rows"] == summary["samples"]
    assert list(curve())[-1] == summary["samples"]


def test_without_a_test_set_the_best_validation_is_what_is_shown(job_file, capsys):
    data = yaml.safe_load(job_file.read_text())["data"]
    change(job_file, data={name: value for name, value in data.items() if name != "test"})
    summary = trained()
    assert summary["metrics_of"] == "validation"
    assert summary["log_loss"] == summary["validation"]["best"]["log_loss"]
    assert "Quality on the samples for validation (the best model, of" in capsys.readouterr().out


def test_after_several_epochs_the_training_stream_is_not_called_unseen(job_file, capsys):
    job = yaml.safe_load(job_file.read_text())
    del job["validation"], job["data"]["validation"]
    job_file.write_text(yaml.safe_dump(job))
    summary = trained()
    said = " ".join(capsys.readouterr().out.split())
    assert "warning: the model over-fits: AUC is" in said
    assert "on the test set. Name data.validation" in said
    assert summary["train"]["auc"] > summary["auc"] + 0.03
    del job["data"]["test"]
    job_file.write_text(yaml.safe_dump(job))
    trained("untested")
    assert "most samples were learned from before" in " ".join(capsys.readouterr().out.split())


def test_the_model_of_a_checkpoint_counts_ids_it_does_not_know(job_file):
    trained()
    clock = json.loads(Path("run/summary.json").read_text())["validation"]["best"]["samples"] // 32
    with SavedModel(load_job("run/job.yaml"), of_clock("run/checkpoints", clock)) as model:
        model.evaluate(batch for batch, _ in open_test_reader(load_job("run/job.yaml")).read())
        assert sum(asked.num_unknown for asked in model.rows.asked.values()) > 0


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        ({"metric": "rmse"}, "validation.metric: there is no 'rmse' for these labels, only log_loss, auc"),
        ({"metric": "calibration"}, "'calibration' is not a metric of which more or less is better"),
    ],
)
def test_a_metric_that_cannot_decide_is_refused(job_file, capsys, validation, message):
    change(job_file, validation=validation)
    assert heterps("train", "job.yaml", "--run", "run") == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("run").exists()


def test_validation_without_data_is_refused(job_file, capsys):
    data = yaml.safe_load(job_file.read_text())["data"]
    change(job_file, data={name: value for name, value in data.items() if name != "validation"})
    assert heterps("train", "job.yaml", "--run", "run") == 2
    assert "validation needs data" in capsys.readouterr().err


class Interrupter(Observer):
    """Sends this process Ctrl-C after some samples."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        if samples == self.samples:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("on_stop", [True, False])
def test_an_interrupted_run_is_evaluated_if_asked(job_file, on_stop):
    change(job_file, validation={"every_samples": 160, "on_stop": on_stop})
    run = train("job.yaml", "run", observer=Interrupter(224))
    assert run.summary["status"] == "stopped by SIGINT"
    assert run.summary["metrics_of"] == ("test" if on_stop else "validation")
    assert list(curve()) == [160, 224] if on_stop else [160]


def test_validations_by_the_clock_come_where_training_takes_long(job_file):
    change(job_file, validation={"every_minutes": 1e-6})
    trained()
    assert list(curve()) == list(range(32, 6 * 480 + 1, 32)), "every step takes longer than that"
