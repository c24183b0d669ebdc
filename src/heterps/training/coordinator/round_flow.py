"""RoundFlow: BSP. A round is a batch, in which every worker has its lanes' micro-batches; then all go on together.

round 7      worker-1.0  |== Pushed    |            the policy of a stage lets its workers go on when all of them
             worker-1.1  |===== Pushed |            have pushed; they do, with the next batch, when the round is
             worker-2.0  |=== Pushed   |            over at every stage

When a worker dies, the round under way is void: nothing of it is in any table yet. It is repeated when all are there.
A round in which a worker found a loss or gradient that is not finite is void too: its batch is skipped, and the next
batch takes its number.
"""

from __future__ import annotations

from collections.abc import Mapping

from heterps.training.coordinator.flow import EndedRound, Flow, Outgoing, Step
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import ALL_LANES, Go, NoBatch, Pushed
from heterps.training.protocol.stage_tables import Stages
from heterps.training.run.progress import Scores

LEASED_BY = "round"


class RoundFlow(Flow):
    def _begin(self) -> None:
        self.round = 1  # that runs, or is the next to run
        self.lease: tuple[int, int] | None = None  # epoch and number of the batch of the round that runs
        self._ended: list[EndedRound] = []
        self._released: list[str] = []
        self._sent_for_nothing: list[str] = []
        self._pushed: dict[str, Pushed] = {}
        self._scores: dict[str, Scores] = {}
        self._lacks_worker = self._is_repeated = False

    def start(self, now: float) -> Outgoing:
        self.is_held = False
        self._released = list(self.layout.workers)
        if self.lease is not None:  # of a round that is repeated
            self._sent_for_nothing, self._released = self._released, []
        return self.go_on(now)

    def lose(self, worker: str, now: float) -> tuple[int, ...]:  # noqa: ARG002
        self._lacks_worker, self._is_repeated = True, self.lease is not None
        self._pushed, self._scores, self._sent_for_nothing = {}, {}, []
        for policy in self.policies.values():
            for waiting in policy.waiting:  # it pushes this round again
                policy.on_leave(waiting, now)
                policy.on_join(waiting, now)
        return (ALL_LANES,)

    def recover(self, layout: Layout, now: float) -> None:  # noqa: ARG002
        self.layout, self._lacks_worker = layout, False

    def resume(self, iterations: Mapping[int, int], under_way: Mapping[int, Go]) -> None:
        self.round = iterations.get(ALL_LANES, 0) + 1
        if (go := under_way.get(ALL_LANES)) is not None:
            self.round, self.lease, self._is_repeated = go.iteration, (go.epoch, go.batch), True

    def pushed(self, message: Pushed, scores: Scores | None, now: float) -> None:
        if self._lacks_worker:
            return
        if message.iteration != self.round or message.worker in self._pushed:
            raise ValueError(f"{message.worker} pushed round {message.iteration} out of turn; this is {self.round}")
        self._pushed[message.worker] = message
        if scores is not None:
            self._scores[message.worker] = scores
        group = next(g for g in self.groups if self.layout.stage_of(message.worker) in g)
        self._released += self.policies[group].on_push(message.worker, now)
        if len(self._pushed) == len(self.layout.workers):
            self._finish()

    def take_ended(self) -> list[EndedRound]:
        ended, self._ended = self._ended, []
        return ended

    def no_batch(self, message: NoBatch) -> None:
        self.leases.end_of_epoch(message.epoch, message.num_batches)
        if self.lease is not None and self.lease[0] == message.epoch:
            self.lease = None
        self._sent_for_nothing.append(message.worker)

    def go_on(self, now: float) -> Outgoing:  # noqa: ARG002
        if self._lacks_worker:
            return []
        if self._sent_for_nothing:  # others of the round have begun
            workers, self._sent_for_nothing = self._sent_for_nothing, []
            return self._go(workers)
        if self.is_held or self._pushed or self.lease is not None:
            return []
        released, self._released = self._released, []
        return self._go(released)

    def change(self, layout: Layout, now: float) -> None:
        before, self.layout = self.layout, layout
        for group, policy in self.policies.items():
            members = self._members(group)
            for worker in members:
                if worker not in before.workers:
                    policy.on_join(worker, now)
            for worker in [w for w in policy.clocks.of if w not in members]:
                policy.on_leave(worker, now)

    @property
    def is_quiet(self) -> bool:
        return self._lacks_worker or (self.lease is None and not self._sent_for_nothing)

    @property
    def waited_for(self) -> list[str]:
        return [] if self.is_quiet else [w for w in self.layout.workers if w not in self._pushed]

    def _finish(self) -> None:
        num_samples = next(iter(self._pushed.values())).num_samples
        assert self.lease is not None
        self.leases.done(LEASED_BY, *self.lease)
        skipped = self._skipped((self._pushed[worker] for worker in self.layout.workers), self.lease)
        self.lease = None
        loss = sum(message.loss for message in self._pushed.values())
        scores = tuple(self._scores[worker] for worker in self.layout.workers if worker in self._scores)
        self._done(Step(num_samples, loss, scores, 0, self._is_repeated, ALL_LANES, self.round, skipped))
        self._ended.append(EndedRound(self.round, skipped is not None, self._is_repeated))
        self._pushed, self._scores, self._is_repeated = {}, {}, False
        self.round += skipped is None

    def _go(self, workers: list[str] | tuple[str, ...]) -> Outgoing:
        """Return the go-aheads of a round that begins now; none where no batch is left for it."""
        if self.lease is None:
            self.lease = self.leases.take(LEASED_BY)
        if self.lease is None:
            return []
        return [(worker, Go(ALL_LANES, self.round, self.samples, *self.lease)) for worker in workers]

    def _members(self, group: Stages) -> list[str]:
        return [worker for stage in group for worker in self.layout.stages[stage].workers]
