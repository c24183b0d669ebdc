"""The settings of a virtual run, its evaluations while it goes on, and its result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Self

from pydantic import Field, PositiveInt

from heterps.config import Job
from heterps.config.base import Frozen
from heterps.data.batch import Batch
from heterps.data.reader import open_test_reader
from heterps.errors import NotFinite
from heterps.sim.result import SimResult, WorkerResult
from heterps.sim.scenario import Scenario
from heterps.sim.variants import Variant, parse_variant
from heterps.training.metrics.metrics import Metrics

TEST_BATCH = 1024
"""Least number of samples that are evaluated at once, as far as there are that many."""


class Course(Frozen):
    """How long virtual runs go on, and how closely they are looked at."""

    epochs: PositiveInt | None = Field(None, description="Passes over the training data; none: as the job says.")
    points: PositiveInt = Field(40, description="Evaluations on the test set, at equal steps of samples.")


@dataclass(frozen=True)
class Point:
    """An evaluation of the model on the test set at a moment of the simulated time."""

    now_s: float
    samples: int
    updates: int
    quality: float  # AUC, accuracy or R², which may be below 0; NaN where the test set has one class only
    loss: float


@dataclass(frozen=True)
class VirtualRun:
    """The result of training a job on a simulated cluster."""

    variant: Variant
    seed: int
    measure: str  # what quality is: AUC, accuracy or R²
    sim: SimResult
    points: tuple[Point, ...]
    samples: int  # whose gradients were applied
    dropped_samples: int  # of gradients that came too late for their round
    failed: str | None = None  # training diverged: what was not finite

    @property
    def best(self) -> float:
        """The highest quality of all points; 0 where none was measured."""
        return max((point.quality for point in self.points if math.isfinite(point.quality)), default=0.0)

    def reaches(self, target: float) -> Point | None:
        """The first point of at least that quality; None if there is none, or if training diverged."""
        return None if self.failed else next((point for point in self.points if point.quality >= target), None)

    def as_json(self) -> dict[str, Any]:
        return {
            "policy": self.variant.label,
            "seed": self.seed,
            "measure": self.measure,
            "sim": asdict(self.sim),
            "points": [asdict(point) for point in self.points],
            "samples": self.samples,
            "dropped_samples": self.dropped_samples,
            "failed": self.failed,
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Self:
        """The run that `as_json` wrote, also after a round trip through JSON text."""
        sim = given["sim"] | {
            "staleness": {int(key): count for key, count in given["sim"]["staleness"].items()},
            "workers": tuple(WorkerResult(**worker | {"segments": ()}) for worker in given["sim"]["workers"]),
        }
        return cls(
            variant=parse_variant(given["policy"]),
            seed=given["seed"],
            measure=given["measure"],
            sim=SimResult(**sim),
            points=tuple(Point(**point) for point in given["points"]),
            samples=given["samples"],
            dropped_samples=given["dropped_samples"],
            failed=given["failed"],
        )


class Curve:
    """Evaluates a model at equal steps of samples, and at the end. A model that is not finite has `failed`."""

    def __init__(
        self, every_samples: int, evaluate: Callable[[], Metrics], on_point: Callable[[Point], None] = lambda _: None
    ) -> None:
        self.points: list[Point] = []
        self.failed: str | None = None
        self._every, self._next = every_samples, every_samples
        self._evaluate, self._on_point = evaluate, on_point

    def step(self, now_s: float, samples: int, updates: int) -> None:
        """An update was made: evaluate the model if it is time."""
        if samples >= self._next:
            self._next = (samples // self._every + 1) * self._every
            self._measure(now_s, samples, updates)

    def finish(self, now_s: float, samples: int, updates: int) -> None:
        """Add the last point, the model at the end, unless it is there already."""
        if not self.failed and (not self.points or self.points[-1].updates < updates):
            self._measure(now_s, samples, updates)

    def _measure(self, now_s: float, samples: int, updates: int) -> None:
        try:
            metrics = self._evaluate()
        except NotFinite as error:
            self.failed = str(error)
            return
        self.points.append(Point(now_s, samples, updates, metrics.quality, metrics.loss))
        self._on_point(self.points[-1])


def expected_samples(scenario: Scenario, batch_size: int, most: int) -> int:
    """The number of samples that a run will train on, if nobody waits."""
    if scenario.horizon_s is None:
        return most
    return min(most, int(scenario.horizon_s * sum(batch_size / seconds for seconds in scenario.workers)))


def read_test(job: Job) -> list[Batch]:
    """The test set, in memory: it is evaluated many times."""
    return [batch for batch, _ in open_test_reader(job, least=TEST_BATCH).read()]
