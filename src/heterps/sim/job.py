"""SimulatedJob: a whole job on a simulated clock and network, in one thread: the code that trains, with real gradients.

    CoordinatorCore <--messages--> [network: latency, faults] <--messages--> WorkerCore, StageWork   a worker each
                                                             <--requests--> Server                   a shard each

Coordinator, workers, clients and servers are those of a real run; only what carries them out differs. A worker takes a
turn when its parameters have come, is busy until `finish` says it ends, and computes it for real at that moment, which
changes nothing: what it needs was pulled before. The same seed gives the same run to the bit.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from heterps.checkpoint import RowFolder, Snapshot
from heterps.config import Faults, Job
from heterps.data.batch import Batch
from heterps.data.reader import open_reader, open_validation_reader
from heterps.errors import ConfigError, HeterpsError, PeerLost
from heterps.model.build import build_model
from heterps.model.trace import trace_or_whole
from heterps.planning.plan import Plan
from heterps.ps.client.keeper import News
from heterps.sim.clients import SimulatedClients
from heterps.sim.memory_journal import MemoryJournal
from heterps.sim.servers import SimulatedServers
from heterps.sim.storage import JobFolder
from heterps.sim.worker import SimulatedWorker
from heterps.training.coordinator import effects
from heterps.training.coordinator.accounting import Accounting
from heterps.training.coordinator.core import CoordinatorCore
from heterps.training.coordinator.fleet import tell_news
from heterps.training.coordinator.journal import STARTS_A_LIFE, JournalContents
from heterps.training.coordinator.loss_budget import LossBudget
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.coordinator.positions import checkpoint_progress, first_leases, restored_leases
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
"""A simulated job that meets faults, or whose servers have mirrors, stands still when it is not over by then."""
SPARED = re.compile(rf"{COORDINATOR}|worker-\d+\.\d+")
"""Who speaks over TCP, so that the network loses nothing between them."""
Finish = Callable[[str, Turn, float], float]
"""When a turn of a worker ends, in seconds, if it begins at a time."""


class SimulatedJob:
    """Trains `job` by `plan` on simulated workers and servers.

    finish    says how fast workers are
    server_s  what a server spends on a message with pushes; others queue meanwhile
    start_s   what a worker, or a server with `servers.replicas`, takes to start in the place of one that died
    silence_s a server with a mirror that is silent for so long is lost
    faults    that messages to and from servers meet; None: none, and nothing is asked twice if servers have no mirrors
    folder    of the run, for checkpoints, and for versions while somebody follows it (see `core.follow`)
    resume    goes on from the newest checkpoint in the folder, if there is one
    journal   makes the journal of each coordinator, from what the one before has left
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
        faults: Faults | None = None,
        resume: bool = False,
        journal: Callable[[JournalContents | None], MemoryJournal] = MemoryJournal,
    ) -> None:
        if job.workers.dense != "servers":
            raise ConfigError("workers.dense: simulated workers keep dense parameters on servers: use `servers`")
        job = job.model_copy(update={"data": job.data.model_copy(update={"prefetch": 0})})  # no thread reads ahead
        self._job = job
        self.failed: str | None = None
        self.network = SimulatedNetwork(
            seed, latency_s=latency_s, faults=faults or Faults(), spared=lambda who: SPARED.fullmatch(who) is not None
        )
        self.layout = job_layout(job, plan)
        model = build_model(job.model, job.data.columns, job.seed)
        check_layout(job, self.layout, model)
        traced = trace_or_whole(model)
        firsts = tuple(stage.first for stage in self.layout.stages)
        tables = stage_tables(job, model, traced, firsts)
        self.mirrored = job.servers is not None and job.servers.replicas > 0
        self._inbox: deque[tuple[str, list[memoryview]]] = deque()  # of the coordinator, while it does something
        self._is_busy, self._is_set_up = True, False
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
        self._is_watched = self.mirrored or faults is not None
        self.clients = SimulatedClients(self.network, self.servers, is_mirrored=self.mirrored, repeats=self._is_watched)
        state = WorkerState(model, traced, tables, firsts, is_reduced=False)
        self.servers.hang_up = self.clients.hang_up
        client = self.clients.watching(COORDINATOR, tables.tables, 1)
        self._tables, self._finish, self._start_s = tables.tables, finish, start_s
        self.model = CoordinatorModel(model, tables, client, Objectives(job.data.columns))
        state.model = self.model
        self._folder, self._make_journal = folder, journal
        self._storage = JobFolder(job, self.model, folder)
        found = self._storage.latest() if resume else None
        try:
            self._begin(found)
        except PeerLost as error:
            raise self.servers.failure or error from None
        self._reader = open_reader(job)
        self._plan, self._stage_tables, self._state = plan, tables, state
        self._start_of = partial(_start_of, firsts)
        self.journal = journal(None)
        self.core = self._make_core(None, found)
        self._codec = JobCodec(job.workers.values)
        self._is_busy, self._is_set_up = False, True
        self._last_ended = 0  # round
        self.network.attach(COORDINATOR, self._hear)
        if self._is_watched:
            self._beat()
        self.workers = {
            name: SimulatedWorker(job, self._start_of(name, self.layout), self, partial(finish, name))
            for name in self.layout.workers
        }

    def _begin(self, found: Snapshot | None) -> None:
        """Give the tables what was saved, what the job says that it starts from, or first values."""
        if found is None and self._job.start is not None:
            found, taken = job_start(self._job, self.model.model, self._tables, {})
            self._observer.began(str(taken))
        if found is None:
            self.model.fill()
        else:
            self.model.restore(found)

    def _make_core(self, found: JournalContents | None, saved: Snapshot | None = None) -> CoordinatorCore:
        """The coordinator at the beginning of the job, where a journal says that another one has died, or as saved."""
        job, model = self._job, self.model.model
        progress = RunProgress(job, self._reader.num_rows)
        accounting = Accounting(job, self._plan, self.layout, progress, self._observer, None)
        taken = None if found is None else found.restore(job, self._reader, progress)
        accounting.begin(0.0 if taken is None else taken.usd)
        leases, clock = (first_leases(job, self._reader), 0) if taken is None else (taken.leases, taken.clock)
        if saved is not None:
            progress.restore(saved.samples, saved.progress)
            leases, clock = restored_leases(job, self._reader, saved.progress), saved.clock
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
        if self.core.is_over or not (self.journal.has_begun or self.mirrored):  # the next would begin anew
            return
        if self.mirrored or self.journal.read() is None:
            self.failed = "the coordinator was killed, and left nothing by which another one could go on"
            return
        self._is_busy = True
        self._inbox.clear()
        self.network.detach(COORDINATOR)
        for worker in self.workers.values():
            worker.die()
        self.model.client.close()
        self.network.call_at(self.network.now_s + self._start_s, self._take_over)

    def _take_over(self) -> None:
        """Go on as the next coordinator, unless a server without a mirror has died meanwhile."""
        with self._told_failures():
            self._succeed()

    def _succeed(self) -> None:
        """Begin by the journal of the coordinator before, with workers of their next incarnation."""
        left = self.journal.read()
        assert left is not None
        found = left.next_life()
        life = found.head.life
        self.layout = found.next_layout
        client = self.clients.watching(COORDINATOR, self._tables, life)
        self.model = CoordinatorModel(self.model.model, self._stage_tables, client, Objectives(self._job.data.columns))
        self._state.model = self.model
        self._storage = JobFolder(self._job, self.model, self._folder)
        self.journal = self._make_journal(found)
        self.core = self._make_core(found)
        self._last_ended = 0
        self._is_busy = False
        self.network.attach(COORDINATOR, self._hear)
        for name in self.layout.workers:
            number = (life - 1) * STARTS_A_LIFE + 1
            start = self._start_of(name, self.layout)
            self.workers[name] = SimulatedWorker(self._job, start, self, partial(self._finish, name), number)

    def pause_coordinator(self, seconds: float) -> None:
        """Let the coordinator, and the keeper of servers with it, stand still for a while, as after SIGSTOP."""
        if self._is_busy:
            self.network.call_at(self.network.now_s + BUSY_S, partial(self.pause_coordinator, seconds))
            return
        self._is_busy = True
        self.servers.pause_keeper(seconds)
        self.network.call_at(self.network.now_s + seconds, self._go_on)

    def _go_on(self) -> None:
        self._is_busy = False
        self._work_off()
        self._tick()

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
        with self._told_failures():
            effects = self.core.worker_lost(worker, f"{worker} was killed", self.network.now_s)
            if effects is None:
                raise PeerLost(f"{worker} was killed, and is not replaced")
            self._perform(effects)
        self._tick()

    def _start(self, start: WorkerStart, life: int) -> None:
        """Start a worker, or its next incarnation, unless the coordinator that wants it has died meanwhile."""
        if life != self.journal.life:
            return
        number = self.workers[start.name].incarnation + 1 if start.name in self.workers else 1
        finish = partial(self._finish, start.name)
        self.workers[start.name] = SimulatedWorker(self._job, start, self, finish, number)

    def _tick(self) -> None:
        """Let the coordinator see the time, and again when a worker that it waits to start may be due."""
        if self._is_busy:
            self.network.call_at(self.network.now_s + BUSY_S, self._tick)
            return
        with self._told_failures():
            self._perform(self.core.tick(self.network.now_s, is_idle=not self._inbox))
        if self.core.recovery.num_lost and not (self.core.is_over or self._is_watched):
            self.network.call_at(self.network.now_s + 1.0, self._tick)

    def _beat(self) -> None:
        """Let the coordinator look at the time every second: somebody may be silent."""
        if not self.core.is_over:
            self._tick()
            self.network.call_at(self.network.now_s + 1.0, self._beat)

    def run(self, until_s: float = math.inf) -> None:
        """Until the job is over, has failed, or that time has come."""
        while not self.core.is_over and self.failed is None and self.network.step(until_s):
            if self.servers.failure is not None:
                self.failed = str(self.servers.failure)
            if self._is_watched and self.network.now_s > LONGEST_S:
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
            with self._told_failures():
                self._perform(self.core.handle(*self.decode(*self._inbox.popleft()), self.network.now_s))
                self._perform(self.core.tick(self.network.now_s, is_idle=not self._inbox))
            self._is_busy = False

    @contextmanager
    def _told_failures(self) -> Iterator[None]:
        """Let an error of the coordinator end the job."""
        try:
            yield
        except HeterpsError as error:
            self.failed = str(self.servers.failure or error)

    def _tell(self, news: News) -> None:
        """Show the news of servers that were lost, and end the job where one was lost with its mirror."""
        num_lost = tell_news([news], self._observer)
        if self._is_set_up:
            self.core.progress.recoveries += num_lost

    def _perform(self, wanted: list[effects.Effect]) -> None:
        """Do what the core wants done. What comes for the coordinator meanwhile waits."""
        before, self._is_busy = self._is_busy, True
        self._do(wanted)
        self._is_busy = before
        if not before:
            self._work_off()

    def _do(self, wanted: list[effects.Effect]) -> None:
        for effect in wanted:
            match effect:
                case Send():
                    self.send(COORDINATOR, *effect)
                case effects.Save():
                    self.model.client.compare_mirrors()
                    error = self._storage.save(self.core.clock, self.core.progress.samples, self._progress())
                    self._perform(self.core.saved(error, self.network.now_s))
                    self._perform(self.core.answered(self.network.now_s))
                case effects.Publish():
                    why = self._storage.publish(self.core.clock, self.core.progress.samples)
                    self._perform(self.core.published(why, self.network.now_s))
                case effects.EndRound():
                    self._end_round(effect.number)
                case effects.TellEnded():
                    self.model.client.tell_rounds()
                case effects.DropRound():
                    drop_round(self.model.client, self._tables, effect.number)
                case StartWorkers():
                    for start in effect.workers:
                        begin = partial(self._start, start, self.journal.life)
                        self.network.call_at(self.network.now_s + self._start_s, begin)
                case StopWorker():
                    self.workers[effect.worker].stop()  # it may live: it was silent for too long
                case effects.Skip():
                    pass  # there is no folder for rows
                case effects.Validate():
                    batches = (self.model.prepare(batch) for batch, _ in open_validation_reader(self._job).read())
                    self._perform(self.core.validated(self.model.evaluate(batches), self.network.now_s))
                case effects.Note():
                    if not self.journal.is_of(self.core.layout):
                        self._begin_journal()
                    self.journal.note(effect.record)
                case effects.Measured():
                    self._begin_journal()
                case _:
                    raise NotImplementedError(f"a simulated job does not {type(effect).__name__}")

    def _begin_journal(self) -> None:
        core = self.core
        self.journal.begin(core.layout, core.clock, core.progress, self._progress())

    def _progress(self) -> dict[str, Any]:
        state, usd = self.core.progress.state(), self.core.accounting.paid()
        return checkpoint_progress(self._job, self.core.flow.leases, self._reader, state, usd)


def _start_of(firsts: tuple[int, ...], worker: str, layout: Layout) -> WorkerStart:
    return WorkerStart(worker, layout.stage_of(worker), firsts)
