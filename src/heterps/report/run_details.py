"""What a run folder tells besides its job, plan, summary and metrics, as far as it is there: details of the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from heterps.config import Job
from heterps.errors import ConfigError, HeterpsError
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile, load_profile
from heterps.report.observed import ObservedPolicy, read_observed
from heterps.report.worker_times import MOST_BYTES, WorkersOverTime, read_workers
from heterps.training.run.events import read_events
from heterps.training.run.folder import PROFILE, Run

if TYPE_CHECKING:  # its kernels take a while to load
    from heterps.planning.frontier import Frontier


QUICK_S = 2.0
"""How long the end of a run may wait for the frontier in its report."""


@dataclass(frozen=True)
class RunDetails:
    """Details of a run.

    profile   times of its layers; None where they are not known
    policies  what the policies of its last start did, by its traces
    workers   what the workers of its last start did; None where it was not written down
    events    lines of events.jsonl
    frontier  the least cost for other throughputs, by its profile and cluster; None: it is not shown
    problems  sentences about details that cannot be read
    """

    profile: Profile | None = None
    policies: list[ObservedPolicy] = field(default_factory=list)
    workers: WorkersOverTime | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    frontier: Frontier | None = None
    problems: list[str] = field(default_factory=list)


def read_details(run: Run, job: Job, most_bytes: int = MOST_BYTES) -> RunDetails:
    """Read the details of a run, of longer traces than `most_bytes` their ends.

    One that is damaged is left out, and told of: a report does not depend on it.
    """
    problems: list[str] = []
    policies: list[ObservedPolicy] = []
    profile = named_profile(job)
    workers: WorkersOverTime | None = None
    try:
        policies = read_observed(run.folder, most_bytes)
    except (HeterpsError, OSError) as error:
        problems.append(str(error))
    try:
        workers = read_workers(run.folder, most_bytes)
    except (HeterpsError, OSError) as error:
        problems.append(str(error))
    path = run.folder / PROFILE
    if path.is_file():
        try:
            profile = load_profile(path)
        except HeterpsError as error:
            problems.append(str(error))
    return RunDetails(profile, policies, workers, read_events(run), problems=problems)


def with_quick_frontier(details: RunDetails, job: Job, plan: Plan) -> RunDetails:
    """The details with the frontier, where the job names a profile and it takes QUICK_S or less; else as they are."""
    end_s = time.monotonic() + QUICK_S

    def on_point(_: Plan) -> None:
        if time.monotonic() > end_s:
            raise ConfigError("the frontier takes too long for a report that nobody asked for it in.")

    if job.profile is not None:
        with suppress(HeterpsError):
            return with_frontier(details, job, plan, on_point)
    return details


def with_frontier(
    details: RunDetails, job: Job, plan: Plan, on_point: Callable[[Plan], None] = lambda _: None
) -> RunDetails:
    """The details with the frontier of the run's profile and cluster, for as many samples as its plan is for.

    It has units that the profile has costs of: a run in one process is profiled on this machine's own only.
    Raises ConfigError where the run has no profile, or nothing was predicted for it.
    """
    from heterps.planning.api import make_problem
    from heterps.planning.frontier import frontier

    if details.profile is None or not plan.is_predicted:
        raise ConfigError(
            "other plans are found by a profile, and this run has none. Train it with --profile profile.json, which "
            "`heterps profile` makes."
        )
    samples = plan.samples or plan.throughput * plan.hours * 3600
    profile = details.profile.at_batch_size(job.data.batch_size)
    cluster = profile.offered(job.cluster)
    found = frontier(make_problem(profile, cluster, plan.throughput, samples, **plan.asked), on_point=on_point)
    return replace(details, frontier=found if found.plans else None)


def named_profile(job: Job) -> Profile | None:
    """The profile that the job names; None without one, or where it is not on this machine any more."""
    with suppress(HeterpsError):
        return None if job.profile is None else load_profile(job.profile)
    return None
