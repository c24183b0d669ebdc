"""What the coordinator and the workers of a job say to each other, and how arrays travel with it.

    coordinator                          worker of stage 0                        worker of stage 1
                               <--  Ready                                    <--  Ready
    Assign(layout, addresses)  -->  (connects to the next stage)
                               <--  Assigned                                 <--  Assigned
    Go(batch)                  -->  Forward(values that cross the border)    -->
                                                                             <--  Backward(their gradients)
                               <--  Pushed                                   <--  Pushed, with logits and labels

A worker tells `Pushed` once all servers have acknowledged its gradients. What it must be told again, such as a batch
that is not there (`NoBatch`), it asks for; who fails says so (`Failed`), and the job ends with that error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from heterps.training.protocol.border import BorderValues, pack, unpack
from heterps.training.protocol.emulated_units import StagePace
from heterps.training.protocol.layout import Layout
from heterps.wire import Codec, Frame, Limits
from heterps.wire.arrays import Dtype

Count = Annotated[int, Meta(ge=0, lt=2**53)]
Seconds = Annotated[float, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
ALL_LANES = -1
Lane = Annotated[int, Meta(ge=ALL_LANES, lt=2**16)]

# --- coordinator to worker -------------------------------------------------------------------------------------------


class Assign(Struct, frozen=True, tag="assign"):
    """The layout from now on. The values are what the stage has besides what is on the servers."""

    layout: Layout
    addresses: dict[str, str]
    pace: StagePace | None = None  # of emulated units
    scale: float = 1.0  # real seconds of an emulated one
    values: BorderValues | None = None


class Go(Struct, frozen=True, tag="go"):
    """Start iteration `iteration` of a lane, or round `iteration` of all lanes. Workers of stage 0 are told the batch.

    `samples` were trained on before: schedules need them. The worker will go on with batch `next_run`, after those that
    follow this one, so that it may decode it meanwhile; 0: nobody knows.
    """

    lane: Lane
    iteration: Count
    samples: Count
    epoch: Count = 0
    batch: Count = 0
    lead: Count = 0  # iterations that the lane is ahead of the slowest, for rows that may be stale
    next_run: Count = 0


class AskState(Struct, frozen=True, tag="ask_state"):
    """Ask what the stage has besides what is on the servers: running means, parameters that workers reduce."""


class ForgetLanes(Struct, frozen=True, tag="forget"):
    """Nothing more will come of what is under way in these lanes, or in all: `worker`, which they pass, has died."""

    lanes: tuple[Lane, ...]
    worker: str


class Stop(Struct, frozen=True, tag="stop"):
    """The worker is to end."""


# --- worker to coordinator -------------------------------------------------------------------------------------------


class Ready(Struct, frozen=True, tag="ready"):
    """The worker has its model and its servers, and listens at `address`. `attempt`: as it was told by its start."""

    worker: Name
    address: str
    attempt: Count = 0


class Assigned(Struct, frozen=True, tag="assigned"):
    worker: Name
    epoch: Count


class CacheUse(Struct, frozen=True, array_like=True):
    """Rows that came from a worker's copies of hot rows, and rows that did not; where it keeps copies."""

    num_hits: Count = 0
    num_misses: Count = 0


class WorkerTraffic(Struct, frozen=True, array_like=True):
    """The traffic of a worker with its servers: the fields of ps/client/counts.py, and two more."""

    bytes_sent: Count = 0
    bytes_received: Count = 0
    bytes_shared: Count = 0
    retries: Count = 0
    dropped: Count = 0
    keys_bytes: Count = 0
    rows_bytes: Count = 0
    row_gradients_bytes: Count = 0
    dense_bytes: Count = 0
    dense_gradients_bytes: Count = 0
    other_bytes: Count = 0
    calls: Count = 0
    requests: Count = 0
    deduplication_saved_bytes: Count = 0
    compression_saved_bytes: Count = 0
    caching_saved_bytes: Count = 0  # rows that came from copies
    border_bytes: Count = 0  # values and gradients that were sent to workers of other stages


class Usage(Struct, frozen=True, array_like=True):
    """Seconds since the worker began, by what it did; and what waits for it now."""

    compute_s: Seconds = 0.0
    communicate_s: Seconds = 0.0  # with servers, and to hand values on
    wait_s: Seconds = 0.0  # for values, gradients or a go-ahead
    queue: Count = 0
    late_s: Seconds = 0.0  # emulated: by how much computing took longer than it should have seemed to
    cache: CacheUse | None = None
    traffic: WorkerTraffic | None = None


class Spans(Struct, frozen=True, array_like=True):
    """What a worker did, one span after the other."""

    start_s: float  # when the first began, by the worker's clock
    doings: str  # a letter each, of doings.LETTERS
    lasted_us: tuple[Count, ...]  # microseconds of each


class RowGroupCounts(Struct, frozen=True, array_like=True):
    """What was in a row group of the training data, and what was missing. Every worker that reads it says the same."""

    row_group: Count  # its number in the data set
    num_rows: Count
    num_skipped: Count
    missing: dict[str, Count]  # values by column
    digest: str = ""  # of its values, as they were decoded


class Alive(Struct, frozen=True, tag="alive"):
    """The worker has nothing to compute, and waits: told now and then, so that its silence means something."""

    worker: Name


class Pushed(Struct, frozen=True, tag="pushed"):
    """The worker's gradients of an iteration are with the servers. Values of the last stage: logits, labels.

    With `not_finite`, a sentence about a loss or gradient that is not finite, the worker has pushed nothing: the batch
    is to be skipped.
    """

    worker: Name
    lane: Lane
    iteration: Count
    num_samples: Count
    usage: Usage
    loss: float = 0.0  # what the samples add to the mean loss of their batch
    values: BorderValues | None = None
    read: tuple[RowGroupCounts, ...] = ()  # row groups that the worker has read since it last pushed
    layout_epoch: Count = 1
    spans: Spans | None = None  # what the worker did since it last pushed
    sent_s: float = 0.0  # when this was sent, by the clock of `spans`
    not_finite: str = ""


class NoBatch(Struct, frozen=True, tag="no_batch"):
    """The epoch of a Go has only `num_batches` batches."""

    worker: Name
    lane: Lane
    iteration: Count
    epoch: Count
    num_batches: Count
    layout_epoch: Count = 1


class StageState(Struct, frozen=True, tag="state"):
    """The answer to AskState. Its values, and those of an Assign: {"buffers": {...}, "dense": {...}}."""

    worker: Name
    values: BorderValues | None = None


class Failed(Struct, frozen=True, tag="failed"):
    """The worker ends, by an error of this type of heterps.errors (another is a bug of ours or of the model)."""

    worker: Name
    kind: str
    text: str


# --- worker to worker ------------------------------------------------------------------------------------------------


class Forward(Struct, frozen=True, tag="forward"):
    """Values that are live where the next stage begins; none for a lane that has no samples this time."""

    epoch: Count  # of the layout
    lane: Lane
    iteration: Count
    num_samples: Count  # of the whole batch, of which these may be a part
    samples: Count
    values: BorderValues | None = None
    lead: Count = 0


class Backward(Struct, frozen=True, tag="backward"):
    """Gradients of the values that Forward brought; none for a lane without samples, and for a batch to be skipped."""

    epoch: Count
    lane: Lane
    iteration: Count
    values: BorderValues | None = None


ToWorker = Assign | Go | AskState | ForgetLanes | Stop | Forward | Backward
ToCoordinator = Ready | Assigned | Alive | Pushed | NoBatch | StageState | Failed
Message = ToWorker | ToCoordinator


class Send(NamedTuple):
    """An effect: this message goes to `peer`, with the arrays that belong to it.

    The field `values` of a message describes them on the wire, and is filled in by the codec alone.
    """

    peer: str
    message: Message
    values: Mapping[str, Any] | None = None


class JobCodec:
    """Turns messages with their arrays into parts of the wire, and back. `coding` rounds values between stages."""

    def __init__(self, coding: Dtype = "fp32", limits: Limits = Limits()) -> None:
        self._coding: Dtype = coding
        self._codec: Codec[Message] = Codec(Message, limits)

    def encode(self, message: Message, values: Mapping[str, Any] | None = None) -> list[Frame]:
        if values is None:
            return self._codec.encode(message, [])
        between_stages = isinstance(message, Forward | Backward)
        border, frames = pack(values, coding=self._coding if between_stages else "fp32")
        return self._codec.encode(msgspec.structs.replace(message, values=border), frames)

    def decode(self, parts: Sequence[Frame]) -> tuple[Message, dict[str, Any] | None]:
        """The message and copies of its arrays. Raises WireError where there is none."""
        message, frames = self._codec.decode(parts)
        border: BorderValues | None = getattr(message, "values", None)
        if border is None:
            return message, None
        return msgspec.structs.replace(message, values=None), unpack(border, frames)
