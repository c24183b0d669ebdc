"""CoordinatorCore: it controls a job. Messages, events and the time go in, effects come out; it waits for nothing.

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

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import structs

from heterps.config import Job
from heterps.errors import PeerLost, StaleIncarnation, StorageError
from heterps.training.coordinator.accounting import Accounting
from heterps.training.coordinator.effects import DropRound, Effect, Measured, Publish, Save, Validate
from heterps.training.coordinator.failures import failure
from heterps.training.coordinator.fitted_shares import FittedShares
from heterps.training.coordinator.flow import Flow
from heterps.training.coordinator.follow_ups import after_rounds, after_steps, go_aheads
from heterps.training.coordinator.following import Following
from heterps.training.coordinator.make_flow import make_flow
from heterps.training.coordinator.reconfiguration import START_S, Effects, Reconfiguration, StopWorker
from heterps.training.coordinator.recovery import Recovery
from heterps.training.coordinator.round_flow import RoundFlow
from heterps.training.coordinator.setup import Setup, StateOfStages, Values
from heterps.training.coordinator.silence import Silence
from heterps.training.coordinator.waits import Grace, Wait, Walk, not_ready, too_silent
from heterps.training.coordinator.worker_places import WorkerPlaces, next_epoch
from heterps.training.metrics.metrics import Metrics
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import (
    Alive,
    Assigned,
    Failed,
    Message,
    NoBatch,
    Pushed,
    Ready,
    Send,
    StageState,
    Stop,
)
from heterps.training.protocol.pacing import DilatedClock
from heterps.training.run.commands import CommandReply, Scale
from heterps.training.run.observer import Observer
from heterps.training.run.progress import RunProgress, Scores


class CoordinatorCore:
    """Feed it by `handle`, `tick` and the other events; carry out the effects that each returns, in their order.

    `now` is in seconds of any clock that never goes back. After the job has ended, `is_over`, `stopped_by`,
    `has_stopped_early` and `reconfiguration.replanned` say how.
    """

    def __init__(
        self,
        job: Job,
        setup: Setup,
        progress: RunProgress,
        accounting: Accounting,
        reconfiguration: Reconfiguration,
        recovery: Recovery,
        state: StateOfStages,
        observer: Observer,
        now: float,
    ) -> None:
        self._job, self._setup, self._state, self._observer = job, setup, state, observer
        self.layout = setup.layout
        self.progress, self.accounting = progress, accounting
        self.reconfiguration, self.recovery = reconfiguration, recovery
        self._now, self.silence = now, Silence(job.workers.deadline_s)
        self.grace = Grace(job.checkpoint.grace_s)
        self._clock = DilatedClock(setup.scale, progress.seconds, lambda: self._now)
        self._clock.pause()  # until all are ready
        self._effects: list[Effect] = []
        self._places = WorkerPlaces(
            setup, state, recovery, job.workers.deadline_s, lambda told: self._effects.extend(told)
        )
        self._save_error: StorageError | None = None
        self.is_saving = False
        self._until_saved = Wait(lambda: not self.is_saving)
        self._metrics: Metrics | None = None
        self._is_answered = False  # whether the answer to the last Save, Validate or Publish has come
        self.following = Following()
        self._shares = FittedShares(job.data.batch_size, is_on=job.workers.shares == "fitted")
        self.flow: Flow = make_flow(job, setup, progress)
        self.is_over = self.is_ending = self.is_training = False
        self.has_stopped_early = progress.is_out_of_patience  # already, in a run that is resumed
        self.stopped_by: str | None = None
        self._walking = self._walk()
        self._wait = next(self._walking)

    @property
    def clock(self) -> int:
        """The number of updates of the job so far."""
        return self._setup.clock + self.accounting.num_steps

    # --- events ------------------------------------------------------------------------------------------------------

    def handle(self, sender: str, message: Message, values: Values | None, now: float) -> list[Effect]:
        """Take a message. What may begin after it begins with the next `tick`. Raises the error that a worker tells."""
        self._pass_to(now)
        self.silence.broken([sender], self._now)
        match message:
            case Alive():
                pass
            case Ready() if message.worker in self.layout.workers or self.reconfiguration.expects(message.worker):
                if self.recovery.ready(message.worker, message.attempt):
                    self._places.ready(message.worker, message.address)
                    self.reconfiguration.ready(message.worker)
            case Ready():
                self._effects.append(Send(message.worker, Stop()))  # of a change that was given up
            case Assigned():
                self._places.assigned(message)
            case Pushed() | NoBatch() if message.layout_epoch != self.layout.epoch:
                pass  # of a worker that was lost since then
            case Pushed():
                scores = None if values is None else Scores(values["logits"].numpy(), values["labels"].numpy())
                self.accounting.pushed(message, self._clock.now())
                self.flow.pushed(message, scores, self._clock.now())
                self._shares.pushed(message.worker, self._clock.now())
                self._effects += after_rounds(self.flow.take_ended(), self.layout)
            case NoBatch():
                self.flow.no_batch(message)
            case StageState():
                self._places.told(message.worker, values)
            case Failed() if isinstance(error := failure(message), StaleIncarnation):
                if not self.recovery.was_lost(message.worker):
                    raise error
            case Failed() if message.worker in self.layout.workers:
                raise failure(message)
            case Failed():
                self._effects += self.reconfiguration.lost(message.worker, str(failure(message))) or []
            case _:
                self._observer.warned(f"{sender} sent {type(message).__name__}, which is not for the coordinator")
        return self._go_on()

    def tick(self, now: float, *, is_idle: bool = True) -> list[Effect]:
        """Begin what may begin. PeerLost where somebody was waited for too long; `is_idle`: no message waits."""
        self._pass_to(now)
        self._check_time(is_idle)
        self._effects += self.reconfiguration.check_time(now)
        self._effects += [] if self.is_ending else self.recovery.due(self.layout, now)
        if self.is_training:
            self._send_all(self.flow.go_on(self._clock.now()))
            self.accounting.show(self._clock.now(), now)
        return self._go_on()

    def stop(self, reason: str, now: float) -> list[Effect]:
        """End the job, because somebody asks for it, after what is under way."""
        self._pass_to(now)
        if self.stopped_by is None:
            self.stopped_by = reason
            self.grace.begin(reason, self._now)
        return self._go_on()

    def scale(self, asked: Scale, now: float) -> tuple[list[Effect], CommandReply]:
        self._pass_to(now)
        effects, reply = self.reconfiguration.scale(self.layout, asked, now)
        return [*effects, *self._go_on()], reply

    def worker_lost(self, worker: str, why: str, now: float, *, is_preempted: bool = False) -> list[Effect] | None:
        """Handle the loss of a worker; None where the job cannot go on without it."""
        self._pass_to(now)
        effects = self.reconfiguration.lost(worker, why)
        effects = self._lose(worker, why, is_preempted=is_preempted) if effects is None else effects
        return None if effects is None else [*effects, *self._go_on()]

    def leave_servers(self, *, moves: bool) -> None:
        """Save what servers have, because one will end soon; and go on with others, if it `moves`."""
        self.progress.save_soon()
        if moves and not self.is_ending:
            self.reconfiguration.move()

    def answered(self, now: float) -> list[Effect]:
        """Go on: what was asked for last is done. After Save it is kept, so that all may change while it is written."""
        self._pass_to(now)
        self._is_answered = True
        return self._go_on()

    def saved(self, error: StorageError | None, now: float) -> list[Effect]:
        """Take the outcome of a Save, perhaps long after its answer. Training goes on when a checkpoint fails."""
        self._pass_to(now)
        self._save_error, self.is_saving = error, False
        if error is not None and not self.is_ending and self.reconfiguration.replanned is None:
            self._observer.warned(f"the checkpoint at {self._saved_at:,} samples failed, training goes on. {error}")
        return self._go_on()

    def follow(self, every_s: float, now: float) -> list[Effect]:
        """Make a version of the model every `every_s` seconds, for a program that uses it while it trains."""
        self._pass_to(now)
        self.following.ask(every_s, self._now)
        return self._go_on()

    def published(self, error: str | None, now: float) -> list[Effect]:
        """Take the answer to Publish; an `error` is one that nobody was told of yet."""
        self._pass_to(now)
        if error is not None:
            self._observer.warned(f"no version for followers at {self.progress.samples:,} samples. {error}")
        self.following.end(self.clock, self._now)
        return self.answered(now)

    def validated(self, metrics: Metrics | None, now: float) -> list[Effect]:
        """Take the answer to Validate; None if it was interrupted."""
        self._metrics = metrics
        return self.answered(now)

    # --- the walk ----------------------------------------------------------------------------------------------------

    def _go_on(self) -> list[Effect]:
        """Take the walk as far as it goes, and return what is to be done."""
        if self.is_training:
            self._effects += after_steps(self.flow.steps, self._clock.now(), journals=self._setup.journals)
            self._effects += map(Measured, self.accounting.account(self.flow, self._clock.now()))
            is_due = self.progress.save_is_due or self.progress.validation_is_due or self._shares.wants_cut(self.layout)
            is_due = is_due or self.following.is_due(self.clock, self._now)
            wants_cut = (self.reconfiguration.is_ready or is_due) and not self.recovery.num_lost
            if (wants_cut or self.stopped_by or self.recovery.is_ready) and not self.flow.is_held:
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
        missing = partial(self._places.missing, self.layout)
        late = partial(not_ready, missing)
        yield Wait(lambda: not missing() or self.stopped_by is not None, start_s, late, self._now)  # [1]
        if self.stopped_by is None and not self.has_stopped_early:
            yield from self._assign_all(self.layout)
            self.flow.layout = self.layout  # a later epoch, if somebody was lost meanwhile
            if self._setup.resumed is not None:
                self._repeat_round()
            yield from self._train()
            if self.reconfiguration.replanned is not None:
                return
        self.is_ending = True
        self._effects += self.reconfiguration.end()
        validates = self.stopped_by is None or self._job.validation.on_stop
        if validates and self.progress.samples and not self.progress.is_validated:
            yield from self._validate()
        if self.stopped_by is None and self.progress.samples > self.progress.interval_started:
            self._effects.append(Measured(self.accounting.close_interval(self.flow)))
        yield self._until_saved
        if not self.progress.is_saved or self._save_error is not None:
            yield from self._save()
            yield self._until_saved
        if self._save_error is not None:
            raise self._save_error
        if self.following.is_behind(self.clock, self._now):
            yield from self._publish()
        self._effects += [Send(worker, Stop()) for worker in self.layout.workers]  # [5]

    def _train(self) -> Walk:
        """[3] [4] Train until all batches are done, a stop is asked for, or all is saved for another plan."""
        while self.stopped_by is None or not self.flow.is_quiet:
            if self.recovery.num_lost:  # while nothing was under way
                yield from self._recover()
            self._clock.resume()
            self.silence.broken(self.layout.workers, self._now)
            self.flow.hold_at = self.progress.hold_at
            self._send_all(self.flow.start(self._clock.now()))
            self.is_training = True
            yield Wait(lambda: self.flow.is_over or (self.flow.is_at_cut and self.recovery.is_complete))
            self.is_training = False
            self._clock.pause()
            if self.recovery.is_ready:
                yield from self._recover()
                continue
            if self.flow.is_over or self.stopped_by is not None:
                break
            layout = self.reconfiguration.take_layout()
            if (layout := layout or self._shares.take_layout(self.layout, self.reconfiguration.busy)) is not None:
                yield from self._follow(layout)
            if self.progress.validation_is_due:
                yield from self._validate()
                if self.progress.is_out_of_patience:
                    self.has_stopped_early = True
                    break
            is_to_keep = self.progress.is_best and self._job.validation.keep_best
            if self.progress.save_is_due or is_to_keep or self.reconfiguration.replanned is not None:
                yield from self._save()
            if self.reconfiguration.replanned is not None:
                yield self._until_saved
                if self._save_error is not None:
                    self.reconfiguration.give_up_replan(f"it could not be saved. {self._save_error}")
            if self.reconfiguration.replanned is not None:
                return
            if self.following.is_due(self.clock, self._now):
                yield from self._publish()
        self.reconfiguration.replanned = None  # it comes too late

    def _assign_all(self, layout: Layout) -> Walk:
        """[2] Let every worker take its place in `layout`; workers that were missing are back then."""
        self.layout = layout  # what is asked for from now on builds on it
        self.layout = yield from self._places.assign(layout)
        if self.recovery.num_lost:
            self.progress.recoveries += self.recovery.num_lost
            self._observer.changed(f"{self.recovery.end(self._now)}, at {self.progress.samples:,} samples")

    def _recover(self) -> Walk:
        """Give all workers their places again, and repeat what lost workers took part in. Nothing else is under way."""
        yield from self._assign_all(next_epoch(self.layout))
        self._repeat_round()
        self.flow.recover(self.layout, self._clock.now())

    def _repeat_round(self) -> None:
        """Repeat a round: servers have applied nothing of several workers' yet, and a single one's they apply once."""
        if isinstance(self.flow, RoundFlow) and len(self.layout.workers) > 1:
            self._effects.append(DropRound(self.flow.round))

    def _follow(self, layout: Layout) -> Walk:
        """Use the workers of `layout` from this cut on."""
        before = self.layout
        self.layout = structs.replace(layout, epoch=before.epoch + 1)
        yield from self._places.collect_state(before)
        yield from self._assign_all(self.layout)
        self.flow.change(self.layout, self._clock.now())
        self.accounting.follow(self.layout)
        for worker in before.workers:
            if worker not in layout.workers:
                self._effects += [Send(worker, Stop()), StopWorker(worker)]
                self._places.left(worker)
        self._observer.changed(f"{layout} from {self.progress.samples:,} samples on")

    def _validate(self) -> Walk:
        """Validate, and end the interval, so that its line of metrics.jsonl has the validation."""
        yield from self._ask(Validate())
        if self._metrics is not None:
            found = self.progress.validated(self._metrics, self.clock)
            self._effects.append(Measured({**self.accounting.close_interval(self.flow), "validation": found}))

    def _save(self) -> Walk:
        """Begin a checkpoint of this cut; first the one before must be written."""
        yield self._until_saved
        self._save_error, self.is_saving, self._saved_at = None, True, self.progress.samples
        yield from self._ask(Save())
        self.progress.saved()

    def _publish(self) -> Walk:
        self.following.begin(self._now)
        yield from self._ask(Publish())

    def _ask(self, effect: Effect) -> Walk:
        """Have something done with the model as it is, and wait until it is done."""
        yield from self._places.collect_state(self.layout)
        self._is_answered = False
        self._effects.append(effect)
        yield Wait(lambda: self._is_answered)

    def _lose(self, worker: str, why: str, *, is_preempted: bool = False) -> Effects | None:
        """Go on without a worker until it is replaced, or for good at the end. None where that cannot be."""
        if self.is_ending:
            return None if self._state.is_any else self.recovery.let_go(worker, why)
        why += "" if is_preempted else self.silence.last_word(worker, self._now)
        effects = self.recovery.lose(worker, why, self.layout, self._now, is_preempted=is_preempted)
        if effects is not None:
            self._places.left(worker)
        if effects is not None and self.is_training:
            effects += self.recovery.void(self.flow, worker, self.layout, self._clock.now())
        return effects

    def _pass_to(self, now: float) -> None:
        """Advance the time, which never goes back, though an event may be older than what was done meanwhile."""
        self._now = max(self._now, now)

    def _send_all(self, messages: Sequence[tuple[str, Any]]) -> None:
        workers = [worker for worker, _ in messages]
        self._shares.went(workers, self._clock.now())
        self.silence.broken(workers, self._now)
        self._effects += go_aheads(messages, journals=self._setup.journals)

    def _check_time(self, is_idle: bool) -> None:
        self.grace.check(self._now)
        self._wait.check(self._now)
        owing = self.flow.waited_for if self.is_training else ()
        silent = self.silence.too_long(owing, self._now, is_idle=is_idle)
        why = too_silent(silent, self.silence.deadline_s, self.clock)
        for worker in silent:
            if (effects := self._lose(worker, why)) is None:
                raise PeerLost(why)
            self._effects += effects
