"""SimulatedWorker: a worker of a simulated job, whose turns take the time that the simulated clock says."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from heterps.config import Job
from heterps.errors import HeterpsError
from heterps.ps.client.remote import RemoteClient
from heterps.ps.protocol.specs import TableSpecs
from heterps.sim.clients import client_name
from heterps.training.coordinator.failures import kind_and_text
from heterps.training.protocol.messages import Failed, Message, Pushed, Ready
from heterps.training.worker.core import COORDINATOR, Turn
from heterps.training.worker.mailbox import Envelope
from heterps.training.worker.worker import Worker, WorkerStart
from heterps.wire.simulated import Outgoing, Way

if TYPE_CHECKING:
    from heterps.sim.job import SimulatedJob

Doing = tuple[str, float, float]
"""What a worker did, "compute" or "push", and from when to when."""
STOP_S = 2.0
"""A worker that could not be reached is stopped so long after it can be: meanwhile two have its name."""


class SimulatedWorker:
    """A worker that is busy with one turn at a time, until the simulated clock says that it is done.

    It adds to `did` what it does.
    """

    border_bytes = 0  # not counted

    def __init__(
        self,
        job: Job,
        start: WorkerStart,
        simulated: SimulatedJob,
        finish: Callable[[Turn, float], float],
        did: list[Doing],
        incarnation: int,
    ) -> None:
        self.name, self._simulated, self._finish = start.name, simulated, finish
        self.incarnation, self._attempt, self._is_dead = incarnation, start.attempt, False
        self._network = simulated.network
        self._inbox: deque[Envelope] = deque()
        self._parted_until_s = -math.inf
        self._turn: Turn | None = None  # taken, and not begun before its parameters have come
        self._is_busy = False
        self._did = did
        self._greeted: Future[Any] | None = None
        self._worker = Worker(job, start, self, self._reach)
        self._network.attach(self.name, self._hear)
        if self._greeted is None:
            self._tell_ready()
        else:  # from then on the servers refuse what may still come from the one before
            self._greeted.add_done_callback(lambda _: self._tell_ready())

    def _tell_ready(self) -> None:
        if not self._is_dead:
            self.send(COORDINATOR, Ready(self.name, "", self._attempt))

    def close(self) -> None:
        if not self._is_dead:
            self._worker.close()

    def die(self) -> None:
        """Do and say nothing more."""
        if self._is_dead:
            return
        self._network.detach(self.name, self._hear)
        if self._is_busy and self._did:
            what, start_s, end_s = self._did[-1]
            self._did[-1] = what, start_s, min(end_s, self._network.now_s)
        self._is_dead, self._is_busy = True, True
        self._worker.close()

    def stop(self) -> None:
        """Die because the coordinator wants it: now, or some time after it can be reached again."""
        at_s = self._parted_until_s + STOP_S if self._parted_until_s > self._network.now_s else self._network.now_s
        if at_s > self._network.now_s:
            self._network.call_at(at_s, self.die)
        else:
            self.die()

    def state(self) -> dict[str, Any]:
        """What it has and servers have not."""
        return self._worker.work.state()

    def freeze(self, until_s: float) -> None:
        """Stand still until then, as after SIGSTOP."""
        self._network.freeze([self.name, client_name(self.name, self.incarnation)], until_s)

    def part(self, until_s: float, way: Way) -> None:
        """Be cut off from all others until then."""
        self._parted_until_s = until_s
        self._network.part([self.name, client_name(self.name, self.incarnation)], until_s, way)

    def _reach(self, tables: TableSpecs) -> RemoteClient:
        client = self._simulated.clients.connect(self.name, self.incarnation, tables, self._look)
        if self.incarnation > 1:
            self._greeted = client.greet()
            client.flush()
        return client

    # --- the worker's mailbox ----------------------------------------------------------------------------------------

    def connect(self, addresses: Any) -> None:
        """Everybody is reached by name."""

    def forget(self, peer: str) -> None:
        """Nothing is sent again."""

    def send(self, peer: str, message: Message, values: Any = None) -> None:
        if isinstance(message, Pushed):
            self._did.append(("push", self._ended_s, self._network.now_s))
        self._simulated.send(self.name, peer, message, values)

    def receive(self, timeout_s: float) -> Envelope | None:
        del timeout_s
        return self._inbox.popleft() if self._inbox else None

    # --- turns -------------------------------------------------------------------------------------------------------

    def _hear(self, now_s: float, sender: str, parts: list[memoryview]) -> Outgoing:
        del now_s
        self._inbox.append(self._simulated.decode(sender, parts))
        self._look()
        return ()

    def _look(self) -> None:
        """Something came: begin what can be begun."""
        if self._is_busy:
            return
        try:
            self._worker.check_pushes()
        except HeterpsError as error:
            self._fail(error)
            return
        if self._turn is None:  # a real worker hears nothing while it waits for parameters
            self._worker.take_in()
            self._turn = self._worker.core.next_turn()
        if self._turn is None or any(True for _ in self._worker.work.missing(self._turn)):
            return
        self._is_busy = True
        now = self._network.now_s
        end = self._finish(self._turn, now)
        self._did.append(("compute", now, end))
        self._network.call_at(end, self._compute)

    def _compute(self) -> None:
        if self._is_dead:
            return
        turn, self._turn, self._is_busy = self._turn, None, False
        self._ended_s = self._network.now_s
        assert turn is not None
        try:
            self._worker.finish(turn)
        except HeterpsError as error:
            self._fail(error)
            return
        self._look()

    def _fail(self, error: HeterpsError) -> None:
        """End, as a worker does that has met an error."""
        self.send(COORDINATOR, Failed(self.name, *kind_and_text(error)))
        self.die()
