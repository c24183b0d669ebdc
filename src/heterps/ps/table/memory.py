"""Memory for rows that grows without moving: address space is reserved once, the system backs it as rows are touched.

Copying a table to grow it would stop its shard for the time of the copy and need twice the memory. Instead a large
range of addresses is reserved (it costs nothing until touched) and asked to be backed by huge pages, which spares most
of the TLB misses of random access. Where the system grants less, the table moves to a larger range when it must.
"""

from __future__ import annotations

import contextlib
import mmap
import platform
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESERVE_BYTES = 1 << 36
INDEX_RESERVE_BYTES = 1 << 34
_SMALL_BYTES = 1 << 22

# Not promised to be backed: else the system counts what is reserved as used, and refuses to fork a process with it.
# Python names the flag from 3.13 on.
_UNACCOUNTED = 0x4000 if (platform.system(), platform.machine()) in {("Linux", "x86_64"), ("Linux", "aarch64")} else 0
_FLAGS = (
    getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0) | getattr(mmap, "MAP_NORESERVE", _UNACCOUNTED)
)


def reserve(num_bytes: int, ask_bytes: int = RESERVE_BYTES, *, spare_small: bool = False) -> NDArray[np.uint8]:
    """Return zeroed memory of at least `num_bytes`, backed when first touched.

    Asks for `ask_bytes`, or twice `num_bytes` if that is more, and for half of it as long as the system refuses. To
    `spare_small` ones, the first megabytes are backed by small pages: a huge one is more than a little table needs.
    """
    size = max(ask_bytes, 2 * num_bytes)
    while True:
        try:
            block = mmap.mmap(-1, size, flags=_FLAGS) if _FLAGS else mmap.mmap(-1, size)
        except (OSError, ValueError, OverflowError):
            if size == num_bytes:
                raise MemoryError(
                    f"the system refuses {num_bytes:,} bytes for the rows of a table: "
                    "free memory, raise the limit on address space (ulimit -v), or use more servers"
                ) from None
            size = max(size // 2, num_bytes)
            continue
        first = _SMALL_BYTES if spare_small else 0
        if hasattr(mmap, "MADV_HUGEPAGE") and size > first:
            with contextlib.suppress(OSError):  # a kernel without huge pages: slower, not wrong
                block.madvise(mmap.MADV_HUGEPAGE, first, size - first)
        return np.frombuffer(block, np.uint8)


def release(memory: NDArray[np.uint8], start: int, stop: int) -> None:
    """Give the bytes start..stop-1 of reserved memory, all zero, back to the system; they stay zero and usable."""
    block: Any = memory.base  # the mapping, or NumPy's view of it
    block = getattr(block, "obj", block)
    if hasattr(mmap, "MADV_DONTNEED") and start % mmap.PAGESIZE == stop % mmap.PAGESIZE == 0:
        block.madvise(mmap.MADV_DONTNEED, start, stop - start)
