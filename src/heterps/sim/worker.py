"""SimulatedWorker: a worker of a simulated job, whose turns take the time that the simulated clock says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from heterps.config import Job
from heterps.errors import NotFinite
from heterps.ps.client.remote import RemoteClient
from heterps.ps.protocol.specs import TableSpecs
from heterps.training.protocol.messages import Message, Pushed, Ready
from heterps.training.worker.core import COORDINATOR, Turn
from heterps.training.worker.mailbox import Envelope
from heterps.training.worker.worker import Worker, WorkerStart
from heterps.wire.simulated import Outgoing

if TYPE_CHECKING:
    from heterps.sim.job import SimulatedJob


class SimulatedWorker:
    """A worker that is busy with one turn at a time, until the simulated clock says that it is done."""

    border_bytes = 0  # not counted

    def __init__(
        self,
        job: Job,
        start: WorkerStart,
        simulated: SimulatedJob,
        finish: Callable[[Turn, float], float],
        incarnation: int = 1,
    ) -> None:
        self.name, self._simulated, self._finish = start.name, simulated, finish
        self.incarnation, self._is_dead = incarnation, False
        self._network = simulated.network
        self._inbox: deque[Envelope] = deque()
        self._turn: Turn | None = None  # taken, and not begun before its parameters have come
        self._is_busy = False
        self.did: list[tuple[str, float, float]] = []  # "compute" or "push", from when to when
        self._greeted: Future[Any] | None = None
        self._worker = Worker(job, start, self, self._reach)
        self._network.attach(self.name, self._hear)
        if self._greeted is None:
            self._tell_ready()
        else:  # from then on the servers refuse what may still come from the one before
            self._greeted.add_done_callback(lambda _: self._tell_ready())

    def _tell_ready(self) -> None:
        if not self._is_dead:
            self.send(COORDINATOR, Ready(self.name, ""))

    def close(self) -> None:
        if not self._is_dead:
            self._worker.close()

    def die(self) -> None:
        """Do and say nothing more."""
        self._network.detach(self.name)
        self._is_dead, self._is_busy = True, True
        self._worker.close()

    def _reach(self, tables: TableSpecs) -> RemoteClient:
        client = self._simulated.connect(self.name, self.incarnation, tables, self._look)
        if self.incarnation > 1:
            self._greeted = client.greet()
            client.flush()
        return client

    # --- the worker's mailbox ----------------------------------------------------------------------------------------

    def connect(self, addresses: Any) -> None:
        """Everybody is reached by name."""

    def send(self, peer: str, message: Message, values: Any = None) -> None:
        if isinstance(message, Pushed):
            self.did.append(("push", self._ended_s, self._network.now_s))
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
        except NotFinite as error:
            self._simulated.failed = str(error)
            return
        if self._turn is None:  # a real worker hears nothing while it waits for parameters
            self._worker.take_in()
            self._turn = self._worker.core.next_turn()
        if self._turn is None or any(True for _ in self._worker.work.missing(self._turn)):
            return
        self._is_busy = True
        now = self._network.now_s
        end = self._finish(self._turn, now)
        self.did.append(("compute", now, end))
        self._network.call_at(end, self._compute)

    def _compute(self) -> None:
        if self._is_dead:
            return
        turn, self._turn, self._is_busy = self._turn, None, False
        self._ended_s = self._network.now_s
        assert turn is not None
        try:
            self._worker.finish(turn)
        except NotFinite as error:
            self._simulated.failed = str(error)
            return
        self._look()
