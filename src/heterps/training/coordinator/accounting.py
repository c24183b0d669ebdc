"""Accounting: what a job on workers has done, how busy its stages were, and what it cost.

batches that are done ---+                +--> metrics.jsonl, a line an interval
usage of workers --------+--> Accounting ------+--> people who watch, a few times a second
prices, and who is paid -+                +--> `heterps status`, checkpoints, summary.json
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from heterps.config import Job
from heterps.data.decode import DecodeCounts
from heterps.planning.plan import Plan
from heterps.training.coordinator.flow import Flow, SkippedBatch
from heterps.training.coordinator.stage_stats import StageStats
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import Pushed, RowGroupCounts
from heterps.training.run.observer import Observer
from heterps.training.run.progress import RunProgress

VIEW_S = 0.25
MOST_WARNINGS = 5
"""Number of skipped batches that a run warns of one by one."""


class Accounting:
    """Keeps the accounts of a job.

    scale      real seconds of an emulated one, which marks every figure; None where units are real
    on_pushed  is told every push, with the seconds of training
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        layout: Layout,
        progress: RunProgress,
        observer: Observer,
        scale: float | None,
        on_pushed: Callable[[Pushed, float], None] = lambda *_: None,
    ) -> None:
        self._job, self._plan, self._layout = job, plan, layout
        self._progress, self._observer = progress, observer
        self._views = StageStats(layout)
        self._emulation = {} if scale is None else {"emulated": {"scale": scale}}
        self._shown, self._on_pushed = float("-inf"), on_pushed
        self._read: dict[int, RowGroupCounts] = {}  # by row group
        self.num_steps = 0

    def begin(self, usd: float | None) -> None:
        """Start counting. `usd` was paid before; None: as much as the units of this run would have cost until now."""
        before = self._progress.seconds * self.usd_per_hour / 3600 if usd is None else usd
        self._views.begin(self._progress.seconds, before)

    def follow(self, layout: Layout) -> None:
        """Count for the workers of another layout from now on, and pay those of the one before."""
        self.paid()
        self._layout = layout
        self._views.follow(layout)

    def pushed(self, message: Pushed, seconds: float) -> None:
        """Take note of a push that came after `seconds` of training."""
        self._views.pushed(message)
        self._on_pushed(message, seconds)
        self._read |= {counts.row_group: counts for counts in message.read}
        for counts in message.read:
            self._progress.digests.check(counts.row_group, counts.digest)

    def data_counts(self) -> dict[str, Any]:
        """What was missing in the training data that was read. Row groups that several workers read count once."""
        total = DecodeCounts.total(DecodeCounts(c.num_rows, c.num_skipped, c.missing) for c in self._read.values())
        return {name: value for name, value in asdict(total).items() if name != "digest"} if self._read else {}

    def account(self, flow: Flow, now: float) -> list[dict[str, Any]]:
        """Take note of the batches that are done; return a line of metrics.jsonl for every interval that ended."""
        lines = []
        while flow.steps:
            step = flow.steps.popleft()
            self.num_steps += 1
            self._progress.repeated_samples += step.num_samples if step.is_repeated else 0
            self._views.stepped(step)
            if step.skipped is not None:
                self._skip(step.num_samples, step.skipped, now)
            else:
                self._progress.add(step.num_samples, step.scores, now, step.loss)
                told = self._progress.samples, self._progress.seconds, step.loss, self._progress.interval
                self._observer.stepped(*told)
            if self._progress.interval_is_over:
                lines.append(self.close_interval(flow))
        return lines

    def _skip(self, num_samples: int, batch: SkippedBatch, now: float) -> None:
        """Count a batch that was skipped, and warn of the first ones. NotFinite where there are too many."""
        self._progress.skip(num_samples, now)
        skips = self._progress.skips
        if skips.batches <= MOST_WARNINGS:
            more = "" if skips.batches < MOST_WARNINGS else " Further ones are counted only."
            self._observer.warned(f"batch {batch.batch} of epoch {batch.epoch} was skipped: {batch.why}{more}")
        skips.check(batch.why)

    def close_interval(self, flow: Flow) -> dict[str, Any]:
        """A line of metrics.jsonl about the interval, without fields about the tables; the next interval begins."""
        views = self._views.interval(self._progress.seconds, self.usd_per_hour)
        was_alarmed = self._progress.divergence.alarm is not None
        line = self._progress.close_interval({"epoch": flow.leases.first[0], **views, **self._emulation})
        if "alarm" in line and not was_alarmed:
            self._observer.warned(line["alarm"])
        return line

    def show(self, seconds: float, now: float) -> None:
        """Let those who watch see the stages as they are now, a few times a second."""
        if now - self._shown >= VIEW_S:
            self._shown = now
            self._observer.staged(self._views.live(seconds, self.usd_per_hour) | self._emulation)

    def paid(self) -> float:
        """The USD that were paid until now."""
        return self._views.paid(self._progress.seconds, self.usd_per_hour)

    @property
    def usd_per_hour(self) -> float:
        """Price per hour of the workers of the layout and the servers of the plan.

        While they are those of the plan, they are rented as it says: as machines, spot units or units on demand.
        After that each costs what its resource does.
        """
        units: Counter[str] = Counter({self._plan.servers.resource: self._plan.servers.count})
        for stage in self._layout.stages:
            units[stage.resource] += len(stage.workers) * stage.units
        if +units == self._plan.units:
            return self._plan.usd_per_hour(self._job.cluster)
        prices = self._job.cluster.resources
        return sum(count * prices[resource].usd_per_hour for resource, count in units.items())

    def summary(self, flow: Flow, served_s: float | None = None) -> dict[str, Any]:
        """Fields of summary.json. `served_s`: seconds that a server has spent on messages, in this run."""
        self.paid()
        return self._views.summary(flow, self._progress.seconds, served_s) | self._emulation

    def status(self, flow: Flow) -> dict[str, Any]:
        """Return the figures of the open interval, and how far the run is."""
        usd = self.paid()
        return self._views.status(self._progress, flow) | {
            "usd": usd,
            "alarm": self._progress.divergence.alarm,
            "usd_per_hour": self.usd_per_hour,
            "servers": self._plan.servers.count,
            **self._emulation,
        }
