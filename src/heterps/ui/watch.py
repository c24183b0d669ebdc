"""One run as its page shows it: the report of what it has written so far, below what its job says of itself now.

    page 1 --\\
    page 2 ---+--> look()   at most once in a pause: [files of the run] + [status of the job] --> HTML --> its digest
    page 3 --/ \\                                          one event for all pages; the same digest: nothing new
                +-> glance()   at most once a second: [status of the job] --> HTML of the section `Now`
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps.errors import HeterpsError
from heterps.launch.run_metrics import ask_status, checkpoints
from heterps.report.page.live import Now, render_run_now, render_status
from heterps.report.read_run import RecordedRun, read_run
from heterps.report.run_details import RunDetails, read_details, with_quick_frontier
from heterps.report.worker_times import MOST_BYTES
from heterps.training.run.folder import Run

EVERY_S = 1.0
"""Seconds between two looks at a run, at least, and between two glances."""
SHARE = 0.007
"""Largest share of a core that looks may take: what is expensive to look at is looked at less often."""
DETAILS_EVERY_S = 5.0
"""Seconds after which the traces of a run that goes on are read again: they are its largest files."""
LIVE_TRACE_BYTES = 100_000
"""Bytes at the end of each trace that are read while the job runs; of a run that is over, all that a report reads."""
RETRY, END = b"retry: %d\n\n" % (1000 * EVERY_S), b"event: end\ndata: ended\n\n"
"""Told in a stream: when the page asks again, and that there is nothing more to ask."""
LOG_BYTES = 4000
MOST_LOGS = 20


@dataclass(frozen=True)
class Look:
    """A run at one moment: the body of its page, and a digest of it. `status` is what its job says; None: it is over.

    event       the body as an event of a stream, which all pages are sent
    is_running  whether its job runs, also where it did not answer in time
    """

    html: str
    digest: str
    event: bytes
    is_running: bool
    status: dict[str, Any] | None


@dataclass(frozen=True)
class Glance:
    """How the job of a run stands at one moment, as an event of a stream that replaces the section `Now` of a page."""

    event: bytes
    is_running: bool


class Watched:
    """A run that is looked at, by any number of threads."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._lock = threading.Lock()
        self._last: Look | None = None
        self._at, self._pause_s = -math.inf, EVERY_S
        self._details, self._details_at = RunDetails(), -math.inf
        self._recorded: RecordedRun | None = None
        self._glance: Glance | None = None
        self._glanced_at = -math.inf

    def look(self) -> Look:
        """Return how the run stands, as it was `EVERY_S` seconds ago or somewhat longer, see `SHARE`."""
        with self._lock:
            look = self.recent
            if look is None:
                began_s = time.thread_time()
                is_first, look = self._last is None, self._look()
                cost_s = 0.0 if is_first else time.thread_time() - began_s  # the first one imports what draws pages
                self._last, self._at, self._pause_s = look, time.monotonic(), max(EVERY_S, cost_s / SHARE)
            return look

    def glance(self) -> Glance:
        """Return how the job stands, as it was `EVERY_S` seconds ago at most. When it has ended, `look` looks anew."""
        with self._lock:
            glance = self.recent_glance
            if glance is None:
                is_running, status = ask_status(self.folder)
                glance = Glance(_event("now", render_status(status, self._recorded)), is_running)
                self._glance, self._glanced_at = glance, time.monotonic()
                if not is_running:
                    self._pause_s = 0.0
            return glance

    def refresh(self) -> None:
        """Make `news` those of now, which takes as long as the job takes to answer."""
        if self.look().is_running and not self.glance().is_running:
            self.look()

    def news(self, seen: str) -> bytes:
        """Return what a page that saw the body with the digest `seen` has to be told, as far as it is known by now."""
        look, glance, told = self._last, self._glance, RETRY
        if look is None:
            return told
        if look.digest != seen:
            told += look.event
        elif look.is_running and glance is not None:
            told += glance.event
        return told if look.is_running else told + END

    @property
    def recent(self) -> Look | None:
        """What `look` returned last; None where it would look again. It waits for nobody."""
        return self._last if time.monotonic() - self._at < self._pause_s else None

    @property
    def recent_glance(self) -> Glance | None:
        """What `glance` returned last; None where it would ask the job again. It waits for nobody."""
        return self._glance if time.monotonic() - self._glanced_at < EVERY_S else None

    def _look(self) -> Look:
        is_running, status = ask_status(self.folder)
        try:
            recorded, why = read_run(self.folder), ""
        except HeterpsError as error:
            recorded, why = None, str(error)
        self._recorded = recorded
        if recorded is not None and (not is_running or time.monotonic() - self._details_at >= DETAILS_EVERY_S):
            most_bytes = LIVE_TRACE_BYTES if is_running else MOST_BYTES
            details = read_details(Run(self.folder), recorded.job, most_bytes)
            self._details = details if is_running else with_quick_frontier(details, recorded.job, recorded.plan)
            self._details_at = time.monotonic()
        now = Now(self.name, is_running, status, checkpoints(self.folder), _logs(self.folder))
        html = render_run_now(now, recorded, why, self._details)
        digest = hashlib.sha256(html.encode()).hexdigest()[:16]
        return Look(html, digest, _event("body", html, digest), is_running, status)


def _event(kind: str, html: str, digest: str = "") -> bytes:
    """An event of a stream; only one with a digest changes where a broken stream goes on."""
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: {kind}\n{f'id: {digest}{chr(10)}' if digest else ''}{lines}\n".encode()


def _logs(folder: Path) -> list[tuple[str, str]]:
    """The ends of the logs of a run's processes, of those that wrote last."""
    try:
        files = sorted((folder / "logs").glob("*.log"), key=lambda path: -path.stat().st_mtime)[:MOST_LOGS]
    except OSError:
        return []
    return [(file.name, _end(file)) for file in sorted(files)]


def _end(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - LOG_BYTES))
            text = opened.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return text if size <= LOG_BYTES else f"...{text.partition(chr(10))[2]}"
