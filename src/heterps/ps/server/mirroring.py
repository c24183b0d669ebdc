"""Mirroring: what a server does because it has a mirror, or is one.

Lead             of the keeper (ps/client/keeper.py): its roster says who has which place; the answer says that we live
Fill, MirrorOps  of the server that this one mirrors: taken in order, answered by MirrorAck, and then run
MirrorAck        of this server's own mirror: answers that waited for it go
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from heterps.errors import MirrorDiffers
from heterps.ps.ops.mirrors import ExpectDigest, Fill, Lead, Led, MirrorAck, take_fill
from heterps.ps.ops.requests import FromServer, MirrorOps, ToServer
from heterps.ps.protocol.frames import Frames
from heterps.ps.protocol.messages import Refused
from heterps.ps.protocol.roster import Roster, Seat
from heterps.ps.server.mirror_role import Lease, MirrorRole
from heterps.ps.server.mirror_stream import Changed, MirrorStream, Outgoing
from heterps.ps.server.refusals import Refusal
from heterps.ps.server.stats import MirrorStats
from heterps.ps.shard.copies import copy_parts
from heterps.wire import Codec, Frame

if TYPE_CHECKING:
    from heterps.ps.server.server import Server


class Mirroring:
    """The part of `server` that deals with mirrors: its own, to which `_stream` goes, or itself in that `_role`."""

    def __init__(self, server: Server, codec: Codec[ToServer], answers: Codec[FromServer], *, is_mirror: bool) -> None:
        self._server, self._codec, self._answers = server, codec, answers
        self._lease = Lease()
        self._stream: MirrorStream | None = None
        self._role = MirrorRole(server.shard) if is_mirror else None
        self.is_leaving = False
        """Whether the process was told to end. It serves on for a while, and the keeper hears of it."""

    @property
    def mirror(self) -> Seat | None:
        """The mirror of this server, to which it sends."""
        return None if self._stream is None else self._server.roster.mirror(self._server.number)

    def stats(self, now: float) -> MirrorStats | None:
        """Return how near this server's mirror is; None where it has none."""
        return None if self._stream is None else self._stream.stats(now)

    # --- while requests are served -----------------------------------------------------------------------------------

    def check_greeting(self) -> None:
        """Refuse to be greeted as a mirror."""
        if self._role is not None:
            raise Refusal("later", f"server {self._server.name} is a mirror, and has not been told to take over")

    def check_lease(self, now: float) -> None:
        """Refuse to serve where the mirror may be in this server's place already."""
        if self._stream is not None and self._stream.is_synced and not self._lease.is_valid(now):
            name = self._server.name
            raise Refusal("later", f"server {name} was not led for a while, and its mirror may have taken over")

    def copy_if_wanted(self) -> None:
        """Begin to fill a new mirror, as soon as no contributions to rounds are kept: these do not travel."""
        server = self._server
        if self._stream is not None and not self._stream.is_begun and not any(server.shard.stashes):
            self._stream.begin(copy_parts(server.shard, server.workers, server.rounds))

    def forward(self, worker: str, incarnation: int, changed: Iterable[Changed] = (), rounds: int = 0) -> None:
        """Let the mirror, if there is one, know what a request has changed."""
        if self._stream is not None:
            self._stream.forward(worker, incarnation, list(changed), rounds)

    def hold(self, answer: tuple[str, list[Frame]], request_id: int, now: float, *, waits: bool = True) -> Outgoing:
        """Return what is to be sent now: to the mirror, and the answer, unless that waits until the mirror has all."""
        if self._stream is None:
            return [answer]
        answers = self._stream.hold(answer[0], request_id, answer[1]) if waits else [answer]
        return [*self._stream.outgoing(now), *answers]

    def tick(self, now: float) -> Outgoing:
        return [] if self._stream is None else self._stream.tick(now)

    # --- messages ----------------------------------------------------------------------------------------------------

    def take(
        self, peer: str, header: Lead | Fill | MirrorOps | MirrorAck, frames: list[memoryview], now: float
    ) -> Outgoing:
        """Take a message of the keeper, of the server that this one mirrors, or of its own mirror."""
        match header:
            case Lead():
                self._lease.renew(header, now)
                sent = self._follow(header.roster, now)
                is_synced, differs = (self._role.is_synced, self._role.differs) if self._role else (False, "")
                led = Led(header.id, self._server.roster.epoch, is_synced, differs, self.is_leaving)
                return [*sent, (peer, self._answers.encode(led))]
            case MirrorAck():
                return self._taken(peer, header, now)
        roster = self._server.roster
        if self._role is None or peer != roster.servers[self._server.number].name:  # it has been replaced
            return [(peer, self._codec.encode(MirrorAck(0, roster=roster)))]
        self._role.take(header, frames)
        if isinstance(header, MirrorOps) and any(isinstance(op, ExpectDigest) for op in header.ops):
            self.settle()
        return [(peer, self._codec.encode(self._role.taken))]

    def settle(self) -> None:
        """Run what a mirror has taken of its server's log."""
        while self._role is not None and self._role.queue:
            item, frames = self._role.queue.popleft()
            if isinstance(item, Fill):
                if (manifest := take_fill(item, Frames(frames), self._role.filling)) is not None:
                    self._server.workers = dict(manifest.transfer.workers)
                    self._server.rounds = manifest.rounds
                continue
            self._role.is_synced |= item.is_synced
            try:
                self._server.replay(item, frames)
            except MirrorDiffers as error:
                of = self._server.roster.servers[self._server.number].name
                self._role.differs = f"server {of} and its mirror {self._server.name} are not equal: {error}"

    def _follow(self, roster: Roster, now: float) -> Outgoing:
        """Follow a newer roster, in which some servers have other mirrors, or are mirrors that took over."""
        server = self._server
        if roster.epoch < server.roster.epoch:
            return []
        if roster.epoch > server.roster.epoch:
            server.follow(roster)
        is_in_place = roster.servers[server.number].name == server.name
        if is_in_place:
            self._role = None
        mirror = roster.mirror(server.number) if is_in_place else None
        released: Outgoing = []
        if self._stream is not None and (mirror is None or mirror.name != self._stream.mirror):
            released = self._stream.release() if is_in_place else []  # else it was replaced: nothing counts as done
            self._stream = None
        if self._stream is None and mirror is not None:
            self._stream = MirrorStream(mirror.name, self._codec)
        if self._stream is None:
            return released
        self.copy_if_wanted()
        self._stream.sync(has_lease=self._lease.is_valid(now))
        return [*released, *self._stream.outgoing(now)]

    def _taken(self, peer: str, taken: MirrorAck, now: float) -> Outgoing:
        if self._stream is None or peer != self._stream.mirror:
            return []
        if taken.roster is not None:
            return self._follow(taken.roster, now)
        if taken.differs:
            return [
                (held.peer, self._answers.encode(Refused(held.request_id, "mirror_differs", taken.differs)))
                for held in self._stream.held
            ]
        return self._stream.take(taken.id, now, has_lease=self._lease.is_valid(now))
