"""A folder of files that were made from data files, so that they are made once and not by every process.

    ~/.cache/heterps/ (or $XDG_CACHE_HOME/heterps/)
        4f1c...a0.index    where the rows of a text file are, and the types of its columns
        9b77...31.text     a compressed text file, unpacked

A name is a hash of the address, the size and the time of the last change of the data file, so that a file that was
written anew gets another entry. Everything in the folder can be deleted at any time.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from heterps.errors import StorageError


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heterps"


def cached(key: tuple[Any, ...], suffix: str, make: Callable[[Path], None]) -> Path:
    """Return the file of `key`. `make` writes it if it is not there; other processes wait for it meanwhile.

    The file is complete or absent, whatever happens. Raises StorageError if the folder cannot be written, and what
    `make` raises.
    """
    path = cache_folder() / f"{xxhash.xxh3_128_hexdigest(repr(key).encode())}.{suffix}"
    if path.exists():
        return path
    partial = path.with_suffix(f".partial-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                make(partial)
                partial.replace(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) and not str(error.filename).startswith(str(path.parent)):
            raise  # of the data file
        raise StorageError(
            f"{path}: cannot keep what was made of a data file: {error.strerror or error}. Free some space, check the "
            "permissions, or set XDG_CACHE_HOME to another folder."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return path
