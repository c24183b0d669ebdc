"""ColdStore: rows by key in a file on disk, mapped into memory, in batches. The lower tier of a table.

    keys --index (memory, 10 to 12.5 bytes a key)--> slots --gather, scatter--> file [slot][slot]... | slab | slab

The file has no name: it is taken out of its folder as soon as it is made, so no process can ever read what another
left behind, and the room on disk is free again when the process ends, however it ends. What a job must keep across a
restart goes through a checkpoint.

Of the file's pages only some are mapped at a time: a call goes through in portions, and what it has mapped is left to
the system when it is more than `mapped_bytes`. The rows stay in the system's cache of the disk as long as it has room;
what ends is this process's claim on them.

The file grows by slabs whose room on disk is taken before they are used: a full disk is then an error of the call
that needed the slab, and not a signal in the middle of a write to mapped memory.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import KeyArray
from heterps.errors import StorageError
from heterps.ps.table import cold_kernels as kernels
from heterps.ps.table.index import Numbers

MAX_LOAD = 0.8
LEAST_INDEX = 64
MAX_ROWS = 2**31
LEAST_SLAB_BYTES, MOST_SLAB_BYTES = 1 << 20, 1 << 30
MAPPED_BYTES = 2 << 30
"""Bytes of the file's pages that the process holds on to by default; never more than twice as much."""
LEAST_PORTION = 16
_AROUND = 1 << 16  # a fault maps up to so many bytes around it


class ColdStore:
    """Rows of `num_words` 32-bit words, by 64-bit key, in a nameless file in `folder` (made where it is missing).

    The first `kept_words` of each row are kept in memory as well. Keys of one call must differ. No lock: one thread at
    a time. A call that fails has changed nothing.
    """

    def __init__(
        self, num_words: int, folder: str | Path, mapped_bytes: int = MAPPED_BYTES, kept_words: int = 0
    ) -> None:
        if num_words < 1:
            raise ValueError(f"num_words must be at least 1, got {num_words}")
        self.num_words = num_words
        self.folder = Path(folder)
        self._mapped_bytes = mapped_bytes
        self._stride = -(-(kernels.KEY_WORDS + num_words) // 2) * 2
        self._num_rows = 0
        self._marks = np.zeros(2, np.int64)
        self._entries = np.zeros(0, np.uint64)
        self._kept = np.zeros((0, kept_words), np.uint32)  # by slot
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = cast(BinaryIO, tempfile.TemporaryFile(dir=self.folder))  # noqa: SIM115 -- closed below
        except OSError as error:
            raise _storage_error(error, self.folder) from error
        self._close_file = weakref.finalize(self, self._file.close)  # a store that nobody closed takes no room either
        self._file_bytes = 0
        self._map: mmap.mmap | None = None
        self._touched = np.zeros(0, np.bool_)
        self._bind()

    def __len__(self) -> int:
        return self._num_rows

    @property
    def num_bytes(self) -> int:
        """Memory in use: the index, and words that are kept. Pages of the file are not counted."""
        return self._entries.nbytes + self._kept.nbytes

    @property
    def disk_bytes(self) -> int:
        """The room that the file takes on disk. It is used again for other rows, and given back on `close`."""
        return self._file_bytes

    def index_bytes(self, num_rows: int) -> int:
        """Return what the index, and words that are kept, may take in memory with up to `num_rows` rows."""
        size = max(len(self._entries), _index_size(num_rows))
        return 8 * size + 4 * self._kept.shape[1] * int(MAX_LOAD * size)

    def reserve(self, num_rows: int) -> None:
        """Take room on disk and in the index for `num_rows` rows in all: puts up to there cannot fail."""
        if num_rows > MAX_ROWS:
            raise MemoryError(f"a table shard holds at most {MAX_ROWS:,} rows on disk; use more shards")
        needed = num_rows * self._stride * 4  # free slots are used before new ones
        if needed > self._file_bytes:
            slab_bytes = min(max(self._file_bytes // 4, LEAST_SLAB_BYTES), MOST_SLAB_BYTES)
            self._extend(max(needed, self._file_bytes + slab_bytes))
        if num_rows > MAX_LOAD * len(self._entries):
            entries = np.zeros(_index_size(num_rows), np.uint64)
            kernels.rehash(self._entries, entries)
            self._entries = entries
            kept = np.zeros((int(MAX_LOAD * len(entries)), self._kept.shape[1]), np.uint32)
            kept[: len(self._kept)] = self._kept
            self._kept = kept
        self._bind()

    def find(self, keys: KeyArray) -> Numbers:
        """Return the slot of each key, -1 where it has none. Slots are good until the next `put` or `take`."""
        slots = np.full(len(keys), -1, np.int64)
        if self._num_rows:
            for part in self._portions(len(keys)):
                if kernels.find(self._body, keys[part], slots[part]):
                    self._touch(slots[part])
        return slots

    def read(self, slots: Numbers, out: NDArray[np.uint32]) -> None:
        """Copy the rows in `slots`, or their first words, into `out` [n, up to num_words].

        It stays as it is where a slot is -1.
        """
        for part in self._portions(len(slots)):
            kernels.gather(self._body, slots[part], out[part])
            self._touch(slots[part])

    def put(self, keys: KeyArray, rows: NDArray[np.uint32]) -> None:
        """Write `rows` [n, num_words] under `keys`; a key that is there already gets the new row."""
        if rows.shape != (len(keys), self.num_words):
            raise ValueError(f"{len(keys)} keys need rows [{len(keys)}, {self.num_words}], got {list(rows.shape)}")
        self.reserve(self._num_rows + len(keys))
        slots = np.empty(len(keys), np.int64)
        for part in self._portions(len(keys)):
            self._num_rows += kernels.put(self._body, keys[part], rows[part], slots[part])
            self._touch(slots[part])
        self._kept[slots] = rows[:, : self._kept.shape[1]]

    def take(self, keys: KeyArray) -> NDArray[np.uint32]:
        """Remove the rows of `keys`, which must all be there, and return them, [n, num_words]."""
        slots = self._find_all(keys)
        rows = np.empty((len(keys), self.num_words), np.uint32)
        for part in self._portions(len(keys)):
            kernels.gather(self._body, slots[part], rows[part])
            self._remove(keys[part], slots[part])
        return rows

    def drop(self, keys: KeyArray) -> None:
        """Remove the rows of `keys`, which must all be there."""
        slots = self._find_all(keys)
        for part in self._portions(len(keys)):
            self._remove(keys[part], slots[part])

    def in_tags(self, low: int, high: int) -> tuple[Numbers, NDArray[np.uint32]]:
        """Find slots of all keys whose tag is at least `low` and less than `high`, and these tags; nothing is read."""
        if self._num_rows == 0 or low >= high:
            return np.empty(0, np.int64), np.empty(0, np.uint32)
        return kernels.slots_in_tags(self._entries, low, high)

    def kept(self, slots: Numbers) -> NDArray[np.uint32]:
        """Return the words of rows that are kept in memory, [n, kept_words]."""
        return self._kept[slots]

    def keys_at(self, slots: Numbers) -> KeyArray:
        """Return the keys in `slots`, which all have one."""
        keys = np.empty(len(slots), np.uint64)
        for part in self._portions(len(slots)):
            kernels.gather_keys(self._body, slots[part], keys[part])
            self._touch(slots[part])
        return keys

    def parts(self, num_rows: int) -> Iterator[tuple[KeyArray, NDArray[np.uint32]]]:
        """Yield every key with its row, up to `num_rows` at a time, in the order of the file."""
        slots = np.empty(self._num_rows, np.int64)
        kernels.live_slots(self._entries, slots)
        slots.sort()
        for begin in range(0, len(slots), num_rows):
            part = slots[begin : begin + num_rows]
            keys, rows = np.empty(len(part), np.uint64), np.empty((len(part), self.num_words), np.uint32)
            for inner in self._portions(len(part)):
                kernels.gather_keys(self._body, part[inner], keys[inner])
                kernels.gather(self._body, part[inner], rows[inner])
                self._touch(part[inner])
            yield keys, rows

    def close(self) -> None:
        """Give back the room on disk. The store is empty then, and safe to close again."""
        self._num_rows = self._file_bytes = 0
        self._marks[:] = 0
        self._entries = np.zeros(0, np.uint64)
        self._kept = self._kept[:0]
        self._map = None
        self._bind()
        self._close_file()

    def _extend(self, file_bytes: int) -> None:
        file_bytes = -(-file_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            _allocate(self._file.fileno(), self._file_bytes, file_bytes - self._file_bytes)
            self._map = mmap.mmap(self._file.fileno(), file_bytes)
        except OSError as error:
            os.ftruncate(self._file.fileno(), self._file_bytes)  # what was granted before the refusal
            raise _storage_error(error, self.folder) from error
        if hasattr(mmap, "MADV_RANDOM"):
            self._map.madvise(mmap.MADV_RANDOM)
        self._file_bytes = file_bytes
        self._touched = np.zeros(-(-file_bytes // _AROUND), np.bool_)

    def _find_all(self, keys: KeyArray) -> Numbers:
        slots = self.find(keys)
        if missing := int((slots < 0).sum()):
            raise KeyError(f"{missing} of {len(keys)} keys have no row on disk; the first is {keys[slots < 0][0]}")
        return slots

    def _remove(self, keys: KeyArray, slots: Numbers) -> None:
        kernels.remove(self._body, keys)
        self._num_rows -= len(keys)
        self._touch(slots)

    def _portions(self, num: int) -> Iterator[slice]:
        """Yield parts of `num` rows that map at most `mapped_bytes`, wherever in the file they are."""
        size = max(self._mapped_bytes // _AROUND, LEAST_PORTION)
        return (slice(begin, begin + size) for begin in range(0, num, size))

    def _touch(self, slots: Numbers) -> None:
        """Note which parts of the file are mapped now; leave them to the system when they are many."""
        self._touched[slots[slots >= 0] * (self._stride * 4) // _AROUND] = True
        if self._map is not None and int(np.count_nonzero(self._touched)) * _AROUND > self._mapped_bytes:
            if hasattr(mmap, "MADV_DONTNEED"):
                self._map.madvise(mmap.MADV_DONTNEED)
            self._touched[:] = False

    def _bind(self) -> None:
        block = np.frombuffer(self._map, np.uint8) if self._map is not None else np.zeros(0, np.uint8)
        self._body = kernels.StoreBody(
            self._entries, block.view(np.uint32), block.view(np.uint64), self._marks, self._stride
        )


def _index_size(num_rows: int) -> int:
    """Return a quarter more than `num_rows` at MAX_LOAD, so that an index is at least 64 % full when it grows again."""
    return max(LEAST_INDEX, int(num_rows / MAX_LOAD * 1.25) + 1)


def _allocate(descriptor: int, start: int, num_bytes: int) -> None:
    """Take room on disk, not only length: a write to mapped memory has no way to say that the disk is full."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, num_bytes)
        return
    zeros = bytes(min(num_bytes, LEAST_SLAB_BYTES))
    for offset in range(start, start + num_bytes, len(zeros)):
        os.pwrite(descriptor, zeros[: start + num_bytes - offset], offset)


def _storage_error(error: OSError, folder: Path) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageError(
            f"{folder}: no room on disk for cold rows: {error.strerror}. Free some room, set tiers.folder to a larger "
            "disk, or raise tiers.memory_bytes."
        )
    return StorageError(
        f"{folder}: cold rows cannot be written: {error.strerror or error}. Check the folder and its permissions, or "
        "set tiers.folder to another one."
    )
