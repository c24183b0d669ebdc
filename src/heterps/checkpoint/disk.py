"""The disk under a checkpoint: files that know their digest and folders that are made, renamed and removed durably.

Every call that changes the disk goes through this module's `os`. Tests put one in its place that crashes at the n-th
call, loses what was not synced, or is full.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from heterps.errors import StorageError

BLOCK_BYTES = 1 << 20


class DigestWriter(io.RawIOBase):
    """A new file that counts and digests what is written to it. Open it with `new_file`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._digest = xxhash.xxh3_128()
        self.num_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        written = 0
        while written < len(view):  # a write may take only a part: signals, nearly full disks
            written += os.write(self._descriptor, view[written:])
        self._digest.update(view)
        self.num_bytes += len(view)
        return len(view)

    @property
    def xxh3(self) -> str:
        return self._digest.hexdigest()


@contextmanager
def new_file(path: Path) -> Iterator[DigestWriter]:
    """Make a file that must not exist yet. Once the block is left without an error, its bytes are on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        writer = DigestWriter(descriptor)
        yield writer
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def measure(path: Path) -> tuple[int, str]:
    """Size in bytes and digest of a file, read in blocks."""
    digest, num_bytes = xxhash.xxh3_128(), 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            num_bytes += len(block)
    return num_bytes, digest.hexdigest()


def make_folder(path: Path) -> None:
    """Make the folder and its missing parents, each entered durably in its own parent."""
    if not path.is_dir():
        make_folder(path.parent)
        os.mkdir(path)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable: new, renamed and removed files are only then certain to be so."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    os.rename(source, target)
    sync_folder(target.parent)


def remove(path: Path) -> None:
    """Remove a file, a link (not what it leads to) or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        for inner in path.iterdir():
            remove(inner)
        os.rmdir(path)
    else:
        os.unlink(path)


ADVICE = {
    errno.ENOSPC: "Free space on that disk, or move the run to a larger one",
    errno.EDQUOT: "Free space within your quota, or move the run to another disk",
    errno.EACCES: "Make the folder writable for this user, or choose another one",
    errno.EPERM: "Make the folder writable for this user, or choose another one",
    errno.EROFS: "Mount the file system for writing, or choose another folder",
}


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn an OSError into a StorageError that says `what` failed, why, and what to do."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename else ""
        advice = ADVICE.get(error.errno or 0, "Check the disk")
        raise StorageError(f"{what}: {why}{where}. {advice}. What was saved before is as it was.") from error
