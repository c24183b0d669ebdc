"""Observers that send the metrics of a run to trackers of experiments: TensorBoard and MLflow, both extras.

Every number in a line of metrics.jsonl becomes a point, at its number of samples, and every number of summary.json one
at the end, as `summary/<field>`. Fields within fields are joined by a slash.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from heterps.config import Job
from heterps.errors import ConfigError
from heterps.training.run.observer import Observer

TENSORBOARD = "tensorboard"
"""The folder of the events of a run, in its folder."""
_NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]", re.ASCII)


def trackers_of(job: Job, folder: Path) -> list[Observer]:
    """Return the trackers that the job reports to. ConfigError where one is not installed."""
    makers: dict[str, Callable[[], Observer]] = {
        "tensorboard": lambda: TensorBoardObserver(folder / TENSORBOARD),
        "mlflow": MLflowObserver,
    }
    return [makers[name]() for name in dict.fromkeys(job.report_to)]


class TensorBoardObserver(Observer):
    """Writes events for TensorBoard to `folder`. Needs the extra `heterps[tensorboard]`.

    A run that is resumed from a checkpoint takes the place of what was written of later samples.
    """

    def __init__(self, folder: str | Path) -> None:
        self._make = partial(_imported("torch.utils.tensorboard", "tensorboard").SummaryWriter, str(folder))
        self._writer: Any = None  # made with the first line: a run that cannot begin leaves no folder behind
        self._samples = 0
        self._began: int | None = None

    def started(self, samples: int, total: int, resumed: bool) -> None:  # noqa: ARG002
        self._close()
        self._began = samples if resumed else None

    def measured(self, line: dict[str, Any]) -> None:
        self._samples = line["samples"]
        self._add(numbers(line))
        self._writer.flush()

    def finished(self, summary: dict[str, Any]) -> None:
        self._add(numbers(summary, "summary/"))
        self._close()

    def failed(self, error: BaseException) -> None:  # noqa: ARG002
        self._close()

    def _add(self, points: Iterator[tuple[str, float]]) -> None:
        if self._writer is None:
            later = None if self._began is None else self._began + 1
            self._writer = self._make(purge_step=later)
        for name, value in points:
            self._writer.add_scalar(name, value, self._samples)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class MLflowObserver(Observer):
    """Logs to the active run of MLflow; without one, to a new run, which ends with the training, failed if that did.

    MLflow allows no `@` in names, so `ndcg@10` becomes `ndcg_at_10`. A first line that MLflow refuses is an error; of
    later ones, such as those after a tracking server went away, there is a warning, and training goes on. Needs the
    extra `heterps[mlflow]`.
    """

    def __init__(self) -> None:
        self._mlflow = _imported("mlflow", "mlflow")
        self._samples = 0
        self._is_own: bool | None = None  # whether the run of MLflow is; None before the first line
        self._has_logged = False

    def measured(self, line: dict[str, Any]) -> None:
        self._samples = line["samples"]
        self._log(numbers(line))

    def finished(self, summary: dict[str, Any]) -> None:
        self._log(numbers(summary, "summary/"))
        self._end("FINISHED")

    def failed(self, error: BaseException) -> None:  # noqa: ARG002
        self._end("FAILED")

    def _end(self, status: str) -> None:
        """End the run of MLflow if it is its own, so that whatever is trained next does not log to it."""
        is_own, self._is_own, self._has_logged = self._is_own, None, False
        try:
            if is_own and self._mlflow.active_run() is not None:
                self._mlflow.end_run(status)
        except Exception as error:
            warnings.warn(f"MLflow was not told that the run has ended ({status}): {error}", stacklevel=2)

    def _log(self, points: Iterator[tuple[str, float]]) -> None:
        named = {_NOT_IN_MLFLOW.sub("_", name.replace("@", "_at_")): value for name, value in points}
        try:
            if self._is_own is None:
                self._is_own = self._mlflow.active_run() is None
            self._mlflow.log_metrics(named, step=self._samples)
            self._has_logged = True
        except Exception as error:  # whatever its client and its server raise
            if not self._has_logged:
                raise ConfigError(f"MLflow does not take the metrics of this run: {error}") from error
            warnings.warn(f"MLflow lacks metrics of {self._samples:,} samples: {error}", stacklevel=2)


def numbers(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Iterate over the numbers in nested fields, each with its name; texts, lists and nulls are left out."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)


def _imported(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f"{extra} is not installed: pip install 'heterps[{extra}]'") from None
