"""Replanning: is there a better plan for the samples that are left, at other prices, limits or throughput?

run folder: job, profile   cluster: the job's, or new,   the running job:      [1] the profile as what runs corrects it
                           with single prices and limits  samples, workers,    [2] bill of what runs, for what is left
                                                          measured rates       [3] the planner's plan for what is left
                                                                               [4] another, and cheaper, or what runs
                                                                                   cannot stay --> files in the run
                                                                                   folder, and Replan to the job

Both bills rest on [1]: what each running stage measures replaces the costs of its layers, and the whole run's rate over
that of its slowest station is what any plan is expected to reach (`Profile.reached`). Without measurements yet, both
rest on the profile as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from heterps.config import Cluster, Job, load_cluster, load_job
from heterps.errors import ConfigError, PlanInfeasible, RunError
from heterps.planning.api import CostModel, make_problem, plan
from heterps.planning.correct import correct
from heterps.planning.cost import Problem
from heterps.planning.plan import Plan, check_plan, load_plan
from heterps.planning.trial import trial_of_run
from heterps.profiling.profile import Profile, ProfiledJob, load_profile
from heterps.training.protocol.emulation import lacks_devices
from heterps.training.run.commands import Replan
from heterps.training.run.control import Found
from heterps.training.run.folder import Run
from heterps.yamlfile import dump_yaml, validate

FIRST_PLAN = "plan-1.json"
CHEAPER = 1e-6
"""Least relative saving for which a job changes its plan: a smaller one is not worth a checkpoint."""
PASSES = 5
"""Number of corrections by what runs: each changes a stage by a factor of 4 at most (planning/correct.py)."""


@dataclass(frozen=True)
class Wishes:
    """What has changed since the job began. None: unchanged."""

    cluster: Path | None = None
    prices: Mapping[str, float] | None = None
    limits: Mapping[str, int] | None = None
    throughput: float | None = None  # None: what the run's first plan is predicted to do
    plan: Path | None = None  # a plan that was made elsewhere: taken as it is
    profile: Path | None = None
    method: str = "exact"
    seed: int = 0


class Left(NamedTuple):
    """Samples that are left to train on, and those of a whole pass over the data, by which tables grow."""

    samples: int
    of_pass: int

    @property
    def passes(self) -> float:
        return self.samples / self.of_pass


@dataclass(frozen=True)
class Proposal:
    """The plan that runs and a new one. Bills are for the remaining samples; throughput 0 means there is no bill.

    Where what runs is measured, bills are by the profile as corrected by that, and `by_profile` has those by the
    profile alone, of the old and the new plan.
    """

    old: Plan  # with the counts that run now
    new: Plan
    cluster: Cluster
    samples: int  # that are left
    throughput: float | None  # the floor that was planned for
    cannot_stay: str  # why what runs cannot go on as it is; "": it can
    is_given: bool  # the new plan, by the user
    measured: float | None = None  # samples a second of what runs, in the open interval
    left_out: tuple[str, ...] = ()  # resources that were not planned with: this machine has no such device
    by_profile: tuple[Plan, Plan] | None = None

    @property
    def basis(self) -> str:
        """What both bills rest on, as the end of a sentence."""
        return "as predicted" if self.by_profile is None else "by what is measured"

    @property
    def is_better(self) -> bool:
        """Whether the job should change to the new plan."""
        if _same(self.old, self.new):
            return False
        return self.is_given or bool(self.cannot_stay) or self.new.usd < self.old.usd * (1 - CHEAPER)


def propose(found: Found, status: Mapping[str, Any], wishes: Wishes) -> Proposal:
    """[1] [2] [3] Plans again for the job that was `found` with this `status`.

    Raises PlanInfeasible, ConfigError and RunError.
    """
    job = load_job(found.folder / "job.yaml")
    cluster = new_cluster(job.cluster, wishes)
    left = Left(status["total"] - status["samples"], status["total"] // job.data.epochs)
    if left.samples <= 0:
        raise RunError(f"{found.folder} has trained on all its samples: there is nothing left to plan for")
    running = load_plan(found.folder / "plan.json")
    counts = [stage["workers"] for stage in status["stages"]]
    stages = tuple(s.model_copy(update={"count": n}) for s, n in zip(running.stages, counts, strict=True))
    running = running.model_copy(update={"stages": stages})
    told = _profile(job, found, wishes)
    as_told = _billed(running, told, cluster, left)
    measured = _measured(found.folder, status)
    profile = told
    if told is not None and measured is not None:
        profile = _corrected(told, job.cluster, running, *measured, is_emulated="emulated" in status)
    old = _billed(running, profile, cluster, left)
    floor = wishes.throughput or _first_throughput(found.folder, profile, cluster, left) or old.throughput or None
    proposal = Proposal(
        old, old, cluster, left.samples, floor, _cannot_stay(old, cluster, floor),
        is_given=wishes.plan is not None, measured=None if measured is None else measured[0],
    )  # fmt: skip
    if wishes.plan is not None:
        new = load_plan(wishes.plan)
        layers = running.layers or new.layers
        if layers is not None:
            check_plan(new, layers, job.data.batch_size, cluster, where=str(wishes.plan))
        new = _billed(new, profile, cluster, left)
    else:
        assert profile is not None
        left_out = lacks_devices(job.model_copy(update={"cluster": cluster}), cluster.resources)
        proposal = replace(proposal, left_out=tuple(left_out))
        new = _planned(profile, cluster, running, proposal, left, wishes)
    by_profile = None if profile is told else (as_told, _billed(new, told, cluster, left))
    return replace(proposal, new=new, by_profile=by_profile)


def _planned(profile: Profile, cluster: Cluster, running: Plan, proposal: Proposal, left: Left, wishes: Wishes) -> Plan:
    """[3] The planner's plan for the samples that are left, on what is here."""
    if proposal.throughput is None:
        raise ConfigError("what runs cannot be billed with this cluster: say with --throughput how fast to be")
    here = new_cluster(cluster, Wishes(limits=dict.fromkeys(proposal.left_out, 0)))
    try:
        return plan(
            profile,
            here,
            throughput=proposal.throughput,
            samples=left.of_pass,
            epochs=left.passes,
            method=wishes.method,
            seed=wishes.seed,
            cost=_cost_model(running),
            **running.asked,
        )
    except PlanInfeasible as error:
        if not proposal.left_out:
            raise
        raise PlanInfeasible(
            f"{error} Not planned with, because this machine has no such device: {', '.join(proposal.left_out)}."
        ) from error


def _measured(folder: Path, status: Mapping[str, Any]) -> tuple[float, Sequence[Mapping[str, Any]]] | None:
    """Samples a second of what runs, and what its stages do: in the open interval, or the last one if that is longer.

    None before the first push.
    """
    lines = Run(folder).metrics()[-2:]
    ended = [line["samples"] for line in lines]
    last_began, last_ended = (0, *ended)[-2:] if ended else (0, 0)
    stages = status["stages"]
    if lines and last_ended - last_began > status["samples"] - last_ended and _are_alike(lines[-1]["stages"], stages):
        stages = lines[-1]["stages"]
    rate = min(stage.get("samples_per_s") or 0.0 for stage in stages)
    return (rate, stages) if rate else None


def _are_alike(ones: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether stages have the same workers."""
    return [(one["resource"], one["workers"]) for one in ones] == [(one["resource"], one["workers"]) for one in others]


def _corrected(
    profile: Profile,
    cluster: Cluster,
    plan: Plan,
    throughput: float,
    stages: Sequence[Mapping[str, Any]],
    *,
    is_emulated: bool,
) -> Profile:
    """[1] The profile by which `plan` has the measured throughput, and the measured seconds in each of its stages."""
    if all(stage.get("compute") is not None for stage in stages):
        batch_s = profile.batch_size / throughput
        trial = trial_of_run(plan, profile.batch_size, throughput, stages, 1, batch_s)
        trial = replace(trial, is_emulated=is_emulated)
        for _ in range(PASSES):
            profile = correct(profile, cluster, [trial])
    alone = profile.model_copy(update={"reached": None, "reached_for": None})
    slowest = _billed(plan, alone, cluster, Left(1, 1)).throughput
    if not slowest:
        return profile
    conditions, reached = _problem(plan, alone, cluster, Left(1, 1)).conditions, min(throughput / slowest, 1.0)
    policy = conditions.sync if conditions is not None else None
    reached_for = policy.label if policy is not None else None
    return alone.model_copy(update={"version": 2, "reached": reached, "reached_for": reached_for})


def write_files(folder: Path, proposal: Proposal) -> Replan:
    """[3] Writes the plan and the cluster under the next free number, and keeps the run's first plan as number 1."""
    if not (folder / FIRST_PLAN).exists():
        Run(folder).write(FIRST_PLAN, (folder / "plan.json").read_text(encoding="utf-8"))
    number = 2
    while (folder / f"plan-{number}.json").exists() or (folder / f"cluster-{number}.yaml").exists():
        number += 1
    asked, run = Replan(f"plan-{number}.json", f"cluster-{number}.yaml"), Run(folder)
    assert asked.cluster is not None
    run.write(asked.cluster, dump_yaml(proposal.cluster))
    run.write(asked.plan, proposal.new.model_dump_json(indent=1, exclude_none=True) + "\n")
    return asked


def ask_to_follow(found: Found, proposal: Proposal) -> tuple[Path, str]:
    """[3] Have the job that was `found` go on by the new plan; returns the plan's file and what the job says.

    Raises ConfigError where the job refuses; then no file is left.
    """
    asked = write_files(found.folder, proposal)
    told = found.ask(asked)
    if told.is_error:
        for name in (asked.plan, asked.cluster):
            if name is not None:
                (found.folder / name).unlink(missing_ok=True)
        raise ConfigError(told.text)
    return found.folder / asked.plan, told.text


def new_cluster(cluster: Cluster, wishes: Wishes) -> Cluster:
    """The cluster with other prices and limits of single resources."""
    if wishes.cluster is not None:
        cluster = load_cluster(wishes.cluster)
    fields = cluster.model_dump()
    for option, changes in (("usd_per_hour", wishes.prices or {}), ("limit", wishes.limits or {})):
        for name, value in changes.items():
            if name not in cluster.resources:
                raise ConfigError(f"the cluster has no resource {name!r}: it has {', '.join(cluster.resources)}")
            fields["resources"][name][option] = value
    return validate(fields, Cluster, where="the new cluster")


def _profile(job: Job, found: Found, wishes: Wishes) -> Profile | None:
    """The profile of the running job, with the job as it runs, which may be another than the one that was profiled."""
    path = wishes.profile or (found.directory / job.profile if job.profile is not None else None)
    if path is not None:
        profile = load_profile(path).at_batch_size(job.data.batch_size)
        return profile.model_copy(update={"job": ProfiledJob.of(job)})
    if wishes.plan is not None:
        return None
    raise ConfigError(
        f"{found.folder}: its job names no profile, and a plan is made from one. Make it with `heterps profile "
        f"{found.folder / 'job.yaml'} --out profile.json` and name it with --profile; or give a plan with --plan"
    )


def _billed(plan: Plan, profile: Profile | None, cluster: Cluster, left: Left) -> Plan:
    """The plan with its bill for what is left at these prices, whether it is within the limits or not."""
    from heterps.planning.bill import bill

    unknown = {"throughput": 0.0, "hours": 0.0, "usd": 0.0, "bottleneck": "not predicted"}
    if profile is None or not set(plan.units) <= set(cluster.resources):
        return plan.model_copy(update=unknown)
    problem = _problem(plan, profile, cluster, left)
    if problem.num_layers != plan.stages[-1].last + 1:
        raise ConfigError(
            f"the profile of {profile.model!r} has {problem.num_layers} layers and the plan has "
            f"{plan.stages[-1].last + 1}: it is of another model"
        )
    predicted = bill(problem, plan.stages, max(plan.servers.count, 1))
    figures: dict[str, Any] = {"throughput": predicted.throughput, "hours": predicted.hours, "usd": predicted.usd}
    figures |= {"rented": predicted.rented, "lanes": predicted.lanes}
    return plan.model_copy(update=figures | {"bottleneck": predicted.bottleneck, "gap": None, "optimal_usd": None})


def _problem(plan: Plan, profile: Profile, cluster: Cluster, left: Left) -> Problem:
    """The problem by which a plan is billed, with limits that allow the plan."""
    limits = {name: max(resource.limit, plan.units.get(name, 0)) for name, resource in cluster.resources.items()}
    roomy = new_cluster(cluster, Wishes(limits=limits))
    return make_problem(profile, roomy, 1.0, left.of_pass, left.passes, cost=_cost_model(plan), **plan.asked)


def _cost_model(plan: Plan) -> CostModel:
    """The bill of a plan: that of real machines if it rents some, else what the cluster asks for."""
    return "real" if plan.rented is not None else "auto"


def _first_throughput(folder: Path, profile: Profile | None, cluster: Cluster, left: Left) -> float:
    """The throughput of the run's first plan: a faster plan must not become the least that is wanted later."""
    path = folder / FIRST_PLAN
    first = load_plan(path if path.exists() else folder / "plan.json")
    return _billed(first, profile, cluster, left).throughput or first.throughput


def _cannot_stay(plan: Plan, cluster: Cluster, floor: float | None) -> str:
    for name, count in plan.units.items():
        if name not in cluster.resources:
            return f"the cluster has no {name!r} any more"
        if count > (limit := cluster.most_units(name)):
            return f"it has {count} units of {name!r}, and the limit is {limit}"
    if plan.is_predicted and floor is not None and plan.throughput < floor * (1 - CHEAPER):
        return f"it is expected to do {plan.throughput:,.0f} samples/s, and {floor:,.0f} are wanted"
    return ""


def _same(one: Plan, other: Plan) -> bool:
    return (one.stages, max(one.servers.count, 1)) == (other.stages, max(other.servers.count, 1))
