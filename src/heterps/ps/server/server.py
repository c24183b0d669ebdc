"""Server: a message and the time in, messages out. No socket, no thread, no lock, no clock of its own.

    parts --decode--> [1] bytes that are no message: counted, dropped
                      [2] from an old incarnation of a worker, or for another epoch: refused
                      [3] ops checked against tables, frames and key homes; anything wrong: refused as a whole
                      [4] an older push of the worker is missing, or a round is not over: held until then (received)
                      [5] contributions to rounds: those that do not fit theirs are refused, others may have to wait
                      [6] run in order, after the rounds that the request says are over; pushes that are in the ledger
                          already are only answered
                      [7] with a mirror (mirror_stream.py): what has changed is forwarded, and the answer waits for it

So a peer can send what it likes: the server lives, and what it does not take it counts by reason. A server that is the
mirror of another runs what that forwards, and answers workers when it is in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.json import encode as to_json

from heterps.errors import HeterpsError, NotFinite
from heterps.ps.ops.base import InDoubt, Op, Push, Result, Serving, Work
from heterps.ps.ops.mirrors import Fill, Lead, MirrorAck
from heterps.ps.ops.moves import Agreed, Deliver, Fetch, ForgetMoved, Handover, Prepare, Switch
from heterps.ps.ops.requests import FromServer, MirrorOps, OpReply, OpRequest, ToServer, client_codec, server_codec
from heterps.ps.protocol.frames import Frames
from heterps.ps.protocol.messages import AskRoster, AskStats, Hello, Refused, StatsReply, Welcome
from heterps.ps.protocol.roster import Roster, follows
from heterps.ps.protocol.row_files import RowFiles
from heterps.ps.protocol.specs import TableSpecs
from heterps.ps.server.mirror_stream import Changed, Outgoing
from heterps.ps.server.mirroring import Mirroring
from heterps.ps.server.refusals import MAX_HELD, MAX_HELD_BYTES, Refusal, check_rounds, keeps
from heterps.ps.server.stats import Rate, ServerStats, counted, table_stats
from heterps.ps.shard.counts import ServerCounts
from heterps.ps.shard.ledger import PushSource
from heterps.ps.shard.shard import Shard
from heterps.ps.shard.transfer import ShardTransfer
from heterps.wire import Frame, Limits, WireError
from heterps.wire.arena import Bytes

Task = tuple[Work, list[Frame]]
"""What is to be done for an op, and its frames."""
HOLD_S = 60.0
"""A request that is held, and was not repeated for this long, is dropped: its worker has given up before."""
DRAIN_S = 300.0
"""After Prepare, new rounds are refused for this long. It is longer than any worker's deadline, so that an aborted
rebalance cannot block for ever."""


@dataclass
class _Held:
    """A request that waits for an older push, or for the end of a round."""

    peer: str
    request: OpRequest
    tasks: list[Task]
    since: float
    num_bytes: int


class Server:
    """Server `name` of `roster`, with its shard of `tables`.

    joining    the server was added by `roster` and is still empty: it answers requests once a rebalance has filled it
    mirrors    the number of the server whose mirror this one is to be: it takes its place in the roster later
    row_files  where it saves and loads its own rows; none: they travel to the client that asks for them
    """

    def __init__(
        self,
        name: str,
        roster: Roster,
        tables: TableSpecs,
        *,
        joining: bool = False,
        mirrors: int | None = None,
        row_files: RowFiles | None = None,
        limits: Limits = Limits(),
    ) -> None:
        self.name = name
        self.roster = roster
        self.number = roster.number(name) if mirrors is None else mirrors
        if self.number < 0:
            raise ValueError(f"server {name} is not in the roster: {', '.join(seat.name for seat in roster.servers)}")
        self._incarnation = roster.servers[self.number].incarnation
        self.shard = Shard(tables, roster, self.number)
        self.shard.row_files = row_files
        self.counts = ServerCounts()
        self.tables = tables
        self.room: Callable[[str, int], Bytes | None] = lambda *_: None  # where to make large frames for a peer
        self._codec = server_codec(limits)
        self._answers = client_codec(limits)
        self._limits = limits
        self.workers: dict[str, int] = {}  # the newest incarnation of each
        self._held: dict[tuple[str, int], _Held] = {}  # by worker and request id
        self._rate = Rate()
        self._now = 0.0  # when something came last, or the last tick
        self.mirroring = Mirroring(self, self._codec, self._answers, is_mirror=mirrors is not None)
        self._handover = Handover()
        self._drains_until = -math.inf
        self.rounds = 0  # that are over
        self._told = roster.before_add() if joining else roster  # what workers learn here: the roster in force
        if joining:
            self.shard.empty()
            self._handover.begin(roster.before_add(), roster, name, self.shard, {})

    def handle(self, peer: str, parts: list[memoryview], now: float) -> Outgoing:
        """Take a message of `peer`; return what is to be sent, and to whom."""
        self._now = now
        self.mirroring.settle()
        try:
            header, frames = self._codec.decode(parts)
        except WireError as error:  # [1]
            self.counts.drop(type(error).__name__)
            return []
        try:
            if isinstance(header, OpRequest):
                return self._take(peer, header, frames, now)
            if isinstance(header, (Lead, Fill, MirrorOps, MirrorAck)):
                return self.mirroring.take(peer, header, frames, now)
            answer, answer_frames = self._reply(header, Frames(frames), now)
        except Refusal as refusal:
            return [self._refuse(peer, header.id, refusal)]
        except (WireError, ValueError) as error:
            return [self._refuse(peer, header.id, Refusal("bad_request", str(error)))]
        except (MemoryError, HeterpsError) as error:
            return [self._refuse(peer, header.id, Refusal("failed", f"{type(error).__name__}: {error}"))]
        message = peer, self._answers.encode(answer, answer_frames)
        return self.mirroring.hold(message, header.id, now) if isinstance(header, Hello) else [message]

    def _reply(self, header: ToServer, frames: Frames, now: float) -> tuple[FromServer, list[Frame]]:
        """Return the answer to all but requests."""
        match header:
            case Hello():
                return self._greet(header), []
            case AskStats():
                return StatsReply(header.id), [to_json(self.stats())]
            case AskRoster():
                return Welcome(header.id, self.roster), []
            case Prepare():
                self._prepare(header.roster, now)
            case Switch():
                self._switch(header.roster, now)
            case Fetch():
                self._check_epoch(header.epoch)
                return self._handover.fetch(header)
            case Deliver():
                self._check_epoch(header.epoch)
                if (transfer := self._handover.deliver(header, frames)) is not None:
                    self._load(transfer)
                    self._handover.arrived(header.source)
            case ForgetMoved():
                self._check_epoch(header.epoch)
                self._handover.forget(header.target)
            case _:
                raise AssertionError(f"{type(header).__name__} is taken elsewhere")
        return Agreed(header.id), []

    def tick(self, now: float) -> Outgoing:
        """Refuse what was held too long; return what is to be sent. Call it about every second."""
        self._now = now
        self.counts.began_at = self.counts.began_at or now
        for key, held in list(self._held.items()):
            if now - held.since > HOLD_S:
                del self._held[key]
                self.counts.drop("held_too_long")
        self.shard.exports.tick()
        self._rate.update(self.counts.num_rows, now)
        return self.mirroring.tick(now)

    def stats(self) -> ServerStats:
        return ServerStats(
            server=self.name,
            shard=self.number,
            num_shards=self.roster.num_shards,
            epoch=self.roster.epoch,
            incarnation=self._incarnation,
            workers=len(self.workers),
            held=len(self._held),
            kept=sum(map(len, self.shard.stashes)),
            waits_for=self._handover.waits_for,
            rounds=self.rounds,
            rows_per_s=self._rate.per_s,
            silence_s={worker: self._now - heard for worker, heard in self.counts.heard.items()},
            tables=table_stats(self.shard, self.counts),
            mirror=self.mirroring.stats(self._now),
            **counted(self.counts, self._now),
        )

    # --- who speaks --------------------------------------------------------------------------------------------------

    def _greet(self, hello: Hello) -> Welcome:
        if hello.tables != self.tables.digest:
            raise Refusal(
                "other_tables",
                f"worker {hello.worker} expects other tables than server {self.name} has: start both from the same job "
                "and, where its plan has several stages, by the same `--plan`",
            )
        self._check_life(hello.worker, hello.incarnation)
        self.mirroring.check_greeting()
        if hello.incarnation > self.workers.get(hello.worker, 0):
            self.workers[hello.worker] = hello.incarnation
            self.counts.heard[hello.worker] = self._now
            for key in [key for key in self._held if key[0] == hello.worker]:
                del self._held[key]  # of an older life
            self.mirroring.forward(hello.worker, hello.incarnation)
        return Welcome(hello.id, self._told)

    def _check_life(self, worker: str, incarnation: int) -> None:
        newest = self.workers.get(worker, 0)
        if incarnation < newest:
            raise Refusal(
                "stale_incarnation",
                f"worker {worker} lives its life {newest} already; its life {incarnation} must end",
            )

    def _refuse(self, peer: str, request_id: int, refusal: Refusal) -> tuple[str, list[Frame]]:
        self.counts.drop(refusal.code)
        roster = self._told if refusal.code == "stale_epoch" else None
        return peer, self._answers.encode(Refused(request_id, refusal.code, str(refusal), roster))

    # --- moves -------------------------------------------------------------------------------------------------------

    def _prepare(self, roster: Roster, now: float) -> None:
        """Be ready to follow the next roster: no move under way, and no round. For DRAIN_S none begins.

        All servers must be ready before the first of them follows. A worker that has learned of the next roster brings
        nothing for this one, so that a round that others have begun here by then could not end.
        """
        if roster == self.roster:
            return
        if not follows(roster, self.roster):
            text = f"server {self.name} is at epoch {self.roster.epoch}; epoch {roster.epoch} does not follow it"
            raise Refusal("bad_request", text)
        if not self._handover.is_over:
            raise Refusal("later", f"it has not finished the move to epoch {self.roster.epoch}")
        self._drains_until = now + DRAIN_S
        if any(self.shard.stashes):
            raise Refusal("later", keeps(self.name, self.shard))

    def _switch(self, roster: Roster, now: float) -> None:
        """Follow the next roster. What is held is let go: it was made for the roster that ends here."""
        if roster == self.roster:
            self._told = roster  # a server that joins: the others are ready
            return
        self._prepare(roster, now)
        self._drains_until = -math.inf
        self._handover.begin(self.roster, roster, self.name, self.shard, self.workers)
        self.roster, self.number = roster, roster.number(self.name)
        self._told = roster
        self._held.clear()

    def follow(self, roster: Roster) -> None:
        """Follow a newer roster with the same shards. What is held will be asked again, by that roster."""
        self.roster = self._told = roster
        self._held.clear()
        self.shard.exports.clear()

    def _load(self, transfer: ShardTransfer) -> None:
        self.shard.load(transfer)
        for worker, incarnation in transfer.manifest.workers.items():
            self.workers[worker] = max(incarnation, self.workers.get(worker, 0))

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.roster.epoch:
            raise Refusal("stale_epoch", f"epoch {epoch} has ended; this is epoch {self.roster.epoch}")
        if epoch > self.roster.epoch:
            raise Refusal("later", f"server {self.name} has not reached epoch {epoch} yet")

    # --- requests ----------------------------------------------------------------------------------------------------

    def _take(self, peer: str, request: OpRequest, frames: list[memoryview], now: float) -> Outgoing:
        self.counts.requests += 1
        self._check_life(request.worker, request.incarnation)  # [2]
        self._check_epoch(request.epoch)  # before the next: it may be meant for a server of this name that has left
        if request.incarnation != self.workers.get(request.worker, 0):
            raise Refusal("unknown_worker", f"server {self.name} does not know worker {request.worker}: say hello")
        self.counts.heard[request.worker] = now
        if not self._handover.is_complete:
            sources = ", ".join(self._handover.waits_for)
            raise Refusal("later", f"server {self.name} waits for what moves to it from {sources}")
        self.mirroring.check_lease(now)
        try:
            tasks = self._check(request.ops, frames)  # [3]
        except WireError as error:
            raise Refusal("bad_request", str(error)) from error
        except NotFinite as error:
            raise Refusal("not_finite", str(error)) from error
        if not self._is_ready(request):  # [4]
            self._hold(_Held(peer, request, tasks, now, sum(frame.nbytes for frame in frames)))
            return []
        return [*self._answer(peer, request, tasks, now), *self._release(now)]

    def _check(self, ops: Sequence[Op], frames: list[memoryview]) -> list[Task]:
        """Return what is to be done for ops with these frames; WireError where they do not fit."""
        taken, tasks = Frames(frames), []
        for op in ops:
            first = taken.at
            work = op.check(taken, self.shard, self._limits)
            tasks.append((work, list[Frame](frames[first : taken.at])))
        taken.end()
        return tasks

    def _hold(self, held: _Held) -> None:
        key = (held.request.worker, held.request.id)
        others = [other for other_key, other in self._held.items() if other_key != key]
        too_many = len(others) >= MAX_HELD or sum(o.num_bytes for o in others) + held.num_bytes > MAX_HELD_BYTES
        if too_many:
            raise Refusal("later", f"server {self.name} holds {len(others)} requests that wait for pushes or rounds")
        self._held[key] = held

    def _release(self, now: float) -> Outgoing:
        """Answer what was held for a push or round that has now been applied, until nothing more is ready."""
        answers: Outgoing = []
        while ready := next((key for key, held in self._held.items() if self._is_ready(held.request)), None):
            held = self._held.pop(ready)
            answers += self._answer(held.peer, held.request, held.tasks, now)
        return answers

    def _is_ready(self, request: OpRequest) -> bool:
        """Whether all rounds and pushes that the request builds on have been applied, or stand before that in it."""
        if request.after_round > max(self.rounds, request.rounds):
            return False
        source = PushSource(request.worker, request.incarnation)
        reached: dict[str, int] = {}
        for op in request.ops:
            applied = reached.setdefault(op.table, self._applied(source, op.table))
            if op.needs > applied:
                return False
            if isinstance(op, Push):
                reached[op.table] = max(applied, op.sequence)
        return True

    def _applied(self, source: PushSource, table: str) -> int:
        return self.shard.pieces_of(table).applied(source, table)

    def _answer(self, peer: str, request: OpRequest, tasks: list[Task], now: float) -> Outgoing:
        """Run a request; return its answer, unless that has to wait, and what a mirror must know of it. [7]"""
        has_ended_rounds = self._end_rounds(request.rounds)
        self.mirroring.copy_if_wanted()
        changed: list[Changed] = []
        answer = self._run(peer, request, tasks, changed, now)
        if changed or has_ended_rounds:
            self.mirroring.forward(request.worker, request.incarnation, changed, request.rounds)
        # A repeat has changed nothing; but what its first copy changed may not be at the mirror yet.
        waits = bool(changed) or any(op.changes for op in request.ops)
        return self.mirroring.hold(answer, request.id, now, waits=waits)

    def _run(
        self, peer: str, request: OpRequest, tasks: list[Task], changed: list[Changed], now: float
    ) -> tuple[str, list[Frame]]:
        """[6] Do the ops in order; `changed` gets those that a mirror must run too.

        Where one fails, those before it stay done: a repeat will not do them again.
        """
        source = PushSource(request.worker, request.incarnation)
        try:
            check_rounds(self.name, self.shard, source, request.ops, drains=now < self._drains_until)
        except Refusal as refusal:
            return self._refuse(peer, request.id, refusal)
        serving = Serving(source, self.counts, partial(self.room, peer), lambda *n: changed.append(n), self.stats)
        results: list[Result] = []
        frames: list[Frame] = []
        for op, (work, own_frames) in zip(request.ops, tasks, strict=True):
            changes = op.changes and not op.is_repeat(self.shard, source)
            try:
                result, more = work(serving)
            except (MemoryError, ValueError, HeterpsError, InDoubt) as error:
                what = str(error) if isinstance(error, HeterpsError) else f"{type(error).__name__}: {error}"
                text = f"server {self.name} failed at table {op.table}: {what}"
                return self._refuse(peer, request.id, Refusal("failed", text))
            if changes:
                changed.append((op, own_frames))
            results.append(result)
            frames += more
        return peer, self._answers.encode(OpReply(request.id, tuple(results)), frames)

    def replay(self, forward: MirrorOps, frames: list[memoryview]) -> None:
        """Run what a request has changed on the server that this one mirrors."""
        if forward.worker:
            self.workers[forward.worker] = forward.incarnation
        self._end_rounds(forward.rounds)
        serving = Serving(PushSource(forward.worker, forward.incarnation), self.counts)
        for work, _ in self._check(forward.ops, frames):
            work(serving)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _end_rounds(self, rounds: int) -> bool:
        """Apply what is kept of rounds up to this number; False where they were over before."""
        if rounds <= self.rounds:
            return False
        self.rounds = rounds
        self.shard.end_rounds(rounds)
        return True
