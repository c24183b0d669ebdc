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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from heterps.checkpoint import RowFolder
from heterps.config import Faults, Job
from heterps.data.batch import Batch
from heterps.data.reader import open_reader, open_validation_reader
from heterps.errors import ConfigError, NotFinite, PeerLost
from heterps.model.build import build_model
from heterps.model.trace import trace_or_whole
from heterps.planning.plan import Plan
from heterps.ps.client.keeper import News
from heterps.ps.client.pump import Pump
from heterps.ps.client.remote import RemoteClient
from heterps.ps.client.session import Options
from heterps.ps.protocol.specs import TableSpecs
from heterps.sim.pump import DirectPump, SimulatedPump
from heterps.sim.servers import SimulatedServers
from heterps.sim.worker import SimulatedWorker
from heterps.training.coordinator.accounting import Accounting
from heterps.training.coordinator.core import CoordinatorCore
from heterps.training.coordinator.effects import (
    DropRound,
    EndRound,
    Measured,
    Note,
    Publish,
    Save,
    Skip,
    TellEnded,
    Validate,
)  # fmt: skip
from heterps.training.coordinator.effects import Effect as CoordinatorEffect
from heterps.training.coordinator.fleet import tell_news
from heterps.training.coordinator.journal import STARTS_A_LIFE, JournalContents, MemoryJournal
from heterps.training.coordinator.loss_budget import LossBudget
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.coordinator.positions import checkpoint_progress, first_leases
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
from heterps.training.protocol.messages import JobCodec, Message, Send
from heterps.training.protocol.stage_tables import stage_tables
from heterps.training.run.observer import Observer
from heterps.training.run.progress import RunProgress
from heterps.training.run.start import job_start
from heterps.training.worker.core import COORDINATOR, Turn
from heterps.training.worker.mailbox import Envelope
from heterps.training.worker.worker import WorkerStart
from heterps.wire.simulated import Outgoing, SimulatedNetwork

BUSY_S = 0.01
LONGEST_S = 1e5
"""A simulated job whose servers have mirrors, which speak for ever, stands still when it is not over by then."""
Finish = Callable[[str, Turn, float], float]
"""When a turn of a worker ends, in seconds, if it begins at a time."""


class SimulatedJob:
    """Trains `job` by `plan` on simulated workers and servers.

    finish    says how fast workers are
    server_s  what a server spends on a message with pushes; others queue meanwhile
    start_s   what a worker, or a server with `servers.replicas`, takes to start in the place of one that died
    silence_s a server with a mirror that is silent for so long is lost
    faults    that messages to and from servers meet, if these have mirrors
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
        silence_s: float = 5.0,
        seed: int = 0,
        folder: Path | None = None,
        faults: Faults = Faults(),
    ) -> None:
        if job.workers.dense != "servers":
            raise ConfigError("workers.dense: simulated workers keep dense parameters on servers: use `servers`")
        job = job.model_copy(update={"data": job.data.model_copy(update={"prefetch": 0})})  # no thread reads ahead
        self._job = job
        self.failed: str | None = None
        spared = (COORDINATOR, *(name for stage in job_layout(job, plan).stages for name in stage.workers))
        self.network = SimulatedNetwork(seed, latency_s=latency_s, faults=faults, spared=lambda who: who in spared)
        self.layout = job_layout(job, plan)
        model = build_model(job.model, job.data.columns, job.seed)
        check_layout(job, self.layout, model)
        traced = trace_or_whole(model)
        firsts = tuple(stage.first for stage in self.layout.stages)
        tables = stage_tables(job, model, traced, firsts)
        self.mirrored = job.servers is not None and job.servers.replicas > 0
        self._inbox: deque[tuple[str, list[memoryview]]] = deque()  # of the coordinator, while it does something
        self._is_busy = True
        observer = observer or Observer()
        self._observer = observer
        self.servers = SimulatedServers(
            self.network,
            max(plan.servers.count, 1),
            tables.tables,
            replicas=int(self.mirrored),
            server_s=server_s,
            start_s=start_s,
            silence_s=silence_s,
            next_start=LossBudget(job.workers.replacements, job.workers.backoff_s).next_start,
            row_files=None if folder is None else RowFolder(folder),
            tell=self._tell,
        )
        state = WorkerState(model, traced, tables, firsts, is_reduced=False)
        client = self._watching_client(tables.tables, 1)
        self._tables, self._finish, self._start_s = tables.tables, finish, start_s
        self.model = CoordinatorModel(model, tables, client, Objectives(job.data.columns))
        state.model = self.model
        self._publisher = None if folder is None else Publisher(self.model, folder)
        if job.start is None:
            self.model.fill()
        else:
            snapshot, taken = job_start(job, model, tables.tables, {})
            self.model.restore(snapshot)
            observer.began(str(taken))
        self._reader = open_reader(job)
        self._plan, self._stage_tables, self._state = plan, tables, state
        self._start_of = partial(_start_of, firsts)
        self.journal = MemoryJournal()
        self.core = self._make_core(None)
        self._codec = JobCodec(job.workers.values)
        self._is_busy = False
        self._last_ended = 0  # round
        self.network.attach(COORDINATOR, self._hear)
        self.workers = {
            name: SimulatedWorker(job, self._start_of(name, self.layout), self, partial(finish, name))
            for name in self.layout.workers
        }

    def _make_core(self, found: JournalContents | None) -> CoordinatorCore:
        """The coordinator at the beginning of the job, or where a journal says that another one has died."""
        job, model = self._job, self.model.model
        progress = RunProgress(job, self._reader.num_rows)
        accounting = Accounting(job, self._plan, self.layout, progress, self._observer, None)
        taken = None if found is None else found.restore(job, self._reader, progress)
        accounting.begin(0.0 if taken is None else taken.usd)
        leases, clock = (first_leases(job, self._reader), 0) if taken is None else (taken.leases, taken.clock)
        resumed = None if taken is None else taken.decisions
        if resumed is not None:
            self.journal.go_on(resumed)
        setup = Setup(self.layout, self._stage_tables.groups, leases, clock, resumed=resumed, journals=True)
        changes = Reconfiguration(
            job, self._plan, self._start_of, lambda wanted: check_layout(job, wanted, model), self._observer.warned
        )
        recovery = Recovery(job.workers, self._start_of, self._observer.warned, have_state=self._state.is_any)
        return CoordinatorCore(
            job, setup, progress, accounting, changes, recovery, self._state, self._observer, self.network.now_s
        )

    def kill_coordinator(self) -> None:
        """Let the coordinator die now, and its workers with it. Another one starts in its place after a while."""
        if self._is_busy:  # it waits for servers
            self.network.call_at(self.network.now_s + BUSY_S, self.kill_coordinator)
            return
        if self.core.is_over or self.journal.read() is None:  # nothing has begun: the next would begin anew
            return
        self._is_busy = True
        self._inbox.clear()
        self.network.detach(COORDINATOR)
        for worker in self.workers.values():
            worker.die()
        self.model.client.close()
        self.network.call_at(self.network.now_s + self._start_s, self._take_over)

    def _take_over(self) -> None:
        """Go on as the next coordinator, by the journal of the one before, with workers of their next incarnation."""
        left = self.journal.read()
        assert left is not None
        found = left.next_life()
        life = found.head.life
        self.layout = found.next_layout
        client = self._watching_client(self._tables, life)
        self.model = CoordinatorModel(self.model.model, self._stage_tables, client, Objectives(self._job.data.columns))
        self._state.model = self.model
        self.journal = MemoryJournal(found)
        self.core = self._make_core(found)
        self._last_ended = 0
        self._is_busy = False
        self.network.attach(COORDINATOR, self._hear)
        for name in self.layout.workers:
            number = (life - 1) * STARTS_A_LIFE + 1
            start = self._start_of(name, self.layout)
            self.workers[name] = SimulatedWorker(self._job, start, self, partial(self._finish, name), number)

    def kill(self, worker: str) -> None:
        """Let a worker die now. The coordinator learns of it at once; what is on its way to servers arrives."""
        self.workers[worker].die()
        self._lose(worker, self.journal.life)

    def _lose(self, worker: str, life: int) -> None:
        if life != self.journal.life:
            return
        if self._is_busy:  # it waits for servers
            self.network.call_at(self.network.now_s + BUSY_S, partial(self._lose, worker, life))
            return
        effects = self.core.worker_lost(worker, f"{worker} was killed", self.network.now_s)
        if effects is None:
            self.failed = f"{worker} was killed, and is not replaced"
            return
        self._perform(effects)
        self._tick()

    def _start(self, start: WorkerStart, life: int) -> None:
        """Start the next incarnation of a worker that has died, unless the coordinator that wants it has died too."""
        if life != self.journal.life:
            return
        number = self.workers[start.name].incarnation + 1
        finish = partial(self._finish, start.name)
        self.workers[start.name] = SimulatedWorker(self._job, start, self, finish, number)

    def _tick(self) -> None:
        """Let the coordinator see the time, and again when a worker that it waits to start may be due."""
        if self._is_busy:
            self.network.call_at(self.network.now_s + BUSY_S, self._tick)
            return
        self._perform(self.core.tick(self.network.now_s))
        if self.core.recovery.num_lost and not self.core.is_over:
            self.network.call_at(self.network.now_s + 1.0, self._tick)

    def run(self, until_s: float = math.inf) -> None:
        """Until the job is over, has failed, or that time has come."""
        while not self.core.is_over and self.failed is None and self.network.step(until_s):
            if self.servers.failure is not None:
                self.failed = str(self.servers.failure)
            if self.mirrored and self.network.now_s > LONGEST_S:
                break
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

    def connect(self, name: str, incarnation: int, tables: TableSpecs, answered: Callable[[], None]) -> RemoteClient:
        """A client of the servers, by the network; it is `answered` whenever something came."""
        pump = partial(SimulatedPump, network=self.network, answered=answered)
        return self._client(name, tables, pump, incarnation)

    def _watching_client(self, tables: TableSpecs, life: int) -> RemoteClient:
        """A client that takes no time, for first values and evaluations; with mirrors, one like others."""
        if self.mirrored:
            return self._client(COORDINATOR, tables, partial(SimulatedPump, network=self.network), life)

        def ask(server: str, sender: str, parts: list[memoryview]) -> Outgoing:
            return self.servers.all[server].server.handle(sender, parts, self.network.now_s)

        return self._client(COORDINATOR, tables, partial(DirectPump, network=self.network, ask=ask), life)

    def _client(self, name: str, tables: TableSpecs, pump: Callable[..., Pump], incarnation: int = 1) -> RemoteClient:
        """Without mirrors no server dies, and no message is lost: nothing is asked twice. Nothing is given up."""
        options = Options(deadline_s=1e9, first_retry_s=1e6, longest_retry_s=1e6, linger_s=0.0)
        if self.mirrored:
            options = replace(options, first_retry_s=0.5, longest_retry_s=2.0)
        channel = self.network.channel(f"{name}.{incarnation} at the servers")
        return RemoteClient(
            name,
            channel,
            self.servers.roster,
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
        """Take a message; or keep it for later, where the coordinator waits for servers just now."""
        del now_s
        self._inbox.append((sender, parts))
        self._work_off()
        return ()

    def _work_off(self) -> None:
        """Let the core take what has come."""
        while self._inbox and not self._is_busy:
            self._is_busy = True
            try:
                self._perform(self.core.handle(*self.decode(*self._inbox.popleft()), self.network.now_s))
                self._perform(self.core.tick(self.network.now_s))
            except NotFinite as error:  # too many batches were skipped
                self.failed = str(error)
            self._is_busy = False

    def _tell(self, news: News) -> None:
        """Show the news of servers that were lost, and end the job where one was lost with its mirror."""
        self.core.progress.recoveries += tell_news([news], self._observer)

    def _perform(self, effects: list[CoordinatorEffect]) -> None:
        """Do what the core wants done. What comes for the coordinator meanwhile waits."""
        before, self._is_busy = self._is_busy, True
        self._do(effects)
        self._is_busy = before
        if not before:
            self._work_off()

    def _do(self, effects: list[CoordinatorEffect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.send(COORDINATOR, *effect)
                case Save():
                    self._perform(self.core.saved(None, self.network.now_s))
                    self._perform(self.core.answered(self.network.now_s))
                case Publish():
                    error = None
                    if self._publisher is not None:
                        error = self._publisher.publish(self.core.clock, self.core.progress.samples)
                    self._perform(self.core.published(error, self.network.now_s))
                case EndRound():
                    self._end_round(effect.number)
                case TellEnded():
                    self.model.client.tell_rounds()
                case DropRound():
                    drop_round(self.model.client, self._tables, effect.number)
                case StartWorkers():
                    for start in effect.workers:
                        begin = partial(self._start, start, self.journal.life)
                        self.network.call_at(self.network.now_s + self._start_s, begin)
                case StopWorker() | Skip():
                    pass  # it was killed; there is no folder for rows
                case Validate():
                    batches = (self.model.prepare(batch) for batch, _ in open_validation_reader(self._job).read())
                    self._perform(self.core.validated(self.model.evaluate(batches), self.network.now_s))
                case Note():
                    if not self.journal.is_of(self.core.layout):
                        self._begin_journal()
                    self.journal.note(effect.record)
                case Measured():
                    self._begin_journal()
                case _:
                    raise NotImplementedError(f"a simulated job does not {type(effect).__name__}")

    def _begin_journal(self) -> None:
        core = self.core
        told = checkpoint_progress(
            self._job, core.flow.leases, self._reader, core.progress.state(), core.accounting.paid()
        )
        self.journal.begin(core.layout, core.clock, core.progress, told)


def _start_of(firsts: tuple[int, ...], worker: str, layout: Layout) -> WorkerStart:
    return WorkerStart(worker, layout.stage_of(worker), firsts)
