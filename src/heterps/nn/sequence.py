"""SparseSequence: the rows of a list in its order, padded to one length, with a mask.

    list of a sample, oldest first     max_length 4
    [a b c]          -->   [ 0 a b c ]   mask [0 1 1 1]      padded in front: the last place is always the newest
    [a b c d e f]    -->   [ c d e f ]   mask [1 1 1 1]      keep="newest"
                           [ a b c d ]                       keep="oldest"
    []               -->   [ 0 0 0 0 ]   mask [0 0 0 0]

A place is then how many steps ago something was, in every sample, so a learned position is a parameter for each place.
Keys that do not fit are cut off before rows are looked up: nothing of them is pulled or learned.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heterps.arrays import OffsetArray
from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.lookups import Window
from heterps.nn.embedding import SparseEmbedding


class SparseSequence(SparseEmbedding):
    """The rows of one slot's lists in their order, for models that look at each of them: attention, transformers.

    slot        name of the slot, a column of lists; a single id is a list of one
    dim         number of values per row
    max_length  number of places; longer lists are cut
    keep        what stays of a longer list: its "newest" items, which are last, or its "oldest"
    table       name of its table, as in SparseEmbedding: the history of items and the item itself share their rows if
                both name one table, and `same_ids` of the schema gives them the same keys
    settings    of its rows, as in SparseEmbedding: optimizer, init_scale, init, schedule, admission, eviction, seed

    `rows, mask = sequence(slots)` gives float32 [batch, max_length, dim], with zeros where there is nothing, and bool
    [batch, max_length], which is true where there is a row.
    """

    def __init__(
        self,
        slot: str,
        dim: int,
        *,
        max_length: int,
        keep: Literal["newest", "oldest"] = "newest",
        table: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__([slot], dim, pooling="none", table=table, **settings)
        if max_length < 1:
            raise ModelError(f"max_length must be at least 1, got {max_length}")
        if keep not in ("newest", "oldest"):
            raise ModelError(f"keep must be newest or oldest, got {keep!r}")
        self.max_length = max_length
        self._window = Window(max_length, keep == "newest")

    def extra_repr(self) -> str:
        keep = "newest" if self._window is not None and self._window.newest else "oldest"
        return f"{self.slots[0]}, dim={self.dim}, max_length={self.max_length}, keep={keep}"

    def forward(self, slots: Slots) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return the rows [batch, max_length, dim] of each sample and the mask [batch, max_length] of its places."""
        ((values, part),) = self._pulled(slots)
        offsets = np.arange(len(part.keys) + 1) if part.offsets is None else part.offsets
        size = (len(offsets) - 1) * self.max_length
        places = torch.from_numpy(_places(offsets, self.max_length)).to(values.device)
        rows = values.new_zeros(size, self.dim).index_copy(0, places, values)
        mask = torch.zeros(size, dtype=torch.bool, device=values.device).index_fill(0, places, True)
        return rows.view(-1, self.max_length, self.dim), mask.view(-1, self.max_length)


def _places(offsets: OffsetArray, max_length: int) -> NDArray[np.int64]:
    """The place of each key of bags, which have at most `max_length` keys, among all places of all samples."""
    lengths = np.diff(offsets)
    ends = np.arange(1, len(lengths) + 1) * max_length  # a bag ends where the next sample begins
    return np.arange(offsets[-1]) + np.repeat(ends - offsets[1:], lengths)
