"""Reconfiguration: what was asked of a running job, and waits for a cut.

Scale  --> [1] new workers start, beside the job, which goes on as it was
           [2] all are ready --> the job is held, and at the cut they are in its layout, and those that leave are not
           [3] one fails, or is late --> the change is given up, they leave, and the job never noticed
Replan --> [4] the job could go on by it --> the job is held, saved at the cut, and goes on by the new plan
move   --> [5] a server has to leave, and nobody else has its rows --> as [4], by the same plan with other processes

One change is under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import nn

from heterps.config import Job, load_cluster
from heterps.errors import ConfigError, HeterpsError
from heterps.planning.plan import Plan, check_plan, load_plan
from heterps.profiling.profile import load_profile
from heterps.training.coordinator.scaling import check_layout, scaled
from heterps.training.protocol.emulated_units import stage_seconds
from heterps.training.protocol.emulation import lacks_devices
from heterps.training.protocol.layout import Layout, job_layout
from heterps.training.protocol.messages import Send, Stop
from heterps.training.run.commands import CommandReply, Replan, Scale
from heterps.training.worker.stage_work import WorkerStart

START_S = 240.0
"""Seconds in which workers import what they need, compile kernels that no run has compiled yet, and make the model."""
GIVEN_UP_S = 1.0
"""Seconds that a worker of a change that was given up has to leave: the job waits for it."""
STOP_S = 10.0
"""Seconds that a worker has to end by itself."""


class StartWorkers(NamedTuple):
    """An effect: start workers for a change; where that fails, tell `worker_lost` of one of them why."""

    workers: tuple[WorkerStart, ...]


class StopWorker(NamedTuple):
    """An effect: a worker was told to stop; wait until it is gone, by force after `deadline_s`."""

    worker: str
    deadline_s: float = STOP_S


Effects = list[Send | StartWorkers | StopWorker]


@dataclass(frozen=True)
class Replanned:
    """Go on by another plan, with the cluster that is in this job, from the checkpoint that was just made.

    moves  by the same plan, with other processes: some of those before have to leave
    """

    job: Job
    plan: Plan
    moves: bool = False


@dataclass
class _Scaling:
    layout: Layout
    what: str
    missing: set[str]  # workers that are not ready
    joining: tuple[str, ...]
    begun_at: float


class Reconfiguration:
    """`start_of(worker, layout)` says how a worker is started, `check(layout)` refuses one that the job cannot have."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        start_of: Callable[[str, Layout], WorkerStart],
        check: Callable[[Layout], None],
        warn: Callable[[str], None],
    ) -> None:
        self._job, self._plan, self._start_of, self._check, self._warn = job, plan, start_of, check, warn
        self._num_named = [stage.count for stage in plan.stages]  # a name is given once, whoever leaves
        self._scaling: _Scaling | None = None
        self.replanned: Replanned | None = None
        self.last = ""
        """What came of the last change."""

    # --- asked for ---------------------------------------------------------------------------------------------------

    def scale(self, layout: Layout, asked: Scale, now: float) -> tuple[Effects, CommandReply]:
        """[1] Start what is missing of a stage of the running `layout`."""
        if (busy := self.busy) is not None:
            return [], busy
        try:
            wanted = self._scaled(layout, asked)
        except ConfigError as error:
            return [], CommandReply(str(error), is_error=True)
        stage = asked.stage + 1
        before = len(layout.stages[asked.stage].workers)
        if asked.count == before:
            return [], CommandReply(f"stage {stage} has {_workers(before)} already: nothing changes")
        joining = tuple(worker for worker in wanted.workers if worker not in layout.workers)
        what = f"stage {stage} from {before} to {_workers(asked.count)}"
        self._num_named[asked.stage] += len(joining)
        self._scaling = _Scaling(wanted, what, set(joining), joining, now)
        if not joining:
            return [], CommandReply(f"{what}: {before - asked.count} leave after the running step")
        start = StartWorkers(tuple(self._start_of(worker, wanted) for worker in joining))
        text = f"{what}: {len(joining)} start; the job goes on as it was until all of them are ready"
        return [start], CommandReply(text)

    def replan(self, read: Callable[[], Replanned]) -> CommandReply:
        """[4] Go on by the plan that `read` gives, which raises HeterpsError where it cannot be followed."""
        if (busy := self.busy) is not None:
            return busy
        try:
            self.replanned = read()
        except HeterpsError as error:
            return CommandReply(str(error), is_error=True)
        return CommandReply("the job is saved after the running step, and goes on by this plan from there")

    def move(self) -> None:
        """[5] Go on with other processes. Another change that is under way ends, or does the same."""
        self.replanned = self.replanned or Replanned(self._job, self._plan, moves=True)

    def status(self) -> dict[str, str]:
        """Return what `heterps status` shows of changes."""
        return {"change": self.under_way, "last_change": self.last}

    @property
    def under_way(self) -> str:
        """What is being changed, in words; empty where nothing is."""
        if self.replanned is not None:
            return "to other servers" if self.replanned.moves else "to another plan"
        if self._scaling is None:
            return ""
        missing = sorted(self._scaling.missing)
        return self._scaling.what + (f", waits for {', '.join(missing)}" if missing else "")

    # --- heard of ----------------------------------------------------------------------------------------------------

    def expects(self, worker: str) -> bool:
        return self._scaling is not None and worker in self._scaling.joining

    def ready(self, worker: str) -> None:
        if self._scaling is not None:
            self._scaling.missing.discard(worker)

    def lost(self, worker: str, why: str) -> Effects | None:
        """[3] A worker failed or is gone. None if it was none of a change: then the job has lost it."""
        return self._give_up(why) if self.expects(worker) else None

    def check_time(self, now: float) -> Effects:
        """[3] Give a change up whose workers are late."""
        if self._scaling is not None and self._scaling.missing:
            waited_s = now - self._scaling.begun_at
            if waited_s > START_S:
                missing = ", ".join(sorted(self._scaling.missing))
                return self._give_up(f"{missing} did not start within {waited_s:.0f} s")
        return []

    # --- at the cut --------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether a change wants a cut."""
        return self.replanned is not None or (self._scaling is not None and not self._scaling.missing)

    def take_layout(self) -> Layout | None:
        """[2] The layout that the job has from now on, if it changes."""
        if self._scaling is None or self._scaling.missing:
            return None
        scaling, self._scaling = self._scaling, None
        self.last = scaling.what
        return scaling.layout

    def give_up_replan(self, why: str) -> None:
        self.last = f"{self.under_way}: given up, {why}"
        self.replanned = None
        self._warn(f"the job goes on as it was: {why}")

    def end(self) -> Effects:
        """End with the job: what is still under way comes too late."""
        if self._scaling is None:
            return []
        return self._give_up("the job ended before its workers were ready", "")

    # --- small things ------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> CommandReply | None:
        """Return the reply to a command that asks for another change while one is under way."""
        if not (what := self.under_way):
            return None
        return CommandReply(f"another change is under way ({what}): ask again when it is done", is_error=True)

    def _scaled(self, layout: Layout, asked: Scale) -> Layout:
        wanted = scaled(
            self._job,
            layout,
            asked.stage,
            asked.count,
            next_number=self._num_named[asked.stage] if asked.stage < len(self._num_named) else 0,
            servers={self._plan.servers.resource: self._plan.servers.count},
        )
        self._check(wanted)
        return wanted

    def _give_up(self, why: str, then: str = ". The job goes on with the workers that it has") -> Effects:
        assert self._scaling is not None
        scaling, self._scaling = self._scaling, None
        self.last = f"{scaling.what}: given up, {why}"
        self._warn(f"{self.last}{then}")
        told: Effects = [Send(worker, Stop()) for worker in scaling.joining]
        return [*told, *(StopWorker(worker, GIVEN_UP_S) for worker in scaling.joining)]


def read_replan(job: Job, folder: Path, asked: Replan, model: nn.Module, layers: tuple[str, ...]) -> Replanned:
    """The plan and the job with the cluster of a Replan, which names files in the run's folder.

    HeterpsError where the job could not go on by them: it would have to end, and is not asked to.
    """
    for name in (asked.plan, asked.cluster or asked.plan):
        if Path(name).name != name:
            raise ConfigError(f"{name}: a running job takes files of its own run folder only")
    if job.servers is not None and job.servers.addresses:
        raise ConfigError(
            "this job's tables are on servers that were started for its plan (servers.addresses): stop it, start "
            "servers anew, and resume it with --plan"
        )
    path = folder / asked.plan
    plan = load_plan(path)
    new = {"plan": str(path)} | ({"cluster": load_cluster(folder / asked.cluster)} if asked.cluster else {})
    job = job.model_copy(update=new)
    check_plan(plan, layers, job.data.batch_size, job.cluster, where=str(path))
    layout = job_layout(job, plan)
    check_layout(job, layout, model)
    if missing := lacks_devices(job, (stage.resource for stage in plan.stages)):
        raise ConfigError(f"{path}: the plan runs on {', '.join(missing)}, and this machine has no such device")
    if job.emulation is not None and job.profile is not None:
        stage_seconds(load_profile(job.profile), job.cluster, layout)
    return Replanned(job, plan)


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count:,} workers"
