"""RunProgress: what a run has done so far: samples, seconds, metrics by interval, and when the next checkpoint is due.

It is what a checkpoint holds of a run besides its model, so that a resumed run goes on counting where it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

from heterps.arrays import FloatArray
from heterps.config import Job
from heterps.data.digests import Digests
from heterps.training.metrics.metrics import Metrics, better
from heterps.training.model.objectives import Objectives
from heterps.training.run.divergence import Divergence
from heterps.training.run.skips import Skips


@dataclass(frozen=True)
class Scores:
    """The outputs of a model for samples, as Objectives.scores has them, and their labels, as Batch has them."""

    logits: FloatArray
    labels: FloatArray


@dataclass(frozen=True)
class Best:
    """The best validation so far."""

    value: float  # of the metric that decides
    samples: int
    clock: int  # of the checkpoint that has this model
    figures: dict[str, float | None]


class RunProgress:
    """Counts what a run has done.

    epoch_samples  samples of an epoch, after which the model is validated unless the job says when
    has_own_loss   the model's own method says what is minimised
    """

    def __init__(self, job: Job, epoch_samples: int | None = None, *, has_own_loss: bool = False) -> None:
        self._job, self._has_own_loss = job, has_own_loss
        self._validates = job.data.validation is not None
        by_time = job.validation.every_minutes is not None
        self._validate_every = job.validation.every_samples or (None if by_time else epoch_samples)
        self._validated_samples = 0
        self._validated_s = 0.0
        self.best: Best | None = None
        self.num_validations = 0
        self.num_since_best = 0  # validations after the best one
        self._metric = job.validation.metric
        self._last: dict[str, Any] | None = None
        self.samples = 0
        self.seconds = 0.0
        self.restarts = 0
        self.recoveries = 0  # workers that were replaced while the others went on
        self.repeated_samples = 0  # that were computed again because something was lost
        self.interval = self._no_metrics()
        self.interval_started = 0  # in samples, and below in seconds
        self.interval_started_s = 0.0
        self._interval_loss = 0.0  # sum over the samples of the interval
        self.skips = Skips()
        self.divergence = Divergence()
        self.digests = Digests()  # of row groups that were read
        self.data_began = 0  # samples of other data, with which the run was done before it went on with this
        self.whole = self._no_metrics()
        self._saved_samples = 0
        self._saved_s = 0.0
        self._saves_soon = False
        self.is_saved = False  # whether a checkpoint has everything that is done

    def add(self, num_samples: int, scores: Iterable[Scores], seconds: float, loss: float) -> None:
        """Count a step that was done `seconds` after the run began; `loss` is the mean of its samples."""
        self.is_saved = False
        self.divergence.begin(loss)
        self._interval_loss += num_samples * loss
        self.samples += num_samples
        self.seconds = seconds
        for part in scores:
            self.interval.update(part.logits, part.labels)

        self.skips.went_on()

    def skip(self, num_samples: int, seconds: float) -> None:
        """Count a batch that was skipped `seconds` after the run began: nothing was learned from it."""
        self.is_saved = False
        self.samples += num_samples
        self.seconds = seconds
        self.skips.skipped(num_samples)

    @property
    def warnings(self) -> list[str]:
        """What the summary warns of: batches that were skipped, and training that diverges."""
        return [text for text in (self.skips.warning, self.divergence.alarm) if text]

    @property
    def interval_is_over(self) -> bool:
        """Whether a line of metrics is due; one that a validation belongs to waits for it."""
        return self.samples - self.interval_started >= self._job.metrics_every_samples and not self.validation_is_due

    def close_interval(self, more: dict[str, Any]) -> dict[str, Any]:
        """A line of metrics.jsonl about the interval, with what `more` says; the next interval begins."""
        samples, seconds = self.samples - self.interval_started, self.seconds - self.interval_started_s
        if learned := samples - self.skips.interval_samples:
            against = None if self._has_own_loss else self.interval.against_average
            self.divergence.judge(self.samples, self._interval_loss / learned, against)
        line = {
            "samples": self.samples,
            "epoch": more.pop("epoch", 0),
            "seconds": round(self.seconds, 3),
            "samples_per_s": round(samples / seconds, 1) if seconds > 0 else None,
            **self.interval.fields(),
            **more,
            **self.skips.close_interval(),
            **({"alarm": self.divergence.alarm} if self.divergence.alarm is not None else {}),
        }
        self.whole.merge(self.interval)
        self.interval, self._interval_loss = self._no_metrics(), 0.0
        self.interval_started, self.interval_started_s = self.samples, self.seconds
        return line

    def train_metrics(self) -> Metrics:
        """The metrics of training over the whole run, the open interval included."""
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
        return self._saves_soon or by_samples or (minutes is not None and self.seconds - self._saved_s >= 60 * minutes)

    def save_soon(self) -> None:
        """Let a checkpoint be due now."""
        self._saves_soon = True

    def saved(self) -> None:
        self._saves_soon = False
        self._saved_samples, self._saved_s = self.samples, self.seconds
        self.is_saved = True

    @property
    def last_save(self) -> tuple[int, float]:
        """Samples and seconds of the run at its last checkpoint, or at its beginning."""
        return self._saved_samples, self._saved_s

    def take_over(self, last_save: tuple[int, float], num_deaths: int) -> None:
        """Go on after coordinators that have died, with what servers have: the last checkpoint is older."""
        (self._saved_samples, self._saved_s), self.is_saved = last_save, False
        self.recoveries += num_deaths

    # --- validation --------------------------------------------------------------------------------------------------

    @property
    def hold_at(self) -> int | None:
        """The samples at which a checkpoint or a validation is due; None where they do not decide."""
        every = self._validate_every if self._validates else None
        due = [self.save_at, None if every is None else self._validated_samples + every]
        return min((samples for samples in due if samples is not None), default=None)

    @property
    def validation_is_due(self) -> bool:
        if not self._validates or self.is_validated:
            return False
        minutes, every = self._job.validation.every_minutes, self._validate_every
        by_samples = every is not None and self.samples - self._validated_samples >= every
        return by_samples or (minutes is not None and self.seconds - self._validated_s >= 60 * minutes)

    @property
    def is_validated(self) -> bool:
        """Whether the model was validated as it is, or is not to be."""
        return not self._validates or self.samples == self._validated_samples

    def validated(self, metrics: Metrics, clock: int) -> dict[str, Any]:
        """Take note of a validation. Returns it as a line of metrics.jsonl has it."""
        name = self._job.validation.metric or metrics.main
        value = metrics[name]
        is_best = math.isfinite(value) and (self.best is None or better(name, value, self.best.value))
        self.is_saved = False
        self.num_validations += 1
        self.num_since_best = 0 if is_best else self.num_since_best + 1
        self._validated_samples, self._validated_s = self.samples, self.seconds
        figures = metrics.fields()
        self._metric, self._last = name, {"samples": self.samples, **figures}
        if is_best:
            self.best = Best(value, self.samples, clock, figures)
        return {"metric": name, "is_best": is_best, **figures}

    @property
    def is_best(self) -> bool:
        """Whether the model as it is now is the best so far."""
        return self.best is not None and self.best.samples == self.samples

    @property
    def is_out_of_patience(self) -> bool:
        patience = self._job.validation.patience
        return self._validates and patience is not None and self.num_since_best >= patience

    def validation_summary(self, *, stopped_early: bool) -> dict[str, Any] | None:
        """Fields of summary.json about validation; None if there was none."""
        if self.best is None:
            return None
        return {
            "count": self.num_validations,
            "metric": self._metric,
            "best": {"samples": self.best.samples, **self.best.figures},
            "last": self._last,
            "since_best": self.num_since_best,
            "stopped_early": stopped_early,
        }

    def begin_other_data(self) -> None:
        """Go on with other data, because the run is done with its own."""
        self.data_began, self.digests = self.samples, Digests()

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            **(self._validation_state() if self._validates else {}),
            "seconds": self.seconds,
            "restarts": self.restarts,
            "recoveries": self.recoveries,
            "repeated_samples": self.repeated_samples,
            "interval": self.interval.state(),
            "interval_started": self.interval_started,
            "interval_started_s": self.interval_started_s,
            "interval_loss": self._interval_loss,
            "skips": self.skips.state(),
            "divergence": self.divergence.state(),
            "digests": self.digests.state(),
            "data_began": self.data_began,
            "whole": self.whole.state(),
        }

    def restore(self, samples: int, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave after `samples` samples."""
        self.samples = samples
        self.seconds = state["seconds"]
        self.restarts = state["restarts"]
        self.recoveries, self.repeated_samples = state.get("recoveries", 0), state.get("repeated_samples", 0)
        self.interval.restore(state["interval"])
        self.interval_started = state["interval_started"]
        self.interval_started_s = state["interval_started_s"]
        self.whole.restore(state["whole"])
        self.digests.restore(state.get("digests", {}))
        self.data_began = state.get("data_began", 0)
        self.skips = Skips(**state.get("skips", {}))
        if "divergence" in state:  # older checkpoints have none
            self.divergence.restore(state["divergence"])
        self._interval_loss = state.get("interval_loss", math.nan)
        if "validation" in state:
            kept = state["validation"]
            self.num_validations, self.num_since_best = kept["count"], kept["since_best"]
            self._validated_samples, self._validated_s = kept["samples"], kept["seconds"]
            self._metric, self._last = kept["metric"], kept["last"]
            self.best = None if kept["best"] is None else Best(**kept["best"])
        self.saved()

    def _validation_state(self) -> dict[str, Any]:
        return {
            "validation": {
                "count": self.num_validations,
                "since_best": self.num_since_best,
                "samples": self._validated_samples,
                "seconds": self._validated_s,
                "best": None if self.best is None else asdict(self.best),
                "metric": self._metric,
                "last": self._last,
            }
        }

    def _no_metrics(self) -> Metrics:
        return Objectives(self._job.data.columns).metrics()
