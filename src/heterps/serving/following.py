"""Keep a scorer at the newest version of what it follows, on a thread of its own.

    look --> new versions, in order --> the scorer, each as a whole --> look again after `every_s`
      |
      +--> nothing to follow yet, or no longer: "waiting"      the scorer stays at the version that it has,
      +--> a version is damaged or does not follow: "refused"  and the reason is in /health and in the log

Nothing that can happen to a version ends the thread: a later version, or the same one written anew, may be fit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from heterps.errors import HeterpsError


def clock_of(version: str) -> int:
    """Return the clock of a version from its name, `1234` or `1234-2`."""
    return int(version.partition("-")[0])


REFUSED_S = 2.0
"""Seconds from a refusal to the next look: to mend a version takes longer."""


class NothingToFollow(Exception):
    """There is nothing to follow at the moment; the text says what is missing."""


class VersionSource(Protocol):
    """Where versions come from. `name` says it to people."""

    name: str

    def look(self) -> Iterator[str]:
        """Put every new version in place, in order, and yield its name.

        Raises NothingToFollow where nothing more will come for now, and another exception where a version is unusable.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Status:
    """How following goes, and why not better."""

    state: Literal["waiting", "following", "refused"]
    detail: str = ""


class Follower:
    """The thread that looks for new versions.

    on_version  is told the name of each version once it is in use
    on_status   is told when the status changes
    """

    def __init__(
        self,
        source: VersionSource,
        every_s: float,
        on_version: Callable[[str], None],
        on_status: Callable[[Status], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._every_s, self._clock = source, every_s, clock
        self._on_version, self._on_status = on_version, on_status
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow versions", daemon=True)
        self._newest_at_s = clock()  # when the version in use was last known to be the newest
        self.status = Status("waiting", "it has not looked yet")

    def start(self) -> None:
        """Look once, so that the newest version is in use from the first request on, then go on by a thread."""
        self.look()
        self._thread.start()

    def look(self) -> None:
        """Put in place what is new. It raises nothing: what goes wrong becomes the status."""
        now_s = self._clock()
        try:
            for name in self._source.look():
                self._on_version(name)
                if self._stopped.is_set():
                    return
            self._become(Status("following"))
        except NothingToFollow as reason:
            self._become(Status("waiting", str(reason)))
        except Exception as error:  # whatever it is, the old version stays in use, and later ones may be fit
            is_known = isinstance(error, (HeterpsError, ValueError, OSError))
            self._become(Status("refused", str(error) if is_known else f"{type(error).__name__}: {error}"))
        if self.status.state != "refused":
            self._newest_at_s = now_s

    def describe(self) -> dict[str, Any]:
        """Return how it goes, for GET /health; lag_s is since the version in use was last known to be the newest."""
        return {
            "source": self._source.name,
            "state": self.status.state,
            "detail": self.status.detail,
            "lag_s": round(self._clock() - self._newest_at_s, 3),
        }

    def close(self) -> None:
        """Stop looking, once a version that is being put in place is in place."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._source.close()

    def _become(self, status: Status) -> None:
        if status != self.status:
            self.status = status
            self._on_status(status)

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            self.look()

    @property
    def _pause_s(self) -> float:
        return max(self._every_s, REFUSED_S) if self.status.state == "refused" else self._every_s
