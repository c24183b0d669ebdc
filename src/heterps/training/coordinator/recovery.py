"""Recovery: workers that died while the others go on, and come back as their next incarnation.

lost --> [1] may it be replaced? --no--> the run ends, or begins again from its last checkpoint (launch/restarts.py)
         [2] what it took part in is void; others go on, and it is started again, after a while if that is not new
         [3] Ready --> the job is held until nothing else is under way, and all workers are assigned their places
         [4] what is void is repeated: servers have dropped it (rounds), or skip what they have applied (lanes)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from heterps.config.workers import Workers
from heterps.errors import PeerLost
from heterps.training.coordinator.flow import Flow
from heterps.training.coordinator.loss_budget import LossBudget
from heterps.training.coordinator.reconfiguration import START_S, Effects, StartWorkers, StopWorker
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import ForgetLanes, Send
from heterps.training.worker.stage_work import WorkerStart


@dataclass
class _Lost:
    since: float
    start_at: float
    attempt: int  # how many times the worker has been lost
    is_started: bool = False
    is_ready: bool = False


class Recovery:
    """`start_of(worker, layout)` says how a worker is started.

    have_state  workers have what servers have not, so that none can be replaced
    """

    def __init__(
        self,
        workers: Workers,
        start_of: Callable[[str, Layout], WorkerStart],
        warn: Callable[[str], None],
        *,
        have_state: bool,
    ) -> None:
        self._start_of, self._warn = start_of, warn
        self._budget = LossBudget(0 if have_state else workers.replacements, workers.backoff_s)
        self._lost: dict[str, _Lost] = {}
        self._attempts: dict[str, int] = {}  # how many times each worker has been lost, by those that have been

    def lose(
        self,
        worker: str,
        why: str,
        layout: Layout,
        now: float,
        *,
        is_preempted: bool = False,
    ) -> Effects | None:
        """[1] A worker of `layout` has died. None where it is not replaced: too many have died within an hour.

        is_preempted  it was told to leave, which is no failure: it does not count
        """
        if self._budget.is_spent(now) and not (is_preempted and self._budget.most):
            return None
        wait_s = 0.0 if is_preempted else self._budget.lose(now)
        since = self._lost[worker].since if worker in self._lost else now
        self._attempts[worker] = self._attempts.get(worker, 0) + 1
        self._lost[worker] = _Lost(since, now + wait_s, self._attempts[worker])
        others_do = "the others wait for it" if layout.in_rounds else "the others go on"
        self._warn(f"{why}. It is replaced, and {others_do if len(layout.workers) > 1 else 'the job goes on'}")
        return [StopWorker(worker, 0.0)]

    def void(self, flow: Flow, worker: str, layout: Layout, clock_s: float) -> Effects:
        """[2] Give up what is under way with a worker that was lost, and tell the others. `clock_s` is of the flow."""
        lanes = flow.lose(worker, clock_s)
        flow.hold_at, flow.is_held = None, False  # no checkpoint before all that is under way can end
        others = [other for other in layout.workers if other not in self._lost] if len(layout.stages) > 1 else []
        return [Send(other, ForgetLanes(lanes, worker)) for other in others]

    def let_go(self, worker: str, why: str) -> Effects:
        """A worker has died after its last batch: nobody needs it any more."""
        self._warn(f"{why}. It had nothing more to do")
        return [StopWorker(worker, 0.0)]

    def is_starting(self, worker: str) -> bool:
        """Whether a worker was lost and is not ready again."""
        return worker in self._lost and not self._lost[worker].is_ready

    def due(self, layout: Layout, now: float) -> Effects:
        """[2] Start workers whose time has come. PeerLost where one has not become ready in time."""
        effects: Effects = []
        for worker, lost in self._lost.items():
            if not lost.is_started and now >= lost.start_at:
                lost.is_started = True
                start = structs.replace(self._start_of(worker, layout), attempt=lost.attempt)
                effects.append(StartWorkers((start,)))
            if not lost.is_ready and now - lost.start_at > START_S:
                raise PeerLost(f"{worker} was lost, and did not start again within {START_S:.0f} s")
        return effects

    def ready(self, worker: str, attempt: int) -> bool:
        """Take a Ready; False where one sent it that has died since, and is not the one that is waited for."""
        if attempt != self._attempts.get(worker, 0):
            return False
        if worker in self._lost:
            self._lost[worker].is_ready = True
        return True

    def was_lost(self, worker: str) -> bool:
        """Whether a worker has been replaced, so that an older incarnation of it may still speak."""
        return worker in self._attempts

    @property
    def num_lost(self) -> int:
        """Number of workers that are missing."""
        return len(self._lost)

    @property
    def is_complete(self) -> bool:
        """Whether no worker is missing, or all that were are ready."""
        return all(lost.is_ready for lost in self._lost.values())

    @property
    def is_ready(self) -> bool:
        """[3] Whether all that were missing are ready."""
        return self.num_lost > 0 and self.is_complete

    def end(self, now: float) -> str:
        """[4] End the recovery, because all workers are back; return who was away for how long."""
        lost, self._lost = self._lost, {}
        return ", ".join(f"{worker} is back after {now - one.since:.1f} s" for worker, one in lost.items())
