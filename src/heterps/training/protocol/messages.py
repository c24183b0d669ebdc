"""What the coordinator and the workers of a job say to each other: the headers. Arrays travel beside them as frames.

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

from typing import Annotated

from msgspec import Meta, Struct

from heterps.training.protocol.border import BorderValues
from heterps.training.protocol.emulation import StagePace
from heterps.training.protocol.layout import Layout
from heterps.wire import Codec, Limits

Count = Annotated[int, Meta(ge=0, lt=2**53)]
Seconds = Annotated[float, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
ALL_LANES = -1
Lane = Annotated[int, Meta(ge=ALL_LANES, lt=2**16)]

# --- coordinator to worker -------------------------------------------------------------------------------------------


class Assign(Struct, frozen=True, tag="assign"):
    """From now on the layout is this one. `state` (frames) is what its stage has besides what is on the servers."""

    layout: Layout
    addresses: dict[str, str]
    pace: StagePace | None = None  # of emulated units
    scale: float = 1.0  # real seconds of an emulated one
    state: BorderValues | None = None


class Go(Struct, frozen=True, tag="go"):
    """Start iteration `iteration` of a lane, or round `iteration` of all lanes. Workers of stage 0 are told the batch.

    `samples` were trained on before: schedules need them.
    """

    lane: Lane
    iteration: Count
    samples: Count
    epoch: Count = 0
    batch: Count = 0


class AskState(Struct, frozen=True, tag="ask_state"):
    """What the stage has besides what is on the servers: running means, parameters that workers reduce themselves."""


class Stop(Struct, frozen=True, tag="stop"):
    """Leave."""


# --- worker to coordinator -------------------------------------------------------------------------------------------


class Ready(Struct, frozen=True, tag="ready"):
    """The worker has its model and its servers, and listens at `address`."""

    worker: Name
    address: str


class Assigned(Struct, frozen=True, tag="assigned"):
    worker: Name
    epoch: Count


class Usage(Struct, frozen=True, array_like=True):
    """Seconds since the worker began, by what it did; and what waits for it now."""

    compute_s: Seconds = 0.0
    communicate_s: Seconds = 0.0  # with servers, and to hand values on
    wait_s: Seconds = 0.0  # for values, gradients or a go-ahead
    queue: Count = 0
    late_s: Seconds = 0.0  # emulated: by how much computing took longer than it should have seemed to


class Pushed(Struct, frozen=True, tag="pushed"):
    """The worker's gradients of an iteration are with the servers. From the last stage with frames: logits, labels."""

    worker: Name
    lane: Lane
    iteration: Count
    num_samples: Count
    usage: Usage
    loss: float = 0.0  # what the samples add to the mean loss of their batch
    scores: BorderValues | None = None


class NoBatch(Struct, frozen=True, tag="no_batch"):
    """The epoch of a Go has only so many batches."""

    worker: Name
    lane: Lane
    iteration: Count
    epoch: Count
    num_batches: Count


class State(Struct, frozen=True, tag="state"):
    """The answer to AskState, and the state of an Assign: {"buffers": {...}, "dense": {...}} (frames)."""

    worker: Name
    state: BorderValues


class Failed(Struct, frozen=True, tag="failed"):
    """The worker ends, by an error of this type of heterps.errors (another is a bug of ours or of the model)."""

    worker: Name
    kind: str
    text: str


# --- worker to worker ------------------------------------------------------------------------------------------------


class Forward(Struct, frozen=True, tag="forward"):
    """Values (frames) that are live where the next stage begins; None for a lane that has no samples this time."""

    epoch: Count  # of the layout
    lane: Lane
    iteration: Count
    num_samples: Count  # of the whole batch, of which these may be a part
    samples: Count
    values: BorderValues | None


class Backward(Struct, frozen=True, tag="backward"):
    """Gradients (frames) of the values that Forward brought."""

    epoch: Count
    lane: Lane
    iteration: Count
    values: BorderValues | None


ToWorker = Assign | Go | AskState | Stop | Forward | Backward
ToCoordinator = Ready | Assigned | Pushed | NoBatch | State | Failed
Message = ToWorker | ToCoordinator


def job_codec(limits: Limits = Limits()) -> Codec[Message]:
    return Codec(Message, limits)
