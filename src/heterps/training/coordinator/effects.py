"""What the coordinator's core wants done: its shell does it, and tells the core how it went."""

from __future__ import annotations

from typing import Any, NamedTuple

from heterps.training.coordinator.reconfiguration import StartWorkers, StopWorker
from heterps.training.protocol.messages import Send


class Save(NamedTuple):
    """Write a checkpoint of what was trained so far, and tell `saved` how it went."""


class Validate(NamedTuple):
    """Evaluate the model as it is on the samples for validation, and tell `validated` how good it is."""


class Measured(NamedTuple):
    """An interval is over: a line of metrics.jsonl, to which fields about the tables are to be added."""

    line: dict[str, Any]


class ApplyRound(NamedTuple):
    """All gradients of a round are on the servers, which wait: clip their sum there, and let them apply it."""

    number: int


Effect = Send | StartWorkers | StopWorker | Save | Validate | Measured | ApplyRound
