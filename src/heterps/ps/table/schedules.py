"""What a learning rate is multiplied by, as a job goes on: pure functions of its progress.

constant     1
linear       a straight line down to `floor` at `until`
cosine       the same with half a cosine in place of the line
step         times `factor` after each `every`
exponential  the same as a smooth curve, down to `floor`

All of them begin after a warm-up, a straight line up to 1 over the first `warmup`.

Progress is counted in samples of the whole job. That is fair to every way of synchronising workers: with P of them,
asynchronous ones make P updates for each that synchronous ones make, and a schedule by updates would come down P times
as early. Counting updates is possible, to see what that does.
"""

from __future__ import annotations

import math

from heterps.config import ConstantRate, CosineRate, ExponentialRate, LinearRate, Schedule, StepRate


def rate_at(schedule: Schedule, samples: int | None, num_pushes: int = 0) -> float:
    """Return the factor for a push after `samples` samples of the job, to a table that has had `num_pushes`.

    A schedule by samples refuses a push without them: going on at a wrong rate would be seen by nobody.
    """
    if isinstance(schedule, ConstantRate) and not schedule.warmup:
        return 1.0
    done = num_pushes if schedule.unit == "updates" else samples
    if done is None:
        raise ValueError(
            f"the table's learning rate follows a {schedule.kind} schedule by {schedule.unit}: "
            "tell each push how many the job has seen (samples=...)"
        )
    if done < schedule.warmup:
        return (done + 1) / (schedule.warmup + 1)
    done -= schedule.warmup
    match schedule:
        case ConstantRate() | LinearRate(until=None):
            return 1.0
        case StepRate(every=every, factor=factor):
            return float(factor ** (done // every))
        case ExponentialRate(every=every, factor=factor):
            return max(float(factor ** (done / every)), schedule.floor)
        case LinearRate(until=int(until)) | CosineRate(until=until):
            down = min(done / (until - schedule.warmup), 1.0)
            left = 1 - down if isinstance(schedule, LinearRate) else (1 + math.cos(math.pi * down)) / 2
            return schedule.floor + (1 - schedule.floor) * left
    raise AssertionError(schedule)
