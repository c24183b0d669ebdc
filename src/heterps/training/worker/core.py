"""WorkerCore: the protocol of one worker. Messages and results in, effects and turns out; it waits for nothing.

    Go, or Forward from the stage before              Backward from the stage after
      |                                                 |
     [1] AskParameters of a micro-batch                [4] Turn: backward --> Send(Backward) to the stage before
      |                                                 |
     [2] Turn: forward --> Send(Forward) to the stage   [5] PushGradients: in rounds when all lanes are back,
      |  after                                              else of this lane at once
     [3] Turn: loss, at the last stage: forward and backward at once, then [4] and [5]

`handle` takes a message, `next_turn` says what can be computed now, `computed` takes its result. The shell that drives
the core, on a thread, in a process or on a simulated clock, carries out the effects in their order, and computes turns
when and where it likes: on several threads at once, if they are of different lanes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import (
    ALL_LANES,
    AskState,
    Assign,
    Assigned,
    Backward,
    ForgetLanes,
    Forward,
    Go,
    Message,
    NoBatch,
    Send,
    Stop,
)
from heterps.training.worker.turns import Key, Turns

COORDINATOR = "coordinator"
LABEL = ":label"
"""The name under which labels travel with the values of nodes; no node has it."""

Values = dict[str, Any]

# --- effects, besides Send -------------------------------------------------------------------------------------------


class TakePlace(NamedTuple):
    """Make the replicas and connections of this layout. `state` is what the stage has and the servers have not."""

    assign: Assign
    state: Values


class ReadBatch(NamedTuple):
    """Fetch the pieces of a batch, and give them to `batch_read`, or say by `batch_missing` that there is none."""

    go: Go


class ForgetPeer(NamedTuple):
    """Send nothing again to a neighbour that has died. The next one of its name comes with another layout."""

    peer: str


class BeginRound(NamedTuple):
    """Ask for the dense parameters that all lanes of a round use. All rounds before `number` are over."""

    number: int


class AskParameters(NamedTuple):
    """Ask for the parameters that a micro-batch will need, so that they travel while others are computed."""

    key: Key
    values: Values | None
    lead: int


class PushGradients(NamedTuple):
    """Push the gradients of a lane, or all of this worker's in a round; when servers have them, tell the coordinator.

    key      iteration and lane; ALL_LANES for a round
    samples  trained on before this batch
    scores   logits and labels, of the last stage
    not_finite  a sentence about a loss that is not finite: nothing is pushed, and the coordinator is told so
    """

    key: Key
    samples: int
    num_samples: int
    loss: float
    scores: Values | None
    not_finite: str = ""

    @property
    def round(self) -> int | None:
        return self.key[0] if self.key[1] == ALL_LANES else None


class TellState(NamedTuple):
    """Send the coordinator what this stage has besides what is on the servers."""


Effect = Send | TakePlace | ForgetPeer | ReadBatch | BeginRound | AskParameters | PushGradients | TellState

# --- computing -------------------------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """A micro-batch that can be computed now."""

    does: Literal["forward", "backward", "loss"]
    key: Key
    values: Values | None  # inputs of the layers, or gradients of their outputs; None: the lane has no samples
    label: Tensor | None
    here: int  # samples of this micro-batch
    num_samples: int | None  # of the batch, whose mean the loss is; None: this is the whole batch
    samples: int  # trained on before
    epoch: int = 1  # of the layout in which it was begun

    @property
    def lane(self) -> int:
        return self.key[1]


class Computed(NamedTuple):
    """The result of a turn: outputs of a forward, or gradients of the inputs; of the last stage also loss and logits.

    With `not_finite`, a sentence about the loss, nothing came of it, and the batch is to be skipped.
    """

    values: Values | None = None
    loss: float = 0.0
    logits: Tensor | None = None
    not_finite: str = ""


@dataclass
class _MicroBatch:
    """A micro-batch that came for this stage and has not left it."""

    values: Values | None  # None: the lane has no samples this time
    num_samples: int  # of the whole batch
    samples: int  # trained on before it
    lead: int = 0  # iterations that its lane is ahead of the slowest

    @property
    def here(self) -> int:
        return 0 if self.values is None else len(self.values[LABEL])


@dataclass
class _Round:
    """What this worker has done of a round."""

    number: int
    samples: int
    left: int  # lanes that are not back
    num_samples: int = 0
    loss: float = 0.0
    not_finite: str = ""  # of the first lane whose loss was not


class WorkerCore:
    """Worker `name` of stage `stage`, from 0 on, of `num_stages`; `in_flight` limits the micro-batches under way."""

    def __init__(self, name: str, stage: int, num_stages: int, in_flight: int | None = None) -> None:
        self.name = name
        self._stage, self._is_last = stage, stage == num_stages - 1
        self._turns = Turns(in_flight or 2 * num_stages)
        self._under_way: dict[Key, _MicroBatch] = {}
        self._early: list[tuple[Key, _MicroBatch]] = []  # of a round that has not begun here
        self._gradients: dict[Key, Values | None] = {}
        self._round: _Round | None = None
        self._scores: dict[Key, tuple[Tensor, Tensor]] = {}  # logits and labels
        self.is_stopped = False
        self._epoch = 0  # of the layout; there is none yet

    # --- what comes --------------------------------------------------------------------------------------------------

    def handle(self, message: Message, values: Values | None = None) -> list[Effect]:
        match message:
            case Assign():
                return self._take_place(message, values or {})
            case Go():
                return [ReadBatch(message)] if self._stage == 0 else self._begin(message, {})
            case Forward() if message.epoch == self._epoch:
                key = message.iteration, message.lane
                return self._take_in(key, _MicroBatch(values, message.num_samples, message.samples, message.lead))
            case Backward() if message.epoch == self._epoch:
                key = message.iteration, message.lane
                if key in self._under_way:
                    self._gradients[key] = values
                    self._turns.gradients_came(key)
            case ForgetLanes():
                self._forget(message.lanes)
                return [ForgetPeer(message.worker)]
            case AskState():
                return [TellState()]
            case Stop():
                self.is_stopped = True
        return []

    def batch_read(self, go: Go, num_samples: int, pieces: Mapping[int, Values | None]) -> list[Effect]:
        """Take the batch of a Go: the values of each of its lanes here; None for a lane without samples."""
        found = {
            (go.iteration, lane): _MicroBatch(piece, num_samples, go.samples, go.lead) for lane, piece in pieces.items()
        }
        return self._begin(go, found)

    def batch_missing(self, go: Go, num_batches: int) -> list[Effect]:
        """Handle that the epoch of a Go has fewer batches than that."""
        told = NoBatch(self.name, go.lane, go.iteration, go.epoch, num_batches, self._epoch)
        return [Send(COORDINATOR, told)]

    def _take_place(self, assign: Assign, state: Values) -> list[Effect]:
        """Forget what was under way (nothing is, or it is repeated), and take the place in the new layout."""
        self._layout: Layout = assign.layout
        self._epoch = assign.layout.epoch
        self._lanes = assign.layout.lanes_of(self.name)
        self._turns.forget()
        self._under_way, self._gradients, self._early, self._round = {}, {}, [], None
        self._scores = {}
        return [TakePlace(assign, state), Send(COORDINATOR, Assigned(self.name, assign.layout.epoch))]

    def _begin(self, go: Go, found: Mapping[Key, _MicroBatch]) -> list[Effect]:
        """Begin an iteration: in rounds of all lanes, otherwise of one lane."""
        effects: list[Effect] = []
        if go.lane == ALL_LANES:
            self._round = _Round(go.iteration, go.samples, len(self._lanes))
            self._turns.begin_round((go.iteration, lane) for lane in self._lanes)
            effects.append(BeginRound(go.iteration))
        early, self._early = self._early, []
        for key, item in [*found.items(), *early]:
            effects += self._take_in(key, item)
        return effects

    def _forget(self, lanes: Collection[int]) -> None:
        if ALL_LANES in lanes:
            lanes, self._round = self._lanes, None
        self._turns.forget(lanes)
        self._early = [(key, item) for key, item in self._early if key[1] not in lanes]
        for kept in (self._under_way, self._gradients, self._scores):
            for key in [key for key in kept if key[1] in lanes]:
                del kept[key]

    def _take_in(self, key: Key, item: _MicroBatch) -> list[Effect]:
        if self._layout.in_rounds and (self._round is None or key[0] != self._round.number):
            self._early.append((key, item))
            return []
        self._under_way[key] = item
        self._turns.values_came(key)
        return [AskParameters(key, item.values, item.lead)]  # [1]

    # --- forward and back --------------------------------------------------------------------------------------------

    def next_turn(self) -> Turn | None:
        """Return the next turn that can be computed, if any; it counts as begun."""
        taken = self._turns.next()
        if taken is None:
            return None
        item = self._under_way[taken.key]
        if taken.does == "backward":
            gradients = self._gradients.pop(taken.key)
            return Turn("backward", taken.key, gradients, None, item.here, None, item.samples, self._epoch)
        values, label = None, None
        if item.values is not None:
            values, label = dict(item.values), item.values[LABEL]
            del values[LABEL]
        if not self._is_last:
            return Turn("forward", taken.key, values, label, item.here, None, item.samples, self._epoch)
        self._turns.came_back(taken.key)
        is_part = self._layout.in_rounds and self._layout.num_lanes > 1
        num_samples = item.num_samples if is_part else None
        return Turn("loss", taken.key, values, label, item.here, num_samples, item.samples, self._epoch)

    def computed(self, turn: Turn, result: Computed) -> list[Effect]:
        """Take the result of a turn; of several at once those of lower lanes come first.

        The result of a turn that was forgotten meanwhile has no effects.
        """
        iteration, lane = turn.key
        if turn.epoch != self._epoch or turn.key not in self._under_way:
            return []
        if turn.does == "forward":  # [2]
            item = self._under_way[turn.key]
            item.values = None if item.values is None else {LABEL: turn.label}  # inputs are not needed any more
            values = None if result.values is None else {**result.values, LABEL: turn.label}
            forward = Forward(self._layout.epoch, lane, iteration, item.num_samples, item.samples, lead=item.lead)
            return [Send(self._layout.worker_of(lane, self._stage + 1), forward, values)]
        item = self._under_way.pop(turn.key)
        if turn.label is not None and result.logits is not None:
            self._scores[turn.key] = result.logits, turn.label
        effects: list[Effect] = []
        if self._stage > 0:  # [4]
            backward = Backward(self._layout.epoch, lane, iteration)
            has_gradients = turn.values is not None and not result.not_finite
            gradients = result.values or {} if has_gradients else None
            effects.append(Send(self._layout.worker_of(lane, self._stage - 1), backward, gradients))
        return effects + self._came_back(turn.key, item, result)

    def _came_back(self, key: Key, item: _MicroBatch, result: Computed) -> list[Effect]:  # [5]
        if not self._layout.in_rounds:
            scores = self._take_scores()
            return [PushGradients(key, item.samples, item.num_samples, result.loss, scores, result.not_finite)]
        assert self._round is not None
        self._round.left -= 1
        self._round.num_samples = item.num_samples
        self._round.loss += result.loss
        self._round.not_finite = self._round.not_finite or result.not_finite
        if self._round.left:
            return []
        ended, self._round = self._round, None
        key = ended.number, ALL_LANES
        scores = self._take_scores()
        return [PushGradients(key, ended.samples, ended.num_samples, ended.loss, scores, ended.not_finite)]

    def _take_scores(self) -> Values | None:
        scores, self._scores = self._scores, {}
        if not scores:
            return None
        return {
            "logits": torch.cat([logits for logits, _ in scores.values()]),
            "labels": torch.cat([labels for _, labels in scores.values()]),
        }

    # --- what is under way -------------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """The number of micro-batches that this worker could compute now."""
        return self._turns.num_waiting

    @property
    def waits_for(self) -> tuple[Key, str] | None:
        """The oldest micro-batch whose gradients have not come, and the worker that owes them."""
        if not self._turns.out:
            return None
        key = min(self._turns.out)
        return key, self._layout.worker_of(key[1], self._stage + 1)
