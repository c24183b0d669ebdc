"""Metrics of a run reach TensorBoard and MLflow."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import heterps
import heterps.cli
from heterps.errors import ConfigError

COLUMNS = {"user": [1, 2, 3, 4] * 50, "label": [0, 1, 0, 1] * 50}
QUICK: dict[str, Any] = {"slots": ["user"], "batch_size": 50, "metrics_every_samples": 100, "threads": 1}


def test_tensorboard_gets_every_line_and_the_summary(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    watch = heterps.TensorBoardObserver(tmp_path / "logs")
    run = heterps.train(data=COLUMNS, folder=tmp_path / "run", observer=watch, **QUICK)
    written = EventAccumulator(str(tmp_path / "logs"))
    written.Reload()
    assert [point.step for point in written.Scalars("log_loss")] == [100, 200]
    (auc,) = written.Scalars("summary/train_auc" if "train_auc" in run.summary else "summary/samples")
    assert auc.step == 200


class FakeMLflow(ModuleType):
    """Does what the real one was seen to do: a run begins with its first metrics, and names have few characters."""

    def __init__(self, fails_after: int = 100) -> None:
        super().__init__("mlflow")
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.runs = ["mine"]
        self.active: str | None = None
        self.ended: list[str] = []
        self._fails_after = fails_after

    def active_run(self) -> str | None:
        return self.active

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        if len(self.logged) == self._fails_after:
            raise RuntimeError("no answer from http://tracking")
        assert all(re.fullmatch(r"[\w\-. :/]+", name) and isinstance(value, float) for name, value in metrics.items())
        if self.active is None:
            self.active = "new"
            self.runs.append(self.active)
        self.logged.append((step, metrics))

    def end_run(self, status: str = "FINISHED") -> None:
        self.active = None
        self.ended.append(status)


@pytest.mark.parametrize("active", ["mine", None])
def test_mlflow_gets_every_line_and_the_summary(
    active: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the run that is active, which stays so, or in one that ends with the training."""
    fake = FakeMLflow()
    fake.active = active
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    ranked = {"test": COLUMNS, "user": "user", "top_k": [3]}
    run = heterps.train(data=COLUMNS, folder=tmp_path / "run", observer=heterps.MLflowObserver(), **QUICK, **ranked)
    assert [step for step, _ in fake.logged] == [100, 200, 200]
    assert fake.logged[-1][1]["summary/samples"] == run.summary["samples"] == 200
    assert fake.logged[-1][1]["summary/ndcg_at_3"] == run.summary["ndcg@3"]
    assert fake.runs == (["mine"] if active else ["mine", "new"])
    assert fake.active == active
    assert fake.ended == ([] if active else ["FINISHED"])


class Breaks(heterps.Observer):
    def measured(self, line: dict[str, Any]) -> None:
        raise RuntimeError("the disk burns")


def test_a_run_that_fails_ends_as_failed_in_mlflow_and_the_next_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    with pytest.raises(RuntimeError, match="the disk burns"):
        heterps.train(data=COLUMNS, folder=tmp_path / "a", observer=[heterps.MLflowObserver(), Breaks()], **QUICK)
    assert (fake.active, fake.ended) == (None, ["FAILED"])
    heterps.train(data=COLUMNS, folder=tmp_path / "b", observer=heterps.MLflowObserver(), **QUICK)
    assert (len(fake.runs), fake.ended) == (3, ["FAILED", "FINISHED"])


def test_mlflow_that_goes_away_is_warned_of_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", FakeMLflow(fails_after=1))
    with pytest.warns(UserWarning, match="MLflow lacks metrics of 200 samples: no answer"):
        run = heterps.train(data=COLUMNS, folder=tmp_path / "run", observer=heterps.MLflowObserver(), **QUICK)
    assert run.summary["status"] == "completed"


def test_mlflow_that_never_answers_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", FakeMLflow(fails_after=0))
    with pytest.raises(ConfigError, match="MLflow does not take the metrics of this run: no answer"):
        heterps.train(data=COLUMNS, folder=tmp_path / "run", observer=heterps.MLflowObserver(), **QUICK)


@pytest.mark.parametrize(
    ("observer", "module", "extra"),
    [
        (lambda: heterps.TensorBoardObserver("x"), "torch.utils.tensorboard", "tensorboard"),
        (lambda: heterps.MLflowObserver(), "mlflow", "mlflow"),
    ],
)
def test_a_tracker_that_is_not_there_names_its_extra(
    observer: Any, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"{extra} is not installed: pip install 'heterps\[{extra}\]'"):
        observer()


def train(*words: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        heterps.cli.main(["train", *words])


def points_of(folder: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written = EventAccumulator(str(folder))
    written.Reload()
    return [point.step for point in written.Scalars("log_loss")]


def test_a_job_reports_to_tensorboard_in_its_folder_and_goes_on_there(tiny_job: Path) -> None:
    pytest.importorskip("tensorboard")
    train(str(tiny_job), "--run", "run", "--report-to", "tensorboard")
    lines = [json.loads(line)["samples"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert points_of(Path("run/tensorboard")) == lines
    assert yaml.safe_load(Path("run/job.yaml").read_text())["report_to"] == ["tensorboard"]
    earlier = {"checkpoint": {"every_samples": 64}, "report_to": ["tensorboard"]}
    tiny_job.write_text(tiny_job.read_text() + yaml.safe_dump(earlier))
    train(str(tiny_job), "--run", "again")
    oldest = min(int(path.name) for path in Path("again/checkpoints").iterdir() if path.name.isdigit())
    train(str(tiny_job), "--run", "again", "--resume", "--from", str(oldest))
    assert points_of(Path("again/tensorboard")) == lines, "no sample stands there twice"


def test_a_job_reports_to_mlflow_under_workers_too(tiny_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    tiny_job.write_text(f"{tiny_job.read_text()}report_to: [mlflow]\nworkers: {{channel: memory}}\n")
    train(str(tiny_job), "--run", "run", "--launcher", "local", "--workers", "2")
    assert fake.logged[-1][1]["summary/samples"] == 200
    assert fake.active is None


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_the_real_mlflow_keeps_every_line_and_says_how_the_run_ended(
    tiny_job: Path, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'heterps[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file:{Path.cwd()}/mlruns")
    tiny_job.write_text(f"{tiny_job.read_text()}report_to: [mlflow]\nworkers: {{channel: memory}}\n")
    train(str(tiny_job), "--run", "run", "--launcher", launcher)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    told = {point.step: point.value for point in client.get_metric_history(run.info.run_id, "log_loss")}
    assert told == {line["samples"]: line["log_loss"] for line in lines}
    summary = json.loads(Path("run/summary.json").read_text())
    assert run.data.metrics["summary/auc"] == summary["auc"]
    assert run.info.status == "FINISHED"
    data = {"data": COLUMNS, "observer": [heterps.MLflowObserver(), Breaks()]}
    with pytest.raises(RuntimeError, match="the disk burns"):
        heterps.train(folder="broken", **data, **QUICK)
    assert sorted(one.info.status for one in client.search_runs(["0"])) == ["FAILED", "FINISHED"]
    assert mlflow.active_run() is None


def test_a_tracker_that_is_not_installed_or_not_known_is_refused_before_anything_is_written(
    tiny_job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for tracker, sentence in {"mlflow": "pip install 'heterps[mlflow]'", "wandb": "'tensorboard' or 'mlflow'"}.items():
        with pytest.raises(SystemExit, match="2"):
            heterps.cli.main(["train", str(tiny_job), "--run", "run", "--report-to", tracker])
        assert sentence in " ".join(capsys.readouterr().err.split())
        assert not Path("run").exists()
