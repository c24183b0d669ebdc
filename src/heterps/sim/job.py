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
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from heterps.checkpoint import RowFolder
from heterps.config import Job
from heterps.data.batch import Batch
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
from heterps.training.coordinator.effects import Effect as CoordinatorEffect
from heterps.training.coordinator.effects import EndRound, Measured, Publish, RepeatRound, Save, Validate
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.coordinator.positions import first_leases
from heterps.training.coordinator.publishing import Publisher
from heterps.training.coordinator.reconfiguration import Reconfiguration, StartWorkers, StopWorker
from heterps.training.coordinator.recovery import Recovery
from heterps.training.coordinator.round_flow import RoundFlow
from heterps.training.coordinator.scaling import check_layout
from heterps.training.coordinator.setup import Setup
from heterps.training.coordinator.worker_state import WorkerState
from heterps.training.metrics.metrics import Metrics
from heterps.training.model.clipping import drop_round, end_round, limits_of
from heterps.training.model.objectives import Objectives
from heterps.training.protocol.layout import Layout, job_layout
from heterps.training.protocol.messages import JobCodec, Message, Pushed, Ready, Send
from heterps.training.protocol.stage_tables import stage_tables
from heterps.training.run.observer import Observer
from heterps.training.run.progress import RunProgress
from heterps.training.run.start import job_start
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
    start_s   what a worker takes to start in the place of one that died
    folder    of the run, for versions while somebody follows it (see `core.follow`)
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
        start_s: float = 1.0,
        seed: int = 0,
        folder: Path | None = None,
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
        files = None if folder is None else RowFolder(folder)
        servers = [Server(seat.name, self._roster, tables.tables, row_files=files) for seat in seats]
        self.servers = {server.name: SimulatedServer(server, self.network, server_s) for server in servers}
        state = WorkerState(model, traced, tables, firsts, is_reduced=False)
        client = self._watching_client(tables.tables)
        self._tables, self._finish, self._start_s = tables.tables, finish, start_s
        self.model = CoordinatorModel(model, tables, client, Objectives(job.data.columns))
        state.model = self.model
        self._publisher = None if folder is None else Publisher(self.model, folder)
        observer = observer or Observer()
        if job.start is None:
            self.model.fill()
        else:
            snapshot, taken = job_start(job, model, tables.tables, {})
            self.model.restore(snapshot)
            observer.began(str(taken))
        reader = open_reader(job)
        progress = RunProgress(job, reader.num_rows)
        accounting = Accounting(job, plan, self.layout, progress, observer, None)
        accounting.begin(0.0)
        start_of = partial(_start_of, firsts)
        changes = Reconfiguration(job, plan, start_of, lambda wanted: check_layout(job, wanted, model), observer.warned)
        setup = Setup(self.layout, tables.groups, first_leases(job, reader))
        recovery = Recovery(job.workers, start_of, observer.warned, have_state=state.is_any)
        self.core = CoordinatorCore(
            job, setup, progress, accounting, changes, recovery, state, observer, self.network.now_s
        )
        self._codec = JobCodec(job.workers.values)
        self.failed: str | None = None
        self._last_ended = 0  # round
        self.network.attach(COORDINATOR, self._hear)
        self.workers = {
            name: SimulatedWorker(job, start_of(name, self.layout), self, partial(finish, name))
            for name in self.layout.workers
        }

    def kill(self, worker: str) -> None:
        """Let a worker die now. The coordinator learns of it at once; what is on its way to servers arrives."""
        self.workers[worker].die()
        effects = self.core.worker_lost(worker, f"{worker} was killed", self.network.now_s)
        if effects is None:
            self.failed = f"{worker} was killed, and is not replaced"
            return
        self._perform(effects)
        self._tick()

    def _start(self, start: WorkerStart) -> None:
        """Start the next incarnation of a worker that has died."""
        number = self.workers[start.name].incarnation + 1
        finish = partial(self._finish, start.name)
        self.workers[start.name] = SimulatedWorker(self._job, start, self, finish, number)

    def _tick(self) -> None:
        """Let the coordinator see the time, and again when a worker that it waits to start may be due."""
        self._perform(self.core.tick(self.network.now_s))
        if self.core.recovery.num_lost and not self.core.is_over:
            self.network.call_at(self.network.now_s + 1.0, self._tick)

    def run(self, until_s: float = math.inf) -> None:
        """Until the job is over, has failed, or that time has come."""
        while not self.core.is_over and self.failed is None and self.network.step(until_s):
            pass
        if not self.core.is_over and self.failed is None and math.isinf(until_s):
            raise PeerLost(f"the simulated job stands still: it waits for {', '.join(self.core.flow.waited_for)}")

    def evaluate(self, batches: Iterable[Batch]) -> Metrics:
        """Return the metrics of batches by the tables with every round that has ended, also one that was just told."""
        if isinstance(self.core.flow, RoundFlow):
            self._end_round(self.core.flow.round - 1)
        return self.model.evaluate(batches)

    def _end_round(self, number: int) -> None:
        if number > self._last_ended:
            limits = limits_of(self._job.optimizers.clip, self._tables) if len(self.core.layout.workers) > 1 else []
            end_round(self.model.client, limits, number)
            self._last_ended = number

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.model.client.close()

    def connect(self, name: str, incarnation: int, tables: Tables, answered: Callable[[], None]) -> RemoteClient:
        """A client of the servers, by the network; it is `answered` whenever something came."""
        pump = partial(SimulatedPump, network=self.network, answered=answered)
        return self._client(name, tables, pump, incarnation)

    def _watching_client(self, tables: Tables) -> RemoteClient:
        """A client that takes no time, for first values and evaluations."""

        def ask(server: str, sender: str, parts: list[memoryview]) -> Outgoing:
            return self.servers[server].server.handle(sender, parts, self.network.now_s)

        return self._client(COORDINATOR, tables, partial(DirectPump, network=self.network, ask=ask))

    def _client(self, name: str, tables: Tables, pump: Callable[..., Pump], incarnation: int = 1) -> RemoteClient:
        """No server dies here, and no message is lost: nothing is asked twice, and nothing given up."""
        options = Options(deadline_s=1e9, first_retry_s=1e6, longest_retry_s=1e6, linger_s=0.0)
        channel = self.network.channel(f"{name}.{incarnation} at the servers")
        return RemoteClient(
            name,
            channel,
            self._roster,
            tables,
            incarnation=incarnation,
            options=options,
            clock=lambda: self.network.now_s,
            pump=pump,
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
                case Publish():
                    error = None
                    if self._publisher is not None:
                        error = self._publisher.publish(self.core.clock, self.core.progress.samples)
                    self._perform(self.core.published(error, self.network.now_s))
                case EndRound():
                    self._end_round(effect.number)
                case RepeatRound():
                    drop_round(self.model.client, self._tables, effect.number)
                case StartWorkers():
                    for start in effect.workers:
                        self.network.call_at(self.network.now_s + self._start_s, partial(self._start, start))
                case StopWorker():
                    pass  # it was killed
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
        self._worker = Worker(job, start, self, self._reach)
        self._network.attach(self.name, self._hear)
        self.send(COORDINATOR, Ready(self.name, ""))

    def close(self) -> None:
        if not self._is_dead:
            self._worker.close()

    def die(self) -> None:
        """Do and say nothing more."""
        self._network.detach(self.name)
        self._is_dead, self._is_busy = True, True
        self._worker.close()

    def _reach(self, tables: Tables) -> RemoteClient:
        client = self._simulated.connect(self.name, self.incarnation, tables, self._look)
        if self.incarnation > 1:
            client.greet()
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


def _start_of(firsts: tuple[int, ...], worker: str, layout: Layout) -> WorkerStart:
    return WorkerStart(worker, layout.stage_of(worker), firsts)
