"""What a run folder tells besides its job, plan, summary and metrics, as far as it is there: details of the report."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from heterps.config import Job
from heterps.errors import HeterpsError
from heterps.profiling.profile import Profile, load_profile
from heterps.report.observed import ObservedPolicy, read_observed
from heterps.training.run.events import read_events
from heterps.training.run.folder import Run


@dataclass(frozen=True)
class RunDetails:
    """Details of a run.

    profile   times of its layers; None where they are not known
    policies  what the policies of its last start did, by its traces
    events    lines of events.jsonl
    problems  sentences about details that cannot be read
    """

    profile: Profile | None = None
    policies: list[ObservedPolicy] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_details(run: Run, job: Job) -> RunDetails:
    """Read the details of a run. One that is damaged is left out, and told of: a report does not depend on it."""
    problems: list[str] = []
    policies: list[ObservedPolicy] = []
    profile = named_profile(job)
    try:
        policies = read_observed(run.folder)
    except (HeterpsError, OSError) as error:
        problems.append(str(error))
    path = run.folder / "profile.json"
    if path.is_file():
        try:
            profile = load_profile(path)
        except HeterpsError as error:
            problems.append(str(error))
    return RunDetails(profile, policies, read_events(run), problems)


def named_profile(job: Job) -> Profile | None:
    """The profile that the job names; None without one, or where it is not on this machine any more."""
    with suppress(HeterpsError):
        return None if job.profile is None else load_profile(job.profile)
    return None
