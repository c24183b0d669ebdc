"""RunProgress: what a run has done so far: samples, seconds, metrics by interval, and when the next checkpoint is due.

It is what a checkpoint holds of a run besides its model, so that a resumed run goes on counting where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps.config import Job
from heterps.training.metrics.metrics import Metrics
from heterps.training.model.objectives import Objectives

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Scores:
    """What the model thinks of samples, as Objectives.scores has it, and what they are, as Batch has it."""

    logits: FloatArray
    labels: FloatArray


class RunProgress:
    def __init__(self, job: Job) -> None:
        self._job = job
        self.samples = 0
        self.seconds = 0.0
        self.restarts = 0
        self.interval = self._no_metrics()
        self.interval_started = 0  # in samples, and below in seconds
        self.interval_started_s = 0.0
        self.whole = self._no_metrics()
        self._saved_samples = 0
        self._saved_s = 0.0

    def add(self, num_samples: int, scores: Iterable[Scores], seconds: float) -> None:
        """A step is done, `seconds` after the run began."""
        self.samples += num_samples
        self.seconds = seconds
        for part in scores:
            self.interval.update(part.logits, part.labels)

    @property
    def interval_is_over(self) -> bool:
        return self.samples - self.interval_started >= self._job.metrics_every_samples

    def close_interval(self, more: dict[str, Any]) -> dict[str, Any]:
        """A line of metrics.jsonl about the interval, with what `more` says; the next interval begins."""
        samples, seconds = self.samples - self.interval_started, self.seconds - self.interval_started_s
        line = {
            "samples": self.samples,
            "epoch": more.pop("epoch", 0),
            "seconds": round(self.seconds, 3),
            "samples_per_s": round(samples / seconds, 1) if seconds > 0 else None,
            **self.interval.fields(),
            **more,
        }
        self.whole.merge(self.interval)
        self.interval = self._no_metrics()
        self.interval_started, self.interval_started_s = self.samples, self.seconds
        return line

    def train_metrics(self) -> Metrics:
        """Over the whole run, the open interval included."""
        metrics = deepcopy(self.whole)
        metrics.merge(self.interval)
        return metrics

    @property
    def save_at(self) -> int | None:
        """The samples at which a checkpoint is due; None where they do not decide."""
        every = self._job.checkpoint.every_samples
        return None if every is None else self._saved_samples + every

    @property
    def save_is_due(self) -> bool:
        minutes = self._job.checkpoint.every_minutes
        by_samples = self.save_at is not None and self.samples >= self.save_at
        return by_samples or (minutes is not None and self.seconds - self._saved_s >= 60 * minutes)

    def saved(self) -> None:
        self._saved_samples, self._saved_s = self.samples, self.seconds

    def state(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "restarts": self.restarts,
            "interval": self.interval.state(),
            "interval_started": self.interval_started,
            "interval_started_s": self.interval_started_s,
            "whole": self.whole.state(),
        }

    def restore(self, samples: int, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave when there were so many samples."""
        self.samples = samples
        self.seconds = state["seconds"]
        self.restarts = state["restarts"]
        self.interval.restore(state["interval"])
        self.interval_started = state["interval_started"]
        self.interval_started_s = state["interval_started_s"]
        self.whole.restore(state["whole"])
        self.saved()

    def _no_metrics(self) -> Metrics:
        return Objectives(self._job.data.columns).metrics()
