"""The shell of the coordinator: it gives the core (core.py) messages and the time, and does what the core wants done.

    mailbox of the fleet --message--> core --effects--> perform: send, start and stop workers, save, write metrics
    clock, signals, commands -------->

One loop for all launchers. What differs, how workers are started and how messages travel, is in the fleet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from heterps.checkpoint import of_clock
from heterps.config import Job
from heterps.data.reader import open_reader
from heterps.errors import Diverged, HeterpsError, PeerLost, StorageError
from heterps.model.build import build_model
from heterps.model.trace import WHOLE, trace_or_whole
from heterps.planning.plan import Plan
from heterps.training.coordinator import effects
from heterps.training.coordinator.accounting import Accounting
from heterps.training.coordinator.core import CoordinatorCore
from heterps.training.coordinator.failures import find_culprit
from heterps.training.coordinator.fleet import Fleet, WorkerLost, tell_news
from heterps.training.coordinator.following import LEASE_S
from heterps.training.coordinator.journal import JournalContents, digest_of
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.coordinator.origin import Origin
from heterps.training.coordinator.positions import checkpoint_progress
from heterps.training.coordinator.publishing import Publisher
from heterps.training.coordinator.quarantine import Quarantine
from heterps.training.coordinator.reconfiguration import (
    Reconfiguration,
    Replanned,
    StartWorkers,
    StopWorker,
    read_replan,
)
from heterps.training.coordinator.recovery import Recovery
from heterps.training.coordinator.replies import status_reply, tell_servers
from heterps.training.coordinator.saving import Saver
from heterps.training.coordinator.scaling import check_layout, layout_warnings
from heterps.training.coordinator.setup import Setup
from heterps.training.coordinator.starts import Emulated, start_of
from heterps.training.coordinator.traces import Traces
from heterps.training.coordinator.worker_state import WorkerState
from heterps.training.metrics.metrics import Metrics
from heterps.training.model.clipping import drop_round, end_round, limits_of
from heterps.training.model.in_use import SavedModel
from heterps.training.model.objectives import Objectives, has_own_loss
from heterps.training.protocol.layout import job_layout
from heterps.training.protocol.messages import Send
from heterps.training.protocol.stage_tables import stage_tables
from heterps.training.run.commands import AskServers, AskStatus, CommandReply, Follow, Replan, Scale
from heterps.training.run.control import Control, Request
from heterps.training.run.evaluation import evaluate_test, evaluate_validation
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer, Outcome
from heterps.training.run.progress import RunProgress
from heterps.wire import WireError

POLL_S = 0.2


def train_staged(
    job: Job,
    run: Run,
    plan: Plan,
    fleet: Fleet,
    *,
    resume: bool,
    observer: Observer,
    stop: Callable[[], str | None],
    emulated: Emulated | None = None,
    folder: str = "",
    control: Control | None = None,
    found: JournalContents | None = None,
) -> Outcome | Replanned:
    """Train `job` by `plan` with the workers and servers of `fleet`, until the last epoch ends or `stop()` names a
    reason; or, if somebody asks through `control` for another plan, until the checkpoint from which to go on by it.

    found  the journal of a coordinator that died, whose servers the fleet has taken over
    Of several errors the one is raised that caused the others.
    """
    with ExitStack() as opened:
        try:
            coordinator = Coordinator(
                job, run, plan, fleet, observer, opened, emulated, folder, control, resume=resume, found=found
            )
            return coordinator.train(stop)
        except HeterpsError as error:
            culprit = find_culprit(error, fleet)
            if culprit is error:
                raise
            raise culprit from error


class Coordinator:
    """The core of a job with everything that it has to do with: the fleet, the run's folder, the model, commands."""

    def __init__(
        self,
        job: Job,
        run: Run,
        plan: Plan,
        fleet: Fleet,
        observer: Observer,
        opened: ExitStack,
        emulated: Emulated | None,
        folder: str,
        control: Control | None = None,
        *,
        resume: bool,
        found: JournalContents | None = None,
    ) -> None:
        self._job, self._run, self._fleet, self._observer, self._control = job, run, fleet, observer, control
        self._resume, layout = resume, job_layout(job, plan) if found is None else found.next_layout
        starts = partial(start_of, job, folder, emulated)
        fleet.start([starts(worker, layout, begins=not resume) for worker in layout.workers])  # takes a while
        model = build_model(job.model, job.data.columns, job.seed)
        check_layout(job, layout, model)
        self._of_layout = layout_warnings(job, layout, model)
        for warning in self._of_layout:
            observer.warned(warning)
        traced = trace_or_whole(model)
        self._layers = tuple(layer.name for layer in traced.layers)
        is_reduced = job.workers.dense == "all_reduce"
        firsts = tuple(stage.first for stage in layout.stages)
        tables = stage_tables(job, model, traced, firsts)
        self._state = WorkerState(model, traced, tables, firsts, is_reduced)
        self._reader = open_reader(job)
        self._served = tables.on_servers(not is_reduced)
        self._limits = limits_of(job.optimizers.clip, self._served)
        client = fleet.connect(self._served)
        opened.callback(client.close)
        self._objectives = Objectives(job.data.columns)
        self._model = CoordinatorModel(model, tables, client, self._objectives, self._state.dense)
        self._publisher = Publisher(self._model, run.folder)
        self._saver = Saver(self._model, run, job.checkpoint)
        opened.callback(self._saver.close)
        self._quarantine = Quarantine(job, run, self._model, opened, observer.warned)
        self._doubts = self._objectives.doubts(model, traced)
        self._state.model = self._model
        progress = RunProgress(job, self._reader.num_rows, has_own_loss=has_own_loss(model))
        self._stop: Callable[[], str | None] = lambda: None
        paces, scale = (emulated.paces, emulated.scale) if emulated else (None, 1.0)
        traces = Traces(run.folder, opened, observer.warned, scale)
        accounting = Accounting(
            job, plan, layout, progress, observer, emulated.scale if emulated else None, traces.pushed
        )
        origin = Origin(job, run, self._reader, self._model, progress, observer)
        begun = origin.take_over(found) if found is not None else origin.restore() if resume else origin.begin()
        self._news, self._journal = begun.news, None
        if fleet.place is not None and not self._state.is_any and not self._limits:  # else nobody could go on by it
            self._journal = begun.journal(run.folder, digest_of(job, plan), fleet.place, observer.warned)
            opened.callback(self._journal.close)
        on_policy = traces.record if job.has_workers else lambda *_: None  # its worker is never kept waiting
        setup = Setup(
            layout, tables.groups, begun.leases, begun.clock, paces, scale, on_policy,
            begun.resumed, journals=self._journal is not None,
        )  # fmt: skip
        reconfiguration = Reconfiguration(
            job, plan, starts, lambda wanted: check_layout(job, wanted, model), observer.warned
        )
        recovery = Recovery(job.workers, starts, observer.warned, have_state=self._state.is_any)
        accounting.begin(begun.usd)
        self._core = CoordinatorCore(
            job, setup, progress, accounting, reconfiguration, recovery,
            self._state, observer, time.monotonic(),
        )  # fmt: skip

    @property
    def _num_samples(self) -> int:
        return self._core.progress.data_began + self._reader.num_rows * self._job.data.epochs

    def train(self, stop: Callable[[], str | None]) -> Outcome | Replanned:
        core, self._stop = self._core, stop
        self._model.count_serving()
        self._observer.started(core.progress.samples, self._num_samples, self._resume)
        if self._news:
            self._observer.changed(self._news)
        self._tell_doubts()
        while not core.is_over:
            self._end_save(POLL_S if core.is_saving and not core.is_training else 0.0)
            self._hear(stop)
            self._handle_commands()
        return core.reconfiguration.replanned or self._conclude(stop)

    def _conclude(self, stop: Callable[[], str | None]) -> Outcome:
        core, progress, model = self._core, self._core.progress, self._model
        staged = core.accounting.summary(core.flow, model.served_s)
        test, stopped_by = None, core.stopped_by
        if self._job.data.test is not None and (stopped_by is None or self._job.validation.on_stop):
            interrupted = stop if stopped_by is None else self._until_grace
            test = self._test(interrupted)
            if (reason := interrupted()) is not None:
                test, stopped_by = None, reason  # of a part of the test set
        trained = progress.train_metrics()
        self._take_news()
        return Outcome(
            progress.samples, progress.seconds, progress.restarts, progress.recoveries, progress.repeated_samples,
            progress.skips.batches, progress.skips.samples, stopped_by, trained, test,
            model.num_rows, model.table_bytes, model.counters, model.tier_counts, core.accounting.data_counts(),
            has_own_loss(model.model), staged, core.flow.leases.first[0],
            progress.validation_summary(stopped_early=core.has_stopped_early),
            progress.divergence.alarm is not None, self._judge(test or trained),
        )  # fmt: skip

    def _test(self, stop: Callable[[], str | None]) -> Metrics:
        """Metrics of the test set: of the best model, if it was kept and is not the last one."""
        best = self._clock_to_keep
        path = None if best is None or best == self._core.clock else of_clock(self._run.checkpoints, best)
        if path is None:
            return evaluate_test(self._job, self._model, self._observer, stop)
        with SavedModel(self._job, path) as model:
            return evaluate_test(self._job, model, self._observer, stop)

    def _validate(self) -> Metrics | None:
        """Metrics of the samples for validation; None if a stop came before they were all seen."""
        stop = self._stop if self._core.stopped_by is None else self._until_grace
        with self._model.serving_uncounted():
            metrics = evaluate_validation(self._job, self._model, self._observer, stop)
        return metrics if stop() is None else None

    def _until_grace(self) -> str | None:
        """Why a job that was stopped must end its evaluation too; None while there is time."""
        return None if self._core.grace.evaluates(time.monotonic()) else self._core.stopped_by

    @property
    def _clock_to_keep(self) -> int | None:
        """The clock of the best model so far; None if none is kept."""
        best = self._core.progress.best if self._job.validation.keep_best else None
        return None if best is None else best.clock

    def _judge(self, metrics: Metrics) -> list[str]:
        """Return what is doubtful about the model, by its layout, its start or its outputs."""
        if not self._doubts and self._layers == (WHOLE,):
            self._doubts = self._objectives.doubts_by_scores(self._model.model, metrics)
            self._tell_doubts()
        return [*self._of_layout, *self._doubts, *self._core.progress.warnings]

    def _tell_doubts(self) -> None:
        for doubt in self._doubts:
            self._observer.warned(doubt)

    # --- events ------------------------------------------------------------------------------------------------------

    def _hear(self, stop: Callable[[], str | None]) -> None:
        """Give the core the next message, if one comes, the time and a wish to stop, before more is begun."""
        self._take_news()
        try:
            self._fleet.check()  # first: an error would lose what was received, and giving a change up takes long
        except WorkerLost as lost:
            effects = None
            if lost.cause is None or self._core.reconfiguration.expects(lost.peer):  # else it would fail again
                effects = self._core.worker_lost(lost.peer, str(lost), time.monotonic(), is_preempted=lost.is_preempted)
            if effects is None:
                raise
            self._perform(effects)
        try:
            envelope = self._fleet.mailbox.receive(POLL_S)
        except WireError as error:
            self._observer.warned(str(error))
            return
        now = time.monotonic()
        if envelope is not None:
            self._perform(self._core.handle(*envelope, now))
        if (reason := stop()) is not None and self._core.stopped_by is None:
            self._perform(self._core.stop(reason, now))
        self._perform(self._core.tick(now, is_idle=envelope is None))

    def _take_news(self) -> None:
        """Count what has happened to servers, and do what is asked for because one has to leave."""
        self._core.progress.recoveries += tell_news(news := self._fleet.take_news(), self._observer)
        for asked in filter(None, (one.asks for one in news)):
            self._core.leave_servers(moves=asked == "move")
        if news and self._journal is not None and self._journal.has_begun:
            self._begin_journal()  # for it says who they are

    def _handle_commands(self) -> None:
        """Answer commands, between two messages of workers."""
        for request in self._control.requests() if self._control is not None else ():
            if (reply := self._reply(request)) is not None:
                request.answer(reply)

    def _reply(self, request: Request) -> CommandReply | None:
        match request.message:
            case AskServers():
                tell_servers(self._model.client, request.answer)
                return None
            case AskStatus():
                return status_reply(self._core, self._num_samples, time.monotonic())
            case Follow(every_s):
                self._perform(self._core.follow(every_s, time.monotonic()))
                return CommandReply(f"a version every {every_s:g} s, for the next {LEASE_S:g} s")
            case _ if (refusal := self._fleet.refuses_changes) is not None:
                return CommandReply(refusal, is_error=True)
            case _ if self._core.is_ending:
                return CommandReply("the job is just ending, and takes no changes any more", is_error=True)
            case Scale() as asked:
                effects, reply = self._core.scale(asked, time.monotonic())
                error = self._perform(effects)
                return reply if error is None else CommandReply(error, is_error=True)
            case Replan() as asked:
                read = partial(read_replan, self._job, self._run.folder, asked, self._model.model, self._layers)
                return self._core.reconfiguration.replan(read)

    # --- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, wanted: list[effects.Effect]) -> str | None:
        """Carry out effects of the core, and those that follow. Returns why workers could not be started, if so."""
        error: str | None = None
        for effect in wanted:
            match effect:
                case Send():
                    with suppress(PeerLost):  # it has died, as the fleet will say, or will be silent for too long
                        self._fleet.mailbox.send(*effect)
                case StartWorkers():
                    error = self._start(effect) or error
                case StopWorker():
                    with suppress(KeyError):  # it was not started
                        self._fleet.stop(*effect)
                case effects.Validate():
                    self._perform(self._core.validated(self._validate(), time.monotonic()))
                case effects.Save():
                    self._begin_save()
                case effects.Publish():
                    failure = self._publisher.publish(self._core.clock, self._core.progress.samples)
                    self._perform(self._core.published(failure, time.monotonic()))
                case effects.EndRound():
                    end_round(self._model.client, self._limits if effect.are_several else [], effect.number)
                case effects.TellEnded():
                    self._model.client.tell_rounds()
                case effects.Note():
                    self._note(effect)
                case effects.DropRound():
                    drop_round(self._model.client, self._served, effect.number)
                case effects.Skip():
                    self._quarantine.add(effect.batch)
                case effects.Measured():
                    line = effect.line | self._model.table_fields(self._job.tables)
                    self._run.add_metrics(line)
                    self._begin_journal()
                    self._observer.measured(line)
                    if "alarm" in line and self._job.on_divergence == "raise":
                        raise Diverged(line["alarm"])
        return error

    def _start(self, start: StartWorkers) -> str | None:
        try:
            self._fleet.start(start.workers)
        except (HeterpsError, OSError) as error:
            if self._core.recovery.is_starting(start.workers[0].name):
                raise PeerLost(f"{start.workers[0].name} was lost, and cannot be started again: {error}") from error
            given_up = self._core.worker_lost(start.workers[0].name, str(error), time.monotonic())
            self._perform(given_up or [])
            return self._core.reconfiguration.last
        return None

    # --- checkpoints and the journal ---------------------------------------------------------------------------------

    def _note(self, note: effects.Note) -> None:
        assert self._journal is not None
        if not self._journal.is_of(self._core.layout):
            self._begin_journal()
        self._journal.note(note.record)

    def _begin_journal(self) -> None:
        if self._journal is not None:
            core, told = self._core, self._checkpoint_progress()
            self._journal.begin(core.layout, core.clock, core.progress, told, self._fleet.place)

    def _checkpoint_progress(self) -> dict[str, Any]:
        core = self._core
        state, usd = core.progress.state(), core.accounting.paid()
        return checkpoint_progress(self._job, core.flow.leases, self._reader, state, usd)

    def _begin_save(self) -> None:
        """Keep what the job is now for a checkpoint, which is written while training goes on."""
        core = self._core
        try:
            self._saver.begin(core.clock, core.progress.samples, self._checkpoint_progress(), self._clock_to_keep)
        except StorageError as error:
            self._perform(core.saved(error, time.monotonic()))
        self._perform(core.answered(time.monotonic()))

    def _end_save(self, timeout_s: float) -> None:
        """See whether a checkpoint was written meanwhile. Raises what it met, but for a disk that refuses."""
        error: StorageError | None = None
        try:
            if (saved := self._saver.ended(timeout_s)) is None:
                return
            self._observer.saved(*saved)
        except StorageError as found:
            error = found
        self._perform(self._core.saved(error, time.monotonic()))
