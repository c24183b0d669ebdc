"""How good a model is on samples that it has not learned from: the test set of a job, and those for validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Protocol

from heterps.config import Job
from heterps.data.batch import Batch
from heterps.data.prefetch import Prefetch
from heterps.data.reader import Reader, open_test_reader, open_validation_reader
from heterps.training.metrics.metrics import Metrics
from heterps.training.run.observer import Observer


class Evaluator(Protocol):
    """What can be evaluated: a Trainer, or a whole model of stages."""

    def prepare(self, batch: Batch) -> Batch: ...

    def evaluate(self, batches: Iterable[Batch]) -> Metrics: ...


def evaluate_test(job: Job, model: Evaluator, observer: Observer, stop: Callable[[], str | None]) -> Metrics:
    """Metrics of the test set, or of its first batches once `stop` gives a reason."""
    reader = open_test_reader(job)
    observer.evaluating(reader.num_rows)
    return _evaluate(job, model, reader, stop)


def evaluate_validation(job: Job, model: Evaluator, observer: Observer, stop: Callable[[], str | None]) -> Metrics:
    """Metrics of the samples for validation, or of their first batches once `stop` gives a reason."""
    reader = open_validation_reader(job)
    observer.validating(reader.num_rows)
    return _evaluate(job, model, reader, stop)


def _evaluate(job: Job, model: Evaluator, reader: Reader, stop: Callable[[], str | None]) -> Metrics:
    with Prefetch(_batches(reader), job.data.prefetch, model.prepare) as batches:
        return model.evaluate(takewhile(lambda _: stop() is None, batches))


def _batches(reader: Reader) -> Iterator[Batch]:
    return (batch for batch, _ in reader.read())
