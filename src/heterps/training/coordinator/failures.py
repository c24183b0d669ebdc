"""Failures: which of several errors ended a run, and how they travel between processes.

    worker-2.0 dies  -->  worker-1.0: "no gradients from worker-2.0"    Failed ----+
          |                                                                        v
          +------------>  the launcher sees that its process ended   ------>  [most telling] --> the run's error

Most telling is [1] what is no consequence of another's end: a bad model, bad data, a full disk; then [2] a process that
ended without a word; and last [3] that somebody was waited for. A consequence may come first, so that everybody is
heard for a while before one is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import heterps.errors as errors
from heterps.errors import HeterpsError, ModelError, PeerLost, StaleIncarnation
from heterps.training.protocol.messages import Failed
from heterps.wire import WireError

if TYPE_CHECKING:
    from heterps.training.coordinator.fleet import Fleet

HEAR_S = 1.0
"""Seconds that others have to say what they have met, once somebody says that a peer is lost."""
POLL_S = 0.05


class PeerDied(PeerLost):
    """The process `peer` of the job ended too early; the text says how. `cause`: the error that it met, if
    it said so."""

    def __init__(self, peer: str, text: str, cause: HeterpsError | None = None) -> None:
        super().__init__(text)
        self.peer, self.cause = peer, cause


def kind_and_text(error: BaseException, log: str = "") -> tuple[str, str]:
    """An error in words that can travel: the name of its class in heterps.errors, and its text.

    log  where the traceback is
    """
    if isinstance(error, SystemExit):
        return ModelError.__name__, f"code of the model called sys.exit({error.code!r}). It must return instead"
    where = f"{log} shows the line" if log else "--debug shows the line"
    if not isinstance(error, HeterpsError):
        return HeterpsError.__name__, f"{type(error).__name__}: {error}. {where}"
    return type(error).__name__, str(error).replace("--debug shows the line", where)


def error_of(kind: str, text: str) -> HeterpsError:
    """Return the error that travelled. It is a HeterpsError where its class is not in heterps.errors."""
    found = getattr(errors, kind, HeterpsError)
    known = isinstance(found, type) and issubclass(found, HeterpsError)
    return (found if known else HeterpsError)(text)


def failure(failed: Failed) -> HeterpsError:
    """Return the error that a worker met, as an error to raise here."""
    return error_of(failed.kind, f"{failed.worker}: {failed.text}")


def most_telling(found: Sequence[HeterpsError]) -> HeterpsError:
    """Return the error that explains the others, or its cause; `found` are in the order in which they were met."""
    return min(map(_cause, found), key=_rank)


def find_culprit(error: HeterpsError, fleet: Fleet) -> HeterpsError:
    """What ended the run, if it was not `error`: listens to the fleet for a while if that may be a consequence."""
    found, deadline = [error], time.monotonic() + HEAR_S
    while _rank(most_telling(found)) > 1 and time.monotonic() < deadline:
        for look in (_ended, _told):
            try:
                look(fleet)
            except WireError:
                continue
            except HeterpsError as met:
                found.append(met)
    return most_telling(found)


def _ended(fleet: Fleet) -> None:
    fleet.check()


def _told(fleet: Fleet) -> None:
    envelope = fleet.mailbox.receive(POLL_S)
    if envelope is not None and isinstance(envelope.message, Failed):
        raise failure(envelope.message)


def _cause(error: HeterpsError) -> HeterpsError:
    return error.cause or error if isinstance(error, PeerDied) else error


def _rank(error: HeterpsError) -> int:
    if not isinstance(error, PeerLost | StaleIncarnation):
        return 1
    return 2 if isinstance(error, PeerDied) else 3
