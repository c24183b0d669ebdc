"""Whether a run that is resumed goes on with the servers that its killed process left, or from its last checkpoint.

RUN/journal.jsonl --> [1] is it of this job and plan? --> [2] do all its servers wait? --> they are taken over
                           no                                  no: those that do are told to end
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from heterps.config import Job
from heterps.config.launchers import LAUNCHERS
from heterps.planning.plan import Plan
from heterps.ps.protocol.roster import Roster
from heterps.temporary import OWNER, PREFIX
from heterps.training.coordinator.journal import FILE, JournalContents, digest_of, read_journal, write_journal
from heterps.training.run.folder import Run
from heterps.wire.address import server_process


def find_servers(job: Job, plan: Plan, run: Run) -> JournalContents | None:
    """Return what the killed process of a run has left, for this one, if its servers still wait; None if nothing is.

    The journal is then of no use any more, and servers that wait for nobody are told to end.
    """
    found = read_journal(run.folder)
    if found is None:
        return None
    is_wanted = LAUNCHERS[job.launcher].keeps_servers and run.goes_on and found.head.job == digest_of(job, plan)  # [1]
    if is_wanted and hasattr(os, "pidfd_open") and _all_wait(found):  # [2]
        with suppress(OSError):  # else from the checkpoint: two coordinators must not be taken for one
            write_journal(run.folder, found.next_life())
            return found.next_life()
    dismiss_servers(found)
    (run.folder / FILE).unlink(missing_ok=True)
    return None


def dismiss_servers(found: JournalContents) -> None:
    """Tell servers that wait to end: they do when the folder of their sockets is gone."""
    folder = Path(found.head.servers.folder)
    if folder.name.startswith(PREFIX) and (folder / OWNER).is_file():
        shutil.rmtree(folder, ignore_errors=True)


def _all_wait(found: JournalContents) -> bool:
    seats = msgspec.convert(found.head.servers.roster, Roster).seats
    return all(server_process(seat.address) is not None for seat in seats)
