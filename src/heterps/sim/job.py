"""SimulatedJob: a whole job on a simulated clock and network, in one thread: the code that trains, with real gradients.

    CoordinatorCore <--messages--> [network: latency, faults] <--messages--> WorkerCore, StageWork   a worker each
                                                             <--requests--> Server                   a shard each

Coordinator, workers, clients and servers are those of a real run; only what carries them out differs. A worker takes a
turn when its parameters have come, is busy until `finish` says it ends, and computes it for real at that moment, which
changes nothing: what it needs was pulled before. The same seed gives the same run to the bit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from heterps.config import Job
from heterps.data.reader import open_reader, open_validation_reader
from heterps.errors import ConfigError, NotFinite, PeerLost
from heterps.model.build import build_model
from heterps.model.trace import trace_or_whole
from heterps.planning.plan import Plan
from heterps.ps.client.pump import Pump
from heterps.ps.client.remote import RemoteClient
from heterps.ps.client.session import Options
from heterps.ps.protocol.roster import Roster, Seat
from heterps.ps.protocol.specs import Tables
from heterps.ps.server.server import Server
from heterps.sim.pump import DirectPump, SimulatedPump
from heterps.training.coordinator.accounting import Accounting
from heterps.training.coordinator.core import CoordinatorCore
from heterps.training.coordinator.effects import ApplyRound, Measured, Save, Validate
from heterps.training.coordinator.effects import Effect as CoordinatorEffect
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.coordinator.positions import first_leases
from heterps.training.coordinator.reconfiguration import Reconfiguration
from heterps.training.coordinator.scaling import check_layout
from heterps.training.coordinator.setup import Setup
from heterps.training.coordinator.worker_state import WorkerState
from heterps.training.model.clipping import apply_clipped, limits_of
from heterps.training.model.objectives import Objectives
from heterps.training.protocol.layout import Layout, job_layout
from heterps.training.protocol.messages import JobCodec, Message, Pushed, Ready, Send
from heterps.training.protocol.stage_tables import stage_tables
from heterps.training.run.observer import Observer
from heterps.training.run.progress import RunProgress
from heterps.training.worker.core import COORDINATOR, Turn
from heterps.training.worker.mailbox import Envelope
from heterps.training.worker.worker import Worker, WorkerStart
from heterps.wire.simulated import Outgoing, SimulatedNetwork

Finish = Callable[[str, Turn, float], float]
"""When a turn of a worker ends, in seconds, if it begins at a time."""


class SimulatedJob:
    """Trains `job` by `plan` on simulated workers and servers.

    finish    says how fast workers are
    server_s  what a server spends on a message with pushes; others queue meanwhile
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        finish: Finish,
        *,
        observer: Observer | None = None,
        latency_s: float = 0.0,
        server_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        if job.workers.dense != "servers":
            raise ConfigError("workers.dense: simulated workers keep dense parameters on servers: use `servers`")
        job = job.model_copy(update={"data": job.data.model_copy(update={"prefetch": 0})})  # no thread reads ahead
        self._job = job
        self.network = SimulatedNetwork(seed, latency_s=latency_s)
        self.layout = job_layout(job, plan)
        model = build_model(job.model, job.data.columns, job.seed)
        check_layout(job, self.layout, model)
        traced = trace_or_whole(model)
        firsts = tuple(stage.first for stage in self.layout.stages)
        tables = stage_tables(job, model, traced, firsts)
        seats = tuple(Seat(f"server-{number}", "") for number in range(max(plan.servers.count, 1)))
        self._roster = Roster(seats)
        self.servers = {
            seat.name: SimulatedServer(Server(seat.name, self._roster, tables.tables), self.network, server_s)
            for seat in seats
        }
        state = WorkerState(model, traced, tables, firsts, is_reduced=False)
        client = self._watching_client(tables.tables)
        self._limits = limits_of(job.optimizers.clip, tables.tables)
        self.model = CoordinatorModel(model, tables, client, Objectives(job.data.columns))
        state.model = self.model
        self.model.fill()
        observer = observer or Observer()
        reader = open_reader(job)
        progress = RunProgress(job, reader.num_rows)
        accounting = Accounting(job, plan, self.layout, progress, observer, None)
        accounting.begin(0.0)
        start_of = partial(_start_of, firsts)
        changes = Reconfiguration(job, plan, start_of, lambda wanted: check_layout(job, wanted, model), observer.warned)
        setup = Setup(self.layout, tables.groups, first_leases(job, reader))
        self.core = CoordinatorCore(job, setup, progress, accounting, changes, state, observer, self.network.now_s)
        self._codec = JobCodec(job.workers.values)
        self.failed: str | None = None
        self.network.attach(COORDINATOR, self._hear)
        self.workers = {
            name: SimulatedWorker(job, start_of(name, self.layout), self, partial(finish, name))
            for name in self.layout.workers
        }

    def run(self, until_s: float = math.inf) -> None:
        """Until the job is over, has failed, or that time has come."""
        while not self.core.is_over and self.failed is None and self.network.step(until_s):
            pass
        if not self.core.is_over and self.failed is None and math.isinf(until_s):
            raise PeerLost(f"the simulated job stands still: it waits for {', '.join(self.core.flow.waited_for)}")

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.model.client.close()

    def connect(self, name: str, tables: Tables, answered: Callable[[], None]) -> RemoteClient:
        """A client of the servers, by the network; it is `answered` whenever something came."""
        return self._client(name, tables, partial(SimulatedPump, network=self.network, answered=answered))

    def _watching_client(self, tables: Tables) -> RemoteClient:
        """A client that takes no time, for first values and evaluations."""

        def ask(server: str, sender: str, parts: list[memoryview]) -> Outgoing:
            return self.servers[server].server.handle(sender, parts, self.network.now_s)

        return self._client(COORDINATOR, tables, partial(DirectPump, network=self.network, ask=ask))

    def _client(self, name: str, tables: Tables, pump: Callable[..., Pump]) -> RemoteClient:
        """Nobody dies here, and no message is lost: nothing is asked twice, and nothing given up."""
        options = Options(deadline_s=1e9, first_retry_s=1e6, longest_retry_s=1e6, linger_s=0.0)
        channel = self.network.channel(f"{name} at the servers")
        return RemoteClient(
            name, channel, self._roster, tables, options=options, clock=lambda: self.network.now_s, pump=pump
        )

    def send(self, sender: str, peer: str, message: Message, values: Any = None) -> None:
        self.network.send(sender, peer, self._codec.encode(message, values))

    def decode(self, sender: str, parts: list[memoryview]) -> Envelope:
        return Envelope(sender, *self._codec.decode(parts))

    def _hear(self, now_s: float, sender: str, parts: list[memoryview]) -> Outgoing:
        self._perform(self.core.handle(*self.decode(sender, parts), now_s))
        self._perform(self.core.tick(now_s))
        return ()

    def _perform(self, effects: list[CoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.send(COORDINATOR, *effect)
                case Save():
                    self._perform(self.core.saved(None, self.network.now_s))
                case ApplyRound():
                    apply_clipped(self.model.client, self._limits, effect.number)
                case Validate():
                    batches = (self.model.prepare(batch) for batch, _ in open_validation_reader(self._job).read())
                    self._perform(self.core.validated(self.model.evaluate(batches), self.network.now_s))
                case Measured():
                    pass
                case _:
                    raise NotImplementedError(f"a simulated job does not {type(effect).__name__}")


class SimulatedServer:
    """A server that answers after the messages with pushes that came before are done with."""

    def __init__(self, server: Server, network: SimulatedNetwork, server_s: float) -> None:
        self.server, self._network, self._server_s = server, network, server_s
        self._free_at = 0.0
        network.attach(server.name, self._take)

    def _take(self, now_s: float, sender: str, parts: list[memoryview]) -> Outgoing:
        if not self._server_s:
            return self.server.handle(sender, parts, now_s)
        self._free_at = max(now_s, self._free_at)
        self._network.call_at(self._free_at, partial(self._serve, sender, parts))
        return ()

    def _serve(self, sender: str, parts: list[memoryview]) -> None:
        before = self.server.counts.updates
        answers = self.server.handle(sender, parts, self._network.now_s)
        if self.server.counts.updates > before:
            self._free_at = max(self._free_at, self._network.now_s) + self._server_s
        self._network.call_at(self._free_at, partial(self._answer, answers))

    def _answer(self, answers: Outgoing) -> None:
        for peer, message in answers:
            self._network.send(self.server.name, peer, message)


class SimulatedWorker:
    """A worker that is busy with one turn at a time, until the simulated clock says that it is done."""

    def __init__(
        self, job: Job, start: WorkerStart, simulated: SimulatedJob, finish: Callable[[Turn, float], float]
    ) -> None:
        self.name, self._simulated, self._finish = start.name, simulated, finish
        self._network = simulated.network
        self._inbox: deque[Envelope] = deque()
        self._turn: Turn | None = None  # taken, and not begun before its parameters have come
        self._is_busy = False
        self.did: list[tuple[str, float, float]] = []  # "compute" or "push", from when to when
        self._worker = Worker(job, start, self, lambda tables: simulated.connect(start.name, tables, self._look))
        self._network.attach(self.name, self._hear)
        self.send(COORDINATOR, Ready(self.name, ""))

    def close(self) -> None:
        self._worker.close()

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
        self._worker.take_in()
        self._turn = self._turn or self._worker.core.next_turn()
        if self._turn is None or any(True for _ in self._worker.work.missing(self._turn)):
            return
        self._is_busy = True
        now = self._network.now_s
        end = self._finish(self._turn, now)
        self.did.append(("compute", now, end))
        self._network.call_at(end, self._compute)

    def _compute(self) -> None:
        turn, self._turn, self._is_busy = self._turn, None, False
        self._ended_s = self._network.now_s
        assert turn is not None
        try:
            self._worker.finish(turn)
        except NotFinite as error:
            self._simulated.failed = str(error)
            return
        self._look()


def _start_of(firsts: tuple[int, ...], worker: str, layout: Layout) -> WorkerStart:
    return WorkerStart(worker, layout.stage_of(worker), firsts)
