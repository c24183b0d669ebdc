"""The flow of a job: in rounds or in lanes, from the beginning or from where another coordinator died."""

from __future__ import annotations

from heterps.config import Job
from heterps.training.coordinator.flow import Flow
from heterps.training.coordinator.lane_flow import LaneFlow
from heterps.training.coordinator.round_flow import RoundFlow
from heterps.training.coordinator.setup import Setup
from heterps.training.run.progress import RunProgress


def make_flow(job: Job, setup: Setup, progress: RunProgress) -> Flow:
    """Return the flow of batches by the policy of the job. Nothing has been started yet."""
    flow: Flow = (RoundFlow if setup.layout.in_rounds else LaneFlow)(
        setup.layout, setup.groups, job.sync, setup.leases,
        samples=progress.samples, now=progress.seconds, on_policy=setup.on_policy,
    )  # fmt: skip
    if setup.resumed is not None:
        flow.resume(setup.resumed.iterations, setup.resumed.under_way)
    return flow
