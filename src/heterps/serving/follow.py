"""Follow a run: ask its job for versions of the model while it trains, and read them.

follow(RUN) --Follow(every_s), again and again--> the job of RUN, whichever process runs it now
            --Stream.poll()---------------------> versions in RUN/stream/, see checkpoint/stream.py
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heterps.checkpoint.stream import Stream, Version
from heterps.errors import ConfigError, HeterpsError
from heterps.training.coordinator.following import LEASE_S
from heterps.training.run.commands import MAX_EVERY_S, Follow
from heterps.training.run.control import NotRunning, ask, find

__all__ = ["Stream", "Version", "follow"]

log = logging.getLogger(__name__)

RENEW_S = LEASE_S / 3
ANSWER_S = 2.0
"""A job that is busy for longer hears of it all the same, and is asked again."""
RETRY_S = 0.5
"""How soon a job that does not run, or does not answer, is asked again."""


@contextmanager
def follow(run_folder: str | Path, every_s: float = 2.0) -> Iterator[Stream]:
    """Give the stream of a run, into which its job writes a version every `every_s` seconds while the block lasts.

    The job may end, be resumed or not have begun; what it wrote before can be read in any case. RunError where
    `run_folder` is no run, or one of another machine or user; ConfigError where `every_s` is more than a job takes.
    """
    if not 0 < every_s <= MAX_EVERY_S:
        raise ConfigError(f"every_s is {every_s:g}: ask for a version every {MAX_EVERY_S:g} s at most, and above 0.")
    folder = Path(run_folder)
    try:
        find(folder)
    except NotRunning:
        log.debug("%s does not run: versions come when it does", folder)
    ended = threading.Event()
    thread = threading.Thread(target=_keep_asking, args=(folder, every_s, ended), name="follow", daemon=True)
    thread.start()
    try:
        yield Stream(folder)
    finally:
        ended.set()
        thread.join()


def _keep_asking(folder: Path, every_s: float, ended: threading.Event) -> None:
    pause_s = 0.0
    while not ended.wait(pause_s):
        try:
            is_heard = not ask(folder, Follow(every_s), ANSWER_S).is_error
        except HeterpsError as error:
            log.debug("%s", error)
            is_heard = False
        except Exception as error:  # such as too many open files: a thread that ended would be missed by nobody
            log.warning("%s cannot be asked for versions: %s", folder, error)
            is_heard = False
        pause_s = RENEW_S if is_heard else RETRY_S
