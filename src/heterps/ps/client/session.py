"""Session: a worker's side of the protocol with all servers. Calls, messages and the time in, messages out.

    submit(call) --> line of each server it concerns: [call call call] --one request--> in flight --reply--> call done
                                                       merged when flushed,              asked again after a while,
                                                       as far as credit allows           given up at the deadline

A call that is for after the end of a round goes in a request of its own, which servers hold until then. It takes no
credit and has no deadline: a round lasts as long as its slowest worker, and what is sent meanwhile must not wait.

No thread, no socket, no clock: `remote.RemoteClient` drives it with those, tests drive it on a simulated network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from msgspec.msgpack import encode

from heterps.errors import HeterpsError, MirrorDiffers, NotFinite, PeerLost, StaleIncarnation, last_heard
from heterps.ps.client.counts import ClientCounts
from heterps.ps.client.under_way import Flight, Line, PendingCall
from heterps.ps.ops.base import Built, Call
from heterps.ps.ops.requests import OpReply, OpRequest, client_codec, server_codec
from heterps.ps.protocol.frames import Frames
from heterps.ps.protocol.messages import EXACT, AskRoster, Coding, Hello, Refused, Welcome
from heterps.ps.protocol.roster import Roster, Seat
from heterps.wire import Frame, Limits, WireError
from heterps.wire.message import message_bytes

Outgoing = list[tuple[str, list[Frame]]]
MAX_OPS = 256
MARGIN_BYTES = 2048
"""The header of a request takes less than this besides its ops: the name of its worker has up to 200 characters."""
UNSENT_RETRY_S = 0.02
PROBE_S = 0.2
"""When a server has not answered for this long, its mirror is asked for the roster, and again after as long."""
REFRESH_S = 1.0
"""How often servers with mirrors, and these, are asked for the roster in any case."""


@dataclass(frozen=True)
class Options:
    """How patient, how far ahead and in which coding a worker talks to its servers."""

    deadline_s: float = 60.0  # from the first sending of a call, or of the greeting before it, to its answer
    first_retry_s: float = 1.0  # then twice as long each time
    longest_retry_s: float = 8.0
    linger_s: float = 0.001  # how long calls that nobody waits for may wait for others to go with
    max_requests: int = 8  # in flight to one server
    max_bytes: int = 64 * 2**20  # in flight to one server, in requests and expected answers; one always may
    max_waiting: int = 512  # calls not sent yet to one server; beyond, the caller waits
    codings: Mapping[str, Coding] = field(default_factory=dict)  # by table; others travel as they are

    def coding(self, table: str) -> Coding:
        return self.codings.get(table, EXACT)


class Session:
    """What worker `worker` in its `incarnation` has under way. After a fatal `error` it takes no more calls."""

    def __init__(
        self, worker: str, incarnation: int, roster: Roster, tables: str, options: Options, limits: Limits = Limits()
    ) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.roster = roster
        self.options = options
        self.rounds = 0  # that are over: all requests say so
        self.after_round = 0  # servers are to hold what is called from now on until this round is over
        self.error: HeterpsError | None = None
        self.dropped = 0  # messages that were not understood
        self.retries = 0
        self.counts = ClientCounts()  # by kind, and what was saved
        self._tables = tables
        self._limits = limits
        self._codec = client_codec(limits)
        self._requests = server_codec(limits)
        self._lines = [Line(seat, mirror=roster.mirror(number)) for number, seat in enumerate(roster.servers)]
        self._is_mirrored = bool(roster.mirrors)  # also while a server has none
        self._probes: set[int] = set()  # ids of questions for the roster
        self._pending: dict[int, PendingCall] = {}  # all calls without a full answer, in the order they were made
        self._finished: list[tuple[Future[Any], Any]] = []
        self._ids = 0

    # --- the caller's side -------------------------------------------------------------------------------------------

    def submit(self, call: Call, future: Future[Any], clock: int, now: float) -> None:
        """Put a call into the lines of the servers it concerns."""
        if self.error is not None:
            raise self.error
        key, pending = self._next_id(), PendingCall(call, future, clock, now, self.after_round)
        self._pending[key] = pending
        self._enqueue(pending)
        if not pending.waiting:
            self._finish(key)

    def flush(self) -> None:
        """Send what is queued as soon as credit allows: somebody waits for it."""
        for line in self._lines:
            line.due = line.due or bool(line.queue)

    @property
    def has_room(self) -> bool:
        return all(len(line.queue) < self.options.max_waiting for line in self._lines)

    @property
    def has_finished(self) -> bool:
        return bool(self._finished)

    @property
    def is_busy(self) -> bool:
        """Whether anything is queued or waits for an answer that can be given now."""
        return any(line.queue or line.in_credit(self.rounds) for line in self._lines)

    def finished(self) -> list[tuple[Future[Any], Any]]:
        """Return futures and their exceptions or results, to be set outside any lock: they run callbacks."""
        done, self._finished = self._finished, []
        return done

    # --- the network's side ------------------------------------------------------------------------------------------

    def outgoing(self, now: float) -> Outgoing:
        """Return what is to be sent now: first and repeated requests."""
        messages: Outgoing = []
        try:
            for line in self._lines:
                messages += [(line.seat.name, parts) for parts in self._repeats(line, now)]
                messages += [(line.seat.name, parts) for parts in self._firsts(line, now)]
                messages += self._probe(line, now)
        except WireError as error:  # a call that no message can hold
            self.fail(error)
        return messages if self.error is None else []

    def unsent(self, peer: str, parts: list[Frame], now: float) -> None:
        """Try a message of `outgoing` again soon, as if new: its peer was absent or full."""
        flights = [flight for line in self._lines if line.seat.name == peer for flight in line.flights.values()]
        for flight in flights:
            if flight.parts is parts:
                flight.is_unsent, flight.retry_s = True, self.options.first_retry_s
                flight.retry_at = min(now + UNSENT_RETRY_S, flight.deadline)

    def next_time(self) -> float | None:
        """Return when `outgoing` is to be called again, if nothing else happens."""
        times = [flight.retry_at for line in self._lines for flight in line.flights.values()]
        times += [min(line.probe_at, line.refresh_at) for line in self._lines if self._is_mirrored]
        times += [line.queue[0].since + self.options.linger_s for line in self._lines if line.queue and not line.due]
        return min(times, default=None)

    def receive(self, peer: str, parts: list[memoryview], now: float) -> None:
        """Take a message of a server. What is not understood, or was not asked for, is left out: we ask again."""
        line = next((line for line in self._lines if line.seat.name == peer), None)
        try:
            header, frames = self._codec.decode(parts)
            if line is not None:
                line.heard_at = now
            if isinstance(header, Welcome) and header.id in self._probes:
                self._probes.clear()
                self._adopt(header.roster, now)
                return
            if line is None or header.id not in line.flights:
                return
            line.probe_at = math.inf
            match header:
                case Welcome():
                    del line.flights[header.id]
                    line.greeted = True
                    self._adopt(header.roster, now)
                case OpReply():
                    self._on_reply(line, header, Frames(frames))
                case Refused():
                    self._on_refused(line, header, now)
                case _:
                    pass  # not asked for by sessions
        except WireError:
            self.dropped += 1

    def fail(self, error: HeterpsError) -> None:
        """End everything with `error`."""
        self.error = self.error or error
        self._finished += [(pending.future, error) for pending in self._pending.values()]
        self._pending.clear()
        for line in self._lines:
            line.queue.clear()
            line.flights.clear()

    # --- sending -----------------------------------------------------------------------------------------------------

    def _firsts(self, line: Line, now: float) -> Iterator[list[Frame]]:
        options = self.options
        if line.queue and not line.greeted:
            if not line.flights:
                hello = Hello(self._next_id(), self.worker, self.incarnation, self._tables)
                yield self._launch(line, hello, [], [], 0, self._deadline(line.queue, now), now)
            return
        if line.queue and now >= line.queue[0].since + options.linger_s:
            line.due = True
        while line.queue and line.due and len(flights := line.in_credit(self.rounds)) < options.max_requests:
            if flights and sum(flight.num_bytes for flight in flights) >= options.max_bytes:
                return
            yield self._merge(line, now)
        line.due = line.due and bool(line.queue)

    def _merge(self, line: Line, now: float) -> list[Frame]:
        """Make one request of as many queued calls as fit into a message."""
        number = self.roster.number(line.seat.name)
        parts: list[Built] = []
        calls: list[PendingCall] = []
        frames: list[Frame] = []
        num_bytes, header_bytes = 0, MARGIN_BYTES
        after_round = line.queue[0].after_round
        while line.queue and len(parts) < MAX_OPS and len(frames) < self._limits.frames - 8:
            if line.queue[0].after_round != after_round:  # the server would hold that too
                break
            built = line.queue[0].call.build(number, self.roster)
            size = message_bytes(built.frames) + built.reply_bytes
            header_bytes += len(encode(built.op))
            if parts and (num_bytes + size > self.options.max_bytes or header_bytes > self._limits.header_bytes):
                break
            calls.append(line.queue.popleft())
            parts.append(built)
            frames += built.frames
            num_bytes += size
        self.counts.requested(parts)
        epoch, rounds, ops = self.roster.epoch, self.rounds, tuple(built.op for built in parts)
        request = OpRequest(self._next_id(), self.worker, self.incarnation, epoch, ops, rounds, after_round)
        return self._launch(line, request, frames, calls, num_bytes, self._deadline(calls, now), now)

    def _deadline(self, calls: Iterable[PendingCall], now: float) -> float:
        """Return when the first of `calls`, which are about to be sent or greeted for, must have its answer."""
        deadlines = []
        for pending in calls:
            if pending.deadline is None:
                pending.deadline = math.inf if pending.after_round else now + self.options.deadline_s
            deadlines.append(pending.deadline)
        return min(deadlines)

    def _launch(
        self, line: Line, header: Hello | OpRequest, frames: list[Frame], calls: list[PendingCall],
        num_bytes: int, deadline: float, now: float,
    ) -> list[Frame]:  # fmt: skip
        parts = self._requests.encode(header, frames)
        retry_s = self.options.first_retry_s
        retry_at = min(now + retry_s, deadline)
        after_round = header.after_round if isinstance(header, OpRequest) else 0
        line.flights[header.id] = Flight(parts, calls, num_bytes, deadline, retry_at, retry_s, after_round)
        return parts

    def _repeats(self, line: Line, now: float) -> Iterator[list[Frame]]:
        for flight in list(line.flights.values()):
            if now >= flight.deadline:
                self._give_up(line, flight, now)
                return
            if now >= flight.retry_at:
                flight.retry_s = min(2 * flight.retry_s, self.options.longest_retry_s)
                flight.retry_at = min(now + flight.retry_s, flight.deadline)
                self.retries += not flight.is_unsent
                flight.is_unsent = False
                yield flight.parts

    def _probe(self, line: Line, now: float) -> Outgoing:
        """Ask for the roster: the mirror of a server that does not answer, and may have been replaced by it.

        Now and then both are asked: a worker that missed two changes would otherwise know lost servers only."""
        asked: list[Seat | None] = []
        line.probe_at = min(line.probe_at, now + PROBE_S) if line.flights and self._is_mirrored else math.inf
        if now >= line.probe_at:
            asked, line.probe_at = [line.mirror], now + PROBE_S
        if now >= line.refresh_at and self._is_mirrored:
            asked, line.refresh_at = [line.seat, line.mirror], now + REFRESH_S
        ask = AskRoster(self._next_id())
        self._probes |= {ask.id} if asked else set()
        return [(seat.name, self._requests.encode(ask)) for seat in asked if seat is not None]

    def _give_up(self, line: Line, flight: Flight, now: float) -> None:
        what = "a greeting"
        if flight.calls:
            first = flight.calls[0]
            what = f"{first.call.name} of table {first.call.table} at clock {first.clock}"
        where = f" at {line.seat.address}" if line.seat.address else ""
        self.fail(
            PeerLost(
                f"server {line.seat.name}{where} did not answer worker {self.worker} within "
                f"{self.options.deadline_s:g} s ({what}{last_heard(now - line.heard_at) if line.heard_at else ''}): "
                "see whether it runs, then resume from the last checkpoint"
            )
        )

    # --- answers -----------------------------------------------------------------------------------------------------

    def _on_reply(self, line: Line, reply: OpReply, frames: Frames) -> None:
        flight, number = line.flights[reply.id], self.roster.number(line.seat.name)
        if len(reply.results) != len(flight.calls):
            raise WireError(f"{len(flight.calls)} ops were asked for, {len(reply.results)} answered")
        for pending, result in zip(flight.calls, reply.results, strict=True):
            before = frames.at
            pending.call.take(number, self.roster, result, frames)
            self.counts.answered(pending.call, result, frames.taken(before))
        frames.end()
        del line.flights[reply.id]
        for pending in flight.calls:
            pending.waiting.discard(number)
        self._finish_answered()

    def _finish_answered(self) -> None:
        for key in [key for key, pending in self._pending.items() if not pending.waiting]:
            self._finish(key)

    def _finish(self, key: int) -> None:
        pending = self._pending.pop(key)
        self._finished.append((pending.future, pending.call.result()))

    def _on_refused(self, line: Line, refused: Refused, now: float) -> None:
        match refused.code:
            case "later":
                flight = line.flights[refused.id]
                flight.retry_at, flight.retry_s = min(flight.retry_at, now + flight.later_s), self.options.first_retry_s
                flight.later_s = min(2 * flight.later_s, self.options.first_retry_s)
            case "mirror_differs":
                self.fail(MirrorDiffers(refused.text))
            case "stale_epoch" if refused.roster is not None:
                self._adopt(refused.roster, now)
            case "not_finite":
                self.fail(NotFinite(f"server {line.seat.name} refused a push: {refused.text}"))
            case "stale_incarnation":
                self.fail(StaleIncarnation(refused.text))
            case "unknown_worker":
                self.fail(
                    PeerLost(
                        f"server {line.seat.name} was started anew and has lost what worker {self.worker} pushed: "
                        "resume from the last checkpoint"
                    )
                )
            case _:
                self.fail(PeerLost(f"server {line.seat.name} refused a request: {refused.text}"))

    def _adopt(self, roster: Roster, now: float) -> None:  # noqa: ARG002
        """Follow a newer roster: ask everything again that has no full answer. Servers know what they have applied."""
        if roster.epoch <= self.roster.epoch:
            return
        greeted = {line.seat for line in self._lines if line.greeted}
        heard = {line.seat: line.heard_at for line in self._lines}
        self.roster = roster
        self._lines = [
            Line(seat, greeted=seat in greeted, mirror=roster.mirror(number), heard_at=heard.get(seat))
            for number, seat in enumerate(roster.servers)
        ]
        for pending in self._pending.values():
            self._enqueue(pending)
        self._finish_answered()  # those that concern no server of the new roster
        self.flush()

    def _enqueue(self, pending: PendingCall) -> None:
        pending.waiting = {
            number for number in range(self.roster.num_shards) if pending.call.concerns(number, self.roster)
        }
        for number in pending.waiting:
            self._lines[number].queue.append(pending)

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids
