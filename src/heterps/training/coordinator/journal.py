"""Journal: what a coordinator has decided, so that another one can go on in its place if it dies.

    RUN/journal.jsonl    head    the job as it was at one moment: samples, leases, layout, where its servers are
                         go      lane 3 starts iteration 18 with batch 40 of epoch 0      written before it is sent
                         done    iteration 18 of lane 3 is done                           before anybody goes on
                         ...

Servers hold all that was learned, and outlive a coordinator for a while (`servers.wait_s`). The next one reads the
journal and repeats what was under way. In rounds nothing of that is in any table: servers apply a round when they hear
that it is over, which is after it is `done` here. Without rounds servers skip what they have applied of an iteration.

The file is written, and not forced to the disk: it is for the death of a process. Without power servers are gone too,
and a run goes on from its checkpoint. Every interval a new head takes the place of all lines before it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs
from xxhash import xxh3_64_hexdigest

from heterps.config import Job
from heterps.data.leases import Leases
from heterps.data.reader import Reader
from heterps.planning.plan import Plan
from heterps.training.coordinator.flow import Step
from heterps.training.coordinator.positions import restored_leases
from heterps.training.coordinator.round_flow import LEASED_BY
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import ALL_LANES, Go
from heterps.training.run.progress import RunProgress

FILE = "journal.jsonl"
STARTS_A_LIFE = 1_000_000
"""Workers of the second life of a coordinator have incarnations from this number on, those of the third from twice it:
higher than any before, even if the journal misses the last starts."""


class BatchDone(Struct, frozen=True, tag="done"):
    """An iteration of a lane, or a round, is done at every stage."""

    lane: int
    iteration: int
    num_samples: int
    loss: float
    seconds: float  # of the run
    is_repeated: bool = False
    is_skipped: bool = False  # it changed nothing; a round that follows it has its number


def done_of(step: Step, seconds: float) -> BatchDone:
    """Return the record of a batch that is done, so many seconds after the run began."""
    is_skipped = step.skipped is not None
    return BatchDone(step.lane, step.iteration, step.num_samples, step.loss, seconds, step.is_repeated, is_skipped)


class ServerPlace(Struct, frozen=True):
    """Where the servers of a run are: the folder of their sockets, and their roster."""

    folder: str
    roster: dict[str, Any]


class Head(Struct, frozen=True, tag="head"):
    """A job at one moment. `progress` is what a checkpoint of it would have, as JSON."""

    life: int  # how many coordinators the job has had
    written_in: int  # the life in which this head was written
    job: str  # digest
    servers: ServerPlace
    layout: Layout
    clock: int
    samples: int
    progress: str
    last_save: tuple[int, float]  # samples and seconds
    iterations: dict[int, int] = {}  # the last one begun, by lane; rounds are those of ALL_LANES
    under_way: dict[int, Go] = {}  # by lane


Record = Head | Go | BatchDone


@dataclass
class Decisions:
    """What was begun and what is done, according to records that are taken in their order."""

    iterations: dict[int, int]
    under_way: dict[int, Go]

    def take(self, record: Go | BatchDone) -> Go | None:
        """Take the next record; return what is done by it."""
        if isinstance(record, Go):
            self.iterations[record.lane] = record.iteration
            self.under_way[record.lane] = record
            return None
        if record.is_skipped and record.lane == ALL_LANES:
            self.iterations[record.lane] = record.iteration - 1
        return self.under_way.pop(record.lane, None)


class Journal:
    """Writes the journal of a run to `folder`. Where the disk refuses, the journal ends and `warn` is told."""

    def __init__(self, folder: Path, life: int, job: str, servers: ServerPlace, warn: Callable[[str], None]) -> None:
        self._path, self._warn = folder / FILE, warn
        self.life, self._job, self._servers = life, job, servers
        self._decisions = Decisions({}, {})
        self._descriptor: int | None = None
        self._is_over = False
        self._layout: Layout | None = None

    def is_of(self, layout: Layout) -> bool:
        """Whether the last head has this layout."""
        return self._layout is not None and self._layout == layout

    @property
    def has_begun(self) -> bool:
        """Whether a head was written, or the attempt has failed."""
        return self._layout is not None

    def go_on(self, decisions: Decisions) -> None:
        """Begin with what another coordinator has decided."""
        self._decisions = decisions

    def begin(
        self,
        layout: Layout,
        clock: int,
        progress: RunProgress,
        told: Mapping[str, Any],
        servers: ServerPlace | None = None,
    ) -> None:
        """Write a new head, which takes the place of all that was written before.

        told     what a checkpoint would say of the run
        servers  where they are by now; None: where they were
        """
        self._servers = servers or self._servers
        self._try(self._replace, _line(self._head(layout, clock, progress, told)))

    def _head(self, layout: Layout, clock: int, progress: RunProgress, told: Mapping[str, Any]) -> Head:
        self._layout, decided = layout, self._decisions
        return Head(
            self.life, self.life, self._job, self._servers, layout, clock, progress.samples, json.dumps(told),
            progress.last_save, dict(decided.iterations), dict(decided.under_way),
        )  # fmt: skip

    def note(self, record: Go | BatchDone) -> None:
        """Write what was decided, before it is carried out."""
        self._decisions.take(record)
        self._try(self._append, _line(record))

    def close(self) -> None:
        """Remove the journal: the job has ended, or its servers are about to."""
        self._is_over = True
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _try(self, write: Callable[[bytes], None], line: bytes) -> None:
        if self._is_over:
            return
        try:
            write(line)
        except OSError as error:
            self.close()
            self._warn(
                f"{self._path} cannot be written ({error.strerror}), and training goes on without it: should this "
                "process die, the run goes back to its last checkpoint"
            )

    def _replace(self, line: bytes) -> None:
        draft = self._path.with_name(f".{self._path.name}.part")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        before, self._descriptor = self._descriptor, descriptor
        if before is not None:
            os.close(before)
        self._append(line)
        os.replace(draft, self._path)

    def _append(self, line: bytes) -> None:
        assert self._descriptor is not None, "a journal begins with a head"
        if os.write(self._descriptor, line) < len(line):
            raise OSError(0, "the disk is full")


class TakenOver(NamedTuple):
    """What a coordinator begins with that takes the place of another."""

    decisions: Decisions
    leases: Leases
    clock: int
    usd: float | None


@dataclass(frozen=True)
class JournalContents:
    """What a journal says: its head, and what was decided afterwards."""

    head: Head
    records: Sequence[Go | BatchDone]

    def next_life(self, servers: ServerPlace | None = None) -> JournalContents:
        """Return the contents for the next coordinator, which must be written before it starts any worker.

        Otherwise a third coordinator, if the second dies soon, would give its workers incarnations that were used.

        servers  as they were found; None: as the journal says
        """
        head = structs.replace(self.head, life=self.head.life + 1, servers=servers or self.head.servers)
        return JournalContents(head, self.records)

    def lines(self) -> list[bytes]:
        return [_line(record) for record in (self.head, *self.records)]

    @property
    def next_layout(self) -> Layout:
        """The layout of the next coordinator, whose epoch tells its messages from those of the one before."""
        return structs.replace(self.head.layout, epoch=self.head.layout.epoch + 1)

    def restore(self, job: Job, reader: Reader, progress: RunProgress) -> TakenOver:
        """Bring `progress` to where the job was, and return what else the next coordinator needs.

        Scores of what was done after the head are lost: metrics of training miss these samples.
        """
        told = json.loads(self.head.progress)
        progress.restore(self.head.samples, told)
        progress.take_over(self.head.last_save, self.head.life - self.head.written_in)
        leases, clock = restored_leases(job, reader, told), self.head.clock

        def done(record: BatchDone) -> None:
            nonlocal clock
            clock += 1
            if record.is_skipped:
                progress.skip(record.num_samples, record.seconds)
            else:
                progress.add(record.num_samples, (), record.seconds, record.loss)
            progress.repeated_samples += record.num_samples if record.is_repeated else 0

        return TakenOver(self.finish(leases, done), leases, clock, told.get("usd"))

    def finish(self, leases: Leases, done: Callable[[BatchDone], None]) -> Decisions:
        """Acknowledge in the leases of the head what was done after it, and hold what was under way.

        done  is told every iteration that was done, in their order
        """
        decisions = Decisions(dict(self.head.iterations), dict(self.head.under_way))
        for record in self.records:
            ended = decisions.take(record)
            # The head may know already of an iteration whose line comes after it.
            if ended is not None and isinstance(record, BatchDone) and self._claim(leases, ended):
                leases.done(self._holder(ended), ended.epoch, ended.batch)
                done(record)
        for lane, go in list(decisions.under_way.items()):
            if not self._claim(leases, go):
                del decisions.under_way[lane]
                if leases.num_batches is not None and go.batch >= leases.num_batches:
                    decisions.iterations[lane] = go.iteration - 1  # there is no such batch, so it was not begun
        return decisions

    def _claim(self, leases: Leases, go: Go) -> bool:
        """Hold the batch of a go-ahead; False where it is acknowledged already."""
        try:
            leases.claim(self._holder(go), go.epoch, go.batch)
        except ValueError:
            return False
        return True

    def _holder(self, go: Go) -> str:
        """The name under which the flow of batches leases the batch of a go-ahead."""
        return LEASED_BY if go.lane == ALL_LANES else self.head.layout.worker_of(go.lane, 0)


def digest_of(job: Job, plan: Plan) -> str:
    """Return what must be the same if another coordinator is to go on with the servers of a job."""
    stages = [(stage.first, stage.last, stage.resource, stage.count) for stage in plan.stages]
    return xxh3_64_hexdigest(f"{job.model_dump_json()} {stages} {plan.servers.count}".encode())


def read_journal(folder: Path) -> JournalContents | None:
    """Read the journal that a coordinator left; None where there is none that can be read."""
    try:
        return contents_of((folder / FILE).read_bytes())
    except OSError:
        return None


def write_journal(folder: Path, found: JournalContents) -> None:
    """Write a journal anew, whole or not at all. Raises OSError."""
    draft = folder / f".{FILE}.part"
    draft.write_bytes(b"".join(found.lines()))
    os.replace(draft, folder / FILE)


def contents_of(written: bytes) -> JournalContents | None:
    """Return what a journal says; None where its first line is no head, or a line is not as it was written.

    Then nothing of it counts, and the run goes back to its checkpoint.

    A last line that was cut off is left out: what it says was not carried out.
    """
    try:
        records = [msgspec.json.decode(_checked(line), type=Record) for line in written.split(b"\n")[:-1]]
    except ValueError:
        return None
    if not records or not isinstance(records[0], Head):
        return None
    return JournalContents(records[0], [record for record in records[1:] if not isinstance(record, Head)])


def _line(record: Record) -> bytes:
    """Return the line of a record: a digest, a space, and the record as JSON."""
    text = msgspec.json.encode(record)
    return xxh3_64_hexdigest(text).encode() + b" " + text + b"\n"


def _checked(line: bytes) -> bytes:
    """Return the record in a line; ValueError where it does not match its digest."""
    digest, _, text = line.partition(b" ")
    if digest != xxh3_64_hexdigest(text).encode():
        raise ValueError("a line is damaged")
    return text
