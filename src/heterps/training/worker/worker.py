"""The shell of a worker: it gives the core (core.py) messages and computing (stage_work.py), one after the other.

    mailbox --message--> core --effects--> perform: mailbox, parameters, pushes
                          |  ^
                        turn |
                          v  |
                       StageWork.run

Pushes travel while the worker computes what is next. Whichever thread hears that the servers have them tells the
coordinator so. The worker waits for them only where nothing else can be computed before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from msgspec.structs import replace

from heterps.config import Job
from heterps.errors import HeterpsError, PeerLost
from heterps.ps.client.interface import JobClient
from heterps.ps.protocol.specs import TableSpecs
from heterps.training.coordinator.failures import kind_and_text
from heterps.training.protocol.messages import (
    Alive,
    Backward,
    Failed,
    Forward,
    Message,
    Pushed,
    Ready,
    Send,
    StageState,
)
from heterps.training.worker.core import (
    COORDINATOR,
    AskParameters,
    BeginRound,
    Effect,
    ForgetPeer,
    PushGradients,
    ReadBatch,
    TakePlace,
    TellState,
    Turn,
    WorkerCore,
)
from heterps.training.worker.mailbox import Envelope, Mailbox
from heterps.training.worker.pushes import Pushes
from heterps.training.worker.stage_work import StageWork, WorkerStart

__all__ = ["COORDINATOR", "Worker", "WorkerStart", "run_worker"]

POLL_S = 0.5
BEATS = 4
"""How often a worker that only waits says that it is alive, in the time after which it would count as lost."""
PATIENCE = 3
"""How many times as long as the coordinator a worker waits for another. The coordinator notices one that is silent
within twice its deadline, and replaces it; a worker that gave up as soon would end the run."""


def run_worker(
    job: Job,
    start: WorkerStart,
    mailbox: Mailbox,
    address: str,
    connect: Callable[[TableSpecs], JobClient],
    stopped: Callable[[], bool] = lambda: False,
    log: str = "",
) -> None:
    """Work until the coordinator says stop, or `stopped`. An error is told to the coordinator, and raised.

    log  where the caller writes the traceback of an error
    """
    try:
        worker = Worker(job, start, mailbox, connect)
        try:
            mailbox.send(COORDINATOR, Ready(start.name, address, start.attempt))
            _run(worker, stopped, job.workers.deadline_s)
        finally:
            worker.close()
    except (Exception, SystemExit) as error:
        with suppress(HeterpsError):  # nobody is there any more to be told
            mailbox.send(COORDINATOR, Failed(start.name, *kind_and_text(error, log)))
        raise


def _run(worker: Worker, stopped: Callable[[], bool], deadline_s: float) -> None:
    """[1] takes what has come, [2] computes what can be, [3] waits for pushes or for messages."""
    busy_at = told_at = time.monotonic()
    while not worker.core.is_stopped and not stopped():
        is_handled = worker.take_in()  # [1]
        if not (worker.compute() or worker.wait_for_pushes() or is_handled or worker.take_in(POLL_S)):  # [2] [3]
            now = time.monotonic()
            _check_time(worker, now - busy_at, PATIENCE * deadline_s)
            if now - told_at > deadline_s / BEATS:
                worker.tell_alive()
                told_at = now
            continue
        busy_at = time.monotonic()


def _check_time(worker: Worker, waited_s: float, deadline_s: float) -> None:
    if (waits_for := worker.core.waits_for) is not None and waited_s > deadline_s:
        (iteration, lane), peer = waits_for
        raise PeerLost(
            f"{worker.core.name} has waited {waited_s:.0f} s for the gradients of iteration {iteration}, lane {lane}, "
            f"from {peer}: is it alive? workers.deadline_s of the job says how long to wait"
        )


class WorkerMailbox(Protocol):
    """A worker's way to the coordinator and its neighbours; a Mailbox is one."""

    border_bytes: int
    """Bytes of messages between stages that were sent."""

    def connect(self, addresses: Mapping[str, str]) -> None:
        """Reach these peers from now on."""

    def forget(self, peer: str) -> None:
        """Send nothing again to a peer that has died."""

    def send(self, peer: str, message: Message, values: Mapping[str, Any] | None = None) -> None:
        """Send a message; any thread may call it."""

    def receive(self, timeout_s: float) -> Envelope | None: ...


class Worker:
    """A core, what it computes with, and its mailbox."""

    def __init__(
        self, job: Job, start: WorkerStart, mailbox: WorkerMailbox, connect: Callable[[TableSpecs], JobClient]
    ) -> None:
        self.work = StageWork(job, start, connect)
        self.core = WorkerCore(start.name, start.stage, self.work.num_stages, job.workers.in_flight)
        self._mailbox = mailbox
        self._pushes = Pushes(self._tell)

    def take_in(self, timeout_s: float = 0.0) -> bool:
        """Handle all messages that have come, the first within `timeout_s`; False where none has."""
        is_any = False
        while (envelope := self._mailbox.receive(0.0 if is_any else timeout_s)) is not None:
            self._perform(self.core.handle(envelope.message, envelope.values))
            is_any = True
        return is_any

    def compute(self) -> bool:
        """Compute what can be computed now; False where nothing can."""
        self.check_pushes()
        turn = self.core.next_turn()
        if turn is None:
            return False
        self.finish(turn)
        return True

    def finish(self, turn: Turn) -> None:
        """Compute a turn, and do what follows from it."""
        result = self.work.run(turn)
        self.take_in()  # what messages pull would else be answered after the servers have taken the pushes
        self._perform(self.core.computed(turn, result))

    def check_pushes(self) -> None:
        """Raise the error that a push under way has met."""
        self._pushes.check()

    def wait_for_pushes(self) -> bool:
        """Wait for the oldest push where nothing can come before it is there; False, at once, elsewhere."""
        if not self._pushes.num_under_way or self._pushes.num_under_way < self.work.num_replicas:
            return False
        with self.work.meter.doing("communicate"):
            self._pushes.wait()
        return True

    def tell_alive(self) -> None:
        self._mailbox.send(COORDINATOR, Alive(self.core.name))

    def close(self) -> None:
        self.work.close()

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case TakePlace():
                    self._pushes.wait_for_all()
                    self.work.take_place(effect.assign, effect.state)
                    self._mailbox.connect(effect.assign.addresses)
                case ForgetPeer():
                    self._mailbox.forget(effect.peer)
                case ReadBatch():
                    found = self.work.read(effect.go)
                    if isinstance(found, int):
                        self._perform(self.core.batch_missing(effect.go, found))
                    else:
                        self._perform(self.core.batch_read(effect.go, *found))
                case BeginRound():
                    self.work.begin_round(effect.number)
                case AskParameters():
                    self.work.ask(*effect)
                case PushGradients():
                    self._push(effect)
                case TellState():
                    self._mailbox.send(COORDINATOR, StageState(self.core.name), self.work.state())

    def _send(self, send: Send) -> None:
        """Send values; those for a worker that has died are dropped, and the coordinator has them made again."""
        with self.work.meter.doing("communicate"):
            try:
                self._mailbox.send(*send)
            except PeerLost:
                if not isinstance(send.message, Forward | Backward):
                    raise

    def _push(self, asked: PushGradients) -> None:
        pushes, not_finite = self.work.push(asked)
        usage = self.work.usage(self.core.num_waiting, self._mailbox.border_bytes)
        iteration, lane = asked.key
        read = self.work.new_counts()
        epoch, spans = self.work.layout.epoch, self.work.meter.take_spans()
        pushed = Pushed(
            self.core.name, lane, iteration, asked.num_samples, usage, 0.0 if not_finite else asked.loss,
            read=read, layout_epoch=epoch, spans=spans, not_finite=not_finite,
        )  # fmt: skip
        self._pushes.announce(pushes, pushed, None if not_finite else asked.scores)

    def _tell(self, pushed: Pushed, values: Mapping[str, Any] | None) -> None:
        self._mailbox.send(COORDINATOR, replace(pushed, sent_s=self.work.meter.clock()), values)
