"""What the coordinator's core wants done: its shell does it, and tells the core how it went."""

from __future__ import annotations

from typing import Any, NamedTuple

from heterps.training.coordinator.flow import SkippedBatch
from heterps.training.coordinator.journal import BatchDone
from heterps.training.coordinator.reconfiguration import StartWorkers, StopWorker
from heterps.training.protocol.messages import Go, Send


class Save(NamedTuple):
    """Write a checkpoint of what was trained so far: tell `answered` when training may go on, and `saved` how
    it went."""


class Publish(NamedTuple):
    """Write a version of the model for those who follow the run, and tell `published` how it went."""


class Validate(NamedTuple):
    """Evaluate the model as it is on the samples for validation, and tell `validated` how good it is."""


class Measured(NamedTuple):
    """An interval is over: a line of metrics.jsonl, to which fields about the tables are to be added."""

    line: dict[str, Any]


class EndRound(NamedTuple):
    """All gradients of a round are on the servers: clip their sum there, if the job does, and let them apply it.

    are_several  workers have pushed them; a worker that is alone clips its own, and they are applied at once
    """

    number: int
    are_several: bool


class TellEnded(NamedTuple):
    """The round before is over, for workers and in the journal: let the servers apply it while the go-aheads for the
    next one travel. They would hear it with the first request of a worker, who then would wait for that."""


class Note(NamedTuple):
    """Write to the journal what was decided, before anything that comes after it in the list of effects is done."""

    record: Go | BatchDone


class DropRound(NamedTuple):
    """Let the servers drop what they keep of a round of several workers, whose number comes again: somebody died in it,
    or its batch is skipped."""

    number: int


class Skip(NamedTuple):
    """A batch was skipped: write its rows down, if the job says so."""

    batch: SkippedBatch


Effect = (
    Send
    | StartWorkers
    | StopWorker
    | Save
    | Publish
    | Validate
    | Measured
    | EndRound
    | TellEnded
    | Note
    | DropRound
    | Skip
)
