"""Memory for rows that grows without moving: address space is reserved once, the system backs it as rows are touched.

Copying a table to grow it would stop its shard for the time of the copy and need twice the memory. Instead a large
range of addresses is reserved (it costs nothing until touched) and asked to be backed by huge pages, which spares most
of the TLB misses of random access. Where the system grants less, the table moves to a larger range when it must.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

RESERVE_BYTES = 1 << 36
LEAST_BYTES = 1 << 21


def reserve(num_bytes: int) -> NDArray[np.uint8]:
    """Zeroed memory of `num_bytes`, or up to RESERVE_BYTES if the system grants that, backed when first touched."""
    flags = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0) | getattr(mmap, "MAP_NORESERVE", 0)
    size = max(RESERVE_BYTES, num_bytes)
    while True:
        try:
            block = mmap.mmap(-1, size, flags=flags) if flags else mmap.mmap(-1, size)
        except (OSError, ValueError):
            if size // 2 < max(num_bytes, LEAST_BYTES):
                raise MemoryError(f"the system refuses {num_bytes:,} bytes for the rows of a table") from None
            size //= 2
            continue
        if hasattr(mmap, "MADV_HUGEPAGE"):
            block.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(block, np.uint8)
