"""What a learning rate is multiplied by, as a job goes on: pure functions of the samples seen so far.

linear   warm-up to 1 over the first `warmup` samples, then a straight line down to `floor` at `until`
cosine   the same with half a cosine in place of the line
step     times `factor` after each `every` samples
"""

from __future__ import annotations

import math

from heterps.config import ConstantRate, CosineRate, LinearRate, Schedule, StepRate


def rate_at(schedule: Schedule, samples: int | None) -> float:
    """The factor for a push that was made after `samples` samples of the job.

    The count is the whole job's and not the table's own, so that a table which is loaded or re-sharded goes on where it
    was. A schedule that needs it refuses a push without it: going on at a wrong rate would be seen by nobody.
    """
    if isinstance(schedule, ConstantRate):
        return 1.0
    if samples is None:
        raise ValueError(
            f"the table's learning rate follows a {schedule.kind} schedule by {schedule.unit}: "
            "tell each push how many the job has seen (samples=...)"
        )
    match schedule:
        case StepRate(every=every, factor=factor):
            return float(factor ** (samples // every))
        case LinearRate() | CosineRate():
            if samples < schedule.warmup:
                return (samples + 1) / (schedule.warmup + 1)
            if schedule.until is None:
                return 1.0
            done = min((samples - schedule.warmup) / (schedule.until - schedule.warmup), 1.0)
            left = 1 - done if isinstance(schedule, LinearRate) else (1 + math.cos(math.pi * done)) / 2
            return schedule.floor + (1 - schedule.floor) * left
