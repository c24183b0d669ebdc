"""SimulatedCoordinator: the coordinator of a simulated job. It carries out what the core of real runs wants done.

    network --> [inbox] --> CoordinatorCore --effects--> messages, workers that start, checkpoints, the journal

While it waits for servers it does nothing else, as a real one: what comes meanwhile is handled afterwards. When it is
killed, the next one goes on by the journal that it has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from heterps.checkpoint import Snapshot
from heterps.config import Job
from heterps.data.batch import Batch
from heterps.data.reader import open_reader, open_validation_reader
from heterps.errors import ConfigError, HeterpsError, PeerLost
from heterps.planning.plan import Plan
from heterps.sim.memory_journal import MemoryJournal
from heterps.sim.storage import JobFolder
from heterps.training.coordinator import effects
from heterps.training.coordinator.accounting import Accounting
from heterps.training.coordinator.core import CoordinatorCore
from heterps.training.coordinator.journal import STARTS_A_LIFE, JournalContents
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
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import Send
from heterps.training.protocol.stage_tables import StageTables
from heterps.training.run.commands import Scale
from heterps.training.run.observer import Observer
from heterps.training.run.progress import RunProgress
from heterps.training.run.start import job_start
from heterps.training.worker.core import COORDINATOR
from heterps.training.worker.worker import WorkerStart
from heterps.wire.simulated import Outgoing

if TYPE_CHECKING:
    from heterps.sim.job import SimulatedJob

BUSY_S = 0.01
"""Seconds after which is tried again what cannot be done while the coordinator waits for servers."""


class SimulatedCoordinator:
    """The coordinator of `simulated`, with the model of the job, whose tables are filled or restored at once.

    start_s  what a worker, or the next coordinator, takes to start
    state    what workers have and servers have not; it is given its model here
    storage  makes the folder of the job for a model
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        simulated: SimulatedJob,
        model: CoordinatorModel,
        state: WorkerState,
        *,
        layout: Layout,
        tables: StageTables,
        storage: Callable[[CoordinatorModel], JobFolder],
        resume: bool,
        journal: Callable[[JournalContents | None], MemoryJournal],
        observer: Observer,
        start_s: float,
    ) -> None:
        self._job, self._plan, self._simulated, self._observer = job, plan, simulated, observer
        self._network, self._tables, self._start_s = simulated.network, tables, start_s
        self.layout, self.model, self._state = layout, model, state
        self._state.model = model
        self._make_storage, self._make_journal = storage, journal
        self._storage = storage(model)
        found = self._storage.latest() if resume else None
        self._begin(found)
        self._reader = open_reader(job)
        self.journal = journal(None)
        self.core = self._make_core(None, found)
        self._inbox: deque[tuple[str, list[memoryview]]] = deque()
        self.is_busy = False
        self._last_ended = 0  # round
        self._network.attach(COORDINATOR, self._hear)

    def _begin(self, found: Snapshot | None) -> None:
        """Give the tables what was saved, what the job says that it starts from, or first values."""
        if found is None and self._job.start is not None:
            found, taken = job_start(self._job, self.model.model, self._tables.tables, {})
            self._observer.began(str(taken))
        if found is None:
            self.model.fill()
        else:
            self.model.restore(found)

    def _make_core(self, found: JournalContents | None, saved: Snapshot | None = None) -> CoordinatorCore:
        """The core at the beginning of the job, where a journal says that another one has died, or as saved."""
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
        setup = Setup(self.layout, self._tables.groups, leases, clock, resumed=resumed, journals=True)
        warn = self._observer.warned
        changes = Reconfiguration(
            job, self._plan, self.start_of, lambda wanted: check_layout(job, wanted, model), warn
        )  # fmt: skip
        recovery = Recovery(job.workers, self.start_of, warn, have_state=self._state.is_any)
        return CoordinatorCore(
            job, setup, progress, accounting, changes, recovery, self._state, self._observer, self._network.now_s
        )

    def start_of(self, worker: str, layout: Layout) -> WorkerStart:
        return WorkerStart(worker, layout.stage_of(worker), tuple(stage.first for stage in self.layout.stages))

    # --- what happens to it ------------------------------------------------------------------------------------------

    def _is_later(self, action: Callable[[], None]) -> bool:
        """Whether the coordinator waits for servers, so that the action is tried again soon."""
        if self.is_busy:
            self._network.call_at(self._network.now_s + BUSY_S, action)
        return self.is_busy

    def kill(self) -> None:
        """Die now, and all workers too. Another coordinator starts in its place after a while."""
        if self._is_later(self.kill):
            return
        if self.core.is_over or not self.journal.has_begun:  # the next would begin anew
            return
        if self.journal.read() is None:
            self._simulated.failed = "the coordinator was killed, and left nothing by which another one could go on"
            return
        self.is_busy = True
        self._inbox.clear()
        self._network.detach(COORDINATOR)
        self._simulated.end_workers()
        self.model.client.close()
        self._simulated.servers.kill_keeper()
        self._network.call_at(self._network.now_s + self._start_s, self._take_over)

    def _take_over(self) -> None:
        """Go on as the next coordinator, unless a server without a mirror has died meanwhile."""
        with self._told_failures():
            self._succeed()

    def _succeed(self) -> None:
        """Begin by the journal of the coordinator before, with workers of their next incarnation."""
        left = self.journal.read()
        assert left is not None
        if not self._simulated.servers.take_over():
            self._simulated.failed = "the coordinator was killed, and a server that it left is gone or does not answer"
            return
        found = left.next_life()
        life = found.head.life
        self.layout = found.next_layout
        client = self._simulated.clients.watching(COORDINATOR, self._tables.tables, life)
        self.model = CoordinatorModel(self.model.model, self._tables, client, Objectives(self._job.data.columns))
        self._state.model = self.model
        self._storage = self._make_storage(self.model)
        self.journal = self._make_journal(found)
        self.core = self._make_core(found)
        self._last_ended = 0
        self.is_busy = False
        self._network.attach(COORDINATOR, self._hear)
        self._simulated.start_workers(self.layout, (life - 1) * STARTS_A_LIFE + 1)

    def pause(self, seconds: float) -> None:
        """Stand still for a while, and the keeper of servers too, as after SIGSTOP."""
        if self._is_later(partial(self.pause, seconds)):
            return
        self.is_busy = True
        self._simulated.servers.pause_keeper(seconds)
        self._network.call_at(self._network.now_s + seconds, self._go_on)

    def _go_on(self) -> None:
        self.is_busy = False
        self._work_off()
        self._tick()

    def lose(self, worker: str, life: int) -> None:
        """Learn that a worker has died, unless the coordinator of that life has died since."""
        if life != self.journal.life or self._is_later(partial(self.lose, worker, life)):
            return
        with self._told_failures():
            effects = self.core.worker_lost(worker, f"{worker} was killed", self._network.now_s)
            if effects is None:
                raise PeerLost(f"{worker} was killed, and is not replaced")
            self.perform(effects)
        self._tick()

    def scale(self, count: int) -> None:
        """Let the first stage have `count` workers from the next cut on, as soon as no other change is under way."""
        if self.core.is_over or self._is_later(partial(self.scale, count)):
            return
        if self.core.reconfiguration.busy is not None:
            self._network.call_at(self._network.now_s + BUSY_S, partial(self.scale, count))
            return
        with self._told_failures():
            wanted, reply = self.core.scale(Scale(0, count), self._network.now_s)
            if reply.is_error:
                raise ConfigError(reply.text)
            self.perform(wanted)

    def _tick(self) -> None:
        """See the time, and again when a worker may be due that is to be started."""
        if self._is_later(self._tick):
            return
        with self._told_failures():
            self.perform(self.core.tick(self._network.now_s, is_idle=not self._inbox))
        if self.core.recovery.num_lost and not (self.core.is_over or self._simulated.is_watched):
            self._network.call_at(self._network.now_s + 1.0, self._tick)

    def beat(self) -> None:
        """See the time now and every second: somebody may be silent."""
        if not self.core.is_over:
            self._tick()
            self._network.call_at(self._network.now_s + 1.0, self.beat)

    def _hear(self, now_s: float, sender: str, parts: list[memoryview]) -> Outgoing:
        """Take a message; or keep it for later, while servers are waited for."""
        del now_s
        self._inbox.append((sender, parts))
        self._work_off()
        return ()

    def _work_off(self) -> None:
        """Let the core take what has come."""
        while self._inbox and not self.is_busy:
            self.is_busy = True
            with self._told_failures():
                envelope = self._simulated.decode(*self._inbox.popleft())
                self.perform(self.core.handle(*envelope, self._network.now_s))
                self.perform(self.core.tick(self._network.now_s, is_idle=not self._inbox))
            self.is_busy = False

    @contextmanager
    def _told_failures(self) -> Iterator[None]:
        """Let an error of the coordinator end the job."""
        try:
            yield
        except HeterpsError as error:
            self._simulated.failed = str(self._simulated.servers.failure or error)

    # --- what it does ------------------------------------------------------------------------------------------------

    def evaluate(self, batches: Iterable[Batch]) -> Metrics:
        """Return the metrics of batches by the model as it is, with every round that has ended, also one just told.

        Buffers of layers are those of the first worker of each stage, as at the end of a run.
        """
        if isinstance(self.core.flow, RoundFlow):
            self._end_round(self.core.flow.round - 1)
        if self._state.is_any and self.core.progress.samples:
            for stage in self.core.layout.stages:
                self._state.take(self._simulated.workers[stage.workers[0]].state())
        return self.model.evaluate(batches)

    def perform(self, wanted: list[effects.Effect]) -> None:
        """Do what the core wants done. What comes meanwhile waits."""
        before, self.is_busy = self.is_busy, True
        self._do(wanted)
        self.is_busy = before
        if not before:
            self._work_off()

    def _do(self, wanted: list[effects.Effect]) -> None:
        for effect in wanted:
            match effect:
                case Send():
                    self._simulated.send(COORDINATOR, *effect)
                case effects.Save():
                    self.model.client.compare_mirrors()
                    error = self._storage.save(self.core.clock, self.core.progress.samples, self._progress())
                    self.perform(self.core.saved(error, self._network.now_s))
                    self.perform(self.core.answered(self._network.now_s))
                case effects.Publish():
                    why = self._storage.publish(self.core.clock, self.core.progress.samples)
                    self.perform(self.core.published(why, self._network.now_s))
                case effects.EndRound():
                    self._end_round(effect.number)
                case effects.TellEnded():
                    self.model.client.tell_rounds()
                case effects.DropRound():
                    drop_round(self.model.client, self._tables.tables, effect.number)
                case StartWorkers():
                    for start in effect.workers:
                        begin = partial(self._start, start, self.journal.life)
                        self._network.call_at(self._network.now_s + self._start_s, begin)
                case StopWorker():
                    self._simulated.workers[effect.worker].stop()  # it may live: it was silent for too long
                case effects.Skip():
                    pass  # there is no folder for rows
                case effects.Validate():
                    batches = (self.model.prepare(batch) for batch, _ in open_validation_reader(self._job).read())
                    self.perform(self.core.validated(self.model.evaluate(batches), self._network.now_s))
                case effects.Note():
                    if not self.journal.is_of(self.core.layout):
                        self._begin_journal()
                    self.journal.note(effect.record)
                case effects.Measured():
                    self._begin_journal()
                case _:
                    raise NotImplementedError(f"a simulated job does not {type(effect).__name__}")

    def _start(self, start: WorkerStart, life: int) -> None:
        """Start a worker, unless the coordinator that wants it has died."""
        if life == self.journal.life:
            self._simulated.start_worker(start)

    def _end_round(self, number: int) -> None:
        if number > self._last_ended:
            is_divided = len(self.core.layout.workers) > 1
            limits = limits_of(self._job.optimizers.clip, self._tables.tables) if is_divided else []
            end_round(self.model.client, limits, number)
            self._last_ended = number

    def _begin_journal(self) -> None:
        core = self.core
        self.journal.begin(core.layout, core.clock, core.progress, self._progress())

    def _progress(self) -> dict[str, Any]:
        state, usd = self.core.progress.state(), self.core.accounting.paid()
        return checkpoint_progress(self._job, self.core.flow.leases, self._reader, state, usd)
