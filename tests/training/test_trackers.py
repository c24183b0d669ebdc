"""Metrics of a run reach TensorBoard and MLflow."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import heterps
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


def test_mlflow_gets_every_line_and_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[int, dict[str, float]]] = []
    fake = SimpleNamespace(log_metrics=lambda metrics, step: logged.append((step, metrics)))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    run = heterps.train(data=COLUMNS, folder=tmp_path / "run", observer=heterps.MLflowObserver(), **QUICK)
    assert [step for step, _ in logged] == [100, 200, 200]
    assert all(isinstance(value, float) for _, metrics in logged for value in metrics.values())
    assert logged[-1][1]["summary/samples"] == run.summary["samples"] == 200


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
