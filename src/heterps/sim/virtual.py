"""Training for real on a simulated clock: every gradient is computed with the weights that its worker would have had.

    simulator    start(w0)     start(w1)      push(w0)         push(w1)         end_round
                    |             |              |                |                 |
    here         gradients     gradients      applied          applied        the mean of a round
                 of the weights as they       as the server would: at once,   (BSP only)
                 are at that moment           or kept for the round

A worker's gradient is computed when it starts, because nothing that happens until its push can change it; it is applied
when its push arrives. So one process plays any number of workers of any speeds, and a seed repeats the run to the bit.
Only what a worker keeps to itself is not played: buffers, as BatchNorm has them, are shared by all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from heterps.config import Job, Schema
from heterps.data.batch import Batch
from heterps.data.reader import Position, Reader
from heterps.errors import ConfigError, NotFinite
from heterps.model import build_model
from heterps.nn import DENSE
from heterps.ps.client import LocalClient
from heterps.sim.result import SimResult
from heterps.sim.scenario import Scenario
from heterps.sim.simulator import Hooks, Simulator
from heterps.sim.steps import compensate, damping, mean_of
from heterps.sim.variants import Variant
from heterps.training.loop import metric_fields
from heterps.training.metrics import Metrics
from heterps.training.trainer import Gradients, Trainer

NUM_POINTS = 20
"""Evaluations of a run, unless told otherwise."""


@dataclass(frozen=True)
class Point:
    """The model on the test set at a moment of the simulated time."""

    now_s: float
    samples: int
    updates: int
    quality: float  # accuracy, or AUC
    log_loss: float


@dataclass(frozen=True)
class VirtualRun:
    """What came of a job on a simulated cluster."""

    variant: Variant
    seed: int
    sim: SimResult
    points: tuple[Point, ...]
    samples: int  # whose gradients were applied
    dropped_samples: int  # of gradients that came too late for their round
    failed: str | None = None  # training diverged: what was not finite

    @property
    def best(self) -> float:
        return max((point.quality for point in self.points), default=0.0)

    def seconds_to(self, target: float) -> float | None:
        """Simulated seconds until the quality was reached; None: never."""
        return next((point.now_s for point in self.points if point.quality >= target), None)


class _Pending(NamedTuple):
    """A gradient on its way, and what the server must know of it."""

    gradients: Gradients
    version: int  # updates that its weights had taken
    dense: NDArray[np.float32] | None  # the weights, where they are needed again
    rows: dict[str, NDArray[np.float32]]


class Training(Hooks):
    """Gradients of `trainer` for a simulator, on `batches` until they end; `sizes` of them an iteration, by worker."""

    def __init__(
        self,
        trainer: Trainer,
        batches: Iterator[Batch],
        variant: Variant,
        sizes: Mapping[str, int],
        *,
        evaluate: Callable[[], Metrics],
        every_samples: int,
        on_point: Callable[[Point], None] = lambda _: None,
    ) -> None:
        assert isinstance(trainer.client, LocalClient)
        self.points: list[Point] = []
        self.updates = self.dropped_samples = 0
        self._trainer, self._client = trainer, trainer.client
        self._batches, self._variant, self._sizes = batches, variant, sizes
        self._evaluate, self._every_samples, self._on_point = evaluate, every_samples, on_point
        self._next_point = every_samples
        self._pending: dict[str, _Pending] = {}
        self._round: list[Gradients] = []

    def start(self, worker: str, now: float) -> bool:  # noqa: ARG002
        pieces = [batch for _, batch in zip(range(self._sizes[worker]), self._batches, strict=False)]
        if not pieces:
            return False
        gradients = mean_of([self._trainer.gradients(piece) for piece in pieces])
        dense, rows = self._weights(gradients) if self._variant.compensation else (None, {})
        self._pending[worker] = _Pending(gradients, self.updates, dense, rows)
        return True

    def push(self, worker: str, now: float) -> None:
        pending = self._pending.pop(worker)
        if self._variant.by_rounds:
            self._round.append(pending.gradients)
        else:
            self._apply(self._adjusted(pending), self.updates - pending.version, now)

    def drop(self, worker: str, now: float) -> None:  # noqa: ARG002
        self.dropped_samples += self._pending.pop(worker).gradients.num_samples

    def end_round(self, now: float) -> None:
        if self._round:
            gradients, self._round = mean_of(self._round), []
            self._apply(gradients, 0, now)

    def finish(self, now: float) -> None:
        """The last point, of the model at the end."""
        if not self.points or self.points[-1].updates < self.updates:
            self._measure(now)

    def _apply(self, gradients: Gradients, staleness: int, now: float) -> None:
        if self._variant.damped:
            self._client.set_rate(damping(staleness))
        self._trainer.apply(gradients)
        self.updates += 1
        if self._trainer.samples >= self._next_point:
            self._next_point += self._every_samples
            self._measure(now)

    def _measure(self, now: float) -> None:
        fields = metric_fields(self._evaluate())
        quality = fields.get("accuracy", fields.get("auc"))
        log_loss = fields["log_loss"]
        self.points.append(
            Point(
                now,
                self._trainer.samples,
                self.updates,
                float("nan") if quality is None else quality,
                float("nan") if log_loss is None else log_loss,
            )
        )
        self._on_point(self.points[-1])

    def _weights(self, gradients: Gradients) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
        """Copies of the weights that the gradients are of."""
        dense = self._client.pull_dense(DENSE).result().copy()
        return dense, {part.table: self._client.pull(part.table, part.lookup).result() for part in gradients.rows}

    def _adjusted(self, pending: _Pending) -> Gradients:
        if pending.dense is None:
            return pending.gradients
        dense, rows = self._weights(pending.gradients)
        return compensate(
            pending.gradients,
            self._variant.compensation,
            dense=(pending.dense, dense),
            rows={table: (pending.rows[table], rows[table]) for table in rows},
        )


@dataclass(frozen=True)
class Course:
    """How long virtual runs go on, and how closely they are looked at."""

    epochs: int | None = None  # none: as the job says
    num_points: int = NUM_POINTS
    on_point: Callable[[str, int, Point], None] = field(default=lambda _label, _seed, _point: None)


def train_virtually(job: Job, scenario: Scenario, variant: Variant, course: Course = Course()) -> VirtualRun:
    """Train `job` on the workers of `scenario`, each with batches of the job's size, kept in step as `variant` says.

    Without a horizon it ends with the last epoch. The random numbers of model, data and jitter follow scenario.seed.
    """
    if job.data.test is None:
        raise ConfigError("a virtual run is judged on a test set: name one in data.test of the job.")
    epochs, seed = course.epochs or job.data.epochs, scenario.seed
    played, sizes, pieces = variant.fit(scenario, job.data.batch_size)
    columns = job.data.columns
    reader = Reader(
        job.data.train, columns, batch_size=job.data.batch_size // pieces, shuffle=job.data.shuffle, seed=seed
    )
    test = _all_batches(job, columns)
    every = max(reader.num_rows * epochs // course.num_points, 1)
    model = build_model(job.model, columns, seed)
    failed = None
    with torch.random.fork_rng(devices=[]), Trainer(
        model, job.optimizers, tables=job.tables, tiers=job.tiers, seed=seed
    ) as trainer:  # fmt: skip
        torch.default_generator.manual_seed(seed)
        training = Training(
            trainer,
            _epochs(reader, epochs),
            variant,
            sizes,
            evaluate=lambda: trainer.evaluate(test),
            every_samples=every,
            on_point=lambda point: course.on_point(variant.label, seed, point),
        )
        simulator = Simulator(played, variant.policy, hooks=training)
        try:
            sim = simulator.run()
            training.finish(sim.end_s)
        except NotFinite as error:  # a result like any other: this policy does not bear this learning rate
            sim, failed = simulator.result(), str(error)
        return VirtualRun(variant, seed, sim, tuple(training.points), trainer.samples, training.dropped_samples, failed)


def _epochs(reader: Reader, num: int) -> Iterator[Batch]:
    for epoch in range(num):
        for batch, _ in reader.read(Position(epoch=epoch)):
            yield batch


def _all_batches(job: Job, columns: Schema) -> list[Batch]:
    """The test set, in memory: it is looked at again and again."""
    assert job.data.test is not None
    reader = Reader(job.data.test, columns, batch_size=job.data.batch_size, shuffle=False)
    return [batch for batch, _ in reader.read()]
