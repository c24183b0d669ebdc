"""StageStats: what each stage of a running job does, from what its workers tell with every push.

    stage 1   cpu x 4    compute 71 %  communicate 12 %  wait 17 %   queue 0.2     the stage that never waits is the
    stage 2   v100 x 1   compute 98 %  communicate  1 %  wait  1 %   queue 3.0     bottleneck

All is counted from the start on; a mark remembers the counts of a moment, and a view is of what came since then:

    |-------------------- whole run: summary.json ----------------------|
    |--- interval: metrics.jsonl ---|--- interval ---|--- open ---------|
                                                              |- recent-|  for people who watch, of the last VIEWS views
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from heterps.training.coordinator.flow import Flow, Step
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import Pushed, Usage, WorkerTraffic
from heterps.training.run.progress import RunProgress

VIEWS = 12
"""A view of people is of the time since that many views ago: some seconds, so that figures can be read."""


@dataclass(frozen=True)
class _Mark:
    """What was counted by a moment of the run."""

    seconds: float = 0.0
    usage: dict[str, Usage] = field(default_factory=dict)  # by worker
    samples: dict[int, float] = field(default_factory=dict)  # by stage
    stale: int = 0
    steps: int = 0


class StageStats:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._usage: dict[str, Usage] = {}
        self._samples: dict[int, float] = {}
        self._stale = self._steps = 0
        self._whole = self._interval = _Mark()
        self._recent: deque[_Mark] = deque([_Mark()], maxlen=VIEWS)
        self._usd = self._priced_s = 0.0

    def follow(self, layout: Layout) -> None:
        """Count for the workers of another layout from now on."""
        self._layout = layout

    def begin(self, seconds: float, usd: float) -> None:
        """Start counting, `seconds` into the run."""
        self._whole = self._interval = self._recent[0] = _Mark(seconds)
        self._priced_s = seconds
        self._usd = usd

    def pushed(self, message: Pushed) -> None:
        self._usage[message.worker] = message.usage
        stage = self._layout.stage_of(message.worker)
        of_all = 1 if message.lane >= 0 else len(self._layout.stages[stage].workers)
        self._samples[stage] = self._samples.get(stage, 0.0) + message.num_samples / of_all

    def stepped(self, step: Step) -> None:
        self._steps += 1
        self._stale += step.staleness

    def paid(self, seconds: float, usd_per_hour: float) -> float:
        """Return the USD until now; units cost `usd_per_hour` since the last call, now `seconds` into the run."""
        self._usd += (seconds - self._priced_s) * usd_per_hour / 3600
        self._priced_s = seconds
        return self._usd

    def interval(self, seconds: float, usd_per_hour: float) -> dict[str, Any]:
        """Fields of a line of metrics.jsonl; and the next interval begins."""
        fields = self._fields(self._interval, seconds)
        self._interval = self._mark(seconds)
        return {**fields, **self._totals(), "usd": self.paid(seconds, usd_per_hour)}

    def live(self, seconds: float, usd_per_hour: float) -> dict[str, Any]:
        """The same fields for people who watch, of the last seconds; to be asked for a few times a second."""
        marks = (self._recent[0], self._interval)  # where batches are slow, of longer: no view is empty after the first
        since = next((mark for mark in marks if mark.steps < self._steps), self._whole)
        fields = self._fields(since, seconds)
        self._recent.append(self._mark(seconds))
        return {"seconds": seconds, **fields, "usd": self.paid(seconds, usd_per_hour)}

    def summary(self, flow: Flow, seconds: float, served_s: float | None = None) -> dict[str, Any]:
        """Fields of summary.json. `served_s`: seconds that a server has spent on messages."""
        taken_s = seconds - self._whole.seconds
        fields = {**self._fields(self._whole, seconds), **self._totals(), "max_lead": flow.leads, "usd": self._usd}
        if served_s is None or taken_s <= 0:
            return fields
        return fields | {"servers_busy": round(served_s / taken_s, 4)}

    def status(self, progress: RunProgress, flow: Flow) -> dict[str, Any]:
        """Return the fields of the open interval, for `heterps status`."""
        return {
            "samples": progress.samples,
            "seconds": round(progress.seconds, 3),
            **progress.interval.fields(),
            **self._fields(self._interval, progress.seconds),
            **self._totals(),
            "waits_for": flow.waited_for,
            "restarts": progress.restarts,
            "recoveries": progress.recoveries,
            "skipped_batches": progress.skips.batches,
        }

    def _totals(self) -> dict[str, Any]:
        """Return what copies of hot rows have saved so far, and the traffic with servers, over all workers."""
        totals: dict[str, Any] = {}
        if caches := [usage.cache for usage in self._usage.values() if usage.cache is not None]:
            hits, misses = sum(c.num_hits for c in caches), sum(c.num_misses for c in caches)
            rate = hits / (hits + misses) if hits + misses else None
            totals["cache"] = {"num_hits": hits, "num_misses": misses, "hit_rate": rate}
        if talks := [usage.traffic for usage in self._usage.values() if usage.traffic is not None]:
            fields = WorkerTraffic.__struct_fields__
            totals["traffic"] = {field: sum(getattr(talk, field) for talk in talks) for field in fields}
        return totals

    def _mark(self, seconds: float) -> _Mark:
        return _Mark(seconds, dict(self._usage), dict(self._samples), self._stale, self._steps)

    def _fields(self, since: _Mark, seconds: float) -> dict[str, Any]:
        steps = self._steps - since.steps
        return {
            "stages": [self._stage(number, since, seconds) for number in range(len(self._layout.stages))],
            "staleness": round((self._stale - since.stale) / steps, 3) if steps else 0.0,
        }

    def _stage(self, number: int, since: _Mark, seconds: float) -> dict[str, Any]:
        stage = self._layout.stages[number]
        spent = [_since(self._usage.get(w, Usage()), since.usage.get(w, Usage())) for w in stage.workers]
        whole_s = sum(u.compute_s + u.communicate_s + u.wait_s for u in spent)
        taken_s = seconds - since.seconds
        samples = self._samples.get(number, 0.0) - since.samples.get(number, 0.0)

        def share(part_s: float) -> float | None:
            return round(part_s / whole_s, 4) if whole_s > 0 else None

        return {
            "resource": stage.resource,
            "workers": len(stage.workers),
            "samples_per_s": round(samples / taken_s, 1) if taken_s > 0 else None,
            "compute": share(sum(u.compute_s for u in spent)),
            "communicate": share(sum(u.communicate_s for u in spent)),
            "wait": share(sum(u.wait_s for u in spent)),
            "queue": round(sum(u.queue for u in spent) / len(spent), 2),
            "late": share(sum(u.late_s for u in spent)),
            "late_s": round(sum(u.late_s for u in spent), 3),
        }


def _since(now: Usage, before: Usage) -> Usage:
    return Usage(
        max(now.compute_s - before.compute_s, 0.0),
        max(now.communicate_s - before.communicate_s, 0.0),
        max(now.wait_s - before.wait_s, 0.0),
        now.queue,
        max(now.late_s - before.late_s, 0.0),
    )
