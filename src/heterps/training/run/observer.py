"""Observer: what a spectator of a run is told while it goes on. Outcome: the result of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heterps.errors import ConfigError
from heterps.ps.table.metadata import TableCounters
from heterps.ps.table.tiers import TierCounts
from heterps.training.metrics.metrics import Metrics


class Observer:
    """What a spectator of the loop may want to know. Override what you need."""

    def waiting(self, what: str) -> None:
        """Something takes a while before training starts: "2 servers start"."""

    def began(self, what: str) -> None:
        """The model begins with weights and rows of another, or of files: what was taken from where."""

    def started(self, samples: int, total: int, resumed: bool) -> None:
        """Training starts at `samples` of `total`."""

    def stepped(self, samples: int, seconds: float, loss: float, interval: Metrics) -> None:
        """A step is done: samples and seconds so far, its loss, and the metrics of the interval it belongs to."""

    def measured(self, line: dict[str, Any]) -> None:
        """A line was added to metrics.jsonl."""

    def staged(self, view: dict[str, Any]) -> None:
        """A few times a second, of a job on workers: fields of metrics.jsonl of the last seconds: `seconds` so far,
        `stages`, `staleness`, `usd` so far, and `emulated` where they are."""

    def changed(self, what: str) -> None:
        """The job runs on other workers than before."""

    def saved(self, path: str, seconds: float) -> None:
        """A checkpoint was written."""

    def warned(self, message: str) -> None:
        """Something went wrong that training survives."""

    def validating(self, samples: int) -> None:
        """The model is being validated with this number of samples; the next line of metrics.jsonl has the result."""

    def evaluating(self, samples: int) -> None:
        """The test set, with this number of samples, is being evaluated."""

    def finished(self, summary: dict[str, Any]) -> None:
        """The run has ended, and this is its summary.json. A run that raises an error does not come here."""

    def failed(self, error: BaseException) -> None:
        """The run ends with this error, after which it has no summary."""


class Observers(Observer):
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        for observer in observers:
            if not isinstance(observer, Observer):
                raise ConfigError(
                    f"an observer is a heterps.Observer, whose methods are overridden; got a {type(observer).__name__}."
                )
        self._observers = tuple(observers)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name not in vars(Observer):
            return super().__getattribute__(name)

        def tell(*args: Any, **kwargs: Any) -> None:
            for observer in self._observers:
                getattr(observer, name)(*args, **kwargs)

        return tell


@dataclass
class Outcome:
    """The result of a run, apart from its model."""

    samples: int
    seconds: float
    restarts: int
    recoveries: int  # workers that were replaced while the others went on
    repeated_samples: int
    skipped_batches: int  # whose loss or gradients were not finite
    skipped_samples: int
    stopped_by: str | None  # the signal that stopped it; None: it reached the end
    train: Metrics  # over the whole run, each sample predicted before it was learned from
    test: Metrics | None
    num_rows: int
    table_bytes: int
    counters: TableCounters  # rows that came and went
    tiers: TierCounts | None
    counts: dict[str, Any]  # what was missing in the training data that was read
    has_own_loss: bool  # the model's own method says what was minimised
    staged: dict[str, Any]  # what each stage did, how stale gradients were, and what it cost
    epochs: int  # that were finished
    validation: dict[str, Any] | None  # fields of summary.json; None if the job has none
    has_diverged: bool  # its last interval was far worse than earlier ones
    doubts: list[str]  # what may be wrong with the model, in sentences
