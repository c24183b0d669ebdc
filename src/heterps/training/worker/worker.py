"""Worker: one stage's layers on one unit, between the stage before, the stage after, the servers and the coordinator.

    Go, or Forward from the stage before                     Backward from the stage after
      |                                                        |
     [1] values of a micro-batch: its parameters are asked    [4] backward --> gradients of the inputs
      |  for, and travel while others are computed             |                 --> Backward to the stage before
     [2] its layers, forward                                  [5] in rounds: all lanes are back --> push
      |                                                        |  else: push this lane's at once
     [3] Forward to the stage after; the last stage has       [6] servers acknowledge, while others are computed
         loss and [4] at once                                      --> Pushed to the coordinator, by whichever thread
                                                                       hears of it

A worker has a replica of its layers for each lane whose batches are updates of their own, since a micro-batch must come
back through the parameters that it went through; in rounds parameters stay as they are, and one replica does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import Struct

from heterps.config import Job
from heterps.data.batch import Slots
from heterps.errors import HeterpsError, PeerLost
from heterps.model.build import build_model
from heterps.model.stages import split
from heterps.model.trace import trace
from heterps.ps.client.cache import CachedClient
from heterps.ps.client.local import FloatArray, JobClient
from heterps.ps.protocol.specs import Tables
from heterps.training.coordinator.failures import kind_and_text
from heterps.training.model.device import open_device
from heterps.training.model.replica import Replica, make_replicas
from heterps.training.protocol.border import pack, unpack
from heterps.training.protocol.emulation import make_pace
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import (
    ALL_LANES,
    AskState,
    Assign,
    Assigned,
    Backward,
    Failed,
    Forward,
    Go,
    NoBatch,
    Pushed,
    Ready,
    State,
    Stop,
)
from heterps.training.protocol.stage_tables import stage_tables
from heterps.training.worker.dense_parts import DenseParts, ReducedDense, ServedDense
from heterps.training.worker.feed import LABEL, Feed
from heterps.training.worker.mailbox import Envelope, Mailbox
from heterps.training.worker.pushes import Pushes
from heterps.training.worker.turns import Key, Turns
from heterps.training.worker.usage import Meter, MeteredRows

COORDINATOR = "coordinator"
POLL_S = 0.5


class WorkerStart(Struct, frozen=True):
    """Who a worker is: everything else it makes from the job. `firsts` are the first layers of all stages."""

    name: str
    stage: int
    firsts: tuple[int, ...]
    device: str = "cpu"
    folder: str = ""  # where workers meet that add up gradients among themselves


@dataclass
class _Input:
    """Values that came for this stage."""

    values: Mapping[str, Any] | None  # None: the lane has no samples this time
    num_samples: int  # of the whole batch
    samples: int  # trained on before it
    dense: Mapping[str, Future[FloatArray]] = field(default_factory=dict)  # parameters; of a round there is one set


@dataclass
class _Round:
    """What this worker has done of a round."""

    number: int
    samples: int
    left: int  # lanes that are not back
    num_samples: int = 0
    loss: float = 0.0


def run_worker(
    job: Job,
    start: WorkerStart,
    mailbox: Mailbox,
    address: str,
    connect: Callable[[Tables], JobClient],
    stopped: Callable[[], bool] = lambda: False,
    log: str = "",
) -> None:
    """Work until the coordinator says stop, or `stopped`. An error is told to the coordinator, and raised.

    log  where the caller writes the traceback of an error
    """
    try:
        with Worker(job, start, mailbox, connect) as worker:
            worker.run(address, stopped)
    except (Exception, SystemExit) as error:
        with suppress(HeterpsError):  # nobody is there any more to be told
            mailbox.send(COORDINATOR, Failed(start.name, *kind_and_text(error, log)))
        raise


class Worker:
    def __init__(self, job: Job, start: WorkerStart, mailbox: Mailbox, connect: Callable[[Tables], JobClient]) -> None:
        self.name, self._job, self._start, self._mailbox = start.name, job, start, mailbox
        self._in_rounds = job.sync.in_rounds
        self._model = build_model(job.model, job.data.columns, job.seed).train()
        self._trace = trace(self._model)
        self._stages = split(self._trace, start.firsts[1:])
        self._stage, self._last = start.stage, len(self._stages) - 1
        self._tables = stage_tables(job, self._model, self._trace, start.firsts)
        self._own_tables = self._tables.of_stage(self._stage)
        self._device = open_device(start.device)
        self._meter = Meter()
        with ExitStack() as opened:  # what is open is closed if the rest of it fails
            self._feed = Feed(job, self._trace.inputs) if self._stage == 0 else None
            if self._feed is not None:
                opened.callback(self._feed.close)
            self._client = connect(self._tables.on_servers(job.workers.dense == "servers"))
            opened.callback(self._client.close)
            self._opened = opened.pop_all()
        self._pushes = Pushes(self.name, self._stage, self._tables, self._client, self._tell)
        self._dense: DenseParts | None = None
        self._turns = Turns(job.workers.in_flight or 2 * len(self._stages))
        self._replicas: list[Replica] = []
        self._inputs: dict[Key, _Input] = {}
        self._early: list[tuple[Key, _Input]] = []  # of a round that has not begun here
        self._gradients: dict[Key, Mapping[str, Any] | None] = {}
        self._sizes: dict[Key, tuple[int, int, int]] = {}  # samples here, of the whole batch, before it
        self._round: _Round | None = None
        self._scores: dict[Key, tuple[FloatArray, FloatArray]] = {}  # logits and labels
        self._is_stopped = False

    def run(self, address: str, stopped: Callable[[], bool]) -> None:
        self._mailbox.send(COORDINATOR, Ready(self.name, address))
        busy_at = time.monotonic()
        while not self._is_stopped and not stopped():
            if self._do_next():
                busy_at = time.monotonic()
            elif self._turns.out and time.monotonic() - busy_at > self._job.workers.deadline_s:
                raise self._late(time.monotonic() - busy_at)

    def _do_next(self) -> bool:
        """What there is to do, or comes within a while. False: nothing came."""
        is_handled = self._handle_all()
        num_pushed = self._pushes.num_under_way
        if (turn := self._turns.next()) is not None:
            (self._go_forward if turn.does == "forward" else self._go_back)(turn.key)
        elif num_pushed == len(self._replicas) > 0:  # and nothing can come before they are there
            with self._meter.doing("communicate"):
                self._pushes.wait()
        elif not is_handled:
            envelope = self._mailbox.receive(POLL_S)
            if envelope is None:
                return False
            self._handle(envelope)
        return True

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._dense is not None:
            self._dense.close()
        self._opened.close()

    # --- what comes --------------------------------------------------------------------------------------------------

    def _handle_all(self) -> bool:
        """Whatever has come; False where nothing has."""
        is_any = False
        while (envelope := self._mailbox.receive(0.0)) is not None:
            self._handle(envelope)
            is_any = True
        return is_any

    def _handle(self, envelope: Envelope) -> None:
        match envelope.message:
            case Assign() as assign:
                self._assign(assign, unpack(assign.state, envelope.frames) if assign.state is not None else {})
            case Go() as go:
                self._start_iteration(go)
            case Forward() as forward if forward.epoch == self._layout.epoch:
                values = unpack(forward.values, envelope.frames) if forward.values is not None else None
                self._take_in((forward.iteration, forward.lane), _Input(values, forward.num_samples, forward.samples))
            case Backward() as backward if backward.epoch == self._layout.epoch:
                key = (backward.iteration, backward.lane)
                self._gradients[key] = unpack(backward.values, envelope.frames) if backward.values is not None else None
                self._turns.gradients_came(key)
            case AskState():
                border, frames = pack({"buffers": self._replicas[0].buffers(), "dense": self._dense_parts.state()})
                self._mailbox.send(COORDINATOR, State(self.name, border), frames)
            case Stop():
                self._is_stopped = True

    def _assign(self, assign: Assign, state: Mapping[str, Any]) -> None:
        """Forget what was under way (nothing is), and take the place in the new layout."""
        self._layout: Layout = assign.layout
        self._lanes = assign.layout.lanes_of(self.name)
        self._turns.forget()
        self._pushes.follow(assign.layout)
        self._inputs, self._gradients, self._early, self._round = {}, {}, [], None
        self._rows = CachedClient(self._client, 0, max_ahead=len(self._lanes) * len(self._own_tables))
        self._pace = make_pace(assign.pace, assign.scale)
        count = 1 if self._in_rounds else len(self._lanes)
        self._replicas = make_replicas(
            self._model,
            self._trace,
            self._stages,
            self._tables,
            self._stage,
            count,
            self._job.data.columns.num_classes,
            MeteredRows(self._rows, self._meter),
            self._device,
        )
        for replica in self._replicas:
            replica.load_buffers(state.get("buffers", {}))
        if self._dense is not None:
            self._dense.close()
        self._dense = self._make_dense(state.get("dense", {}))
        if self._feed is not None:
            self._feed.follow(assign.layout, self._lanes if self._in_rounds else None, self._replicas[0])
        self._mailbox.connect(assign.addresses)
        self._mailbox.send(COORDINATOR, Assigned(self.name, assign.layout.epoch))

    def _make_dense(self, state: Mapping[str, Mapping[str, Any]]) -> DenseParts:
        own = [spec.name for spec in self._tables.tables.dense if spec.name in self._own_tables]
        if self._job.workers.dense == "servers":
            return ServedDense(self._client, own)
        members = {table: self._pushes.contributors(table) for table in own}
        folder, epoch = Path(self._start.folder), self._layout.epoch
        return ReducedDense(
            self._tables.tables,
            members,
            self.name,
            state,
            lambda table: folder / f"{table}-{epoch}",
            self._job.workers.deadline_s,
        )

    def _start_iteration(self, go: Go) -> None:
        """[1] of a worker of stage 0, and the beginning of a round for all."""
        inputs: dict[Key, _Input] = {}
        if self._feed is not None:
            pieces = self._feed.take(go)
            if pieces is None:
                num_batches = self._feed.num_batches(go.epoch)
                self._mailbox.send(COORDINATOR, NoBatch(self.name, go.lane, go.iteration, go.epoch, num_batches))
                return
            num_samples = pieces.num_samples
            inputs = {
                (go.iteration, lane): _Input(values, num_samples, go.samples) for lane, values in pieces.values.items()
            }
        if go.lane == ALL_LANES:
            self._round = _Round(go.iteration, go.samples, len(self._lanes))
            self._turns.begin_round((go.iteration, lane) for lane in self._lanes)
            pulled = self._dense_parts.pull()
        for key, item in inputs.items():
            self._take_in(key, item)
        early, self._early = self._early, []
        for key, item in early:
            self._take_in(key, item)
        if go.lane == ALL_LANES:
            with self._meter.doing("communicate"):
                self._replicas[0].load({table: values.result() for table, values in pulled.items()})

    def _take_in(self, key: Key, item: _Input) -> None:
        if self._in_rounds and (self._round is None or key[0] != self._round.number):
            self._early.append((key, item))
            return
        self._pull(key, item)
        self._inputs[key] = item
        self._turns.values_came(key)

    def _pull(self, key: Key, item: _Input) -> None:
        """[1] Ask for the parameters that a micro-batch will need. Its go-ahead was given: they are new enough."""
        if not self._in_rounds:
            item.dense = self._dense_parts.pull()
        for slots in [value for value in (item.values or {}).values() if isinstance(value, Slots)]:
            for table, lookup in self._replica(key).lookups(slots):
                self._rows.prefetch(table, lookup)
        self._client.flush()

    # --- forward and back --------------------------------------------------------------------------------------------

    def _go_forward(self, key: Key) -> None:  # [2] [3]
        item, replica = self._inputs.pop(key), self._replica(key)
        here = 0 if item.values is None else len(item.values[LABEL])
        self._sizes[key] = here, item.num_samples, item.samples
        if not self._in_rounds:
            with self._meter.doing("communicate"):
                replica.load({table: values.result() for table, values in item.dense.items()})
        if self._stage == self._last:
            self._turns.came_back(key)
            self._go_back(key, item)
            return
        outputs = None
        if item.values is not None:
            with self._meter.doing("compute"), self._pace.forward(here):
                outputs = replica.forward(key, item.values, seed=self._seed(key[1], item.samples))
            outputs = {**outputs, LABEL: item.values[LABEL]}
        border, frames = (None, []) if outputs is None else pack(outputs, coding=self._job.workers.values)
        message = Forward(self._layout.epoch, key[1], key[0], item.num_samples, item.samples, border)
        self._send(self._layout.worker_of(key[1], self._stage + 1), message, frames)

    def _go_back(self, key: Key, item: _Input | None = None) -> None:  # [4]
        """With the gradients that came; at the last stage with the loss of `item`, which goes forward first."""
        replica, (here, num_samples, samples) = self._replica(key), self._sizes.pop(key)
        gradients: Mapping[str, Any] | None = None
        loss = 0.0
        if item is None:
            came = self._gradients.pop(key)
            if came is not None:
                with self._meter.doing("compute"), self._pace.backward(here):
                    gradients = replica.backward(key, came)
        elif item.values is not None:
            values = dict(item.values)
            label = values.pop(LABEL)
            is_part = self._in_rounds and self._layout.num_lanes > 1
            with self._meter.doing("compute"), self._pace.fused(here):
                loss, logits, gradients = replica.loss(
                    key, values, label, num_samples if is_part else None, seed=self._seed(key[1], samples)
                )
            self._scores[key] = logits, label.numpy()
        if self._stage > 0:
            border, frames = (None, []) if here == 0 else pack(gradients or {}, coding=self._job.workers.values)
            message = Backward(self._layout.epoch, key[1], key[0], border)
            self._send(self._layout.worker_of(key[1], self._stage - 1), message, frames)
        self._came_back(key, num_samples, samples, loss)

    def _came_back(self, key: Key, num_samples: int, samples: int, loss: float) -> None:  # [5]
        if not self._in_rounds:
            self._push(key, num_samples, samples, loss, None)
            return
        assert self._round is not None
        self._round.left -= 1
        self._round.num_samples = num_samples
        self._round.loss += loss
        if self._round.left == 0:
            number = self._round.number
            self._push((number, ALL_LANES), num_samples, self._round.samples, self._round.loss, number)
            self._round = None

    def _push(self, key: Key, num_samples: int, samples: int, loss: float, round: int | None) -> None:
        """Send the gradients of a lane, or all of this worker's in a round."""
        if round is None:
            self._handle_all()  # what letters pull would else be answered after the servers have taken the push
        with self._meter.doing("communicate"):
            pushes = self._pushes.send(*self._replica(key).take_gradients(), self._dense_parts, samples, round)
        scores, frames = self._take_scores()
        usage = self._meter.usage(self._turns.num_waiting, self._pace.late_s)
        self._pushes.announce(pushes, Pushed(self.name, key[1], key[0], num_samples, usage, loss, scores), frames)

    def _tell(self, pushed: Pushed, frames: list[Any]) -> None:  # [6]
        self._mailbox.send(COORDINATOR, pushed, frames)

    # --- small things ------------------------------------------------------------------------------------------------

    @property
    def _dense_parts(self) -> DenseParts:
        assert self._dense is not None
        return self._dense

    def _replica(self, key: Key) -> Replica:
        return self._replicas[0] if self._in_rounds else self._replicas[self._lanes.index(key[1])]

    def _take_scores(self) -> tuple[Any, list[Any]]:
        scores, self._scores = self._scores, {}
        if not scores:
            return None, []
        logits = np.concatenate([logits for logits, _ in scores.values()])
        labels = np.concatenate([labels for _, labels in scores.values()])
        return pack({"logits": torch.from_numpy(logits), "labels": torch.from_numpy(labels)})

    def _send(self, peer: str, message: Forward | Backward, frames: list[Any]) -> None:
        with self._meter.doing("communicate"):
            self._mailbox.send(peer, message, frames)

    def _seed(self, lane: int, samples: int) -> int:
        """Of what layers draw: the same in every run, whoever computes it. Iterations begin anew when a run is resumed,
        samples go on."""
        return hash((self._job.seed, samples, lane, self._stage)) % 2**63

    def _late(self, waited_s: float) -> PeerLost:
        iteration, lane = min(self._turns.out)
        peer = self._layout.worker_of(lane, self._stage + 1)
        return PeerLost(
            f"{self.name} has waited {waited_s:.0f} s for the gradients of iteration {iteration}, lane {lane}, from "
            f"{peer}: is it alive? workers.deadline_s of the job says how long to wait"
        )
