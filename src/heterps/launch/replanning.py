"""Replanning: is there a better plan for the samples that are left, at other prices, limits or throughput?

run folder: job, profile   cluster: the job's, or new,   the running job:      [1] bill of what runs, for what is left
                           with single prices and limits  samples, workers     [2] the planner's plan for what is left
                                                                               [3] another, and cheaper, or what runs
                                                                                   cannot stay --> files in the run
                                                                                   folder, and Replan to the job
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import heterps.planning as planning
from heterps.config import Cluster, Job, load_cluster, load_job
from heterps.errors import ConfigError, PlanInfeasible, RunError
from heterps.planning.plan import Plan, check_plan, load_plan
from heterps.profiling.profile import Profile, load_profile
from heterps.training.protocol.emulation import lacks_devices
from heterps.training.run.commands import Replan
from heterps.training.run.control import Found
from heterps.training.run.folder import Run
from heterps.yamlfile import dump_yaml, validate

FIRST_PLAN = "plan-1.json"
CHEAPER = 1e-6
"""Least relative saving for which a job changes its plan: a smaller one is not worth a checkpoint."""


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


@dataclass(frozen=True)
class Proposal:
    """The plan that runs and a new one. Bills are for the remaining samples; throughput 0 means there is no bill."""

    old: Plan  # with the counts that run now
    new: Plan
    cluster: Cluster
    samples: int  # that are left
    throughput: float | None  # the floor that was planned for
    cannot_stay: str  # why what runs cannot go on as it is; "": it can
    is_given: bool  # the new plan, by the user
    measured: float | None = None  # samples a second of what runs, in the open interval
    left_out: tuple[str, ...] = ()  # resources that were not planned with: this machine has no such device

    @property
    def is_better(self) -> bool:
        """Whether the job should change to the new plan."""
        if _same(self.old, self.new):
            return False
        return self.is_given or bool(self.cannot_stay) or self.new.usd < self.old.usd * (1 - CHEAPER)


def propose(found: Found, status: Mapping[str, Any], wishes: Wishes) -> Proposal:
    """[1] [2] Plans again for the job that was `found` with this `status`.

    Raises PlanInfeasible, ConfigError and RunError.
    """
    job = load_job(found.folder / "job.yaml")
    cluster = new_cluster(job.cluster, wishes)
    left = status["total"] - status["samples"]
    if left <= 0:
        raise RunError(f"{found.folder} has trained on all its samples: there is nothing left to plan for")
    running = load_plan(found.folder / "plan.json")
    counts = [stage["workers"] for stage in status["stages"]]
    stages = tuple(s.model_copy(update={"count": n}) for s, n in zip(running.stages, counts, strict=True))
    running = running.model_copy(update={"stages": stages})
    profile = _profile(job, found, wishes)
    old = _billed(running, profile, cluster, left)
    floor = wishes.throughput or _first_throughput(found.folder, profile, cluster, left) or old.throughput or None
    cannot_stay = _cannot_stay(old, cluster, floor)
    measured = min((stage.get("samples_per_s") or 0.0 for stage in status["stages"]), default=0.0) or None
    if wishes.plan is not None:
        given = load_plan(wishes.plan)
        layers = running.layers or given.layers
        if layers is not None:
            check_plan(given, layers, job.data.batch_size, cluster, where=str(wishes.plan))
        new = _billed(given, profile, cluster, left)
        return Proposal(old, new, cluster, left, floor, cannot_stay, True, measured)
    assert profile is not None
    if floor is None:
        raise ConfigError("what runs cannot be billed with this cluster: say with --throughput how fast to be")
    left_out = lacks_devices(job.model_copy(update={"cluster": cluster}), cluster.resources)
    here = new_cluster(cluster, Wishes(limits=dict.fromkeys(left_out, 0)))
    try:
        new = planning.plan(
            profile,
            here,
            throughput=floor,
            samples=left,
            method=wishes.method,
            seed=wishes.seed,
            cost="real" if running.rented is not None or cluster.has_facts else "paper",
            sync=running.sync,
        )
    except PlanInfeasible as error:
        if not left_out:
            raise
        raise PlanInfeasible(
            f"{error} Not planned with, because this machine has no such device: {', '.join(left_out)}."
        ) from error
    return Proposal(old, new, cluster, left, floor, cannot_stay, False, measured, tuple(left_out))


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
    path = wishes.profile or (found.directory / job.profile if job.profile is not None else None)
    if path is not None:
        return load_profile(path).at_batch_size(job.data.batch_size)
    if wishes.plan is not None:
        return None
    raise ConfigError(
        f"{found.folder}: its job names no profile, and a plan is made from one. Make it with `heterps profile "
        f"{found.folder / 'job.yaml'} --out profile.json` and name it with --profile; or give a plan with --plan"
    )


def _billed(plan: Plan, profile: Profile | None, cluster: Cluster, samples: int) -> Plan:
    """The plan with its bill for that many samples at these prices, whether it is within the limits or not."""
    from heterps.config.policy_words import parse_policy
    from heterps.planning.bill import bill
    from heterps.planning.cost import Problem
    from heterps.planning.real import Conditions

    unknown = {"throughput": 0.0, "hours": 0.0, "usd": 0.0, "bottleneck": "not predicted"}
    if profile is None or not set(plan.units) <= set(cluster.resources):
        return plan.model_copy(update=unknown)
    limits = {name: max(resource.limit, plan.units.get(name, 0)) for name, resource in cluster.resources.items()}
    roomy = new_cluster(cluster, Wishes(limits=limits))
    policy = parse_policy(plan.sync) if plan.sync is not None else None
    conditions = Conditions(policy) if plan.rented is not None or cluster.has_facts else None
    problem = Problem(profile, roomy, throughput=1.0, samples=samples, conditions=conditions)
    if problem.num_layers != plan.stages[-1].last + 1:
        raise ConfigError(
            f"the profile of {profile.model!r} has {problem.num_layers} layers and the plan has "
            f"{plan.stages[-1].last + 1}: it is of another model"
        )
    predicted = bill(problem, plan.stages, max(plan.servers.count, 1))
    figures: dict[str, Any] = {"throughput": predicted.throughput, "hours": predicted.hours, "usd": predicted.usd}
    figures |= {"rented": predicted.rented, "lanes": predicted.lanes}
    return plan.model_copy(update=figures | {"bottleneck": predicted.bottleneck, "gap": None, "optimal_usd": None})


def _first_throughput(folder: Path, profile: Profile | None, cluster: Cluster, samples: int) -> float:
    """The throughput of the run's first plan: a faster plan must not become the least that is wanted later."""
    path = folder / FIRST_PLAN
    first = load_plan(path if path.exists() else folder / "plan.json")
    return _billed(first, profile, cluster, samples).throughput or first.throughput


def _cannot_stay(plan: Plan, cluster: Cluster, floor: float | None) -> str:
    for name, count in plan.units.items():
        if name not in cluster.resources:
            return f"the cluster has no {name!r} any more"
        if count > (limit := cluster.most_units(name)):
            return f"it has {count} units of {name!r}, and the limit is {limit}"
    if plan.is_predicted and floor is not None and plan.throughput < floor * (1 - CHEAPER):
        return f"it is predicted to do {plan.throughput:,.0f} samples/s, and {floor:,.0f} are wanted"
    return ""


def _same(one: Plan, other: Plan) -> bool:
    return (one.stages, max(one.servers.count, 1)) == (other.stages, max(other.servers.count, 1))
