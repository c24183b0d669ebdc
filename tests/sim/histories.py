"""What happened in a simulated job, and the rules that it must keep: who was served, what was acknowledged and done.

read your writes  a server that runs a request of a worker has all pushes of it that the request builds on, and all
                  that any server has ever said to be done
fencing           no server runs what comes from an incarnation of a worker after a newer one has greeted it, nor
                  anything at all after another server has taken its place
leases            a batch is begun by one at a time, and done once
cut               a checkpoint has as many updates of every table as batches that are done
staleness         nobody began an iteration further ahead than the policy allows
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fragile import Crash, FragileOS

from heterps.checkpoint import disk, load
from heterps.checkpoint.finished import finished
from heterps.config import Job
from heterps.ps.client.session import Session
from heterps.ps.ops.base import Push
from heterps.ps.ops.requests import OpRequest
from heterps.ps.server.server import Server
from heterps.ps.shard.ledger import PushSource
from heterps.sim.job import SimulatedJob
from heterps.sim.memory_journal import MemoryJournal
from heterps.training.coordinator.journal import BatchDone, JournalContents, Record
from heterps.training.coordinator.positions import restored_leases
from heterps.training.protocol.messages import Go


class DrawnDisk(FragileOS):
    """The disk of a job: may be full for a while, or crash within a call that is still to come."""

    is_full = False
    tears_journal = False  # with its next line

    def crash_in(self, num_calls: int) -> None:
        self._crash_at = self.num_calls + num_calls

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.is_full:
            os.write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(descriptor, data)


class History:
    """Of one life of a job: from its start, or from its newest checkpoint, to its end or to an error."""

    def __init__(self, disk: DrawnDisk) -> None:
        self.disk = disk
        self.simulated: SimulatedJob | None = None
        self.done: list[tuple[int, int]] = []  # epoch and number of each batch
        self.num_served = 0
        self._greeted: dict[tuple[int, str], int] = {}  # newest incarnation by server and worker
        self._acknowledged: dict[tuple[str, int, str], int] = {}  # last push by worker, incarnation and table

    def journal(self, found: JournalContents | None) -> MemoryJournal:
        return DrawnJournal(self, found)

    def served(self, server: Server, request: OpRequest) -> None:
        """A server is about to run a request."""
        self.num_served += 1
        worker, incarnation = request.worker, request.incarnation
        source = PushSource(worker, incarnation)
        reached: dict[str, int] = {}
        for op in request.ops:
            if op.table in server.shard.dense and not server.shard.dense[op.table].size:
                continue  # it has nothing of this table
            applied = reached.setdefault(op.table, server._applied(source, op.table))
            assert op.needs <= applied, f"{server.name} reads {op.table} for {worker} before its own push {op.needs}"
            known = self._acknowledged.get((worker, incarnation, op.table), 0)
            assert known <= applied, f"{server.name} has lost push {known} of {worker} to {op.table}, which was done"
            if isinstance(op, Push):
                reached[op.table] = max(applied, op.sequence)
        newest = self._greeted.get((server.number, worker), 0)
        assert incarnation >= newest, f"{server.name} serves life {incarnation} of {worker} after its life {newest}"
        self._greeted[server.number, worker] = incarnation
        if self.simulated is not None:
            in_place = self.simulated.servers.roster.servers[server.number].name
            assert server.name == in_place, f"{server.name} serves {worker} though {in_place} is in its place"

    def acknowledged(self, session: Session, call: Any) -> None:
        """All servers have answered a call."""
        if sequence := getattr(call, "sequence", 0):
            key = session.worker, session.incarnation, call.table
            self._acknowledged[key] = max(sequence, self._acknowledged.get(key, 0))

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record what happens in the block, whose disk is the drawn one."""
        run, finish = Server._run, Session._finish

        def _run(server: Server, peer: str, request: OpRequest, *rest: Any) -> Any:
            self.served(server, request)
            return run(server, peer, request, *rest)

        def _finish(session: Session, key: int) -> None:
            self.acknowledged(session, session._pending[key].call)
            finish(session, key)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Server, "_run", _run)
            patch.setattr(Session, "_finish", _finish)
            patch.setattr(disk, "os", self.disk)
            yield


class DrawnJournal(MemoryJournal):
    """A journal on the drawn disk, which tells the history what is done."""

    def __init__(self, history: History, found: JournalContents | None) -> None:
        super().__init__(found)
        self._history = history

    def note(self, record: Record) -> None:
        go = self._decisions.under_way.get(record.lane)
        try:
            super().note(record)
        except Crash:
            if isinstance(record, BatchDone) and go is not None and self._head_knows(go):
                self._history.done.append((go.epoch, go.batch))
            raise
        if isinstance(record, BatchDone):
            assert go is not None, f"lane {record.lane} is done, and had begun nothing"
            batch = go.epoch, go.batch
            assert batch not in self._history.done, f"batch {batch} is done twice"
            self._history.done.append(batch)
        else:
            others = [other for lane, other in self._decisions.under_way.items() if lane != record.lane]
            assert (record.epoch, record.batch) not in [(other.epoch, other.batch) for other in others], "begun twice"

    def _head_knows(self, go: Go) -> bool:
        """Whether the head says already that a batch is done, so that the next coordinator does not repeat it."""
        assert self._history.simulated is not None
        coordinator, left = self._history.simulated.coordinator, self.read()
        assert left is not None
        leases = restored_leases(coordinator._job, coordinator._reader, json.loads(left.head.progress))
        try:
            leases.claim("nobody else", go.epoch, go.batch)
        except ValueError:
            return True
        return False

    def _replace(self, line: bytes) -> None:
        self._check_disk()
        super()._replace(line)

    def _append(self, line: bytes) -> None:
        self._check_disk()
        if self._history.disk.tears_journal:
            self._history.disk.tears_journal = False
            super()._append(line[: len(line) // 2])
            raise Crash
        super()._append(line)

    def _check_disk(self) -> None:
        if self._history.disk.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def check_staleness(job: Job, simulated: SimulatedJob) -> None:
    if job.sync.bound is not None:
        assert max(simulated.core.flow.leads.values(), default=0) <= job.sync.bound, "somebody was too far ahead"


def check_checkpoints(folder: Path, batch_size: int) -> int:
    """Check that each checkpoint is one cut, and return how many there are."""
    found = finished(folder / "checkpoints")
    for each in found:
        snapshot = load(each.path)
        assert snapshot.samples == snapshot.clock * batch_size, f"{each.path} is of no cut"
        updates = {name: table.meta["num_pushes"] for name, table in snapshot.tables.items()}
        assert set(updates.values()) == {snapshot.clock}, f"{each.path} at {snapshot.clock} has updates {updates}"
    return len(found)
