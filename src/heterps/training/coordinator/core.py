"""CoordinatorCore: the one in control of a job. Messages, events and the time in, effects out; it waits for nothing.

    [1] workers start --> Ready --> [2] Assign --> Assigned --> [3] Go, Pushed, Go, ... (see flow.py)
                                          ^                            |
                                          |                           [4] hold, until nothing is under way: a cut
                                          +---- new layout ------------+--> checkpoint, scale, stop, replan
                                                                       |
                                                                      [5] all batches are done: checkpoint, Stop

Whatever changes the job waits for a cut. There all servers have applied all gradients, no worker holds any, and the
leases say exactly which batches are done.

The walk from [1] to [5] is one generator, `_walk`: it yields what it waits for, and goes on with the first message or
tick after which that is so.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from heterps.config import Job
from heterps.errors import PeerLost, StorageError
from heterps.training.coordinator.accounting import Accounting
from heterps.training.coordinator.effects import ApplyRound, Effect, Measured, Save, Validate
from heterps.training.coordinator.failures import failure
from heterps.training.coordinator.flow import Flow
from heterps.training.coordinator.lane_flow import LaneFlow
from heterps.training.coordinator.reconfiguration import START_S, Reconfiguration, Replanned, StopWorker
from heterps.training.coordinator.round_flow import RoundFlow
from heterps.training.coordinator.setup import Setup, StateOfStages, Values
from heterps.training.metrics.metrics import Metrics
from heterps.training.model.clipping import clipped_by_servers
from heterps.training.protocol.emulation import DilatedClock
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import (
    AskState,
    Assign,
    Assigned,
    Failed,
    Message,
    NoBatch,
    Pushed,
    Ready,
    Send,
    State,
    Stop,
)
from heterps.training.run.commands import CommandReply, Scale
from heterps.training.run.observer import Observer
from heterps.training.run.progress import RunProgress, Scores


class _Wait(NamedTuple):
    """The walk goes on when `is_so`; where that takes longer than the deadline, with PeerLost and what `late` says."""

    is_so: Callable[[], bool]
    deadline_s: float | None = None
    late: Callable[[float], str] = lambda _: ""
    since: float = 0.0


Walk = Generator[_Wait, None, None]


class CoordinatorCore:
    """Feed it by `handle`, `tick` and the other events; carry out the effects that each returns, in their order.

    `now` is in seconds of any clock that never goes back. After the job has ended, `is_over`, `stopped_by`,
    `has_stopped_early` and `replanned` say how.
    """

    def __init__(
        self,
        job: Job,
        setup: Setup,
        progress: RunProgress,
        accounting: Accounting,
        reconfiguration: Reconfiguration,
        state: StateOfStages,
        observer: Observer,
        now: float,
    ) -> None:
        self._job, self._setup, self._observer = job, setup, observer
        self.layout = setup.layout
        self.progress, self.accounting, self.reconfiguration = progress, accounting, reconfiguration
        self._state = state
        self._now = self._heard = now
        self._clock = DilatedClock(setup.scale, progress.seconds, lambda: self._now)
        self._clock.pause()  # until all are ready
        self._addresses: dict[str, str] = {}
        self._assigned: set[tuple[str, int]] = set()
        self._states: dict[str, Values] = {}
        self._effects: list[Effect] = []
        self._save_error: StorageError | None = None
        self._is_saved = False
        self._metrics: Metrics | None = None
        self._is_answered = False  # whether the answer to Validate has come
        kind = RoundFlow if setup.layout.in_rounds else LaneFlow
        self.flow: Flow = kind(
            setup.layout, setup.groups, job.sync, setup.leases,
            samples=progress.samples, now=progress.seconds, on_policy=setup.on_policy,
        )  # fmt: skip
        self.is_over = self.is_ending = False
        self.stopped_by: str | None = None
        self.has_stopped_early = False
        self._is_training = False
        self._walking = self._walk()
        self._wait = next(self._walking)

    @property
    def replanned(self) -> Replanned | None:
        """Not None: the job is saved, and goes on by another plan."""
        return self.reconfiguration.replanned

    @property
    def clock(self) -> int:
        """Updates of the job so far."""
        return self._setup.clock + self.accounting.num_steps

    # --- events ------------------------------------------------------------------------------------------------------

    def handle(self, sender: str, message: Message, values: Values | None, now: float) -> list[Effect]:
        """Take a message. What may begin after it begins with the next `tick`. Raises the error that a worker tells."""
        self._pass_to(now)
        self._heard = self._now
        match message:
            case Ready() if message.worker in self.layout.workers or self.reconfiguration.expects(message.worker):
                self._addresses[message.worker] = message.address
                self.reconfiguration.ready(message.worker)
            case Ready():
                self._effects.append(Send(message.worker, Stop()))  # of a change that was given up
            case Assigned():
                self._assigned.add((message.worker, message.epoch))
            case Pushed():
                scores = None if values is None else Scores(values["logits"].numpy(), values["labels"].numpy())
                self.accounting.pushed(message)
                self.flow.pushed(message, scores, self._clock.now())
                are_clipped = clipped_by_servers(self._job.optimizers.clip, self.layout)
                self._effects += [ApplyRound(number) for number in self.flow.take_ended() if are_clipped]
            case NoBatch():
                self.flow.no_batch(message)
            case State():
                self._states[message.worker] = values or {}
            case Failed() if message.worker in self.layout.workers:
                raise failure(message)
            case Failed():
                self._effects += self.reconfiguration.lost(message.worker, str(failure(message))) or []
            case _:
                self._observer.warned(f"{sender} sent {type(message).__name__}, which is not for the coordinator")
        return self._go_on()

    def tick(self, now: float) -> list[Effect]:
        """Begin what may begin, at this time. Raises PeerLost where somebody was waited for too long."""
        self._pass_to(now)
        self._check_time()
        self._effects += self.reconfiguration.check_time(now)
        if self._is_training:
            self._send_all(self.flow.go_on(self._clock.now()))
            self.accounting.show(self._clock.now(), now)
        return self._go_on()

    def stop(self, reason: str, now: float) -> list[Effect]:
        """Somebody wants the job to end, after what is under way."""
        self._pass_to(now)
        self.stopped_by = self.stopped_by or reason
        return self._go_on()

    def scale(self, asked: Scale, now: float) -> tuple[list[Effect], CommandReply]:
        self._pass_to(now)
        effects, reply = self.reconfiguration.scale(self.layout, asked, now)
        self._effects += effects
        return self._go_on(), reply

    def worker_lost(self, worker: str, why: str, now: float) -> list[Effect] | None:
        """A worker is gone. None: it was one of the job, which cannot go on."""
        self._pass_to(now)
        effects = self.reconfiguration.lost(worker, why)
        if effects is None:
            return None
        self._effects += effects
        return self._go_on()

    def saved(self, error: StorageError | None, now: float) -> list[Effect]:
        """The answer to Save."""
        self._pass_to(now)
        self._save_error, self._is_saved = error, True
        return self._go_on()

    def validated(self, metrics: Metrics | None, now: float) -> list[Effect]:
        """The answer to Validate; None if it was interrupted."""
        self._pass_to(now)
        self._metrics, self._is_answered = metrics, True
        return self._go_on()

    def status(self) -> dict[str, Any]:
        """For `heterps status`."""
        return self.accounting.status(self.flow) | {
            "change": self.reconfiguration.under_way,
            "last_change": self.reconfiguration.last,
        }

    # --- the walk ----------------------------------------------------------------------------------------------------

    def _go_on(self) -> list[Effect]:
        """Take the walk as far as it goes, and return what is to be done."""
        if self._is_training:
            self._effects += map(Measured, self.accounting.account(self.flow, self._clock.now()))
            is_due = self.progress.save_is_due or self.progress.validation_is_due
            wants_cut = self.stopped_by or self.reconfiguration.is_ready or is_due
            if wants_cut and not self.flow.is_held:
                self.flow.hold()
        while not self.is_over and self._wait.is_so():
            try:
                self._wait = next(self._walking)._replace(since=self._now)
            except StopIteration:
                self.is_over = True
        effects, self._effects = self._effects, []
        return effects

    def _walk(self) -> Walk:
        start_s = max(START_S, self._job.workers.deadline_s)
        yield _Wait(lambda: self._is_ready or self.stopped_by is not None, start_s, self._not_ready, self._now)  # [1]
        if self.stopped_by is None:
            yield from self._assign_all()
            yield from self._train()
            if self.replanned is not None:
                return
        self.is_ending = True
        self._effects += self.reconfiguration.end()
        validates = self.stopped_by is None or self._job.validation.on_stop
        if validates and self.progress.samples and not self.progress.is_validated:
            yield from self._validate()
        if self.stopped_by is None and self.progress.samples > self.progress.interval_started:
            self._effects.append(Measured(self.accounting.close_interval(self.flow)))
        yield from self._save()
        if self._save_error is not None:
            raise self._save_error
        self._effects += [Send(worker, Stop()) for worker in self.layout.workers]  # [5]

    def _train(self) -> Walk:
        """[3] [4] Until all batches are done, somebody wants a stop, or all is saved for another plan."""
        while self.stopped_by is None:
            self._clock.resume()
            self._heard = self._now
            self.flow.hold_at = self.progress.hold_at
            self._send_all(self.flow.start(self._clock.now()))
            self._is_training = True
            yield _Wait(lambda: self.flow.is_over or (self.flow.is_held and self.flow.is_quiet))
            self._is_training = False
            self._clock.pause()
            if self.flow.is_over or self.stopped_by is not None:
                break
            if (layout := self.reconfiguration.take_layout()) is not None:
                yield from self._follow(layout)
            if self.progress.validation_is_due:
                yield from self._validate()
                if self.progress.is_out_of_patience:
                    self.has_stopped_early = True
                    break
            is_to_keep = self.progress.is_best and self._job.validation.keep_best
            if self.progress.save_is_due or is_to_keep or self.replanned is not None:
                yield from self._save()
                self._tell_unsaved()
            if self.replanned is not None:
                return
        self.reconfiguration.replanned = None  # it comes too late

    def _assign_all(self) -> Walk:
        """[2] Tell every worker of the layout its place, and wait until all have taken it."""
        layout, setup = self.layout, self._setup
        self._assigned = set()
        paces = setup.paces(layout) if setup.paces is not None else [None] * len(layout.stages)
        for number, stage in enumerate(layout.stages):
            following = layout.stages[number + 1].workers if number + 1 < len(layout.stages) else ()
            addresses = {worker: self._addresses[worker] for worker in following}
            state = self._state.of_stage(number) if self._state.is_any else None
            assign = Assign(layout, addresses, paces[number], setup.scale)
            self._effects += [Send(worker, assign, state) for worker in stage.workers]
        wanted = {(worker, layout.epoch) for worker in layout.workers}

        def late(waited_s: float) -> str:
            missing = sorted(worker for worker, _ in wanted - self._assigned)
            return f"{', '.join(missing)} did not take their place in the layout within {waited_s:.0f} s"

        yield _Wait(lambda: self._assigned >= wanted, self._job.workers.deadline_s, late)

    def _follow(self, layout: Layout) -> Walk:
        """At a cut: from now on the workers are those of `layout`."""
        before, self.layout = self.layout, layout  # what is asked for from now on builds on it
        yield from self._collect_state(before)
        yield from self._assign_all()
        self.flow.change(layout, self._clock.now())
        self.accounting.follow(layout)
        for worker in before.workers:
            if worker not in layout.workers:
                self._effects += [Send(worker, Stop()), StopWorker(worker)]
                del self._addresses[worker]
        counts = " + ".join(f"{len(stage.workers)} {stage.resource}" for stage in layout.stages)
        self._observer.changed(f"{counts} from {self.progress.samples:,} samples on")

    def _collect_state(self, layout: Layout) -> Walk:
        """Ask the first worker of each stage for what it has and servers have not."""
        if not self._state.is_any or not self._assigned:
            return
        asked = [stage.workers[0] for stage in layout.stages]
        self._states = {}
        self._effects += [Send(worker, AskState()) for worker in asked]

        def late(waited_s: float) -> str:
            return f"{', '.join(set(asked) - set(self._states))} did not give their state within {waited_s:.0f} s"

        yield _Wait(lambda: set(self._states) >= set(asked), self._job.workers.deadline_s, late)
        for worker in asked:
            self._state.take(self._states[worker])

    def _validate(self) -> Walk:
        """The interval ends here, so that its line of metrics.jsonl has the validation."""
        yield from self._collect_state(self.layout)
        self._is_answered = False
        self._effects.append(Validate())
        yield _Wait(lambda: self._is_answered)
        if self._metrics is not None:
            found = self.progress.validated(self._metrics, self.clock)
            self._effects.append(Measured({**self.accounting.close_interval(self.flow), "validation": found}))

    def _save(self) -> Walk:
        yield from self._collect_state(self.layout)
        self._is_saved, self._save_error = False, None
        self._effects.append(Save())
        yield _Wait(lambda: self._is_saved)
        self.progress.saved()

    def _tell_unsaved(self) -> None:
        """Training goes on when a checkpoint fails; a change of plan, which needs one, does not."""
        if self._save_error is None:
            return
        if self.replanned is not None:
            self.reconfiguration.give_up_replan(f"it could not be saved. {self._save_error}")
        else:
            self._observer.warned(
                f"the checkpoint at {self.progress.samples:,} samples failed, training goes on. {self._save_error}"
            )

    # --- small things ------------------------------------------------------------------------------------------------

    def _pass_to(self, now: float) -> None:
        """Time never goes back, though an event may be older than what was done meanwhile, such as a checkpoint."""
        self._now = max(self._now, now)

    def _send_all(self, messages: Sequence[tuple[str, Any]]) -> None:
        self._effects += [Send(worker, message) for worker, message in messages]

    @property
    def _is_ready(self) -> bool:
        return set(self._addresses) >= set(self.layout.workers)

    def _check_time(self) -> None:
        wait = self._wait
        if wait.deadline_s is not None and self._now - wait.since > wait.deadline_s and not wait.is_so():
            raise PeerLost(wait.late(wait.deadline_s))
        waited_s = self._now - self._heard
        if self._is_training and waited_s > self._job.workers.deadline_s and (missing := self.flow.waited_for):
            raise PeerLost(
                f"the coordinator has waited {waited_s:.0f} s for {', '.join(missing[:5])}"
                f"{' and others' if len(missing) > 5 else ''}: alive, but without news. workers.deadline_s of the job "
                "says how long to wait"
            )

    def _not_ready(self, waited_s: float) -> str:
        missing = [worker for worker in self.layout.workers if worker not in self._addresses]
        return f"{', '.join(missing)} did not start within {waited_s:.0f} s: alive, but not ready"
