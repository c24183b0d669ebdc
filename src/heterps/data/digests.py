"""Digests: what the row groups held that a run has read, so that a resumed run notices when they were rewritten.

    worker: decodes row group 17 --> digest of its labels, keys and dense values --> coordinator --> checkpoint
    resumed run: decodes row group 17 again --> another digest --> DataError, before its rows are trained on twice

Names, counts and sizes of files do not tell rows that were permuted in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from heterps.errors import DataError


def digest_of(arrays: Iterable[NDArray[Any] | None]) -> str:
    """Return 16 hexadecimal digits that follow from the values of the arrays and their order."""
    state = xxhash.xxh3_64()
    for array in arrays:
        if array is not None:
            state.update(np.ascontiguousarray(array).view(np.uint8).data)
    return state.hexdigest()


class Digests:
    """The digests of row groups by their number in the data set."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def check(self, row_group: int, digest: str) -> None:
        """Take note of a row group that was read; raises DataError where it held something else before."""
        if self._known.setdefault(row_group, digest) != digest:
            raise DataError(
                f"row group {row_group} of data.train, counted over all files, holds other values than when this run "
                "first read it, or holds them in another order. Restore the data, or start a new run."
            )

    def state(self) -> dict[str, str]:
        return {str(row_group): digest for row_group, digest in sorted(self._known.items())}

    def restore(self, state: Mapping[str, str]) -> None:
        self._known = {int(row_group): digest for row_group, digest in state.items()}
