"""Coordinator: the one in control of a job on workers and servers, from their start to a complete outcome.

    [1] workers start --> Ready --> [2] Assign --> Assigned --> [3] Go, Pushed, Go, ... (see flow.py)
                                          ^                            |
                                          |                           [4] hold, until nothing is under way: a cut
                                          +---- new layout ------------+--> checkpoint, scale, stop, replan
                                                                       |
                                                                      [5] all batches are done: checkpoint, test set

Whatever changes the job waits for a cut. There all servers have applied all gradients, no worker holds any, and the
leases say exactly which batches are done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from heterps.config import Job
from heterps.data.leases import Leases
from heterps.data.reader import open_reader
from heterps.errors import HeterpsError, PeerLost, StorageError
from heterps.model.build import build_model
from heterps.model.trace import trace
from heterps.planning.plan import Plan
from heterps.training.coordinator.accounting import Accounting
from heterps.training.coordinator.failures import failure, find_culprit
from heterps.training.coordinator.fleet import Fleet, WorkerLost
from heterps.training.coordinator.flow import Flow
from heterps.training.coordinator.lane_flow import LaneFlow
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.coordinator.positions import first_leases, lease_progress, restored_leases
from heterps.training.coordinator.reconfiguration import START_S, Reconfiguration, Replanned
from heterps.training.coordinator.round_flow import RoundFlow
from heterps.training.coordinator.scaling import check_layout
from heterps.training.coordinator.traces import Traces
from heterps.training.coordinator.worker_state import WorkerState
from heterps.training.model.losses import has_own_loss
from heterps.training.protocol.border import pack, unpack
from heterps.training.protocol.emulation import DilatedClock, StagePace
from heterps.training.protocol.layout import Layout, make_layout
from heterps.training.protocol.messages import (
    AskState,
    Assign,
    Assigned,
    Failed,
    Message,
    NoBatch,
    Pushed,
    Ready,
    State,
    Stop,
    job_codec,
)
from heterps.training.protocol.stage_tables import stage_tables
from heterps.training.run.commands import AskStatus, CommandReply, Replan, Scale
from heterps.training.run.control import Control
from heterps.training.run.folder import Run
from heterps.training.run.loop import Observer, Outcome, evaluate_test, find_checkpoint, save_checkpoint
from heterps.training.run.progress import RunProgress, Scores
from heterps.training.worker.worker import WorkerStart
from heterps.wire import Frame, WireError

POLL_S = 0.2


@dataclass(frozen=True)
class Emulated:
    """What units would take that are not here: paces of the stages of a layout, and real seconds of an emulated one."""

    scale: float
    paces: Callable[[Layout], list[StagePace]]
    server_pace: Mapping[str, Any] | None = None  # fields of emulation.ServerPace


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
) -> Outcome | Replanned:
    """Train `job` by `plan` with the workers and servers of `fleet`, until the last epoch ends or `stop()` names a
    reason; or, if somebody asks through `control` for another plan, until the checkpoint from which to go on by it.

    Of several errors the one is raised that caused the others.
    """
    with ExitStack() as opened:
        try:
            coordinator = Coordinator(job, run, plan, fleet, observer, opened, emulated, folder, control)
            return coordinator.train(resume=resume, stop=stop)
        except HeterpsError as error:
            culprit = find_culprit(error, fleet)
            if culprit is error:
                raise
            raise culprit from error


class Coordinator:
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
    ) -> None:
        self._job, self._run, self._plan, self._fleet, self._observer = job, run, plan, fleet, observer
        self._emulated, self._folder, self._control = emulated, folder, control
        self._channel, self._codec = fleet.channel, job_codec()
        self._in_rounds = job.sync.in_rounds
        self.layout = make_layout(
            plan, in_rounds=self._in_rounds, batch_size=job.data.batch_size, num_lanes=job.workers.lanes
        )
        self._addresses: dict[str, str] = {}
        self._assigned: set[tuple[str, int]] = set()
        fleet.start([self._start_of(worker, self.layout) for worker in self.layout.workers])  # [1] takes a while
        model = build_model(job.model, job.data.columns, job.seed)
        check_layout(job, self.layout, model)
        traced = trace(model)
        is_reduced = job.workers.dense == "all_reduce"
        self._tables = stage_tables(job, model, traced, self._firsts)
        self._worker_state = WorkerState(model, traced, self._tables, self._firsts, is_reduced)
        self._reader = open_reader(job)
        self._client = fleet.connect(self._tables.on_servers(not is_reduced))
        opened.callback(self._client.close)
        num_classes = job.data.columns.num_classes
        self._whole = CoordinatorModel(model, self._tables, self._client, num_classes, self._worker_state.dense)
        self._progress = RunProgress(job, run)
        self._traces = Traces(run.folder, opened, observer.warned)
        scale = emulated.scale if emulated else None
        self._accounting = Accounting(job, plan, self.layout, self._progress, self._whole, observer, scale)
        self._clock = DilatedClock(emulated.scale if emulated else 1.0)
        self._flow: Flow | None = None
        self._clock_steps = 0  # updates before this process
        self._heard = time.monotonic()
        names = tuple(layer.name for layer in traced.layers)
        self._reconfiguration = Reconfiguration(
            job, run.folder, plan, model, names, fleet, self._start_of, self._dismiss, observer.warned
        )
        self._usd: float | None = 0.0  # before this process

    # --- the whole job -----------------------------------------------------------------------------------------------

    def train(self, *, resume: bool, stop: Callable[[], str | None]) -> Outcome | Replanned:
        leases = self._restore() if resume else self._begin()
        self._clock = DilatedClock(self._emulated.scale if self._emulated else 1.0, self._progress.seconds)
        self._clock.pause()  # until all are ready
        self._flow = self._make_flow(leases)
        self._accounting.begin(self._usd)
        self._observer.started(self._progress.samples, self._reader.num_rows * self._job.data.epochs, resume)
        start_s = max(START_S, self._job.workers.deadline_s)
        self._wait_until(lambda: self._is_ready or stop() is not None, start_s, self._not_ready)
        if stopped_by := stop():
            return self._conclude(stopped_by, stop)
        self._assign_all()
        self._clock.resume()
        self._go()
        ended = self._run_until_over(stop)
        self._reconfiguration.end()
        return ended if isinstance(ended, Replanned) else self._conclude(ended, stop)

    def _begin(self) -> Leases:
        self._whole.fill()
        return first_leases(self._job, self._reader)

    def _restore(self) -> Leases:
        snapshot = find_checkpoint(self._run, self._observer)
        if snapshot is None:
            self._progress.begin_again()
            return self._begin()
        self._whole.restore(snapshot)
        self._progress.restore(snapshot.samples, snapshot.progress)
        self._clock_steps = snapshot.clock
        self._usd = snapshot.progress.get("usd")
        return restored_leases(self._job, self._reader, snapshot.progress)

    def _run_until_over(self, stop: Callable[[], str | None]) -> Replanned | str | None:
        """[3] [4] Steps until all batches are done (None), `stop` names a reason, or all is saved for another plan."""
        flow = self._running
        stopped_by: str | None = None
        while not flow.is_over:
            stopped_by = stopped_by or stop()
            if not flow.is_held and (stopped_by or self._reconfiguration.is_ready or self._progress.save_is_due):
                flow.hold()
            if flow.is_held and flow.is_quiet:
                self._clock.pause()
                if stopped_by is not None:
                    return stopped_by
                if (replanned := self._make_cut()) is not None:
                    return replanned
                self._clock.resume()
                self._go()
                continue
            self._hear(POLL_S)
            self._check_news()  # before anything that takes long: news may come meanwhile
            self._accounting.account(flow, self._clock.now())
            self._reconfiguration.check_time()
            self._handle_commands()
            self._accounting.show(self._clock.now())
        return None

    def _make_cut(self) -> Replanned | None:
        """Nothing is under way: do what waited for that. Not None: the job is saved, and goes on by another plan."""
        if (layout := self._reconfiguration.take_layout()) is not None:
            self._follow(layout)
        if self._progress.save_is_due or self._reconfiguration.replanned is not None:
            try:
                self._save(must_succeed=self._reconfiguration.replanned is not None)
            except StorageError as error:
                self._reconfiguration.give_up_replan(f"it could not be saved. {error}")
        return self._reconfiguration.replanned

    def _conclude(self, stopped_by: str | None, stop: Callable[[], str | None]) -> Outcome:
        """[5]"""
        progress = self._progress
        if stopped_by is None:
            self._clock.pause()
            if progress.samples > progress.interval_started:
                self._accounting.close_interval(self._running)
        self._save(must_succeed=True)
        for worker in self.layout.workers:
            with suppress(PeerLost):  # nothing more is needed of it
                self._send(worker, Stop())
        test = None
        if stopped_by is None and self._job.data.test is not None:
            test = evaluate_test(self._job, self._whole, self._observer, stop)
            if stopped_by := stop():
                test = None  # of a part of the test set
        return Outcome(
            progress.samples, progress.seconds, progress.restarts, stopped_by, progress.train_metrics(), test,
            self._whole.num_rows, self._whole.table_bytes, self._whole.counters, self._whole.tier_counts,
            self._data_counts(), has_own_loss(self._whole.model), self._accounting.summary(self._running),
        )  # fmt: skip

    def _data_counts(self) -> dict[str, int]:
        """Of data that was read to its end: what was not trained on was skipped. Of less nobody knows."""
        if not self._running.is_over:
            return {}
        num_rows = self._reader.num_rows * self._job.data.epochs
        return {"num_rows": num_rows, "num_skipped": num_rows - self._progress.samples}

    # --- talking -----------------------------------------------------------------------------------------------------

    def _hear(self, timeout_s: float) -> None:
        """Take a message, if one comes."""
        try:
            self._fleet.check()  # first: an error would lose what was received, and giving a change up takes long
        except WorkerLost as lost:
            if not self._reconfiguration.lost(lost.peer, str(lost)):
                raise
        received = self._channel.receive(timeout_s)
        if received is None:
            return
        sender, parts = received
        try:
            message, frames = self._codec.decode(parts)
        except WireError as error:
            self._observer.warned(f"{sender} sent what is no message: {error}")
            return
        self._heard = time.monotonic()
        self._handle(sender, message, frames)

    def _handle(self, sender: str, message: Message, frames: list[memoryview]) -> None:
        match message:
            case Ready() if message.worker in self.layout.workers or self._reconfiguration.expects(message.worker):
                self._addresses[message.worker] = message.address
                self._reconfiguration.ready(message.worker)
            case Ready():
                self._dismiss(message.worker)  # of a change that was given up
            case Assigned():
                self._assigned.add((message.worker, message.epoch))
            case Pushed():
                scores = None
                if message.scores is not None:
                    arrays = unpack(message.scores, frames)
                    scores = Scores(arrays["logits"].numpy(), arrays["labels"].numpy())
                self._accounting.pushed(message)
                self._send_all(self._running.pushed(message, scores, self._clock.now()))
            case NoBatch():
                self._send_all(self._running.no_batch(message, self._clock.now()))
            case State():
                self._states[message.worker] = unpack(message.state, frames)
            case Failed() if message.worker in self.layout.workers:
                raise failure(message)
            case Failed():
                self._reconfiguration.lost(message.worker, str(failure(message)))
            case _:
                self._observer.warned(f"{sender} sent {type(message).__name__}, which is not for the coordinator")

    def _send(self, worker: str, message: Message, frames: list[Frame] | None = None) -> None:
        self._channel.send(worker, self._codec.encode(message, frames or []))

    def _send_all(self, messages: list[tuple[str, Any]]) -> None:
        for worker, message in messages:
            self._send(worker, message)

    def _dismiss(self, worker: str) -> None:
        with suppress(PeerLost):  # it is gone, or never came
            self._send(worker, Stop())

    def _handle_commands(self) -> None:
        """Answer what commands ask: between two messages of workers, and never in the middle of a change."""
        for request in self._control.requests() if self._control is not None else ():
            match request.message:
                case AskStatus():
                    request.answer(self._status())
                case Scale() as scale:
                    request.answer(self._reconfiguration.scale(self.layout, scale))
                case Replan() as replan:
                    request.answer(self._reconfiguration.replan(replan))

    def _status(self) -> CommandReply:
        status = self._accounting.status(self._running) | {
            "total": self._reader.num_rows * self._job.data.epochs,
            "change": self._reconfiguration.under_way,
            "last_change": self._reconfiguration.last,
        }
        return CommandReply(json.dumps(status))

    def _wait_until(self, is_so: Callable[[], bool], deadline_s: float, late: Callable[[float], str]) -> None:
        begun = time.monotonic()
        while not is_so():
            if time.monotonic() - begun > deadline_s:
                raise PeerLost(late(deadline_s))
            self._hear(POLL_S)

    def _check_news(self) -> None:
        """PeerLost where those without whom nothing goes on have said nothing for too long."""
        waited_s = time.monotonic() - self._heard
        if waited_s > self._job.workers.deadline_s and (missing := self._running.waited_for):
            raise PeerLost(
                f"the coordinator has waited {waited_s:.0f} s for {', '.join(missing[:5])}"
                f"{' and others' if len(missing) > 5 else ''}: alive, but without news. workers.deadline_s of the job "
                "says how long to wait"
            )

    # --- layouts -----------------------------------------------------------------------------------------------------

    def _assign_all(self) -> None:
        """[2] Tell every worker of the layout its place, and wait until all have taken it."""
        layout = self.layout
        self._assigned = set()
        paces = self._emulated.paces(layout) if self._emulated else [None] * len(layout.stages)
        scale = self._emulated.scale if self._emulated else 1.0
        for number, stage in enumerate(layout.stages):
            following = layout.stages[number + 1].workers if number + 1 < len(layout.stages) else ()
            addresses = {worker: self._addresses[worker] for worker in following}
            state, frames = (
                pack(self._worker_state.of_stage(number, self._whole)) if self._worker_state.is_any else (None, [])
            )
            for worker in stage.workers:
                self._send(worker, Assign(layout, addresses, paces[number], scale, state), frames)
        wanted = {(worker, layout.epoch) for worker in layout.workers}

        def late(waited_s: float) -> str:
            missing = sorted(worker for worker, _ in wanted - self._assigned)
            return f"{', '.join(missing)} did not take their place in the layout within {waited_s:.0f} s"

        self._wait_until(lambda: self._assigned >= wanted, self._job.workers.deadline_s, late)

    def _follow(self, layout: Layout) -> None:
        """At a cut: from now on the workers are those of `layout`."""
        self._collect_state()
        before, self.layout = self.layout, layout
        self._assign_all()
        self._running.change(layout, self._clock.now())
        self._accounting.follow(layout)
        for worker in before.workers:
            if worker not in layout.workers:
                self._dismiss(worker)
                self._fleet.stop(worker)
                del self._addresses[worker]
        counts = " + ".join(f"{len(stage.workers)} {stage.resource}" for stage in layout.stages)
        self._observer.changed(f"{counts} from {self._progress.samples:,} samples on")

    # --- state -------------------------------------------------------------------------------------------------------

    def _collect_state(self) -> None:
        """What workers have and servers have not, from the first worker of each stage, into the whole model."""
        if not self._worker_state.is_any or not self._assigned:
            return
        asked = [stage.workers[0] for stage in self.layout.stages]
        self._states: dict[str, Mapping[str, Any]] = {}
        for worker in asked:
            self._send(worker, AskState())

        def late(waited_s: float) -> str:
            return f"{', '.join(set(asked) - set(self._states))} did not give their state within {waited_s:.0f} s"

        self._wait_until(lambda: set(self._states) >= set(asked), self._job.workers.deadline_s, late)
        for worker in asked:
            self._worker_state.take(self._states[worker], self._whole)

    def _save(self, *, must_succeed: bool = False) -> None:
        self._collect_state()
        progress = lease_progress(self._running.leases, self._reader) | self._progress.state()
        progress |= {"usd": self._accounting.paid()}
        clock = self._clock_steps + self._accounting.num_steps
        save_checkpoint(
            self._job, self._run, self._observer, self._progress,
            lambda: self._whole.snapshot(clock, self._progress.samples, progress, in_place=True),
            must_succeed=must_succeed,
        )  # fmt: skip

    # --- small things ------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> Flow:
        assert self._flow is not None
        return self._flow

    @property
    def _is_ready(self) -> bool:
        return set(self._addresses) >= set(self.layout.workers)

    @property
    def _firsts(self) -> tuple[int, ...]:
        return tuple(stage.first for stage in self.layout.stages)

    def _go(self) -> None:
        self._heard = time.monotonic()
        self._running.hold_at = self._progress.save_at
        self._send_all(self._running.start(self._clock.now()))

    def _make_flow(self, leases: Leases) -> Flow:
        kind = RoundFlow if self._in_rounds else LaneFlow
        return kind(
            self.layout, self._tables.groups, self._job.sync, leases,
            samples=self._progress.samples, now=self._progress.seconds, on_policy=self._traces.record,
        )  # fmt: skip

    def _start_of(self, worker: str, layout: Layout) -> WorkerStart:
        stage = layout.stage_of(worker)
        device = "cpu" if self._emulated else self._job.cluster.resources[layout.stages[stage].resource].device
        return WorkerStart(worker, stage, tuple(s.first for s in layout.stages), device, self._folder)

    def _not_ready(self, waited_s: float) -> str:
        missing = [worker for worker in self.layout.workers if worker not in self._addresses]
        return f"{', '.join(missing)} did not start within {waited_s:.0f} s: alive, but not ready"
