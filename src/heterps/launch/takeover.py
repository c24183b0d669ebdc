"""Whether a run that is resumed goes on with the servers that its killed process left, or from its last checkpoint.

RUN/journal.jsonl --> [1] is it of this job and plan? --> [2] do all its servers wait? --> they are taken over
                           no                                  no: those that do are told to end

Servers with mirrors know better than the journal who has which place. Those that wait are asked, and the newest roster
counts. One that lives and does not answer may know a newer one: then nobody is taken over.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from heterps.config import Job
from heterps.config.launchers import LAUNCHERS
from heterps.errors import PeerLost
from heterps.planning.plan import Plan
from heterps.ps.client.ask import ask, asker_channel
from heterps.ps.protocol.messages import AskRoster, Welcome
from heterps.ps.protocol.roster import Roster, Seat
from heterps.temporary import OWNER, PREFIX
from heterps.training.coordinator.journal import (
    FILE,
    JournalContents,
    ServerPlace,
    digest_of,
    read_journal,
    write_journal,
)
from heterps.training.run.folder import Run
from heterps.wire.address import server_process

ASK_S = 5.0
"""Seconds for which a server that waits may take to say who has which place."""


def find_servers(job: Job, plan: Plan, run: Run) -> JournalContents | None:
    """Return what the killed process of a run has left, for this one, if its servers still wait; None if nothing is.

    The journal is then of no use any more, and servers that wait for nobody are told to end.
    """
    found = read_journal(run.folder)
    if found is None:
        return None
    is_wanted = LAUNCHERS[job.launcher].keeps_servers and run.goes_on and found.head.job == digest_of(job, plan)  # [1]
    if is_wanted and hasattr(os, "pidfd_open") and (roster := _left(found)) is not None:  # [2]
        with suppress(OSError):  # else from the checkpoint: two coordinators must not be taken for one
            taken = found.next_life(ServerPlace(found.head.servers.folder, msgspec.to_builtins(roster)))
            write_journal(run.folder, taken)
            return taken
    dismiss_servers(found)
    (run.folder / FILE).unlink(missing_ok=True)
    return None


def dismiss_servers(found: JournalContents) -> None:
    """Tell servers that wait to end: they do when the folder of their sockets is gone."""
    folder = Path(found.head.servers.folder)
    if folder.name.startswith(PREFIX) and (folder / OWNER).is_file():
        shutil.rmtree(folder, ignore_errors=True)


def _left(found: JournalContents) -> Roster | None:
    """The roster of the servers that wait; None where one is missing, or does not answer."""
    newest = msgspec.convert(found.head.servers.roster, Roster)
    asked: set[Seat] = set()
    while newest.mirrors and (seats := {seat for seat in newest.seats if _waits(seat)} - asked):
        channel = asker_channel({seat.name: seat.address for seat in seats})
        try:
            answers = [ask(channel, seat.name, AskRoster(1), deadline_s=ASK_S)[0] for seat in seats]
        except PeerLost:
            return None
        finally:
            channel.close()
        known = [answer.roster for answer in answers if isinstance(answer, Welcome)]
        newest, asked = max([newest, *known], key=lambda roster: roster.epoch), asked | seats
    return newest.without_gone(_waits)


def _waits(seat: Seat) -> bool:
    return server_process(seat.address) is not None
