"""What a run tells Prometheus: `heterps train --metrics` asks the job of this process, `heterps ui` those of a folder.

Prometheus --> a thread of `heterps train`, or `heterps ui`
                 [1] AskStatus    --> the job: how far, how fast, how stale      between two messages of workers
                 [2] AskServers   --> the job --> its servers, wherever they run
                 [3] the run's folder: when was the last checkpoint finished, and how much room is left
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec

from heterps.checkpoint.finished import finished
from heterps.errors import HeterpsError
from heterps.ps.server.stats import ServerStats
from heterps.report.prometheus import RunFacts
from heterps.training.run.commands import AskServers, AskStatus
from heterps.training.run.control import NotRunning, find

ANSWER_S = 5.0
"""Seconds in which a job says how it stands; one that is busy with a checkpoint is asked again at the next look."""


def run_facts(name: str, folder: Path) -> RunFacts:
    """Return what monitoring is told of a run."""
    is_running, status = ask_status(folder)
    servers = _ask_servers(folder) if status is not None else []
    known = checkpoints(folder)
    age_s = max(0.0, time.time() - known[0][1]) if known else None
    return RunFacts(name, is_running, status, age_s, _free_bytes(folder), servers)


def ask_status(folder: Path) -> tuple[bool, dict[str, Any] | None]:
    """Return whether the job of a run folder runs, and what it says of itself; None where it does not say."""
    try:
        found = find(folder)
    except NotRunning:
        return False, None
    except HeterpsError:  # another user's, or on another machine
        return True, None
    try:
        told = found.ask(AskStatus(), ANSWER_S)
    except HeterpsError:
        return True, None
    return True, None if told.is_error else json.loads(told.text)


def _ask_servers(folder: Path) -> list[ServerStats]:
    """Return the figures of the servers of a running job; none where it has none, or they do not answer in time."""
    try:
        told = find(folder).ask(AskServers(), ANSWER_S)
    except HeterpsError:
        return []
    return [] if told.is_error else msgspec.json.decode(told.text, type=list[ServerStats])


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def checkpoints(folder: Path) -> list[tuple[str, float]]:
    """The checkpoints of a run, the newest first: name, and when it was finished in seconds since 1970."""
    found = []
    for one in finished(folder / "checkpoints"):
        try:
            found.append((one.path.name, one.path.stat().st_mtime))
        except OSError:  # removed meanwhile
            continue
    return sorted(found, key=lambda each: -each[1])
