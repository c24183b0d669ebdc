"""The training loop: batches in, metrics and checkpoints out, until the data or the user says stop.

    reader --> prefetch (decode, lookups) --> step --> running metrics --every interval--> metrics.jsonl
                                               |
                                               +--by samples or minutes, at the end, on a signal--> checkpoint

A checkpoint holds the position of the next batch, so a resumed run takes exactly the steps that an uninterrupted one
would have taken.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Protocol, TypeVar

import torch

from heterps.checkpoint import Snapshot, latest, load_latest, save
from heterps.config import Job, Servers
from heterps.data.batch import Batch
from heterps.data.prefetch import Prefetch
from heterps.data.reader import Position, Reader, open_reader, open_test_reader
from heterps.errors import RunError, StorageError
from heterps.model import build_model
from heterps.planning.inline import cpu_resource
from heterps.ps.client.local import JobClient
from heterps.ps.protocol.specs import Tables
from heterps.ps.table.metadata import TableCounters
from heterps.ps.table.tiers import TierCounts
from heterps.training.model.losses import has_own_loss
from heterps.training.model.trainer import Trainer
from heterps.training.run.class_metrics import AnyMetrics
from heterps.training.run.commands import AskStatus, CommandReply
from heterps.training.run.control import Control
from heterps.training.run.folder import Run
from heterps.training.run.progress import RunProgress, Scores, metric_fields

T = TypeVar("T")


class Observer:
    """What a spectator of the loop may want to know. Override what you need."""

    def waiting(self, what: str) -> None:
        """Something takes a while before training starts: "2 servers start"."""

    def started(self, samples: int, total: int, resumed: bool) -> None:
        """Training starts at `samples` of `total`."""

    def stepped(self, samples: int, seconds: float, loss: float, interval: AnyMetrics) -> None:
        """A step is done: samples and seconds so far, its loss, and the metrics of the interval it belongs to."""

    def measured(self, line: dict[str, Any]) -> None:
        """A line was added to metrics.jsonl."""

    def staged(self, view: dict[str, Any]) -> None:
        """A few times a second, of a job on workers: fields of metrics.jsonl of the last seconds: `seconds` so far,
        `stages`, `staleness`, `usd` so far, and `emulated` where they are."""

    def changed(self, what: str) -> None:
        """The job runs on other workers than before."""

    def saved(self, path: str, seconds: float) -> None:
        """A checkpoint was written."""

    def warned(self, message: str) -> None:
        """Something went wrong that training survives."""

    def evaluating(self, samples: int) -> None:
        """The test set, of so many samples, is being evaluated."""


@dataclass
class Outcome:
    """What came of a run, apart from its model."""

    samples: int
    seconds: float
    restarts: int
    stopped_by: str | None  # the signal that stopped it; None: it reached the end
    train: AnyMetrics  # over the whole run, each sample predicted before it was learned from
    test: AnyMetrics | None
    num_rows: int
    table_bytes: int
    counters: TableCounters  # rows that came and went
    tiers: TierCounts | None
    counts: dict[str, Any]  # what was missing in the training data that this process read
    has_own_loss: bool  # the model's own method says what was minimised
    staged: dict[str, Any] | None = None  # what each stage of a plan did, and how stale gradients were


def train_job(
    job: Job,
    run: Run,
    *,
    resume: bool,
    observer: Observer,
    stop: Callable[[], str | None],
    connect: Callable[[Tables], JobClient] | None = None,
    control: Control | None = None,
) -> Outcome:
    """Train `job` in the folder of `run` until the last epoch ends or `stop()` names a reason.

    `connect` gives a client of the servers of a job that has some; through `control` others ask how far it is.
    Equal jobs take equal steps: torch's random state starts at the job's seed, and is left as it was.
    """
    reader = open_reader(job)
    model = build_model(job.model, job.data.columns, job.seed)
    servers = job.servers or Servers()
    with (
        torch.random.fork_rng(devices=[]),
        Trainer(
            model,
            job.optimizers,
            tables=job.tables,
            tiers=job.tiers,
            seed=job.seed,
            num_shards=job.num_threads,
            num_threads=job.num_threads,
            num_classes=job.data.columns.num_classes,
            connect=connect,
            staleness=servers.staleness,
            cache_bytes=servers.cache_bytes,
        ) as trainer,
    ):
        torch.default_generator.manual_seed(job.seed)
        loop = _Loop(job, run, trainer, reader, observer, control)
        if resume:
            loop.restore()
        progress = loop.progress
        observer.started(progress.samples, reader.num_rows * job.data.epochs, resume)
        stopped_by = loop.train(stop)
        if stopped_by is None and progress.samples > progress.interval_started:
            loop.close_interval()  # a stopped run keeps its interval open, and closes it where it would have been
        loop.save(must_succeed=True)
        test = None
        if stopped_by is None and job.data.test is not None:
            test = evaluate_test(job, trainer, observer, stop)
            if stopped_by := stop():
                test = None  # of a part of the test set
        return Outcome(
            progress.samples, progress.seconds, progress.restarts, stopped_by, progress.train_metrics(), test,
            trainer.num_rows, trainer.table_bytes, trainer.counters, trainer.tier_counts, asdict(reader.counts),
            has_own_loss(model),
        )  # fmt: skip


class _Loop:
    """The state of a run between two steps, which is what a checkpoint holds."""

    def __init__(
        self, job: Job, run: Run, trainer: Trainer, reader: Reader, observer: Observer, control: Control | None = None
    ) -> None:
        self.job, self.run, self.trainer, self.reader, self.observer = job, run, trainer, reader, observer
        self._control = control
        self.position = Position()
        self.progress = RunProgress(job, run)

    def train(self, stop: Callable[[], str | None]) -> str | None:
        """Steps until the last epoch is over (None) or `stop` gives a reason."""
        progress = self.progress
        while self.position.epoch < self.job.data.epochs:
            with Prefetch(self.reader.read(self.position), self.job.data.prefetch, self._prepare) as batches:
                before = time.perf_counter()
                for (batch, position), upcoming in _with_next(batches):
                    loss, logits = self.trainer.step(batch, upcoming[0] if upcoming else None)
                    self.position = position
                    now = time.perf_counter()
                    progress.add(len(batch), [Scores(logits, batch.label)], progress.seconds + now - before)
                    before = now
                    self.observer.stepped(progress.samples, progress.seconds, loss, progress.interval)
                    if progress.interval_is_over:
                        self.close_interval()
                    if progress.save_is_due:
                        self.save()
                        before = time.perf_counter()  # time spent on checkpoints is not time spent on training
                    self._answer()
                    if reason := stop():
                        return reason
        return None

    def _answer(self) -> None:
        """Tell whoever asks how far the run is; there are no workers to change."""
        for request in self._control.requests() if self._control is not None else ():
            if isinstance(request.message, AskStatus):
                core = self.job.cluster.resources[cpu_resource(self.job.cluster)]
                usd_per_hour = self.job.num_threads * core.usd_per_hour
                status: dict[str, Any] = {
                    "samples": self.progress.samples,
                    "seconds": round(self.progress.seconds, 3),
                    **metric_fields(self.progress.interval),
                    "stages": [],
                    "total": self.reader.num_rows * self.job.data.epochs,
                    "usd": self.progress.seconds * usd_per_hour / 3600,
                    "usd_per_hour": usd_per_hour,
                }
                request.answer(CommandReply(json.dumps(status)))
            else:
                text = "an inline run has no workers to change: stop it, and resume it with --launcher local"
                request.answer(CommandReply(text, is_error=True))

    def close_interval(self) -> None:
        """Write what the interval measured, and start the next."""
        more = {"epoch": self.position.epoch} | self.trainer.table_fields(self.job.tables)
        if (cached := self.trainer.cache_counts) is not None:
            more["cache"] = asdict(cached) | {"hit_rate": cached.hit_rate}
        if (talk := self.trainer.client_counts) is not None:
            more["servers"] = asdict(talk)
        self.observer.measured(self.progress.close_interval(more))

    def save(self, must_succeed: bool = False) -> None:
        """Write a checkpoint. Training goes on when one fails, unless it `must_succeed`."""
        progress = {"position": asdict(self.position), **self.progress.state()}
        save_checkpoint(
            self.job,
            self.run,
            self.observer,
            self.progress,
            lambda: self.trainer.snapshot(self.progress.samples, progress, in_place=True),
            must_succeed=must_succeed,
        )

    def restore(self) -> None:
        """Go on from the newest good checkpoint of the run; from the start where it was ended before its first."""
        snapshot = find_checkpoint(self.run, self.observer)
        if snapshot is None:
            self.progress.begin_again()
            return
        if "position" not in snapshot.progress:
            raise RunError(
                f"{self.run.folder}: the newest checkpoint does not say where a single reader would go on: its workers "
                "had finished batches out of order, or rows are skipped. Go on with launcher local or ray."
            )
        self.trainer.restore(snapshot)
        self.position = Position(**snapshot.progress["position"])
        self.progress.restore(snapshot.samples, snapshot.progress)

    def _prepare(self, item: tuple[Batch, Position]) -> tuple[Batch, Position]:
        return self.trainer.prepare(item[0]), item[1]


def save_checkpoint(
    job: Job,
    run: Run,
    observer: Observer,
    progress: RunProgress,
    snapshot: Callable[[], Snapshot],
    *,
    must_succeed: bool,
) -> None:
    """Write a checkpoint. A failure is told, and an error only if it `must_succeed`."""
    began = time.perf_counter()
    try:
        path = save(run.checkpoints, snapshot(), keep=job.checkpoint.keep)
    except StorageError as error:
        if must_succeed:
            raise
        observer.warned(f"the checkpoint at {progress.samples:,} samples failed, training goes on. {error}")
    else:
        observer.saved(str(path), time.perf_counter() - began)
    progress.saved()


def find_checkpoint(run: Run, observer: Observer) -> Snapshot | None:
    """The newest good one; None, and a warning, where the run was ended before its first."""
    if latest(run.checkpoints) is None:
        observer.warned(f"{run.folder} has no checkpoint yet, so its training starts from the beginning.")
        return None
    return load_latest(run.checkpoints)


def _with_next(items: Iterable[T]) -> Iterator[tuple[T, T | None]]:
    """Each item with the one after it; the last with None. Where the next fails, the item before comes first."""
    ahead = iter(items)
    item = next(ahead, None)
    while item is not None:
        try:
            upcoming = next(ahead, None)
        except Exception:
            yield item, None
            raise
        yield item, upcoming
        item = upcoming


class Evaluator(Protocol):
    """What can be evaluated: a Trainer, or a whole model of stages."""

    def prepare(self, batch: Batch) -> Batch: ...

    def evaluate(self, batches: Iterable[Batch]) -> AnyMetrics: ...


def evaluate_test(job: Job, model: Evaluator, observer: Observer, stop: Callable[[], str | None]) -> AnyMetrics:
    """Metrics of the test set, or of its first batches once `stop` gives a reason."""
    reader = open_test_reader(job)
    observer.evaluating(reader.num_rows)
    with Prefetch(_batches(reader), job.data.prefetch, model.prepare) as batches:
        return model.evaluate(takewhile(lambda _: stop() is None, batches))


def _batches(reader: Reader) -> Iterator[Batch]:
    return (batch for batch, _ in reader.read())
