"""LaneFlow: ASP, SSP, DSSP. A lane computes a batch, pushes it stage by stage, and asks whether it may start the next.

lane 0   |==== batch 0 ====|==== batch 2 ====| wait |== ...     a batch is pushed by the last stage first, by stage
lane 1   |==== batch 1 ==========================|== ...        0 last; the lane starts its next when the policies
                                                                of all stages have said so

When a worker dies, the lanes that pass it leave the policies, so that nobody waits for them. When it is back they join
again, each with the iteration that was under way, which servers apply as far as they have not applied it before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from heterps.sync import Staleness
from heterps.training.coordinator.flow import Flow, Outgoing, Step
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import Go, NoBatch, Pushed
from heterps.training.protocol.stage_tables import Stages
from heterps.training.run.progress import Scores


@dataclass
class _Lane:
    iteration: int = 0  # the last one started; numbers go on where a lane leaves and comes again
    lease: tuple[int, int] | None = None  # epoch and number of the batch that is under way
    worker: str = ""  # that has the lease
    released: set[Stages] = field(default_factory=set)
    """Groups whose policy lets the lane start another iteration."""
    pushed: dict[int, Pushed] = field(default_factory=dict)  # by stage
    scores: tuple[Scores, ...] = ()
    staleness: int = 0
    lacks_worker: bool = False
    is_repeated: bool = False


class LaneFlow(Flow):
    def _begin(self) -> None:
        self._lanes = {lane: _Lane(released=set(self.groups)) for lane in range(self.layout.num_lanes)}
        self.staleness = Staleness()
        self._last_iterations: dict[int, int] = {}  # of lanes that have left
        self._to_repeat: list[int] = []

    def start(self, now: float) -> Outgoing:
        self.is_held = False
        return self.go_on(now)

    def pushed(self, message: Pushed, scores: Scores | None, now: float) -> None:
        lane, stage = self._lanes[message.lane], self.layout.stage_of(message.worker)
        if lane.lacks_worker:
            return
        if lane.lease is None or message.iteration != lane.iteration or stage in lane.pushed:
            raise ValueError(
                f"{message.worker} pushed iteration {message.iteration} of lane {message.lane} out of turn"
            )
        lane.pushed[stage] = message
        lane.scores += (scores,) if scores is not None else ()
        group = next(g for g in self.groups if stage in g)
        if all(other in lane.pushed for other in group):
            if group == self.groups[0]:
                lane.staleness = self.staleness.pushed(_member(message.lane))
            self._release(group, self.policies[group].on_push(_member(message.lane), now))
        if len(lane.pushed) == len(self.layout.stages):
            self._finish(lane)

    def no_batch(self, message: NoBatch) -> None:
        lane = self._lanes[message.lane]
        self.leases.end_of_epoch(message.epoch, message.num_batches)
        lane.lease, lane.is_repeated = None, False
        lane.iteration -= 1  # it was not started
        lane.released = set(self.groups)

    def change(self, layout: Layout, now: float) -> None:
        gone = [worker for worker in self.layout.stages[0].workers if worker not in layout.stages[0].workers]
        for worker in gone:
            self.leases.give_back(worker)  # the rest of its run: nothing else is out
        self.layout = layout
        for number in range(layout.num_lanes):
            if number not in self._lanes:
                self._lanes[number] = _Lane(self._last_iterations.get(number, 0))
                self._join(number, now)
        for number in [n for n in self._lanes if n >= layout.num_lanes]:
            self._leave(number, now)

    def lose(self, worker: str, now: float) -> tuple[int, ...]:
        stages = range(len(self.layout.stages))
        lost = [n for n in self._lanes if worker in {self.layout.worker_of(n, stage) for stage in stages}]
        for number in lost:
            lane = self._lanes[number]
            if not lane.lacks_worker:
                lane.lacks_worker, lane.is_repeated = True, lane.lease is not None
                lane.released, lane.pushed, lane.scores = set(), {}, ()
                self._leave_policies(number, now)
        return tuple(lost)

    def recover(self, layout: Layout, now: float) -> None:
        self.layout = layout
        for number, lane in self._lanes.items():
            if lane.lacks_worker:
                lane.lacks_worker = False
                self._join(number, now)
                if lane.lease is not None:
                    lane.released = set()
                    self._to_repeat.append(number)

    def resume(self, iterations: Mapping[int, int], under_way: Mapping[int, Go]) -> None:
        self._last_iterations = dict(iterations)
        for number, lane in self._lanes.items():
            lane.iteration = iterations.get(number, 0)
            if (go := under_way.get(number)) is not None:
                lane.lease, lane.worker = (go.epoch, go.batch), self.layout.worker_of(number, 0)
                lane.is_repeated, lane.released = True, set()
                self._to_repeat.append(number)

    @property
    def is_quiet(self) -> bool:
        return all(lane.lease is None or lane.lacks_worker for lane in self._lanes.values())

    @property
    def waited_for(self) -> list[str]:
        late = {
            self.layout.worker_of(number, stage)
            for number, lane in self._lanes.items()
            if lane.lease is not None and not lane.lacks_worker
            for stage in range(len(self.layout.stages))
            if stage not in lane.pushed
        }
        return sorted(late)

    def _finish(self, lane: _Lane) -> None:
        assert lane.lease is not None
        last = lane.pushed[len(self.layout.stages) - 1]
        self.leases.done(lane.worker, *lane.lease)
        skipped = self._skipped(lane.pushed.values(), lane.lease)
        of = last.lane, last.iteration, skipped
        self._done(Step(last.num_samples, last.loss, lane.scores, lane.staleness, lane.is_repeated, *of))
        lane.lease, lane.pushed, lane.scores, lane.is_repeated = None, {}, (), False

    def go_on(self, now: float) -> Outgoing:
        """Give the next batch to every lane that may start. Lanes for which none is left leave, so that none waits for
        them."""
        if self.is_held:
            return []
        to_repeat, self._to_repeat = self._to_repeat, []
        messages: Outgoing = [self._go(number) for number in to_repeat]
        while ready := [n for n, lane in self._lanes.items() if self._may_start(lane)]:
            for number in ready:
                lane = self._lanes[number]
                lane.worker = self.layout.worker_of(number, 0)
                lane.lease = self.leases.take(lane.worker)
                if lane.lease is None:
                    self._leave(number, now)
                    continue
                lane.iteration += 1
                lane.released = set()
                messages.append(self._go(number))
        return messages

    def _go(self, number: int) -> tuple[str, Go]:
        lane = self._lanes[number]
        assert lane.lease is not None
        self.staleness.pulled(_member(number))
        lead = max(policy.lead(_member(number)) for policy in self.policies.values())
        next_run = self.leases.next_run(lane.worker, *lane.lease)
        return lane.worker, Go(number, lane.iteration, self.samples, *lane.lease, lead, next_run)

    def _may_start(self, lane: _Lane) -> bool:
        return lane.lease is None and not lane.lacks_worker and len(lane.released) == len(self.groups)

    def _join(self, number: int, now: float) -> None:
        for group, policy in self.policies.items():
            self._release(group, policy.on_join(_member(number), now))

    def _leave(self, number: int, now: float) -> None:
        self._last_iterations[number] = self._lanes.pop(number).iteration
        self._leave_policies(number, now)

    def _leave_policies(self, number: int, now: float) -> None:
        for group, policy in self.policies.items():
            self._release(group, policy.on_leave(_member(number), now))

    def _release(self, group: Stages, members: Iterable[str]) -> None:
        for member in members:
            self._lanes[_number(member)].released.add(group)

    def _members(self, group: Stages) -> list[str]:  # noqa: ARG002
        return [_member(lane) for lane in range(self.layout.num_lanes)]


def _member(lane: int) -> str:
    return f"lane-{lane}"


def _number(member: str) -> int:
    return int(member.removeprefix("lane-"))
