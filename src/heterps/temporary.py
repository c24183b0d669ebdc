"""Temporary folders that do not outlive their process for long, however it ends.

    /tmp/heterps-ab12cd/owner     locked by the process that made the folder, for as long as it lives
    /tmp/heterps-ef34gh/owner     not locked: its process was killed, and whoever makes the next folder deletes this one

The system gives a lock back with the end of its process, kill -9 and power cuts included. A folder without the file
`owner` is never deleted.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "heterps-"
OWNER = "owner"


@contextmanager
def temporary_folder(kind: str = "", root: str | None = None) -> Iterator[Path]:
    """Make a folder that only this user may enter, and delete it when the context ends.

    Also deletes such folders of processes that are gone. OSError where none can be made.

    kind  part of its name
    root  where it is made; None: where temporary files are
    """
    with owned_folder(Path(tempfile.mkdtemp(prefix=PREFIX + kind, dir=root))) as folder:
        yield folder


def temporary_name(kind: str) -> str:
    """Return the path of a folder that is not there yet: `owned_folder` makes it."""
    return str(Path(tempfile.gettempdir()) / f"{PREFIX}{kind}{secrets.token_hex(8)}")


@contextmanager
def owned_folder(folder: Path) -> Iterator[Path]:
    """Make `folder` if it is not there, own it while the context lasts, and delete it when that ends.

    Also deletes folders of processes that are gone.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder / f"{OWNER}.part", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / f"{OWNER}.part").rename(folder / OWNER)  # only now: whoever sees it finds it locked
        _delete_abandoned(folder.parent)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # processes that still end may write their last words
        os.close(descriptor)


def wait_for_owner(folder: Path, wait_s: float, poll_s: float = 0.2) -> None:
    """Keep a folder whose owner has died, and return when nobody has owned it for so long, or when it is deleted.

    For a process that somebody may still need who makes the folder its own by `owned_folder`.
    """
    kept: int | None = None
    since = time.monotonic()
    with suppress(OSError):  # the folder is gone: nobody needs this process
        while time.monotonic() - since <= wait_s:
            descriptor = os.open(folder / OWNER, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # somebody owns it
                os.close(descriptor)
                since = time.monotonic()
            else:  # nobody does; whoever looks for abandoned folders finds this one locked
                if kept is not None:
                    os.close(kept)
                kept = descriptor
            time.sleep(poll_s)
    if kept is not None:
        os.close(kept)


def _delete_abandoned(root: Path) -> None:
    for folder in root.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or somebody else deletes it right now
            if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.geteuid():
                delete_if_abandoned(folder)


def delete_if_abandoned(folder: Path) -> None:
    """Delete a folder whose owner is gone. Raises OSError where it lives, or where the folder has none."""
    descriptor = os.open(folder / OWNER, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
